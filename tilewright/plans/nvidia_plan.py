"""A plan for one of NVIDIA's GPUs: its text, and what it takes of a multiprocessor. Why it cannot run a problem is in
nvidia_rules.py.

    simt    CUDA cores (kernels/nvidia/simt_gemm.py): a CTA tile, warp tiles in it, an outer product per thread
    dmma    f64 matrix instructions (kernels/nvidia/mma_gemm.py)
    mma     those of 8- and 16-bit formats, and of tf32, f32 rounded to 19 bits, where `terms` asks for that
    wgmma   the same by Hopper's warpgroups, for operands that tensor maps can describe (kernels/nvidia/wgmma_gemm.py)
    gemv    a few rows or columns of C (kernels/nvidia/gemv.py): by CUDA cores up to 4, by matrix instructions from 8
            on; cta_k is the number of warps
    small   batches of matrices of at most 64 rows and columns (kernels/gpu/small.py), the only one for complex numbers

Work is divided by tiles of C, and where these do not fill the chip by k: `split_k` parts of every tile, or `tail`,
parts of the tiles that are left over after whole rounds. The CTA that comes last of a tile adds up its parts. CTAs of
wgmma stay, as many as run at once, and take tile after tile; both words are about the tiles of their last round then
(wgmma_rules.Division).
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Literal

import tilewright.plans.wgmma_rules as wgmma_rules
from tilewright.forks import cached_property
from tilewright.plans import epilogues, gemv_rules, gpu, gpu_shape, nvidia_rules, passes, semirings, small_rules
from tilewright.plans.gemv_rules import LANES
from tilewright.plans.gpu import GpuPlan
from tilewright.plans.gpu_shape import WIDEST, GpuShape
from tilewright.plans.nvidia_model import MOST_PARTS, PART
from tilewright.plans.words import TERMS
from tilewright.problem import SCALE_BLOCKS
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.plans.passes import Pass
    from tilewright.problem import Gemm

PARTED = 2              # warpgroups whose sums may be promoted in parts: with 3 the parts are too narrow
BESIDE = 40             # registers of a thread of wgmma beside sums
MOST_POINTERS = 8       # of a thread to rows of an operand
MORE_BY_LANES = 24      # registers of lanes that store C themselves, beside two sets of sums and promoted ones


@dataclass(frozen=True)
class NvidiaPlan(GpuPlan):
    FAMILY = "an NVIDIA GPU"
    EXAMPLE = "simt 128x128x8 warp=32x64 thread=8x8 stages=2 copy=registers vector=4"
    SIZES = "cta_m", "cta_n", "cta_k"
    GROUPS = ("warp", "warp_m", "warp_n"), ("thread", "thread_m", "thread_n"), ("cluster", "cluster_m", "cluster_n")
    ALWAYS = "stages",
    FORMERLY = ("early", "prefetch_first"),

    algorithm: Literal["simt", "dmma", "mma", "wgmma", "gemv", "small"]
    cta_m: int
    cta_n: int
    cta_k: int
    warp_m: int = 0                 # a warp's part of the tile; of wgmma each warpgroup has as many rows
    warp_n: int = 0
    thread_m: int = 0               # simt, small: the outer product of a thread
    thread_n: int = 0
    stages: int = 3
    warpgroups: int = 0             # wgmma: that multiply
    pingpong: bool = False          # which take turns with tiles of C, each with one of its own
    swap: bool = False              # wgmma: rows of instructions are columns of C, of which warpgroups have parts
    cluster_m: int = 1              # CTAs one below the other that share tiles of B; side by side, of A
    cluster_n: int = 1
    cluster_k: int = 1              # CTAs of a cluster, of 1x1, that share tiles of C by k
    copy: Literal["async", "registers"] = "async"
    vector: int = 1                 # elements that are copied at once
    vector_b: int = 0               # mma: of B; 0: as many. gemv: of a step of k of that many vectors; 0: one
    vector_c: int = 0               # and stored of C; 0: as many
    # wgmma: what writes C, threads or a tensor map's copies; small: at once, or by way of shared memory
    store: Literal["lanes", "tma", "smem"] = "lanes"
    promote: int = 0                # steps of k after which sums of fp8 are added to f32 registers; 0: all of k
    order: Literal["rows", "columns"] = "rows"      # of the multiply-adds of an outer product
    registers: int = 0              # that a thread may have; 0: what the emitter thinks
    prefetch_first: bool = False    # copies through registers begin at the top of the loop, whatever ptxas prefers
    as_stored: bool = False         # simt: operands with k contiguous are not transposed on their way to shared memory
    slices: int = 1                 # groups of warps that share a CTA's tile, each with its steps of k
    split_k: int = 1
    tail: bool = False
    group_m: int = 8
    copied: Literal["none", "a", "b", "ab"] = "none"            # operands that passes write anew: see passes.py
    terms: Literal["none", "tf32", "bf16_x3", "bf16_x6", "bf16_x9", "tf32_x3", "f16"] = "none"     # see GpuShape.terms
    decoded: Literal["none", "bf16"] = "none"                   # as what they write both, which are block-scaled
    matrices: int = 0               # small: that a warp, or a team of warps, has at a time
    team: int = 1                   # small: warps of a CTA that share its matrices; 1: each of four has its own

    @property
    def order_of_sums(self) -> tuple[object, ...]:
        divided = self.divided or self.slices > 1 or self.cluster_k > 1 or self.algorithm == "gemv"
        return () if divided else (self.algorithm, self.terms, self.decoded, self.promote, self.swap)

    def passes(self, shape: GpuShape) -> tuple[Pass, ...]:
        return passes.passes(shape, self.copied, self.split)

    def after_passes(self, shape: GpuShape) -> GpuShape:
        return rounded(passes.after(shape, self.copied, self.split), self.terms)

    @classmethod
    def parse(cls, text: str) -> NvidiaPlan:
        """Reads a plan, as Plan.parse. tf32 was an algorithm in earlier versions."""
        word, _, rest = text.partition(" ")
        return super().parse(f"mma {rest} terms=tf32" if word == "tf32" else text)

    @cached_property
    def split(self) -> str:
        """The key of words.TERMS by which passes split both operands, or nothing."""
        return self.terms if "_" in self.terms else ""

    @property
    def packed(self) -> int:
        """Sums in a register, of f16; those of parts of a tile are added up in f32."""
        return 2 if self.terms == "f16" and not self.divided else 1

    @cached_property
    def products(self) -> int:
        """Products of terms for one product of two numbers."""
        return len(TERMS[self.split].pairs) if self.split else 1

    @cached_property
    def threads(self) -> int:
        """Threads of a CTA."""
        if self.algorithm == "gemv":
            return LANES * self.cta_k
        if self.algorithm == "wgmma":
            return wgmma_rules.GROUP * (self.warpgroups + 1)
        if self.algorithm == "small":
            return LANES * small_rules.warps(self)
        return LANES * (self.cta_m // self.warp_m) * (self.cta_n // self.warp_n) * self.slices

    @cached_property
    def parts(self) -> int:
        """Parts of a wgmma tile's columns, promoted one after the other, if the sums would be too many registers."""
        if self.algorithm != "wgmma" or not self.promote or self.warpgroups != PARTED or self.swap:
            return 1
        sums = self.cta_m*self.cta_n // (wgmma_rules.GROUP*PARTED)
        return 1 if 2*sums + BESIDE <= wgmma_rules.GROUP_REGISTERS[PARTED] else 2

    def sums(self, shape: GpuShape) -> str:
        """The format in which products are added up."""
        return "f16" if self.terms == "f16" else shape.sums

    @property
    def turns(self) -> int:
        """wgmma: warpgroups that take tiles of C in turn."""
        return self.warpgroups if self.pingpong else 1

    @property
    def group_rows(self) -> int:
        """wgmma: rows of instructions, of the CTA's tile, that a warpgroup has."""
        return (self.cta_n if self.swap else self.cta_m) * self.turns // self.warpgroups

    def emitted(self, shape: GpuShape) -> tuple[GpuShape, NvidiaPlan]:
        """What emitters read of this plan and of the shape that passes leave: of sizes, but for small, only whether
        C has fewer columns than rows, for gemv."""
        sizes = shape[3:6] if self.algorithm == "small" else (int(shape.n < shape.m), 0, 0)
        plan = replace(self, copied="none", decoded="none", terms="none" if self.terms == "tf32" else self.terms)
        if self.algorithm == "wgmma":               # for which it is the launch that says how tiles are divided
            plan = replace(plan, split_k=1, tail=self.divided)
        return gpu_shape.emitted(shape, sizes), plan

    @cached_property
    def vectors(self) -> tuple[int, int, int]:
        """Elements of A and B that are copied at once, and of C that are stored."""
        return self.vector, self.vector_b or self.vector, self.vector_c or self.vector

    def tile_bytes(self, shape: GpuShape) -> int:
        """Bytes of a tile of A and one of B."""
        a, b = shape.bits if self.algorithm == "wgmma" else shape.tile_bits
        return self.cta_k * (self.cta_m*a + self.cta_n*b) // 8

    def estimate(self, shape: GpuShape) -> int:
        """Registers of a thread: accumulators, two fragments, what is on its way to shared memory, addresses."""
        words = shape.itemsize // 4
        if self.algorithm == "wgmma":
            sums, others = self._sums(shape)
            return sums * (1 + self.alternates(shape)) + (sums // self.parts if self.promote else 0) + others
        if self.algorithm == "mma":            # sums of terms once more, and those that scales of blocks multiply
            sums = self.warp_m*self.warp_n // LANES // self.packed
            sums *= 1 + (bool(self.split) or shape.scales in SCALE_BLOCKS)
            return sums + (self.warp_m + self.warp_n)//2 + self._copying(shape) + 32
        if self.algorithm == "dmma":
            pointers = shape.layout == "tn" or self.vector == 1 or (self.tail and shape.layout[1] == "n")
            addresses = 32 + 16*pointers + 32*(self.vector == 1 and self.cta_k > 8)         # as ptxas takes
            return words * (self.warp_m*self.warp_n//LANES + 2*(self.warp_m//8 + self.warp_n//8)) + addresses
        if self.algorithm == "gemv":
            return gemv_rules.registers(self, shape)
        if self.algorithm == "small":
            return small_rules.registers(self, shape)
        if self.registers:
            return self.registers
        in_flight = (self.cta_m + self.cta_n)*self.cta_k // self.threads if self.copy == "registers" else 0
        wide = WIDEST // shape.itemsize if self.as_stored else 1
        fragments = (self.thread_m * (wide if shape.layout[0] == "n" else 1)
                     + self.thread_n * (wide if shape.layout[1] == "t" else 1))
        sums = self.thread_m*self.thread_n * semirings.fields(shape.semiring)
        return words * (sums + 2*fragments + in_flight + semirings.in_flight(shape.semiring)) + 32

    def _sums(self, shape: GpuShape) -> tuple[int, int]:
        """wgmma: registers of a thread for a tile's sums, and for what there is beside them."""
        sums = self.cta_m*self.cta_n // (wgmma_rules.GROUP * (1 if self.pingpong else self.warpgroups)) // self.packed
        others = BESIDE + 24*(shape.scales == "1x128" or wgmma_rules.strided(self, shape))
        if shape.prologues:                         # fragments of a stage, and numbers beside their elements
            others += 24 + self.group_rows // wgmma_rules.GROUP_ROWS * (self.cta_k // 4)
        others += 8*(gpu_shape.bits_of(shape.out) == 32 and not self.split) + epilogues.registers(shape.epilogue)
        return sums, others

    def alternates(self, shape: GpuShape) -> bool:
        """wgmma: whether steps of k are added up in two sets of registers in turn, so that one is promoted while the
        other is written: where no other warpgroup multiplies meanwhile, and registers suffice."""
        sums, others = self._sums(shape)
        most = wgmma_rules.GROUP_REGISTERS[self.warpgroups] - MORE_BY_LANES*(self.store == "lanes")
        return (self.promote == self.cta_k and self.parts == 1 and shape.scales not in SCALE_BLOCKS
                and (self.warpgroups == 1 or self.pingpong or shape.prologues != "") and 3*sums + others <= most)

    def _copying(self, shape: GpuShape) -> int:
        """Registers of a thread for copies of A and of B (kernels/nvidia/operand.py): two for each pointer, of which
        there is one for each row along k or for all, and what is on its way, no more than one copy in a register."""
        by_k, count = (shape.layout[0] == "n", shape.layout[1] == "t"), 0
        for extent, bits, vector, along_k in zip((self.cta_m, self.cta_n), shape.bits, self.vectors, by_k):
            together = self.threads // min(max(self.cta_k // vector, 1), self.threads)      # rows
            rows = ceil(extent / together) if along_k else 1
            count += 2 * (rows if rows <= MOST_POINTERS else 2)
            if self.copy == "registers":
                count += ceil(extent*self.cta_k / vector / self.threads) * ceil(vector*bits / 32)
        return count

    def shared(self, shape: GpuShape) -> int:
        """Bytes of a CTA's shared memory, rows of simt's tiles padded."""
        itemsize = shape.itemsize
        if self.algorithm == "mma":
            return self.stages * self.tile_bytes(shape)
        if self.algorithm == "wgmma":               # tiles, two barriers of a stage; buffers for C, a barrier of a turn
            of_warpgroups = self.warpgroups * (wgmma_rules.WARPS*wgmma_rules.staged(self) + 8*self.pingpong)
            total = self.stages * (self.tile_bytes(shape) + 16) + of_warpgroups
            if self.cluster_k > 1:                  # sums of all CTAs, and two barriers of a warp
                tiles = self.warpgroups if self.pingpong else 1
                total += 4*self.cta_m*self.cta_n*tiles + 16*wgmma_rules.WARPS*self.warpgroups
            return total
        if self.algorithm == "gemv":
            return gemv_rules.shared(self, shape)
        if self.algorithm == "small":
            return small_rules.shared(self, shape)
        padding = 0 if self.algorithm == "dmma" else 2*WIDEST//itemsize
        tile = self.cta_k * (self.cta_m + self.cta_n + padding)
        sums = self.cta_m*self.cta_n * semirings.fields(shape.semiring) if self.slices > 1 else 0
        return itemsize * max(self.stages*tile, sums)

    def resident(self, shape: GpuShape, target: GpuTarget) -> int:
        """CTAs that a multiprocessor holds. Of wgmma one, for which stages have all of the shared memory."""
        if self.algorithm == "wgmma":
            return 1
        known_shape, known_target, ctas = self.__dict__.get("_resident", (None, None, 0))      # from a plan `varied`
        if shape is not known_shape or target is not known_target or self.terms == "f16":      # whose registers vary
            registers = min(self.estimate(shape), target.registers_thread)
            ctas = target.occupancy(self.threads, registers, self.shared(shape))
            self.__dict__["_resident"] = shape, target, ctas
        return ctas

    def tail_split(self, shape: GpuShape, target: GpuTarget) -> tuple[int, int]:
        """With `tail`: (tiles that stay whole, parts of each of the others; of wgmma the most)."""
        tiles = self.tiles(shape.m, shape.n, shape.batch)
        if self.algorithm == "wgmma":
            division = self.division(shape, target)
            return min(division.whole*self.ctas, tiles), max(division.parts(), default=1)
        slots = target.sms * max(self.resident(shape, target), 1)
        undivided = tiles // slots * slots
        over = tiles - undivided
        if not over:
            return tiles, 1
        times = [ceil(over*s / slots)/s + PART*s for s in range(1, MOST_PARTS + 1)]
        parts = times.index(min(times)) + 1
        return (tiles, 1) if parts == 1 else (undivided, parts)

    def clusters(self, shape: GpuShape, target: GpuTarget) -> tuple[int, int]:
        """Tiles of C as large as those of a wgmma cluster's CTAs together, and clusters that run at once."""
        rows, columns = self.cta_m*self.cluster_m, self.cta_n*self.cluster_n
        tiles = ceil(shape.m / rows) * ceil(shape.n / columns) * shape.batch
        used, of = wgmma_rules.IN_CLUSTERS if self.ctas > 2 else (1, 1)
        most = target.sms // of * used // self.ctas
        return tiles, max(most, 1) if self.divided else min(tiles, max(most, 1))

    @cached_property
    def ctas(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m*self.cluster_n*self.cluster_k

    @property
    def divided(self) -> bool:
        """Whether tiles may be divided along k."""
        return self.tail or self.split_k > 1

    def division(self, shape: GpuShape, target: GpuTarget) -> wgmma_rules.Division:
        """The division of k by a wgmma plan."""
        return wgmma_rules.division(self, shape, target)

    def grid(self, shape: GpuShape, target: GpuTarget) -> tuple[int, int, int]:
        if self.algorithm == "wgmma":
            return self.division(shape, target).clusters * self.ctas, 1, 1
        if self.algorithm == "small":
            return small_rules.ctas(self, shape), 1, 1
        tiles = self.tiles(shape.m, shape.n, shape.batch)
        if self.tail:
            undivided, parts = self.tail_split(shape, target)
            return undivided + (tiles - undivided)*parts, 1, 1
        return tiles, 1, self.split_k

    def violations(self, problem: Gemm | GpuShape, target: GpuTarget) -> list[str]:
        """Why this plan cannot run this problem on this target: sentences, none if it can."""
        shape = problem if isinstance(problem, GpuShape) else gpu.planner(target).shape_of(problem)
        wrong = self.unknown_words() or list(nvidia_rules.of_passes(self, shape.least, target))
        return wrong or list(nvidia_rules.violations(self, self.after_passes(shape.least), target))


def rounded(shape: GpuShape, terms: str) -> GpuShape:
    """What kernels multiply that round f32 as they read them, or sums of f16 as they add up."""
    if terms == "tf32":
        return shape._replace(a=terms, b=terms, terms="")
    return shape._replace(terms="") if terms == "f16" else shape
