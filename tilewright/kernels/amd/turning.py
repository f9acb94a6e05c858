"""Turning a block of numbers in a thread's registers: what came row by row is handed on column by column."""
from __future__ import annotations

from tilewright.ir import Kernel, Type, Value, i8, i32, vec

QUAD = vec(i8, 4)           # bytes of a register


def carried(T: Type, count: int) -> Type:
    """The type in which so many elements of a row wait: bytes as words, since LLVM 22 takes vectors of them apart."""
    return vec(i32, count // 4) if T == i8 and count % 4 == 0 else vec(T, count)


def turned(k: Kernel, rows: list[Value], T: Type, first: int) -> list[Value]:
    """Rows of elements T, as `carried` says: two columns from an even one on, or the only one, each as one value."""
    length = rows[0].type.length
    if T == i8 and rows[0].type.scalar == i32:
        quads = [k.reinterpret(row[first // 4] if length > 1 else row, QUAD) for row in rows]
        return _bytes(k, quads, first % 4)
    return [_side_by_side(k, [x[first + e] for x in rows] if length > 1 else rows) for e in range(min(length, 2))]


def _bytes(k: Kernel, rows: list[Value], first: int) -> list[Value]:
    """Columns 0 and 1, or 2 and 3, of a multiple of four rows of four bytes, four by four in two steps: pairs of two
    rows, then pairs of pairs. Each makes a register of two (v_perm_b32)."""
    columns: tuple[list[Value], list[Value]] = [], []
    for r in range(0, len(rows), 4):
        x, y = (k.shuffle(rows[r + e], rows[r + e + 1], (first, first + 4, first + 1, first + 5)) for e in (0, 2))
        for column, both in zip(columns, ((0, 1, 4, 5), (2, 3, 6, 7)), strict=True):
            column.append(k.reinterpret(k.shuffle(x, y, both), i32))
    return [_side_by_side(k, column) for column in columns]


def _side_by_side(k: Kernel, column: list[Value]) -> Value:
    return k.pack(*column) if len(column) > 1 else column[0]
