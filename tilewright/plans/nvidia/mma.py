"""mma and dmma (kernels/nvidia/mma_gemm.py): matrix instructions of a warp: of 8- and 16-bit formats, and of tf32, f32
rounded to 19 bits, where `terms` asks for that; dmma has those of f64."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

from tilewright.plans import passes
from tilewright.plans.gpu_lowering import FP8
from tilewright.plans.gpu_shape import WIDEST, GpuShape, bits_of
from tilewright.plans.nvidia.family import FORMATS, LANES, SPLITS, as_is_or_copied, stored, supported, whole_vectors
from tilewright.plans.nvidia.plan import NvidiaPlan
from tilewright.plans.nvidia.rates import ARRIVAL, SCHEDULERS, SHARED_CLOCK, operations
from tilewright.plans.nvidia.tiled import COPY, LANE_C, Tiled, divided_plans, preparing, several, tiny
from tilewright.problem import SCALE_BLOCK, SCALE_BLOCKS

if TYPE_CHECKING:
    from tilewright.targets.nvidia import GpuTarget

LEAST_ASYNC = 4         # bytes of an asynchronous copy
LANES_M = 8             # rows of C of which the lanes of a warp have sums of an instruction
EXCHANGED = 4           # sums that a lane reads at once, when lanes exchange them
MOST_POINTERS = 8       # of a thread to rows of an operand

# Of matrix instructions: (CTA's tile, warp's tile), the largest first; bytes of a tile's row along k.
MATRIX = (((256, 128), (64, 64)), ((128, 256), (64, 64)), ((128, 128), (64, 64)), ((128, 128), (64, 32)),
          ((128, 64), (64, 32)), ((64, 128), (32, 64)), ((64, 64), (32, 32)), ((32, 128), (32, 32)),
          ((128, 32), (32, 32)), ((32, 64), (16, 32)), ((64, 32), (32, 16)), ((16, 128), (16, 32)),
          ((128, 16), (32, 16)), ((32, 32), (16, 16)), ((16, 32), (16, 16)), ((16, 16), (16, 16)))
ROWS = 128, 64
STAGES = 5, 4, 3, 2
PREPARED = 32           # elements of a tile of k that become of a thread's copies by a prologue: more can spill
MOST_WAVES = 4          # CTAs, of those that run at once, that parts of k are worth

# Of kernels/nvidia/mma_gemm.py, by the target's rates of matrix instructions; on an H200 with few rows alone
# (2026-11-23: bench/results/h200_plans.json).
STEP = 32               # bytes along k that an instruction multiplies
CHAIN = 14              # clocks of a step of a warp at the least: its loads from shared memory, and its instructions
MEETING = 460           # clocks that a CTA loses at the barrier of a tile of k
COPY_CLOCK = 11.2       # bytes per clock of the copies of a tile of k
PREPARED_ALONE = 0.5    # of the clocks of prologues, an estimate, those in which nothing else of the CTA goes on


class Mma(Tiled):
    name = "mma"
    prepares = splits = True
    slack = 0
    START, FIRST, STORING, SPLIT = 2.7e-6, 0.38, 70, 8e-7
    WIDE = False

    def candidates(self, shape: GpuShape, target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
        shape = passes.after(shape, "none", shape.terms) if shape.terms else shape
        if shape.a not in target.matrix_rates or shape.semiring:
            return
        if shape.terms or shape.prologues:
            yield from _matrix(shape, target, **declared)
            return
        yield from as_is_or_copied(_matrix, whole_vectors, shape, target, **declared)
        if not whole_vectors(shape):
            yield from _matrix(shape, target, **declared)

    def violations(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
        row = p.cta_k * bits_of(shape.a) // 8
        if p.warp_m % 16 or p.warp_n % 16 or row % STEP:
            yield (f"{p.algorithm} needs warp tiles of multiples of 16, and cta_k a multiple of {STEP} bytes, not "
                   f"{p.warp_m}x{p.warp_n} and {row}.")
        if shape.scales in SCALE_BLOCKS and (SCALE_BLOCK % p.cta_k or SCALE_BLOCK % p.warp_n):
            yield (f"cta_k and a warp's columns must be divisors of {SCALE_BLOCK} with scales of {shape.scales}, not "
                   f"{p.cta_k} and {p.warp_n}.")
        if p.slices > 1:
            yield f"slices must be 1 for {p.algorithm}."

    def formats(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> tuple[str, ...]:
        return supported(shape, target)

    def wrong_formats(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> str:
        if shape.a in target.matrix_rates:
            return super().wrong_formats(p, shape, target)
        own = ", ".join(x for x in supported(shape, target) if x not in FORMATS)
        return f"{self.name} multiplies {own} on {target.name}, and this is {shape.a} by {shape.b}."

    def moved(self, p: NvidiaPlan, shape: GpuShape) -> Iterator[str]:
        for name, format, vector, most in zip("AB", (shape.a, shape.b), p.vectors, (shape.vector_a, shape.vector_b)):
            size = vector * bits_of(format) // 8
            if vector > most:
                yield (f"{vector} elements of {name} are copied at once, and {name} allows {most}: by its address, "
                       "leading dimension and sizes.")
            if vector < 1 or vector & (vector - 1) or size > WIDEST:
                yield (f"{vector} elements of {name} are copied at once, and it must be a power of two with at most "
                       f"{WIDEST} bytes.")
            elif p.copy == "async" and size < LEAST_ASYNC:
                yield (f"copy=async copies {LEAST_ASYNC} bytes at once or more, and {vector} elements of {name} "
                       f"({format}) are {size}.")
        yield from stored(p.vectors[2], shape)

    def registers(self, p: NvidiaPlan, shape: GpuShape) -> int:
        """Sums, of terms once more, as those that scales of blocks multiply; fragments, and copies."""
        sums = p.warp_m*p.warp_n // LANES // p.packed
        sums *= 1 + (bool(p.split) or shape.scales in SCALE_BLOCKS)
        return sums + (p.warp_m + p.warp_n)//2 + sum(_copying(p, shape)) + 32

    def shared(self, p: NvidiaPlan, shape: GpuShape) -> int:
        return p.stages * p.tile_bytes(shape)

    def busy(self, p: NvidiaPlan, warps: int) -> float:
        return 1.0

    def rate(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget, resident: int, together: int) -> float:
        return _matrix_rate(shape, p, target, together)

    def fragment(self, s: GpuShape) -> int:
        return STEP

    def exchanges(self, p: NvidiaPlan) -> bool:
        return exchanges(p.warp_n, p.vectors[2])

    def peak(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> float:
        return operations(shape, p, target) * target.sms * target.clock / p.products


def exchanges(warp_n: int, vector: int) -> bool:
    """Lanes of mma can exchange a warp's sums, to store `vector` side by side: rows of C are whole turns of the lanes,
    or turns are whole rows, no more than the lanes have at once."""
    wide = LANES * min(vector, EXCHANGED)
    return warp_n % wide == 0 or (wide % warp_n == 0 and wide <= LANES_M*warp_n)


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
                each = replace(plan, stages=stages)
                held.setdefault(each.resident(shape, target), each)
            most = MOST_WAVES * target.sms / plan.tiles(shape.m, shape.n, shape.batch)
            for found in held.values():
                if min(a, b) > 1 and (c > 1 or warp_m*warp_n < 64*64):          # as above: others would spill
                    yield replace(found, tail=True)
                yield from (replace(found, split_k=split) for split in SPLITS if split == 1 or split <= most)


def _matrix_rate(shape: GpuShape, p: NvidiaPlan, target: GpuTarget, resident: int) -> float:
    """Multiply-adds per clock of a multiprocessor with so many CTAs, by how long they take for a tile of k each."""
    rate, warps, brought = operations(shape, p, target), p.threads // LANES, p.tile_bytes(shape)
    products = 2 * p.cta_m*p.cta_n*p.cta_k * p.products / rate
    steps = p.cta_k * bits_of(shape.a) // 8 // STEP
    read = (p.warp_m*shape.tile_bits[0] + p.warp_n*shape.tile_bits[1]) * p.cta_k // 8 * warps
    through, written = brought // WIDEST, brought / SHARED_CLOCK        # copies of a tile; clocks of shared memory
    if p.copy == "registers":                   # a load and a store each: two clocks for a warp, however few its bytes
        through = sum(x // vector for x, vector in zip((p.cta_m, p.cta_n), p.vectors)) * p.cta_k
        written = max(written, 4*through / LANES)
    issued = through/LANES * COPY / SCHEDULERS
    if shape.prologues:                         # evaluated once for each tile of C that an operand's element is in
        prepared = preparing(shape, p) / LANES / SCHEDULERS
        issued, alone_of = issued + prepared, PREPARED_ALONE*prepared
    else:
        alone_of = 0.0
    busy = products, read/SHARED_CLOCK + written, issued
    # clocks of a step of a warp alone
    own = 2 * p.warp_m*p.warp_n*p.cta_k * p.products / steps / (rate / SCHEDULERS)
    alone = max(steps * max(own, CHAIN) + MEETING, (ARRIVAL + brought / COPY_CLOCK) / (p.stages - 1)) + alone_of
    clocks = max(max(busy) + 0.1*(sum(busy) - max(busy)), alone / resident)
    return p.cta_m*p.cta_n*p.cta_k / clocks


def _copying(p: NvidiaPlan, shape: GpuShape) -> Iterator[int]:
    """Registers of a thread for copies of A and of B (kernels/nvidia/operand.py): two for each pointer, of which there
    is one for each row along k or for all, and what is on its way, no more than one copy in a register."""
    by_k = shape.layout[0] == "n", shape.layout[1] == "t"
    for extent, bits, vector, along_k in zip((p.cta_m, p.cta_n), shape.bits, p.vectors, by_k):
        together = p.threads // min(max(p.cta_k // vector, 1), p.threads)      # rows
        rows = ceil(extent / together) if along_k else 1
        yield 2 * (rows if rows <= MOST_POINTERS else 2)
        if p.copy == "registers":
            yield ceil(extent*p.cta_k / vector / p.threads) * ceil(vector*bits / 32)


# ---- f64

DMMA_PAD = 4            # elements after each row of a tile, by which dmma keeps banks apart
F64 = (
    NvidiaPlan("dmma", 128, 128, 8, 32, 64, stages=6),
    NvidiaPlan("dmma", 64, 128, 8, 32, 64, stages=4),
    NvidiaPlan("dmma", 96, 96, 8, 48, 48, stages=4),
    NvidiaPlan("dmma", 128, 64, 8, 64, 32, stages=4),
    NvidiaPlan("dmma", 64, 64, 8, 32, 32, stages=4),
    NvidiaPlan("dmma", 32, 64, 16, 16, 32, stages=4),
    NvidiaPlan("dmma", 64, 128, 8, 32, 32, stages=4),
    NvidiaPlan("dmma", 64, 64, 8, 32, 16, stages=4),
    NvidiaPlan("dmma", 32, 64, 16, 16, 16, stages=4),
    NvidiaPlan("dmma", 64, 32, 16, 16, 16, stages=4),
    NvidiaPlan("dmma", 128, 64, 8, 32, 32, stages=6),
    NvidiaPlan("dmma", 96, 64, 8, 48, 32, stages=4),
    NvidiaPlan("dmma", 96, 48, 16, 48, 16, stages=3),
    NvidiaPlan("dmma", 48, 48, 16, 16, 48, stages=4),
    NvidiaPlan("dmma", 16, 64, 32, 16, 16, stages=4),
    NvidiaPlan("dmma", 64, 16, 32, 16, 16, stages=4),
)
F64_TINY = (
    NvidiaPlan("dmma", 32, 32, 32, 16, 16, stages=4),
    NvidiaPlan("dmma", 32, 32, 16, 16, 16, stages=4),
    NvidiaPlan("dmma", 16, 32, 32, 16, 16, stages=4),
    NvidiaPlan("dmma", 16, 16, 32, 16, 16, stages=4),
    NvidiaPlan("dmma", 16, 16, 16, 16, 16, stages=3),
)
# Of the peak of matrix instructions, f64, by the tile of a warp; other tiles are not measured (an H100, 2026-11-22).
MATRIX_RATE = {(32, 64): 0.97, (64, 32): 0.93, (32, 32): 0.90, (48, 48): 0.83, (48, 32): 0.95, (16, 16): 0.95,
          (32, 16): 0.82, (16, 32): 0.86, (48, 16): 0.72, (16, 48): 0.82}
MEETING_F64 = 60        # clocks of a tile of k besides
ARRIVAL_F64 = 7.5e-7   # seconds of its copy from memory
ALL_DIVIDED = 1.1       # of the time, with a tail and no whole tile
MATRIX_OTHER, MATRIX_ALONE = 0.85, 0.91         # and where one CTA has a multiprocessor to itself


class Dmma(Tiled):
    name = "dmma"
    START, FIRST, STORING = 3.0e-6, 1.0, 0

    def candidates(self, shape: GpuShape, target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
        if shape.a == "f64" and several(shape) and not (shape.prologues or shape.semiring):
            yield from divided_plans((*F64, *F64_TINY*tiny(shape)), shape, target)

    def violations(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
        if "mma.f64.k16" not in target.instructions:
            yield f"{target.name} lacks the f64 matrix instructions of Hopper."
        if p.warp_m % 16 or p.warp_n % 16 or p.cta_k % 4:
            yield "dmma needs warp tiles of multiples of 16 and cta_k a multiple of 4."
        if p.slices > 1:
            yield "slices must be 1 for dmma."

    def formats(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> tuple[str, ...]:
        return "f64",

    def registers(self, p: NvidiaPlan, shape: GpuShape) -> int:
        return shape.itemsize // 4 * (p.warp_m*p.warp_n//LANES + 2*(p.warp_m//8 + p.warp_n//8)) + 40

    def shared(self, p: NvidiaPlan, shape: GpuShape) -> int:
        """Tiles, of which a row is one step of k, or one row or column of the CTA's tile, or the sums of slices."""
        tile = max(p.cta_k * (p.cta_m + p.cta_n + 2*DMMA_PAD), (p.cta_m + p.cta_n) * (p.cta_k + DMMA_PAD))
        return shape.itemsize * max(p.stages*tile, p.cta_m*p.cta_n if p.slices > 1 else 0)

    def rate(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget, resident: int, together: int) -> float:
        rate = target.matrix_f64 * MATRIX_RATE.get((p.warp_m, p.warp_n), MATRIX_OTHER)      # which double it
        rate /= 1 + MEETING_F64*rate / (p.cta_m*p.cta_n*p.cta_k)
        if resident == 1:
            rate *= MATRIX_ALONE
        if p.vector == 1:                                       # copies take the smaller a part the larger the tile is
            rate /= 1 + min(0.6 * 32*(p.cta_m + p.cta_n) / (p.cta_m*p.cta_n) - 0.2, 0.7)
        return rate * self.busy(p, p.threads // LANES * together)

    def waiting(self, work: float, shape: GpuShape, p: NvidiaPlan, target: GpuTarget, rate: float, turns: float,
                warps: int, slots: int) -> float:
        work = max(work, turns * shape.k / p.cta_k * ARRIVAL_F64 / (p.stages - 1))
        divided = p.tail and p.tiles(shape.m, shape.n, shape.batch) < slots
        return work * ALL_DIVIDED if divided else work

    def fragment(self, s: GpuShape) -> int:
        return 4*s.itemsize

    def peak(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> float:
        return 2 * target.matrix_f64 * target.sms * target.clock
