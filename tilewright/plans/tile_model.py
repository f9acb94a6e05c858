"""Parts of the cost model of CPU plans: shares of data that caches have lost before it is read again, and a product by
AMX's tiles: seconds of the thread that has most to do, by cause.

Rates are of one thread. They were fitted to 1,880 times of 150 shapes on 16 vCPUs of an Emerald Rapids, whose AMX has a
quarter of a quiet Sapphire Rapids' rate (bench/results/xeon_plan_times_several_threads.jsonl.xz): of the best plan the
pick has 0.99, 0.92, 0.90 and 0.90 with 1, 2, 4 and 16 threads, before 0.98, 0.87, 0.81 and 0.78.
"""
from __future__ import annotations

from math import ceil, exp, factorial, gcd

from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import Shape
from tilewright.plans.words import GROUP, SIDE, TILE_WORDS
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


TILE_WORDS_RATE = 1.22e11                   # words of products per second
# Words of terms that are packed per second, of A and of B, along k and across
ALONG_A, ACROSS_A, ALONG_B, ACROSS_B = 4.0e9, 5.0e9, 6.6e9, 3.6e9
OTHERS_A, OTHERS_B = 2.9e9, 11e9            # bytes per second of panels that other threads packed
STORING_TILES, ADDING_TILES = 11e9, 11e9    # bytes of C per second, and of C that is added to
TILE_LINE = 10.8e-9                         # seconds of a line of B along k, in each block of k
TILE_START, TILE_THREAD = 5.4e-6, 0.44e-6   # seconds to start threads that use tiles, and for each, beside others
UNEVEN_TILES = 1.2          # over the threads: of time that the slowest of more than two equal shares takes longer
LEFT = 0.26                 # of the time in which L2 gives panels that L1 has lost, beside the products


def parts(shape: Shape, plan: CpuPlan, target: CpuTarget, slower: float, l2: float) -> tuple[tuple[str, float], ...]:
    """(cause, seconds) of a packed plan. slower: what other threads make of a thread's time; l2: bytes per second."""
    word = TILE_WORDS[shape.dtype]
    high, wide = ceil(shape.m / SIDE), ceil(shape.n / SIDE)
    words = GROUP * ceil(shape.depth / (GROUP * word.steps))                # of a line
    rows = SIDE * (high / plan.ic_ways if plan.claims else ceil(high / plan.ic_ways))
    cols, blocks = SIDE * ceil(wide / plan.jc_ways), ceil(shape.k / plan.kc)
    sharing = 1 if plan.own_b else plan.ic_ways                             # threads that pack the same panels of B
    a, b = rows * words * word.terms * (not plan.unpacked(shape)), cols * words * word.terms
    packing = a / (ALONG_A if shape.a == "rows" else ACROSS_A)
    packing += b / sharing / (ALONG_B if shape.b == "columns" else ACROSS_B)
    c = min(rows, shape.m) * min(cols, shape.n) * shape.itemsize
    # one panel of B meets all of A, or the only one of A all of B
    panels = rows * cols * words * 4 / SIDE
    return (
        ("products of tiles", rows * cols * words * sum(map(len, word.passes)) / TILE_WORDS_RATE * slower),
        ("splitting and packing", packing * slower),
        ("panels that leave L1", LEFT * lost_panel(plan.kc * SIDE * 4, target) * panels / l2),
        ("panels that other threads packed",
         4 * (a / OTHERS_A + b * (1 - 1/plan.ic_ways) / OTHERS_B) if plan.claims else 0.0),
        ("storing C", c / STORING_TILES),
        ("sums that are added to later", (blocks - 1) * c / ADDING_TILES),
        ("lines that are reached", TILE_LINE * blocks * cols / sharing * (shape.b == "columns")))


def starting(threads: int) -> float:
    """Seconds to start threads that use tiles, beside those of other threads."""
    return (TILE_START + TILE_THREAD*threads) * (threads > 1)
