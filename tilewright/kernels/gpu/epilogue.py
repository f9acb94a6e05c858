"""From sums to C: the one place through which every GEMM for a GPU stores its result.

    C[i, j] = rounded(fused(alpha * sums + beta * C[i, j], i, j))

A kernel says which sums its lanes hold (`Run`s); what becomes of them is written here, once for all kernels: scaling,
the old C, the epilogue expression, rounding to C's format, the edges of C. Sums over parts of k (split_k) and over
warps are complete before they come here.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace

from tilewright.ir import Kernel, Value, i64, vec
from tilewright.kernels.narrow import memory_type, narrowed, scaled, widened

# (k, numbers next to each other in a row of C, the row and the first one's column, which of them exist or None for all)
# → as many numbers
Fused = Callable[[Kernel, list[Value], Value, Value, Value | None], list[Value]]


@dataclass(frozen=True)
class Run:
    """Sums of elements that are next to each other in a row of C: at most Out.VECTOR of them."""
    row: Value
    column: Value           # of the first
    sums: list[Value]


@dataclass(frozen=True)
class Out:
    """C, row-major, and what is stored in it. beta = 0 never reads C.

    FORMAT      of C's numbers; sums of another format are rounded to nearest, ties to even, integers to their low bits
    VECTOR      elements that are stored at once where a lane has them side by side: n is a multiple of it
    ALIGNED     so are ldc and the address of C; else the chip has to store such vectors at any address
    fused       the epilogue expression; None leaves the numbers as they are
    """
    k: Kernel
    m: Value
    n: Value
    alpha: Value
    beta: Value
    c: Value
    ldc: Value
    FORMAT: str
    VECTOR: int = 1
    ALIGNED: bool = True
    fused: Fused | None = None

    @classmethod
    def of(cls, k: Kernel, g: SimpleNamespace, FORMAT: str, VECTOR: int = 1, *, ALIGNED: bool = True) -> Out:
        """That of a kernel with the arguments g, by name; of a batch the C of the workgroup's matrix."""
        c = g.c if g.matrix is None else g.c + k.cast(g.matrix, i64)*g.stride_c
        return cls(k, g.m, g.n, g.alpha, g.beta, c, g.ldc, FORMAT, VECTOR, ALIGNED)

    def store(self, runs: Callable[[], Iterable[Run]]) -> None:
        """All of this lane's elements that are inside of C; `runs` is called for each case of beta."""
        def each(read_c: bool) -> None:
            row = c_row = None
            for run in runs():
                if run.row is not row:
                    row, c_row = run.row, self.row(run.row)
                inside = (run.row < self.m) & (run.column < self.n)
                at = c_row + run.column
                self.put(run.row, run.column, self.scaled(run.sums), read_c, inside, at)
        self.cases_of_beta(each)

    def cases_of_beta(self, each: Callable[[bool], None]) -> None:
        """each(read_c): without C where beta is 0, otherwise with it."""
        with self.k.when(self.beta == 0):
            each(False)
        with self.k.otherwise():
            each(True)

    def row(self, row: Value) -> Value:
        return self.c + self.k.cast(row, i64)*self.ldc

    def scaled(self, sums: list[Value]) -> list[Value]:
        """alpha * sums."""
        return [scaled(self.k, x, self.alpha) for x in sums]

    def put(self, row: Value, column: Value, values: list[Value], read_c: bool, inside: Value | None,
            at: Value | None = None, staged: Value | None = None) -> None:
        """Store the numbers of C[row, column ...] that come of `values`, which are scaled, where they are `inside`.

        at: where the first of them is, if that has been computed. staged: the place in shared memory that they go to
        instead, all of them; a copy brings those of C from there."""
        k, width, KEPT = self.k, len(values), self.c.type.element
        T = values[0].type
        at = self.row(row) + column if at is None else at
        align = None if self.ALIGNED else KEPT.bytes
        if read_c:
            old = k.load(at, vec(KEPT, width), align=align, mask=inside)
            if KEPT != T:
                old = widened(k, old, self.FORMAT, T)
            values = [scaled(k, old[e] if width > 1 else old, self.beta, x) for e, x in enumerate(values)]
        if self.fused:
            values = self.fused(k, values, row, column, inside)
        whole = k.pack(*values) if width > 1 else values[0]
        if staged is None:
            k.store(at, self._rounded(whole, T), align=align, mask=inside)
        else:
            k.store(staged, self._rounded(whole, T))

    def _rounded(self, x: Value, T: object) -> Value:
        if memory_type(self.FORMAT) == T:
            return x
        if x.type.length > 1:
            return narrowed(self.k, x, self.FORMAT)
        return narrowed(self.k, self.k.pack(x, x), self.FORMAT)[0]      # elements of vectors are bits, not indices
