"""From sums to C: the one place through which kernels for CPUs store sums that are finished.

    C[i, j ...] = rounded(fused(alpha * sums + beta * C[i, j ...], i, j))

`emit_dots`, and micro-kernels that have all of k, store through `Out` at once. Sums that were left in memory are
finished by `emit_finish`, tile by tile after the last block of k while the tile is still in L1, or by `emit_scale`
(skinny.py) in a pass of its own; both store through `Out`. Nothing is recorded for `fused` where it is None, nor for
rounding where C has the type of the sums.

Floats are rounded to nearest, ties to even, with the bits that NumPy's and ml_dtypes' astype would give; of integers
the lowest bits are kept.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.formats import FORMATS, Float
from tilewright.ir import Function, Kernel, Value, f32, i32, i64, ptr, vec
from tilewright.kernels.narrow import memory_type, narrowed
from tilewright.targets.cpu import CpuTarget

# (k, a number or a vector of a row of C, its row and first column, which of them exist or None for all) → as many
Fused = Callable[[Kernel, Value, Value | int, Value | int, Value | None], Value]


@dataclass(frozen=True)
class Out:
    """C, and what is stored in it; beta = 0 never reads C.

    c           by rows and columns (a view); alpha and beta are numbers of the type of the sums, or vectors of them
    RESULT      the format that sums are rounded to, "": C has their type
    fused       the epilogue expression; None leaves the numbers as they are
    finished    whether sums are over all of k, where a kernel learns that at run time: of other sums the expression is
                not taken. None: they always are
    """
    k: Kernel
    c: Value
    alpha: Value
    beta: Value | None = None           # None: C is not read
    RESULT: str = ""
    fused: Fused | None = None
    finished: Value | None = None

    @property
    def plain(self) -> bool:
        """Whether sums are C where alpha is 1 and beta is 0, so that they may be stored some other way."""
        return self.fused is None and not self.RESULT

    def scaled(self, sums: Value) -> Value:
        """alpha * sums."""
        return sums * self._spread(self.alpha, sums)

    def cases_of_beta(self, each: Callable[[bool], None]) -> None:
        """each(read_c): without C where beta is 0, otherwise with it."""
        k, beta = self.k, self.beta
        assert beta is not None
        with k.when(beta == 0):
            each(False)
        with k.otherwise():
            each(True)

    def at(self, i: Value | int, j: Value | int) -> Place:
        """Row i, from column j on."""
        return Place(self, i, j, self.c.at(i, j))

    def _spread(self, x: Value, like: Value) -> Value:
        return x if x.type.length == like.type.length else self.k.broadcast(x, like.type.length)


@dataclass(frozen=True)
class Place:
    """Elements of a row of C, from (i, j) on."""
    out: Out
    i: Value | int
    j: Value | int
    address: Value

    def put(self, x: Value, read_c: bool = False, mask: Value | None = None) -> None:
        """Store what comes of x, which is scaled."""
        out, k = self.out, self.out.k
        KEPT = self.address.type.element
        if read_c:
            assert out.beta is not None
            x = k.fma(out._spread(out.beta, x), k.load(self.address, vec(KEPT, x.type.length), KEPT.bytes, mask), x)
        if out.fused:
            y = out.fused(k, x, self.i, self.j, mask)
            x = y if out.finished is None else k.select(out.finished, y, x)
        if out.RESULT and memory_type(out.RESULT) != x.type.scalar:
            x = narrowed(k, x, out.RESULT)
        k.store(self.address, x, KEPT.bytes, mask)


def emit_finish(target: CpuTarget, NR: int, RESULT: str) -> Function:
    """C[i ... i + rows, j ... j + cols] = alpha * tile[rows, cols] in the format RESULT. The tile's rows have NR
    elements; C's are contiguous, ldc elements apart. cols <= NR."""
    T, S = f32 if isinstance(FORMATS[RESULT], Float) else i32, memory_type(RESULT)
    V = target.lanes(T.bytes)
    k = Kernel(f"finish_{NR}_{RESULT}", tile=ptr(T), c=ptr(S, strided=True), ldc=i64, i=i64, j=i64, rows=i64, cols=i64,
               alpha=T)
    tile, c, ldc, i, j, rows, cols, alpha = k.args
    tile, out = tile.view(NR, 1), Out(k, c.view(ldc, 1), alpha, RESULT=RESULT)

    def store(masks: list[Value] | list[None]) -> None:
        with k.loop(rows) as r:
            for g, mask in enumerate(masks):
                sums = k.load(tile.at(r, g*V), vec(T, V), mask=mask)
                out.at(i + r, j + g*V).put(out.scaled(sums), mask=mask)

    with k.when(cols == NR):
        store([None] * (NR // V))
    with k.otherwise():
        store([k.lanes_below(cols - g*V, V) for g in range(NR // V)])
    return k.function
