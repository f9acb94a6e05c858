"""A warp's fragments of A or B for `mma.sync`, read from tiles in shared memory.

A step is 32 bytes of k, for a block of 16 rows of A or columns of B (i): four registers for each lane, of half h of the
block and 16 bytes q of the step, in the order in which instructions take them: [h + 2*q] of A, [2*h + q] of B
(registers of one operand have to be neighbours). In the layout of all instructions lane 4*g + t holds, of these, the
t-th 32 bits of index g; of f64, whose registers [h] have 64 bits, the t-th number. Which i of the block index g of half
h is, is free, and chosen by what is contiguous:

    elements        contiguous      read by                                 index g of half h
    8, 16, 32 bits  k, of A         ldmatrix                                g + 8*h
                    k, of B         ldmatrix, rows in another order         g//2*4 + 2*h + g%2
    16 bits         i               ldmatrix, transposed                    g + 8*h
    8 bits          i               the same of pairs of i, whose bytes     2*g + h
                                    permutations take apart afterwards
    32 of A, 64     i               loads of two i at once                  2*g + h
    32 of B         i               loads of one                            g + 8*h
    64 bits         k               loads of one                            g + 8*h

In B's order, and where i are in pairs, a lane has four columns of C side by side. All rows are swizzled: eight lanes of
ldmatrix read 16 bytes each, and those of f64 pairs of four rows, or numbers of two pieces of four rows.
"""
from __future__ import annotations

from typing import Any

from tilewright.ir import Kernel, Value, f32, i8, i32, vec
from tilewright.kernels.nvidia.operand import WIDEST, SmemOperand
from tilewright.kernels.nvidia.result import Partition, Piece

BLOCK, STEP = 16, 32            # i of a block; bytes of k in a step


def arranged(BITS: int, along_k: bool, of_b: bool) -> dict[str, Any]:
    """How rows of a tile are to be swizzled (`operand.SmemOperand`): by which of them lanes read together."""
    if BITS == 64 or (BITS == 32 and not along_k):
        return {"PAD": 0, "BITS": (0, 1), "FIRST": 1}
    fours = of_b if along_k else BITS == 8
    return {"PAD": 0, "BITS": (0, 2, 3) if fours else (0, 1, 2)}


class Blocks:
    """The blocks of `extent` rows or columns from `first` on, of the CTA's tile `x`."""

    def __init__(self, k: Kernel, x: SmemOperand, first: Value, lane: Value, EXTENT: int, *, of_b: bool,
                 ROUNDED: bool = False, EVEN: bool = False) -> None:
        """ROUNDED: f32 in memory are tf32 already; EVEN: else they are rounded to these with halves to even."""
        self.k, self.x, self.of_b, self.COUNT, self.ROUNDED, self.EVEN = k, x, of_b, EXTENT // BLOCK, ROUNDED, EVEN
        self.BITS, self.along_k = x.T.bits, x.inner_k
        self.paired = not x.inner_k and (self.BITS in (8, 64) or (self.BITS == 32 and not of_b))
        self.matrices = self.BITS < 32 or (self.BITS == 32 and self.along_k)        # read by ldmatrix
        self.fours = self.paired or (self.matrices and self.along_k)                # columns of C, if it is B
        self.STEP, self.QUARTERS = STEP // x.T.bytes, 1 if self.BITS == 64 else 2   # elements of k; registers along it
        every = [(block, step) for block in range(self.COUNT) for step in range(x.CTA_K // self.STEP)]
        self.places = x.swizzle.places(k, *self._first_place(first, lane), (
            at for block, step in every for at in self._apart(block, step)))

    def _first_place(self, first: Value, lane: Value) -> tuple[Value, Value]:
        """Row and column of the tile where this lane reads of the first block and step."""
        if not self.matrices:
            g, t = lane // 4, lane % 4
            return (first + g, t) if self.along_k else (t, first + (g*2 if self.paired else g))
        matrix, r = lane // 8, lane % 8                 # and row of it, whose address this lane passes
        h, q = (matrix // 2, matrix % 2) if self.of_b else (matrix % 2, matrix // 2)
        fours = r // 2*4 + r % 2
        if self.along_k:
            return first + (fours + h*2 if self.of_b else r + h*8), q*(WIDEST // self.x.T.bytes)
        if self.BITS == 8:                              # of each q the first two steps of four, then the others
            return matrix // 2*16 + fours + matrix % 2*2, first
        return q*8 + r, first + h*8

    def _apart(self, block: int, step: int) -> list[tuple[int, int]]:
        """Rows and columns of the tile between that and where it reads of this block and step, once or twice."""
        i, p = block*BLOCK, step*self.STEP
        if self.along_k:
            return [(i, p)] if self.matrices else [(i, p), (i + 8, p)]
        if self.BITS != 32:
            return [(p, i)]
        return [(p + 4*q, i + 8*h) for h in range(1 if self.paired else 2) for q in range(2)]

    def read(self, smem: Value, step: int) -> list[list[Value]]:
        """The registers of each block as they come; `registers` makes them those of an instruction."""
        k, T, values = self.k, self.x.T, []
        for block in range(self.COUNT):
            places = [smem + place + constant for place, constant in (
                self.places[at] for at in self._apart(block, step))]
            if self.matrices:
                values.append([*k.ldmatrix(places[0], 4, not self.along_k)])
            elif not self.paired:
                values.append([k.load(at) for at in places])
            else:
                pairs = [k.load(at, vec(T, 2)) for at in places]
                values.append([pair[h] for pair in pairs for h in range(2)])
        return values

    def registers(self, raw: list[Value]) -> list[Value]:
        """The registers that an instruction takes."""
        k = self.k
        if self.BITS == 32:                             # in the order in which they were read
            if self.ROUNDED:
                return [k.bits_as(x, i32) if x.type == f32 else x for x in raw]
            return [k.round_tf32(x if x.type == f32 else k.bits_as(x, f32), self.EVEN) for x in raw]
        if self.BITS == 8 and self.paired:
            bytes = [k.reinterpret(word, vec(i8, 4)) for word in raw]
            halves = [(h, q) for h in range(2) for q in range(2)] if self.of_b else [
                (h, q) for q in range(2) for h in range(2)]
            return [k.reinterpret(k.shuffle(bytes[2*q], bytes[2*q + 1], range(h, 8, 2)), i32) for h, q in halves]
        return raw

    # ---- which elements of C a lane has: rows of index g, columns of the indices 2*t and 2*t + 1

    def column(self, h: int, e: int) -> int:
        """Which of the lane's four columns of a block index 2*t + e of half h is."""
        return 2*e + h if self.paired else 2*h + e

    def partition(self, first: Value, lane: Value) -> Partition:
        """The lane's rows of C (of B: columns), in the order of its sums."""
        g, t = lane // 4, lane % 4
        if not self.of_b:
            base, width, apart = (first + g*2, 2, 16) if self.paired else (first + g, 1, 8)
        else:
            base, width, apart = (first + t*4, 4, 16) if self.fours else (first + t*2, 2, 8)
        return Partition(tuple(Piece(base, at, width) for at in range(0, self.COUNT*BLOCK, apart)))
