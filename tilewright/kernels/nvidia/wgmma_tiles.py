"""Tiles of the GEMM by wgmma: of A and B in the stages of shared memory, as tensor maps bring them and wgmma reads
them, and of C, as the CTAs of a persistent grid take them.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.atoms.fragment import ROUNDED
from tilewright.atoms.wgmma import DEPTH, ROWS, SharedMatrix
from tilewright.ir import Kernel, TensorMap, Type, Value, i32
from tilewright.kernels.gpu.work import grouped, of_batch
from tilewright.kernels.narrow import memory_type

SWIZZLES = 128, 64                                          # bytes: rows of the blocks of a tile in shared memory
ALIGN = ROWS*SWIZZLES[0]                                    # of tiles there


@dataclass(frozen=True)
class SmemTile:
    """A tile of A or B in a stage: blocks of 128 (or 64) contiguous bytes by all of the other dimension, swizzled.

    EXTENT      of m or n
    SHARE       CTAs of the cluster that have the same tile: each brings its part of every block
    PLANES      tiles, one after another, each of a plane of a tensor that has this dimension too; 0: it has none
    """
    FORMAT: str
    along_k: bool
    EXTENT: int
    CTA_K: int
    SHARE: int
    BATCH: bool
    PLANES: int = 0

    def __post_init__(self) -> None:
        along, across = self._sides
        if along % self.ROW or across % (ROWS*self.SHARE):
            raise ValueError(f"a tile of {self.EXTENT} by {self.CTA_K} of k in {self.FORMAT} must have a multiple of "
                             f"{self.ROW} elements along its contiguous dimension, not {along}, and of "
                             f"{ROWS*self.SHARE} for {self.SHARE} CTAs along the other, not {across}")

    @property
    def TYPE(self) -> Type:
        """Of its elements in memory."""
        return memory_type(ROUNDED.get(self.FORMAT, self.FORMAT))

    @property
    def ITEM(self) -> int:
        return self.TYPE.bytes

    @property
    def SWIZZLE(self) -> int:
        """Bytes of a row of a block."""
        return next((s for s in SWIZZLES if self._sides[0]*self.ITEM % s == 0), SWIZZLES[-1])

    @property
    def ROW(self) -> int:
        """Elements of a row of a block."""
        return self.SWIZZLE // self.ITEM

    @property
    def _sides(self) -> tuple[int, int]:
        """Elements of the contiguous dimension, and of the other one."""
        return (self.CTA_K, self.EXTENT) if self.along_k else (self.EXTENT, self.CTA_K)

    @property
    def BLOCK(self) -> int:
        """Bytes of a block."""
        return self._sides[1]*self.SWIZZLE

    @property
    def PLANE(self) -> int:
        """Bytes of a plane."""
        return self.EXTENT*self.CTA_K*self.ITEM

    @property
    def BYTES(self) -> int:
        return self.PLANE*max(self.PLANES, 1)

    @property
    def map(self) -> TensorMap:
        """Of the matrix, contiguous dimension first; then planes, then matrices of a batch."""
        more = (1,)*(self.PLANES > 0) + (1,)*self.BATCH
        return TensorMap(self.TYPE, (self.ROW, self._sides[1] // self.SHARE, *more), self.SWIZZLE)

    @property
    def layout(self) -> SharedMatrix:
        stride = ROWS*self.SWIZZLE
        return SharedMatrix(self.SWIZZLE, "k", stride) if self.along_k else SharedMatrix(
            self.SWIZZLE, "mn", stride, self.BLOCK)

    def boxes(self, row: Value, step: Value, share: Value) -> Iterator[tuple[Value, tuple[Any, ...]]]:
        """Of the copies of CTA number `share` of those that share it: where each goes in the stage, in bytes, and its
        coordinates. `row` and `step`: where the tile begins in m or n, and in k."""
        along, across = self._sides
        part = share*(across // self.SHARE)
        x, y = (step, row) if self.along_k else (row, step)
        for plane in range(max(self.PLANES, 1)):
            for block in range(along // self.ROW):
                yield (part*self.SWIZZLE + (plane*self.PLANE + block*self.BLOCK),
                       (x + block*self.ROW, y + part) + (plane,)*(self.PLANES > 0))

    def at(self, row: Any, step: int, plane: int = 0) -> Any:
        """Bytes from the tile's beginning to the operand of an instruction: from this row, a multiple of 64, and the
        `step`th 32 bytes of k."""
        if self.along_k:
            block, inside = divmod(step*DEPTH, self.SWIZZLE)
            return row*self.SWIZZLE + (plane*self.PLANE + block*self.BLOCK + inside)
        return row // self.ROW * self.BLOCK + (plane*self.PLANE + step*(DEPTH // self.ITEM)*self.SWIZZLE)


class Tiles:
    """Which tiles of C a CTA works on: those of its cluster, each as large as all of its CTAs' together."""

    def __init__(self, k: Kernel, g: SimpleNamespace, CTA_M: int, CTA_N: int, CLUSTER_M: int, CLUSTER_N: int,
                 GROUP_M: int) -> None:
        self.k, self.g, self.GROUP_M, self.CTAS = k, g, GROUP_M, CLUSTER_M*CLUSTER_N
        self.CTA, self.CLUSTER = (CTA_M, CTA_N), (CLUSTER_M, CLUSTER_N)
        rank = k.cluster_rank if self.CTAS > 1 else k.constant(i32, 0)
        self.cluster_m, self.cluster_n = rank % CLUSTER_M, rank // CLUSTER_M
        # masks of the CTAs that have the same tile of A, and of B
        row = k.constant(i32, sum(1 << j*CLUSTER_M for j in range(CLUSTER_N)))
        column = k.constant(i32, (1 << CLUSTER_M) - 1)
        self.same_row = None if CLUSTER_N == 1 else row << self.cluster_m
        self.same_column = None if CLUSTER_M == 1 else column << self.cluster_n*CLUSTER_M
        self.tiles_m, self.tiles_n = k.ceil_div(g.m, CTA_M*CLUSTER_M), k.ceil_div(g.n, CTA_N*CLUSTER_N)
        self.count = of_batch(g, self.tiles_m*self.tiles_n)

    def each(self, stop: Value, first: Any = 0, every: int = 1) -> Any:
        """A loop over those of this cluster, or from the `first` one on every so many."""
        cluster, clusters = self.k.block[0] // self.CTAS, self.k.grid[0] // self.CTAS
        return self.k.loop(stop, start=cluster + first*clusters, step=clusters*every, unroll=False)

    def place(self, tile: Value) -> tuple[Value, Value, Value | None]:
        """Where the CTA's part of it begins in C, and in which matrix of a batch."""
        matrix = None
        if self.g.batch is not None:
            matrix = tile // (self.tiles_m*self.tiles_n)
            tile = tile - matrix*(self.tiles_m*self.tiles_n)
        tile_m, tile_n = grouped(self.k, tile, self.tiles_m, self.tiles_n, self.GROUP_M)
        return ((tile_m*self.CLUSTER[0] + self.cluster_m)*self.CTA[0],
                (tile_n*self.CLUSTER[1] + self.cluster_n)*self.CTA[1], matrix)
