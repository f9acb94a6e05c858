"""simt (kernels/nvidia/simt_gemm.py): CUDA cores, an outer product for each thread: f32, f64, and what a semiring
combines."""
from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.plans import semirings
from tilewright.plans.common import Term
from tilewright.plans.gpu_shape import WIDEST, GpuShape
from tilewright.plans.nvidia.family import FORMATS, LANES, supported
from tilewright.plans.nvidia.plan import NvidiaPlan
from tilewright.plans.nvidia.tiled import COPY, Tiled, divided_plans, preparing, several, tiny

if TYPE_CHECKING:
    from tilewright.targets.nvidia import GpuTarget

COMPLEX = "c64", "c128"


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
# Tiles for matrices of few rows and columns, of which a batch has many (tiled.tiny). They are not measured.
F32_TINY = (
    _simt("32x64x32", "32x64", "8x8", order="columns", slices=4, stages=3, registers=160),
    _simt("32x32x32", "32x32", "8x4", slices=4, stages=3),
    _simt("32x32x16", "32x32", "8x4", stages=3),
    _simt("16x16x32", "16x16", "4x2", slices=2, stages=3),
    _simt("16x16x16", "16x16", "4x2", stages=3),
)
F64 = (
    _simt("64x64x8", "32x32", "8x4", stages=3),
    _simt("32x64x8", "16x32", "4x4", stages=3),
    _simt("64x64x8", "32x32", "8x4", **_REGISTERS),
)
PREPARED_SUMS = 64      # of a thread, where operands with a prologue pass through its registers

# Multiply-adds issued of those that could be, for a thread's tile with 8 warps or more on a multiprocessor: an H200,
# 2026-11-21 (bench/h200.py). Loads of fragments and register conflicts take the rest.
ISSUE = {(8, 16): 0.83, (16, 8): 0.82, (12, 8): 0.74, (8, 8): 0.83, (8, 4): 0.57, (4, 8): 0.57, (4, 4): 0.43,
         (4, 2): 0.58}
ISSUE_ASYNC = {(8, 8): 0.69, (8, 4): 0.68, (4, 4): 0.64}        # where asynchronous copies make a difference
AS_STORED = 0.98        # of it, where vectors along k are read from shared memory
LEAST_STEPS = 10        # steps of k between barriers
MEETING_ALONE = 42     # clocks of a barrier in a CTA that is alone: of its first warp, none of the eighth
TRANSPOSED = 7          # and one of an element that is stored alone, since its operand is transposed
SINGLE = 13             # a whole copy of 4 or 8 bytes, if it is asynchronous
TRANSPOSED_ASYNC = 14   # one of 4 bytes where others have 16. These, and the next, by bench/results/regret_h200.jsonl
ARRIVING, STARTED = 800, 20     # clocks until a tile of k has come, and for each copy of it that a thread starts
ALONE = 0.92            # of the rate where single elements pass through registers, and no second CTA works meanwhile
SHARED_LATENCY = 30     # clocks of a load from shared memory: a warp's step of k takes no less


