"""Complex products with few rows or few columns, of which nothing is packed before: the larger operand is read once.

    for chunks of rows, runs of panels of C's columns, DEPTH steps of k, panels of NR reals:
        the block of B: where it lies, or copied to the stack
        for groups of rows of the chunk: R += re(A) * B, I += im(A) * B, in registers

A row of B is a vector with the parts of each number side by side, so that R has the products by real parts of A and I
those by imaginary ones; with the parts of I exchanged, C = (R[0] - I[1], R[1] + I[0]). Sums stay on the stack, apart,
until all of k has passed: C is written once, with any strides. B is copied if its rows are not contiguous, or if
several groups would read one of many panels, whose rows lie far from each other.
"""
from __future__ import annotations

from collections.abc import Callable

from tilewright.ir import Function, Kernel, Tile, Value, i8, i64, ptr, vec
from tilewright.kernels.cpu.jobs import COMPLEX_IN_PLACE
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.out import Out, Place
from tilewright.kernels.cpu.packing import AHEAD, transpose
from tilewright.kernels.cpu.pool import job_fields, split
from tilewright.kernels.cpu.skinny import in_tree
from tilewright.plans.cpu import COMPLEX_DEPTH, complex_sums
from tilewright.targets.cpu import CpuTarget

RUN = 64 << 10          # bytes of sums on the stack, of a chunk of rows by a run of panels


def emit_complex_in_place(target: CpuTarget, dtype: str, MR: int, NR: int, GROUPS: int, A: str, B: str,
                          PANELS: str = "one") -> Function:
    """complex_in_place(job, part): C = alpha * A @ B + beta * C for a block of C, strides counted in reals. sign_a and
    sign_b are -1 of an operand that is conjugated, else 1.

    MR      rows in a group, at most; groups are equally high, but for one row. GROUPS: of them in a chunk
    NR      reals of a row of C in a panel: vectors, or a part of one
    A, B    what is contiguous: "rows", "columns" or "any"
    PANELS  "one" panel, which is whole; "edge": one that is not; "several" that are; "several, edge": but the last
    """
    return _Emitter(target, dtype, MR, NR, GROUPS, A, B, PANELS).k.function


