"""Values of 8 bits as attention's products need them: keys contiguous, in the order in which a lane holds scores.

wgmma takes four neighbouring steps of k of a row from a register. A lane has scores of the keys 2q, 2q + 1, 8 + 2q and
9 + 2q of sixteen, q = lane % 4, so these are what is multiplied with steps 4q to 4q + 3.
"""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.ir import Function, Kernel, Value, i8, i32, i64, ptr, vec

THREADS, SPAN, EACH = 256, 256, 16      # of a CTA; keys of a warp; keys, and elements, of a thread


def emit_values(SIZE: int = 128, LENGTHS: bool = False, WARP: int = 32) -> Function:
    """target[batch, head, element, place of key] = v[batch, head, key, element], 0 for keys that there are not. With
    LENGTHS these are those from lengths[batch] on.

    A warp reads 32 bytes of each of its keys, and writes SPAN bytes side by side of each of these elements.

    Parameters: v and its distances in bytes, keys, heads; target, contiguous, `row` keys long, a multiple of 32. Grid:
    CTAs for SIZE threads for each SPAN keys, heads, batch.
    """
    name = f"attention_values_{SIZE}{'_lengths' * LENGTHS}"
    more: dict[str, Any] = {"lengths": ptr(i32)} if LENGTHS else {}
    k = Kernel(name, threads=THREADS, v=ptr(i8), v_row=i64, v_head=i64, v_batch=i64, keys=i32, heads=i32,
               target=ptr(i8), row=i32, **more)
    g = SimpleNamespace(**dict(k.function.params))
    warps, lane = (k.block[0]*THREADS + k.thread[0]) // WARP, k.thread[0] % WARP
    ACROSS = SIZE // (2*EACH)               # warps for the elements of a key
    first, element = warps // ACROSS * SPAN + lane // 2 * EACH, (warps % ACROSS * 2 + lane % 2)*EACH
    head, batch = k.block[1], k.block_z
    keys = k.load(g.lengths + batch) if LENGTHS else g.keys
    with k.when(first < g.row):
        base = g.v + (k.cast(batch, i64)*g.v_batch + k.cast(head, i64)*g.v_head + k.cast(element, i64))
        held = [k.load((base + k.cast(first + key, i64)*g.v_row).as_(i32), vec(i32, 4), mask=first + key < keys)
                for key in range(EACH)]
        to = g.target + (k.cast((batch*g.heads + head)*SIZE + element, i64)*k.cast(g.row, i64) + k.cast(first, i64))
        for word in range(EACH // 4):
            four = [_transposed(k, [held[key][word] for key in (2*q, 2*q + 1, 8 + 2*q, 9 + 2*q)]) for q in range(4)]
            for e in range(4):
                k.store((to + k.cast(g.row, i64)*(4*word + e)).as_(i32), k.pack(*(x[e] for x in four)), align=16)
    return k.function


def _transposed(k: Kernel, words: list[Value]) -> list[Value]:
    """From byte j of word i byte i of word j."""
    a, b, c, d = words
    EVEN, LOW = 0x00FF00FF, 0x0000FFFF
    pairs = [(x & EVEN | (y & EVEN) << 8, (x >> 8) & EVEN | y & ~EVEN) for x, y in ((a, b), (c, d))]
    low = [x & LOW | y << 16 for x, y in zip(*pairs)]
    high = [(x >> 16) & LOW | y & ~LOW for x, y in zip(*pairs)]
    return [low[0], low[1], high[0], high[1]]
