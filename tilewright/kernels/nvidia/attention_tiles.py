"""Tiles of attention: in shared memory, and of sums in registers."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Kernel, TensorMap, Tile, Value, i8, i32, i64
from tilewright.ir.ops.pipelines import Mbarriers
from tilewright.kernels.gpu.attention_work import Work
from tilewright.kernels.nvidia.wgmma_tiles import ALIGN, SmemTile
from tilewright.plans.nvidia_attention import AttentionPlan, AttentionShape

ROOM = 223 << 10                # bytes of shared memory for tiles
SHARING = 1, 2                  # by these bits lanes differ that share a row of an accumulator


def lines(x: Tile) -> Iterator[tuple[int, list[tuple[tuple[int, int], int]]]]:
    """Rows of a lane in an accumulator of `mma` or `wgmma`, of which a row of registers has sixteen: how far each is
    below the lane's first one, and its registers with their columns, counted from the lane's first one."""
    for block in range(x.rows):
        for half in range(2):
            mine = [e for e in range(x.cols) if e // 2 % 2 == half]
            yield block*16 + half*8, [((block, e), e // 4 * 8 + e % 2) for e in mine]


@dataclass(frozen=True)
class Sizes:
    """What a kernel is made for."""
    shape: AttentionShape
    plan: AttentionPlan

    @property
    def KEYS(self) -> int: return self.plan.keys

    @property
    def WARPGROUPS(self) -> int: return self.plan.blocks

    @property
    def BAND(self) -> str: return self.shape.band

    @property
    def PARTS(self) -> int:
        """Teams of warps in a CTA, each with rows of its own of a tile of queries."""
        return self.plan.parts

    @property
    def ROWS(self) -> int:
        """Rows of such a team."""
        return self.plan.rows // self.PARTS

    @property
    def EACH(self) -> int:
        """Queries of a team, of as many heads as are packed."""
        return self.ROWS // max(self.shape.packed, 1)

    @property
    def QUERIES(self) -> int:
        """How many a CTA has."""
        return self.EACH*self.PARTS

    @property
    def QUERY_STAGES(self) -> int:
        """Two where shared memory has room, so that the next tile of queries is there when one ends."""
        others = self.plan.stages*(self.keys.BYTES + self.values.BYTES)
        return 2 if others + 2*self.WARPGROUPS*self.queries.BYTES <= ROOM else 1

    @property
    def queries(self) -> SmemTile:
        """A team's tile."""
        return SmemTile(self.shape.format, True, self.ROWS, self.shape.size, 1, True, 1)

    @property
    def keys(self) -> SmemTile: return SmemTile(self.shape.format, True, self.KEYS, self.shape.size, 1, True, 1)

    @property
    def values(self) -> SmemTile:
        """With 8 bits the keys are contiguous, as products need them (attention_values.py)."""
        return SmemTile(self.shape.format, self.EIGHT, self.shape.value_size, self.KEYS, 1, True, 1)

    @property
    def EIGHT(self) -> bool:
        """Numbers of 8 bits: products with values are added up in other registers, as tensor cores keep few bits."""
        return self.shape.format == "e4m3fn"

    @property
    def COPIED(self) -> int:
        """Keys that one copy brings: of one page."""
        return min(self.shape.page or self.KEYS, self.KEYS)

    @property
    def maps(self) -> dict[str, TensorMap]:
        """Their dimensions: of q size, queries, heads, batch, or packed size, heads of a kv head, queries, kv heads,
        batch; of k and v size, keys, kv heads, batch or pages; of v of 8 bits keys, size, kv heads, batch."""
        q, packed = self.queries, self.shape.packed
        box = (q.ROW, packed, self.EACH, 1, 1) if packed else (q.ROW, self.ROWS, 1, 1)
        rows = {"k": self.COPIED, "v": self.shape.value_size if self.EIGHT else self.COPIED}
        of = {name: TensorMap(x.TYPE, (x.ROW, rows[name], 1, 1), x.SWIZZLE)
              for name, x in (("k", self.keys), ("v", self.values))}
        return {"q": TensorMap(q.TYPE, box, q.SWIZZLE), **of}


@dataclass(frozen=True)
class Ring:
    """Stages of tiles of one operand. A position counts tiles since the CTA began."""
    full: Mbarriers
    empty: Mbarriers
    smem: Value
    tile: SmemTile
    COUNT: int

    @classmethod
    def new(cls, k: Kernel, name: str, tile: SmemTile, COUNT: int) -> Ring:
        return cls(k.mbarriers(f"{name}_full", COUNT), k.mbarriers(f"{name}_empty", COUNT),
                   k.smem(name, (COUNT, tile.BYTES), i8, ALIGN), tile, COUNT)

    def refill(self, position: Value) -> Value:
        """The stage of this position, when it may be overwritten."""
        stage = position % self.COUNT
        self.empty.wait(stage, position // self.COUNT % 2 ^ 1, sleep=True)
        self.full.arrive(stage, by="role", expect=self.tile.BYTES)
        return stage

    def filled(self, position: Value) -> None:
        self.full.wait(position % self.COUNT, position // self.COUNT % 2, sleep=True)

    def give_back(self, position: Value) -> None:
        self.empty.arrive(position % self.COUNT, by="warp")

    def copy(self, map: Value, stage: Value, first: int, at: tuple[Any, ...], start: Any = 0) -> None:
        """Rows from row `first` of the tile on, of all blocks of the contiguous dimension from `start` on; `at`: the
        other coordinates."""
        for block in range(self.tile.BYTES // self.tile.BLOCK):
            to = self.smem.at(stage, block*self.tile.BLOCK + first*self.tile.SWIZZLE)
            self.full.load(to, map, (start + block*self.tile.ROW, *at), stage)


class Loads:
    """The role that copies: one of its threads starts all copies."""

    def __init__(self, k: Kernel, g: SimpleNamespace, s: Sizes) -> None:
        self.k, self.g, self.s = k, g, s

    def queries(self, ring: Ring, stage: Value, work: Work, warpgroup: int) -> None:
        row = work.i0 + warpgroup*self.s.EACH
        if work.q0 is not None:
            row = work.q0 + row
        batch = self.k.constant(i32, 0) if work.q0 is not None else work.sequence
        at = (0, row, work.head, batch) if self.s.shape.packed else (row, work.head, batch)
        with self.k.when(self.k.elect()):
            ring.copy(self.g.q, stage, 0, at)

    def keys(self, ring: Ring, position: Value, map: Value, tile: Value, work: Work) -> None:
        """A tile of keys, or of values."""
        k, g, s, shape = self.k, self.g, self.s, self.s.shape
        stage = ring.refill(position)
        head = work.head if shape.packed else work.head // g.group
        if s.EIGHT and map is g.v:
            with k.when(k.elect()):
                ring.copy(map, stage, 0, (0, head, work.sequence), tile*s.KEYS)
            return
        for first in range(0, s.KEYS, s.COPIED):
            row, batch = tile*s.KEYS + first, work.sequence
            if shape.page:
                page = k.min(row // shape.page, k.max(work.keys - 1, 0) // shape.page)
                batch = k.load(g.table + (k.cast(work.sequence, i64)*g.table_row + page))
                row = row % shape.page
            elif work.k0 is not None:
                row, batch = work.k0 + row, k.constant(i32, 0)
            with k.when(k.elect()):
                ring.copy(map, stage, first, (row, head, batch))
