"""Tiles of keys and values of attention on AMD's GPUs (attention.py): from memory to LDS, and from there to the Matrix
Cores as the products need them.

The elements of a head are cut into parts of 16, 32, 64 ... 256, each of which is a tile of its own in LDS, as those of
products are: keys with the head's elements contiguous (operand.py); values transposed, by registers where reads of LDS
cannot do it (operand.py), else by these (k_strided.py).

Row r of a tile of keys is not its key r. Of eight rows a lane gets the scores of four neighbours, and the product with
V takes 8 or 16 neighbouring keys from a lane (`Sizes.RUN`): rows are in an order in which both are the same (`key_of`).
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from tilewright.atoms.amd import Mfma, mfma_instructions
from tilewright.ir import Kernel, Value, i8, i32, i64
from tilewright.kernels.amd.k_strided import KStridedOperand
from tilewright.kernels.amd.lds_tile import PIECE, WORD
from tilewright.kernels.amd.operand import LdsOperand, Pass, row_type
from tilewright.kernels.amd.pipeline import Do, Read
from tilewright.kernels.gpu.attention_work import Work
from tilewright.kernels.gpu.work import first_threads
from tilewright.plans.amd_attention import LANES, ROWS, AmdAttention
from tilewright.plans.nvidia_attention import AttentionShape
from tilewright.targets import target

Row = Callable[[Any], Value]            # a key of the tile → where its row begins in memory


def key_of(row: Any, RUN: int) -> Any:
    """The key of a row of a tile: bit 2 of the row, which says whose lane it is, becomes the bit above a run."""
    below = RUN - 4
    return row & ~(2*RUN - 4) | (row & 4)*(RUN // 4) | row >> 1 & below


def parts(size: int) -> list[tuple[int, int]]:
    """(first, count) of the parts of a head's elements."""
    pieces, first = [], 0
    for bit in (256, 128, 64, 32, 16):
        if size & bit:
            pieces.append((first, bit))
            first += bit
    return pieces


