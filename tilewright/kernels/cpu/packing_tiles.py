"""Packing for AMX: 32 rows of A or columns of B in groups of tiles, each element converted, and split into its terms.

A's panel is dst[group][term][line i][word w], B's dst[group][term][word w][line j], as plans/words.py says.
Words come 16 at a time: of one line where lines are contiguous along k, else of 16 lines that lie side by side. Where
the panel wants the other order, 16 such vectors are transposed. Steps of k that do not exist are 0; lines that do not
exist hold anything, since what is computed from them is never stored.
"""
from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Function, Kernel, Value, f32, i32, i64, ptr, vec
from tilewright.kernels.cpu.jobs import packing_name
from tilewright.kernels.cpu.packing import transpose
from tilewright.kernels.narrow import memory_type, widened
from tilewright.plans.words import GROUP, SIDE, TILE_WORDS, TileWord
from tilewright.targets.cpu import CpuTarget

WORDS = vec(i32, GROUP)
UPPER = -0x10000                # of an f32's bits: sign, exponent and seven more, which are a bf16
INFINITE = 0x7F800000           # bits of an f32, from which on it is infinite or no number,
TOO_LARGE = 0x7F7F8000          # and from which on it becomes that when it is rounded to a bf16
AHEAD = 1024                    # bytes: how far along each line its prefetch runs


def emit_pack_tiles(target: CpuTarget, dtype: str, KIND: str, SOURCE: str, ROLE: str) -> Function:
    """Pack `valid` <= 32 lines, kc rows of B's panel (whole groups), of which `left` elements of k exist.

    KIND as in packing.py; ROLE "a" or "b". `special` becomes 1 if a number cannot be split into terms: if it is
    infinite, none, or too large to be rounded to a bf16.
    """
    word, S = TILE_WORDS[dtype], memory_type(SOURCE)
    STEPS, DEPTH = word.steps, GROUP * word.steps
    k = Kernel(packing_name(dtype, SIDE, KIND, f"{SOURCE}_{ROLE}"), kc=i64, width=i64, valid=i64,
               source=ptr(S, strided=True), step_i=i64, step_p=i64, dst=ptr(i32), left=i64, special=ptr(i64))
    kc, _, valid, source, step_i, step_p, dst, left, special = k.args
    terms = _Terms(k, word, SOURCE)

    def load(at: Value, lines: Value | None = None) -> list[Value]:
        """16 elements in lanes of 32 bits, or of lines that exist: the lower and the upper halves of an i64."""
        if S is i64:
            mask = [None if lines is None else k.lanes_below(lines*2 - GROUP*half, GROUP) for half in range(2)]
            return _dealt(k, [k.load(at.as_(i32) + GROUP*half, WORDS, S.bytes, mask[half]) for half in range(2)])
        x = k.load(at, vec(S, GROUP), S.bytes, None if lines is None else k.lanes_below(lines, GROUP))
        return [_bits(k, x, SOURCE, word.dot == "bf16")]

    def along(start: Value) -> list[Value]:
        """16 words of one line, for each term."""
        if word.terms == 1 and S.bits * STEPS == 32:
            return [k.load(start.as_(i32), WORDS, S.bytes)]
        parts = zip(*(load(start + GROUP*s) for s in range(STEPS)))
        return terms.words([_dealt(k, list(part)) for part in parts])

    def across(start: Value, step: Value, lines: Value | None) -> list[Value]:
        """A word of each of 16 lines side by side."""
        return terms.words(list(zip(*(load(start + step*s, lines) for s in range(STEPS)))))

    def store(g: Value, half: int, vectors: list[list[Value]], of: str) -> None:
        """Group g of one half of the lines: vectors[e][term] for `of` the 16 lines, or the 16 words."""
        for term, column in enumerate(zip(*vectors)):
            tile = dst + (g*word.terms + term) * (GROUP*SIDE)
            for e, x in enumerate(column if of == ROLE else transpose(k, list(column))):
                k.store(tile + ((half*GROUP + e)*GROUP if ROLE == "a" else e*SIDE + half*GROUP), x, 64)

    def pack_across(g: Value, start: Value, step: Value, lines: list[Value] | list[None]) -> None:
        for half in range(2):
            store(g, half, [across(start + step*(STEPS*p) + half*GROUP, step, lines[half]) for p in range(GROUP)], "b")

    groups = kc // word.rows
    whole = k.constant(i64, 0) if KIND == "any" else k.min(groups, left // DEPTH)
    if KIND == "along":
        starts = [source + k.min(valid - 1, i)*step_i for i in range(SIDE)]
        with k.loop(whole) as g:
            for start in starts:
                k.prefetch(start + g*DEPTH + AHEAD // S.bytes, locality=2)
            for half in range(2):
                store(g, half, [along(start + g*DEPTH) for start in starts[half*GROUP:(half + 1)*GROUP]], "a")
    elif KIND == "across":
        with k.loop(whole) as g:
            pack_across(g, source + g*DEPTH*step_p, step_p, [valid - half*GROUP for half in range(2)])
    # the group that is not whole, and lines that nothing in memory is contiguous along or across: element by element
    gathered = k.local("gathered", (DEPTH, SIDE), S)
    with k.loop(groups, whole) as g:
        with k.loop(k.constant(i64, DEPTH)) as p, k.loop(k.constant(i64, SIDE)) as i:
            gathered[p, i] = k.load(source + (k.min(i, valid - 1)*step_i + (g*DEPTH + p)*step_p), S, S.bytes,
                                    g*DEPTH + p < left)
        pack_across(g, gathered.view(1), k.constant(i64, SIDE), [None, None])
    terms.report(special)
    return k.function


class _Terms:
    """Splits numbers, and makes words of them. Of those that it had to round it remembers the largest."""

    def __init__(self, k: Kernel, word: TileWord, SOURCE: str) -> None:
        self.k, self.word = k, word
        self.limit = {"f32": TOO_LARGE, "f16": INFINITE}.get(SOURCE)
        self.largest = k.tile(1, 1, WORDS) if self.limit is not None else None

    def words(self, parts: Sequence[Sequence[Value]]) -> list[Value]:
        """The first, second ... elements of 16 words, as bits (of i64 the lower and the upper halves) → 16 words, for
        each term."""
        if self.word.dot == "bf16":
            low, high = map(self.split, parts[0])
            return [(x >> 16) & 0xFFFF | y for x, y in zip(low, high)]
        found = []
        for term in range(self.word.terms):
            part, byte = divmod(term, 4)
            a, b, c, d = ((x >> 8*byte if byte else x) & 0xFF for x in parts[part])
            found.append(a | b << 8 | (c << 16 | d << 24))
        return found

    def split(self, bits: Value) -> list[Value]:
        """The bits of an f32 → those of its terms, whose lower halves are 0; the first is the largest."""
        k = self.k
        if self.largest is None:
            return [bits]
        self.largest[0, 0] = k.max(self.largest[0, 0], bits & 0x7FFFFFFF)
        found, x = [], k.bits_as(bits, vec(f32, GROUP))
        for _ in range(self.word.terms):
            bits = k.bits_as(x, WORDS)
            term = (bits + ((bits >> 16) & 1) + 0x7FFF) & UPPER         # rounded to nearest, even on ties
            found.append(term)
            x = x - k.bits_as(term, vec(f32, GROUP))                    # exact
        return found

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
