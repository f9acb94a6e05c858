"""candidates → legal → cost → min: the plan for a problem, by the model of the caches."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil, isqrt
from typing import TYPE_CHECKING, Any

from tilewright.plans import asked
from tilewright.plans.amx import choose_tiles
from tilewright.plans.cpu import ITEMSIZE, CpuPlan, Order, Shape
from tilewright.plans.model import Ceilings, cost, packing_words
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
from tilewright.plans.words import BY_NAME
from tilewright.targets import coerce
from tilewright.targets.amd import AmdTarget
from tilewright.targets.base import CpuTarget
from tilewright.targets.machine import thread_count
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.problem import Gemm

TEAM_WORK = 3_000_000       # operations, below which waking the members of a team takes longer than they save
SMALL_SHARE, SMALL_BYTES = 0.57, 600_000     # of L2, and at most so much, for one operand: reading in place is fastest


def plan(problem: Gemm | Shape, target: Any = None, threads: int = 1) -> Any:
    """The plan that the model expects to be fastest: a CpuPlan, or for a GPU's target a NvidiaPlan or AmdPlan.

    target      a record, or the name of one: "x86-avx2", "sm_90a", "gfx950"; by default this machine's processor

    TypeError for anything but a Gemm. ValueError for formats that the target has no kernels for, or if no plan fits,
    with the reasons.
    """
    chip = coerce(target)
    if isinstance(problem, Shape):
        return choose(problem, coerce(chip, CpuTarget))
    asked.problem(problem)
    if isinstance(chip, AmdTarget):
        from tilewright.plans import amd
        return amd.choose(amd.shape_of(problem), chip)
    if isinstance(chip, GpuTarget):
        from tilewright.plans import nvidia
        return nvidia.choose(nvidia.shape_of(problem), chip)
    asked.supported(problem, chip.name)
    return choose(shape_of(problem, threads), chip)


def shape_of(problem: Any, threads: int = 1) -> Shape:
    """A Gemm with contiguous operands, as the planner sees it. A vector has both orders: it counts as rows."""
    def order(letter: str, rows: int, cols: int) -> Order:
        return "rows" if letter == "n" or 1 in (rows, cols) else "columns"
    problem, threads = asked.supported(problem, "a CPU"), thread_count(threads)
    m, n, k = problem.m, problem.n, problem.k
    return Shape(problem.compute, m, n, k, order(problem.layout[0], m, k), order(problem.layout[1], k, n), threads)


@lru_cache(maxsize=4096)
def choose(shape: Shape, target: CpuTarget) -> CpuPlan:
    if shape.m == 0 or shape.n == 0 or shape.k == 0:
        mr, vectors = tiles_of(target, TILES)[0]
        return CpuPlan("in_place", mr, vectors * target.lanes(shape.itemsize))
    return ranked(shape, target)[0]


@lru_cache(maxsize=4096)
def choose_converting(shape: Shape, target: CpuTarget) -> CpuPlan:
    """Where packing brings operands into the format that is multiplied, so that both have to be packed.

    Threads have rows or columns of their own: two that share a block of A wait for each other before and after each,
    for which two threads of a Zen 5 took 1.06 to 1.08 of the time for f16.
    """
    lanes = target.lanes(shape.itemsize)
    tiles = {*packed_tiles(target)[:1], *((mr, vectors) for mr, vectors, _ in tiles_of(target, FEW_ROWS)[-1:])}
    if shape.dtype in BY_NAME:
        tiles |= {*tiles_of(target, TILES)[:1], *((mr, vectors) for mr, vectors, _ in tiles_of(target, FEW_ROWS))}
    if shape.dtype == "i16x2":                  # a product and its sum are two instructions on some chips: one register
        tiles = {(mr, vectors) for mr, vectors in tiles if mr*vectors + vectors + 2 <= target.tile_registers}
    plans = [p for mr, vectors in sorted(tiles) for p in packed_plans(shape, target, mr, vectors * lanes)
             if p.jr_ways == 1 and not p.violations(shape, target)]
    if shape.dtype in BY_NAME:
        return min(plans, key=lambda p: cost(shape, p, target).seconds + packing_words(shape, p, target))
    return min(plans, key=lambda p: cost(shape, p, target).seconds)


@lru_cache(maxsize=4096)
def choose_complex(shape: Shape, target: CpuTarget) -> CpuPlan:
    """For the real product of complex operands: packed, no deeper than 512 steps, and A's block in half of L2. On a
    Zen 5, c64 took 0.97 of the time with 9x48, mc = 198 and kc = 512 that it took with 162 and 1024 at n = 1024."""
    few = shape.m <= MOST_ROWS * 3 or shape.k <= 2 * SHORT
    tiles = {*packed_tiles(target)[:1], *((mr, vectors) for mr, vectors, _ in tiles_of(target, FEW_ROWS)[-1:] if few)}
    lanes = target.lanes(shape.itemsize)
    plans = [p for mr, vectors in sorted(tiles) for p in packed_plans(shape, target, mr, vectors * lanes)
             if p.kc <= 512 and p.mc*p.kc*shape.itemsize <= target.l2 // 2 and p.jr_ways == 1]
    plans = [p for p in plans if not p.violations(shape, target)]
    return min(plans, key=lambda p: cost(shape, p, target).seconds)


@lru_cache(maxsize=4096)
def choose_prepacked(shape: Shape, target: CpuTarget, like: CpuPlan) -> CpuPlan:
    """For a B whose panels were packed before for the plan `like`, and another m or number of threads: what B's panels
    do not depend on. Nobody packs them, so that threads have rows or columns of their own."""
    if 2*shape.m*shape.n*shape.k < TEAM_WORK:
        shape = shape._replace(threads=1)
    if shape.tiles:
        return replace(choose_tiles(shape, target), kc=like.kc)
    turned = shape.swapped if like.swap else shape
    panels_m, panels_n = ceil(turned.m / like.mr), ceil(turned.n / like.nr)
    plans = [p for p in packed_plans(turned, target, like.mr, like.nr, (like.kc,))
             if p.jr_ways == 1 and p.ic_ways <= panels_m and p.jc_ways <= panels_n]
    return replace(min(plans, key=lambda p: cost(turned, p, target).seconds), kc=like.kc, swap=like.swap)


def ranked(shape: Shape, target: CpuTarget, ceilings: Ceilings | None = None, tiles: int = 1) -> list[CpuPlan]:
    """All legal candidates, the one with the least predicted time first."""
    legal = [p for p in dict.fromkeys(candidates(shape, target, tiles)) if not p.violations(shape, target)]
    if not legal:
        raise ValueError(f"no plan for {shape} on {target.name}")
    return sorted(legal, key=lambda p: cost(shape, p, target, ceilings).seconds)


def candidates(shape: Shape, target: CpuTarget, tiles: int = 1) -> Iterator[CpuPlan]:
    """Plans worth a look, legal or not, for the first `tiles` register tiles."""
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
        blocks = {max(int(share * target.l2 / (kc*s)) // mr, 1) * mr for share in (0.4, 0.66)}
        if shape.threads > 2:
            blocks |= {4 * mr, 6 * mr, 8 * mr}          # several for each thread to claim
        for mc in sorted({min(mc, _up(shape.m, mr)) for mc in blocks}):
            l3 = target.l3 or 4 * target.l2
            for ways in splits(shape.threads):
                nc = max(int(l3 / 2 / ways[0] / (kc*s)) // nr, 1) * nr
                yield CpuPlan("packed", mr, nr, mc, kc, min(nc, _up(shape.n, nr)), *ways)


def in_place_plans(shape: Shape, mr: int, nr: int, kc: int) -> Iterator[CpuPlan]:
    for jc, ic, jr in splits(shape.threads):
        if jr == 1:
            yield CpuPlan("in_place", mr, nr, kc=kc, jc_ways=jc, ic_ways=ic)


def stays_in_cache(shape: Shape, target: CpuTarget) -> bool:
    """Small and readable in place: what the emitted builtin takes without asking anyone."""
    m, n, k = shape.m, shape.n, shape.k
    return (shape.b == "rows" and shape.a != "any"
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
