"""From sums to C: the one place through which kernels for CPUs store sums that are finished.

    C[i, j ...] = rounded(alpha * sums + beta * C[i, j ...])

`emit_dots`, and micro-kernels that have all of k, store through `Out` at once. Sums that were left in memory are
finished by `emit_finish` (finish.py), tile by tile after the last block of k while the tile is still in L1, or by
`emit_scale` (skinny.py) in a pass of its own; both store through `Out`. Nothing is recorded for rounding where C has
the type of the sums.

Floats are rounded to nearest, ties to even, with the bits that NumPy's and ml_dtypes' astype would give; of integers
the lowest bits are kept.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir import Kernel, Value, vec
from tilewright.kernels.narrow import memory_type, narrowed


@dataclass(frozen=True)
class Out:
    """C, and what is stored in it; beta = 0 never reads C.

    c           by rows and columns (a view); alpha and beta are numbers of the type of the sums, or vectors of them
    RESULT      the format that sums are rounded to, "": C has their type
    combined    what C and sums become where it is read, if that is not beta * C + sums
    """
    k: Kernel
    c: Value
    alpha: Value
    beta: Value | None = None           # None: C is not read
    RESULT: str = ""
    combined: Callable[[Value, Value], Value] | None = None    # sums with C, instead of beta * C + sums

    def scaled(self, sums: Value) -> Value:
        """alpha * sums."""
        return sums * self._spread(self.alpha, sums)

    def rounded(self, x: Value) -> Value:
        """x in the format in which C is stored."""
        return narrowed(self.k, x, self.RESULT) if self.RESULT and memory_type(self.RESULT) != x.type.scalar else x

    def cases_of_beta(self, each: Callable[[bool], None]) -> None:
        """each(read_c): without C where beta is 0, otherwise with it."""
        k, beta = self.k, self.beta
        assert beta is not None
        with k.when(beta == 0):
            each(False)
        with k.otherwise():
            each(True)

    def put(self, x: Value, i: Value, j: Value | int) -> None:
        """x, which is scaled, and beta * C into row i, from column j on."""
        self.cases_of_beta(lambda read_c: self.place(i, j).put(x, read_c))

    def place(self, i: Value | int, j: Value | int) -> Place:
        """Row i, from column j on."""
        return Place(self, self.c.at(i, j))

    def _spread(self, x: Value, like: Value) -> Value:
        return x if x.type.length == like.type.length else self.k.broadcast(x, like.type.length)


@dataclass(frozen=True)
class Place:
    """Elements of a row of C, from its address on."""
    out: Out
    address: Value

    def put(self, x: Value, read_c: bool = False, mask: Value | None = None) -> None:
        """Store what comes of x, which is scaled."""
        out, k = self.out, self.out.k
        KEPT = self.address.type.element
        if read_c:
            assert out.beta is not None
            beta = None if out.combined else out._spread(out.beta, x)
            old = k.load(self.address, vec(KEPT, x.type.length), KEPT.bytes, mask)
            x = out.combined(old, x) if out.combined else k.fma(beta, old, x)
        k.store(self.address, out.rounded(x), KEPT.bytes, mask)
