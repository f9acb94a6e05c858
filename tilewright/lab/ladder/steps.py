"""The three ladders as data: ways to multiply matrices, one idea apart, each readable in a minute.

CPU_STEPS   six steps, after https://salykova.github.io/matmul-cpu (docs/cpu-ladder.md); row-major matrices of any size.
            The product's own kernels, in kernels/cpu, go on from the last one.
GPU_STEPS   twelve kernels for NVIDIA's GPUs (docs/gpu-ladder.md), and with the choice among the last three, and
            TENSOR_STEPS, eight kernels that go on from there on tensor cores, in bf16, GPU_LADDER
AMD_STEPS   five products by one wave and one matrix instruction each: the kernels of AMD's article "Matrix Core
            Programming on AMD CDNA3 and CDNA4 architecture", https://salykova.github.io/matrix-cores-cdna, also on
            AMD's ROCm Blogs (docs/matrix-cores.md)

Options that take a step's name (`tilewright ladder`, `simulate --step`, `emit --step`, `asm --step`) look it up by
`step`; run.py compiles and simulates steps, run_cpu.py and run_nvidia.py run them.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

from tilewright.atoms.amd import Mfma
from tilewright.ir import Function
from tilewright.lab.ladder import (
    amd1_f32,
    amd2_f16,
    amd3_fp8,
    amd4_mxfp8,
    amd5_mxfp4,
    cpu1_naive,
    cpu2_registers,
    cpu3_padded,
    cpu4_blocked,
    cpu5_micro,
    cpu6_parallel,
    cpu_article,
    gpu01_naive,
    gpu02_tiled,
    gpu03_registers,
    gpu04_shared,
    gpu05_coalesced,
    gpu06_padded,
    gpu07_vectors,
    gpu08_buffered,
    gpu09_warps,
    gpu10_stored,
    gpu11_texture,
    gpu12_async,
    gpu14_mma,
    gpu15_ldmatrix,
    gpu16_ring,
    gpu17_wgmma,
    gpu18_tma,
    gpu19_roles,
    gpu20_multicast,
    gpu21_pingpong,
)
from tilewright.targets import AmdTarget, CpuTarget, Target
from tilewright.targets.nvidia import TARGETS

Tile = tuple[int, int]
CDNA3, CDNA4 = "gfx942", "gfx950"


@dataclass(frozen=True)
class Step:
    """`emit(target, dtype, *blocks)` records the function `symbol`_f32 or _f64."""
    formats: ClassVar[tuple[str, ...]] = ("f32", "f64")
    layout: ClassVar[str] = "nn"
    title: str
    idea: str
    emit: Callable[..., Function]
    blocks: Callable[..., tuple[int, ...]] = lambda target, dtype, team: ()     # the further arguments of `emit`
    work: Callable[..., int] = lambda target, dtype, m, n, depth, *blocks: 0    # elements of scratch memory
    parallel: bool = False      # it is called as (job, tid), by a team of threads

    @property
    def symbol(self) -> str:
        return self.emit.__module__.rpartition(".")[2].replace("cpu", "ladder")


CPU_STEPS: dict[str, Step] = {
    "naive": Step("1 naive", "three loops, one element of C at a time", cpu1_naive.emit_naive),
    "registers": Step("2 registers", "a tile of C in vector registers", cpu2_registers.emit_registers),
    "padded": Step("3 padded", "the tile at the edges too: operands padded with zeros, stores masked",
                   cpu3_padded.emit_padded, work=cpu3_padded.padded_work),
    "blocked": Step("4 blocked", "five loops, and panels packed for the caches", cpu4_blocked.emit_blocked,
                    lambda target, dtype, team: cpu4_blocked.blocks(target, dtype), cpu4_blocked.blocked_work),
    "micro": Step("5 micro", "no masks inside, prefetch of C, larger blocks, better packing", cpu5_micro.emit_micro,
                  lambda target, dtype, team: cpu5_micro.blocks(target, dtype), cpu4_blocked.blocked_work),
    "parallel": Step("6 parallel", "packing and tiles split over threads", cpu6_parallel.emit_parallel,
                     cpu6_parallel.blocks, cpu4_blocked.blocked_work, parallel=True),
}
ARTICLE = Step("article", "step 6 with the article's own loops and blocks", cpu_article.emit_article,
               cpu_article.blocks, cpu_article.work, parallel=True)


@dataclass(frozen=True)
class GpuStep:
    """`emit(**sizes)` records the kernel. The same sizes, such as V=4, go to everything else that depends on them.

    loads, shared   elements loaded from global and from shared memory per multiply-add, where no tile hangs over;
                    `formula` says the same for n x n x n in the lecture's words
    """
    formats: ClassVar[tuple[str, ...]] = ("f32",)
    layout: ClassVar[str] = "nn"
    title: str
    idea: str
    emit: Callable[..., Function]
    tile: Callable[..., Tile] = lambda L=128, S=8, V=8, PAD=0: (L, L)       # (rows, columns) of C that a CTA computes
    loads: Callable[..., Fraction] = lambda L=128, S=8, V=8, PAD=0: Fraction(2, L)
    shared: Callable[..., Fraction] = lambda L=128, S=8, V=8, PAD=0: Fraction(2, V)
    formula: str = "2n³/L global, 2n³/V shared"
    x_is_rows: bool = False                 # block.x counts rows of CTAs: the lecture's V1 to V2
    c_through_shared: bool = False          # so that C is read from there once more
    textures: bool = False                  # A and B are Texture parameters

    def grid(self, m: int, n: int, **sizes: Any) -> Tile:
        """CTAs along x and y."""
        rows, columns = self.tile(**sizes)
        down, across = -(-m // rows), -(-n // columns)
        return (down, across) if self.x_is_rows else (across, down)

    def moves(self, m: int, n: int, k: int, **sizes: Any) -> tuple[int, int]:
        """Elements that are loaded from global and from shared memory; m, n and k are multiples of the tiles."""
        through = m * n if self.c_through_shared else 0
        return int(self.loads(**sizes) * m * n * k), int(self.shared(**sizes) * m * n * k) + through


def _of_threads(V: int = 8, BLOCK: int = 16) -> Tile: return V * BLOCK, V * BLOCK
def _nothing(**sizes: int) -> Fraction: return Fraction(0)


GPU_STEPS: dict[str, GpuStep] = {
    "naive": GpuStep(
        "V1 naive", "a thread per element of C", gpu01_naive.emit_naive,
        lambda BLOCK=16: (BLOCK, BLOCK), lambda BLOCK=16: Fraction(2), _nothing, "2n³", x_is_rows=True),
    "tiled": GpuStep(
        "V1.5 tiled", "a thread per V x V elements: a row of A is read once for V columns", gpu02_tiled.emit_tiled,
        _of_threads, lambda V=8, BLOCK=16: 1 + Fraction(1, V), _nothing, "n³/V + n³", x_is_rows=True),
    "registers": GpuStep(
        "V2 registers", "outer products: each element that is read is used V times", gpu03_registers.emit_registers,
        _of_threads, lambda V=8, BLOCK=16: Fraction(2, V), _nothing, "2n³/V", x_is_rows=True),
    "shared": GpuStep(
        "V3 shared", "a CTA fetches tiles of A and B together into shared memory", gpu04_shared.emit_shared),
    "coalesced": GpuStep(
        "5 coalesced", "neighbouring threads have neighbouring columns", gpu05_coalesced.emit_coalesced),
    "padded": GpuStep(
        "6 padded", "A transposed in shared memory, in rows that shift the banks", gpu06_padded.emit_padded),
    "vectors": GpuStep("7 vectors", "16-byte loads from shared memory", gpu07_vectors.emit_vectors),
    "buffered": GpuStep(
        "8 buffered", "the next tiles and vectors are on their way during the multiply-adds",
        gpu08_buffered.emit_buffered),
    "warps": GpuStep(
        "9 warps", "a warp's threads sit together: it reads fewer different elements", gpu09_warps.emit_warps),
    "stored": GpuStep(
        "10 stored", "C leaves through shared memory in whole rows: the article's 128x128x8", gpu10_stored.emit_stored,
        formula="2n³/L global, 2n³/V shared + n²", c_through_shared=True),
    "texture": GpuStep(
        "11 texture", "texture loads: 16 bytes at a time, no tests for the edges", gpu11_texture.emit_texture,
        formula="2n³/L global, 2n³/V shared + n²", c_through_shared=True, textures=True),
    "async": GpuStep(
        "12 async", "128x256x8, copied into shared memory past the registers", gpu12_async.emit_async,
        lambda: (128, 256), lambda: Fraction(1, 128) + Fraction(1, 256), lambda: Fraction(1, 16) + Fraction(1, 8),
        "n³/128 + n³/256 global, n³/16 + n³/8 + n² shared", c_through_shared=True),
}


# Beside the ladder: an experiment of the article, to be timed
GPU_VARIANTS: dict[str, GpuStep] = {
    "async128": GpuStep("12 async 128", "step 10 with copies in place of loads", partial(gpu12_async.emit_async, 128),
                        formula="2n³/L global, 2n³/V shared + n²", c_through_shared=True),
}


@dataclass(frozen=True)
class Choice:
    """A step that is no kernel of its own: gpu13_dispatch.choose says which of these multiplies given matrices."""
    formats: ClassVar[tuple[str, ...]] = ("f32",)
    layout: ClassVar[str] = "nn"
    title: str
    idea: str
    among: tuple[str, ...]


DISPATCH = "dispatch"


@dataclass(frozen=True)
class TensorStep:
    """`emit()` records the kernel, C = alpha A B^T + beta C of bf16 with sums in f32.

    expected    how many times as fast as the step before it should be on an H200 at 4096, by the bytes and clocks of
                both, as written down before it was measured (docs/gpu-ladder.md says why)
    tile        (rows, columns) of C that a CTA computes at a time
    ctas        of a cluster, one below the other
    boxes       rows of the tiles of A and of B that tensor maps bring; None: A and B are pointers
    stays       CTAs take tile after tile, so that no more are launched than run at once, one on a multiprocessor
    """
    formats: ClassVar[tuple[str, ...]] = ("bf16-bf16-bf16",)
    layout: ClassVar[str] = "nt"
    title: str
    idea: str
    expected: float
    emit: Callable[..., Function]
    needs: str = "wgmma"                # of a target's instructions
    tile: Tile = (128, 128)
    ctas: int = 1
    boxes: Tile | None = None
    stays: bool = False

    def moves(self, m: int, n: int, k: int) -> tuple[int, int]:
        """Elements that are loaded from global memory, and none of which a thread must: each CTA has its rows of A, and
        shares the columns of B with those of its cluster. m, n and k are multiples of the tiles."""
        rows, columns = self.tile
        return m * n * k // columns + m * n * k // (rows * self.ctas), 0

    @property
    def formula(self) -> str:
        return f"n³/{self.tile[1]} + n³/{self.tile[0] * self.ctas}"

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(name for name, target in TARGETS.items() if self.needs in target.instructions)

    def grid(self, m: int, n: int, sms: int) -> Tile:
        """CTAs along x and y: whole clusters, and of a kernel that stays as many as a device with so many
        multiprocessors runs at once."""
        rows, columns = self.tile
        down, across = -(-m // (rows * self.ctas)) * self.ctas, -(-n // columns)
        return (min(down * across, sms // self.ctas * self.ctas), 1) if self.stays else (across, down)


TENSOR_STEPS: dict[str, TensorStep] = {
    "mma": TensorStep(
        "14 mma", "tensor cores: 16 x 8 x 16 by one instruction of a warp", 0, gpu14_mma.emit_mma, "bf16"),
    "ldmatrix": TensorStep(
        "15 ldmatrix", "operands by one instruction for four loads", 1.15, gpu15_ldmatrix.emit_ldmatrix, "bf16"),
    "ring": TensorStep(
        "16 ring", "copies in flight to three stages of shared memory; operands read a step ahead", 2.0,
        gpu16_ring.emit_ring, "bf16"),
    "wgmma": TensorStep(
        "17 wgmma", "products of four warps, straight from shared memory", 1.15, gpu17_wgmma.emit_wgmma),
    "tma": TensorStep(
        "18 tma", "one thread asks for a tile, and hardware copies it", 1.1, gpu18_tma.emit_tma, boxes=(128, 128)),
    "roles": TensorStep(
        "19 roles", "warps that load and warps that multiply; 128 x 256 of C", 1.15, gpu19_roles.emit_roles,
        tile=(128, 256), boxes=(128, 256)),
    "multicast": TensorStep(
        "20 multicast", "two CTAs share a tile of B", 1.03, gpu20_multicast.emit_multicast, tile=(128, 256), ctas=2,
        boxes=(128, 128)),
    "pingpong": TensorStep(
        "21 pingpong", "CTAs that stay, warpgroups that take turns: one stores while the other multiplies", 1.05,
        gpu21_pingpong.emit_pingpong, tile=(64, 256), ctas=2, boxes=(64, 128), stays=True),
}
GPU_LADDER: dict[str, Any] = GPU_STEPS | {
    DISPATCH: Choice("13 dispatch", "async for large C, texture for aligned matrices, stored for all others",
                     ("async", "texture", "stored"))} | TENSOR_STEPS


@dataclass(frozen=True)
class AmdStep:
    """`emit(arch)` records the kernel for an architecture, `atom(arch)` is the instruction that it uses, whose m, n, k
    and formats are the product's. The same formats, such as A="bf8", go to both.

    The kernel's parameters are a, b and c, or a, scale_a, b, scale_b and c: row-major, elements of 4 bits packed along
    the rows, scales e8m0 [m, k/32] and [k/32, n]. The grid is one workgroup of one wave.
    """
    title: str
    idea: str
    emit: Callable[..., Function]
    atom: Callable[..., Mfma]
    targets: tuple[str, ...]


AMD_STEPS: dict[str, AmdStep] = {
    "f32": AmdStep(
        "1 f32", "64 lanes hold the matrices together: load and store by the atom's layouts",
        amd1_f32.emit_f32, amd1_f32.atom, (CDNA3, CDNA4)),
    "f16": AmdStep(
        "2 f16", "four elements of a lane side by side: A by one load, B from four rows",
        amd2_f16.emit_f16, amd2_f16.atom, (CDNA3, CDNA4)),
    "fp8": AmdStep(
        "3 fp8", "bytes, decoded by the instruction: fnuz on CDNA3, OCP on CDNA4",
        amd3_fp8.emit_fp8, amd3_fp8.atom, (CDNA3, CDNA4)),
    "mxfp8": AmdStep(
        "4 mxfp8", "32 elements along k share a scale, which another lane may bring",
        amd4_mxfp8.emit_mxfp8, amd4_mxfp8.atom, (CDNA4,)),
    "mxfp4": AmdStep(
        "5 mxfp4", "two elements in a byte: the nibbles of B have to be picked",
        amd5_mxfp4.emit_mxfp4, amd5_mxfp4.atom, (CDNA4,)),
}


def ladder(target: Target) -> tuple[str, Mapping[str, Any]]:
    """The ladder that runs on a target, as `tilewright ladder` calls it, and its steps by name."""
    if isinstance(target, CpuTarget):
        return "cpu", CPU_STEPS
    if isinstance(target, AmdTarget):
        return "amd", AMD_STEPS
    return "gpu", GPU_LADDER


def step(name: str, target: Target) -> Any:
    """The step of this name on a target's ladder. ValueError, with the names that there are, for any other, and for a
    step whose instruction the target lacks."""
    kind, steps = ladder(target)
    if kind == "gpu" and name in GPU_VARIANTS:
        return GPU_VARIANTS[name]
    if name not in steps:
        raise ValueError(f"there is no step {name!r} of the {kind.upper()} ladder, which is {target.name}'s; the steps "
                         f"are {', '.join(steps)}")
    ladder_step = steps[name]
    if target.name not in getattr(ladder_step, "targets", (target.name,)):
        raise ValueError(f"{target.name} lacks the instruction of step {ladder_step.title}, which is for "
                         f"{', '.join(ladder_step.targets)}")
    return ladder_step
