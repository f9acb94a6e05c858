"""Packing and storing by tables: matrices whose rows or columns have no one stride, as those that contractions make of
several axes of an array (the block-scatter layout of D. A. Matthews, "High-Performance Tensor Contraction without
Transposition", SIAM J. Sci. Comput. 40, 2018).

Element (i, p) of a scattered A is source[lines[i] + steps[p]], and B's likewise with its columns as lines. The tables
are arrays of i64 (runtime/cpu/tables.py makes them), and take the strides' places in the arguments of packing:

    lines[i]    (offset, run)               run: how many lines from here on lie side by side, one element apart
    steps[v]    (offset, run, row, apart)   row: where in the panel this step belongs, as those of the run do, each
                                            `apart` rows after the one before. In the order of k, but where a line is
                                            read along k ("along"): in the order of the operand's memory, within each
                                            block of k

So a panel is read in runs by vectors, whichever axes it consists of. KIND says in which direction runs lie: "across"
lines, of which each vector meets at most PIECES; "along" k; or "any", where there are none. B and C may be contiguous
along different axes of n; then the columns are in an order (tables.tiled) in which strips of them, PIECES or, at the
end of C's axis, fewer, are a run of C, and the same run one element on in B follows. Of such "squares" a run is how
many lines are left of a strip, plus STRIP times how many strips, it and those after it, follow each other so; they are
read along B's axis and transposed in registers.
"""
from __future__ import annotations

from types import SimpleNamespace

from tilewright.ir import Function, Kernel, Value, f32, f64, i8, i32, i64, ptr, vec
from tilewright.kernels.cpu.jobs import LINE_FIELDS, STEP_FIELDS, STRIP
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.packing import ROWS, transpose
from tilewright.kernels.narrow import memory_type, widened
from tilewright.targets.cpu import CpuTarget

AHEAD = 4               # vectors of steps by which a line's prefetch runs ahead


def table(k: Kernel, address: Value, fields: int) -> Value:
    return k.pointer(address, i64).view(fields, 1)