class Simt(Tiled):
    name = "simt"
    prepares = combines = True
    START, FIRST, STORING = 2.9e-6, 0.8, 34
    MOST_WARPS: ClassVar[dict[str, float]] = {"async": 1.08, "registers": 1.04}

    def candidates(self, shape: GpuShape, target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
        if shape.semiring:
            yield from _cuda_cores(shape, target)
        elif not shape.terms and shape.a not in target.matrix_rates and shape.a not in COMPLEX:
            if shape.prologues or several(shape):
                yield from _cuda_cores(shape, target)

    def violations(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
        if (p.thread_m < 1 or p.thread_n < 1 or p.warp_m % p.thread_m or p.warp_n % p.thread_n
                or (p.warp_m // p.thread_m) * (p.warp_n // p.thread_n) != LANES):
            yield f"{LANES} lanes with {p.thread_m}x{p.thread_n} elements each do not make {p.warp_m}x{p.warp_n}."
        elif p.cta_k % p.slices or (p.as_stored and p.cta_k // p.slices * shape.itemsize % WIDEST):
            yield (f"{p.slices} slices do not divide cta_k = {p.cta_k}"
                   f"{f' into whole vectors of {WIDEST} bytes' * p.as_stored}.")

    def formats(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> tuple[str, ...]:
        return supported(shape, target) if shape.semiring else FORMATS

    def registers(self, p: NvidiaPlan, shape: GpuShape) -> int:
        """Accumulators, two fragments, what is on its way to shared memory, addresses."""
        if p.registers:
            return p.registers
        staged = (p.cta_m + p.cta_n)*p.cta_k // p.threads if p.copy == "registers" else 0
        fragments = sum(own * (WIDEST // shape.itemsize if p.as_stored and along_k else 1) for own, along_k in (
            (p.thread_m, shape.layout[0] == "n"), (p.thread_n, shape.layout[1] == "t")))
        sums = p.thread_m*p.thread_n * semirings.fields(shape.semiring)
        return shape.itemsize // 4 * (sums + 2*fragments + staged + semirings.in_flight(shape.semiring)) + 32

    def shared(self, p: NvidiaPlan, shape: GpuShape) -> int:
        """Tiles, rows padded, or the sums of slices."""
        tile = p.cta_k * (p.cta_m + p.cta_n + 2*WIDEST//shape.itemsize)
        sums = p.cta_m*p.cta_n * semirings.fields(shape.semiring) if p.slices > 1 else 0
        return shape.itemsize * max(p.stages*tile, sums)

    def rate(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget, resident: int, together: int) -> float:
        own, warps = p.thread_m * p.thread_n, p.threads // LANES * together
        issue = {**ISSUE, **(ISSUE_ASYNC if p.copy == "async" else {})}
        four = shape.itemsize == 4
        fma = target.fma_f32 if four else target.fma_f32 / 2 if shape.sums == "i64" else target.fma_f64
        rate = fma * issue.get((p.thread_m, p.thread_n), 0.4)
        if shape.itemsize == 8:
            rate = min(rate, fma * 0.9)
        rate /= 1 + _copies(shape, p) / (own * p.cta_k // p.slices)
        if p.vector == 1 and p.copy == "registers" and resident == 1:
            rate *= ALONE
        if p.as_stored:
            rate *= AS_STORED
        if shape.semiring:
            rate = 1 / (1/rate - 1/fma + semirings.clocks(shape.semiring, shape.sums, target))
        rate *= self.busy(p, warps)
        rate *= min(1.0, 0.7 + 0.3 * p.cta_k / p.slices / LEAST_STEPS)
        return min(rate, warps * LANES * own / max(own, SHARED_LATENCY))

    def waiting(self, work: float, shape: GpuShape, p: NvidiaPlan, target: GpuTarget, rate: float, turns: float,
                warps: int, slots: int) -> float:
        """A CTA that nothing fills in for waits at barriers and for copies."""
        started = (p.cta_m + p.cta_n) * p.cta_k / p.threads / p.vector * (p.copy == "async")
        own = p.threads // LANES
        step = p.extent[0]*p.extent[1]*p.cta_k / rate * self.busy(p, warps) / self.busy(p, own)
        step += MEETING_ALONE*max(1 - own/8, 0.0) + STARTED*started
        depth = ceil(shape.k / p.cta_k)
        return max(work, turns * depth * max(step, ARRIVING / max(p.stages - 1, 1)) / target.clock)

    def exchanges(self, p: NvidiaPlan) -> bool:
        return p.vectors[2] == p.slices == 1 and p.warp_n % LANES == 0

    def reads(self, s: GpuShape, p: NvidiaPlan, divided: int) -> list[Term]:
        """What each thread reads counts, though several read the same elements at once; a fragment is read ahead."""
        reads = p.tiles(s.m, s.n, s.batch)*(ceil(s.k / p.cta_k)*p.cta_k // p.slices + divided)
        return [Term(f"{x} read", p.threads*own*s.itemsize, reads,
                     f"{own} elements by {p.threads} threads in a step of k")
                for x, own in (("A", p.thread_m), ("B", p.thread_n))]


def _cuda_cores(shape: GpuShape, target: GpuTarget) -> Iterator[NvidiaPlan]:
    few = F32_FEW if min(shape.m, shape.n) <= FEW else ()
    tiles = (*F32, *SMALL[shape.layout[1]], *F32_TINY*tiny(shape), *few) if shape.itemsize == 4 else F64
    if shape.semiring:
        most = semirings.most_sums(shape.semiring)
        tiles = tuple(x for x in tiles if x.thread_m*x.thread_n <= most)
    if shape.prologues:
        tiles = tuple(x for x in tiles if x.thread_m*x.thread_n <= PREPARED_SUMS)
    yield from divided_plans(tiles, shape, target)


def _copies(shape: GpuShape, p: NvidiaPlan) -> float:
    """Slots that a thread's copies of a tile of A and one of B take."""
    slots, transposed, side_by_side = 0.0, float(TRANSPOSED), COPY / p.vector
    if p.copy == "async":
        side_by_side = SINGLE / p.vector if p.vector <= 2 else side_by_side
        transposed = TRANSPOSED_ASYNC if p.vector > 1 else SINGLE
    for extent, along_k in ((p.cta_m, shape.layout[0] == "n"), (p.cta_n, shape.layout[1] == "t")):
        elements = extent * p.cta_k / p.threads
        alone = along_k and not (p.as_stored and p.vector > 1)
        slots += elements * (transposed if alone else side_by_side)
    return slots + preparing(shape, p) / p.threads
