"""Packing: a panel of A or of B, from any layout, in the order in which the micro-kernel reads it.

The panel is dst[p*width + i] = source[i*step_i + p*step_p]: rows of A or columns of B run along i, and p along k. So
one emitter packs both operands. Vectors are stored whole: what one writes past its row is written over by those that
follow, and the last one reaches at most `jobs.SLACK` elements past the panel.

KIND says what is contiguous: "across" (step_i = 1, lines lie side by side), "along" (step_p = 1, each line by itself),
or "any". Lanes from `valid` to `width` get any values: what is computed from them is never stored.

A panel of words is dst[p*width + i], a word of the steps p*WORD ... p*WORD + WORD - 1 of line i, the first one lowest,
for the instructions that multiply and add two or four numbers at a time; steps that do not exist are 0. B's panel
begins with a row that sums start with. It is of zeros but for i8 by i8: the instruction for four bytes takes A's
without their sign, so that a + 128 is packed (its bits xor 0x80), and what that adds to a column of C, 128 times the
sum of B's column, is subtracted by this row.

Complex operands are packed so that one real product multiplies them: the 1m method (F. G. Van Zee, "Implementing
High-Performance Complex Matrix Multiplication via the 1m Method", SIAM J. Sci. Comput. 42, 2020). A complex matrix C
with contiguous rows is, as it is in memory, a real one of 2n columns, A one of 2k columns, and

    [cr ci] = [ar ai] @ [ br bi]
                        [-bi br]

so that A's panel has the real parts of a column in one step of k and the imaginary parts in the next, and B's panel has
every row of B twice. Conjugating an operand changes signs of the latter only.
"""
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Function, Kernel, Type, Value, f32, i16, i32, i64, ptr, vec
from tilewright.kernels.cpu.accumulators import PACKED_WORDS
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.narrow import memory_type, splat, widened
from tilewright.targets.cpu import CpuTarget

ROWS = 32                # of lines that lie side by side, by which the prefetch runs ahead: each is in another page
AHEAD = 1024             # bytes: how far along each line its prefetch runs, over page boundaries too, and into the next
#                          panel's line where this one ends: rows of few bytes would come too late one and all
SIGNS = 0x80808080 - (1 << 32)


def emit_pack(target: CpuTarget, dtype: str, WIDTH: int, KIND: str, SOURCE: str = "") -> Function:
    """Pack `valid` <= width <= WIDTH lines of kc elements. SOURCE: their format, if it is another."""
    T, S = TYPES[dtype], memory_type(SOURCE or dtype)
    k = Kernel(f"pack_{dtype}_{WIDTH}_{KIND}" + (f"_from_{SOURCE}" if SOURCE else ""), **_parameters(S, T))
    g = SimpleNamespace(**dict(k.function.params))
    source, dst = g.source.view(g.step_i, g.step_p), g.dst.view(g.width, 1)

    def read(at: Value, length: int, mask: Value | None = None) -> Value:
        return widened(k, k.load(at, vec(S, length), S.bytes, mask), SOURCE, T)

    _pack(k, target, WIDTH, KIND, g, source, dst, g.kc, across=lambda rows, p, i, V, mask: read(rows.at(i, p), V, mask),
          along=lambda line, p, V: read(line + p, V), column=lambda x: x, one=lambda at, p, i: read(at(i, p), 1))
    return k.function


