"""DEVICES: where product cases run. CPUs by each instruction set that this machine has, GPUs on the fakes of their
drivers, whose kernels the simulator runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.doubles import uncompiled
from tests.helpers.gpus import machine
from tilewright import targets
from tilewright.formats import FORMATS
from tilewright.runtime.cpu import engine
from tilewright.targets import cpu


class Device(NamedTuple):
    """A CPU's instruction set, or a GPU."""

    target: str = ""                    # "": the widest that this machine has
    extensions: tuple[str, ...] | None = None       # without any but these; None: with all that the CPU has

    @property
    def gpu(self) -> bool:
        return self.target.startswith(("sm_", "gfx"))


DEVICES = {
    "cpu": Device(), "torch": Device(), "avx2": Device("x86-avx2"), "avx512": Device("x86-avx512", ()),
    "amx": Device("x86-avx512", ("amx-tile", "amx-bf16", "amx-int8")),
    **{name: Device(name) for name in ("sm_90a", "sm_86", "sm_80", "sm_75", "gfx942", "gfx950")},
}


class Memory:
    """The host's memory, with the methods of a fake GPU's."""

    gpu = False

    def __init__(self, name: str) -> None:
        self.name = name

    def array(self, x: np.ndarray) -> Any:
        return x

    def part(self, x: np.ndarray) -> Any:
        """A part of an array of few bits, in a dtype that its library has."""
        return self.array(x)

    def result(self, x: np.ndarray) -> Any:
        """An array to write to."""
        return self.array(x)

    def finish(self) -> None:
        """Nothing is under way."""

    def back(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def launched(self) -> list[str]:
        """The names of kernels that a GPU ran since this was asked last."""
        return []


class FakeMemory(Memory):
    """A fake GPU's."""

    gpu = True

    def __init__(self, name: str, patch: pytest.MonkeyPatch, code: bool) -> None:
        super().__init__(name)
        if not code:
            uncompiled.install(patch)
        self.fake, self.seen = machine(patch, DEVICES[name].target), 0

    def array(self, x: np.ndarray) -> Any:
        return self.fake.array(x)

    def part(self, x: np.ndarray) -> Any:
        return self.array(x.view(np.uint8) if x.dtype.kind == "V" and x.itemsize == 1 else x)

    def finish(self) -> None:
        self.fake.finish()

    def back(self, x: Any) -> np.ndarray:
        return x if isinstance(x, np.ndarray) else x.host

    def launched(self) -> list[str]:
        launches = self.fake.machine.launches
        before, self.seen = self.seen, len(launches)
        return [name for name, *_ in launches[before:]]


class TorchMemory(Memory):
    """The host's memory, whose arrays are torch's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.torch = pytest.importorskip("torch", reason="torch is not installed: there are no tensors to multiply")

    def array(self, x: np.ndarray) -> Any:
        """x as a tensor that shares its memory. Skips the test for strides and formats that torch has not."""
        if x.dtype.name not in NUMPY and not hasattr(self.torch, x.dtype.name):
            pytest.skip(f"torch has no {x.dtype.name}")
        if any(s < 0 or s % x.itemsize for s in x.strides) or not (x.dtype.isnative and x.flags.aligned):
            pytest.skip("torch has no such strides")
        raw = x if x.dtype.name in NUMPY else x.view(f"i{x.itemsize}")
        tensor = self.torch.from_numpy(raw)
        return tensor if raw is x else tensor.view(getattr(self.torch, x.dtype.name))

    def part(self, x: np.ndarray) -> np.ndarray:
        """Scaled arrays in the host's memory consist of NumPy's."""
        return x

    def back(self, x: Any) -> np.ndarray:
        if not isinstance(x, self.torch.Tensor):
            return np.asarray(x)
        name = str(x.dtype).removeprefix("torch.")
        if name in NUMPY:
            return x.numpy()
        kind = next(f.dtype for f in FORMATS.values() if f.numpy_name == name)
        return x.view(getattr(self.torch, f"int{8 * kind.itemsize}")).numpy().view(kind)


NUMPY = {"float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool", "complex64", "complex128"}


@contextmanager
def running(name: str, code: bool = True) -> Iterator[Memory]:
    """The device's memory; calls on arrays there run on it. Skips the test where this machine lacks the CPU. `code`:
    kernels for GPUs are compiled, though their recorded instructions are what runs."""
    device = DEVICES[name]
    with pytest.MonkeyPatch.context() as patch:
        if name == "torch":
            yield TorchMemory(name)
        elif device.gpu:
            yield FakeMemory(name, patch, code)
        elif not device.target:
            yield Memory(name)
        else:
            yield from _forced(device, name, patch)


def _forced(device: Device, name: str, patch: pytest.MonkeyPatch) -> Iterator[Memory]:
    target = targets.target(device.target)
    missing = [*target.missing, *(x for x in device.extensions or () if x not in target.extensions)]
    if missing:
        pytest.skip(f"this CPU lacks {', '.join(missing)}")
    patch.setitem(os.environ, "TILEWRIGHT_TARGET", device.target)
    if device.extensions is not None:
        patch.setattr(cpu, "ISAS", tuple(replace(row, extensions=device.extensions) if row.name == device.target
                                         else row for row in cpu.ISAS))
    try:
        _forget()
        yield Memory(name)
    finally:
        patch.undo()
        _forget()


def _forget() -> None:
    targets.detect.cache_clear()
    cpu.record.cache_clear()
    engine.forget()
