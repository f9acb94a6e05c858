"""Tiles of the GEMM by wgmma: of A and B in the stages of shared memory, as tensor maps bring them and wgmma reads
them, and of C, as the CTAs of a persistent grid take them: a tile after the other, or of the last ones parts of k.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.atoms.fragment import ROUNDED
from tilewright.atoms.wgmma import DEPTH, ROWS, SharedMatrix
from tilewright.ir import Kernel, TensorMap, Type, Value, i32
from tilewright.kernels.gpu import groups
from tilewright.kernels.gpu.split_k import Parts
from tilewright.kernels.gpu.work import grouped, of_batch
from tilewright.kernels.narrow import memory_type
from tilewright.plans.nvidia_plan import NvidiaPlan

SWIZZLES = 128, 64, 32                                      # bytes: rows of the blocks of a tile in shared memory
ALIGN = ROWS*SWIZZLES[0]                                    # of tiles there


@dataclass(frozen=True)
class SmemTile:
    """A tile of A or B in a stage: blocks of 128 (or 64) contiguous bytes by all of the other dimension, swizzled.

    EXTENT      of m or n
    SHARE       CTAs of the cluster that have the same tile: each brings its part of every block, or where parts would
                not be whole repetitions of the swizzle, each in turn brings whole tiles
    PLANES      tiles, one after another, each of a plane of a tensor that has this dimension too; 0: it has none
    IMAGES      the matrix is the windows of images (wgmma_windows.py), of whose channels rows of blocks have at most so
                many bytes; 0: it is none
    """
    FORMAT: str
    along_k: bool
    EXTENT: int
    CTA_K: int
    SHARE: int
    BATCH: bool
    PLANES: int = 0
    IMAGES: int = 0

    @property
    def TYPE(self) -> Type:
        """The type of its elements in memory."""
        return memory_type(ROUNDED.get(self.FORMAT, self.FORMAT))

    @property
    def ITEM(self) -> int:
        return self.TYPE.bytes

    @property
    def SWIZZLE(self) -> int:
        """Bytes of a row of a block."""
        sizes = [s for s in SWIZZLES if s <= (self.IMAGES or SWIZZLES[0])]
        return next((s for s in sizes if self._sides[0]*self.ITEM % s == 0), SWIZZLES[-1])

    @property
    def ROW(self) -> int:
        """Elements of a row of a block."""
        return self.SWIZZLE // self.ITEM

    @property
    def _sides(self) -> tuple[int, int]:
        """Elements of the contiguous dimension, and of the other one."""
        return (self.CTA_K, self.EXTENT) if self.along_k else (self.EXTENT, self.CTA_K)

    @property
    def IN_TURN(self) -> bool:
        """CTAs that share the tile bring whole ones, each that of every so many steps."""
        return self.SHARE > 1 and self._sides[1] % (ROWS*self.SHARE) > 0

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
        """The tensor map of the matrix, contiguous dimension first; then planes, then matrices of a batch. Or of the
        images."""
        more = (1,)*(self.PLANES > 0) + (1,)*self.BATCH
        height = self._sides[1] if self.IN_TURN else self._sides[1] // self.SHARE
        if self.IMAGES:
            return TensorMap(self.TYPE, (self.ROW, height), self.SWIZZLE, images=True)
        return TensorMap(self.TYPE, (self.ROW, height, *more), self.SWIZZLE, rounded="tf32" * (self.FORMAT == "tf32"))

    @property
    def layout(self) -> SharedMatrix:
        stride = ROWS*self.SWIZZLE
        return SharedMatrix(self.SWIZZLE, "k", stride) if self.along_k else SharedMatrix(
            self.SWIZZLE, "mn", stride, self.BLOCK)

    def part(self, share: Value) -> Value:
        """Where in the dimension across that CTA's part of a block begins."""
        return share * (0 if self.IN_TURN else self._sides[1] // self.SHARE)

    def boxes(self, row: Value, step: Value, share: Value) -> Iterator[tuple[Value, tuple[Any, ...]]]:
        """The copies of CTA number `share` of those that share the tile, IN_TURN of each whose turn it is: where each
        goes in the stage, in bytes, and its coordinates. `row` and `step`: where the tile begins in m or n, and in k.
        """
        along, part = self._sides[0], self.part(share)
        x, y = (step, row) if self.along_k else (row, step)
        for plane in range(max(self.PLANES, 1)):
            for block in range(along // self.ROW):
                yield (part*self.SWIZZLE + (plane*self.PLANE + block*self.BLOCK),
                       (x + block*self.ROW, y + part) + (plane,)*(self.PLANES > 0))

    def offset(self, row: Any, step: int, plane: int = 0) -> Any:
        """Bytes from the tile's beginning to the operand of an instruction: from this row, a multiple of 64, and the
        `step`th 32 bytes of k."""
        if self.along_k:
            block, inside = divmod(step*DEPTH, self.SWIZZLE)
            return row*self.SWIZZLE + (plane*self.PLANE + block*self.BLOCK + inside)
        return row // self.ROW * self.BLOCK + (plane*self.PLANE + step*(DEPTH // self.ITEM)*self.SWIZZLE)


DIVISION: dict[str, Any] = {"whole": i32, "share": i32, "apart": i32}        # parameters of a kernel with shares


@dataclass(frozen=True)
class Unit:
    """What a cluster does at a time: all of a tile of C, or some steps of k of it."""
    number: Value           # of the cluster's units
    tile: Value
    begin: Value            # steps of the units before, which say its first stage
    first: Value            # step of k
    steps: Value


class Tiles:
    """Which tiles of C a CTA works on: those of its cluster, each as large as all of its CTAs' together.

    With parts of k the first `whole` tiles are taken as wholes. The others' steps of k follow each other on a line, a
    tile's first one `apart` from that of the tile before, and each cluster has a share of it, `share` steps long: the
    end of one tile and the beginning of the next (stream-K), or with a multiple of `share` from tile to tile a part of
    one (split-K). There must be as many clusters as shares; a share is not longer than a tile, and what `apart` exceeds
    the steps of a tile by not longer than a share.
    """

    def __init__(self, k: Kernel, g: SimpleNamespace, p: NvidiaPlan) -> None:
        self.k, self.g, self.GROUP_M, self.CTAS, self.DIVIDED = k, g, p.group_m, p.ctas, p.divided
        CLUSTER_M, CLUSTER_N = self.CLUSTER = p.cluster_m, p.cluster_n
        self.CTA = p.cta_m, p.cta_n
        rank = k.cluster_rank if self.CTAS > 1 else k.constant(i32, 0)
        self.cluster_m, self.cluster_n = rank % CLUSTER_M, rank // CLUSTER_M % CLUSTER_N
        # masks of the CTAs that have the same tile of A, and of B
        row = k.constant(i32, sum(1 << j*CLUSTER_M for j in range(CLUSTER_N)))
        column = k.constant(i32, (1 << CLUSTER_M) - 1)
        self.same_row = None if CLUSTER_N == 1 else row << self.cluster_m
        self.same_column = None if CLUSTER_M == 1 else column << self.cluster_n*CLUSTER_M
        self.tiles_m, self.tiles_n = (
            k.ceil_div(size, of_cta*ctas) for size, of_cta, ctas in zip((g.m, g.n), self.CTA, self.CLUSTER))
        if g.offsets is None:
            self.count = of_batch(g, self.tiles_m*self.tiles_n)
        else:
            count = k.variable(i32, 0)
            with k.loop(g.batch, unroll=False) as group:
                count.set(count.get() + self._rows(group))
            self.count = count.get()*self.tiles_n
            # of the tile that a thread has asked for last, which are ascending: its group, and the tiles before that
            self.group, self.before = k.variable(i32, 0), k.variable(i32, 0)
        self.first, self.steps = k.constant(i32, 0), k.ceil_div(g.k, p.cta_k)
        if p.cluster_k > 1:                                 # no multicast, so that CTAs may have more steps than others
            unit = p.promote // p.cta_k or 1                # of steps, which no two CTAs share
            units = k.ceil_div(self.steps, unit)
            self.first = rank*units // p.cluster_k * unit
            self.steps = k.min((rank + 1)*units // p.cluster_k * unit, self.steps) - self.first
        self.rank, self.cluster, self.clusters = rank, k.block[0] // self.CTAS, k.grid[0] // self.CTAS
        self.whole = self._wholes(g.whole if p.divided else self.count)
        self.units = self.whole
        if p.divided:
            # of this cluster's share: where it begins and ends, in which tile it begins, and where that is
            self.start = self.cluster*g.share
            self.end = k.min(self.start + g.share, (self.count - g.whole)*g.apart)
            self.tile = self.start // g.apart
            self.origin = self.tile*g.apart
            last = (k.max(self.end, 1) - 1) // g.apart
            self.units = self.whole + k.select(self.start < self.end, last - self.tile + 1, 0)

    def _rows(self, group: Value) -> Value:
        """Rows of tiles in this group."""
        k, g = self.k, self.g
        return k.ceil_div(groups.end(k, g, group) - groups.begin(k, g, group), self.CTA[0]*self.CLUSTER[0])

    def _wholes(self, tiles: Value) -> Value:
        """How many of the first so many tiles are this cluster's."""
        return (self.k.max(tiles - self.cluster, 0) + (self.clusters - 1)) // self.clusters

    @contextmanager
    def each(self, first: Any = 0, every: int = 1, here: Value | None = None) -> Iterator[Unit]:
        """A loop over the units of this cluster, or from the `first` one on every so many; `here` or not at all."""
        stop = self.units if here is None else self.k.select(here, self.units, 0)
        with self.k.loop(stop, start=first, step=every, unroll=False) as number:
            yield self._divided(number) if self.DIVIDED else Unit(
                number, self.cluster + number*self.clusters, number*self.steps, self.first, self.steps)

    def _fragment(self, number: Value) -> tuple[Value, Value, Value]:
        """A unit's place in the cluster's share: its number (< 0: it is a whole tile), its divided tile, and where that
        begins."""
        which = number - self.whole
        after = self.k.max(which, 0)
        return which, self.tile + after, self.origin + after*self.g.apart

    def _divided(self, number: Value) -> Unit:
        k = self.k
        which, tile, origin = self._fragment(number)
        undivided, first = which < 0, k.max(self.start - origin, 0)
        steps = k.min(self.end - origin, self.steps) - first
        before = k.select(which > 0, self.steps - (self.start - self.origin), 0)        # of the share's first tile
        return Unit(number, k.select(undivided, self.cluster + number*self.clusters, self.g.whole + tile),
                    k.min(number, self.whole)*self.steps + before, k.select(undivided, 0, first),
                    k.select(undivided, self.steps, steps))

    def parts(self, unit: Unit, warp: Value, WARPS: int) -> Parts:
        """Parts of the unit's tile for one of the WARPS that have its sums."""
        k, g = self.k, self.g
        which, tile, origin = self._fragment(unit.number)
        head = origin // g.share                            # the cluster with the tile's first steps
        parts = (origin + (self.steps - 1)) // g.share - head + 1

        def number(x: Value) -> Value:
            return (x*self.CTAS + self.rank)*WARPS + warp
        # from one place to the next, another cluster or another tile comes
        return Parts(number(tile), self.cluster - head, k.select(which < 0, 1, parts),
                     lambda part: number(tile + head + part), g.workspace, g.counters)

    def place(self, tile: Value) -> tuple[Value, Value, Value | None]:
        """Where the CTA's part of it begins in C, and in which matrix of a batch. With groups of rows, g.m becomes the
        end of the tile's group."""
        matrix = None
        if self.g.offsets is not None:
            return self._in_group(tile)
        if self.g.batch is not None:
            matrix = tile // (self.tiles_m*self.tiles_n)
            tile = tile - matrix*(self.tiles_m*self.tiles_n)
        tile_m, tile_n = grouped(self.k, tile, self.tiles_m, self.tiles_n, self.GROUP_M)
        return ((tile_m*self.CLUSTER[0] + self.cluster_m)*self.CTA[0],
                (tile_n*self.CLUSTER[1] + self.cluster_n)*self.CTA[1], matrix)

    def _in_group(self, tile: Value) -> tuple[Value, Value, Value]:
        k, g, group, before = self.k, self.g, self.group, self.before

        def tiles() -> Value:
            return self._rows(k.min(group.get(), g.batch - 1))*self.tiles_n
        with k.while_(lambda: tile >= before.get() + tiles()):
            before.set(before.get() + tiles())
            group.set(group.get() + 1)
        which = group.get()
        tile_m, tile_n = grouped(k, tile - before.get(), self._rows(which), self.tiles_n, self.GROUP_M)
        g.m = groups.end(k, g, which)
        return (groups.begin(k, g, which) + (tile_m*self.CLUSTER[0] + self.cluster_m)*self.CTA[0],
                (tile_n*self.CLUSTER[1] + self.cluster_n)*self.CTA[1], which)