def emit_pack_words(target: CpuTarget, dtype: str, WIDTH: int, KIND: str, SOURCE: str, ROLE: str) -> Function:
    """Pack `valid` <= width <= WIDTH lines of kc words, of which `left` steps of k exist; step_i, step_p in elements.

    ROLE: "a", or "b" with the row before it: of zeros ("b0"), or of the sums that an A with a sign needs ("b1").
    """
    S, T, WORD = memory_type(SOURCE), i32, PACKED_WORDS[dtype]
    V, BITS = target.lanes(T.bytes), 32 // WORD
    GROUPS, VT = -(-WIDTH // V), vec(T, V)
    k = Kernel(f"pack_{dtype}_{WIDTH}_{KIND}_from_{SOURCE}_{ROLE}", **_parameters(S, T), left=i64)
    g = SimpleNamespace(**dict(k.function.params))
    kc, width, left, start = g.kc, g.width, g.left, g.dst
    source, dst = g.source.view(g.step_i, g.step_p), (start + width if ROLE != "a" else start).view(width, 1)
    full_words, flipped = k.min(kc, left // WORD), (dtype, ROLE, SOURCE) == ("i8x4", "a", "i8")
    STORED = T if S.bytes * WORD == T.bytes else i16    # a word where it comes from

    def finished(word: Value) -> Value:
        return word ^ k.constant(word.type, SIGNS) if flipped else word

    def placed(x: Value, step: int) -> Value:
        """An element where it belongs in a word."""
        x = element(k, x, SOURCE, dtype)
        return (x & k.constant(x.type, (1 << BITS) - 1)) << BITS*step if step < WORD - 1 else x << BITS*step

    def combined(xs: list[Value]) -> Value:
        word = placed(xs[0], 0)
        for step, x in enumerate(xs[1:], 1):
            word = word | placed(x, step)
        return finished(word)

    def across(rows: Value, p: Value, i: int, V: int, mask: Value | None) -> Value:
        return combined([k.load(rows.at(i, p*WORD + step), vec(S, V), S.bytes, mask) for step in range(WORD)])

    def along(line: Value, p: Value, V: int) -> Value:
        return k.cast(k.load((line + p*WORD).as_(STORED), vec(STORED, V), S.bytes), VT)

    def column(x: Value) -> Value:
        """Words after the transpose: as they were loaded, or made of two bytes that were loaded as 16 bits."""
        return finished(x) if STORED is T else combined([(x << 24) >> 24, x >> 8])

    _pack(k, target, WIDTH, KIND, g, source, dst, full_words, WORD, across=across, along=along, column=column,
          one=lambda at, p, i: combined([k.load(at(i, p*WORD + step)) for step in range(WORD)]))
    with k.when(full_words < kc):                            # the word that is not full, and whole words of nothing
        clear(k, dst, full_words, kc, g.valid, width, V, GROUPS)
        with k.loop(kc, full_words) as p, k.loop(g.valid) as i:
            word = k.variable(T, 0)
            for step in range(WORD - 1):
                with k.when(p*WORD + step < left):
                    word.set(word.get() | placed(source[i, p*WORD + step], step))
            dst[p, i] = finished(word.get())

    for j in range(0, GROUPS*V if ROLE != "a" else 0, V):
        with k.when(width > j):
            row = k.constant(VT, 0)
            if ROLE == "b1":
                total = k.tile(1, 1, VT)
                with k.loop(kc) as p:
                    total[0, 0] = k.quads(k.constant(VT, SIGNS), k.load(dst.at(p, j), VT, T.bytes), total[0, 0])
                row = row - total[0, 0]
            k.store(start + j, row, T.bytes)
    return k.function


def emit_pack_complex(target: CpuTarget, dtype: str, WIDTH: int, KIND: str, ROLE: str, CONJ: str = "") -> Function:
    """Pack `valid` <= width <= WIDTH lines of kc reals; step_i and step_p lead from one complex number to the next, in
    reals, and are 2 where these are contiguous.

    ROLE    "a": a line is a row of A. Where A's rows are contiguous, the panel is that of a real matrix: emit_pack's.
            "b": two lines are a column of B, its real and its imaginary part
    CONJ    which of the operands are conjugated: "", "a", "b" or "ab". All of that is done here in B's panel.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    GROUPS, HALF, VT = -(-WIDTH // V), V // 2, vec(T, V)
    name = f"pack_{dtype}_{WIDTH}_{KIND}_from_complex_{ROLE}" + (f"_conj_{CONJ}" if CONJ else "")
    k = Kernel(name, **_parameters(T, T))
    kc, width, valid, source, step_i, step_p, dst = k.args
    source, dst, steps = source.view(step_i, step_p), dst.view(width, 1), kc // 2
    SIGN_A, SIGN_B = (-1 if x in CONJ else 1 for x in "ab")

    def rows_of_a(x: Value, y: Value) -> list[Value]:
        """The real and the imaginary parts of two vectors of complex numbers."""
        return [k.shuffle(x, y, range(part, 2*V, 2)) for part in range(2)]

    def rows_of_b(x: Value) -> list[Value]:
        """(br, bi) and (-bi, br) of a vector of complex numbers."""
        minus = k.constant(VT, -0.0) - x

        def taken(e: int, sign: int) -> int: return e if sign > 0 else V + e
        first = [taken(e, SIGN_B if e % 2 else 1) for e in range(V)]
        second = [taken(e ^ 1, SIGN_A if e % 2 else -SIGN_A*SIGN_B) for e in range(V)]
        return [k.shuffle(x, minus, first), k.shuffle(x, minus, second)]

    def store(p: Value, pairs: list[list[Value]], g: int) -> None:
        """Both steps of these groups, the first one first: what it writes past its row, the second writes over."""
        for step in range(2):
            for index, pair in enumerate(pairs):
                k.store(dst.at(p*2 + step, (g + index)*V), pair[step], T.bytes)

    def number_by_number(start: Value | int) -> None:
        clear(k, dst, start*2, kc, valid, width, V, GROUPS)
        with k.loop(steps, start) as p:
            if ROLE == "a":
                with k.loop(valid) as i:
                    for part in range(2):
                        dst[p*2 + part, i] = k.load(source.at(i, p) + part)
            else:
                with k.loop(valid // 2) as j:
                    re, im = (k.load(source.at(j, p) + part) for part in range(2))
                    minus_re, minus_im = (k.constant(T, -0.0) - x for x in (re, im))
                    dst[p*2, j*2], dst[p*2, j*2 + 1] = re, im if SIGN_B > 0 else minus_im
                    dst[p*2 + 1, j*2] = minus_im if SIGN_A*SIGN_B > 0 else im
                    dst[p*2 + 1, j*2 + 1] = re if SIGN_A > 0 else minus_re

    if KIND == "across":
        row = source.view(1, step_p)
        reals = valid*2 if ROLE == "a" else valid               # of a row of the source
        each = 2*V if ROLE == "a" else V                        # of them that become a group
        masks = {start: k.lanes_below(reals - start, V) for start in range(0, GROUPS * each, V)}
        with k.loop(steps) as p:
            vectors = []
            for g in range(GROUPS):
                read = [k.load(row.at(start, p), VT, T.bytes, masks[start]) for start in range(g*each, (g + 1)*each, V)]
                vectors.append(rows_of_a(*read) if ROLE == "a" else rows_of_b(*read))
            store(p, vectors, 0)
    elif KIND == "along":
        assert ROLE == "b", "rows of A that are contiguous are packed as reals"
        last, lines = valid // 2 - 1, source.view(step_i, 2)
        starts = [lines.at(k.min(last, j), 0) for j in range(GROUPS * HALF)]
        blocks = steps // HALF * HALF
        with k.loop(blocks, step=HALF) as p:
            for start in starts:
                k.prefetch(start + p*2 + AHEAD // T.bytes)
            for g in reversed(range(GROUPS)):                   # as in _pack
                loaded = [k.load(start + p*2, VT, T.bytes) for start in starts[g*HALF:(g + 1)*HALF]]
                for q, x in enumerate(transpose(k, loaded, 2)):
                    store(p + q, [rows_of_b(x)], g)
        number_by_number(blocks)
    else:
        number_by_number(0)
    return k.function


def _parameters(S: Type, T: Type) -> dict[str, Any]:
    return {"kc": i64, "width": i64, "valid": i64, "source": ptr(S, strided=True), "step_i": i64, "step_p": i64,
            "dst": ptr(T)}


def _pack(k: Kernel, target: CpuTarget, WIDTH: int, KIND: str, g: SimpleNamespace, source: Value, dst: Value,
          count: Value, WORD: int = 1, *, across: Callable[..., Value], along: Callable[..., Value],
          column: Callable[[Value], Value], one: Callable[..., Value]) -> None:
    """`count` rows of the panel, of WORD steps of k each.

    across(rows, p, i, V, mask)     V lines from i on, in row p of the panel
    along(line, p, V)               V elements or words of a line, from row p on; `column` of such vectors, transposed,
                                    is what is stored
    one(at, p, i)                   one element or word of line i; at(i, step) is an element's address
    """
    S, T = source.type.element, dst.type.element
    V = target.lanes(T.bytes)
    GROUPS = -(-WIDTH // V)
    if KIND == "across":
        for masks, first, last in side_by_side(k, target, V, GROUPS, source, g.valid, g.step_p, count):
            with k.loop(last, first) as p:
                rows = source.view(1, g.step_p)
                for first_line in range(0, WIDTH if WORD == 1 else 0, 64 // S.bytes):
                    k.prefetch(rows.at(first_line, p + ROWS), locality=2)
                for group, mask in enumerate(masks):
                    k.store(dst.at(p, group*V), across(rows, p, group*V, V, mask), T.bytes)
        return
    done: Value | int = 0
    if KIND == "along":
        last, source = g.valid - 1, source.view(g.step_i, 1)
        starts = [source.at(k.min(last, i), 0) for i in range(GROUPS * V)]
        done = count // V * V
        with k.loop(done, step=V) as p:
            coming = ahead(k, p*WORD, g.kc*WORD, g.valid*g.step_i, S)
            for line in starts[:WIDTH]:
                k.prefetch(line + coming)
            # one square in registers at a time; from the last to the first, since all but the last end within their row
            for group in reversed(range(GROUPS)):
                square = [along(line, p, V) for line in starts[group*V:(group + 1)*V]]
                for q, x in enumerate(transpose(k, square)):
                    k.store(dst.at(p + q, group*V), column(x), T.bytes)
    clear(k, dst, done, count, g.valid, g.width, V, GROUPS)
    with k.loop(count, done) as p, k.loop(g.valid) as i:
        dst[p, i] = one(source.at, p, i)


def clear(k: Kernel, dst: Value, first: Value | int, end: Value, valid: Value, width: Value, V: int, GROUPS: int
          ) -> None:
    """Zeros in rows `first` to `end` of a panel that has fewer lines than its width: kernels multiply all of it, and
    where old numbers are so small that they are denormal each product of one takes a hundred clocks."""
    T = dst.type.element
    with k.when(valid < width), k.loop(end, first) as p:
        for group in range(GROUPS):     # what is written past a row is written over by the next one
            k.store(dst.at(p, group*V), k.constant(vec(T, V), 0), T.bytes)


def ahead(k: Kernel, p: Value, length: Value, panel: Value, S: Type) -> Value:
    """The element to prefetch when element p of lines of this length is read, in elements from their starts; the next
    panel's lines lie `panel` elements on."""
    there = p + k.min(length, AHEAD // S.bytes)
    return k.select(there < length, there, there - length + panel)


def side_by_side(k: Kernel, target: CpuTarget, V: int, GROUPS: int, source: Value, valid: Value, step_p: Value,
                 rows: Value) -> list[tuple[list[Any], Value | int, Value]]:
    """How to read rows of `valid` elements as vectors: (masks, first row, row after the last).

    A chip without mask registers reads bytes and halves of words under a mask one by one: there they are read without
    one, where nothing lies past the last element or the next row begins after what is read.
    """
    masks = [k.lanes_below(valid - g*V, V) for g in range(GROUPS)]
    if target.masked or source.type.element.bits >= 32:
        return [(masks, 0, rows)]
    all_but_last = k.select(step_p >= GROUPS * V, k.max(rows - 1, 0), k.constant(i64, 0))
    bare = k.select(valid == GROUPS * V, rows, all_but_last)
    return [([None] * GROUPS, 0, bare), (masks, bare, rows)]


def transpose(k: Kernel, rows: list[Value], EACH: int = 1) -> list[Value]:
    """The columns of V vectors of V elements, each EACH numbers: at each step, blocks of half the size swap across the
    diagonal."""
    V = len(rows)
    size = V // 2
    while size:
        upper = [e if not e & size else V + e - size for e in range(V)]
        lower = [e + size if not e & size else V + e for e in range(V)]
        upper, lower = ([e*EACH + part for e in half for part in range(EACH)] for half in (upper, lower))
        for i in range(V):
            if not i & size:
                x, y = rows[i], rows[i + size]
                rows[i], rows[i + size] = k.shuffle(x, y, upper), k.shuffle(x, y, lower)
        size //= 2
    return rows


def element(k: Kernel, x: Value, SOURCE: str, WORD: str) -> Value:
    """The bits of one step of k in a word ("i8x4", "i16x2", "bf16x2"), at the low end of an i32; those above them have
    any value.

    x: a number as it was loaded (narrow.memory_type), or a vector of them; or its bits in a longer integer, with sign.
    Numbers of bf16x2 are of a format whose numbers are all bf16's too: bf16 as it is, others by way of f32, the upper
    half of which is the bf16.
    """
    length = x.type.length
    if WORD == "bf16x2" and SOURCE != "bf16":
        return k.bits_as(widened(k, x, SOURCE, f32), vec(i32, length)) >> 16
    x = k.cast(x, vec(i32, length))
    return x & splat(k, i32, 0xFF, length) if SOURCE == "u8" else x
