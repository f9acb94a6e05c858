"""Tiles of the kernels of attention's gradients on Hopper (attention_backward.py): in shared and global memory, and
which of them a CTA has."""
from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.atoms.wgmma import M, Wgmma
from tilewright.ir import Kernel, TensorMap, Value, f32, i32, i64, ptr
from tilewright.kernels.nvidia.wgmma_tiles import SmemTile
from tilewright.plans.nvidia_attention_backward import KEYS, BackwardPlan, BackwardShape

SLAB = 32                       # columns of 64 rows of sums, which lie together in memory
SLAB_FLOATS = M*SLAB
LINE = 256                      # floats of a row of the tensor map by which slabs are added


@dataclass(frozen=True)
class BackwardSizes:
    """What a kernel is made for.

    Sums of gradients by queries are in global memory in slabs: 32 columns of 64 queries, a thread's four numbers of
    eight columns side by side, [4 times eight columns, 128 threads, 4]. A tile has all slabs of its first 64 queries,
    then those of the others.
    """
    shape: BackwardShape
    plan: BackwardPlan

    @property
    def QUERIES(self) -> int: return self.plan.queries

    @property
    def QUERY_STAGES(self) -> int:
        """Stages of tiles of queries, and of the numbers beside."""
        return self.plan.stages + self.plan.ahead

    @property
    def ROWS(self) -> int:
        """Floats that a tile of queries has beside: logarithms of sums in powers of 2, and -delta."""
        return 2*self.QUERIES

    @property
    def SLABS(self) -> int:
        """How many slabs a tile has."""
        return self.QUERIES // M * self.GROUPS

    @property
    def GROUPS(self) -> int:
        """How many times 32 columns a query's gradient has."""
        return self.shape.size // SLAB

    @property
    def COLUMNS(self) -> int:
        """Columns of queries' gradients that a warpgroup computes: with 64 queries about half, in whole blocks of the
        swizzle, so that for some sizes the second warpgroup computes some of the first one's again."""
        if self.QUERIES > M:
            return self.shape.size
        row = self.rows_of_keys.ROW
        return -(-self.shape.size // (2*row)) * row

    @property
    def AGAIN(self) -> int:
        """Groups of columns that the second warpgroup computes and leaves."""
        return 0 if self.QUERIES > M else 2*self.COLUMNS // SLAB - self.GROUPS

    def _by_size(self, rows: int, size: int) -> SmemTile: return SmemTile(self.shape.format, True, rows, size, 1, True)

    def _by_rows(self, rows: int, size: int) -> SmemTile: return SmemTile(self.shape.format, False, size, rows, 1, True)

    # Tiles as products along sizes read them, and the same memory as products along rows do.

    @property
    def queries(self) -> SmemTile: return self._by_size(self.QUERIES, self.shape.size)

    @property
    def grads(self) -> SmemTile: return self._by_size(self.QUERIES, self.shape.value_size)

    @property
    def keys(self) -> SmemTile: return self._by_size(KEYS, self.shape.size)

    @property
    def values(self) -> SmemTile: return self._by_size(KEYS, self.shape.value_size)

    @property
    def rows_of_queries(self) -> SmemTile: return self._by_rows(self.QUERIES, self.shape.size)

    @property
    def rows_of_grads(self) -> SmemTile: return self._by_rows(self.QUERIES, self.shape.value_size)

    @property
    def rows_of_keys(self) -> SmemTile: return self._by_rows(KEYS, self.shape.size)

    @property
    def slopes(self) -> SmemTile:
        """The tile of scores' slopes: [keys, queries], queries contiguous."""
        return self._by_rows(KEYS, self.QUERIES)

    @property
    def maps(self) -> dict[str, TensorMap]:
        """Their dimensions: size, tokens, heads, batch; of sums a row's floats, rows."""
        given = {"q": self.queries, "g": self.grads, "k": self.keys, "v": self.values}
        rows = {"q": self.QUERIES, "g": self.QUERIES, "k": KEYS, "v": KEYS}
        tensor_maps = {name: TensorMap(x.TYPE, (x.ROW, rows[name], 1, 1), x.SWIZZLE) for name, x in given.items()}
        return tensor_maps | {"sums": TensorMap(f32, (LINE, SLAB_FLOATS // LINE))}

    @property
    def score(self) -> Wgmma:
        """[64 keys, queries] of keys by queries."""
        return self._atom(self.QUERIES, self.keys, self.queries)

    @property
    def slope(self) -> Wgmma:
        """[64 keys, queries] of values by gradients of results."""
        return self._atom(self.QUERIES, self.values, self.grads)

    @property
    def by_value(self) -> Wgmma:
        """[64 keys, value size] of powers in registers by gradients of results."""
        return self._atom(self.shape.value_size, None, self.rows_of_grads)

    @property
    def by_key(self) -> Wgmma:
        """[64 keys, size] of slopes in registers by queries."""
        return self._atom(self.shape.size, None, self.rows_of_queries)

    @property
    def by_query(self) -> Wgmma:
        """[64 queries, some columns] of slopes by keys."""
        return self._atom(self.COLUMNS, self.slopes, self.rows_of_keys)

    def _atom(self, n: int, a: SmemTile | None, b: SmemTile) -> Wgmma:
        format = self.shape.format
        return Wgmma(n, format, format, "f32", None if a is None else a.layout, b.layout)


@dataclass(frozen=True)
class Sequence:
    """One sequence as a kernel sees it: its number, its lengths, its first query and key (0 unless ragged), where its
    tiles of queries begin among those of a head, and how many a head has."""
    number: Value
    queries: Value
    keys: Value
    q0: Value
    k0: Value
    tile: Value
    of_head: Value

    def place(self, head: Value, tile: Any) -> Value:
        """The place of a head's tile of queries among all tiles, which have `rows` and sums each."""
        return head*self.of_head + self.tile + tile


def parameters(shape: BackwardShape) -> dict[str, Any]:
    """Parameters of every kernel: lengths of sequences (ragged: of all together), query heads, offsets, sequences."""
    more: dict[str, Any] = {"q_offsets": ptr(i32), "k_offsets": ptr(i32), "sequences": i32} if shape.ragged else {}
    return {"queries": i32, "keys": i32, "heads": i32, **more}


def sequence(k: Kernel, g: SimpleNamespace, s: BackwardSizes, number: Value) -> Sequence:
    """The sequence of this number."""
    zero = k.constant(i32, 0)
    if not s.shape.ragged:
        tiles = k.ceil_div(g.queries, s.QUERIES)
        return Sequence(number, g.queries, g.keys, zero, zero, number*g.heads*tiles, tiles)
    (q0, q1), (k0, k1) = ((k.load(x + number), k.load(x + number + 1)) for x in (g.q_offsets, g.k_offsets))
    return Sequence(number, q1 - q0, k1 - k0, q0, k0, q0 // s.QUERIES + number, g.queries // s.QUERIES + g.sequences)


def tile_of(k: Kernel, g: SimpleNamespace, offsets: Value, tile: Value, ROWS: int) -> tuple[Value, Value]:
    """The ragged sequence that may have this tile of ROWS tokens, and which of its tiles that is: the tiles of sequence
    s begin at offsets[s] // ROWS + s, so that no two sequences share one, and some are behind a sequence's end."""
    low, high = k.variable(i32, 0), k.variable(i32, g.sequences - 1)
    with k.while_(lambda: low.get() < high.get()):
        middle = (low.get() + high.get() + 1) // 2
        there = k.load(offsets + middle) // ROWS + middle <= tile
        low.set(k.select(there, middle, low.get()))
        high.set(k.select(there, high.get(), middle - 1))
    which = low.get()
    return which, tile - (k.load(offsets + which) // ROWS + which)


def distances(*names: str) -> dict[str, Any]:
    """Parameters: pointers' distances in elements from row to row, head to head and sequence to sequence."""
    return {f"{name}_{axis}": i64 for name in names for axis in ("row", "head", "batch")}


def row_of(k: Kernel, g: SimpleNamespace, name: str, row: Value, head: Value, batch: Value) -> Value:
    """Where a row of an array with `distances` begins."""
    index = sum((k.cast(x, i64)*getattr(g, f"{name}_{axis}") for x, axis in ((head, "head"), (batch, "batch"))),
                k.cast(row, i64)*getattr(g, f"{name}_row"))
    return getattr(g, name) + index


@dataclass(frozen=True)
class Work:
    """What a CTA does: a tile of keys of one kv head, its first key in the sequence, and the tiles of queries from
    `first` on that see some of it, `count` of them for each of `group` query heads from `head` on; `sequence`: its
    place in arrays.

    In a section of pairs of sequence and kv head the tiles of all its pairs that see most queries come first; with an
    order those of the last keys. `number` of `taken` counts work in this order.
    """
    own: Sequence
    sequence: Value
    kv_head: Value
    head: Value
    tile: Value
    j0: Value
    first: Value
    count: Value
    rounds: Value
    shift: Value

    @classmethod
    def taken(cls, k: Kernel, g: SimpleNamespace, s: BackwardSizes, number: Value) -> Work:
        shape = s.shape
        if shape.ragged:
            tiles = g.keys // KEYS + g.sequences
            kv_head = number // tiles
            index = number - kv_head*tiles
            place, tile = tile_of(k, g, g.k_offsets, tiles - 1 - index if shape.ordered else index, KEYS)
            batch = k.constant(i32, 0)
        else:
            tiles = k.ceil_div(g.keys, KEYS)
            section = number // (tiles*g.section)
            inside, width = number - section*tiles*g.section, k.min(g.section, g.pairs - section*g.section)
            tile = inside // width
            pair = section*g.section + (inside - tile*width)
            if shape.ordered:
                tile = tiles - 1 - tile
            batch = place = pair // g.kv_heads
            kv_head = pair - place*g.kv_heads
        own = sequence(k, g, s, place)
        j0 = tile*KEYS
        first, end = k.constant(i32, 0), k.ceil_div(own.queries, s.QUERIES)
        shift = k.constant(i32, 0) if shape.upper else own.keys - own.queries
        if shape.band:
            first = k.max(j0 - shift - g.after, 0) // s.QUERIES
        if shape.band == "window":
            last = k.min(j0 + KEYS, own.keys) - 1
            end = k.min(end, k.max(last - shift + g.before + s.QUERIES, 0) // s.QUERIES)
        count = k.select(j0 < own.keys, k.max(end - first, 0), 0)
        return cls(own, batch, kv_head, kv_head*g.group, tile, j0, first, count, count*g.group, shift)

    def round(self, k: Kernel, number: Value) -> tuple[Value, Value]:
        """Query head and tile of queries of a round."""
        ahead = number // k.max(self.count, 1)
        return self.head + ahead, self.first + (number - ahead*self.count)
