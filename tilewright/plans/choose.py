"""candidates → legal → cost → min: the plan for a product on a CPU, by the model of the caches.

Candidates are made from register tiles (plans/cpu_tiles.py), blocks for the caches and divisions among threads.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil, isqrt

from tilewright.plans import common, few_rows, invariant, prologues, semirings
from tilewright.plans.builtin import small_elements, small_way, stays_in_cache
from tilewright.plans.cpu import MOST_COPIED, PARTS, SHORT, CpuPlan, widens
from tilewright.plans.cpu_shape import Shape, few_complex
from tilewright.plans.cpu_tiles import (
    COMPLEX_ROW,
    COMPLEX_TILES,
    DEEP,
    DEEPEST,
    DOT_ROWS,
    DOT_TILES,
    FEW_COLUMNS,
    FEW_ROWS,
    FEWEST_TILED,
    MOST_COLUMNS,
    MOST_IN_BLOCKS,
    MOST_ROWS,
    STREAM_DEPTH,
    STREAMED,
    TALLEST,
    TILES,
    packed_tiles,
    tiles_in_blocks,
    tiles_of,
)
from tilewright.plans.model import CHANNELS, FIRST_TLB, NARROW, PAGE, Ceilings, cost
from tilewright.plans.words import BYTE_ROWS, BYTES, DOTS_LARGE, DOTS_MOST, GROUP, SIDE, TILE_WORDS
from tilewright.targets.cpu import CpuTarget

TEAM_WORK = 3_000_000       # operations, below which waking the members of a team takes longer than they save
SHARE = 0.5             # of L2, for a block of AMX's A; a panel of B, the next one, and C pass by
STEPS = 2048            # of k in a block of AMX, for bf16 or bytes: C is read and written once per block
TILE_DEPTHS = 512, 256, 192, 128        # and rows of panels, of the last of which L1 holds two
SPLIT_STEPS = 512       # where elements have several terms: error grows with the steps of a block
DEEPEST_COMPLEX = 512   # steps of k in a block of a complex product's reals


@lru_cache(maxsize=4096)
def choose(shape: Shape, target: CpuTarget, like: CpuPlan | None = None) -> CpuPlan:
    """The legal candidate with the least predicted time, but of what the emitted builtin multiplies the one that it
    takes, and of rows of complex numbers one that packs nothing; `like` as in `candidates`."""
    if shape.m == 0 or shape.n == 0 or shape.k == 0:
        mr, vectors = tiles_of(target, TILES)[0]
        return CpuPlan("in_place", mr, vectors * target.lanes(shape.itemsize))
    plans = ranked(shape, target, like=like)
    if like is None and not shape.invariant and stays_in_cache(shape, target):      # the builtin, which asks no planner
        return next(p for p in plans if (p.algorithm, p.swap) == small_way(shape))
    if like is None and few_rows.matrix(shape):
        return next((p for p in plans if p.word), plans[0])
    if like is None and shape.complex:                  # packing is no better where another plan reads them in place
        return next((p for p in plans if p.complex_row(shape) or p.complex_in_place(shape)), plans[0])
    return plans[0]


def ranked(shape: Shape, target: CpuTarget, ceilings: Ceilings | None = None, tiles: int = 1,
           like: CpuPlan | None = None) -> list[CpuPlan]:
    """All legal candidates, the one with the least predicted time first. NoPlan if there is none."""
    return common.ranked(shape, target, candidates(shape, target, tiles, like),
                         lambda p: cost(shape, p, target, ceilings).seconds)


def candidates(shape: Shape, target: CpuTarget, tiles: int = 1, like: CpuPlan | None = None) -> Iterator[CpuPlan]:
    """Plans worth a look, legal or not, for the first `tiles` register tiles.

    like        the plan for which B's panels were packed before: then what panels depend on is as there
    """
    def free(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
        yield from few_row_plans(shape, target)
        if shape.tiles:
            yield from tile_plans(shape, target)
        elif shape.complex:
            yield from complex_plans(shape, target)
        elif shape.semiring:
            yield from semiring_plans(shape, target)
        elif shape.converts or shape.scattered:
            yield from converting_plans(shape, target)
        else:
            yield from plain_plans(shape, target, tiles)

    if like is not None:
        yield from prepacked_plans(shape, target, like)
    elif shape.invariant:
        yield from invariant.plans(shape, target, free, cost)
    else:
        yield from free(shape, target)


def plain_plans(shape: Shape, target: CpuTarget, tiles: int) -> Iterator[CpuPlan]:
    """Where operands and C are in the format of the sums, and may be read in place."""
    lanes = target.lanes(shape.itemsize)
    in_cache = stays_in_cache(shape, target)
    if (STREAMED < shape.m <= MOST_ROWS * 3 and shape.threads > CHANNELS and shape.b == "rows" and not shape.invariant
            and shape.k * shape.n * shape.itemsize > max(target.l3, target.l2) // 2):
        for mr, vectors, _ in tiles_of(target, FEW_ROWS)[-1:]:
            yield narrow_plan(shape, target, mr, vectors * lanes)
        return
    for mr, vectors in packed_tiles(target)[:tiles]:
        yield from packed_plans(shape, target, mr, vectors * lanes)
    if shape.threads > 2 and shape.itemsize == 8:
        for mr, vectors in tiles_of(target, DEEP):
            yield from packed_plans(shape, target, mr, vectors * lanes, (1024, DEEPEST))
    if shape.k <= SHORT or max(shape.m, shape.n) * shape.k <= small_elements(shape.dtype, target, shape.a):
        for mr, vectors in tiles_of(target, TILES)[:tiles]:
            for p in in_place_plans(shape, mr, vectors * lanes, 0):
                yield replace(p, copy=in_cache and shape.b == "columns")
        for mr, vectors, _ in tiles_of(target, FEW_ROWS)[:1] if not in_cache else ():
            yield from in_place_plans(shape, mr, vectors * lanes, 0)
    if not in_cache and shape.b == "rows" and MOST_ROWS < min(shape.m, shape.n) <= MOST_IN_BLOCKS:
        for mr, vectors, kc in tiles_in_blocks(target):
            yield from in_place_plans(shape, mr, vectors * lanes, kc)
    if not in_cache:
        for mr, vectors, _ in tiles_of(target, FEW_ROWS)[-1:]:
            if shape.m <= MOST_ROWS * 3 or shape.k <= 2 * SHORT:
                yield from packed_plans(shape, target, mr, vectors * lanes)
    if not in_cache or small_way(shape)[0] != "in_place":
        for s, swap in (shape, False), (shape.swapped, True):
            for p in skinny_plans(s, target):
                if s.n <= MOST_COLUMNS and s.b != p.reads_b and not p.by_rows(s):
                    p = replace(p, copy=True)
                yield replace(p, swap=swap)


def converting_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """Where packing brings operands into the format that is multiplied, or goes by tables: both have to be packed.

    Threads have rows or columns of their own: two that share a block of A wait for each other before and after each,
    for which two threads of a Zen 5 took 1.06 to 1.08 of the time for f16.
    """
    if widens(shape) and shape.invariant not in invariant.ROWS:
        for s, swap in (shape, False), (shape.swapped, True):
            yield from (replace(p, swap=swap) for p in dot_plans(s, target)
                        if p.widens(s) and (s.n == 1 or not p.copy))            # a copy of a column has a record
    lanes = target.lanes(shape.itemsize)
    tiles = {*packed_tiles(target)[:1], *((mr, vectors) for mr, vectors, _ in tiles_of(target, FEW_ROWS)[-1:])}
    if shape.a == "scattered rows":         # convolutions of 32 to 128 channels on a Zen 4: 0.90 to 0.98 of the time
        tiles |= {*tiles_of(target, TILES)[:1]}
    if shape.words:
        tiles |= {*tiles_of(target, TILES)[:1], *((mr, vectors) for mr, vectors, _ in tiles_of(target, FEW_ROWS))}
    if shape.dtype == "i16x2":                  # a product and its sum are two instructions on some chips: one register
        tiles = {(mr, vectors) for mr, vectors in tiles if mr*vectors + vectors + 2 <= target.tile_registers}
    for mr, vectors in sorted(tiles):
        yield from (p for p in packed_plans(shape, target, mr, vectors * lanes) if p.jr_ways == 1)
    if shape.dtype in BYTES and not (shape.invariant or shape.prologues):
        for s, swap in (shape, False), (shape.swapped, True):
            yield from (replace(p, swap=swap) for p in byte_dots(s, target))
    if shape.prologues and shape.dtype == "f32":
        for s, swap in (shape, False), (shape.swapped, True):
            others = skinny_plans if not prologues.weights(s.prologue_b or s.prologue_a) else weight_plans
            yield from (replace(p, swap=swap) for p in others(s, target) if p.algorithm in ("stream", "dots"))


def weight_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """Weights that are read once, [k, n] or the rows of A."""
    for threads in {1, shape.threads}:
        if shape.m <= prologues.MOST and shape.prologue_b:
            yield CpuPlan("stream", shape.m, few_rows.DEPTH, jc_ways=threads)
        if shape.n <= prologues.MOST and shape.prologue_a:
            rows = next(rows for n, rows in tiles_of(target, few_rows.HEIGHTS) if shape.n <= n)
            yield CpuPlan("dots", min(rows, shape.m), shape.n, ic_ways=min(threads, shape.m))


def few_row_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """Plans for few rows by a large matrix, by the fastest instruction, if there is one."""
    word, kc = few_rows.instruction(shape, target)
    by_registers = word == "f32" or (word == "bf16x2" and not kc and bool(shape.prologue_b))
    for threads in () if not word else {1, shape.threads} if by_registers else {shape.threads}:
        if shape.b == "rows":
            yield CpuPlan("stream", shape.m, few_rows.DEPTH if by_registers else 1, jc_ways=threads, word=word)
        else:
            rows = next(rows for n, rows in tiles_of(target, few_rows.HEIGHTS) if shape.m <= n) if by_registers else 1
            ways = min(threads, shape.n) if by_registers else threads
            yield CpuPlan("dots", min(rows, shape.n), shape.m, kc=kc, ic_ways=ways, swap=True, word=word)


def byte_dots(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """For rows of bytes that are read once, and few columns that stay in L2."""
    size, rows = shape.m * (shape.depth or shape.k), BYTE_ROWS.get(target.tile_registers)
    if (rows and size >= DOTS_LARGE and shape.n <= DOTS_MOST and shape.n * shape.depth <= target.l2 // 2
            and (shape.a, shape.b) == ("rows", "columns")):
        for threads in {1, shape.threads}:
            yield CpuPlan("dots", min(rows, shape.m), shape.n, ic_ways=min(threads, shape.m))


def semiring_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """Packed, with as large tiles as leave registers for the terms. On a Zen 3 squared distances took 1.35 times as
    long as a matrix product with tiles of 5x16, and 1.6 times as long with 6x16 and 13x8."""
    def fits(mr: int, vectors: int) -> bool:
        return semirings.registers(shape.semiring, mr, vectors) <= target.tile_registers
    for vectors in (2, 3) if fits(2, 2) else (1,):
        mr = TALLEST
        while mr > 1 and not fits(mr, vectors):
            mr -= 1
        yield from [p for p in packed_plans(shape, target, mr, vectors * target.lanes(shape.itemsize))
                    if p.jr_ways == 1]


def complex_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """For the real product of complex operands: packed, and A's block in half of L2. On a Zen 5, c64 took 0.97 of the
    time with 9x48, mc = 198 and kc = 512 that it took with 162 and 1024 at n = 1024."""
    if shape.complex_row:
        yield from complex_row_plans(shape, target)
    few = shape.m <= MOST_ROWS * 3 or shape.k <= 2 * SHORT
    tiles = {*packed_tiles(target)[:1], *((mr, vectors) for mr, vectors, _ in tiles_of(target, FEW_ROWS)[-1:] if few)}
    lanes = target.lanes(shape.itemsize)
    if few_complex(shape.m, shape.n // 2, shape.k // 2):
        yield from complex_in_place_plans(shape, target)
    for mr, vectors in sorted(tiles):
        yield from (p for p in packed_plans(shape, target, mr, vectors * lanes)
                    if p.kc <= DEEPEST_COMPLEX and p.mc*p.kc*shape.itemsize <= target.l2 // 2 and p.jr_ways == 1)


def complex_row_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """For a row of complex numbers: by rows of B if these are contiguous, else by columns."""
    most, many, together = tiles_of(target, COMPLEX_ROW)
    numbers = shape.n // 2
    by_rows = shape.b == "rows" and numbers > 1
    columns = numbers if numbers <= most else many
    for threads in {1, shape.threads}:
        if by_rows:
            yield CpuPlan("stream", 1, together,
                          jc_ways=min(threads, ceil(shape.n / (together * target.lanes(shape.itemsize)))))
        else:
            yield CpuPlan("dots", 1, columns, jc_ways=min(threads, ceil(numbers / columns)))


def complex_in_place_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """For few rows or columns: panels of C as wide as there are registers, in equal parts, as are groups of rows.
    Threads have columns of their own, or rows where these are more."""
    lanes = target.lanes(shape.itemsize)
    across = ceil(shape.n / lanes)
    most = tiles_of(target, COMPLEX_TILES)
    vectors = ceil(across / ceil(across / most[0][1]))
    mr = ceil(shape.m / ceil(shape.m / next(rows for rows, wide in most if wide == vectors)))
    nr = vectors * lanes if across > 1 else 1 << (shape.n - 1).bit_length()
    for threads in {1, shape.threads}:
        rows, columns = min(threads, ceil(shape.m / mr)), min(threads, ceil(shape.n / nr))
        wide = columns >= rows
        yield CpuPlan("in_place", mr, nr, jc_ways=columns if wide else 1, ic_ways=1 if wide else rows)


def prepacked_plans(shape: Shape, target: CpuTarget, like: CpuPlan) -> Iterator[CpuPlan]:
    """For a B whose panels were packed before for the plan `like`, and another m or number of threads. No thread packs
    B, so that threads have rows or columns of their own."""
    if 2*shape.m*shape.n*shape.k < TEAM_WORK:
        shape = shape._replace(threads=1)
    if shape.tiles:
        yield from (replace(p, kc=like.kc) for p in tile_plans(shape, target))
        return
    inner = shape.swapped if like.swap else shape
    panels_m, panels_n = ceil(inner.m / like.mr), ceil(inner.n / like.nr)
    for p in packed_plans(inner, target, like.mr, like.nr, (like.kc,)):
        if p.jr_ways == 1 and p.ic_ways <= panels_m and p.jc_ways <= panels_n:
            yield replace(p, kc=like.kc, swap=like.swap)


def tile_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """Blocks for a product by AMX's tiles; shape.k counts rows of B's panels. Threads claim blocks of A, or have rows
    and columns of C of their own, or one does it all. The operands change places in the five loops: a block of B stays
    in L2, panels of A pass by, and the tiles of C follow each other along its rows, in whole lines and few pages."""
    shape = shape.swapped
    word = TILE_WORDS[shape.dtype]
    steps, depths = (STEPS, TILE_DEPTHS) if word.terms == 1 else (SPLIT_STEPS, ())
    most = steps // (GROUP * word.steps) * word.rows
    ic = min(shape.threads, -(-shape.m // SIDE))
    for blocks in sorted({-(-shape.k // min(x, most)) for x in (most, *depths)}):
        kc = -(-shape.k // (blocks * word.rows)) * word.rows
        mc = max(int(SHARE * target.l2) // (4 * kc) // SIDE, 1) * SIDE
        if ic > 2:                                          # blocks are claimed: eight pieces for each thread
            mc = min(mc, max(PARTS * shape.m // (8 * ic) // SIDE, 1) * SIDE)
        nc = max((target.l3 or 4 * target.l2) // 2 // (4 * kc) // SIDE, 1) * SIDE
        plan = CpuPlan("packed", SIDE, SIDE, min(mc, _up(shape.m, SIDE)), kc, min(nc, _up(shape.n, SIDE)), ic_ways=ic,
                       swap=True)
        yield from dict.fromkeys((plan, replace(plan, ic_ways=1)))
        if shape.threads > 1:
            yield from (replace(plan, ic_ways=rows, jc_ways=columns, own_b=rows > 1) for rows, columns in
                        grids(shape, SIDE, SIDE))


def skinny_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """For one large operand that is read once in place, and another that stays in cache."""
    lanes = target.lanes(shape.itemsize)
    if shape.m <= MOST_ROWS:
        for mr, vectors, kc in tiles_of(target, FEW_ROWS):
            yield from in_place_plans(shape, mr, vectors * lanes, kc)
    if shape.n <= MOST_COLUMNS and shape.a == "rows":
        for mr, vectors in tiles_of(target, FEW_COLUMNS):
            row = shape.n * shape.itemsize
            kc, near = target.l2 // row, (FIRST_TLB - 2*mr) * PAGE // row // 64 * 64    # rows of B in few pages
            for depth in [0 if kc >= shape.k else max(kc // 2, 64), *[near] * (row <= NARROW and near < shape.k)]:
                yield from in_place_plans(shape, mr, vectors * lanes, depth)
    if shape.m in (depths := dict(tiles_of(target, STREAM_DEPTH))):
        for threads in {1, shape.threads}:
            yield CpuPlan("stream", shape.m, depths[shape.m], jc_ways=threads)
    yield from dot_plans(shape, target)


def dot_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """Dot products: by tiles, or else for few columns, and for few rows and columns by rows of B."""
    yield from (tiles := [*dot_tile_plans(shape, target)])
    if tiles:
        return
    by_rows = CpuPlan("dots", shape.m, shape.n)
    few = by_rows.by_rows(shape) and (shape.n > 1 or shape.a != "rows" or
                                      (shape.m == 1 and (shape.depth or shape.k) > MOST_COPIED))
    if few:
        yield by_rows
    if shape.n in (heights := dict(tiles_of(target, DOT_ROWS))) and not few:
        rows = ceil(shape.m / ceil(shape.m / heights[shape.n]))
        for threads in {1, shape.threads}:
            yield CpuPlan("dots", rows, shape.n, ic_ways=min(threads, shape.m),
                          copy=shape.b != "columns" and not shape.prologues)


def dot_tile_plans(shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """Dot products by tiles where k is contiguous in both operands: all of k at once, or equal parts of it for which
    B's columns, of which there are fewer than rows of A, stay in cache. On a Zen 4 L3 is near enough: 166 x 896 x 1771
    in f64 took 0.91 of the time of three parts that fit L2."""
    size = shape.n * shape.k * shape.itemsize
    room = target.l3 // 8 if target.model.startswith("AMD") else SHARE * target.l2
    unfit = min(shape.m, shape.n) < FEWEST_TILED or (shape.n > shape.m and size > SHARE * target.l2)
    if unfit or (shape.a, shape.b) != ("rows", "columns") or not CpuPlan.takes_dot_tiles(shape):
        return
    lanes = target.lanes(shape.itemsize)
    kc = _up(ceil(shape.k / ceil(size / room)), lanes)
    for mr, nr in tiles_of(target, DOT_TILES):
        in_l1 = target.l1d // ((mr + 2*nr) * shape.itemsize) // lanes * lanes
        for depth in sorted({kc, min(kc, in_l1)}, reverse=True):
            yield from (replace(p, algorithm="dots") for p in in_place_plans(shape, mr, nr, depth))


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
                plan = CpuPlan("packed", mr, nr, mc, kc, nr, *ways)
                most = int(l3 / (4 if plan.claims else 2) / ways[0] / (kc*s))      # two blocks of B, with claims
                yield replace(plan, nc=min(max(most // nr, 1) * nr, _up(shape.n, nr)))
        if shape.threads > 2:
            mc = max(int(SHARE * target.l2 / (kc*s)) // mr, 1) * mr
            nc = max((target.l3 or 4 * target.l2) // 2 // shape.threads // (kc*s) // nr, 1) * nr
            for rows, columns in grids(shape, mr, nr):
                yield CpuPlan("packed", mr, nr, min(mc, _up(shape.m, mr)), kc, min(nc, _up(shape.n, nr)), columns, rows,
                              own_b=rows > 1)


def grids(shape: Shape, mr: int, nr: int) -> Iterator[tuple[int, int]]:
    """Threads over rows and over columns of C, each with a block of its own: all of them, half and a quarter."""
    high, wide = ceil(shape.m / mr), ceil(shape.n / nr)
    for threads in sorted({shape.threads, shape.threads // 2, shape.threads // 4}):
        yield from ((rows, threads // rows) for rows in _divisors(threads) if rows <= high and threads // rows <= wide)


def narrow_plan(shape: Shape, target: CpuTarget, mr: int, nr: int) -> CpuPlan:
    """For few rows on many threads, which wait for memory: panels of B that are a third of L1, or two thirds where they
    are used by more rows, and as many of them as a page has columns for. On 16 vCPUs of a Xeon m x 14336 x 4096 had 0.9
    to 1.3 of MKL's rate for m = 8 ... 128, in f64 and f32, and 0.55 to 1.1 in place or by deep panels."""
    thirds = 1 if shape.itemsize == 8 or shape.m <= MOST_ROWS // 2 else 2
    kc = max(thirds * target.l1d // (3 * nr * shape.itemsize) // 32 * 32, 32)
    nc = max(PAGE // shape.itemsize // nr, 1) * nr
    return CpuPlan("packed", mr, nr, _up(shape.m, mr), min(kc, _up(shape.k, 4)), min(nc, _up(shape.n, nr)),
                   jc_ways=shape.threads)


def in_place_plans(shape: Shape, mr: int, nr: int, kc: int) -> Iterator[CpuPlan]:
    for threads in sorted({shape.threads, ceil(shape.threads / 2), ceil(shape.threads / 4), 1}):
        for jc in _divisors(threads):
            yield CpuPlan("in_place", mr, nr, kc=kc, jc_ways=jc, ic_ways=threads // jc)


def splits(threads: int) -> list[tuple[int, int, int]]:
    """Every (jc, ic, jr) with that many threads, and one thread alone: a small problem is not worth waking others."""
    if threads == 1:
        return [(1, 1, 1)]
    return [(1, 1, 1), *((jc, ic, threads // jc // ic) for jc in _divisors(threads) for ic in _divisors(threads // jc))]


def _divisors(n: int) -> list[int]:
    return sorted({y for x in range(1, isqrt(n) + 1) if n % x == 0 for y in (x, n // x)})


def _up(x: int, multiple: int) -> int:
    return max(ceil(x / multiple), 1) * multiple
