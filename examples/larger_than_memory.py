"""Multiply two arrays on disk that have twice the memory limit together, and write their product to disk.

    python examples/larger_than_memory.py                     # 64 MB in two arrays, blocks of 1 MB, a limit of 32 MB
    python examples/larger_than_memory.py 20000 2000 --zarr   # 3.2 GB

A task reads the blocks that it multiplies one after the other, adds their products up in place, and its block of the
result is written at once: neither the operands nor the result are ever in memory. At most one block of a, one of b and
two of the result are there for each thread. The limit holds for NumPy's arrays, as `tracemalloc` counts them.
"""
from __future__ import annotations

import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

import tilewright.dask as twd


class Mapped:
    """An .npy file, blocks of which are read by index. It travels to other processes as its path."""

    def __init__(self, path: Path, shape: tuple[int, ...] | None = None) -> None:
        self.path = str(path)
        if shape is not None:
            np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
        x = np.load(path, mmap_mode="r")
        self.shape, self.dtype, self.ndim = x.shape, x.dtype, x.ndim

    def __getitem__(self, index: Any) -> Any:
        return np.array(np.load(self.path, mmap_mode="r")[index])

    def __setitem__(self, index: Any, block: Any) -> None:
        np.load(self.path, mmap_mode="r+")[index] = block


def stored(folder: Path, name: str, n: int, block: int, zarr: bool) -> Any:
    """An n x n array on disk of which no number is in memory, as Mapped or as Zarr's."""
    if not zarr:
        return Mapped(folder / f"{name}.npy", (n, n))
    import zarr as store
    return store.create_array(str(folder / f"{name}.zarr"), shape=(n, n), chunks=(block, block), dtype="f4")


def main(n: int = 2832, block: int = 512, zarr: bool = False) -> float:
    """The share of the limit, half of both operands, that the product took."""
    limit = n * n * 4
    with tempfile.TemporaryDirectory() as where:
        a, b, c = (stored(Path(where), name, n, block, zarr) for name in "abc")
        rng = np.random.default_rng(0)
        for x in a, b:
            for i in range(0, n, block):
                x[i:i + block] = rng.integers(-8, 9, (min(block, n - i), n)).astype(np.float32)
        left, right = (da.from_array(x, chunks=block, name=False) for x in (a, b))
        product = twd.matmul(left, right)
        with dask.config.set(scheduler="threads", num_workers=2):
            da.store(product[:block, :block], Mapped(Path(where) / "first.npy", (block, block)))    # compiled, imported
            tracemalloc.start()
            da.store(product, c, lock=False)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        rows = [0, n // 2, n - 1]
        exact = np.stack([a[i] for i in rows]).astype(float) @ b[:]
        assert np.array_equal(np.stack([c[i] for i in rows]), exact)
    print(f"{2 * limit / 1e6:.0f} MB of operands multiplied in {peak / 1e6:.1f} MB of arrays; the limit was "
          f"{limit / 1e6:.0f} MB")
    assert peak < limit
    return peak / limit


if __name__ == "__main__":
    main(*map(int, [x for x in sys.argv[1:] if x != "--zarr"]), zarr="--zarr" in sys.argv)