class Keys(LdsOperand):
    """A part of the keys' elements: KEYS rows."""

    def start_at(self, t: Value, first: int, size: int, RUN: int) -> None:
        """For thread t; the part's first element, of `size`; see `Sizes.RUN`."""
        k = self.k
        self.t = t
        chunk, self.thread_i = self._shared_out(t)
        self.thread_byte = chunk*self.BYTES
        self.places = [key_of(self.thread_i + row, RUN) for row in self.sources]
        self.byte = k.cast(self.thread_byte + first*self.BITS // 8, i64)
        self.carried = [[k.variable(WORD)] for _ in self.passes]

    def loads_from(self, row: Row) -> list[Do]:
        """Load a tile, whose rows begin there, into registers."""
        rows = [row(place) for place in self.places]
        return [partial(self._load_row, rows[step.source], step, registers[0])
                for step, registers in zip(self.passes, self.carried, strict=True)]

    def _load_row(self, row: Value, each: Pass, register: Any) -> None:
        with first_threads(self.k, self.t, self.ACTIVE, self.THREADS):
            register.set(self.k.load((row + (self.byte + each.offset)).as_(WORD.scalar), WORD))


class Values(LdsOperand):
    """A part of the values' elements, transposed in registers."""

    def start_at(self, t: Value, first: int, size: int, RUN: int) -> None:
        """For thread t; of a value's `size` elements the last ones stand for those that there are not."""
        k = self.k
        self.t = t
        chunk, row = self._shared_out(t)
        self.thread_i, self.thread_p = chunk*self.BLOCK_I, row*self.BLOCK_K
        self.thread_byte = self.thread_p*self.E
        places = [self.thread_i + (first + source) for source in self.sources]
        if first + self.EXTENT > size:
            places = [k.min(place, size - self.BLOCK_I) for place in places]
        self.bytes = [k.cast(place*self.E, i64) for place in places]
        TYPE = row_type(self.T, self.BLOCK_I)
        self.carried = [[k.variable(TYPE) for _ in range(self.BLOCK_K)] for _ in self.passes]

    def loads_from(self, row: Row) -> list[Do]:
        return [partial(self._load_row, row, each, step, register)
                for each, registers in zip(self.passes, self.carried, strict=True)
                for step, register in enumerate(registers)]

    def _load_row(self, row: Row, each: Pass, step: int, register: Any) -> None:
        k, TYPE = self.k, register.tile.type
        with first_threads(k, self.t, self.ACTIVE, self.THREADS):
            at = row(self.thread_p + (each.offset + step)) + self.bytes[each.source]
            register.set(k.load(at.as_(TYPE.scalar), TYPE, align=self.E*self.BLOCK_I))


class TurnedValues(KStridedOperand):
    """A part of the values' elements, transposed by reads of LDS."""

    def start_at(self, t: Value, first: int, size: int, RUN: int) -> None:
        k = self.k
        self.t = t
        self.steps = [t // self.PIECES + copy*self.THREADS // self.PIECES for copy in range(self.COPIES)]
        bytes = [(t % self.PIECES ^ self.swizzled(step))*PIECE + first*self.E for step in self.steps]
        if first + self.EXTENT > size:
            bytes = [k.min(byte, size*self.E - PIECE) for byte in bytes]
        self.bytes = [k.cast(byte, i64) for byte in bytes]
        self.carried = [k.variable(WORD) for _ in range(self.COPIES)]

    def loads_from(self, row: Row) -> list[Do]:
        def load(step: Value, byte: Value, register: Any) -> None:
            register.set(self.k.load((row(step) + byte).as_(WORD.scalar), WORD))
        return [partial(load, *args) for args in zip(self.steps, self.bytes, self.carried, strict=True)]


@dataclass(frozen=True)
class Sizes:
    """What a kernel is made for. See `attention_work.Sized`."""
    shape: AttentionShape
    plan: AmdAttention
    ARCH: str

    @property
    def KEYS(self) -> int: return self.plan.keys

    @property
    def EACH(self) -> int: return ROWS // max(self.shape.packed, 1)

    @property
    def QUERIES(self) -> int: return self.EACH*self.plan.waves

    @property
    def ROWS(self) -> int: return ROWS

    @property
    def EIGHT(self) -> bool: return self.shape.format == "e4m3fn"

    @property
    def SCORE(self) -> Mfma:
        """The instruction of the product with keys, which multiplies most at once in each part."""
        return self._atom(self.shape.size & -self.shape.size)

    @property
    def VALUE(self) -> Mfma:
        """And that of the product with values."""
        return self._atom(self.KEYS)

    @property
    def RUN(self) -> int:
        """Neighbouring keys that products with values take from a lane: 16 bytes, by one instruction or by two."""
        return 16 if self.EIGHT else 8

    def _atom(self, STEPS: int) -> Mfma:
        format = self.shape.format
        fitting = [atom for atom in mfma_instructions(self.ARCH) if atom.m == ROWS and atom.blocks == 1
                   and not atom.scaled and atom.a_format == atom.b_format == format and atom.k <= STEPS]
        return max(fitting, key=lambda atom: atom.k)


class Side:
    """Keys, or values: their tile in LDS, in parts, and the way there."""

    def __init__(self, k: Kernel, g: SimpleNamespace, s: Sizes, name: str, t: Value) -> None:
        self.k, self.g, self.s, self.name = k, g, s, name
        keys = name == "k"
        self.ATOM, size = (s.SCORE, s.shape.size) if keys else (s.VALUE, s.shape.value_size)
        ATOM = self.ATOM
        self.ITEM = ATOM.a.bits // 8
        self.row_bytes = getattr(g, f"{name}_by_row")*self.ITEM
        common: dict[str, Any] = {"BITS": ATOM.a.bits, "THREADS": s.plan.threads}
        self.parts: list[Any] = []
        self.SIZE, self.offsets, self.firsts = 0, list[int](), list[int]()
        for first, count in parts(size if keys else -(-size // ROWS) * ROWS):
            if keys:
                part: Any = Keys(k, g.k, g.k_by_row, along_k=True, EXTENT=s.KEYS, CTA_K=count, **common)
            elif target(s.ARCH).has("lds.transposed"):
                part = TurnedValues(k, g.v, g.v_by_row, EXTENT=count, CTA_K=s.KEYS, **common)
            else:
                part = Values(k, g.v, g.v_by_row, along_k=False, EXTENT=count, CTA_K=s.KEYS, **common)
            part.start_at(t, first, size, s.RUN)
            part.lane_addresses(k.constant(i32, 0), t % LANES, ROWS, ATOM.k)
            self.parts.append(part)
            self.offsets.append(self.SIZE)
            self.firsts.append(first)
            self.SIZE += part.SIZE

    def begin(self, work: Work) -> None:
        """For a tile of queries: where its head's rows are."""
        k, g, name = self.k, self.g, self.name
        head = work.head if self.s.shape.packed else work.head // g.group
        base = getattr(g, name) + k.cast(head, i64)*getattr(g, f"{name}_by_head")
        if not self.s.shape.page and work.k0 is None:
            base = base + k.cast(work.sequence, i64)*getattr(g, f"{name}_by_batch")
        elif work.k0 is not None:
            base = base + k.cast(work.k0, i64)*getattr(g, f"{name}_by_row")
        self.base, self.work = base.as_(i8), work

    def row(self, tile: Value, CLAMPED: bool) -> Row:
        """Where rows of a tile of keys begin; CLAMPED: the sequence's last one stands for those behind it."""
        k, g, page = self.k, self.g, self.s.shape.page
        if not page and not CLAMPED:
            begin = self.base + k.cast(tile*self.s.KEYS, i64)*self.row_bytes
            return lambda place: begin + k.cast(place, i64)*self.row_bytes
        last = k.max(self.work.keys - 1, 0)
        if self.work.k0 is not None:                    # a sequence without keys may be the last one
            last = k.min(last, g.keys - 1 - self.work.k0)

        def begins(place: Any) -> Value:
            key = k.min(tile*self.s.KEYS + place, last)
            if not page:
                return self.base + k.cast(key, i64)*self.row_bytes
            number = k.load(g.table + (k.cast(self.work.sequence, i64)*g.table_row + k.cast(key // page, i64)))
            begin = k.cast(number, i64)*getattr(g, f"{self.name}_by_batch")*self.ITEM
            return self.base + (begin + k.cast(key % page, i64)*self.row_bytes)
        return begins

    def load(self, tile: Value, CLAMPED: bool = False) -> None:
        """A tile into registers."""
        row = self.row(tile, CLAMPED)
        for part in self.parts:
            for load in part.loads_from(row):
                load()

    def stores(self, smem: Value) -> list[Do]:
        """What is in registers into the tile of LDS at `smem`."""
        return [store for part, offset in zip(self.parts, self.offsets)
                for stores in part.stores_to_lds(smem + offset) for store in stores]

    def reads(self, smem: Value, rows: int, along: int) -> list[Read]:
        """The reads of all operands of a tile's products, by `rows` tiles of its rows and `along` steps, in the order
        of steps: keys have steps of elements, values have rows of them."""
        loads = list[Read]()
        if self.name == "k":
            for part, offset in zip(self.parts, self.offsets):
                for step in range(0, part.CTA_K // self.ATOM.k, part.READS):
                    loads += [partial(part.read, smem + offset, row, step) for row in range(rows)]
            return loads
        READS = self.parts[0].READS
        for step in range(0, along, READS):
            for part, offset in zip(self.parts, self.offsets):
                loads += [partial(part.read, smem + offset, row, step) for row in range(part.EXTENT // ROWS)]
        return loads
