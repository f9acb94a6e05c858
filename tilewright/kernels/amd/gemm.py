"""What the GEMMs on AMD's Matrix Cores have in common: a workgroup's parameters and work, what a wave multiplies of a
tile in LDS, and which elements of C its lanes hold.

    C = alpha * A @ B + beta * C

A workgroup of waves owns CTA_M x CTA_N elements of C, a wave WARP_M x WARP_N of these, in tiles of one instruction.
Instructions multiply B^T by A^T: then a lane's accumulators follow each other along the rows of C, in runs, which are
stored at once.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tilewright.atoms.mfma import Mfma
from tilewright.ir import Function, Kernel, Tile, Type, Value, i8
from tilewright.kernels.amd.lds_tile import LANES
from tilewright.kernels.amd.pipeline import Operands, Read
from tilewright.kernels.amd.scales import WORD, Scales, ScaleTile
from tilewright.kernels.gpu import groups
from tilewright.kernels.gpu.epilogue import Out, Run
from tilewright.kernels.gpu.fused import suffix
from tilewright.kernels.gpu.split_k import WIDEST, Holders, Split, finish
from tilewright.kernels.gpu.work import Work, arguments, parameters, share
from tilewright.plans.amd import AmdPlan
from tilewright.plans.gpu_shape import GpuShape


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
