"""How a GEMM runs on a GPU of AMD's: plans, what is wrong with one, and the choice by a model (plans/amd_model.py)."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal

from tilewright.forks import cached_property
from tilewright.formats.table import BLOCK_FORMATS
from tilewright.plans import epilogues, gpu_shape, passes
from tilewright.plans.amd_model import LANES, PIECE, bandwidths, cost, peak, traffic
from tilewright.plans.gpu import MOST, GpuPlan, choose, ranked
from tilewright.plans.gpu_formats import FP8, WRITTEN
from tilewright.plans.gpu_shape import BLOCK, REACH, GpuShape, Place
from tilewright.problem import SCALE_BLOCKS, Gemm
from tilewright.targets.amd import AmdTarget

if TYPE_CHECKING:
    from tilewright.plans.passes import Pass

__all__ = ["BLOCK", "LANES", "PIECE", "AmdPlan", "bandwidths", "candidates", "choose", "cost", "multiplied", "peak",
           "ranked", "shape_of", "traffic"]

Algorithm = Literal["mfma", "xf32", "scaled"]

SIX = 6*PIECE*2         # bits of 6-bit elements that a lane moves: 16 bytes of 24, whose tail it moves by the word
TRANSPOSED_BITS = (8, 16)       # of numbers that reads of LDS transpose, on chips that have such
# Fields of a shape that no emitter reads, and what each one is called in a refusal.
UNREAD = {"semiring": "semiring (tilewright.contract runs on CPUs and on NVIDIA's GPUs)",
          "prologues": "prologue (tilewright.matmul evaluates one in a pass before the product)",
          "terms": "products by terms"}


def multiplied(target: AmdTarget) -> tuple[str, ...]:
    """The formats of plain arrays that matrix instructions of a target multiply, without rounding them."""
    return tuple(f for f in target.matrix_rates if f in WRITTEN)


def shape_of(problem: Gemm, at: Sequence[Place] | None = None) -> GpuShape:
    """The shape, as plans.gpu.shape_of; operands that passes decode are read up to the last step of k."""
    shape = gpu_shape.shape_of(problem, at)
    return shape if instructions_scale(shape) else shape._replace(k=problem.k)


def instructions_scale(shape: GpuShape) -> bool:
    """Whether AMD's instructions with scales, if a chip has them, take those of both operands."""
    return all(BLOCK_FORMATS[x].mx for x in shape.scaled.split())


