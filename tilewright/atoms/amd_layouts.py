"""How MFMA instructions spread matrices over the 64 lanes of a wave: the few formulas that all of them follow.

Each returns functions of (lane, element) that work on numbers, arrays and values of a kernel. Sources: AMD's CDNA3 and
CDNA4 instruction set manuals, chapter 7, and AMD's matrix instruction calculator, which prints the same.
"""
from __future__ import annotations

from typing import Any

from tilewright.atoms.mfma import LANES, Layout, Place

RUN = 16                        # elements of 8 bits that f8f6f4 instructions keep side by side


def rows_of_a(m: int, blocks: int, elements: int) -> tuple[Layout, Place]:
    """A: a lane has `elements` neighbours of one row; after m lanes comes the next block, then the next k."""
    def at(lane: Any, e: Any) -> tuple[Any, Any]: return lane % m, lane // (m*blocks) * elements + e
    def block(lane: Any, e: Any) -> Any: return lane // m % blocks
    return at, block


def eights_of_a(m: int) -> tuple[Layout, Place]:
    """A of f8f6f4 instructions in 8-bit formats: two runs of 16 along k, all groups of lanes between them."""
    groups = LANES // m

    def at(lane: Any, e: Any) -> tuple[Any, Any]:
        return lane % m, e // RUN * (RUN*groups) + lane // m * RUN + e % RUN

    def block(lane: Any, e: Any) -> Any: return 0*lane
    return at, block


def transposed(layouts: tuple[Layout, Place]) -> tuple[Layout, Place]:
    """B is held as A is, with columns for rows."""
    layout, block = layouts

    def at(lane: Any, e: Any) -> tuple[Any, Any]: return layout(lane, e)[::-1]
    return at, block


def fours_of_c(m: int, blocks: int) -> tuple[Layout, Place]:
    """C and D of 32-bit sums: a lane has a column, in runs of four rows; the groups of lanes take turns."""
    groups = min(LANES // m, m // 4)            # of lanes that share a column of a block
    per_block = m*m // (m*groups)               # elements of a block in a lane

    def at(lane: Any, e: Any) -> tuple[Any, Any]:
        return e % per_block // 4 * (4*groups) + lane // m % groups * 4 + e % 4, lane % m

    def block(lane: Any, e: Any) -> Any: return lane // (m*groups) + e // per_block
    return at, block


def ones_of_c(m: int, blocks: int) -> tuple[Layout, Place]:
    """C and D of f64: the same, one row at a time."""
    groups = LANES // (m*blocks)

    def at(lane: Any, e: Any) -> tuple[Any, Any]: return e*groups + lane // (m*blocks), lane % m
    def block(lane: Any, e: Any) -> Any: return lane // m % blocks
    return at, block
