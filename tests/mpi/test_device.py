"""Matrices in a GPU's memory, with torch's tensors of the CPU in its place: what is copied, kept and refused.

tests/mpi/on_gpu.py is for a machine with a GPU.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tilewright import mpi
from tilewright.mpi import Grid, Layout, Matrix, device
from tilewright.runtime.gpu.arrays import Look, shadow

torch = pytest.importorskip("torch")


class Driver:
    """The functions of the driver that panels need, on the host's memory."""

    def __init__(self) -> None:
        self.recorded = self.waited = 0
        self.library = self
        self.handle = 7
        self.api = lambda: SimpleNamespace(
            CUmemorytype=SimpleNamespace(CU_MEMORYTYPE_DEVICE=2, CU_MEMORYTYPE_HOST=1), CUDA_MEMCPY2D=SimpleNamespace)

    def do(self, function: str, *args: object) -> None:
        if function == "MemcpyHtoDAsync":
            to, source, size, _ = args
            ctypes.memmove(to, source, size)
            return
        assert function == "Memcpy2DAsync"
        copy = args[0]
        to = copy.dstHost if copy.dstMemoryType == 1 else copy.dstDevice
        for row in range(copy.Height):
            ctypes.memmove(to + row * copy.dstPitch, copy.srcDevice + row * copy.srcPitch, copy.WidthInBytes)

    def device(self, index: int) -> Driver:
        return self

    def current(self) -> Driver:
        return self

    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...

    def Stream(self, on: object) -> Driver:
        return self

    def Event(self, on: object, timing: bool) -> Driver:
        return self

    def record(self, stream: int) -> Driver:
        self.recorded += 1
        return self

    def synchronize(self, *stream: object) -> None:
        self.waited += 1


class Library:
    """What a library says about its arrays, for torch's."""

    def __init__(self, platform: object) -> None:
        self.platform = platform

    def device(self, x: object) -> int:
        return 0

    def stream(self, x: object, index: int) -> int:
        return 3

    def look(self, x, name: str, stream: int) -> Look:
        dtype = device.dtype_of(x.dtype, name)
        strides = tuple(s * dtype.itemsize for s in x.stride())
        return Look(shadow(x.data_ptr(), tuple(x.shape), strides, dtype, x), x)

    def empty(self, shape, dtype, index: int, stream: int):
        return torch.empty(shape, dtype=getattr(torch, dtype.name))


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    platform = SimpleNamespace(driver=driver)
    library = Library(platform)
    monkeypatch.setattr(device, "CUDA", platform)
    monkeypatch.setattr(device, "library_of", lambda x: library if isinstance(x, torch.Tensor) else None)
    return driver


def part(whole, layout: Layout, rank: int):
    rows, cols = layout.local_indices(rank)
    return torch.from_numpy(np.ascontiguousarray(whole[np.ix_(rows, cols)]))


@pytest.mark.parametrize("grid", [(2, 2), (2, 1, 2)], ids=str)
def test_panels_go_through_the_hosts_memory(driver, grid):
    rng, g = np.random.default_rng(16), Grid(*grid)
    m, n, k = 20, 24, 200
    a, b, c = (rng.integers(-3, 4, s).astype(np.float32) for s in ((m, k), (k, n), (m, n)))
    bias = torch.arange(n, dtype=torch.float32)

    def one(team):
        p = mpi.place(g, Layout.blocks((m, k), g[:2]), Layout.blocks((k, n), g[:2]))
        x, y = Matrix(team, p.a, part(a, p.a, team.rank)), Matrix(team, p.b, part(b, p.b, team.rank))
        z = Matrix(team, p.c, part(c, p.c, team.rank))
        columns = Matrix(team, p.b, part(b, p.b, team.rank).t().contiguous().t())      # stored by columns
        found = [mpi.matmul(x, y, grid=g, panel=64, c=z, beta=2), mpi.matmul(x, columns, z, grid=g, panel=64),
                 mpi.matmul(x, y, grid=g, panel=64, epilogue=lambda s, bias: tw.relu(s + bias),
                            operands={"bias": bias}, out_dtype="f64")]
        assert all(isinstance(v.local, torch.Tensor) for v in found)
        return [v.gather(None) for v in found]
    for updated, plain, fused in mpi.run_threads(g.size, one):
        np.testing.assert_array_equal(updated, a @ b + 2 * c)
        np.testing.assert_array_equal(plain, a @ b)
        np.testing.assert_array_equal(fused, np.maximum(a @ b + bias.numpy(), 0))
        assert fused.dtype == np.float64
    assert driver.recorded > 0


def test_blocks_in_turns_are_put_together(driver):
    a = np.random.default_rng(17).integers(-3, 4, (30, 30)).astype(np.float32)

    def one(team):
        layout = Layout.cyclic(a.shape, (4, 3), (2, 2))
        x = Matrix(team, layout, part(a, layout, team.rank))
        with pytest.raises(ValueError, match="b is in a GPU's memory, and must lie as its product needs it: 30 x 30"):
            mpi.matmul(x, x.T)
        with pytest.raises(TypeError, match="a Matrix in a GPU's memory cannot be redistributed: gather it"):
            x.redistribute(Layout.blocks(a.shape, (2, 2)))
        other = Layout.cyclic(a.shape, (5, 3), (2, 2))
        y = Matrix(team, other, part(a, other, team.rank))
        c = Matrix(team, layout, np.zeros(layout.local_shape(team.rank), np.float32))
        with pytest.raises(TypeError, match="a, b, c and out must all be in a GPU's memory or none, and of them only"):
            mpi.matmul(x, y, c=c, beta=1)
        return mpi.matmul(x, y, grid=(2, 2)).gather(None)
    assert all(np.array_equal(c, a @ a) for c in mpi.run_threads(4, one))


def test_an_mpi_library_that_takes_addresses_gets_them(driver):
    x = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    store = device.OnDevice(x, aware=True)
    message = store.message(x[:, 2:4])
    assert message.__cuda_array_interface__ == {
        "data": (message.array.data_ptr(), False), "shape": (16,), "typestr": "|u1", "strides": None, "version": 3,
        "stream": None}
    assert torch.equal(message.array, x[:, 2:4])
    blank = store.blank(4, 2)
    assert len(blank) == 16
    assert store.operand(blank, 4, 2) is blank.array
    for _ in range(4):
        store.launched()
    assert len(store.alive) == device.IN_FLIGHT        # panels are kept until products that read them are over
    store.finished()
    assert not store.alive