def emit_pack_scattered(target: CpuTarget, dtype: str, WIDTH: int, KIND: str, PIECES: int = 1,
                        SOURCE: str = "") -> Function:
    """Pack `valid` <= width <= WIDTH lines of kc elements, as packing.emit_pack does."""
    T, S = TYPES[dtype], memory_type(SOURCE or dtype)
    V = target.lanes(T.bytes)
    GROUPS = -(-WIDTH // V)
    name = f"pack_{dtype}_{WIDTH}_scattered_{KIND}" + f"_{PIECES}"*(KIND in ("across", "squares"))
    k = Kernel(name + (f"_from_{SOURCE}" if SOURCE else ""), kc=i64, width=i64, valid=i64,
               source=ptr(S, strided=True), lines=i64, steps=i64, dst=ptr(T))
    kc, width, valid, source, lines, steps, dst = k.args
    lines, steps, dst = table(k, lines, LINE_FIELDS), table(k, steps, STEP_FIELDS), dst.view(width, 1)

    def read(at: Value, mask: Value | None = None, length: int = V) -> Value:
        return widened(k, k.load(at, vec(S, length), S.bytes, mask), SOURCE, T)

    def one_by_one(row: Value, start: Value, first: Value | int = 0, end: Value = valid) -> None:
        with k.loop(end, first) as i:
            dst[row, i] = widened(k, k.load(start + lines[i, 0]), SOURCE, T)

    def coming(p: Value) -> tuple[Value, Value]:
        """The offset of a later step, of this panel or the one after it, and the line at which that panel begins."""
        beyond = p >= kc
        return steps[k.min(k.select(beyond, p - kc, p), kc - 1), 0], k.select(beyond, valid, 0)

    if KIND == "across":
        groups = [_pieces(k, lines, valid, g*V, V, PIECES) for g in range(GROUPS)]
        contiguous = groups[0].single
        for g in groups[1:]:
            contiguous = contiguous & g.single

        def rows(several: bool) -> None:
            with k.loop(kc) as p:
                row, (offset, panel) = source + steps[p, 0], coming(p + ROWS)
                for number in range(GROUPS):
                    k.prefetch(source + (offset + lines[panel + number*V, 0]), locality=2)
                for number, g in enumerate(groups):
                    x = read(row + g.starts[0], g.masks[0])
                    for start, mask, before in zip(g.starts[1:], g.masks[1:], g.before[1:]) if several else ():
                        x = k.select(before, x, read(row + start, mask))
                    k.store(dst.at(p, number*V), x, T.bytes)

        if PIECES == 1:
            rows(False)
        else:
            with k.when(contiguous):
                rows(False)
            with k.otherwise():
                rows(True)
    elif KIND == "along":
        last = valid - 1
        starts = [source + lines[k.min(last, i), 0] for i in range(GROUPS*V)]
        done = k.variable(i64, 0)
        with k.while_(lambda: done.get() < kc):
            v = done.get()
            offset, run, row, apart = (steps[v, field] for field in range(STEP_FIELDS))
            run = k.min(run, kc - v)
            with k.when(run >= V):
                with k.loop(k.ceil_div(run, V)) as block:       # the last one overlaps that before it
                    q = k.min(block*V, run - V)
                    ahead, panel = coming(v + q + AHEAD*V)
                    for i in range(WIDTH):
                        k.prefetch(source + (ahead + lines[panel + i, 0]))
                    for group in reversed(range(GROUPS)):       # as in packing._pack; rows may be written in any order
                        with k.when(width > group*V):           # if what is written is whole vectors of the width
                            square = [read(line + (offset + q)) for line in starts[group*V:(group + 1)*V]]
                            for e, x in enumerate(transpose(k, square)):
                                k.store(dst.at(row + (q + e)*apart, group*V), x, T.bytes)
            with k.otherwise(), k.loop(run) as q:
                one_by_one(row + q*apart, source + (offset + q))
            done.set(v + run)
    elif KIND == "squares":
        at = k.variable(i64, 0)

        def groups_of_lines(count: int, length: Value | None) -> None:
            last = None if length is None else at.get() + length - 1
            starts = [lines[at.get() + i if last is None else k.min(at.get() + i, last), 0] for i in range(PIECES)]
            mask = k.lanes_below(k.constant(i64, count), PIECES) if count < PIECES else None
            own = None if length is None else k.lanes_below(length, PIECES)    # at least half of them
            lines_of = PIECES if length is None else length
            with k.loop(kc) as p:
                row = source + steps[p, 0]
                for start in starts:
                    k.prefetch(row + (start + 64 // S.bytes))   # of which the next panels are packed
                square = transpose(k, [read(row + start, mask, PIECES) for start in starts])
                for e, x in enumerate(square[:count]):      # of a short strip the next one overwrites what is too much
                    k.store(dst.at(p, at.get() + lines_of*e), x, T.bytes, own if e == count - 1 else None)
            at.set(at.get() + lines_of*count)

        def most(counts: list[int], run: Value, length: Value | None) -> None:
            if counts:
                with k.when(run >= counts[0]):
                    groups_of_lines(counts[0], length)
                with k.otherwise():
                    most(counts[1:], run, length)
                return
            end = k.min(at.get() + (PIECES if length is None else length), valid)
            with k.loop(kc) as p:
                one_by_one(p, source + steps[p, 0], at.get(), end)
            at.set(end)

        whole_panel = min(WIDTH // PIECES, PIECES)
        with k.while_(lambda: at.get() < valid):
            run, left = lines[at.get(), 1], valid - at.get()
            length = k.min(run % STRIP, left)
            strips = k.select(length == run % STRIP, k.min(run // STRIP, left // length), 0)
            with k.when(length == PIECES):
                most([whole_panel, *(x for x in (8, 4, 2) if x < whole_panel)], strips, None)
            with k.otherwise():
                most([x for x in (8, 4, 2) if x <= PIECES], strips, length)
    else:
        with k.loop(kc) as p:
            one_by_one(p, source + steps[p, 0])
    return k.function


def emit_finish_scattered(target: CpuTarget, SUMS: str) -> Function:
    """An epilogue of a tile, in its place, and then the stores of emit_scatter: `tables` has the addresses of these two
    functions behind the others."""
    T = TYPES[SUMS]
    k = Kernel(f"finish_scattered_{SUMS}", noalias=False, tile=ptr(T, strided=True), ld=i64, c=ptr(i8), tables=i64,
               i=i64, j=i64, rows=i64, cols=i64, row_panel=i64, col_panel=i64, alpha=T, index=i64, operands=ptr(i64))
    tile, ld, c, tables, i, j, *rest = k.args
    finish, scatter = (k.load(k.pointer(tables, i64) + at, ptr(i8)) for at in (2, 3))
    k.call(finish, tile, ld, tile + (i*ld + j)*-1, ld, i, j, *rest)
    k.call(scatter, tile, ld, c, tables, i, j, *rest)
    return k.function


def _pieces(k: Kernel, lines: Value, valid: Value, first: int, V: int, PIECES: int) -> SimpleNamespace:
    """The runs of a vector of lines from `first` on: for each one where its first lane would be, which lanes are its
    own and which are those before it; and whether there is but one run."""
    starts, masks, before = [], [], []
    at, single = k.constant(i64, first), None
    for _ in range(PIECES):
        line = k.max(k.min(at, valid - 1), 0)
        end = k.min(at + lines[line, 1], valid)
        starts.append(lines[line, 0] - (line - first))
        before.append(k.lanes_below(at - first, V))
        masks.append(k.lanes_below(end - first, V) ^ before[-1] if starts[1:] else k.lanes_below(end - first, V))
        at = k.max(k.min(end, valid), at)
        single = at >= k.min(valid, first + V) if single is None else single
    return SimpleNamespace(starts=starts, masks=masks, before=before, single=single)


def emit_scatter(target: CpuTarget, NR: int, RESULT: str, KIND: str, PIECES: int = 1) -> Function:
    """C[i ... i + rows, j ... j + cols] = alpha * tile[rows, cols] in the format RESULT, as emit_finish, by tables:
    `tables` has the addresses of that of C's rows, and of MOST_ROWS entries after the last, and that of its columns,
    whose entries are those of lines."""
    T = {"f64": f64, "i64": i64, "i32": i32}.get(RESULT) or (i32 if RESULT in ("i8", "u8", "i16", "u16") else f32)
    S = memory_type(RESULT)
    V = PIECES if KIND == "squares" else target.lanes(T.bytes)
    k = Kernel(f"scatter_{NR}_{RESULT}_{KIND}" + f"_{PIECES}"*(KIND in ("across", "squares")), tile=ptr(T), ld=i64,
               c=ptr(S, strided=True), tables=i64, i=i64, j=i64, rows=i64, cols=i64, row_panel=i64, col_panel=i64,
               alpha=T, index=i64, operands=ptr(i64))
    tile, ld, c, tables, i, j, rows, cols, _, _, alpha, _, _ = k.args
    tile, tables = tile.view(ld, 1), k.pointer(tables, i64)
    out = Out(k, c.view(1, 1), alpha, RESULT=RESULT)
    of_rows, of_columns = (table(k, k.load(tables + at) + first*(8*LINE_FIELDS), LINE_FIELDS)
                           for at, first in ((0, i), (1, j)))
    groups = ([_pieces(k, of_columns, cols, g*V, V, PIECES if KIND == "across" else 1) for g in range(NR // V)]
              if KIND in ("across", "squares") else [])

    def one_by_one() -> None:
        with k.loop(rows) as r, k.loop(cols) as q:
            out.place(of_rows[r, 0], of_columns[q, 0]).put(out.scaled(k.load(tile.at(r, q))))

    def run_by_run() -> None:
        q = k.variable(i64, 0)
        with k.while_(lambda: q.get() < cols):
            at = q.get()
            length, start = k.min(k.min(of_columns[at, 1], cols - at), V), of_columns[at, 0]
            mask = k.lanes_below(length, V)
            with k.loop(rows) as r:
                sums = out.scaled(k.load(tile.at(r, at), vec(T, V), T.bytes, mask))
                out.place(of_rows[r, 0], start).put(sums, mask=mask)
            q.set(at + length)

    if not groups:
        one_by_one()
        return k.function
    full = cols == NR
    for g in groups:
        full = full & g.single

    def store(several: bool) -> None:
        with k.loop(rows) as r:
            row, coming = of_rows[r, 0], c + of_rows[r + rows, 0]       # the next tile's rows have these columns
            for g in groups:
                k.prefetch(coming + g.starts[0], write=True)
            k.prefetch(coming + (groups[-1].starts[0] + (V - 1)), write=True)
            for number, g in enumerate(groups):
                sums = out.scaled(k.load(tile.at(r, number*V), vec(T, V)))
                for start, mask in zip(g.starts, g.masks) if several else ((g.starts[0], None),):
                    out.place(row, start).put(sums, mask=mask)

    with k.when(full):
        store(False)
    with k.otherwise():
        if KIND == "squares":
            run_by_run()
        else:
            store(True)
    return k.function
