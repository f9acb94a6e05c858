"""From sums to C: the one place through which every GEMM for a GPU stores its result.

    C[i, j] = rounded(fused(alpha * (sums * scale_a[i] * scale_b[j]) + beta * C[i, j], i, j))

A kernel says which sums its lanes hold (`Run`s); what becomes of them is written here, once for all kernels: scales
(gpu/auxiliary.py), alpha, the old C, the epilogue (gpu/fused.py), rounding to C's format, the edges of C. Sums over
parts of k (split_k) and over warps are complete before they come here.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace

from tilewright.ir import Kernel, Type, Value, i64, vec
from tilewright.kernels.gpu.auxiliary import Scales
from tilewright.kernels.gpu.fused import Fused, Loaded, rounded
from tilewright.kernels.narrow import scaled, widened


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
    scales      of rows and columns, which multiply sums in their own type: alpha and beta have it, too
    fused       the epilogue; None leaves the numbers as they are
    PAIRS       the chip rounds two f32 to f16 or bf16 at once (`Kernel.round_pair`)
    alpha, beta None: there are none, and sums are combined by something else than addition
    """
    k: Kernel
    m: Value
    n: Value
    alpha: Value | None
    beta: Value | None
    c: Value
    ldc: Value
    FORMAT: str
    VECTOR: int = 1
    ALIGNED: bool = True
    scales: Scales | None = None
    fused: Fused | None = None
    PAIRS: bool = False

    @classmethod
    def from_arguments(cls, k: Kernel, g: SimpleNamespace, FORMAT: str, VECTOR: int = 1, *, ALIGNED: bool = True,
                       SCALED: bool = False, PAIRS: bool = False, EPILOGUE: str = "", SUMS: Type | None = None) -> Out:
        """C of a kernel with the arguments g, by name; of a batch the C of the workgroup's matrix. SCALED: scales are
        among the arguments, and multiply sums. SUMS: the type of the sums, if it is not that of alpha."""
        c = g.c if g.matrix is None else g.c + k.cast(g.matrix, i64)*g.stride_c
        scales = Scales.from_arguments(k, g) if SCALED else None
        fused = Fused.from_arguments(k, g, EPILOGUE, FORMAT, VECTOR, SUMS or g.alpha.type, PAIRS)
        return cls(k, g.m, g.n, g.alpha, g.beta, c, g.ldc, FORMAT, VECTOR, ALIGNED, scales, fused, PAIRS)

    def store(self, runs: Callable[[], Iterable[Run]]) -> None:
        """All of this lane's elements that are inside of C; `runs` is called for each case of beta."""
        def each(read_c: bool) -> None:
            row = c_row = None
            for run in runs():
                if run.row is not row:
                    row, c_row = run.row, self.row(run.row)
                inside = (run.row < self.m) & (run.column < self.n)
                at = c_row + self.column(run.column)
                self.put(run.row, run.column, self.scaled(run.sums, run.row, run.column), read_c, inside, at)
        self.cases_of_beta(each)

    def cases_of_beta(self, each: Callable[[bool], None]) -> None:
        """each(read_c): without C where beta is 0, otherwise with it. A C of pairs is not added to sums."""
        if self.EACH > 1 or self.beta is None:
            each(False)
            return
        with self.k.when(self.beta == 0):
            each(False)
        with self.k.otherwise():
            each(True)

    def row(self, row: Value) -> Value:
        return self.c + self.k.cast(row, i64)*self.ldc

    @property
    def EACH(self) -> int:
        """Sums of a number of C."""
        return self.fused.COUNT if self.fused else 1

    def column(self, column: Value) -> Value:
        """The column of C that is computed from the sums from this column on."""
        return self.fused.column(column) if self.fused else column

    def scaled(self, sums: list[Value], row: Value, column: Value, by: tuple[Value, list[Value]] | None = None
               ) -> list[Value]:
        """alpha * sums of elements next to each other in a row of C, the first of them in this column, times their
        scales. `by`: those of the row and of the columns, if they have been read."""
        if self.scales:
            sums = self.scales.times(sums, *by) if by else self.scales.applied(sums, row, column)
        return sums if self.alpha is None else [scaled(self.k, x, self.alpha) for x in sums]

    def put(self, row: Value, column: Value, values: list[Value], read_c: bool, inside: Value | None,
            at: Value | None = None) -> None:
        """Store the numbers of C[row, column ...] that come of `values`, which are scaled, where they are `inside`.

        at: where the first of them is, if that has been computed."""
        at = self.row(row) + self.column(column) if at is None else at
        values = self.numbers(row, column, values, read_c, inside, at)
        self.k.store(at, self.rounded(values), align=self._align, mask=inside)

    @property
    def _align(self) -> int | None:
        return None if self.ALIGNED else self.c.type.element.bytes

    def numbers(self, row: Value, column: Value, values: list[Value], read_c: bool, inside: Value | None,
                at: Value | None = None, loaded: Loaded | None = None) -> list[Value]:
        """What becomes of scaled sums, before it is rounded: the old C is added, and the expression evaluated, of
        operands that are `loaded` or not."""
        k, width, KEPT, T = self.k, len(values), self.c.type.element, values[0].type
        if read_c:
            assert self.beta is not None
            at = self.row(row) + column if at is None else at
            old = k.load(at, vec(KEPT, width), align=self._align, mask=inside)
            if KEPT != T:
                old = widened(k, old, self.FORMAT, T)
            values = [scaled(k, old[e] if width > 1 else old, self.beta, x) for e, x in enumerate(values)]
        return self.fused.results(values, row, column, inside, loaded) if self.fused else values

    def rounded(self, values: list[Value]) -> Value:
        """Numbers in the format in which they are stored: a number, or a vector of them."""
        return rounded(self.k, values, self.FORMAT, self.PAIRS)