class _Emitter:
    """The parts of one function; `k` has it in the end."""

    def __init__(self, target: CpuTarget, dtype: str, MR: int, NR: int, GROUPS: int, A: str, B: str, PANELS: str
                 ) -> None:
        self.MR, self.NR, self.A, self.B, self.T = MR, NR, A, B, TYPES[dtype]
        self.V = V = min(target.lanes(self.T.bytes), NR)
        self.VT, self.NV, self.SUMS = vec(self.T, V), NR // V, complex_sums(MR, NR, target.lanes(self.T.bytes))
        self.LINE = target.line // self.T.bytes
        self.SEVERAL, self.EDGE = PANELS.startswith("several"), PANELS.endswith("edge")
        self.COPY = B != "rows" or (self.SEVERAL and GROUPS > 1)
        # rows of B of other panels lie apart: fewer of them at a time
        self.DEPTH = COMPLEX_DEPTH // (2 if self.SEVERAL else 1)
        self.PER_ROW = 2*self.NV*self.SUMS*V
        self.PER_PANEL = GROUPS*MR*self.PER_ROW
        WIDE = max(RUN // (self.PER_PANEL*self.T.bytes), 1) if self.SEVERAL else 1
        self.k = k = Kernel(f"complex_in_place_{dtype}_{MR}x{NR}x{GROUPS}_{A}_{B}_{PANELS.replace(', ', '_')}",
                            noalias=False, job=ptr(i8), part=i64)
        job, part = k.args
        self.g = g = job_fields(k, job, COMPLEX_IN_PLACE, self.T)
        self.a = g.a.view(2 if A == "columns" else g.rsa, 2 if A == "rows" else g.csa)
        self.sums = k.local("sums", (WIDE*self.PER_PANEL,), self.T)
        self.block = k.local("block", (self.DEPTH*NR if self.COPY else V,), self.T)
        self.line = k.local("line", (NR,), self.T)
        groups = k.ceil_div(g.m, MR)
        self.height, self.taller = g.m // groups, g.m % groups
        q_lo, q_hi = split(groups, g.row_parts, part // g.col_parts)
        self.j_lo, self.j_hi = split(k.ceil_div(2*g.n, NR), g.col_parts, part % g.col_parts)
        sign_a, sign_b = (k.cast(x, self.T) for x in (g.sign_a, g.sign_b))
        self.of_r, self.of_i = (k.pack(*(even, odd)*(V // 2)) for even, odd in (
            (k.constant(self.T, 1.0), sign_b), (k.constant(self.T, 0.0) - sign_a*sign_b, sign_a)))
        with k.loop(q_hi, q_lo, GROUPS) as q, k.loop(self.j_hi, self.j_lo, WIDE) as jr:
            self._chunk((q, k.min(q + GROUPS, q_hi)), (jr, k.min(jr + WIDE, self.j_hi)))

    def _chunk(self, rows: tuple[Value, Value], panels: tuple[Value, Value]) -> None:
        k, g, V = self.k, self.g, self.V
        with k.loop((panels[1] - panels[0])*(self.PER_PANEL // V)) as x:
            k.store(self.sums + x*V, k.constant(self.VT, 0.0), self.T.bytes)
        with k.loop(g.k, step=self.DEPTH) as p0:
            depth = k.min(g.k - p0, self.DEPTH)
            with k.loop(panels[1], panels[0]) as jr:
                self._panel(self.sums + (jr - panels[0])*self.PER_PANEL, rows, p0, depth, jr)
        with k.loop(panels[1], panels[0]) as jr:
            self._each_width(jr, lambda cols, masks: self._finish(
                self.sums + (jr - panels[0])*self.PER_PANEL, self._first_row(rows[0]), self._first_row(rows[1]),
                jr*(self.NR // 2), cols, masks))

    def _panel(self, to: Value, rows: tuple[Value, Value], p0: Value, depth: Value, jr: Value) -> None:
        """A block of k of a chunk of rows and a panel, of which `to` are the sums."""
        k, g, NR = self.k, self.g, self.NR

        def by(b: Value, masks: list[Value] | None) -> None:
            with k.loop(rows[1], rows[0]) as q:
                i, h = self._first_row(q), self.height + k.select(q < self.taller, k.constant(i64, 1), 0)
                at = to + (i - self._first_row(rows[0]))*self.PER_ROW
                ahead = self._coming(q == rows[0], p0, jr) if self.SEVERAL and self.B == "rows" else None
                for ROWS in range(max(self.MR - 1, 1), self.MR + 1):
                    with k.when(h == ROWS):
                        self._multiply(at, i, p0, depth, b, ahead, ROWS, masks)
        in_place = (g.b + (p0*g.rsb + jr*NR)).view(g.rsb, 1)
        if not self.COPY:
            self._each_width(jr, lambda cols, masks: by(in_place, masks))
            return
        if self.B == "rows":
            self._each_width(jr, lambda cols, masks: self._copied_rows(in_place, depth, masks))
        else:
            self._copied(jr*(NR // 2), self._width(jr), p0, depth)
        by(self.block.view(NR, 1), None)

    def _multiply(self, to: Value, i: Value, p0: Value, depth: Value, b: Value, ahead: Value | None, ROWS: int,
                 masks: list[Value] | None) -> None:
        """The sums at `to` of ROWS rows and a block of k."""
        k, g, T, V, VT, NV, SUMS = self.k, self.g, self.T, self.V, self.VT, self.NV, self.SUMS
        tiles = [[k.tile(ROWS, NV, VT, zero=False) for _ in range(2)] for _ in range(SUMS)]
        places = [(tile, r, v, to + ((r*SUMS + s)*2 + half)*NV*V + v*V) for s, pair in enumerate(tiles)
                  for half, tile in enumerate(pair) for r in range(ROWS) for v in range(NV)]
        for tile, r, v, place in places:
            tile[r, v] = k.load(place, VT, T.bytes)
        rows = [k.opaque(self.a.at(i + r, p0)) for r in range(ROWS)] if self.A != "columns" else [self.a.at(i, p0)]

        def step(p: Value, pair: list[Tile]) -> None:
            if ahead is not None:
                for at in range(0, self.NR, self.LINE):
                    k.prefetch(ahead.at(p, at), locality=2)
            vectors = [k.load(b.at(p, v*V), VT, T.bytes, masks[v] if masks else None) for v in range(NV)]
            for r in range(ROWS):
                number = (rows[0] + (p*g.csa + 2*r) if self.A == "columns" else
                          rows[r] + p*(2 if self.A == "rows" else g.csa))
                for half, tile in enumerate(pair):
                    x = k.broadcast(k.load(number + half), V)
                    for v in range(NV):
                        tile[r, v] = k.fma(x, vectors[v], tile[r, v])
        together = depth // SUMS * SUMS
        with k.loop(together, step=SUMS) as p:
            for s, pair in enumerate(tiles):
                step(p + s if s else p, pair)
        if SUMS > 1:
            with k.loop(depth, together) as p:
                step(p, tiles[0])
        for tile, r, v, place in places:
            k.store(place, tile[r, v], T.bytes)

    def _copied_rows(self, rows: Value, depth: Value, masks: list[Value] | None) -> None:
        with self.k.loop(depth) as p:
            for v in range(self.NV):
                x = self.k.load(rows.at(p, v*self.V), self.VT, self.T.bytes, masks[v] if masks else None)
                self.k.store(self.block + (p*self.NR + v*self.V), x, self.T.bytes)

    def _copied(self, j: Value, cols: Value, p0: Value, depth: Value) -> None:
        """A block of B, from column j on, as rows of NR reals; columns that there are not repeat the last one."""
        HALF, k, g, T, NR = self.V // 2, self.k, self.g, self.T, self.NR
        along = 2 if self.B == "columns" else g.rsb
        first, last, done = g.b + (p0*along + j*g.csb), cols - 1, k.constant(i64, 0)
        if self.B == "columns":                                  # squares of numbers are transposed
            done = depth // HALF * HALF
            starts = [first + k.min(last, c)*g.csb for c in range(NR // 2)]
            with k.loop(done, step=HALF) as p:
                for v in range(self.NV):
                    lines = [start + p*2 for start in starts[v*HALF:(v + 1)*HALF]]
                    for at in lines:
                        k.prefetch(at + AHEAD // T.bytes)
                    square = [k.load(at, self.VT, T.bytes) for at in lines]
                    for q, row in enumerate(transpose(k, square, 2)):
                        k.store(self.block + ((p + q)*NR + v*self.V), row, T.bytes)
        with k.loop(depth, done) as p, k.loop(k.constant(i64, NR // 2)) as c:
            number = k.load(first + (p*along + k.min(last, c)*g.csb), vec(T, 2), T.bytes)
            k.store(self.block + (p*NR + 2*c), number, T.bytes)

    def _coming(self, first: Value, p0: Value, jr: Value) -> Value:
        """The block of B that comes next, which the first group of rows asks for: others ask for one line again."""
        k, g, NR = self.k, self.g, self.NR
        there = k.select(jr + 1 < self.j_hi, p0*g.rsb + (jr + 1)*NR, (p0 + self.DEPTH)*g.rsb + self.j_lo*NR)
        return (g.b + there).view(k.select(first, g.rsb, 0), 1)

    def _finish(self, first_sums: Value, first: Value, last: Value, j: Value, cols: Value,
                masks: list[Value] | None) -> None:
        k, g, T, V, NV = self.k, self.g, self.T, self.V, self.NV
        out = Out(k, g.c.view(g.rsc, g.csc), g.alpha, g.beta)

        def results(i: Value) -> list[Value]:
            at = first_sums + (i - first)*self.PER_ROW

            def total(half: int, v: int) -> Value:
                return in_tree([k.load(at + ((s*2 + half)*NV + v)*V, self.VT, T.bytes) for s in range(self.SUMS)])
            values = []
            for v in range(NV):
                x, y = total(0, v), total(1, v)
                values.append(out.scaled(k.fma(k.shuffle(y, y, [e ^ 1 for e in range(V)]), self.of_i, x*self.of_r)))
            return values

        def by_rows(read_c: bool) -> None:
            with k.loop(last, first) as i:
                for v, x in enumerate(results(i)):
                    Place(out, g.c + (i*g.rsc + 2*j + v*V)).put(x, read_c, masks[v] if masks else None)

        def by_numbers(read_c: bool) -> None:
            with k.loop(last, first) as i:
                for v, x in enumerate(results(i)):
                    k.store(self.line + v*V, x, T.bytes)
                with k.loop(cols) as c:
                    number = k.load(self.line + 2*c, vec(T, 2), T.bytes)
                    Place(out, g.c + (i*g.rsc + (j + c)*g.csc)).put(number, read_c)
        with k.when(g.csc == 2):
            out.cases_of_beta(by_rows)
        with k.otherwise():
            out.cases_of_beta(by_numbers)

    def _each_width(self, jr: Value, each: Callable[[Value, list[Value] | None], None]) -> None:
        """each(cols, masks) for a panel, without masks if it is whole."""
        k, V, NR, cols = self.k, self.V, self.NR, self._width(jr)
        if self.SEVERAL or not self.EDGE:
            with k.when(cols == NR // 2):
                each(cols, None)
        if self.EDGE:
            with k.when(cols < NR // 2):
                each(cols, [k.lanes_below(2*cols - v*V, V) for v in range(self.NV)])

    def _width(self, jr: Value) -> Value:
        """Columns of C in a panel."""
        return self.k.min(self.g.n - jr*(self.NR // 2), self.NR // 2)

    def _first_row(self, q: Value) -> Value:
        return q*self.height + self.k.min(q, self.taller)
