"""The numbers that every step from the second on is built around: vector lanes, and the register tile MR x NR.

A row of C is contiguous, so vectors run along n: a tile is MR rows of NV vectors of V lanes, NR = NV V columns. The
article stores matrices by columns, so its vectors run along m, and its 16x6 (m_R x n_R) is the 6x16 here.
"""
from __future__ import annotations

from typing import NamedTuple

from tilewright.ir import Type, f32, f64
from tilewright.targets import CpuTarget

TYPES = {"f32": f32, "f64": f64}


class Tiling(NamedTuple):
    T: Type         # of an element
    V: int          # lanes of a vector register
    MR: int         # rows of the register tile
    NV: int         # vectors in one of its rows
    NR: int         # columns: NV * V


def tiling(target: CpuTarget, dtype: str) -> Tiling:
    """Two vectors wide, and as many rows as leave room for a row of B and one broadcast element of A.

    The article's inequality MR NV + NV + 1 <= registers. AVX2 (16 registers) gets 6 rows: 12 + 2 + 1 = 15;
    AVX-512 (32 registers) gets 14 rows: 28 + 2 + 1 = 31.
    """
    T = TYPES[dtype]
    V, NV = target.lanes(T.bytes), 2
    return Tiling(T, V, (target.registers - NV - 1) // NV, NV, NV * V)