def vector_of(shape: GpuShape) -> int:
    """Elements that can be loaded at once of operands that are contiguous along m or n: by those sizes, since an access
    beyond the matrix is masked as a whole. It need not be aligned."""
    sides = [x for x, along_k in ((shape.m, shape.layout[0] == "n"), (shape.n, shape.layout[1] == "t")) if not along_k]
    return min([8*PIECE // max(shape.bits), *(x & -x for x in sides)])


def vector_c_of(shape: GpuShape) -> int:
    """Elements of C that can be stored at once."""
    return min(4, shape.n & -shape.n)


@dataclass(frozen=True)
class AmdPlan(GpuPlan):
    """`algorithm`: mfma multiplies the operands' own formats; xf32 rounds f32 to 19 bits, which gfx942 multiplies four
    times as fast; scaled is for block-scaled operands, which passes decode for mfma where no instruction takes their
    scales. The planner offers what rounds differently only if it is asked for.
    """
    FAMILY = "an AMD GPU"
    EXAMPLE = "mfma 256x256x32 wave=128x64 mfma=32 copy=registers stages=2"
    SIZES = "cta_m", "cta_n", "cta_k"
    GROUPS = ("wave", "warp_m", "warp_n"),
    ALWAYS = "mfma", "copy", "stages"
    FORMERLY = ("copy=direct", "copy=lds"),

    algorithm: Algorithm
    cta_m: int                      # of a workgroup, as GPU plans call it here
    cta_n: int
    cta_k: int
    warp_m: int                     # of a wave
    warp_n: int
    mfma: int = 32                  # rows and columns of an instruction's tile
    copy: Literal["registers", "lds"] = "registers"
    stages: int = 2
    vector: int = 8
    vector_c: int = 4
    split_k: int = 1
    group_m: int = 8
    decoded: Literal["none", "bf16"] = "none"       # as what passes write both operands, which are block-scaled

    @property
    def order_of_sums(self) -> tuple[object, ...]:
        return () if self.split_k > 1 else (self.algorithm, self.mfma, self.decoded)

    def passes(self, shape: GpuShape) -> tuple[Pass, ...]:
        return () if self.decoded == "none" else passes.passes(shape, "none", "")

    def after_passes(self, shape: GpuShape) -> GpuShape:
        return shape if self.decoded == "none" else passes.after(shape, "none", "")

    @cached_property
    def threads(self) -> int:
        return LANES * (self.cta_m // self.warp_m) * (self.cta_n // self.warp_n)

    def rows(self, shape: GpuShape) -> tuple[int, int]:
        """Bytes of a row of A's and of B's tile in LDS."""
        return self.cta_k * shape.bits[0] // 8, self.cta_k * shape.bits[1] // 8

    def lds(self, shape: GpuShape) -> int:
        """Bytes that the tiles take."""
        a, b = self.rows(shape)
        scales = sum(ceil(rows * self.cta_k / (4*BLOCK) / self.threads) * self.threads * 4
                     for rows in (self.cta_m, self.cta_n)) if self.direct_scales(shape) else 0
        return self.stages * (self.cta_m*a + self.cta_n*b + scales) + 128*(self.split_k > 1)

    def direct_scales(self, shape: GpuShape) -> bool:
        """Whether scales, too, come straight into LDS: words of four, as whole rows are then."""
        return self.algorithm == "scaled" and self.copy == "lds" and shape.k % (4*BLOCK) == 0

    def emitted(self, shape: GpuShape) -> tuple[GpuShape, AmdPlan]:
        """What emitters read of this plan and of the shape: of sizes only whether scales come straight into LDS."""
        k = BLOCK*(shape.scaled != "" and not self.direct_scales(shape))
        return gpu_shape.emitted(shape, (0, 0, k)), self

    def estimate(self, shape: GpuShape) -> int:
        """Registers of a lane: accumulators, operands, scales, what is on its way to LDS, addresses.

        Two rounds of operands, or one and a half where products and the reads of the next ones take turns.
        """
        words = 2 if shape.a == "f64" else 1
        direct = self.copy == "lds"
        staged = 0
        if not direct:                          # of bytes that are loaded one by one a register holds two
            a, b = self.rows(shape)
            for row, rows, bits, along_k in ((a, self.cta_m, shape.bits[0], shape.layout[0] == "n"),
                                             (b, self.cta_n, shape.bits[1], shape.layout[1] == "t")):
                single = self.vector == bits // 8 == 1 and not along_k
                staged += row*rows*(1 + single) // self.threads // 4
        # words that a lane has of a group's operand; words of tails, copied one by one
        ocp = self.algorithm == "mfma" and {shape.a, shape.b} <= {"e4m3fn", "e5m2"}
        wide = ocp or self.algorithm == "scaled"                        # f8f6f4: those of 32 elements
        words_a, words_b = shape.bits if wide else (4, 4)
        parts = (self.warp_m*words_a + self.warp_n*words_b) // self.mfma
        tails = sum(rows * self.cta_k // (BLOCK//2) // self.threads
                    for rows, bits in zip((self.cta_m, self.cta_n), shape.bits) if bits == 6) if direct else 0
        scales = 0
        if self.algorithm == "scaled" and direct:                       # this tile's and the next one's
            tiles = (self.warp_m + self.warp_n) // self.mfma
            scales = tiles * self.cta_k // (4*BLOCK) * 2
            if not self.direct_scales(shape):                           # those that are on their way, and pointers
                scales += scales // 2 + 2*tiles
        parts = 3*parts // 2 if direct else 2*parts
        across = 0 if direct else (shape.layout[0] == "t") + (shape.layout[1] == "n")       # transposed: row addresses
        return words*self.warp_m*self.warp_n // LANES + parts + scales + tails + staged + 12*across + 40

    def grid(self, shape: GpuShape, target: AmdTarget) -> tuple[int, int, int]:
        return self.tiles(shape.m, shape.n, shape.batch), 1, self.split_k

    def violations(self, problem: Gemm | GpuShape, target: AmdTarget) -> list[str]:
        """Why this plan cannot run this problem on this target: sentences, none if it can."""
        shape = problem if isinstance(problem, GpuShape) else shape_of(problem)
        return self.unknown_words() or list(_of_passes(self, shape.least, target)) or list(
            _violations(self, self.after_passes(shape.least), target))


def _of_passes(p: AmdPlan, shape: GpuShape, target: AmdTarget) -> Iterator[str]:
    """Why a plan cannot have its operands decoded before, or multiply them by their scales."""
    if bool(shape.scaled) != (p.decoded == "bf16" or p.algorithm == "scaled"):
        yield (f"operands with block scales ({shape.a}) need the algorithm scaled, or decoded=bf16." if shape.scaled
               else f"scaled and decoded=bf16 need operands with block scales, and {shape.a} has none here.")
    elif p.algorithm == "scaled" and p.decoded == "bf16":
        yield "decoded must be none for the algorithm scaled, whose instructions apply scales."
    elif p.algorithm == "scaled" and not (target.has("mfma.f8f6f4") and instructions_scale(shape)):
        yield (f"{target.name} has no matrix instructions with scales of {shape.scaled} (gfx950 has those of mxfp8, "
               "mxfp6 and mxfp4); mfma with decoded=bf16 needs none.")
    if (size := p.decoded == "bf16" and passes.written(shape, "none", "")) > passes.MOST:
        yield f"passes would write {size:,} bytes, and may write {passes.MOST:,}."


def _violations(p: AmdPlan, shape: GpuShape, target: AmdTarget) -> Iterator[str]:
    """Why a plan whose passes are over cannot multiply the shape that they leave."""
    if why := p.below_one("cta_m", "cta_n", "cta_k", "warp_m", "warp_n", "vector", "vector_c", "split_k", "group_m"):
        yield from why
        return
    yield from p.above(**MOST)
    if unread := [name for name in UNREAD if getattr(shape, name)]:
        yield f"kernels of {target.name} take no {' and no '.join(map(UNREAD.__getitem__, unread))}."
        return
    if p.mfma not in (16, 32) or (p.mfma == 32 and shape.a == "f64"):
        yield f"mfma must be 16 or 32, and 16 for f64: rows and columns of an instruction's tile; it is {p.mfma}."
        return
    plain = p.algorithm in ("mfma", "xf32")
    if shape.scales in SCALE_BLOCKS:
        yield f"{target.name} has no kernels with scales of {shape.scales}, f32 for blocks along k."
        return
    formats_here = target.matrix_rates
    if p.algorithm == "xf32" and (shape.a, shape.b) != ("f32", "f32"):
        yield f"xf32 multiplies f32, and this is {shape.a} by {shape.b}."
        return
    if plain:
        scaled = [f for f in BLOCK_FORMATS.values()
                  if f.mx and f.element.bits < 8 and f.element.name in (shape.a, shape.b)]
        if scaled:
            narrow = dict.fromkeys(f.element.name for f in scaled)
            yield f"{' by '.join(narrow)} is multiplied with block scales only: {' or '.join(f.name for f in scaled)}."
            return
        for format in dict.fromkeys(("xf32",) if p.algorithm == "xf32" else (shape.a, shape.b)):
            if format not in formats_here:
                known = ", ".join(formats_here)
                yield f"{target.name} has no matrix instruction for {format}; it has them for {known}."
                return
        if shape.a != shape.b and not {shape.a, shape.b} <= FP8:
            yield f"no matrix instruction multiplies {shape.a} by {shape.b}."
            return
    elif shape.layout != "nt" or shape.k % BLOCK:
        yield f"operands with scales have k along their rows (layout nt) in blocks of {BLOCK}."
        return
    if shape.epilogue:
        yield from epilogues.violations(shape, p.algorithm, p.vector_c)
        if shape.sums == "f64" and epilogues.sums_of_result(shape.epilogue) > 1:
            yield "pairs of columns are of one thread, and matrix instructions for f64 leave them to different ones."
    if shape.out not in (allowed := shape.results):
        yield f"the result is {shape.out}, and these operands give {', '.join(allowed)}."
    if p.cta_m % p.warp_m or p.cta_n % p.warp_n:
        yield f"a workgroup's tile of {p.cta_m}x{p.cta_n} is not a multiple of wave tiles of {p.warp_m}x{p.warp_n}."
        return
    if any(side < 32 or side & (side - 1) for side in (p.warp_m, p.warp_n)):
        yield f"wave tiles must have 32, 64, 128 ... rows and columns, not {p.warp_m}x{p.warp_n}."
        return
    if p.threads > target.threads_group:
        yield f"a workgroup would have {p.threads} threads, and may have {target.threads_group}."
        return
    yield from _depth(p, shape)
    if p.copy == "lds":
        yield from _direct(p, shape, target)
    elif p.stages != 2:
        yield f"copies through registers have 2 stages, not {p.stages}."
    if p.stages < 2:
        yield f"stages is {p.stages}, and must not be less than 2."
    if p.vector > vector_of(shape) and shape.layout != "nt":
        yield f"vector = {p.vector} elements along m or n are loaded at once, and these sizes allow {vector_of(shape)}."
    if p.vector_c > vector_c_of(shape):
        yield (f"vector_c = {p.vector_c} elements of C are stored at once, and n = {shape.n} allows "
               f"{vector_c_of(shape)}.")
    if (lds := p.lds(shape)) > target.lds:
        yield f"the tiles take {lds} bytes of LDS, and {target.name} has {target.lds}."
    most = target.vgprs // max(p.threads // LANES // target.simds, 1)
    if (registers := p.estimate(shape)) > most:
        yield f"a lane would need about {registers} registers, and {p.threads} threads leave it {most}."
    if p.split_k > max(ceil(shape.k / p.cta_k), 1):
        yield f"split_k = {p.split_k} exceeds the number of tiles along k."


def _depth(p: AmdPlan, shape: GpuShape) -> Iterator[str]:
    """Why a plan's cta_k does not fit: whole reads of all lanes, whole instructions, rows that swizzle."""
    read = PIECE * LANES // p.mfma                      # bytes along k that a wave's lanes read at once
    if p.algorithm == "scaled":
        if p.cta_k not in (4*BLOCK, 8*BLOCK, 16*BLOCK):
            yield f"cta_k = {p.cta_k} is not {4*BLOCK} or twice or four times that: four scales come at once."
        return
    for format, bits in zip((shape.a, shape.b), shape.bits):
        row = p.cta_k * bits // 8
        if row % read or row & (row - 1):
            yield (f"cta_k = {p.cta_k} elements of {format} are rows of {row} bytes in LDS, and must be a power of two "
                   f"of at least {read}.")
            return


def _direct(p: AmdPlan, shape: GpuShape, target: AmdTarget) -> Iterator[str]:
    """Why a plan cannot have copy=lds: direct loads need certain operands and tiles."""
    if PIECE not in target.direct:
        yield (f"copy=lds loads {PIECE} bytes per lane into LDS, and {target.name} loads at most "
               f"{max(target.direct)}.")
    sides = (("m", p.cta_m, shape.m, shape.bits[0], shape.layout[0] == "n", shape.vector_a, shape.near_a),
             ("n", p.cta_n, shape.n, shape.bits[1], shape.layout[1] == "t", shape.vector_b, shape.near_b))
    for name, rows, extent, bits, along_k, vector, near in sides:
        if not along_k and not (target.has("lds.transposed") and bits in TRANSPOSED_BITS):
            yield (f"copy=lds needs k contiguous (on gfx950 also m or n, for 8- and 16-bit elements); here {name} "
                   f"is contiguous, the elements have {bits} bits and the target is {target.name}.")
            return
        if p.cta_k*rows*bits // (SIX if bits == 6 else 8*PIECE) % p.threads:
            piece = SIX // 8 if bits == 6 else PIECE
            yield (f"copy=lds needs every thread to copy as many pieces of {piece} bytes; a "
                   f"{p.cta_m}x{p.cta_n}x{p.cta_k} tile does not divide into them among {p.threads} threads.")
            return
        what, size = ("k", shape.k) if along_k else (name, extent)
        if bits != 6 and size*bits % (8*PIECE):
            yield (f"copy=lds needs rows of a multiple of {PIECE} bytes; with {what} = {size} they have "
                   f"{size*bits / 8:g}.")
            return
        if bits != 6 and vector*bits < 8*PIECE:
            yield (f"copy=lds needs addresses and distances of rows that are multiples of {PIECE} bytes, and those "
                   f"of {'A' if name == 'm' else 'B'} are multiples of {vector*bits / 8:g}.")
            return
        if (rows if along_k else p.cta_k) > near:
            yield (f"copy=lds reaches {REACH} bytes from a tile's first row, and with {what} = {size} its rows are "
                   "further apart.")
            return


# ---- choosing

# (workgroup's tile, wave's tile), the largest first
TILES = (((256, 256), (128, 64)), ((256, 128), (128, 64)), ((128, 256), (64, 128)), ((256, 128), (64, 64)),
         ((128, 128), (64, 64)), ((128, 64), (64, 32)), ((64, 128), (32, 64)), ((64, 64), (32, 32)),
         ((32, 128), (32, 32)), ((128, 32), (32, 32)), ((32, 64), (32, 32)), ((64, 32), (32, 32)))
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)


def candidates(shape: GpuShape, target: AmdTarget) -> Iterator[AmdPlan]:
    """Plans worth a look, legal or not."""
    algorithm: Algorithm = "mfma"
    decoded: Literal["none", "bf16"] = "none"
    if shape.scaled and target.has("mfma.f8f6f4") and instructions_scale(shape):
        algorithm, depths = "scaled", [256, 128]
    else:
        if shape.scaled:
            decoded, shape = "bf16", passes.after(shape, "none", "")
        depths = [row * 8 // max(shape.bits) for row in (128, 64) if row * 8 // max(shape.bits)]
    ways: list[tuple[Literal["registers", "lds"], int]] = [("lds", 3), ("lds", 2), ("registers", 2)]
    for (cta_m, cta_n), (warp_m, warp_n) in TILES:
        for cta_k in depths:
            for copy, stages in ways:
                for mfma in (32, 16) if shape.a != "f64" else (16,):
                    plan = AmdPlan(algorithm, cta_m, cta_n, cta_k, warp_m, warp_n, mfma, copy, stages, vector_of(shape),
                                   vector_c_of(shape), decoded=decoded)
                    if mfma == 16 and shape.a != "f64" and cta_m*cta_n > 64*64:
                        continue                                # of large tiles, fewer operands are read with 32
                    if shape.a == "f64" and warp_m*warp_n > 64*64:
                        continue                                # their accumulators would be spilled
                    yield from [plan.varied(split_k=split) for split in SPLITS]
