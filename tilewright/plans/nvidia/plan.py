"""A plan for one of NVIDIA's GPUs: its fields and its text. What it takes and costs its family knows (family.py):

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
(division.py).
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tilewright.plans import gpu, passes
from tilewright.plans.gpu import GpuPlan
from tilewright.plans.gpu_shape import GpuShape
from tilewright.plans.nvidia import rules
from tilewright.plans.nvidia.family import FAMILIES, Family
from tilewright.plans.words import TERMS
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.plans.passes import Pass
    from tilewright.problem import Gemm


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
    def family(self) -> Family:
        return FAMILIES[self.algorithm]

    @property
    def order_of_sums(self) -> tuple[object, ...]:
        divided = self.divided or self.slices > 1 or self.cluster_k > 1 or self.family.spreads_k
        return () if divided else (self.algorithm, self.terms, self.decoded, self.promote, self.swap)

    def passes(self, shape: GpuShape) -> tuple[Pass, ...]:
        return passes.passes(shape, self.copied, self.split)

    def after_passes(self, shape: GpuShape) -> GpuShape:
        return rounded(passes.after(shape, self.copied, self.split), self.terms)

    @classmethod
    def parse(cls, text: str) -> NvidiaPlan:
        """As Plan.parse. tf32 was an algorithm in earlier versions."""
        word, _, rest = text.partition(" ")
        return super().parse(f"mma {rest} terms=tf32" if word == "tf32" else text)

    @property
    def split(self) -> str:
        """The key of words.TERMS by which passes split both operands, or nothing."""
        return self.terms if "_" in self.terms else ""

    @property
    def packed(self) -> int:
        """Sums in a register, of f16; those of parts of a tile are added up in f32."""
        return 2 if self.terms == "f16" and not self.divided else 1

    @property
    def products(self) -> int:
        """Of terms, for one product of two numbers."""
        return len(TERMS[self.split].pairs) if self.split else 1

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.family.threads(self)

    @property
    def vectors(self) -> tuple[int, int, int]:
        """Elements of A and B that are copied at once, and of C that are stored."""
        return self.vector, self.vector_b or self.vector, self.vector_c or self.vector

    def tile_bytes(self, shape: GpuShape) -> int:
        """Of a tile of A and one of B."""
        return self.cta_k * (self.cta_m*shape.tile_bits[0] + self.cta_n*shape.tile_bits[1]) // 8

    def estimate(self, shape: GpuShape) -> int:
        """Registers of a thread, about."""
        return self.family.registers(self, shape)

    def shared(self, shape: GpuShape) -> int:
        """Bytes of a CTA's shared memory."""
        return self.family.shared(self, shape)

    def resident(self, shape: GpuShape, target: GpuTarget) -> int:
        """CTAs that a multiprocessor holds."""
        return self.family.resident(self, shape, target)

    def tail_split(self, shape: GpuShape, target: GpuTarget) -> tuple[int, int]:
        """With `tail`: (tiles that stay whole, parts of each of the others; of wgmma the most)."""
        return self.family.tail_split(self, shape, target)

    def grid(self, shape: GpuShape, target: GpuTarget) -> tuple[int, int, int]:
        """CTAs of a launch."""
        return self.family.grid(self, shape, target)

    @property
    def ctas(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m*self.cluster_n*self.cluster_k

    @property
    def divided(self) -> bool:
        """Whether tiles may be divided along k."""
        return self.tail or self.split_k > 1

    def violations(self, problem: Gemm | GpuShape, target: GpuTarget) -> list[str]:
        """Why this plan cannot run this problem on this target: sentences, none if it can."""
        shape = problem if isinstance(problem, GpuShape) else gpu.planner(target).shape_of(problem)
        wrong = self.unknown_words() or list(rules.of_passes(self, shape.least, target))
        return wrong or list(rules.violations(self, self.after_passes(shape.least), target))


def rounded(shape: GpuShape, terms: str) -> GpuShape:
    """What kernels multiply that round f32 as they read them, or sums of f16 as they add up."""
    if terms == "tf32":
        return shape._replace(a=terms, b=terms, terms="")
    return shape._replace(terms="") if terms == "f16" else shape
