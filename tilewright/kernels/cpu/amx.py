"""AMX: the micro-kernel, a 32 x 32 tile of C in four tile registers, two for A and two for B, and packing for it.

Micro-kernel. In each step, which is 16 words of k, two tiles of A and two of B are loaded and multiplied with each
other: as many loads as products, and a product takes twice as long as a load from L1. The sum starts from 0 in every
block of k and is added to C in one addition: error grows with the number of blocks and the tiles of one, not with k.

Packing. 32 rows of A or columns of B in groups of tiles, each element converted, and split into its terms. A's panel is
dst[group][term][line i][word w], B's dst[group][term][word w][line j], as plans/words.py says. Words come 16 at a time:
of one line where lines are contiguous along k, else of 16 lines that lie side by side. Where the panel has the other
order, 16 such vectors are transposed. Steps of k that do not exist are 0; lines that do not exist hold any values,
since what is computed from them is never stored.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.ir import Function, Kernel, Value, f32, i8, i32, i64, ptr, vec
from tilewright.ir.ops.x86 import TileRegisters
from tilewright.kernels.cpu import packing
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.cpu.prepared import WHERE, Prepared, suffix
from tilewright.kernels.narrow import memory_type, terms_of, too_large, widened
from tilewright.plans.words import GROUP, SIDE, TERMS, TILE_WORDS, Pairs, TileWord
from tilewright.targets.cpu import CpuTarget

AHEAD = 4               # rows of `ahead` that are asked for in a step, for each term
LEAD = 8                # steps from the last prefetch of C to its use
V = GROUP
# Tiles 0 to 3 are C's, by rows; 4 and 5 are A's, 6 and 7 B's: the order in which they are loaded, and which products
# (of C, A and B) come after each.
ORDER: tuple[tuple[int, tuple[tuple[int, int, int], ...]], ...] = (
    (6, ()), (4, ((0, 4, 6),)), (5, ((2, 5, 6),)), (7, ((1, 4, 7), (3, 5, 7))))

# Packing
WORDS = vec(i32, GROUP)
BF16 = TERMS["bf16_x6"].mantissa
INFINITE = 0x7F800000           # bits of an f32, from which on it is infinite or no number


def emit_amx(target: CpuTarget, dtype: str) -> Function:
    """C[rows, cols] = alpha * A[rows, kc] @ B[kc, cols] + beta * C, rows and cols <= 32; beta = 0 never reads C.

    The parameters are those of kernels/cpu/microkernel.py; `lda` is the number of rows, kc counts rows of B's panel.
    In every step it asks for AHEAD lines of `ahead`, `within` bytes apart, `step` bytes after those of the step before,
    and towards the end for a row of C.

    A's first `unpacked` groups, of words of one term, are not in its panel but in `lines`, `pitch` bytes apart. They
    are asked for as they come, if `coming`, the bytes to those of the next panel, is not 0.
    """
    word = TILE_WORDS[dtype]
    T = TYPES[word.accumulates]
    C = TYPES[word.sums]
    W = 64 // C.bytes                       # numbers of C in a vector
    k = Kernel(f"microkernel_{dtype}_{SIDE}x{SIDE}_packed_packed", kc=i64, a=ptr(T), rows=i64, b=ptr(T),
               within=i64, c=ptr(C), ldc=i64, cols=i64, alpha=C, beta=C, ahead=ptr(i8), step=i64,
               lines=ptr(i8), pitch=i64, unpacked=i64, coming=i64)
    kc, a, rows, b, within, c, ldc, cols, alpha, beta, ahead, ahead_step, lines, pitch, unpacked, coming = k.args
    tiles = TileRegisters(k)
    c = c.view(ldc, 1)
    out = Out(k, c, alpha, beta)
    left = k.local("sums", (SIDE, SIDE), T)
    groups = kc // word.rows
    to_c = k.max(groups - (SIDE + LEAD), 0)
    STEP = word.rows*SIDE

    def step(s: Value, products: Pairs, USED: set[int], PACKED: bool) -> None:
        """What a pass does with group s and the tiles that are used of A and B: terms that the product before has
        loaded are not loaded again."""
        a_at, b_at = a + s*STEP, b + s*STEP
        loaded: tuple[int | None, int | None] = None, None
        for of_a, of_b in products:
            def load(t: int, of_a: int = of_a, of_b: int = of_b, loaded: Any = loaded) -> None:
                if t < 6 and not PACKED:
                    tiles.load(t, lines + (s*64 + (t - 4)*GROUP*pitch), pitch)
                elif t < 6 and of_a != loaded[0]:
                    tiles.load(t, a_at + (of_a*GROUP*SIDE + (t - 4)*GROUP*GROUP), GROUP)
                elif t >= 6 and of_b != loaded[1]:
                    tiles.load(t, b_at + (of_b*GROUP*SIDE + (t - 6)*GROUP), SIDE)
            for t, dots in ORDER:
                if t in USED:
                    load(t)
                for c_a_b in dots:
                    if USED.issuperset(c_a_b[1:]):
                        tiles.dot(word.dot, *c_a_b)
            loaded = of_a, of_b

    def ask(s: Value, PACKED: bool) -> None:
        """For what comes after step s."""
        for line in range(AHEAD*word.terms if PACKED else 0):
            k.prefetch(ahead + (s*ahead_step + line % AHEAD * within + line // AHEAD * 64), locality=2)
        if not PACKED:
            there = packing.ahead(k, s*64, unpacked*64, coming, i8)
            with k.when(coming != 0), k.loop(k.constant(i64, SIDE // 4)) as four:
                for line in range(4):
                    k.prefetch(lines + (there + (four*4 + line)*pitch), locality=2)
        with k.when(s >= to_c):
            for j in (*range(0, SIDE, W), SIDE - 1):
                k.prefetch(c.at(s - to_c, j), write=True, locality=2)

    def add_to_c(number: int, read: bool) -> None:
        """C = alpha * sums + beta * C; in later passes C += alpha * sums."""
        masks = [k.lanes_below(cols - j, W) for j in range(0, SIDE, W)]
        into = replace(out, alpha=k.broadcast(alpha, W), beta=k.constant(vec(C, W), 1) if number else
                       k.broadcast(beta, W))
        with k.loop(rows) as i:
            for j, mask in zip(range(0, SIDE, W), masks):
                x = k.load(left + (i*SIDE + j), vec(T, W), W*T.bytes)
                x = k.cast(x, vec(C, W)) & 0xFFFFFFFF if word.wider else x
                sums = x << word.shifts[number] if number else x
                into.place(i, j).put(into.scaled(sums), read, mask)

    def store(to: Value, ld: Value | int) -> None:
        for t in range(4):
            tiles.store(t, to + (t // 2 * GROUP * ld + t % 2 * V), ld)

    tall, wide = rows > GROUP, cols > GROUP
    used = ({4, 5, 6, 7}, tall & wide), ({4, 6, 7}, (rows <= GROUP) & wide), ({4, 5, 6}, tall & (cols <= GROUP)), (
        {4, 6}, (rows <= GROUP) & (cols <= GROUP))
    straight = (rows == (0 if word.wider else SIDE)) & (cols == SIDE) & (alpha == 1.0) & (beta == 0.0)
    for number, products in enumerate(word.passes):
        for t in range(4):
            tiles.zero(t)
        for USED, here in used:
            for PACKED in (False, True) if word.terms == 1 else (True,):
                first, last = (unpacked, groups) if PACKED else (k.constant(i64, 0), unpacked)
                with k.when(here), k.loop(last, first) as s:
                    if number == 0:
                        ask(s, PACKED)
                    step(s, products, USED, PACKED)
        if number:
            store(left, SIDE)
            add_to_c(number, True)
            continue
        with k.when(straight):
            if not word.wider:
                store(c, ldc)
        with k.otherwise():
            store(left, SIDE)
            out.cases_of_beta(partial(add_to_c, 0))
    return k.function


def emit_pack_tiles(target: CpuTarget, dtype: str, KIND: str, SOURCE: str, ROLE: str,
                    PROLOGUE: tuple[Any, ...] = ()) -> Function:
    """Pack `valid` <= 32 lines, kc rows of B's panel (whole groups), of which `left` elements of k exist.

    KIND as in packing.py; ROLE "a" or "b". `special` becomes 1 if a number cannot be split into terms: if it is
    infinite, none, or too large to be rounded to a bf16. PROLOGUE: what elements become first, the fields of a
    jobs.Prepare; each group is gathered then.
    """
    word, FROM = TILE_WORDS[dtype], memory_type(SOURCE)
    STEPS, DEPTH = word.steps, GROUP * word.steps
    k = Kernel(f"pack_{dtype}_{SIDE}_{KIND}_from_{SOURCE}_{ROLE}{suffix(PROLOGUE)}", kc=i64, width=i64, valid=i64,
               source=ptr(FROM, strided=True), step_i=i64, step_p=i64, dst=ptr(i32), left=i64, special=ptr(i64),
               **(WHERE if PROLOGUE else {}))
    kc, _, valid, source, step_i, step_p, dst, left, special = k.args[:9]
    prepared = Prepared(k, target, SOURCE, PROLOGUE) if PROLOGUE else None
    if prepared is not None:
        SOURCE = prepared.FORMAT
    S, terms = memory_type(SOURCE), _Terms(k, word, SOURCE)

    def load(at: Value, count: Value | None = None) -> list[Value]:
        """16 elements, or `count` that exist, in lanes of 32 bits: of an i64 the lower and the upper halves."""
        if S is i64:
            mask = [None if count is None else k.lanes_below(count*2 - GROUP*half, GROUP) for half in range(2)]
            return _dealt(k, [k.load(at.as_(i32) + GROUP*half, WORDS, S.bytes, mask[half]) for half in range(2)])
        x = k.load(at, vec(S, GROUP), S.bytes, None if count is None else k.lanes_below(count, GROUP))
        return [_bits(k, x, SOURCE, word.dot == "bf16")]

    def along(start: Value, left: Value | None) -> list[Value]:
        """16 words of one line, `left` elements of which exist, for each term."""
        if word.terms == 1 and S.bits * STEPS == 32:
            mask = None if left is None else k.lanes_below(left, DEPTH)
            return [k.reinterpret(k.load(start, vec(S, DEPTH), S.bytes, mask), WORDS)]
        parts = zip(*(load(start + GROUP*s, None if left is None else left - GROUP*s) for s in range(STEPS)))
        return terms.words([_dealt(k, list(part)) for part in parts])

    def across(start: Value, step: Value, lines: Value | None, left: Value | None) -> list[Value]:
        """A word of each of 16 lines side by side, `left` elements of which exist."""
        return terms.words(list(zip(*(
            load(start + step*s, lines if left is None else k.select(left > s, lines, 0)) for s in range(STEPS)))))

    def store(g: Value, half: int, vectors: list[list[Value]], of: str) -> None:
        """Group g of one half of the lines: vectors[e][term] for `of` the 16 lines, or the 16 words."""
        for term, column in enumerate(zip(*vectors)):
            tile = dst + (g*word.terms + term) * (GROUP*SIDE)
            for e, x in enumerate(column if of == ROLE else packing.transpose(k, list(column))):
                k.store(tile + ((half*GROUP + e)*GROUP if ROLE == "a" else e*SIDE + half*GROUP), x, 64)

    def pack_along(g: Value, starts: list[Value], left: Value | None) -> None:
        for half in range(2):
            with k.when(valid > half*GROUP):                    # else their tiles are not read
                store(g, half, [along(start, left) for start in starts[half*GROUP:(half + 1)*GROUP]], "a")

    def pack_across(g: Value, start: Value, step: Value, exist: bool, left: Value | None) -> None:
        """exist: whether all lines do."""
        for half in range(2):
            with k.when(valid > half*GROUP):
                store(g, half, [across(start + step*(STEPS*p) + half*GROUP, step, None if exist else valid - half*GROUP,
                                       None if left is None else left - STEPS*p) for p in range(GROUP)], "b")

    groups = kc // word.rows
    if prepared:
        block = prepared.local(KIND, SIDE, DEPTH)
        with k.loop(groups) as g:
            step, last = g*DEPTH, valid - 1
            prepared.block(KIND, source + step*step_p, step_i, step_p, step, k.max(k.min(left - step, DEPTH), 0), valid,
                           block)
            if KIND == "along":
                pack_along(g, [block.at(k.min(last, i), 0) for i in range(SIDE)], None)
            else:
                pack_across(g, block.view(1), k.constant(i64, prepared.pitch), True, None)
        return k.function
    full_groups = k.constant(i64, 0) if KIND == "any" else k.min(groups, left // DEPTH)
    starts = [source + k.min(valid - 1, i)*step_i for i in range(SIDE if KIND == "along" else 0)]
    gathered = k.local("gathered", (DEPTH, SIDE), S) if KIND == "any" else None
    for full, first, last in (True, k.constant(i64, 0), full_groups), (False, full_groups, groups):
        with k.loop(last, first) as g:
            rest = None if full else left - g*DEPTH
            if KIND == "along":
                for start in starts if full else ():
                    k.prefetch(start + g*DEPTH + packing.AHEAD // S.bytes, locality=2)
                pack_along(g, [start + g*DEPTH for start in starts], rest)
            elif KIND == "across":
                pack_across(g, source + g*DEPTH*step_p, step_p, False, rest)
            elif gathered is not None and rest is not None:
                with k.loop(k.constant(i64, DEPTH)) as p, k.loop(k.constant(i64, SIDE)) as i:
                    gathered[p, i] = k.load(source + (k.min(i, valid - 1)*step_i + (g*DEPTH + p)*step_p), S, S.bytes,
                                            p < rest)
                pack_across(g, gathered.view(1), k.constant(i64, SIDE), True, None)
    terms.report(special)
    return k.function


class _Terms:
    """Splits numbers, and makes words of them. Of those that it had to round it remembers the largest."""

    def __init__(self, k: Kernel, word: TileWord, SOURCE: str) -> None:
        self.k, self.word = k, word
        self.limit = {"f32": too_large(BF16), "f16": INFINITE}.get(SOURCE)
        self.largest = k.tile(1, 1, WORDS) if self.limit is not None else None

    def words(self, parts: Sequence[Sequence[Value]]) -> list[Value]:
        """The first, second ... elements of 16 words, as bits (of i64 the lower and the upper halves) → 16 words, for
        each term."""
        if self.word.dot == "bf16":
            low, high = map(self.split, parts[0])
            return [(x >> 16) & 0xFFFF | y for x, y in zip(low, high)]
        packed = []
        for term in range(self.word.terms):
            part, byte = divmod(term, 4)
            a, b, c, d = ((x >> 8*byte if byte else x) & 0xFF for x in parts[part])
            packed.append(a | b << 8 | (c << 16 | d << 24))
        return packed

    def split(self, bits: Value) -> list[Value]:
        """The bits of an f32 → those of its terms, whose lower halves are 0; the first is the largest."""
        if self.largest is None:
            return [bits]
        self.largest[0, 0] = self.k.max(self.largest[0, 0], bits & 0x7FFFFFFF)
        return terms_of(self.k, bits, BF16, self.word.terms)

    def report(self, special: Value) -> None:
        if self.largest is None:
            return
        k, largest = self.k, self.largest[0, 0]
        most = largest[0]
        for e in range(1, GROUP):
            most = k.max(most, largest[e])
        with k.when(most >= self.limit):
            k.atomic_store(special, 1, "monotonic")


def _bits(k: Kernel, x: Value, SOURCE: str, floats: bool) -> Value:
    """Elements in lanes of 32 bits: as the bits of f32s of the same value, or integers as they are."""
    return k.bits_as(widened(k, x, SOURCE, f32), WORDS) if floats else k.cast(x, WORDS)


def _dealt(k: Kernel, vectors: list[Value]) -> list[Value]:
    """Consecutive elements → the first, second ... of each word."""
    if len(vectors) == 1:
        return vectors
    if len(vectors) == 2:
        return [k.shuffle(vectors[0], vectors[1], range(odd, 2*GROUP, 2)) for odd in range(2)]
    halves = _dealt(k, vectors[:2]), _dealt(k, vectors[2:])
    evens, odds = (_dealt(k, list(pair)) for pair in zip(*halves))
    return [evens[0], odds[0], evens[1], odds[1]]
