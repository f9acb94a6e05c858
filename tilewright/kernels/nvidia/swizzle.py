"""Where the 16-byte pieces of a tile are in shared memory, so that lanes which read together find different banks."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

from tilewright.ir import Kernel, Value, i32

Place = tuple[Value, int]           # (a value, plus a constant): in elements from the beginning of the tile


@dataclass(frozen=True)
class Swizzle:
    """A tile of rows of ROW elements, PIECE of them in 16 bytes: piece c of row r is piece c ^ f(r) of its row.

    Eight pieces fill all banks once, and that many lanes read together: each a piece in the same column of a row of its
    own. f(r) is made of those bits of the row by which these rows differ, BITS, but for the lowest ones where several
    rows fit into 128 bytes. It begins at bit FIRST of a piece's number, for reads of more than one column. Without BITS
    the tile is as it is.
    """
    ROW: int
    PIECE: int
    BITS: tuple[int, ...] = ()
    FIRST: int = 0

    @property
    def PIECES(self) -> int:
        """Pieces that change places with each other."""
        return gcd(self.ROW // self.PIECE, 8)

    def _moved(self, k: Kernel, row: Value) -> Value:
        """f(row)."""
        found = k.constant(i32, 0)
        for to, bit in enumerate([b for b in self.BITS if 1 << b >= 8 // self.PIECES], self.FIRST):
            if 1 << to < self.PIECES:
                found = found | (row >> bit & 1) << to
        return found

    def places(self, k: Kernel, row: Value, column: Value, apart: Iterable[tuple[int, int]]
               ) -> dict[tuple[int, int], Place]:
        """Where elements are that are `apart`, rows and columns, from (row, column). Those that are whole periods of f
        apart share a value."""
        PERIOD, WIDTH = (2 << max(self.BITS), self.PIECES * self.PIECE) if self.BITS else (1, 1)
        values: dict[tuple[int, int], Value] = {}
        found = {}
        for rows, columns in apart:
            key = rows % PERIOD, columns % WIDTH
            if key not in values:
                r, c = row + key[0], column + key[1]
                values[key] = r*self.ROW + (c ^ self._moved(k, r)*self.PIECE if self.BITS else c)
            found[rows, columns] = values[key], (rows - key[0])*self.ROW + columns - key[1]
        return found
