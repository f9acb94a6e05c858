"""A or B on its way straight into LDS where i is contiguous, which reads of LDS turn (turned_tile): pieces of 16 bytes
are copied as they are.

i stands for a row of A or a column of B. What a workgroup has beyond the matrix along i is copied from its last piece,
which ends with the matrix, and never stored; beyond k, which happens in the first tile alone, it is 0.
"""
from __future__ import annotations

from functools import partial

from tilewright.ir import Kernel, Value, i8, i32, i64, ptr
from tilewright.kernels.amd.lds_tile import LANES, PIECE, WORD
from tilewright.kernels.amd.pipeline import Do
from tilewright.kernels.amd.turned_tile import TurnedTile


class TurnedOperand(TurnedTile):
    """The matrix has rows of whole pieces, `ld` elements apart."""

    def __init__(self, k: Kernel, gmem: Value, ld: Value, *, BITS: int, EXTENT: int, CTA_K: int, THREADS: int) -> None:
        super().__init__(k, BITS=BITS, EXTENT=EXTENT, CTA_K=CTA_K)
        self.gmem, self.THREADS = gmem, THREADS
        self.ld = k.cast(ld, i64) * self.E
        self.tile = self.ld * CTA_K                             # bytes from one to the next
        self.COPIES = CTA_K*self.PIECES // THREADS              # that a wave makes of one tile
        self.direct = not CTA_K*self.PIECES % THREADS           # whether all threads have something to copy

    def begin(self, t: Value, first: Value, limit: Value, k_first: Value) -> None:
        """For rows from `first` on of `limit`, from step k_first of k on: the workgroup's running address, and which
        step and which bytes of it each of a thread's copies brings."""
        k, E = self.k, self.E
        self.t = t
        self.address = k.variable(ptr(i8), self.gmem.as_(i8) + (k.cast(k_first, i64)*self.ld + k.cast(first, i64)*E))
        self.steps = [t // self.PIECES + copy*self.THREADS // self.PIECES for copy in range(self.COPIES)]
        elements = [(t % self.PIECES ^ self.swizzled(step)) * (PIECE // E) for step in self.steps]
        self.bytes = [k.cast(k.min(first + i, limit - PIECE // E) - first, i64)*E for i in elements]
        self.carried = [k.variable(WORD) for _ in range(self.COPIES)]

    def fetch_some(self, steps: Value) -> None:
        """The first tile, of which only so many steps are there: zeros stand for the others."""
        k, base, last = self.k, self.address.get(), self.k.max(steps - 1, 0)
        for step, byte, register in zip(self.steps, self.bytes, self.carried, strict=True):
            at = base + (k.cast(k.min(step, last), i64)*self.ld + byte)
            register.set(k.select(step < steps, k.load(at.as_(i32), WORD, align=self.E), k.constant(WORD, 0)))
        self.address.set(base + k.cast(steps, i64)*self.ld)

    def stashes(self, smem: Value) -> list[list[Do]]:
        """Write what was fetched to the tile of LDS at `smem`, where the direct copies would land."""
        def stash(copy: int) -> None:
            place = self.t*PIECE + copy*self.THREADS*PIECE
            self.k.store((smem + place).as_(i32), self.carried[copy].get())
        return [[partial(stash, copy)] for copy in range(self.COPIES)]

    def turn(self) -> None:
        """The tile before has been multiplied."""

    def start(self, smem: Value) -> list[Do]:
        """Start to copy the tile at the running address straight to LDS at `smem`: what is to be done, in this order.
        """
        k, wave, base = self.k, self.t // LANES, self.address.get()

        def copy(number: int) -> None:
            gmem = base + (k.cast(self.steps[number], i64)*self.ld + self.bytes[number])
            k.lds_load(smem + (wave*(LANES*PIECE) + number*(self.THREADS*PIECE)), gmem, PIECE, base=base)
        return [partial(copy, number) for number in range(self.COPIES)]

    def advance(self, more: Value) -> None:
        """To the next tile, if there are more."""
        self.address.set(self.address.get() + self.k.select(more, self.tile, 0))
