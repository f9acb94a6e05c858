"""GPUs of both makers by name, each on the fake of its driver."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.doubles import fake_arrays, fake_cuda, fake_hip
from tests.doubles.fake_device import FakeDevice
from tilewright.runtime.gpu import engine
from tilewright.runtime.gpu.recipe import Recipe
from tilewright.targets import target


def aligned(x: np.ndarray) -> np.ndarray:
    """The same, at an address that is a multiple of 16."""
    memory = np.zeros(x.nbytes + 16, np.uint8)
    begin = -memory.__array_interface__["data"][0] % 16
    there = memory[begin : begin + x.nbytes].view(x.dtype).reshape(x.shape)
    there[...] = x
    return there


def started(monkeypatch: pytest.MonkeyPatch, arch: str) -> FakeDevice:
    """The fake HIP, with the torch that is built for it."""
    fake = fake_hip.install(monkeypatch, arch, devices=2)
    torch = fake_arrays.torch(fake)
    torch.version = SimpleNamespace(hip="7.2.26015")
    fake_arrays.take_the_place_of_torch(monkeypatch, torch)
    return fake


def recipes(of: engine.Engine) -> int:
    """How many products an engine has prepared."""
    return sum(isinstance(x, Recipe) for x in of.prepared.found.values())


def finish(fake: Any) -> None:
    """All streams, to their ends."""
    for stream in list(fake.queues):
        fake.run(stream)


def machine(monkeypatch: pytest.MonkeyPatch, name: str) -> SimpleNamespace:
    """`array` makes an array in its memory, `finish` waits for it, `machine.launches` is what has run, and `made` are
    the kernels that its engine has compiled."""
    if name.startswith("sm_"):
        fake = fake_cuda.install(monkeypatch)
        major, minor = target(name).capability
        fake.attributes |= {"COMPUTE_CAPABILITY_MAJOR": major, "COMPUTE_CAPABILITY_MINOR": minor}
        fake_arrays.take_the_place_of_torch(monkeypatch, fake_arrays.torch(fake))
        monkeypatch.setitem(sys.modules, "cupy", fake_arrays.cupy(fake))
        maker = engine.NVIDIA
    else:
        fake, maker = started(monkeypatch, name), engine.AMD

    made, compile = list[Any](), maker.compile

    def compiled(*args: Any) -> Any:
        made.append(compile(*args))
        return made[-1]
    monkeypatch.setattr(maker, "compile", compiled)

    return SimpleNamespace(name=name, array=fake_arrays.Tensor, engine=maker, machine=fake, made=made,
                           finish=lambda: finish(fake))
