"""What an MFMA is: a matrix multiply-add by one wave of AMD's CDNA chips, with its spelling, meaning and layouts.

Each of the three matrices is a `Fragment` (atoms/fragment.py): it says which element of the matrix each lane has where
in its registers, and takes the registers of a whole wave apart, or puts them together, by that. The meaning of every
instruction follows: decode the elements, place them, multiply, add, and hand the sums out again.

How the hardware rounds inside an instruction is not published. Here products and sums of an instruction are exact as
far as f64 goes, and each result is rounded once, to nearest; f32 operands of xf32 instructions are first rounded to 10
bits of mantissa, to nearest. On whole numbers that fit, every order of summation gives this.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.atoms.fragment import Fragment, Layout, Place
from tilewright.forks import cached_property
from tilewright.ir.ops.core import Operation
from tilewright.ir.types import i32

LANES = 64
SCALED = 32                                             # elements along k that share a scale


@dataclass(frozen=True, eq=False)
class Mfma:
    """D = A B + C by one wave, of each block alone: A is m x k, B is k x n, C and D are m x n.

    In a kernel `(d,) = k.mma(atom, [a], [b], [c])`, where a lane's part of a matrix is one value of that operand's
    type. Scaled ones take an i32 beside A and B each: `k.mma(atom, [a, scale_a], [b, scale_b], [c])`; one of its bytes
    (`byte_a`, `byte_b`) is the lane's scale, an e8m0.
    """
    name: str                   # as assembly spells it
    intrinsic: str              # and LLVM
    m: int
    n: int
    k: int
    blocks: int
    a: Fragment
    b: Fragment
    c: Fragment
    cycles: Mapping[str, int]   # of a Matrix Core, by architecture: those that have it
    needs: str                  # what a target must list among its instructions
    manual: str                 # where it is described
    numbers: tuple[int, int] | None = None      # of the formats of A and B, where the name leaves them open: f8f6f4
    scaled: bool = False
    byte_a: int = 0
    byte_b: int = 0

    @property
    def a_format(self) -> str: return self.a.format
    @property
    def b_format(self) -> str: return self.b.format
    @property
    def c_format(self) -> str: return self.c.format

    @property
    def flops(self) -> int:
        """Floating-point operations of one instruction."""
        return 2 * self.m * self.n * self.k * self.blocks

    def scale_a(self, lane: Any) -> tuple[Any, Any]:
        """Row of A and block of 32 along k to which this lane's scale of A belongs: not those of its own elements,
        where a lane has 8-bit elements of two such blocks."""
        return lane % self.m, lane // self.m

    def scale_b(self, lane: Any) -> tuple[Any, Any]:
        """Block of 32 along k and column of B to which this lane's scale of B belongs."""
        return lane // self.n, lane % self.n

    def bytes(self, a: int = 0, b: int = 0) -> Mfma:
        """This instruction with the scales in these bytes (0 to 3) of the lanes' i32."""
        if not self.scaled or not 0 <= a < 4 or not 0 <= b < 4:
            raise ValueError(f"{self.name} cannot take its scales from bytes {a} and {b}"
                             + ("; there are 0 to 3" if self.scaled else ": it has none"))
        return replace(self, byte_a=a, byte_b=b)

    @cached_property
    def operation(self) -> Operation:
        flops = self.flops // LANES if self.c.type.is_float else 0
        return Operation(self.name, self._llvm, self._meaning, "mma", "group", LANES, needs=self.needs, flops=flops)

    def _llvm(self, low: Any, t: Any, *operands: Any) -> Any:
        if self.numbers is None:
            a, b, c = operands
            a, b = _spelled(low, a, self.a), _spelled(low, b, self.b)
            modes = [low.i32(0)] * 3            # cbsz, abid, blgp: nothing broadcast, nothing negated
            return low.call(self.intrinsic, t, a, b, c, *modes, name="mfma")
        if self.scaled:
            a, scale_a, b, scale_b, c = operands
            if getattr(scale_a, "constant", None) == 0 == getattr(scale_b, "constant", None):
                raise ValueError(f"{self.name} cannot have the constant 0, which is 2^-127, for both scales: LLVM "
                                 "drops such scales")
        else:
            a, b, c = operands
            scale_a = scale_b = low.i32(0)      # no scales, as LLVM spells it
        return low.call(self.intrinsic, t, a, b, c, *map(low.i32, self.numbers), low.i32(self.byte_a), scale_a,
                        low.i32(self.byte_b), scale_b, name="mfma")

    def _meaning(self, t: Any, *operands: Any) -> Any:
        """Operands are [groups, lanes], vectors [length, groups, lanes]."""
        if self.scaled:
            a, scale_a, b, scale_b, c = operands
        else:
            a, b, c = operands
        with np.errstate(all="ignore"):
            a, b, c = self.a.matrix(a), self.b.matrix(b), self.c.matrix(c)
            if self.scaled:
                a *= self._scales(scale_a, self.byte_a, self.m).swapaxes(1, 2)[:, None]
                b *= self._scales(scale_b, self.byte_b, self.n)[:, None]
            d = a @ b + c
            if not self.c.type.is_float:
                d = d.astype(np.int64)          # whole numbers below 2^53; the lowest 32 bits of them are kept
            return self.c.lanes(d)

    def _scales(self, held: Any, byte: int, rows: int) -> Any:
        """[groups, k, rows]: 2^(e8m0 - 127) of each row (of B: column) at each k."""
        e8m0 = (held.astype(np.int64) >> 8*byte & 255).reshape(len(held), LANES // rows, rows)
        scales = np.where(e8m0 == 255, np.nan, np.ldexp(1.0, (e8m0 - 127).astype(np.int32)))
        return np.repeat(scales, SCALED, axis=1)


def _spelled(low: Any, x: Any, operand: Fragment) -> Any:
    """LLVM takes four bf16 as integers, and eight as bf16."""
    if operand.format == "bf16" and operand.elements == 4:
        return low.b.bitcast(x, low.type(replace(operand.type, kind="i")), name="bits")
    return x


SCALE = i32                     # the type of a lane's four scales, of which an instruction takes one


# ---- layouts: the few formulas that all instructions follow. Each gives functions of (lane, element) that work on
# numbers, arrays and values of a kernel. Sources: AMD's CDNA3 and CDNA4 instruction set manuals, chapter 7, and AMD's
# matrix instruction calculator, which prints the same.

RUN = 16                        # elements of 8 bits that f8f6f4 instructions keep side by side


def rows_of_a(m: int, blocks: int, elements: int) -> tuple[Layout, Place]:
    """A: a lane has `elements` neighbours of one row; after m lanes comes the next block, then the next k."""
    def element(lane: Any, e: Any) -> tuple[Any, Any]: return lane % m, lane // (m*blocks) * elements + e
    def block(lane: Any, e: Any) -> Any: return lane // m % blocks
    return element, block


def eights_of_a(m: int) -> tuple[Layout, Place]:
    """A of f8f6f4 instructions in 8-bit formats: two runs of 16 along k, all groups of lanes between them."""
    groups = LANES // m

    def element(lane: Any, e: Any) -> tuple[Any, Any]:
        return lane % m, e // RUN * (RUN*groups) + lane // m * RUN + e % RUN

    def block(lane: Any, e: Any) -> Any: return 0*lane
    return element, block


def transposed(layouts: tuple[Layout, Place]) -> tuple[Layout, Place]:
    """B is held as A is, with columns for rows."""
    layout, block = layouts

    def element(lane: Any, e: Any) -> tuple[Any, Any]: return layout(lane, e)[::-1]
    return element, block


def fours_of_c(m: int, blocks: int) -> tuple[Layout, Place]:
    """C and D of 32-bit sums: a lane has a column, in runs of four rows; the groups of lanes take turns."""
    groups = min(LANES // m, m // 4)            # of lanes that share a column of a block
    per_block = m*m // (m*groups)               # elements of a block in a lane

    def element(lane: Any, e: Any) -> tuple[Any, Any]:
        return e % per_block // 4 * (4*groups) + lane // m % groups * 4 + e % 4, lane % m

    def block(lane: Any, e: Any) -> Any: return lane // (m*groups) + e // per_block
    return element, block


def ones_of_c(m: int, blocks: int) -> tuple[Layout, Place]:
    """C and D of f64: the same, one row at a time."""
    groups = LANES // (m*blocks)

    def element(lane: Any, e: Any) -> tuple[Any, Any]: return e*groups + lane // (m*blocks), lane % m
    def block(lane: Any, e: Any) -> Any: return lane // m % blocks
    return element, block
