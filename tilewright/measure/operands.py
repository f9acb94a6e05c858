"""The matrices of a case.

Values are random normal: zeros and constants let some units run faster (AMX by a factor of two) and hide wrong answers.
Memory comes from NumPy's own allocator, at whatever alignment it gives, because that is what users multiply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.problem import Gemm

Array = np.ndarray[Any, np.dtype[Any]]
MAX_SETS = 4096


@dataclass(frozen=True)
class Operands:
    """A [m, k], B [k, n] (views of what is stored when transposed) and a C [m, n] to write to."""

    problem: Gemm
    a: Array
    b: Array
    c: Array

    @property
    def leading(self) -> tuple[int, int, int]:
        """lda, ldb, ldc: the length of a stored row."""
        return max(self.problem.shape_a[1], 1), max(self.problem.shape_b[1], 1), max(self.problem.n, 1)

    @property
    def bytes(self) -> int:
        return int(self.a.nbytes + self.b.nbytes + self.c.nbytes)


def make(problem: Gemm, seed: int = 0) -> Operands:
    """Fresh operands; C starts as nan, so that an element nobody wrote cannot pass for right."""
    rng = np.random.default_rng(seed)
    dtype = formats.get(problem.a).dtype
    a = rng.standard_normal(problem.shape_a, dtype=dtype)
    b = rng.standard_normal(problem.shape_b, dtype=dtype)
    c = np.full((problem.m, problem.n), np.nan, dtype=dtype)
    return Operands(problem, a if problem.layout[0] == "n" else a.T, b if problem.layout[1] == "n" else b.T, c)


def make_sets(problem: Gemm, cold: bool, last_level_bytes: int, seed: int = 0) -> list[Operands]:
    """One set of operands, or to be cold enough copies that twice the last cache passes before one comes again."""
    first = make(problem, seed)
    if not cold:
        return [first]
    count = min(MAX_SETS, 2 + 2 * last_level_bytes // max(first.bytes, 1))
    # copy("K") keeps the layout; the values need not differ for the addresses to.
    copies = (Operands(problem, first.a.copy("K"), first.b.copy("K"), first.c.copy("K")) for _ in range(count - 1))
    return [first, *copies]
