"""candidates → legal → cost → min: the plan for a product on a CPU, by the model of the caches."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil, isqrt

from tilewright.plans.amx import GROUP, SIDE, TILE_WORDS
from tilewright.plans.cpu import ITEMSIZE, PARTS, CpuPlan, Shape
from tilewright.plans.model import Ceilings, cost
from tilewright.plans.tiles import (
    DOT_ROWS,
    FEW_COLUMNS,
    FEW_ROWS,
    MOST_COLUMNS,
    MOST_ROWS,
    SHORT,
    STREAM_DEPTH,
    TILES,
    packed_tiles,
    tiles_of,
)
from tilewright.targets.base import CpuTarget

TEAM_WORK = 3_000_000       # operations, below which waking the members of a team takes longer than they save
SMALL_SHARE, SMALL_BYTES = 0.57, 600_000     # of L2, and at most so much, for one operand: reading in place is fastest


SHARE = 0.5             # of L2, for a block of AMX's A; a panel of B, the next one, and C pass by
STEPS = 2048            # of k in a block of AMX, for bf16 or bytes: C is read and written once per block
SPLIT_STEPS = 512       # where elements have several terms: error grows with the steps of a block
DEEPEST_COMPLEX = 512   # steps of k in a block of a complex product's reals


@lru_cache(maxsize=4096)
def choose(shape: Shape, target: CpuTarget, like: CpuPlan | None = None) -> CpuPlan:
    """The legal candidate with the least predicted time; `like` as in `candidates`."""
    if shape.m == 0 or shape.n == 0 or shape.k == 0:
        mr, vectors = tiles_of(target, TILES)[0]
        return CpuPlan("in_place", mr, vectors * target.lanes(shape.itemsize))
    return ranked(shape, target, like=like)[0]


def ranked(shape: Shape, target: CpuTarget, ceilings: Ceilings | None = None, tiles: int = 1,
           like: CpuPlan | None = None) -> list[CpuPlan]:
    """All legal candidates, the one with the least predicted time first."""
    found = dict.fromkeys(candidates(shape, target, tiles, like))
    legal = [p for p in found if not p.violations(shape, target)]
    if not legal:
        raise ValueError(f"no plan for {shape} on {target.name}")
    return sorted(legal, key=lambda p: cost(shape, p, target, ceilings).seconds)


def candidates(shape: Shape, target: CpuTarget, tiles: int = 1, like: CpuPlan | None = None) -> Iterator[CpuPlan]:
    """Plans worth a look, legal or not, for the first `tiles` register tiles.

    like        the plan for which B's panels were packed before: then what panels depend on is as there
    """
    if like is not None:
        yield from prepacked_plans(shape, target, like)
    elif shape.tiles:
        yield tile_plan(shape, target)
    elif shape.complex:
        yield from complex_plans(shape, target)
    elif shape.converts:
        yield from converting_plans(shape, target)
    else:
        yield from plain_plans(shape, target, tiles)


def plain_plans(shape: Shape, target: CpuTarget, tiles: int) -> Iterator[CpuPlan]:
    """Where operands and C are in the format of the sums, and may be read where they lie."""
    lanes = target.lanes(shape.itemsize)
    in_cache = stays_in_cache(shape, target)
    for mr, vectors in packed_tiles(target)[:tiles]:
        yield from packed_plans(shape, target, mr, vectors * lanes)
    if shape.k <= SHORT or max(shape.m, shape.n) * shape.k <= small_elements(shape.dtype, target):
        for mr, vectors in tiles_of(target, TILES)[:tiles]:
            yield from in_place_plans(shape, mr, vectors * lanes, 0)
        for mr, vectors, _ in tiles_of(target, FEW_ROWS)[:1] if not in_cache else ():
            yield from in_place_plans(shape, mr, vectors * lanes, 0)
    if not in_cache:
        for mr, vectors, _ in tiles_of(target, FEW_ROWS)[-1:]:
            if shape.m <= MOST_ROWS * 3 or shape.k <= 2 * SHORT:
                yield from packed_plans(shape, target, mr, vectors * lanes)
        for s, swap in (shape, False), (shape.swapped, True):
            for p in skinny_plans(s, target):
                if s.n <= MOST_COLUMNS and s.b != p.reads_b:
                    p = replace(p, copy=True)
                yield replace(p, swap=swap)


def converting_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """Where packing brings operands into the format that is multiplied, so that both have to be packed.

    Threads have rows or columns of their own: two that share a block of A wait for each other before and after each,
    for which two threads of a Zen 5 took 1.06 to 1.08 of the time for f16.
    """
    lanes = target.lanes(shape.itemsize)
    tiles = {*packed_tiles(target)[:1], *((mr, vectors) for mr, vectors, _ in tiles_of(target, FEW_ROWS)[-1:])}
    if shape.words:
        tiles |= {*tiles_of(target, TILES)[:1], *((mr, vectors) for mr, vectors, _ in tiles_of(target, FEW_ROWS))}
    if shape.dtype == "i16x2":                  # a product and its sum are two instructions on some chips: one register
        tiles = {(mr, vectors) for mr, vectors in tiles if mr*vectors + vectors + 2 <= target.tile_registers}
    for mr, vectors in sorted(tiles):
        yield from (p for p in packed_plans(shape, target, mr, vectors * lanes) if p.jr_ways == 1)


def complex_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """For the real product of complex operands: packed, and A's block in half of L2. On a Zen 5, c64 took 0.97 of the
    time with 9x48, mc = 198 and kc = 512 that it took with 162 and 1024 at n = 1024."""
    few = shape.m <= MOST_ROWS * 3 or shape.k <= 2 * SHORT
    tiles = {*packed_tiles(target)[:1], *((mr, vectors) for mr, vectors, _ in tiles_of(target, FEW_ROWS)[-1:] if few)}
    lanes = target.lanes(shape.itemsize)
    for mr, vectors in sorted(tiles):
        yield from (p for p in packed_plans(shape, target, mr, vectors * lanes)
                    if p.kc <= DEEPEST_COMPLEX and p.mc*p.kc*shape.itemsize <= target.l2 // 2 and p.jr_ways == 1)


def prepacked_plans(shape: Shape, target: CpuTarget, like: CpuPlan) -> Iterator[CpuPlan]:
    """For a B whose panels were packed before for the plan `like`, and another m or number of threads. No thread packs
    B, so that threads have rows or columns of their own."""
    if 2*shape.m*shape.n*shape.k < TEAM_WORK:
        shape = shape._replace(threads=1)
    if shape.tiles:
        yield replace(tile_plan(shape, target), kc=like.kc)
        return
    inner = shape.swapped if like.swap else shape
    panels_m, panels_n = ceil(inner.m / like.mr), ceil(inner.n / like.nr)
    for p in packed_plans(inner, target, like.mr, like.nr, (like.kc,)):
        if p.jr_ways == 1 and p.ic_ways <= panels_m and p.jc_ways <= panels_n:
            yield replace(p, kc=like.kc, swap=like.swap)


def tile_plan(shape: Shape, target: CpuTarget) -> CpuPlan:
    """Blocks for a product by AMX's tiles; shape.k counts rows of B's panels.

    The operands change places in the five loops: a block of B stays in L2, panels of A pass by, and the tiles of C
    follow each other along its rows, in whole lines and few pages.
    """
    shape = shape.swapped
    word = TILE_WORDS[shape.dtype]
    most = (STEPS if word.terms == 1 else SPLIT_STEPS) // (GROUP * word.steps) * word.rows
    blocks = -(-shape.k // most)
    kc = -(-shape.k // (blocks * word.rows)) * word.rows
    mc = max(int(SHARE * target.l2) // (4 * kc) // SIDE, 1) * SIDE
    ic = min(shape.threads, -(-shape.m // SIDE))
    if ic > 2:                                              # blocks are claimed: eight pieces for each thread
        mc = min(mc, max(PARTS * shape.m // (8 * ic) // SIDE, 1) * SIDE)
    nc = max((target.l3 or 4 * target.l2) // 2 // (4 * kc) // SIDE, 1) * SIDE
    return CpuPlan("packed", SIDE, SIDE, min(mc, _up(shape.m, SIDE)), kc, min(nc, _up(shape.n, SIDE)), ic_ways=ic,
                   swap=True)


def skinny_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """For one operand that is large and read once, where it lies, and another that stays in cache."""
    lanes = target.lanes(shape.itemsize)
    if shape.m <= MOST_ROWS:
        for mr, vectors, kc in tiles_of(target, FEW_ROWS):
            yield from in_place_plans(shape, mr, vectors * lanes, kc)
    if shape.n <= MOST_COLUMNS and shape.a == "rows":
        for mr, vectors in tiles_of(target, FEW_COLUMNS):
            kc = target.l2 // (shape.n * shape.itemsize)
            yield from in_place_plans(shape, mr, vectors * lanes, 0 if kc >= shape.k else max(kc // 2, 64))
    if shape.m in (depths := dict(tiles_of(target, STREAM_DEPTH))):
        for threads in {1, shape.threads}:
            yield CpuPlan("stream", shape.m, depths[shape.m], jc_ways=threads)
    if shape.n in (heights := dict(tiles_of(target, DOT_ROWS))):
        for threads in {1, shape.threads}:
            yield CpuPlan("dots", min(heights[shape.n], shape.m), shape.n, ic_ways=min(threads, shape.m))


def packed_plans(shape: Shape, target: CpuTarget, mr: int, nr: int,
                 depths: tuple[int, ...] = (256, 384, 512, 768, 1024)) -> Iterator[CpuPlan]:
    """The article's rules as a start: kc x nr in L1 (or streamed from L2), mc x kc in L2, kc x nc in L3."""
    s = shape.itemsize
    for kc in sorted({min(kc, _up(shape.k, 4)) for kc in depths}):
        blocks = {max(int(share * target.l2 / (kc*s)) // mr, 1) * mr for share in (0.25, 0.4, 0.66)}
        if shape.threads > 2:
            blocks |= {4 * mr, 6 * mr, 8 * mr}          # several for each thread to claim
        for mc in sorted({min(mc, _up(shape.m, mr)) for mc in blocks}):
            l3 = target.l3 or 4 * target.l2
            for ways in splits(shape.threads):
                found = CpuPlan("packed", mr, nr, mc, kc, nr, *ways)
                most = int(l3 / (4 if found.claims else 2) / ways[0] / (kc*s))     # who claims has two blocks of B
                yield replace(found, nc=min(max(most // nr, 1) * nr, _up(shape.n, nr)))


def in_place_plans(shape: Shape, mr: int, nr: int, kc: int) -> Iterator[CpuPlan]:
    for jc, ic, jr in splits(shape.threads):
        if jr == 1:
            yield CpuPlan("in_place", mr, nr, kc=kc, jc_ways=jc, ic_ways=ic)


def stays_in_cache(shape: Shape, target: CpuTarget) -> bool:
    """Small and readable in place: what the emitted builtin takes without asking anyone."""
    m, n, k = shape.m, shape.n, shape.k
    return (shape.b == "rows" and shape.a != "any" and not shape.converts
            and max(m * k, k * n, m * n) <= small_elements(shape.dtype, target))


def small_elements(dtype: str, target: CpuTarget) -> int:
    """The most elements of A, B or C that are multiplied in place and without choosing."""
    return min(int(SMALL_SHARE * target.l2), SMALL_BYTES) // ITEMSIZE[dtype]


def splits(threads: int) -> Iterator[tuple[int, int, int]]:
    """Every (jc, ic, jr) with that many threads, and one thread alone: a small problem is not worth waking others."""
    yield 1, 1, 1
    if threads > 1:
        for jc in _divisors(threads):
            for ic in _divisors(threads // jc):
                yield jc, ic, threads // jc // ic


def _divisors(n: int) -> list[int]:
    small = [x for x in range(1, isqrt(n) + 1) if n % x == 0]
    return sorted({*small, *(n // x for x in small)})


def _up(x: int, multiple: int) -> int:
    return max(ceil(x / multiple), 1) * multiple
