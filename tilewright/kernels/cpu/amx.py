"""The micro-kernel of AMX: a 32 x 32 tile of C in four tile registers, two for A and two for B.

In each step, which is 16 words of k, two tiles of A and two of B are loaded and multiplied with each other: as many
loads as products, and a product takes twice as long as a load from L1. The sum starts from 0 in every block of k and is
added to C in one addition: error grows with the number of blocks and the tiles of one, not with k.
"""
from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.ir import Function, Kernel, Value, i8, i64, ptr, vec
from tilewright.ir.ops.x86 import TileRegisters
from tilewright.kernels.cpu.jobs import microkernel_name
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.out import Out
from tilewright.plans.words import GROUP, SIDE, TILE_WORDS, Pairs
from tilewright.targets.cpu import CpuTarget

AHEAD = 4               # rows of `ahead` that are asked for in a step, for each term
LEAD = 8                # steps from the last prefetch of C to its use
V = GROUP
# Tiles 0 to 3 are C's, by rows; 4 and 5 are A's, 6 and 7 B's: the order in which they are loaded, and which products
# (of C, A and B) come after each.
ORDER: tuple[tuple[int, tuple[tuple[int, int, int], ...]], ...] = (
    (6, ()), (4, ((0, 4, 6),)), (5, ((2, 5, 6),)), (7, ((1, 4, 7), (3, 5, 7))))


def emit_amx(target: CpuTarget, dtype: str) -> Function:
    """C[rows, cols] = alpha * A[rows, kc] @ B[kc, cols] + beta * C, rows and cols <= 32; beta = 0 never reads C.

    The parameters are those of kernels/cpu/microkernel.py; `lda` is the number of rows, kc counts rows of B's panel.
    In every step it asks for AHEAD lines of `ahead`, `within` bytes apart, `step` bytes after those of the step before,
    and towards the end for a row of C.
    """
    word = TILE_WORDS[dtype]
    T = TYPES[word.accumulates]
    C = TYPES[word.sums]
    W = 64 // C.bytes                       # numbers of C in a vector
    k = Kernel(microkernel_name(dtype, SIDE, SIDE, "packed", "packed"), kc=i64, a=ptr(T), rows=i64, b=ptr(T),
               within=i64, c=ptr(C), ldc=i64, cols=i64, alpha=C, beta=C, ahead=ptr(i8), step=i64)
    kc, a, rows, b, within, c, ldc, cols, alpha, beta, ahead, ahead_step = k.args
    tiles = TileRegisters(k)
    c = c.view(ldc, 1)
    out = Out(k, c, alpha, beta)
    left = k.local("sums", (SIDE, SIDE), T)
    groups = kc // word.rows
    to_c = k.max(groups - (SIDE + LEAD), 0)
    STEP = word.rows*SIDE

    def step(s: Value, products: Pairs) -> None:
        """What a pass does with group s: terms that the product before has loaded are not loaded again."""
        a_at, b_at = a + s*STEP, b + s*STEP
        loaded: tuple[int | None, int | None] = None, None
        for of_a, of_b in products:
            def load(t: int, of_a: int = of_a, of_b: int = of_b, loaded: Any = loaded) -> None:
                if t < 6 and of_a != loaded[0]:
                    tiles.load(t, a_at + (of_a*GROUP*SIDE + (t - 4)*GROUP*GROUP), GROUP)
                elif t >= 6 and of_b != loaded[1]:
                    tiles.load(t, b_at + (of_b*GROUP*SIDE + (t - 6)*GROUP), SIDE)
            for t, dots in ORDER:
                load(t)
                for c_a_b in dots:
                    tiles.dot(word.dot, *c_a_b)
            loaded = of_a, of_b

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
                into.at(i, j).put(into.scaled(sums), read, mask)

    def store(to: Value, ld: Value | int) -> None:
        for t in range(4):
            tiles.store(t, to + (t // 2 * GROUP * ld + t % 2 * V), ld)

    straight = (rows == (SIDE if out.plain and not word.wider else 0)) & (cols == SIDE) & (alpha == 1.0) & (beta == 0.0)
    for number, products in enumerate(word.passes):
        for t in range(4):
            tiles.zero(t)
        with k.loop(groups) as s:
            if number == 0:
                for line in range(AHEAD*word.terms):
                    k.prefetch(ahead + (s*ahead_step + line % AHEAD * within + line // AHEAD * 64), locality=2)
                with k.when(s >= to_c):
                    for j in (*range(0, SIDE, W), SIDE - 1):
                        k.prefetch(c.at(s - to_c, j), write=True, locality=2)
            step(s, products)
        if number:
            store(left, SIDE)
            add_to_c(number, True)
            continue
        with k.when(straight):
            if out.plain and not word.wider:
                store(c, ldc)
        with k.otherwise():
            store(left, SIDE)
            out.cases_of_beta(partial(add_to_c, 0))
    return k.function
