"""Candidates of plans for few rows or columns, by gemv, and for batches of small matrices, by small."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil, lcm

from tilewright.plans import gemv_rules
from tilewright.plans.gemv_rules import LANES, WARPS as GEMV_WARPS
from tilewright.plans.gpu_shape import WIDEST, GpuShape, bits_of
from tilewright.plans.nvidia_plan import NvidiaPlan
from tilewright.plans.small_rules import FORMATS, TEAMS, Lanes, of_shape, whole_sectors
from tilewright.targets.nvidia import GpuTarget

SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32)
# Of gemv: lanes that have different elements of C, threads of a CTA, CTAs of a multiprocessor; elements of C of a row
# and warps of a CTA by matrix instructions.
ACROSS, ACROSS_THREADS, ACROSS_CTAS = (32, 8, 16, 4), (256, 512, 1024), (1, 2, 3, 4)
BY_MATRICES = (16, 8), (16, 16)
WIDE_BY_MATRICES = ((32, 8),)           # besides with a prologue: vectors are read half as often
# The same by copies in flight: (elements, warps, stages), of weights that were measured to gain by them.
BY_COPIES, BY_COPIES_WIDE = ((32, 4, 2),), ((112, 4, 1),)
MOST_VECTORS = 16
PREPARED_VECTOR = 8     # elements of several vectors' sums in a lane, where runs of k have sums of their own

# Of small: words of a thread's sums; bytes of the A and B of a team, about; tiles that are offered, and as many of the
# smaller ones that follow, each fourth.
MOST_SUMS, BYTES, TILES, LATER = 64, (1536, 4096), 8, 4


def whole_vectors(shape: GpuShape) -> bool:
    return all(vector*bits == 8*WIDEST for vector, bits in zip((shape.vector_a, shape.vector_b), shape.bits))


def few_rows(shape: GpuShape, target: GpuTarget) -> Iterator[NvidiaPlan]:
    """Plans for a few rows or columns of C, by the elements of each that a CTA has, and its warps; the first of each
    kind also with parts of k."""
    vectors, vector, kinds = min(shape.m, shape.n), gemv_rules.vector(shape), []
    count = 1 << (vectors - 1).bit_length()
    if shape.prologues and not gemv_rules.along_k(shape):
        vector = min(vector, PREPARED_VECTOR * (1 + (count == 1)))
    tiles = [*_across(shape, target, vector)]
    if gemv_rules.along_k(shape):       # several rows of a warp share what is done with the vector
        tiles = [(own*count*GEMV_WARPS, GEMV_WARPS) for own in ((1, 2, 4) if shape.prologues and count == 1 else (1,))]
    if shape.a in gemv_rules.BY_CORES and vectors <= (1 if bits_of(shape.a) == 16 else 4):
        kinds.append([(count, *tile) for tile in tiles])
    if shape.a in target.matrix_rates and vectors <= MOST_VECTORS and whole_vectors(shape) and shape.layout == "nt":
        wide = WIDE_BY_MATRICES if shape.prologues else ()
        by_matrices = max(count, gemv_rules.MATRIX)
        kinds.append([(by_matrices, *tile) for tile in (*BY_MATRICES, *wide)])
        if shape.prologues and "cp.async" in target.instructions:
            few = BY_COPIES if gemv_rules.stored_bits(shape) < 8 else ()
            for width, warps, stages in few if by_matrices == gemv_rules.MATRIX else BY_COPIES_WIDE:
                m, n = (width, by_matrices) if gemv_rules.few_columns(shape) else (by_matrices, width)
                yield NvidiaPlan("gemv", m, n, warps, stages=stages, vector=vector)
    for kind in kinds:
        for count, width, warps in kind:
            m, n = (width, count) if gemv_rules.few_columns(shape) else (count, width)
            plan = NvidiaPlan("gemv", m, n, warps, stages=2, copy="registers", vector=vector,
                              vector_b=gemv_rules.beside(shape, count))
            splits = SPLITS if (count, width, warps) == kind[0] else (1,)
            plan.resident(shape, target)            # of all that follow
            yield from [plan.varied(split_k=split) for split in splits if split == 1 or split*GEMV_WARPS <= shape.k]


def _across(shape: GpuShape, target: GpuTarget, vector: int) -> Iterator[tuple[int, int]]:
    """(Elements of C of a row, warps) of a CTA of gemv, where the matrix has not k contiguous: with lanes side by side
    that are as many as give each multiprocessor so many CTAs, too."""
    lanes = ceil(max(shape.m, shape.n) / vector) * shape.batch
    even = {2 * ceil(lanes / (2*target.sms*ctas)) for ctas in ACROSS_CTAS}
    for side in dict.fromkeys((*ACROSS, *sorted(even))):
        unit = lcm(LANES, side*vector)
        if side <= LANES:
            yield from ((side*vector, most // unit * unit // LANES) for most in ACROSS_THREADS if unit <= most)


def small_batches(shape: GpuShape, target: GpuTarget) -> Iterator[NvidiaPlan]:
    """Plans for batches of small matrices, by the tiles of threads that load the least."""
    s, words = shape, FORMATS.get(shape.a, 1)
    a, b, c = (1 << (x.bit_length() - 1) for x in (s.vector_a, s.vector_b, s.vector_c))
    tiles = _tiles(s.m, s.n, words)
    for team, (thread_m, thread_n) in product(TEAMS, [*tiles[:TILES], *tiles[TILES::LATER][:TILES]]):
        of = Lanes(LANES*team, ceil(s.m / thread_m), ceil(s.n / thread_n))
        if team > 1 and of.EACH <= LANES:
            continue
        bytes_of_matrix = of.TOGETHER * (s.m + s.n) * s.k * 4*words
        for matrices in sorted({of.TOGETHER * max(round(size / bytes_of_matrix), 1) for size in BYTES}):
            plan = NvidiaPlan("small", s.m, s.n, s.k, thread_m=thread_m, thread_n=thread_n, stages=1,
                              copy="async" if "cp.async" in target.instructions else "registers", vector=a,
                              vector_b=b if b != a else 0, vector_c=c if c != a else 0, matrices=matrices, team=team)
            yield plan
            if not list(of_shape(s)) and not whole_sectors(plan, s):
                yield replace(plan, store="smem")


def _tiles(m: int, n: int, words: int) -> list[tuple[int, int]]:
    """Rows and columns of a thread, those that load the least first."""
    tiles = []
    for down, across in product(range(1, 33), repeat=2):
        thread_m, thread_n = ceil(m / down), ceil(n / across)
        if (ceil(m / thread_m), ceil(n / thread_n)) != (down, across) or thread_m*thread_n*words > MOST_SUMS:
            continue
        of = Lanes(LANES, down, across)
        used = m*n / (thread_m*thread_n * LANES*of.PARTS / of.TOGETHER)              # of what lanes have
        tiles.append(((1/thread_m + 1/thread_n) / used, thread_m, thread_n))
    return [(thread_m, thread_n) for _, thread_m, thread_n in sorted(tiles)]
