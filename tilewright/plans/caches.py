"""Shares of data that a CPU's caches have lost before it is read again, for the cost model of CPU plans."""
from __future__ import annotations

from math import exp, factorial, gcd

from tilewright.plans.cpu import CpuPlan
from tilewright.targets.cpu import CpuTarget

ROOM = 0.75                 # of L2, for a block of A and two panels of B; what is packed and C's lines pass by
PANELS = 3                  # of B, as large as which L1 has to be for one that is brought, or packed, to stay


def crowded(size: int, target: CpuTarget) -> float:
    """The part of so many bytes that L2 loses before they are read again, beside all that passes by."""
    return overfull(size, ROOM * target.l2, target.l2_ways)


def beyond_l2(size: int, plan: CpuPlan, target: CpuTarget) -> float:
    """The part of operands of so many bytes that is not in the threads' L2 from one call to the next."""
    l2 = target.l2 * plan.threads
    return overfull(size, l2, target.l2_ways) if size <= l2 else 1.0


def overfull(size: float, cache: float, ways: int) -> float:
    """The part of so many bytes in lines that lie anywhere, as pages of memory do: of a set of the cache that has got
    more lines than ways, every line is lost."""
    mean = ways * size / cache
    kept = [exp(-mean) * mean**lines / factorial(lines) for lines in range(ways)]
    return max(0.0, 1.0 - sum(kept))


def lost_panel(panel: int, target: CpuTarget) -> float:
    """The part of a panel of B that L1 has lost again before it is multiplied: beside it there are the next one, which
    is on its way, and A and C."""
    return max(0.0, 1 - target.l1d / (PANELS * panel))


def crowds(rows: int, pitch: int, target: CpuTarget) -> bool:
    """Whether so many lines, `pitch` bytes apart, are more than the set of L1 that gets most of them has ways. Rows a
    power of two apart all fall into a few sets."""
    span = target.l1d // target.l1d_ways                    # addresses that far apart share a set
    return rows * max(gcd(pitch, span), target.line) > target.l1d
