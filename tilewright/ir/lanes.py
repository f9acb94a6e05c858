"""Operations by which the lanes of a warp exchange registers."""
from __future__ import annotations

from functools import cache

import numpy as np

from tilewright.ir.operations import Operation


@cache
def exchange(mask: int, warp: int) -> Operation:
    """x of lane (lane ^ mask)."""
    def spelling(low, t, x):
        whole, clamp = low.i32(-1), low.i32(warp - 1)
        return low.call(f"llvm.nvvm.shfl.sync.bfly.{t}", t, whole, x, low.i32(mask), clamp, name="exchanged")
    return Operation(f"lane_xor{mask}", spelling, lambda t, x: x[..., np.arange(warp) ^ mask], "exchange", "group",
                     warp, needs="gpu")
