"""Launches with arrays of torch on ROCm and of DLPack libraries, on the HIP of tests/doubles/fake_hip.py."""

from __future__ import annotations

import gc
import sys
import types

import numpy as np
import pytest

from tests.doubles import fake_arrays
from tests.doubles.fake_hip import install
from tests.runtime.hip.test_hip_runtime import MANIFEST, SCALED, image  # noqa: F401  (a fixture)
from tilewright.blocks import Program
from tilewright.ir import f32, ptr
from tilewright.runtime.gpu import arrays, dlpack
from tilewright.runtime.hip import module
from tilewright.runtime.run import run


class Exporter(fake_arrays._Array):
    """An array of a library on ROCm that is known by DLPack alone. `asked` holds the streams it was asked for."""

    def __init__(self, host, device=0, versions=True):
        super().__init__(host, device)
        self.versions, self.asked = versions, []

    def __dlpack_device__(self):
        return dlpack.HIP, self.number

    def __dlpack__(self, *, stream, **options):
        if options and not self.versions:
            raise TypeError("unexpected keyword argument 'max_version'")
        assert stream not in (1, 2), "DLPack has no such streams on ROCm"
        self.asked.append(stream)
        return dlpack.make(self.pointer, self.shape, self.host.dtype, self.number, self, dlpack.HIP)


@pytest.fixture
def fake(monkeypatch):
    fake = install(monkeypatch, devices=2)
    torch = fake_arrays.torch(fake)
    torch.version = types.SimpleNamespace(hip="7.2.26015")
    fake_arrays.take_the_place_of_torch(monkeypatch, torch)
    monkeypatch.setattr(Exporter, "fake", fake, raising=False)
    return fake


@pytest.fixture
def kernel(fake, image):  # noqa: F811
    return module.Module(image).function(MANIFEST)


def ones(n=4):
    return np.ones(n, np.float32)


def test_arrays_begin_where_a_block_program_is_recorded_for(fake):
    k = Program("fill", "gfx942", num_warps=1, x=ptr(f32))
    k.store(k.args[0] + k.arange(0, 64), 1.0)
    x = fake_arrays.Tensor(next(part for part in (ones(80)[i:] for i in range(4)) if part.ctypes.data % 16 == 4))
    with pytest.raises(ValueError, match=r"x must begin at a multiple of 16 bytes, as fill .* begins 4 bytes"):
        run(k.function, x)


def test_a_function_of_your_own_runs_where_its_arrays_are(fake):
    stream = module.Stream()
    sys.modules["torch"].current = stream.handle
    x = fake_arrays.Tensor(ones())
    assert arrays.library_of(x) is arrays.TORCH_HIP
    run(SCALED, 4, 3.0, 0.5, x, 1)
    assert fake.launches == []
    fake.run(stream.handle)
    assert x.host.tolist() == [3.5] * 4
    assert fake.launches == [("scaled", (1, 1, 1), stream.handle)]


@pytest.mark.parametrize("versions", [True, False])
def test_an_array_by_dlpack_is_made_ready_for_the_stream(fake, versions):
    x = Exporter(ones(), versions=versions)
    run(SCALED, 4, 3.0, 0.0, x, 1)
    assert x.asked == [0]
    fake.run(0)
    assert x.host.tolist() == [3] * 4


def test_arrays_elsewhere(fake, kernel):
    tensor = fake_arrays.Tensor(ones())
    tensor.is_cuda = False
    for x in (tensor, ones(), 4096, None):
        assert arrays.library_of(x) is None
    for x in (np.array([4096]), ones()):
        with pytest.raises(TypeError, match="x is ptr: it cannot be an array"):
            module.Prepared(kernel, (1,), (4, 3.0, 0.0, x, 1))


def test_our_own_arrays_are_handed_over(fake):
    x = arrays.DeviceArray(arrays.HIP, module.device(), (2, 3), np.float32)
    assert x.memory.size == 24
    assert arrays.library_of(x) is arrays.DLPACK_HIP
    capsule = x.__dlpack__(stream=0, max_version=(1, 0))
    found = dlpack.read(capsule)
    assert (found.pointer, found.kind, found.device, found.shape) == (x.pointer, dlpack.HIP, 0, (2, 3))
    assert found.strides == (12, 4)
    with pytest.raises(BufferError):
        x.__dlpack__(copy=True)
    del x
    gc.collect()
    assert len(fake.blocks) == 1  # the capsule keeps the memory
    del capsule
    gc.collect()
    assert not fake.blocks
