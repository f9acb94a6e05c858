"""Products of Dask arrays in every format that tilewright multiplies: `tilewright.dask.matmul` and its neighbours.

    >>> import dask.array as da                                      # doctest: +SKIP
    >>> import tilewright.dask as twd                                # doctest: +SKIP
    >>> twd.matmul(da.from_zarr("a"), da.from_zarr("b"))             # doctest: +SKIP

Dask schedules; tilewright multiplies blocks. docs/dask.md has the formulas of the memory that this takes.
"""
from __future__ import annotations

from tilewright import text

try:
    import dask.array  # noqa: F401
except ImportError as error:
    raise ImportError(f"tilewright.dask needs dask and distributed: {text.install('dask')}") from error

from tilewright.dask.installing import Installed, install
from tilewright.dask.products import contract, einsum, matmul, tensordot
from tilewright.dask.ragged import grouped_matmul

__all__ = ["Installed", "contract", "einsum", "grouped_matmul", "install", "matmul", "tensordot"]
