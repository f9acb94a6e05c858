"""An operand of packed elements and scales on its way to Matrix Cores that know neither: it arrives in LDS as bf16.

Global memory to registers as it is, AT_ONCE elements and the scale of their block to a thread; what was loaded a tile
ago is decoded on the way from registers to LDS, and every element only once for the whole workgroup. From there on it
is an `LdsTile` of bf16 as any other.
"""
from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright.atoms.mfma import SCALED
from tilewright.formats import get
from tilewright.ir import Kernel, Value, i8, i32, i64, ptr, vec
from tilewright.kernels.amd.decoding import AT_ONCE, INSTRUCTIONS, decode
from tilewright.kernels.amd.lds_tile import LdsTile
from tilewright.kernels.amd.pipeline import Do

BF16 = 16                   # bits


@dataclass(frozen=True)
class Packed:
    """Elements and scales in global memory, k along the rows of both."""
    format: str
    elements: Value
    ld: Value               # bytes
    scales: Value
    ld_scales: Value        # blocks


class Decoded(LdsTile):
    """EXTENT rows by CTA_K steps of k, a multiple of the 32 that share a scale."""

    def __init__(self, k: Kernel, packed: Packed, *, EXTENT: int, CTA_K: int, THREADS: int) -> None:
        self.packed, self.PACKED_BITS = packed, get(packed.format).bits
        self.WORDS = AT_ONCE * self.PACKED_BITS // 32
        super().__init__(k, BITS=BF16, EXTENT=EXTENT, CTA_K=CTA_K)
        self.CHUNKS = CTA_K // AT_ONCE                          # threads of a row
        ROWS = min(THREADS // self.CHUNKS, EXTENT)
        self.ACTIVE, self.THREADS = ROWS * self.CHUNKS, THREADS
        self.rows = [*range(0, EXTENT, ROWS)]                   # of which a thread has AT_ONCE elements
        self.PARTS, self.INSTRUCTIONS = len(self.rows), INSTRUCTIONS[packed.format]     # to decode each of them

    def begin(self, t: Value, first: Value, limit: Value, k_first: Value) -> None:
        """For rows from `first` on of `limit`, from step k_first of k on, where a block begins."""
        k, packed = self.k, self.packed
        self.t = t
        self.row, self.step = t // self.CHUNKS, t % self.CHUNKS*AT_ONCE
        ld, ld_scales = k.cast(packed.ld, i64), k.cast(packed.ld_scales, i64)
        rows = [k.cast(k.min(first + self.row + row, limit - 1) - first, i64) for row in self.rows]
        self.offsets = [row*ld + k.cast(self.step*self.PACKED_BITS // 8, i64) for row in rows]
        self.scale_offsets = [row*ld_scales + k.cast(self.step // SCALED, i64) for row in rows]
        far, start = k.cast(first, i64), k.cast(k_first, i64)
        self.address = k.variable(ptr(i8), packed.elements.as_(i8) + (far*ld + start*self.PACKED_BITS // 8))
        self.scale_address = k.variable(ptr(i8), packed.scales.as_(i8) + (far*ld_scales + start // SCALED))
        self.carried_words = [k.variable(vec(i32, self.WORDS)) for _ in self.rows]
        self.carried_scales = [k.variable(i32) for _ in self.rows]

    def fetch(self, part: int, more: Value) -> None:
        """One part of the next tile; the last one moves on to the tile after it."""
        with self._some():
            self._load(part)
        if part == self.PARTS - 1:
            self._advance(self.k.select(more, self.k.constant(i32, self.CTA_K), 0))

    def fetches(self, more: Value) -> list[list[Do]]:
        return [[partial(self.fetch, part, more)] for part in range(self.PARTS)]

    def fetch_some(self, steps: Value) -> None:
        """Zeros for blocks that are not there, their scales too, which are 2^-127 then."""
        with self._some():
            for part in range(self.PARTS):
                self._load(part, self.step < steps)
        self._advance(steps)

    def _load(self, part: int, there: Value | None = None) -> None:
        k = self.k
        words = (self.address.get() + self.offsets[part]).as_(i32)
        self.carried_words[part].set(k.load(words, vec(i32, self.WORDS), align=4, mask=there))
        scale = k.load(self.scale_address.get() + self.scale_offsets[part], i8, mask=there)
        self.carried_scales[part].set(k.cast(scale, i32) & 255)

    def _advance(self, steps: Value) -> None:
        self.address.set(self.address.get() + self.k.cast(steps*self.PACKED_BITS // 8, i64))
        self.scale_address.set(self.scale_address.get() + self.k.cast(steps // SCALED, i64))

    def decode(self, part: int) -> list[Value]:
        """What was fetched last of this part, as words of two bf16."""
        return decode(self.k, self.carried_words[part].get(), self.carried_scales[part].get(), self.packed.format)

    def store(self, smem: Value, part: int, numbers: list[Value]) -> None:
        """Into the tile of LDS at `smem`."""
        for e in range(0, len(numbers), 4):
            at = self.place(smem, self.row + self.rows[part], self.step*(BF16 // 8) + e*4)
            self.k.store(at.as_(i32), self.k.pack(*numbers[e:e + 4]))

    def stashes(self, smem: Value) -> list[list[Do]]:
        return [[partial(self._stash, smem, part)] for part in range(self.PARTS)]

    def _stash(self, smem: Value, part: int) -> None:
        with self._some():
            self.store(smem, part, self.decode(part))

    def turn(self) -> None:
        """The tile before has been multiplied, and nothing of it is in registers."""

    def _some(self) -> Any:
        return nullcontext() if self.ACTIVE == self.THREADS else self.k.when(self.t < self.ACTIVE)
