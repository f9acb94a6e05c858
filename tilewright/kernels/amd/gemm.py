"""GEMMs on AMD's Matrix Cores: tiles of A and B in LDS, a part of C in each wave's registers, one MFMA for a step of k.

    emit_mfma_gemm          C = alpha * A @ B + beta * C
    emit_scaled_mfma_gemm   the same of A[i, p] = a[i, p] * 2^(scale_a[i, p / 32] - 127), and B^T, on CDNA4

A workgroup of waves owns CTA_M x CTA_N elements of C, a wave WARP_M x WARP_N of these, in tiles of one instruction.
Instructions multiply B^T by A^T: then a lane's accumulators follow each other along the rows of C, in runs, which are
stored at once. Tile after tile of k, a workgroup's part of A and of B comes into LDS while its waves multiply the tile
before: through registers, which are loaded a tile ahead of that, or straight into LDS on chips that can, where the
reads transpose an operand with k strided (k_strided.py). The partial tile of k, if there is one, is the first, so that
the loop has no case for it.

Block-scaled elements are packed: e4m3fn, e5m2, e2m3, e3m2 and e2m1, in all 25 pairs. k lies along the rows of A and of
B^T, in whole blocks of 32. The Matrix Core applies the scales, an e8m0 of each operand for each row and block: they
come from global memory to the lanes that hand them over, a tile ahead, four blocks to a register.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tilewright.atoms import amd
from tilewright.atoms.amd import SCALED, Mfma
from tilewright.ir import Function, Kernel, Tile, Type, Value, bf16, f16, f32, f64, i8, i32, i64
from tilewright.ir.ops.amd import TRANSPOSED_BITS
from tilewright.kernels.amd import pipeline
from tilewright.kernels.amd.k_strided import KStridedOperand
from tilewright.kernels.amd.lds_tile import LANES
from tilewright.kernels.amd.operand import LdsOperand
from tilewright.kernels.amd.pipeline import Operands, Read
from tilewright.kernels.amd.scales import WORD, Scales, ScaleTile
from tilewright.kernels.gpu import groups
from tilewright.kernels.gpu.epilogue import Out, Run
from tilewright.kernels.gpu.fused import suffix
from tilewright.kernels.gpu.split_k import WIDEST, Holders, Split, finish
from tilewright.kernels.gpu.work import Work, arguments, parameters, share
from tilewright.plans.amd import AmdPlan
from tilewright.plans.gpu_shape import GpuShape
from tilewright.targets import target


class WorkgroupGemm:
    """One kernel for a shape, by a plan. A and B have elements of these types in memory. XCDS: dies of the chip.
    GROUPED: see gpu/groups.py; of a batch. WHEN: see work.arguments. The kernel's name is `name`, the tiles and `mode`.
    """

    def __init__(self, name: str, mode: str, ATOM: Mfma, shape: GpuShape, plan: AmdPlan, types: tuple[Type, Type],
                 XCDS: int, GROUPED: str = "", WHEN: str = "") -> None:
        self.ATOM, self.shape, self.plan, self.GROUPED = ATOM, shape, plan, GROUPED
        s, p, split = shape, plan, Split(plan.split_k)
        name = (f"{name}_{p.cta_m}x{p.cta_n}x{p.cta_k}_{p.warp_m}x{p.warp_n}{mode}"
                f"{f'_k{p.split_k}' if p.split_k > 1 else ''}{'_batch' if s.batch != 1 else ''}"
                f"{'_scaled' if s.scales else ''}{f'_when_{WHEN}' if WHEN else ''}"
                f"{f'_groups_{GROUPED}' if GROUPED else ''}{suffix(s.epilogue)}")
        self.k = k = Kernel(name, threads=p.threads, warp=LANES,
                            **parameters(s, ATOM.c.type.scalar, split, WHEN, GROUPED, types))
        self.g = g = arguments(k, WHEN)
        if GROUPED == "m":
            groups.clear(k, g, s.epilogue, p.threads)
        self.work = share(k, g, split, p, DIES=XCDS, AT_LEAST_ONE=True, GROUPED=GROUPED)

    def begin(self, a: Any, b: Any) -> None:
        """The operands' running addresses, and where a lane reads them in LDS."""
        work, g = self.work, self.g
        a.begin(work.t, work.i0, self.k.max(g.m, 1) if self.GROUPED == "m" else g.m, work.k_first)     # a row to read
        b.begin(work.t, work.j0, g.n, work.k_first)
        a.lane_addresses(work.i1, work.lane, self.plan.mfma, self.ATOM.k)
        b.lane_addresses(work.j1, work.lane, self.plan.mfma, self.ATOM.k)

    def multiply(self, main_loop: Callable[..., None], a: Any, b: Any, *scales: Scales | ScaleTile, STAGES: int = 2
                 ) -> Function:
        """All of it: by a main loop of pipeline.py, with STAGES tiles of each stream in LDS,
        and from the accumulators to C."""
        k, work, ATOM, s, p, streams = self.k, self.work, self.ATOM, self.shape, self.plan, (a, b, *scales)
        smem = k.smem("tiles", (STAGES * sum(x.SIZE for x in streams),), i8, align=128)
        acc = k.tile(p.warp_m // ATOM.m, p.warp_n // ATOM.m, ATOM.c.type)
        products = WaveProducts(k, ATOM, acc, a, b, p.cta_k // ATOM.k, scales)
        main_loop(k, streams, smem, work.tiles, work.short, products)
        out = Out.from_arguments(k, self.g, s.out, p.vector_c, ALIGNED=False, SCALED=s.scales != "",
                                 EPILOGUE=s.epilogue)
        finish(k, [acc], work.parts, Holders(work.t, work.t, p.threads),
               lambda: out.store(partial(runs, acc, work, ATOM, out)))
        return k.function


class WaveProducts:
    """acc += a part of A's tile times a part of B's, which lie one after the other; STEPS instructions along k.

    Instructions have scales (of A, of B) or none. A group is as many as READS of A's tile says.
    """

    def __init__(self, k: Kernel, ATOM: Mfma, acc: Tile, a: Any, b: Any, STEPS: int,
                 scales: Sequence[Scales | ScaleTile] = ()) -> None:
        self.k, self.ATOM, self.acc, self.a, self.b, self.scales = k, ATOM, acc, a, b, scales
        self.TILES_M, self.TILES_N, self.PARTS, self.GROUPS = acc.rows, acc.cols, a.READS, STEPS // a.READS
        self.CYCLES = min(ATOM.cycles.values())

    def reads(self, at: Value, group: int) -> list[Read]:
        """For each tile of A and of B its operands for all PARTS, in the order in which products need them."""
        step = group*self.PARTS
        of_a = [partial(self.a.read, at, i, step) for i in range(self.TILES_M)]
        of_b = [lambda j=j: self.b.read(at + self.a.SIZE, j, step) for j in range(self.TILES_N)]
        return [of_a[0], *of_b, *of_a[1:]]

    def words(self, at: Value) -> list[Read]:
        """Scales of a tile, for all its groups: those of A's tiles, then of B's."""
        reads, offset = [], self.a.SIZE + self.b.SIZE
        for x in self.scales:
            reads += x.reads(at + offset)
            offset += x.SIZE
        return reads

    def shifted(self, words: Operands) -> Operands:
        """Words of scales shifted so that instructions find each lane's scales in the same bytes."""
        return [self.scales[0].shifted(word) for word in words]

    def read(self, at: Value, group: int) -> Operands:
        """All of `reads`, then all `words`, shifted."""
        return [x for read in self.reads(at, group) for x in read()] + self.shifted(
            [x for read in self.words(at) for x in read()])

    def scale(self, step: int) -> tuple[int, int]:
        """The word of a tile's row, and the byte of it, that has a lane's scale for this instruction."""
        return divmod(step * (LANES // self.ATOM.m), WORD)

    def instructions(self, operands: Operands, group: int, part: int) -> list[Callable[[], None]]:
        k, ATOM, M, N, P = self.k, self.ATOM, self.TILES_M, self.TILES_N, self.PARTS
        (first, *tiles), words = operands[part:(M + N)*P:P], operands[(M + N)*P:]
        b, a, scales = tiles[:N], [first, *tiles[N:]], []
        if self.scales:
            word, byte = self.scale(group*P)
            ATOM = ATOM.bytes(byte, byte)
            scales = words[word::len(words) // (M + N)]

        def multiply(i: int, j: int) -> None:
            left, right = k.reinterpret(b[j], ATOM.a.type), k.reinterpret(a[i], ATOM.b.type)
            self.acc[i, j], = k.mma(ATOM, [left, *scales[M + j:M + j + 1]], [right, *scales[i:i + 1]],
                                    [self.acc[i, j]])
        return [partial(multiply, i, j) for i in range(M) for j in range(N)]

    def multiply(self, operands: Operands, group: int, part: int) -> None:
        for product in self.instructions(operands, group, part):
            product()


def runs(acc: Tile, work: Work, ATOM: Mfma, out: Out) -> Iterator[Run]:
    """The lane's elements, out.VECTOR of a row at once where it has them side by side."""
    rows = [work.i0 + work.i1 + work.lane % ATOM.m + i*ATOM.m for i in range(acc.rows)]
    columns = [work.j0 + work.j1 + j*ATOM.m for j in range(acc.cols)]
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            sums = acc[i, j]
            for first, count in side_by_side(ATOM):
                width = min(count, out.VECTOR)
                for e in range(first, first + count, width):
                    yield Run(row, column + ATOM.c(work.lane, e)[0], [sums[e + d] for d in range(width)])


def side_by_side(ATOM: Mfma) -> Iterator[tuple[int, int]]:
    """(first element, count) of a lane's accumulators that are next to each other in a row of C, 16 bytes at most."""
    at = [ATOM.c(0, e)[0] for e in range(ATOM.c.elements)]
    most = WIDEST // ATOM.c.type.scalar.bytes
    first = 0
    for e in range(1, len(at) + 1):
        if e == len(at) or at[e] != at[e - 1] + 1 or e - first == most:
            yield first, e - first
            first = e


TYPES = {"f64": f64, "f32": f32, "xf32": f32, "f16": f16, "bf16": bf16, "i32": i32}     # of memory; others are bytes


def instruction(ARCH: str, MFMA: int, A: str, B: str, CTA_K: int) -> Mfma:
    """The instruction that multiplies most elements of these formats at once, in tiles of MFMA x MFMA, of CTA_K steps
    at most; its A is B^T."""
    fitting = [atom for atom in amd.mfma_instructions(ARCH) if atom.blocks == 1 and atom.m == MFMA and not atom.scaled
             and (atom.a_format, atom.b_format) == (B, A) and min(atom.a.bits, atom.b.bits) >= 8 and atom.k <= CTA_K]
    if not fitting:
        raise ValueError(f"{ARCH} has no matrix instruction for {A} by {B} in tiles of {MFMA} x {MFMA}")
    return max(fitting, key=lambda atom: atom.k)


def emit_mfma_gemm(shape: GpuShape, plan: AmdPlan, ARCH: str, XCDS: int = 8, GROUPED: str = "",
                   WHEN: str = "") -> Function:
    """The kernel for a shape, by a plan of mfma or xf32. The plan's `vector` is of operands that are contiguous along m
    or n: those sizes are multiples of it. GROUPED: what offsets divide, "m" (then k is contiguous in A) or "k": see
    gpu/groups.py; of a batch, with split_k = 1. WHEN: see work.arguments."""
    s, p, (A, B) = shape, plan, ("xf32", "xf32") if plan.algorithm == "xf32" else (shape.a, shape.b)
    ATOM = instruction(ARCH, p.mfma, A, B, p.cta_k)
    direct = p.copy == "lds"
    name = f"mfma_gemm_{A}" + f"_{B}"*(B != A) + f"_{s.out}"*(s.out != s.sums) + f"_{s.layout}"
    gemm = WorkgroupGemm(name, f"_s{p.stages}" if direct else "", ATOM, s, p, (TYPES.get(A, i8), TYPES.get(B, i8)),
                         XCDS, GROUPED, WHEN)
    g, transposed = gemm.g, direct and target(ARCH).has("lds.transposed")

    def operand(gmem: Value, ld: Value, BITS: int, along_k: bool, EXTENT: int) -> LdsOperand | KStridedOperand:
        common: dict[str, Any] = {"BITS": BITS, "EXTENT": EXTENT, "CTA_K": p.cta_k, "THREADS": p.threads}
        if transposed and not along_k and BITS in TRANSPOSED_BITS:
            return KStridedOperand(gemm.k, gmem, ld, **common)
        return LdsOperand(gemm.k, gmem, ld, along_k=along_k, VECTOR=p.vector, **common)
    a = operand(g.a, g.lda, ATOM.b.bits, s.layout[0] == "n", p.cta_m)
    b = operand(g.b, g.ldb, ATOM.a.bits, s.layout[1] == "t", p.cta_n)
    gemm.begin(a, b)
    if direct:
        return gemm.multiply(partial(pipeline.direct, STAGES=p.stages), a, b, STAGES=p.stages)
    return gemm.multiply(pipeline.through_registers, a, b)


K = {32: 64, 16: 128}           # of an instruction whose tile is 32 x 32, 16 x 16
UNIT = 8                        # bytes: rows are multiples of it, since blocks are


def emit_scaled_mfma_gemm(shape: GpuShape, plan: AmdPlan, ARCH: str = "gfx950", XCDS: int = 8) -> Function:
    """lda and ldb count bytes, ld_scale_a and ld_scale_b scales; k counts elements, a multiple of 32. Where scales come
    straight into LDS, too, k is a multiple of 128, ld_scale_a and ld_scale_b of 4."""
    s, p, direct = shape, plan, plan.copy == "lds"
    ATOM = amd.scaled(ARCH, p.mfma, K[p.mfma], s.b, s.a)
    mode = f"_s{p.stages}" + "d"*p.direct_scales(s) if direct else ""
    gemm = WorkgroupGemm(mx_name("scaled_mfma_gemm", s), mode, ATOM, s, p, (i8, i8), XCDS)
    k, g, work = gemm.k, gemm.g, gemm.work

    common: dict[str, Any] = {"along_k": True, "CTA_K": p.cta_k, "THREADS": p.threads, "UNIT": UNIT}
    a = LdsOperand(k, g.a, k.cast(g.lda, i64) // UNIT, BITS=ATOM.b.bits, EXTENT=p.cta_m, **common)
    b = LdsOperand(k, g.b, k.cast(g.ldb, i64) // UNIT, BITS=ATOM.a.bits, EXTENT=p.cta_n, **common)
    gemm.begin(a, b)
    block = work.k_first // SCALED
    scales: list[Scales | ScaleTile] = []
    for x, ld, first, inner, limit, CTA, WARP in (
            (g.scale_a, g.ld_scale_a, work.i0, work.i1, g.m, p.cta_m, p.warp_m),
            (g.scale_b, g.ld_scale_b, work.j0, work.j1, g.n, p.cta_n, p.warp_n)):
        if p.direct_scales(s):
            tile = ScaleTile(k, x, ld, EXTENT=CTA, WARP=WARP, MFMA=p.mfma, CTA_K=p.cta_k, THREADS=p.threads)
            tile.begin(work.t, first, limit, block)
            tile.lane_addresses(inner, work.lane)
            scales.append(tile)
        else:
            scales.append(Scales(k, x, ld, work.lane, first + inner, limit, block, MFMA=p.mfma, TILES=WARP // p.mfma,
                                 CTA_K=p.cta_k, AHEAD=1 if direct else 2))
    if direct:
        return gemm.multiply(partial(pipeline.direct, STAGES=p.stages), a, b, *scales, STAGES=p.stages)
    return gemm.multiply(pipeline.through_registers, a, b, *scales)


def mx_name(name: str, s: GpuShape) -> str:
    """The beginning of the name of a kernel of block-scaled operands."""
    return f"{name}_{s.a}" + f"_{s.b}"*(s.b != s.a) + f"_{s.out}"*(s.out != "f32")
