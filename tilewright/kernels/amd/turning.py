"""Turning a block of numbers in a thread's registers: what came row by row is handed on column by column."""
from __future__ import annotations

from tilewright.ir import Kernel, Type, Value, i8, i32, vec

QUAD = vec(i8, 4)           # bytes of a register


def carried(T: Type, count: int) -> Type:
    """The type in which so many elements of a row wait: bytes as words, since LLVM 22 takes vectors of them apart."""
    return vec(i32, count // 4) if T == i8 and count % 4 == 0 else vec(T, count)


def turned(k: Kernel, rows: list[Value], T: Type) -> list[Value]:
    """Rows of elements T, as `carried` says: the first elements of all as one value, the second ones, and so on."""
    if T == i8 and rows[0].type.scalar == i32:
        return _bytes(k, rows)
    length = rows[0].type.length
    columns = [[x[e] for x in rows] for e in range(length)] if length > 1 else [rows]
    return [k.pack(*column) if len(column) > 1 else column[0] for column in columns]


def _bytes(k: Kernel, rows: list[Value]) -> list[Value]:
    """A multiple of four rows, four by four bytes at a time, in two steps: pairs of two rows, then pairs of pairs. Each
    makes a register of two (v_perm_b32)."""
    length = rows[0].type.length
    columns: list[list[Value]] = [[] for _ in range(4*length)]
    for c in range(length):
        quads = [k.reinterpret(row[c] if length > 1 else row, QUAD) for row in rows]
        for r in range(0, len(rows), 4):
            upper, lower = ([k.shuffle(quads[r + e], quads[r + e + 1], pairs) for e in (0, 2)]
                            for pairs in ((0, 4, 1, 5), (2, 6, 3, 7)))
            for e, (x, y), both in ((0, upper, (0, 1, 4, 5)), (1, upper, (2, 3, 6, 7)),
                                    (2, lower, (0, 1, 4, 5)), (3, lower, (2, 3, 6, 7))):
                columns[4*c + e].append(k.reinterpret(k.shuffle(x, y, both), i32))
    return [k.pack(*column) if len(column) > 1 else column[0] for column in columns]
