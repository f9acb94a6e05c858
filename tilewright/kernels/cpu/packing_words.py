"""Packing several steps of k into a word, for the instructions that multiply and add two or four numbers at a time.

The panel is dst[p*width + i], a word of the steps p*WORD ... p*WORD + WORD - 1 of line i, the first one lowest; steps
that do not exist are 0. B's panel begins with a row that sums start with. It is of zeros but for i8 by i8: the
instruction for four bytes takes A's without their sign, so that a + 128 is packed (its bits xor 0x80), and what that
adds to a column of C, 128 times the sum of B's column, is taken off by this row.
"""
from __future__ import annotations

from tilewright.ir import Function, Kernel, Value, i16, i32, i64, ptr, vec
from tilewright.kernels.cpu.elements import element
from tilewright.kernels.cpu.jobs import packing_name
from tilewright.kernels.cpu.microkernel import PACKED_WORDS
from tilewright.kernels.cpu.packing import ahead, side_by_side, transpose
from tilewright.kernels.narrow import memory_type
from tilewright.targets.cpu import CpuTarget

SIGNS = 0x80808080 - (1 << 32)


def emit_pack_words(target: CpuTarget, dtype: str, WIDTH: int, KIND: str, SOURCE: str, ROLE: str) -> Function:
    """Pack `valid` <= width <= WIDTH lines of kc words, of which `left` steps of k exist; step_i, step_p in elements.

    KIND as in packing.py. ROLE: "a", or "b" with the row before it: of zeros ("b0"), or of the sums that an A with a
    sign needs ("b1").
    """
    S, T, WORD = memory_type(SOURCE), i32, PACKED_WORDS[dtype]
    V, BITS = target.lanes(T.bytes), 32 // WORD
    GROUPS, VT = -(-WIDTH // V), vec(T, V)
    k = Kernel(packing_name(dtype, WIDTH, KIND, f"{SOURCE}_{ROLE}"), kc=i64, width=i64, valid=i64,
               source=ptr(S, strided=True), step_i=i64, step_p=i64, dst=ptr(T), left=i64)
    kc, width, valid, source, step_i, step_p, dst, left = k.args
    source, start = source.view(step_i, step_p), dst
    dst = (dst + width if ROLE != "a" else dst).view(width, 1)
    whole = k.min(kc, left // WORD)
    flipped = (dtype, ROLE, SOURCE) == ("i8x4", "a", "i8")
    STORED = T if S.bytes * WORD == T.bytes else i16    # a word where it comes from

    def finished(word: Value, length: int) -> Value:
        return word ^ k.constant(vec(T, length), SIGNS) if flipped else word

    def placed(x: Value, step: int, length: int) -> Value:
        """An element where it belongs in a word."""
        x = element(k, x, SOURCE, dtype)
        return (x & k.constant(vec(T, length), (1 << BITS) - 1)) << BITS*step if step < WORD - 1 else x << BITS*step

    def combined(xs: list[Value], length: int) -> Value:
        word = placed(xs[0], 0, length)
        for step, x in enumerate(xs[1:], 1):
            word = word | placed(x, step, length)
        return finished(word, length)

    def word_of(x: Value, length: int) -> Value:
        """A word of what lies side by side: as it is, or of two bytes."""
        if STORED is T:
            return finished(x, length)
        return combined([(x << 24) >> 24, x >> 8], length)

    def word_by_word(start: Value | int) -> None:
        with k.loop(whole, start) as p:
            with k.loop(valid) as i:
                dst[p, i] = combined([source[i, p*WORD + step] for step in range(WORD)], 1)

    if KIND == "across":
        for masks, first, last in side_by_side(k, target, V, GROUPS, source, valid, step_p, whole):
            with k.loop(last, first) as p:
                for g in range(GROUPS):
                    rows = [k.load(source.view(1, step_p).at(g*V, p*WORD + step), vec(S, V), S.bytes, masks[g])
                            for step in range(WORD)]
                    k.store(dst.at(p, g*V), combined(rows, V), T.bytes)
    elif KIND == "along":
        last, lines = valid - 1, source.view(step_i, 1)
        starts = [lines.at(k.min(last, i), 0) for i in range(GROUPS * V)]
        blocks = whole // V * V
        with k.loop(blocks, step=V) as p:
            coming = ahead(k, p*WORD, kc*WORD, valid*step_i, S)
            for line in starts[:WIDTH]:
                k.prefetch(line + coming)
            for g in reversed(range(GROUPS)):
                rows = [k.load((line + p*WORD).as_(STORED), vec(STORED, V), S.bytes) for line in starts[g*V:(g + 1)*V]]
                for q, column in enumerate(transpose(k, [k.cast(row, VT) for row in rows])):
                    k.store(dst.at(p + q, g*V), word_of(column, V), T.bytes)
        word_by_word(blocks)
    else:
        word_by_word(0)
    with k.when(whole < kc):                            # the word that is not full, and whole words of nothing
        with k.loop(kc, whole) as p:
            with k.loop(valid) as i:
                word = k.variable(T, 0)
                for step in range(WORD - 1):
                    with k.when(p*WORD + step < left):
                        word.set(word.get() | placed(source[i, p*WORD + step], step, 1))
                dst[p, i] = finished(word.get(), 1)

    if ROLE == "b0":
        for g in range(GROUPS):
            with k.when(width > g*V):
                k.store(start + g*V, k.constant(VT, 0), T.bytes)
    elif ROLE == "b1":
        for g in range(GROUPS):
            with k.when(width > g*V):
                total = k.tile(1, 1, VT)
                with k.loop(kc) as p:
                    total[0, 0] = k.quads(k.constant(VT, SIGNS), k.load(dst.at(p, g*V), VT, T.bytes), total[0, 0])
                k.store(start + g*V, k.constant(VT, 0) - total[0, 0], T.bytes)
    return k.function
