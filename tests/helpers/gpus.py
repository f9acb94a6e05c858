"""GPUs of both makers by name, each on the fake of its driver."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tests.doubles import fake_arrays, fake_cuda
from tests.runtime.gpu.test_hip_kernels import started
from tilewright.compiler import lld
from tilewright.runtime.gpu import engine
from tilewright.targets import target


def machine(monkeypatch: pytest.MonkeyPatch, name: str) -> SimpleNamespace:
    """`array` makes an array in its memory, `finish` waits for it, `machine.launches` is what has run."""
    if name.startswith("sm_"):
        fake = fake_cuda.install(monkeypatch)
        major, minor = target(name).capability
        fake.attributes |= {"COMPUTE_CAPABILITY_MAJOR": major, "COMPUTE_CAPABILITY_MINOR": minor}
        fake_arrays.take_the_place_of_torch(monkeypatch, fake_arrays.torch(fake))
        monkeypatch.setitem(sys.modules, "cupy", fake_arrays.cupy(fake))
        maker = engine.NVIDIA
    else:
        try:
            lld.find()
        except lld.Missing as missing:
            pytest.skip(str(missing))
        fake, maker = started(monkeypatch, name), engine.AMD

    def finish() -> None:
        for stream in list(fake.queues):
            fake.run(stream)
    return SimpleNamespace(name=name, array=fake_arrays.Tensor, engine=maker, machine=fake, finish=finish)
