"""How a GEMM runs on a GPU of NVIDIA's: plans, what is wrong with one, and the choice by a model
(plans/nvidia_model.py).

    simt    CUDA cores (kernels/nvidia/simt_gemm.py): a CTA tile, warp tiles in it, an outer product per thread
    dmma    f64 matrix instructions (kernels/nvidia/mma_gemm.py)
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
from tilewright.plans.common import Plan
from tilewright.plans.gpu import MOST, WIDEST, GpuShape, Place, choose, ranked
from tilewright.plans.nvidia_model import GEMV_WARPS, LANES, MOST_PARTS, PART, cost, peak, traffic
from tilewright.targets.nvidia import LEAST_REGISTERS, GpuTarget

if TYPE_CHECKING:
    from tilewright.problem import Gemm

__all__ = ["LANES", "NvidiaPlan", "candidates", "choose", "cost", "peak", "ranked", "shape_of", "traffic"]

FORMATS = "f32", "f64"  # that kernels multiply
ARRAYS = frozenset(FORMATS)
RESULTS = {"f32": ("f32",), "f64": ("f64",)}    # what sums are stored as
DMMA_PAD = 4            # elements after each row of a tile, by which dmma keeps banks apart


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
    vector: int = 1                 # elements that are copied at once
    vector_c: int = 0               # and stored of C; 0: as many
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
    if p.vector_c > shape.vector_c:
        yield f"vector_c = {p.vector_c} elements of C are stored at once, and C allows {shape.vector_c}."
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
# Tiles for matrices of few rows and columns, of which a batch has many. They are not measured, and offered for sizes of
# at most TINY alone, where other tiles are mostly empty, or too few.
TINY = 320, 320, 1024
F32_TINY = (
    _simt("32x64x32", "32x64", "8x8", order="columns", slices=4, stages=3, registers=160),
    _simt("32x32x32", "32x32", "8x4", slices=4, stages=3),
    _simt("32x32x16", "32x32", "8x4", stages=3),
    _simt("16x16x32", "16x16", "4x2", slices=2, stages=3),
    _simt("16x16x16", "16x16", "4x2", stages=3),
)
F64_TINY = (
    NvidiaPlan("dmma", 32, 32, 16, 16, 16, stages=4),
    NvidiaPlan("dmma", 16, 16, 16, 16, 16, stages=3),
)
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
    tiny = all(size <= most for size, most in zip((shape.m, shape.n, shape.k), TINY))
    tiles = (*F32, *SMALL[shape.layout[1]], *F32_TINY*tiny) if shape.sums == "f32" else (*F64, *F64_TINY*tiny)
    for tile in tiles:
        tile = replace(tile, vector=shape.vector, vector_c=shape.vector_c if shape.vector_c > shape.vector else 0)
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
