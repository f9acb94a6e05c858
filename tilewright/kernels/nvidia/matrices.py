"""A warp's fragments of A or B for `mma.sync`, read from swizzled tiles in shared memory.

A step is 32 bytes of k, for a block of 16 rows of A or columns of B (i): four registers for each lane, of half h of the
block and 16 bytes q of the step, in the order in which instructions take them: [h + 2*q] of A, [2*h + q] of B
(registers of one operand have to be neighbours). In the layout of all instructions lane 4*g + t holds, of these, the
t-th 32 bits of index g. Which i of the block index g of half h is, is free, and chosen by what is contiguous:

    elements        contiguous      read by                                 index g of half h
    8, 16, 32 bits  k, of A         ldmatrix                                g + 8*h
                    k, of B         ldmatrix, rows in another order         g//2*4 + 2*h + g%2
    16 bits         i               ldmatrix, transposed                    g + 8*h
    8 bits          i               the same of pairs of i, whose bytes     2*g + h
                                    permutations take apart afterwards
    32 bits         i               loads of 8 bytes, two i each            2*g + h

In B's order, and where i are in pairs, a lane has four columns of C side by side.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir import Kernel, Value, f32, i8, i32, vec
from tilewright.kernels.nvidia.operand import WIDEST, SmemOperand
from tilewright.kernels.nvidia.result import Piece

BLOCK, STEP = 16, 32            # i of a block; bytes of k in a step


def swizzled(BITS: int, along_k: bool, of_b: bool) -> dict[str, Any]:
    """How a tile is to be swizzled (`swizzle.Swizzle`): by the rows of it that eight lanes read together."""
    if BITS == 32 and not along_k:
        return {"BITS": (0, 1), "FIRST": 1}
    fours = of_b if along_k else BITS == 8
    return {"BITS": (0, 2, 3) if fours else (0, 1, 2)}


class Blocks:
    """The blocks of `extent` rows or columns from `first` on, of the CTA's tile `x`."""

    def __init__(self, k: Kernel, x: SmemOperand, first: Value, lane: Value, EXTENT: int, *, of_b: bool) -> None:
        self.k, self.x, self.of_b, self.COUNT = k, x, of_b, EXTENT // BLOCK
        self.BITS, self.along_k = x.T.bits, x.inner_k
        self.paired = not x.inner_k and self.BITS != 16
        self.STEP = STEP // x.T.bytes
        matrix, r = lane // 8, lane % 8                 # and row of it, whose address this lane passes
        h, q = (matrix // 2, matrix % 2) if of_b else (matrix % 2, matrix // 2)
        PIECE, fours = WIDEST // x.T.bytes, r // 2*4 + r % 2
        if x.inner_k:
            row, column = first + (fours + h*2 if of_b else r + h*8), q*PIECE
        elif self.BITS == 8:                            # of each q the first two steps of four, then the others
            row, column = matrix // 2*16 + fours + matrix % 2*2, first
        elif self.BITS == 16:
            row, column = q*8 + r, first + h*8
        else:
            row, column = lane % 4, first + lane // 4*2
        assert x.swizzle
        self.places = x.swizzle.places(k, row, column, [
            self._apart(block, step, q) for block in range(self.COUNT) for step in range(x.CTA_K // self.STEP)
            for q in range(2)])

    def _apart(self, block: int, step: int, q: int) -> tuple[int, int]:
        """Rows and columns of the tile; q counts for single loads only."""
        if self.along_k:
            return block*BLOCK, step*self.STEP
        return step*self.STEP + (q*self.STEP // 2 if self.BITS == 32 else 0), block*BLOCK

    def read(self, smem: Value, step: int) -> list[list[Value]]:
        """Of each block the registers as they come; `registers` makes them those of an instruction."""
        k, found = self.k, []
        for block in range(self.COUNT):
            both = [smem + place + constant for place, constant in (
                self.places[self._apart(block, step, q)] for q in range(2))]
            if self.BITS == 32 and not self.along_k:
                found.append([k.load(at.as_(i32), vec(i32, 2)) for at in both])
            else:
                found.append([*k.ldmatrix(both[0], 4, not self.along_k)])
        return found

    def registers(self, raw: list[Value]) -> list[Value]:
        """Those of an instruction."""
        k = self.k
        if not self.paired:
            words = raw
        elif self.BITS == 32:
            words = self._ordered(lambda h, q: raw[q][h])
        else:
            bytes = [k.reinterpret(word, vec(i8, 4)) for word in raw]
            words = self._ordered(lambda h, q: k.reinterpret(
                k.shuffle(bytes[2*q], bytes[2*q + 1], range(h, 8, 2)), i32))
        return [k.round_tf32(k.bits_as(x, f32)) for x in words] if self.BITS == 32 else words

    def _ordered(self, word: Callable[[int, int], Value]) -> list[Value]:
        return [word(x // 2, x % 2) if self.of_b else word(x % 2, x // 2) for x in range(4)]

    # ---- which elements of C a lane has: rows of index g, columns of the indices 2*t and 2*t + 1

    def column(self, h: int, e: int) -> int:
        """Of the lane's four columns of a block: which one index 2*t + e of half h is."""
        return 2*e + h if self.paired else 2*h + e

    def pieces(self, first: Value, lane: Value) -> list[Piece]:
        """The lane's rows of C (of B: columns), in the order of its sums."""
        g, t = lane // 4, lane % 4
        if not self.of_b:
            base, width, apart = (first + g*2, 2, 16) if self.paired else (first + g, 1, 8)
        else:
            base, width, apart = (first + t*4, 4, 16) if self.paired or self.along_k else (first + t*2, 2, 8)
        return [Piece(base, at, width) for at in range(0, self.COUNT*BLOCK, apart)]
