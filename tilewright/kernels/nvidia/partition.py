"""Which rows (or columns) of a warp's part of C each lane holds, and in which of its registers.

A lane has its elements in pieces of a vector each, and pieces of neighbouring lanes lie side by side: the lanes' vector
loads from shared memory then touch adjacent banks, and their stores to C whole sectors.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import Value


@dataclass(frozen=True)
class Piece:
    base: Value             # base + offset: where the lane's vector starts in the CTA's tile
    offset: int
    width: int              # its elements


@dataclass(frozen=True)
class Partition:
    pieces: tuple[Piece, ...]

    @property
    def elements(self) -> list[tuple[Value, int]]:
        """(base, offset) of each of the lane's elements."""
        return [(piece.base, piece.offset + e) for piece in self.pieces for e in range(piece.width)]


def partition(warp_start: Value, lane: Value, LANES: int, THREAD: int, WIDEST: int) -> Partition:
    """THREAD elements for each of LANES lanes, from `warp_start`, in pieces of WIDEST elements and then narrower."""
    pieces, done = [], 0
    while done < THREAD:
        width = WIDEST
        while width > THREAD - done:
            width //= 2
        pieces.append(Piece(warp_start + lane*width, done*LANES, width))
        done += width
    return Partition(tuple(pieces))


def lane_grid(lane: Value, LANES_M: int, LANES_N: int) -> tuple[Value, Value]:
    """(row, column) of a lane among LANES_M x LANES_N.

    A 16-byte load from shared memory takes two passes instead of four if lanes l and l^1, or l and l^2, always want the
    same vector, and half a warp wants no more than eight. So the lowest bit of the lane says the row, the next one the
    column, and the rest of the longer side comes before the rest of the shorter one.
    """
    rows, cols = LANES_M.bit_length() - 1, LANES_N.bit_length() - 1
    order = "m" * min(rows, 1) + "n" * min(cols, 1)
    rest = "m" * (rows - min(rows, 1)), "n" * (cols - min(cols, 1))
    order += "".join(sorted(rest, key=len, reverse=True))
    found = {}
    for side in "mn":
        coordinate, bits = lane.k.constant(lane.type, 0), 0
        run = 0                                             # consecutive bits of the lane move together
        for bit in range(len(order)):
            if order[bit] == side:
                run += 1
            if run and (bit + 1 == len(order) or order[bit + 1] != side):
                low = bit + 1 - run
                part = (lane >> low) % (1 << run) if bit + 1 < len(order) else lane >> low
                coordinate, bits, run = (part << bits) + coordinate if bits else part, bits + run, 0
        found[side] = coordinate
    return found["m"], found["n"]
