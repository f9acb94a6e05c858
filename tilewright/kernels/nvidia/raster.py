"""In which order CTAs take the tiles of C."""
from __future__ import annotations

from tilewright.ir import Kernel, Value


def grouped(k: Kernel, index: Value, tiles_m: Value, tiles_n: Value, GROUP_M: int) -> tuple[Value, Value]:
    """(row, column) of tile `index`: GROUP_M rows of tiles are finished column by column before the next rows begin,
    so that the CTAs that run together share rows of A and columns of B in L2."""
    per_group = tiles_n*GROUP_M
    first = index // per_group * GROUP_M
    height = k.min(tiles_m - first, GROUP_M)
    inside = index % per_group
    return first + inside % height, inside // height
