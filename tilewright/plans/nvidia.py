"""GPU plans: the tiling of a GEMM on NVIDIA's chips, when one is legal, and what it costs.

    simt    CUDA cores (kernels/nvidia/simt_gemm.py): a CTA tile, warp tiles in it, an outer product per thread
    dmma    f64 matrix instructions (kernels/nvidia/dmma_gemm.py)
    gemv    one row or one column of C (kernels/nvidia/gemv.py)

Work is divided by tiles of C, and where these do not fill the chip by k: `split_k` parts of every tile, or `tail`,
parts of the tiles that are left over after whole rounds. The CTA that comes last of a tile adds up its parts.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from tilewright.plans import gpu
from tilewright.plans.common import Cost, Plan, Term
from tilewright.plans.gpu import MOST, WIDEST, GpuShape, Place, choose, ranked
from tilewright.targets.nvidia import LEAST_REGISTERS, GpuTarget

__all__ = ["NvidiaPlan", "candidates", "choose", "cost", "peak", "ranked", "shape_of", "traffic"]

if TYPE_CHECKING:
    from tilewright.problem import Gemm

FORMATS = "f32", "f64"  # that kernels multiply
ARRAYS = frozenset(FORMATS)
RESULTS = {"f32": ("f32",), "f64": ("f64",)}    # what sums are stored as
DMMA_PAD = 4            # elements after each row of a tile, by which dmma keeps banks apart
LANES = 32
GEMV_WARPS = 8          # of a CTA of kernels/nvidia/gemv.py


def shape_of(problem: Gemm, at: Sequence[Place] | None = None) -> GpuShape:
    """As plans.gpu.shape_of. f32 and f64 meet in f64, to which operands are converted."""
    p = problem
    if {p.a, p.b, p.out} <= set(FORMATS):
        return gpu.shape(p.compute, p.compute, p.compute, p.m, p.n, p.k, p.layout, at, p.batch)
    return gpu.shape_of(p, at)


def multiplied(target: GpuTarget) -> tuple[str, ...]:
    """The formats that kernels of a target multiply."""
    return FORMATS


def taken(a: str, b: str, sums: str, target: GpuTarget) -> tuple[str, str] | None:
    """The formats in which operands of these are multiplied, with sums in `sums`; None if they are not."""
    return (sums, sums) if sums in FORMATS else None


@dataclass(frozen=True)
class NvidiaPlan(Plan):
    FAMILY = "an NVIDIA GPU"
    EXAMPLE = "simt 128x128x8 warp=32x64 thread=8x8 stages=2 copy=registers vector=4"
    SIZES = "cta_m", "cta_n", "cta_k"
    GROUPS = ("warp", "warp_m", "warp_n"), ("thread", "thread_m", "thread_n")
    ALWAYS = "stages",
    FORMERLY = ("early", "prefetch_first"),

    algorithm: Literal["simt", "dmma", "gemv"]
    cta_m: int
    cta_n: int
    cta_k: int
    warp_m: int
    warp_n: int
    thread_m: int = 0               # simt: the outer product of a thread
    thread_n: int = 0
    stages: int = 3
    copy: Literal["async", "registers"] = "async"
    vector: int = 1
    order: Literal["rows", "columns"] = "rows"      # of the multiply-adds of an outer product
    registers: int = 0              # that a thread may have; 0: what the emitter thinks
    prefetch_first: bool = False    # copies through registers begin at the top of the loop, whatever ptxas prefers
    slices: int = 1                 # groups of warps that share a CTA's tile, each with its steps of k
    split_k: int = 1
    tail: bool = False
    group_m: int = 8

    @property
    def threads(self) -> int:
        """Of a CTA."""
        if self.algorithm == "gemv":
            return LANES * GEMV_WARPS
        return LANES * (self.cta_m // self.warp_m) * (self.cta_n // self.warp_n) * self.slices

    @property
    def extent(self) -> tuple[int, int]:
        """Rows and columns of C that a CTA computes. Of gemv a lane may have `vector` elements, a warp one."""
        if self.algorithm != "gemv":
            return self.cta_m, self.cta_n
        rows, columns = (x * self.vector if x == LANES else x for x in (self.cta_m, self.cta_n))
        return rows, columns

    def tiles(self, m: int, n: int, batch: int = 1) -> int:
        """Of C, or all of a batch."""
        rows, columns = self.extent
        return ceil(m / rows) * ceil(n / columns) * batch

    def estimate(self, itemsize: int) -> int:
        """Registers of a thread: accumulators, two fragments, what is on its way to shared memory, addresses."""
        words = itemsize // 4
        if self.algorithm == "dmma":
            return words * (self.warp_m*self.warp_n//LANES + 2*(self.warp_m//8 + self.warp_n//8)) + 40
        if self.algorithm == "gemv":
            return 64
        if self.registers:
            return self.registers
        staged = (self.cta_m + self.cta_n)*self.cta_k // self.threads if self.copy == "registers" else 0
        return words * (self.thread_m*self.thread_n + 2*(self.thread_m + self.thread_n) + staged) + 32

    def shared(self, itemsize: int) -> int:
        """Bytes of a CTA's shared memory, rows padded."""
        if self.algorithm == "gemv":
            return itemsize * LANES * GEMV_WARPS * self.vector
        tile = self.cta_k * (self.cta_m + self.cta_n + 2*WIDEST//itemsize)
        if self.algorithm == "dmma":                # a row is one step of k, or one row or column of the CTA's tile
            tile = max(self.cta_k * (self.cta_m + self.cta_n + 2*DMMA_PAD),
                       (self.cta_m + self.cta_n) * (self.cta_k + DMMA_PAD))
        return itemsize * max(self.stages*tile, self.cta_m*self.cta_n if self.slices > 1 else 0)

    def resident(self, target: GpuTarget, itemsize: int) -> int:
        """CTAs that a multiprocessor holds."""
        return target.occupancy(self.threads, min(self.estimate(itemsize), target.registers_thread),
                                self.shared(itemsize))

    def tail_split(self, m: int, n: int, target: GpuTarget, itemsize: int, batch: int = 1) -> tuple[int, int]:
        """With `tail`: (tiles that stay whole, parts of each of the others)."""
        tiles = self.tiles(m, n, batch)
        slots = target.sms * max(self.resident(target, itemsize), 1)
        whole = tiles // slots * slots
        over = tiles - whole
        if not over:
            return tiles, 1
        parts = min(range(1, MOST_PARTS + 1), key=lambda s: ceil(over*s / slots)/s + PART*s)
        return (tiles, 1) if parts == 1 else (whole, parts)

    def grid(self, m: int, n: int, target: GpuTarget, itemsize: int, batch: int = 1) -> tuple[int, int, int]:
        tiles = self.tiles(m, n, batch)
        if self.tail:
            whole, parts = self.tail_split(m, n, target, itemsize, batch)
            return whole + (tiles - whole)*parts, 1, 1
        return tiles, 1, self.split_k

    def violations(self, problem: Gemm | GpuShape, target: GpuTarget) -> list[str]:
        """Why this plan cannot run this problem on this target: sentences, none if it can."""
        shape = problem if isinstance(problem, GpuShape) else shape_of(problem)
        return self.unknown_words() or list(_violations(self, shape.least, target))


MOST_PARTS = 16
PART = 0.008            # of a tile's time that another part of it costs: writing and adding up a tile of C


def _violations(plan: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    p, s = plan, shape.itemsize
    if (kinds := {shape.a, shape.b, shape.out}) - set(FORMATS) or len(kinds) > 1 or shape.scaled:
        yield (f"{target.name} has kernels for {' and '.join(FORMATS)}, one format for A, B and the result, not for "
               f"{shape.a} by {shape.b} into {shape.out}{' with scales' * shape.scaled}.")
        return
    if found := p.below_one("cta_m", "cta_n", "cta_k", "warp_m", "warp_n", "slices", "split_k", "group_m", "vector"):
        yield from found
        return
    yield from p.above(**MOST)
    if p.registers and not LEAST_REGISTERS <= p.registers <= target.registers_thread:
        yield (f"registers must be {LEAST_REGISTERS} to {target.registers_thread}, or 0 for the emitter's choice, not "
               f"{p.registers}.")
    if p.algorithm == "gemv":
        own = GEMV_WARPS if shape.layout[shape.n != 1] == "nt"[shape.n != 1] else LANES
        if (p.cta_m, p.cta_n) != ((own, 1) if shape.n == 1 else (1, own)):
            yield f"gemv has CTAs of {own} elements of C for this problem, not {p.cta_m}x{p.cta_n}."
        if 1 not in (shape.m, shape.n):
            yield f"gemv computes one row or one column of C, and C is {shape.m}x{shape.n}."
    elif p.cta_m % p.warp_m or p.cta_n % p.warp_n:
        yield f"a CTA tile of {p.cta_m}x{p.cta_n} is not a multiple of warp tiles of {p.warp_m}x{p.warp_n}."
        return
    if p.algorithm == "dmma":
        if shape.sums != "f64":
            yield f"dmma multiplies f64, and this is {shape.sums}."
        if "mma.f64.k16" not in target.instructions:
            yield f"{target.name} lacks the f64 matrix instructions of Hopper."
        if p.warp_m % 16 or p.warp_n % 16 or p.cta_k % 4:
            yield "dmma needs warp tiles of multiples of 16 and cta_k a multiple of 4."
        if p.slices > 1:
            yield "slices must be 1 for dmma."
    elif p.algorithm == "simt" and (
            p.thread_m < 1 or p.thread_n < 1 or p.warp_m % p.thread_m or p.warp_n % p.thread_n
            or (p.warp_m // p.thread_m) * (p.warp_n // p.thread_n) != LANES):
        yield f"{LANES} lanes with {p.thread_m}x{p.thread_n} elements each do not make {p.warp_m}x{p.warp_n}."
        return
    elif p.cta_k % p.slices:
        yield f"{p.slices} slices do not divide cta_k = {p.cta_k}."
    if p.threads > 1024:
        yield f"a CTA would have {p.threads} threads, and may have 1024."
    if p.copy == "async" and "cp.async" not in target.instructions:
        yield f"{target.name} has no asynchronous copies."
    if p.copy == "registers" and p.stages != 2:
        yield f"copies through registers have 2 stages, not {p.stages}."
    if p.stages < 2:
        yield f"stages is {p.stages}, and must not be less than 2."
    if p.vector > shape.vector:
        yield (f"vector = {p.vector} elements are copied at once, and the operands allow {shape.vector}: by their "
               "addresses, leading dimensions and sizes.")
    if p.vector*s > WIDEST:
        yield f"vector = {p.vector} {shape.sums} are more than the {WIDEST} bytes that a thread copies at once."
    if (shared := p.shared(s)) > target.smem_cta:
        yield f"the tiles take {shared} bytes of shared memory, and {target.name} gives a CTA {target.smem_cta}."
    if (registers := p.estimate(s)) > target.registers_thread + 16:
        yield f"a thread would need about {registers} registers, and may have {target.registers_thread}."
    elif p.threads * min(registers, target.registers_thread) > target.registers_sm:
        yield (f"{p.threads} threads with {registers} registers are more than the {target.registers_sm} of a "
               "multiprocessor.")
    if p.tail and p.split_k > 1:
        yield "split_k and tail cannot be combined: both divide the tiles of C."
    if p.split_k > max(ceil(shape.k / p.cta_k), 1):
        yield f"split_k = {p.split_k} exceeds the number of tiles along k."


# ---- what a plan costs

# Multiply-adds issued of those that could be, for a thread's tile with 8 warps or more on a multiprocessor: an H200,
# 2026-11-21 (bench/h200.py). Loads of fragments and register conflicts take the rest.
ISSUE = {(8, 16): 0.83, (16, 8): 0.82, (12, 8): 0.74, (8, 8): 0.83, (8, 4): 0.57, (4, 8): 0.57, (4, 4): 0.43}
ISSUE_ASYNC = {(8, 8): 0.74}                                    # where asynchronous copies make a difference
MOST_WARPS = 1.04       # what more than 8 warps gain at most: M = 128, 200 against 4096 x 4096, 3 CTAs instead of 2
COPY = 4                # slots for multiply-adds that a copy takes
TRANSPOSED = 7          # and one of an element that is stored alone, since its operand is transposed
TRANSPOSED_ASYNC = 12   # which is a whole copy of 4 bytes if it is asynchronous
ALONE = 0.92            # of the rate where single elements pass through registers, and no second CTA works meanwhile
# Of the peak of matrix instructions, f64, by the tile of a warp; other tiles are not measured (an H100, 2026-11-22).
MATRIX = {(32, 64): 0.90, (64, 32): 0.83, (32, 32): 0.835, (48, 48): 0.76}
MATRIX_OTHER, MATRIX_ALONE = 0.80, 0.95         # and where one CTA has a multiprocessor to itself
L2 = 5.5e12 / 132 / 1.98e9                      # bytes per clock and multiprocessor, from L2
START = 3.0e-6          # seconds of a launch that are not its arithmetic: first loads, last stores
SPLIT = 3.0e-6          # and to write parts of a tile and learn that all are there
ADDING = 50e9           # bytes per second at which the last CTA, alone, adds them up


def cost(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> Cost:
    """The predicted cost of a legal plan."""
    m, n, k, s = shape.m, shape.n, shape.k, shape.itemsize
    tiles, resident = plan.tiles(m, n, shape.batch), max(plan.resident(target, s), 1)
    slots = target.sms * resident
    rate: float
    if plan.algorithm == "gemv":
        rate = 32 * plan.vector if s == 4 else 16 * plan.vector
    elif plan.algorithm == "dmma":
        rate = target.fma_f64 * 2 * MATRIX.get((plan.warp_m, plan.warp_n), MATRIX_OTHER)    # which double it
        if resident == 1:
            rate *= MATRIX_ALONE
    else:
        issue = {**ISSUE, **(ISSUE_ASYNC if plan.copy == "async" else {})}
        rate = (target.fma_f32 if s == 4 else target.fma_f64) * issue.get((plan.thread_m, plan.thread_n), 0.4)
        if s == 8:
            rate = min(rate, target.fma_f64 * 0.9)
        rate /= 1 + _copies(shape, plan) / (plan.thread_m*plan.thread_n * plan.cta_k // plan.slices)
        if plan.vector == 1 and plan.copy == "registers" and resident == 1:
            rate *= ALONE
    warps = plan.threads // LANES * min(resident, ceil(tiles*plan.split_k / target.sms))
    rate *= min(MOST_WARPS, 0.55 + 0.45*warps/8)                # few warps wait for their loads
    steps = k + plan.cta_k                                      # the first tile of k has to come
    alone = plan.extent[0] * plan.extent[1] * steps / rate              # clocks of a tile that has the multiprocessor
    if plan.tail:
        whole, parts = plan.tail_split(m, n, target, s, shape.batch)
        rounds = whole/slots + ceil((tiles - whole)*parts / slots)/parts
    else:
        rounds = ceil(tiles*plan.split_k / slots) / plan.split_k
        if tiles*plan.split_k < slots:                          # CTAs share multiprocessors as evenly as can be
            rounds = ceil(tiles*plan.split_k / target.sms) / resident / plan.split_k
    work = rounds * resident * alone / target.clock
    moved = tiles * (plan.extent[0] + plan.extent[1]) * k * s
    through_l2 = moved / min(tiles*plan.split_k, target.sms) / L2 / target.clock
    once = shape.batch * (m*k + k*n + m*n) * s / (0.85*target.bandwidth)
    parts = plan.tail_split(m, n, target, s, shape.batch)[1] if plan.tail else plan.split_k
    tile = plan.extent[0]*plan.extent[1] * s
    added = SPLIT + parts * tile / ADDING if parts > 1 else 0.0
    if plan.tail and parts > 1:
        added = max(added, SPLIT + PART*parts * resident*alone / target.clock)
    if plan.split_k > 1:                                        # before the last ones, on all multiprocessors at once
        added += 2 * plan.split_k * tiles*tile / (L2 * target.sms * target.clock)
    parts_ = (("multiply-adds", work), ("from L2", through_l2), ("memory", once))
    longest, *others = sorted((seconds for _, seconds in parts_), reverse=True)
    return Cost(START + added + longest + 0.1*sum(others), parts_, rounds=rounds)


def _copies(shape: GpuShape, plan: NvidiaPlan) -> float:
    """Slots that a thread's copies of a tile of A and one of B take."""
    slots, transposed = 0.0, TRANSPOSED_ASYNC if plan.copy == "async" else TRANSPOSED
    for extent, along_k in ((plan.cta_m, shape.layout[0] == "n"), (plan.cta_n, shape.layout[1] == "t")):
        elements = extent * plan.cta_k / plan.threads
        slots += elements * (transposed if along_k else COPY / plan.vector)
    return slots


def peak(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> float:
    """Operations per second of all multiprocessors, with the instructions of this plan."""
    fma = target.fma_f32 if shape.itemsize == 4 else target.fma_f64 * (1 + (plan.algorithm == "dmma"))
    return 2 * fma * target.sms * target.clock


def traffic(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> dict[str, tuple[Term, ...]]:
    """Bytes that all CTAs move, by level; at the edges of C as if all tiles were whole. What threads of simt read from
    shared memory counts for each of them, though several read the same elements at once."""
    s, p, size = shape, plan, shape.itemsize
    tiles, steps = p.tiles(s.m, s.n, s.batch), ceil(s.k / p.cta_k)
    whole, divided = p.tail_split(s.m, s.n, target, size, s.batch) if p.tail else (0, p.split_k)
    over = (tiles - whole)*(divided > 1)                                # tiles that are added up from parts
    found = gpu.memory_traffic(s, divided, s.batch*s.m*s.n*size) if not p.tail or divided == 1 else (
        *gpu.memory_traffic(s, 1, 0), Term("parts", over*p.cta_m*p.cta_n*size, 2*divided,
                                           f"{divided} of {over} tiles, written, and read by the last"))
    if p.algorithm == "gemv":
        vector, times = ("A" if s.m == 1 else "B"), tiles
        return {"L2": tuple(t._replace(times=times, why=f"for each of {times:,} tiles of C") if t.what == vector else t
                            for t in found[:2]), "memory": found}
    every = tiles*steps, f"{tiles:,} tiles x {steps:,} steps along k"
    extents, warps = (("A", p.cta_m, p.warp_m, p.thread_m), ("B", p.cta_n, p.warp_n, p.thread_n)), p.threads // LANES
    written = [Term(f"{x} written", extent*p.cta_k*size, *every) for x, extent, _, _ in extents]
    # fragments of one step of k, 4 for dmma, are read ahead of those that are multiplied
    if p.algorithm == "simt":
        reads = tiles*(steps*p.cta_k // p.slices + divided)
        read = [Term(f"{x} read", p.threads*own*size, reads, f"{own} elements by {p.threads} threads in a step of k")
                for x, _, _, own in extents]
    else:
        reads = tiles*(steps*p.cta_k // 4 + divided)*warps
        read = [Term(f"{x} read", own*4*size, reads, f"by {warps} warps in 4 steps of k") for x, _, own, _ in extents]
    if p.slices > 1:                    # which add up their sums
        sums = (p.slices - 1)*p.cta_m*p.cta_n*size, tiles*p.split_k, f"of {p.slices - 1} of {p.slices} slices"
        written, read = [*written, Term("sums written", *sums)], [*read, Term("sums read", *sums)]
    return {"shared": (*written, *read), "L2": tuple(Term(x, extent*p.cta_k*size, *every) for x, extent, *_ in extents),
            "memory": found}


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
    _simt("64x64x32", "32x32", "8x4", stages=3),
    _simt("32x128x32", "32x32", "8x4", stages=3),
    _simt("16x128x32", "16x32", "4x4", stages=4),
    _simt("128x16x32", "32x16", "4x4", stages=4),
)
# Small tiles, whose copies through registers cost as many slots as multiply-adds leave: the shorter side is the one
# that is transposed. By the layout of B.
SMALL = {"n": (_simt("64x128x16", "32x64", "8x8", order="columns", prefetch_first=True, **_REGISTERS),),
         "t": (_simt("128x64x16", "64x32", "8x8", order="columns", prefetch_first=True, **_REGISTERS),
               _simt("128x64x16", "64x32", "8x8", order="columns", **_REGISTERS))}
F64 = (
    NvidiaPlan("dmma", 128, 128, 8, 32, 64, stages=6),
    NvidiaPlan("dmma", 64, 128, 8, 32, 64, stages=4),
    NvidiaPlan("dmma", 96, 96, 8, 48, 48, stages=4),
    NvidiaPlan("dmma", 128, 64, 8, 64, 32, stages=4),
    NvidiaPlan("dmma", 64, 64, 8, 32, 32, stages=4),
    NvidiaPlan("dmma", 32, 64, 16, 16, 32, stages=4),
    _simt("64x64x8", "32x32", "8x4", stages=3),
    _simt("32x64x8", "16x32", "4x4", stages=3),
    _simt("64x64x8", "32x32", "8x4", **_REGISTERS),
)
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32)


def candidates(shape: GpuShape, target: GpuTarget) -> Iterator[NvidiaPlan]:
    """Plans worth a look, legal or not."""
    if 1 in (shape.m, shape.n):
        yield from _vectors(shape, target)
        return
    for tile in (*F32, *SMALL[shape.layout[1]]) if shape.sums == "f32" else F64:
        tile = replace(tile, vector=shape.vector)
        if shape.vector < WIDEST // shape.itemsize and tile.copy == "registers":
            tile = replace(tile, prefetch_first=True)    # many loads: 2039 by single elements gained 28 % on an H200
        if "cp.async" not in target.instructions and tile.copy == "async":
            tile = replace(tile, copy="registers", stages=2)
        if shape.vector > 1:            # copies of single elements need more pointers: with a tail they spill
            yield replace(tile, tail=True)          # first: its kernel is 2 % faster even where nothing is left over
        yield from (replace(tile, split_k=split) for split in SPLITS)


def _vectors(shape: GpuShape, target: GpuTarget) -> Iterator[NvidiaPlan]:
    """Plans for one row or column of C, by the elements of it that a CTA has."""
    column = shape.n == 1
    along_k = shape.layout[0] == "n" if column else shape.layout[1] == "t"
    own = GEMV_WARPS if along_k else LANES                              # of which each has a vector of elements
    for split in SPLITS:
        if split == 1 or split*GEMV_WARPS <= shape.k:
            m, n = (own, 1) if column else (1, own)
            yield NvidiaPlan("gemv", m, n, GEMV_WARPS, m, n, stages=2, copy="registers", vector=shape.vector,
                          split_k=split)
