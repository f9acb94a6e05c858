"""What the GEMMs on AMD's Matrix Cores have in common: a workgroup's parameters and work, what a wave multiplies of a
tile in LDS, and which elements of C its lanes hold.

    C = alpha * A @ B + beta * C

A workgroup of waves owns CTA_M x CTA_N elements of C, a wave WARP_M x WARP_N of these, in tiles of one instruction.
Instructions multiply B^T by A^T: then a lane's accumulators follow each other along the rows of C, in runs, which are
stored at once.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
from tilewright.kernels.narrow import memory_type


@dataclass(frozen=True)
class Tiling:
    """Tiles of C, and how workgroups share the work: gpu/split_k.py and gpu/work.py. MFMA: rows and columns of an
    instruction's tile; XCDS: dies of the chip."""
    CTA_M: int = 256
    CTA_N: int = 256
    CTA_K: int = 32
    WARP_M: int = 128
    WARP_N: int = 64
    MFMA: int = 32
    SPLIT_K: int = 1
    GROUP_M: int = 8
    XCDS: int = 8

    @property
    def threads(self) -> int:
        """Threads of a workgroup. ValueError for tiles that LDS is not read in (lds_tile)."""
        m, n = self.WARP_M, self.WARP_N
        if any(side < 32 or side & (side - 1) for side in (m, n)) or self.CTA_M % m or self.CTA_N % n:
            raise ValueError(f"a wave's tile must have 32, 64, 128 ... rows and columns and divide {self.CTA_M} x "
                             f"{self.CTA_N}, not {m} x {n}")
        return self.CTA_M // m * (self.CTA_N // n) * LANES


class WorkgroupGemm:
    """One kernel. A and B have elements TA and TB in memory; OUT is the format of C, of
    which VECTOR_C elements are stored at once: n is a multiple of that. BATCH: of many matrices, see work.parameters.
    EPILOGUE: the text of an expressions.function.Epilogue (gpu/fused.py). GROUPED: see gpu/groups.py; with BATCH.
    SCALES: the type of scales, which multiply sums if it is one of numbers; i8, of e8m0, for those of instructions.

    The kernel's name is NAME, the tiles and `mode`.
    """

    def __init__(self, NAME: str, mode: str, ATOM: Mfma, t: Tiling, TA: Type, TB: Type, OUT: str, VECTOR_C: int,
                 SCALES: Type | None = None, BATCH: bool = False, EPILOGUE: str = "", GROUPED: str = "") -> None:
        self.ATOM, self.t, self.THREADS, split = ATOM, t, t.threads, Split(t.SPLIT_K)
        self.OUT, self.VECTOR_C, self.SCALED = OUT, VECTOR_C, SCALES is not None and SCALES.is_float
        self.EPILOGUE, self.GROUPED = EPILOGUE, GROUPED
        tiles = f"{t.CTA_M}x{t.CTA_N}x{t.CTA_K}_{t.WARP_M}x{t.WARP_N}"
        name = (f"{NAME}_{tiles}{mode}{f'_k{t.SPLIT_K}' if t.SPLIT_K > 1 else ''}{'_batch' if BATCH else ''}"
                f"{'_scaled' if self.SCALED else ''}{f'_groups_{GROUPED}' if GROUPED else ''}{suffix(EPILOGUE)}")
        self.k = k = Kernel(name, threads=self.THREADS, warp=LANES,
                            **parameters(ATOM.c.type.scalar, TA, TB, memory_type(OUT), split, SCALES, BATCH,
                                         EPILOGUE=EPILOGUE, GROUPED=GROUPED))
        self.g = g = arguments(k)
        if GROUPED == "m":
            groups.clear(k, g, EPILOGUE, self.THREADS)
        self.work = share(k, g, split, CTA_M=t.CTA_M, CTA_N=t.CTA_N, CTA_K=t.CTA_K, WARP_M=t.WARP_M, WARP_N=t.WARP_N,
                          GROUP_M=t.GROUP_M, DIES=t.XCDS, AT_LEAST_ONE=True, GROUPED=GROUPED)

    def begin(self, a: Any, b: Any) -> None:
        """The operands' running addresses, and where a lane reads them in LDS."""
        work, g = self.work, self.g
        a.begin(work.t, work.i0, self.k.max(g.m, 1) if self.GROUPED == "m" else g.m, work.k_first)     # a row to read
        b.begin(work.t, work.j0, g.n, work.k_first)
        a.lane_addresses(work.i1, work.lane, self.t.MFMA, self.ATOM.k)
        b.lane_addresses(work.j1, work.lane, self.t.MFMA, self.ATOM.k)

    def multiply(self, main_loop: Callable[..., None], a: Any, b: Any, *scales: Scales | ScaleTile, STAGES: int = 2
                 ) -> Function:
        """All of it: by a main loop of pipeline.py or decoding.py, with STAGES tiles of each stream in LDS,
        and from the accumulators to C."""
        k, work, ATOM, streams = self.k, self.work, self.ATOM, (a, b, *scales)
        smem = k.smem("tiles", (STAGES * sum(x.SIZE for x in streams),), i8, align=128)
        acc = k.tile(self.t.WARP_M // ATOM.m, self.t.WARP_N // ATOM.m, ATOM.c.type)
        products = WaveProducts(k, ATOM, acc, a, b, self.t.CTA_K // ATOM.k, scales)
        main_loop(k, streams, smem, work.tiles, work.short, products)
        out = Out.from_arguments(k, self.g, self.OUT, self.VECTOR_C, ALIGNED=False, SCALED=self.SCALED,
                     EPILOGUE=self.EPILOGUE)
        finish(k, [acc], work.parts, Holders(work.t, work.t, self.THREADS),
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
