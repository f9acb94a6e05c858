"""Memory: the order of a matrix's elements in it, levels of a hierarchy, and the ways between them."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2
from typing import NamedTuple

from tilewright.lab.drawing.pen import ROUND, Svg
from tilewright.lab.drawing.pieces import Cell, grid


def order(title: str, rows: int, columns: int, by_rows: bool) -> Svg:
    """A matrix, in each cell the element's number in memory, and the memory itself, in pieces of a row or a column."""
    import numpy as np
    place = np.arange(rows * columns).reshape(rows, columns, order="C" if by_rows else "F")
    pen = Svg(title, 480)
    size = 30

    def hue(line: int) -> str:
        return ROUND[line % len(ROUND)]
    grid(pen, 0, 0, rows, columns, size, lambda r, c: Cell(hue(r if by_rows else c), 0.4, str(place[r, c])),
         ticks=(1, 1), name="the matrix", text=13)
    pen.text(size*columns + 20, size, "element [row, column] is at", 13, "soft")
    pen.text(size*columns + 20, size + 20, f"row * {columns} + column" if by_rows else f"column * {rows} + row", 13,
             mono=True)
    small, top = 470 / (rows * columns), rows*size + 42
    pen.text(0, top - 8, "memory", 14, bold=True)
    grid(pen, 0, top, 1, rows*columns, small, lambda _, at: Cell(hue(at // (columns if by_rows else rows)), 0.4),
         high=26)
    for at in range(0, rows*columns, columns if by_rows else rows):
        row, column = (int(x) for x in next(zip(*np.nonzero(place == at))))
        pen.text(at*small + 2, top + 42, f"[{row},{column}]", 0, "soft", mono=True)
    return pen


def wide_loads(title: str, rows: int, columns: int, width: int = 4) -> Svg:
    """Vectors of `width` elements over the rows of a matrix as it is, and padded to whole vectors."""
    pen, size = Svg(title, 570), 26
    for x, long in ((0, columns), (columns*size + 120, -(-columns // width) * width)):
        def cell(r: int, c: int, long: int = long) -> Cell:
            vector = (r*long + c) // width
            return Cell(ROUND[vector % len(ROUND)] if c < columns else "edge", 0.4, str(r*long + c))
        grid(pen, x, 0, rows, long, size, cell, name=f"rows of {long}", text=11)
        first = columns // width * width if long % width else None
        said = (f"vector {columns // width} begins in row 0 and ends in row 1" if first is not None else
                "every row begins with a vector")
        pen.text(x, rows*size + 20, said, 0, "soft")
    return pen


class Store(NamedTuple):
    """A level of memory: what it holds, in bytes, and words beside it."""
    name: str
    bytes: float
    words: str
    hue: str


def hierarchy(title: str, levels: Sequence[Store], notes: Sequence[str] = ()) -> Svg:
    """Levels from the smallest down, as boxes as wide as the logarithm of their sizes."""
    from tilewright.text import size
    pen, high, most = Svg(title, 480), 46, max(log2(level.bytes) for level in levels)
    least = min(log2(level.bytes) for level in levels) - 9
    for i, level in enumerate(levels):
        wide = 440 * (log2(level.bytes) - least) / (most - least)
        name = f"{level.name}  {size(level.bytes)}"
        wide = max(wide, pen.length(name, 14) + 24, pen.length(level.words, 0) + 16)
        y = i * (high + 16)
        pen.rect(220 - wide/2, y, wide, high, level.hue, 0.25, level.hue, 1.3, round=4)
        pen.text(220, y + 19, name, 13, anchor="middle", bold=True)
        pen.text(220, y + 37, level.words, 0, "soft", "middle")
        if i:
            pen.line(214, y - 15, 214, y - 1, "soft", arrow=True)
            pen.line(226, y - 1, 226, y - 15, "soft", arrow=True)
    below = len(levels) * (high + 16.0) + 8
    for note in notes:
        below = pen.lines(0, below, note, 440, 0)
    return pen


class Step(NamedTuple):
    """A way from one box to another, with words."""
    start: str
    end: str
    words: str
    hue: str = "soft"


def route(title: str, boxes: Sequence[tuple[str, str]], steps: Sequence[Step], width: float = 480) -> Svg:
    """Boxes below each other, (name, words), and arrows between them with words at their right."""
    pen, high, gap, wide = Svg(title, width), 40, 34, 190.0
    places = {name: i * (high + gap) for i, (name, _) in enumerate(boxes)}
    for (name, words), y in zip(boxes, places.values()):
        pen.rect(0, y, wide, high, "ink", 0.05, "soft", round=4)
        pen.text(wide/2, y + (17 if words else 25), name, 13, anchor="middle", bold=True)
        pen.text(wide/2, y + 33, words, 0, "soft", "middle")
    used: dict[int, int] = {}
    for step in steps:
        y0, y1 = places[step.start], places[step.end]
        if abs(y1 - y0) == high + gap:
            a, b = (y0 + high, y1) if y1 > y0 else (y0, y1 + high)
            side = used[min(y0, y1)] = used.get(min(y0, y1), -1) + 1
            x = wide/2 - 30 + 60*side
            pen.line(x, a, x, b, step.hue, 1.6, arrow=True)
            pen.text(x + 8, (a + b)/2 + 5, step.words, 0, step.hue)
        else:                           # past what lies between
            x = wide + 16
            pen.path([(wide, y0 + high/2), (x, y0 + high/2), (x, y1 + high/2)], step.hue, 1.6)
            pen.line(x, y1 + high/2, wide, y1 + high/2, step.hue, 1.6, arrow=True)
            pen.lines(x + 8, (y0 + y1)/2 + high/2, step.words, 200, 0, step.hue)
    return pen


def vectors(pen: Svg, x: float, y: float, size: float, names: Sequence[tuple[str, str, str]], lanes: int,
            cell: Callable[[int, int], str]) -> None:
    """Vector registers, a row for each: (name, hue, words), and what is in each lane."""
    for i, (name, hue, words) in enumerate(names):
        top = y + i*(size + 5)
        pen.text(x - 6, top + size/2 + 4, name, 12, anchor="end", mono=True)
        for lane in range(lanes):
            pen.rect(x + lane*size*1.35, top, size*1.35, size, hue, 0.3, "edge", 0.7)
            if text := cell(i, lane):
                pen.text(x + (lane + 0.5)*size*1.35, top + size/2 + 4, text, 0, anchor="middle")
        if words:
            pen.text(x + lanes*size*1.35 + 8, top + size/2 + 4, words, 0, "soft")
