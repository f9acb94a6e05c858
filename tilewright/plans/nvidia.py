"""How a GEMM runs on a GPU of NVIDIA's: what is multiplied, and the plans among which a model chooses
(plans/nvidia_plan.py, plans/nvidia_model.py)."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from tilewright.plans import epilogues, gpu_shape, nvidia_few, passes, semirings, small_rules, wgmma_candidates
from tilewright.plans.common import NoPlan
from tilewright.plans.gemv_rules import LANES
from tilewright.plans.gpu import choose, ranked
from tilewright.plans.gpu_formats import FP8
from tilewright.plans.gpu_shape import WIDEST, GpuShape, Place, bits_of
from tilewright.plans.invariant import ROWS as ANY_ROWS
from tilewright.plans.nvidia_few import SPLITS, whole_vectors
from tilewright.plans.nvidia_model import PASS, PASS_RATE, cost, traffic
from tilewright.plans.nvidia_plan import NvidiaPlan, rounded
from tilewright.plans.nvidia_rates import bandwidths, peak
from tilewright.plans.nvidia_rules import LEAST_ASYNC, multiplied
from tilewright.plans.wgmma_rules import decodes
from tilewright.problem import SCALE_BLOCKS
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.problem import Gemm

__all__ = ["LANES", "NvidiaPlan", "bandwidths", "candidates", "choose", "cost", "inside", "multiplied",
           "pass_seconds", "peak", "ranked", "shape_of", "traffic"]


def shape_of(problem: Gemm, at: Sequence[Place] | None = None) -> GpuShape:
    """The shape, as plans.gpu.shape_of; passes read block-scaled operands up to the last step of k, not whole
    blocks."""
    return gpu_shape.shape_of(problem, at)._replace(k=problem.k)


# ---- prologues

@lru_cache(maxsize=1024)
def inside(shape: GpuShape, target: GpuTarget) -> str:
    """Which of the shape's prologues its kernel evaluates: those for which it is expected to be faster than a pass
    before the product, which writes and reads again what is multiplied. "", "a", "b" or "ab"."""
    costs = {}
    for roles in dict.fromkeys((shape.prologues, *shape.prologues, "")):
        left = shape
        for role in shape.prologues:
            left = left if role in roles else passes.prepared(left, role)
        try:
            seconds = cost(left.least, choose(left, target), target).seconds
        except NoPlan:
            continue
        costs[roles] = seconds + sum(pass_seconds(shape, role, target) for role in shape.prologues if role not in roles)
    return min(costs, key=costs.__getitem__, default="")


def pass_seconds(shape: GpuShape, role: str, target: GpuTarget) -> float:
    """Seconds of a pass that leaves what a prologue makes (kernels/gpu/copy.py)."""
    at = "ab".index(role)
    size = shape.batch * shape.k * (shape.m, shape.n)[at]
    return PASS + size*(shape.bits[at] + shape.tile_bits[at]) / 8 / (PASS_RATE*target.bandwidth)


# ---- choice

def _simt(cta: str, warp: str, thread: str, **options: Any) -> NvidiaPlan:
    (m, n, k), (wm, wn), (tm, tn) = (map(int, x.split("x")) for x in (cta, warp, thread))
    return NvidiaPlan("simt", m, n, k, wm, wn, tm, tn, **options)


_REGISTERS = {"stages": 2, "copy": "registers"}
F32 = (
    _simt("128x256x8", "64x64", "8x16", order="columns", registers=224, **_REGISTERS),
    _simt("128x128x8", "64x64", "8x16", order="columns", registers=240, prefetch_first=True, **_REGISTERS),
    _simt("256x128x8", "64x64", "16x8", registers=224, **_REGISTERS),
    _simt("96x128x16", "48x64", "12x8", order="columns", registers=208, prefetch_first=True, **_REGISTERS),
    _simt("48x256x8", "48x64", "12x8", order="columns", prefetch_first=True, **_REGISTERS),
    _simt("64x128x16", "32x64", "8x8", order="columns", stages=4),
    _simt("64x128x32", "32x64", "8x8", order="columns", slices=2),
    _simt("64x128x32", "32x64", "8x8", order="columns", slices=2, as_stored=True),
    _simt("64x64x32", "32x64", "8x8", order="columns", slices=4, registers=128),
    _simt("64x64x64", "32x64", "8x8", order="columns", slices=4, as_stored=True),
    _simt("32x64x32", "32x64", "8x8", order="columns", slices=4, registers=160),
    _simt("32x64x32", "32x64", "8x8", order="columns", slices=4, as_stored=True),
    _simt("32x64x64", "32x64", "8x8", order="columns", slices=8, registers=160),
    _simt("64x32x64", "64x32", "8x8", order="columns", slices=8, registers=160),
    _simt("32x32x32", "32x32", "8x4", order="columns", slices=4),
    _simt("64x64x32", "32x32", "8x4", stages=3),
    _simt("32x128x32", "32x32", "8x4", stages=3),
    _simt("16x128x32", "16x32", "4x4", stages=4),
    _simt("128x16x32", "32x16", "4x4", stages=4),
)
FEW = 32                # rows or columns of C, for which these are offered besides
F32_FEW = (
    _simt("32x16x64", "32x16", "4x4", stages=4, slices=4, as_stored=True),
    _simt("16x64x64", "16x64", "8x4", stages=4, slices=4),
)
# Small tiles, whose copies through registers cost as many slots as multiply-adds leave: the shorter side is the one
# that is transposed. By the layout of B.
SMALL = {"n": (_simt("64x128x16", "32x64", "8x8", order="columns", prefetch_first=True, **_REGISTERS),),
         "t": (_simt("128x64x16", "64x32", "8x8", order="columns", prefetch_first=True, **_REGISTERS),
               _simt("128x64x16", "64x32", "8x8", order="columns", **_REGISTERS))}
# Tiles for matrices of few rows and columns, of which a batch has many. They are not measured, and offered for sizes of
# at most TINY alone, where other tiles are mostly empty, or too few.
TINY = 512, 512, 1024
F32_TINY = (
    _simt("32x64x32", "32x64", "8x8", order="columns", slices=4, stages=3, registers=160),
    _simt("32x32x32", "32x32", "8x4", slices=4, stages=3),
    _simt("32x32x16", "32x32", "8x4", stages=3),
    _simt("16x16x32", "16x16", "4x2", slices=2, stages=3),
    _simt("16x16x16", "16x16", "4x2", stages=3),
)
F64_TINY = (
    NvidiaPlan("dmma", 32, 32, 16, 16, 16, stages=4),
    NvidiaPlan("dmma", 16, 32, 32, 16, 16, stages=4),
    NvidiaPlan("dmma", 16, 16, 32, 16, 16, stages=4),
    NvidiaPlan("dmma", 16, 16, 16, 16, 16, stages=3),
)
F64 = (
    NvidiaPlan("dmma", 128, 128, 8, 32, 64, stages=6),
    NvidiaPlan("dmma", 64, 128, 8, 32, 64, stages=4),
    NvidiaPlan("dmma", 96, 96, 8, 48, 48, stages=4),
    NvidiaPlan("dmma", 96, 96, 16, 48, 48, stages=3),
    NvidiaPlan("dmma", 64, 96, 16, 32, 48, stages=3),
    NvidiaPlan("dmma", 96, 64, 16, 48, 32, stages=3),
    NvidiaPlan("dmma", 64, 64, 16, 32, 32, stages=4),
    NvidiaPlan("dmma", 64, 64, 8, 32, 32, stages=4),
    NvidiaPlan("dmma", 64, 48, 16, 32, 48, stages=4),
    NvidiaPlan("dmma", 32, 64, 32, 16, 32, stages=3),
    NvidiaPlan("dmma", 64, 32, 32, 32, 16, stages=3),
    NvidiaPlan("dmma", 96, 48, 16, 48, 16, stages=3),
    NvidiaPlan("dmma", 48, 48, 16, 16, 48, stages=4),
    NvidiaPlan("dmma", 32, 32, 32, 16, 16, stages=4),
    NvidiaPlan("dmma", 16, 64, 32, 16, 16, stages=4),
    NvidiaPlan("dmma", 64, 16, 32, 16, 16, stages=4),
    _simt("64x64x8", "32x32", "8x4", stages=3),
    _simt("32x64x8", "16x32", "4x4", stages=3),
    _simt("64x64x8", "32x32", "8x4", **_REGISTERS),
)
LEAST_TAIL = 128        # steps of k: with fewer, kernels without a tail take 3/4 of the time on an H200
MOST_GEMV = 8           # rows by weights that gemv decodes; of more its kernel takes 1.1 to 1.3 of wgmma's time
PREPARED_SUMS = 64      # of a thread, where operands with a prologue pass through its registers


# Of matrix instructions: (CTA's tile, warp's tile), the largest first; bytes of a tile's row along k.
MATRIX = (((256, 128), (64, 64)), ((128, 256), (64, 64)), ((128, 128), (64, 64)), ((128, 128), (64, 32)),
          ((128, 64), (64, 32)), ((64, 128), (32, 64)), ((64, 64), (32, 32)), ((32, 128), (32, 32)),
          ((128, 32), (32, 32)), ((32, 64), (16, 32)), ((64, 32), (32, 16)), ((16, 128), (16, 32)),
          ((128, 16), (32, 16)), ((32, 32), (16, 16)), ((16, 32), (16, 16)), ((16, 16), (16, 16)))
ROWS = 128, 64
LANE_C = 4              # elements of a row of C that a lane has side by side
STAGES = 5, 4, 3, 2
PREPARED = 32           # elements of a tile of k that become of a thread's copies by a prologue: more can spill
LEAST_COPIED = 256      # of m, n and k, from which copies of operands are considered
MOST_WAVES = 4          # CTAs, of those that run at once, that parts of k are worth


def candidates(shape: GpuShape, target: GpuTarget) -> Iterator[NvidiaPlan]:
    """Plans worth a look, legal or not."""
    return chain.from_iterable(_kinds(shape, target))


def _kinds(shape: GpuShape, target: GpuTarget) -> Iterator[Iterable[NvidiaPlan]]:
    """Candidates of each kind of kernel."""
    if shape.scaled:
        after = passes.after(shape, "none", "")
        yield (plan.varied(decoded="bf16") for plan in candidates(after, target))
        return
    if shape.semiring:
        yield _cuda_cores(shape, target)
        return
    if small_rules.fits(shape) or shape.a in small_rules.COMPLEX:
        yield nvidia_few.small_batches(shape, target)
    if shape.a in small_rules.COMPLEX:
        return
    declared = {"terms": shape.terms} if shape.terms else {}
    shape = rounded(shape, shape.terms)
    if shape.terms:
        after = passes.after(shape, "none", shape.terms)
        if after.a in target.wgmma_rates:
            yield wgmma_candidates.tiles(after, target, **declared)
        if after.a in target.matrix_rates:
            yield _matrix(after, target, **declared)
        return
    if shape.prologues:
        if by_warpgroups := shape.a in target.wgmma_rates and _mapped(shape) and decodes(shape):
            yield wgmma_candidates.tiles(shape, target)
        if not by_warpgroups or min(shape.m, shape.n) <= MOST_GEMV:
            yield nvidia_few.few_rows(shape, target)
        yield _matrix(shape, target) if shape.a in target.matrix_rates else _cuda_cores(shape, target)
        return
    any_rows = shape.invariant in ANY_ROWS
    if shape.a in target.wgmma_rates and (shape.m > wgmma_candidates.FEW_ROWS or any_rows):
        yield _as_is_or_copied(wgmma_candidates.tiles, _mapped, shape, target, **declared)
    if shape.a in target.wgmma_rates and 1 < shape.m <= wgmma_candidates.MOST_SWAPPED and _mapped(shape):
        yield wgmma_candidates.few_rows(shape, target, **declared)
    if not declared:
        yield nvidia_few.few_rows(shape, target)
    if shape.a in target.matrix_rates:
        yield _as_is_or_copied(_matrix, whole_vectors, shape, target, **declared)
        if not whole_vectors(shape):
            yield _matrix(shape, target, **declared)
        return
    if 1 not in (shape.m, shape.n) or any_rows or epilogues.sums_of_result(shape.epilogue) > 1:     # gemv has no pairs
        yield _cuda_cores(shape, target)


def _cuda_cores(shape: GpuShape, target: GpuTarget) -> Iterator[NvidiaPlan]:
    """Plans of f32 and f64, and of what a semiring combines; of these without matrix instructions."""
    tiny = all(size <= most for size, most in zip((shape.m, shape.n, shape.k), TINY))
    few = F32_FEW if min(shape.m, shape.n) <= FEW else ()
    tiles = (*F32, *SMALL[shape.layout[1]], *F32_TINY*tiny, *few) if shape.itemsize == 4 else (*F64, *F64_TINY*tiny)
    if shape.semiring:
        most = semirings.most_sums(shape.semiring)
        tiles = tuple(x for x in tiles if x.algorithm == "simt" and x.thread_m*x.thread_n <= most)
    if shape.prologues:
        tiles = tuple(x for x in tiles if x.algorithm == "simt" and x.thread_m*x.thread_n <= PREPARED_SUMS)
    for tile in tiles:
        vector = min(shape.vector_a, shape.vector_b, WIDEST // shape.itemsize)
        tile = replace(tile, registers=0) if shape.semiring or shape.prologues else tile    # these are of multiply-adds
        tile = replace(tile, vector=vector, vector_c=shape.vector_c if shape.vector_c != vector else 0)
        if vector < WIDEST // shape.itemsize and tile.copy == "registers":
            tile = replace(tile, prefetch_first=True)    # many loads: 2039 by single elements gained 28 % on an H200
        if ("cp.async" not in target.instructions or shape.prologues) and tile.copy == "async":
            tile = replace(tile, copy="registers", stages=2)
        tile.resident(shape, target)                # of all that follow
        # Copies of single elements need more pointers and would spill; slices are slower with a tail.
        if tile.vector > 1 and tile.slices == 1 and shape.k >= LEAST_TAIL:
            yield tile.varied(tail=True)            # first: its kernel is 2 % faster even where nothing is left over
        yield from [tile.varied(split_k=split) for split in SPLITS]


def _as_is_or_copied(plans: Callable[..., Iterator[NvidiaPlan]], fits: Callable[[GpuShape], bool], shape: GpuShape,
                     target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
    """Plans for a shape that fits a kernel, or that does once passes have copied operands."""
    if fits(shape):
        return plans(shape, target, **declared)
    if ((min(shape.m, shape.n, shape.k) >= LEAST_COPIED or shape.invariant in ANY_ROWS)
            and (copies := passes.copies(shape, fits))):
        copied, after = copies
        return plans(after, target, copied=copied, **declared)
    return iter(())


def _mapped(shape: GpuShape) -> bool:
    """Tensor maps can describe both operands, as wgmma needs them."""
    layouts = ("nt", "nn", "tt") if shape.a == "tf32" else ("nt",)
    return min(shape.align_a, shape.align_b) == WIDEST and (max(shape.bits) == 16 or shape.layout in layouts)


def _matrix(shape: GpuShape, target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
    """Plans by matrix instructions of 8- and 16-bit formats, for what the `declared` passes have left."""
    a, b = (min(vector, 8*WIDEST // bits) for vector, bits in zip((shape.vector_a, shape.vector_b), shape.tile_bits))
    c = min(shape.vector_c, LANE_C)
    least = min(vector * bits // 8 for vector, bits in zip((a, b), shape.bits))
    asynchronous = "cp.async" in target.instructions and least >= LEAST_ASYNC and not shape.prologues
    few = least == 1 or shape.scales in SCALE_BLOCKS    # 128 single bytes on their way in each thread can spill
    rows = ROWS[-1:] if few else ROWS
    # of a warp; more spill on sm_90
    most_sums = 64*32 if shape.prologues else 32*32 if shape.scales == "1x128" and shape.a in FP8 else 64*64
    for (cta_m, cta_n), (warp_m, warp_n) in MATRIX:
        if warp_m*warp_n > most_sums:
            continue
        for row in rows:
            plan = NvidiaPlan("mma", cta_m, cta_n, row * 8 // bits_of(shape.a), warp_m, warp_n, stages=2, vector=a,
                              vector_b=b if b != a else 0, vector_c=c if c != a else 0,
                              copy="async" if asynchronous else "registers", **declared)
            if any(extent*plan.cta_k > PREPARED*plan.threads for role, extent in (("a", cta_m), ("b", cta_n))
                   if role in shape.prologues):
                continue
            held: dict[int, NvidiaPlan] = {}            # the most stages with which as many CTAs fit
            for stages in STAGES if asynchronous else (2,):
                staged = replace(plan, stages=stages)
                held.setdefault(staged.resident(shape, target), staged)
            most = MOST_WAVES * target.sms / plan.tiles(shape.m, shape.n, shape.batch)
            for candidate in held.values():
                if min(a, b) > 1 and (c > 1 or warp_m*warp_n < 64*64):          # as above: others would spill
                    yield candidate.varied(tail=True)
                yield from [candidate.varied(split_k=split) for split in SPLITS if split == 1 or split <= most]
