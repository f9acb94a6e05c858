"""A matrix instruction in words: its layouts as formulas and tables, element → lane and register, and back."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.atoms.amd import LANES, SCALED, Mfma
from tilewright.atoms.fragment import Fragment

WIDE = 16                       # columns of a table, before it goes on below
ROLES = {"A": ("i", "k"), "B": ("k", "j"), "C": ("i", "j"), "D": ("i", "j")}


@dataclass(frozen=True)
class Symbol:
    """A number from 0 to `limit` - 1 that has a name: arithmetic with it is written down, and left out where it changes
    nothing. That is how layouts tell their formulas."""
    text: str
    limit: int
    level: int = 9              # how tightly its last operator binds: 1 sums, 2 products, 9 a name

    def _with(self, operator: str, other: Symbol | int, level: int, limit: int) -> Symbol:
        left = f"({self.text})" if self.level < level else self.text
        right = other.text if isinstance(other, Symbol) else str(other)
        return Symbol(f"{left} {operator} {right}", limit, level)

    def __add__(self, other: Symbol) -> Symbol:
        if 1 in (self.limit, other.limit):
            return self if other.limit == 1 else other
        return self._with("+", other, 1, self.limit + other.limit - 1)

    def __mul__(self, n: int) -> Symbol:
        return self if n == 1 or self.limit == 1 else self._with("*", n, 2, (self.limit - 1)*n + 1) if n else ZERO

    def __rmul__(self, n: int) -> Symbol: return self * n

    def __floordiv__(self, n: int) -> Symbol:
        return ZERO if n >= self.limit else self if n == 1 else self._with("//", n, 2, (self.limit - 1)//n + 1)

    def __mod__(self, n: int) -> Symbol:
        return ZERO if n == 1 else self if n >= self.limit else self._with("%", n, 2, n)


ZERO = Symbol("0", 1)


def operands(atom: Mfma) -> dict[str, Fragment]:
    return {"A": atom.a, "B": atom.b, "D": atom.c}


def details(atom: Mfma) -> Iterator[tuple[str, str]]:
    """(what, that) of everything but the tables."""
    yield "computes", (f"D = A B + C{', of each block alone' * (atom.blocks > 1)}: " + ", ".join(
        f"{name} {x.rows} x {x.columns} {x.format}" for name, x in operands(atom).items())
        + f"; {atom.blocks} blocks" * (atom.blocks > 1))
    if atom.scaled:
        yield "scales", f"e8m0, one for each {SCALED} elements along k: Ax {atom.m} x {atom.k // SCALED}, " \
                        f"Bx {atom.k // SCALED} x {atom.n}"
    for arch, cycles in atom.cycles.items():
        yield arch, (f"{cycles} cycles, {cycles // 4} passes; {atom.flops * 4 // cycles} "
                     f"{'operations' if atom.c_format == 'i32' else 'FLOP'} per compute unit and cycle")
    yield "LLVM", atom.intrinsic
    yield "registers", ", ".join(f"{name} {x.registers}" for name, x in operands(atom).items()) \
        + " in each lane, VGPRs or AGPRs" + (", and one for each side's scale" if atom.scaled else "")
    yield "element", "e of a lane; of a register's elements the first is in the lowest bits"
    lane = Symbol("lane", LANES)
    for name, x in operands(atom).items():
        e = Symbol("e", x.elements)
        places = [*zip(ROLES[name], x(lane, e))]
        if atom.blocks > 1:
            places.append(("block", x.block(lane, e)))
        yield f"{name}[{ROLES[name][0]}][{ROLES[name][1]}]", ", ".join(f"{what} = {y.text}" for what, y in places)
    if atom.scaled:
        row, block = atom.scale_a(lane)
        yield f"Ax[i][k // {SCALED}]", f"i = {row.text}, k // {SCALED} = {block.text}"
        block, column = atom.scale_b(lane)
        yield f"Bx[k // {SCALED}][j]", f"k // {SCALED} = {block.text}, j = {column.text}"
    yield "manual", atom.manual


def register(x: Fragment, element: int) -> str:
    """"v3", "v[7:6]" of 64 bits, "v0[15:8]" of fewer than 32, "v0[31:30]+v1[3:0]" of 6 that are in two registers; VGPRs
    are counted from the operand's first one."""
    parts = x.bits_of(element)
    if len(parts) == 2 and parts[0][1:] == (0, 31):
        return f"v[{parts[1][0]}:{parts[0][0]}]"
    return "+".join(f"v{r}" + (f"[{high}:{low}]" if (low, high) != (0, 31) else "") for r, low, high in parts)


def located(x: Fragment, block: int, row: int, column: int) -> str:
    """"lane 33, v0[15:0]". ValueError for an element that there is not."""
    if (block, row, column) not in x.where:
        raise ValueError(f"there is no element {row},{column}" + f" of block {block}" * (x.blocks > 1)
                         + f": the matrix is {x.rows} x {x.columns}" + f", with {x.blocks} blocks" * (x.blocks > 1))
    lane, element = x.where[block, row, column]
    return f"lane {lane}, {register(x, element)}"


def holding(name: str, x: Fragment, lane: int) -> Iterator[str]:
    """"v0[15:0]  A[3][0]" for every element that a lane has. ValueError for a lane that there is not."""
    if not 0 <= lane < LANES:
        raise ValueError(f"there is no lane {lane}: a wave has lanes 0 to {LANES - 1}")
    block, row, column = x.places
    for e in range(x.elements):
        which = f".B{block[lane, e]}" if x.blocks > 1 else ""
        yield f"{register(x, e):<10}  {name}[{row[lane, e]}][{column[lane, e]}]{which}"


def by_element(x: Fragment, block: int) -> list[list[str]]:
    """The matrix, in each place lane and register: tables of at most 16 columns, with numbers around them."""
    def cell(row: int, column: int) -> str:
        lane, element = x.where[block, row, column]
        return f"{lane}:{register(x, element)}"
    rows: list[list[str]] = []
    for start in range(0, x.columns, WIDE):
        columns = range(start, min(start + WIDE, x.columns))
        rows += [["", *map(str, columns)],
                  *([str(row), *(cell(row, column) for column in columns)] for row in range(x.rows)), []]
    return rows


def by_register(name: str, x: Fragment) -> list[list[str]]:
    """A row for each lane, a column for each of its elements, in each place the element of the matrix."""
    block, row, column = x.places

    def cell(lane: int, e: int) -> str:
        return f"[{row[lane, e]}][{column[lane, e]}]" + (f".B{block[lane, e]}" if x.blocks > 1 else "")
    rows: list[list[str]] = []
    for start in range(0, x.elements, WIDE):
        elements = range(start, min(start + WIDE, x.elements))
        rows += [["lane", *(register(x, e) for e in elements)],
                  *([str(lane), *(cell(lane, e) for e in elements)] for lane in range(LANES)), []]
    return rows
