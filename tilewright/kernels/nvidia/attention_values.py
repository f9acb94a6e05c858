"""Values of 8 bits as attention's products need them: keys contiguous, in the order in which a lane holds scores.

wgmma takes four neighbouring steps of k of a row from a register. A lane has scores of the keys 2q, 2q + 1, 8 + 2q and
9 + 2q of sixteen, q = lane % 4, so these are what is multiplied with steps 4q to 4q + 3.
"""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.ir import Function, Kernel, i8, i32, i64, ptr

THREADS, KEYS, WIDE = 256, 32, 4        # keys and elements of a thread


def emit_values(SIZE: int = 128, LENGTHS: bool = False, WARP: int = 32) -> Function:
    """target[batch, head, element, place of key] = v[batch, head, key, element], 0 for keys that there are not. With
    LENGTHS these are those from lengths[batch] on.

    Parameters: v and its distances in bytes, keys, heads; target, contiguous, `row` keys long, a multiple of 32. Grid:
    CTAs for row / 32 * SIZE / 4 threads, heads, batch.
    """
    name = f"attention_values_{SIZE}{'_lengths' * LENGTHS}"
    more: dict[str, Any] = {"lengths": ptr(i32)} if LENGTHS else {}
    k = Kernel(name, threads=THREADS, v=ptr(i8), v_row=i64, v_head=i64, v_batch=i64, keys=i32, heads=i32,
               target=ptr(i8), row=i32, **more)
    g = SimpleNamespace(**dict(k.function.params))
    index, lanes = k.block[0]*THREADS + k.thread[0], SIZE // WIDE
    group, element = index // lanes, index % lanes * WIDE
    head, batch = k.block[1], k.block_z
    keys = k.load(g.lengths + batch) if LENGTHS else g.keys
    with k.when(group*KEYS < g.row):
        first = g.v + (k.cast(batch, i64)*g.v_batch + k.cast(head, i64)*g.v_head + k.cast(element, i64))
        words = []
        for key in range(KEYS):
            at = group*KEYS + key
            words.append(k.load((first + k.cast(at, i64)*g.v_row).as_(i32), mask=at < keys))
        to = g.target + k.cast((batch*g.heads + head)*SIZE + element, i64)*k.cast(g.row, i64) + k.cast(group*KEYS, i64)
        for e in range(WIDE):
            row = to + k.cast(g.row, i64)*e
            for half in range(0, KEYS, 16):
                four = []
                for q in range(4):
                    keys = (words[half + x] for x in (2*q, 2*q + 1, 8 + 2*q, 9 + 2*q))
                    word = k.constant(i32, 0)
                    for place, x in enumerate(keys):
                        word = word | ((x >> 8*e) & 0xFF) << 8*place
                    four.append(word)
                k.store((row + half).as_(i32), k.pack(*four), align=16)
    return k.function
