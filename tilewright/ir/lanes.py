"""Operations by which the lanes of a warp exchange registers."""
from __future__ import annotations

from functools import cache

import numpy as np

from tilewright.ir.operations import Operation

WORD = 32           # bits that one exchange moves; wider values go in parts
MOVED = (16, 32, 64)


@cache
def exchange(mask: int, warp: int) -> Operation:
    """x of lane (lane ^ mask)."""
    def word(low, x):
        return low.dialect.exchanged(low, x, mask, warp)

    def spelling(low, t, x):
        b, narrow, wide = low.b, low.integer(WORD), low.integer(t.bits)
        bits = b.bitcast(x, wide)
        if t.bits <= WORD:
            bits = word(low, b.zext(bits, narrow))
        else:
            halves = [word(low, b.trunc(b.lshr(bits, wide(shift)), narrow)) for shift in range(0, t.bits, WORD)]
            bits, upper = (b.zext(half, wide) for half in halves)
            bits = b.or_(bits, b.shl(upper, wide(WORD)))
        return b.bitcast(b.trunc(bits, wide), low.type(t), name="exchanged")
    return Operation(f"lane_xor{mask}", spelling, lambda t, x: x[..., np.arange(warp) ^ mask], "exchange", "group",
                     warp, needs="gpu")
