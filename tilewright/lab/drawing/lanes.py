"""Registers of a matrix instruction: A, B and D as grids, in each cell the lane that holds it, some lanes in colour."""
from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import TYPE_CHECKING, Any

from tilewright.lab.drawing.pen import DENSE, Svg
from tilewright.lab.drawing.pieces import Cell, Trio, grid, key

if TYPE_CHECKING:
    from tilewright.atoms.amd import Mfma
    from tilewright.atoms.fragment import Fragment
    from tilewright.atoms.nvidia import Atom

MARKS = ("red", "green", "blue", "gold", "violet")
Located = Callable[["Fragment", int, int, int], str]
SCALED = 32                     # elements along k that share a scale


def matrix(pen: Svg, x: float, y: float, name: str, held: Fragment, size: float, marks: dict[int, str],
           block: int = 0, tip: Located | None = None) -> None:
    """One matrix; `marks`: lane → hue. Where cells are too small, the lane is written in every so many of them."""
    step = next(step for step in (1, 2, 4, 8) if step * size >= 1.35 * pen.least)

    def cell(row: int, column: int) -> Cell:
        lane = held.where[block, row, column][0]
        again = step > 1 and column and lane == held.where[block, row, column - 1][0]
        text = "" if again or row % step or column % step else str(lane)
        return Cell(marks[lane], 0.6, text) if lane in marks else Cell("ink", 0.05 * (lane // 16 % 4), text)

    def shown(row: int, column: int) -> str:
        return f"{name[0]}[{row}][{column}]: {tip(held, block, row, column) if tip else ''}"
    grid(pen, x, y, held.rows, held.columns, size, cell, name=name, note=f"{held.rows} x {held.columns} {held.format}",
         hue={"A": "blue", "B": "orange"}.get(name[0], "green"), ticks=(step, step), loose=step > 1,
         tip=shown if tip else None)


def marked(atom: Mfma | Atom) -> list[int]:
    """The first lane, and for scales the first of the second group: its elements and its scales are apart."""
    return [0, atom.m] if _scaled(atom) else [0]


def _scaled(atom: Mfma | Atom) -> bool:
    return bool(getattr(atom, "scaled", False))


def layouts(atom: Mfma | Atom, lanes: list[int] | None = None, tip: Located | None = None) -> Svg:
    """A stands left of D and B above it, as in a product; beside A and below B their scales, if the instruction has
    any. `lanes` are coloured: unless given the first, and the one with the scale of its other elements. `tip`: what
    a pointer over a cell shows beside its element, by fragment, block, row and column."""
    marks = dict(zip(marked(atom) if lanes is None else lanes, cycle(MARKS)))
    a, b, d = atom.a, atom.b, atom.c
    many, gap = a.columns + d.columns, 34
    size = max((540 if many <= 40 else 640) / many, 6)
    scales = a.columns // SCALED if _scaled(atom) else 0
    strip = scales * size * 1.5 + 28 if scales else 0
    left, top = a.columns*size + strip + gap, b.rows*size + strip + gap
    pen = Svg(f"{atom.name}: A {a.format}, B {b.format}, D {d.format}", left + d.columns*size + gap, readable=DENSE)
    for block in range(a.blocks):
        across = block % (4 if a.blocks > 4 else 2)
        down = block // (4 if a.blocks > 4 else 2)
        with pen.moved(across * (left + d.columns*size + gap), down * (top + d.rows*size + gap)):
            of = f".{block}" if a.blocks > 1 else ""
            matrix(pen, 0, top, "A" + of, a, size, marks, block, tip)
            matrix(pen, left, 0, "B" + of, b, size, marks, block, tip)
            matrix(pen, left, top, "D" + of, d, size, marks, block, tip)
            if scales:
                _scales(pen, atom, a.columns*size + 20, top, left, b.rows*size + 20, size, marks, tip is not None)
    bottom = pen.box[1] + pen.box[3] + pen.least
    key(pen, 0, bottom, [(hue, 0.6, f"lane {lane}") for lane, hue in marks.items()])
    return pen


def _scales(pen: Svg, atom: Any, ax: float, ay: float, bx: float, by: float, size: float, marks: dict[int, str],
            tips: bool) -> None:
    """Which lane's register has the scale of each row's, or column's, 32 elements."""
    of_a = {atom.scale_a(lane): lane for lane in range(64)}
    of_b = {atom.scale_b(lane): lane for lane in range(64)}
    rows, columns = atom.m, atom.a.columns // SCALED

    def look(lane: int) -> Cell:
        return Cell(marks[lane], 0.6) if lane in marks else Cell("ink", 0.05)
    grid(pen, ax, ay, rows, columns, size, lambda r, c: look(of_a[r, c]), name="Ax", hue="blue",
         tip=(lambda r, c: f"Ax[{r}][{c}]: lane {of_a[r, c]}") if tips else None)
    grid(pen, bx, by, columns, atom.n, size, lambda r, c: look(of_b[r, c]), hue="orange",
         tip=(lambda r, c: f"Bx[{r}][{c}]: lane {of_b[r, c]}") if tips else None)
    pen.text(bx + atom.n*size + 5, by + columns*size, "Bx", 14, "orange", bold=True)


def scale_blocks(atom: Mfma, title: str) -> Svg:
    """Which elements share a scale: A and B in blocks along k, the scales beside them, one element of C marked."""
    pen, unit, i, j = Svg(title, 640), 4.6, 9, 20
    trio = Trio(pen, atom.m, atom.n, atom.k, unit, gap=80)
    trio.matrices(shade=0.05)
    blocks, hues = atom.k // SCALED, ("violet", "teal")
    a, b = trio.place("A"), trio.place("B")
    for block in range(blocks):
        along, hue = (block*SCALED, (block + 1)*SCALED), hues[block % 2]
        trio.part("A", None, along, hue, 0.12)
        trio.part("B", along, None, hue, 0.12)
        trio.part("A", (i, i + 1), along, hue, 0.8)
        trio.part("B", along, (j, j + 1), hue, 0.8)
        pen.rect(a.x + a.w + 12 + 14*block, a.y, 12, a.h, hue, 0.12, hue)
        pen.rect(a.x + a.w + 12 + 14*block, a.y + i*unit, 12, unit, hue, 0.8)
        pen.rect(b.x, b.y + b.h + 12 + 14*block, b.w, 12, hue, 0.12, hue)
        pen.rect(b.x + j*unit, b.y + b.h + 12 + 14*block, unit, 12, hue, 0.8)
    trio.part("C", (i, i + 1), (j, j + 1), shade=0.9)
    pen.text(a.x + a.w + 12, a.y - 6, "Ax", 14, "blue", bold=True)
    pen.text(b.x + b.w + 6, b.y + b.h + 34, "Bx", 14, "orange", bold=True)
    trio.side("A", "left", str(atom.m))
    trio.side("A", "below", f"{SCALED} share a scale", (0, SCALED))
    trio.side("B", "above", str(atom.n))
    y = trio.place("C").y + trio.place("C").h + 52
    terms = " + ".join(f"Ax[i,{p}] Bx[{p},j] (A[i,{p*SCALED}..{(p + 1)*SCALED - 1}] . B)" for p in range(blocks))
    pen.text(0, y, f"C[i,j] += {terms}", 12, mono=True)
    return pen
