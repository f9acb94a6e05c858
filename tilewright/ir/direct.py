"""Loads from global memory straight into LDS, which pass no register; and a wave's promise that a value is uniform.

A wave's lanes read where each of them says and land side by side: lane l at `bytes * l` from one place in LDS. Such a
load is under way until its wave has waited; the hardware counts them (vmcnt), in the order in which they started.
What they mean is in `simulator.direct`.

Source: AMD Instinct MI300 and CDNA4 ISA guides, "Memory Buffer Load to LDS"; AMDGPUUsage, "llvm.amdgcn.load.to.lds".
"""
from __future__ import annotations

from functools import cache

from tilewright.ir.operations import Operation

BYTES = (4, 12, 16)         # that a lane can load so; more than 4 on gfx950 only
PENDING = 62                # the counter has 6 bits, and its largest value waits for nothing
WHOLE = (1 << 32) - 1       # bytes from a base on that a load can reach
KIND = "direct load"


@cache
def load(bytes: int) -> Operation:
    """Of (smem, gmem, base, size): each lane's `gmem` lies within the `size` bytes from `base` on, the same for all, or
    zeros arrive."""
    return Operation(f"lds_load{bytes}", lambda low, t, *xs: low.dialect.direct(low, bytes, *xs),
                     lambda gang, node, *xs: gang.machine.direct.start(gang, node, bytes, *xs),
                     KIND, "effect", needs="amd" if bytes == 4 else "lds.direct.wide")


@cache
def wait(pending: int) -> Operation:
    """Until at most so many of this wave's direct loads, the newest, are under way."""
    return Operation(f"lds_wait{pending}", lambda low, t: low.dialect.wait(low, pending),
                     lambda gang, node: gang.machine.direct.wait(gang, node, pending), "wait", "effect", needs="amd")


# x, of which all lanes of a wave hold the same: LLVM then keeps it in a scalar register.
UNIFORM = Operation("uniform", lambda low, t, x: low.dialect.uniform(low, x),
                    lambda gang, node, x: gang.machine.direct.uniform(gang, node, x), "move", "effect", needs="gpu")
