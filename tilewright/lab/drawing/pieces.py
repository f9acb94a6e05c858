"""General drawings: a grid of cells, and a product's three matrices with parts of them marked."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tilewright.lab.drawing.pen import Svg

MATRIX = {"A": "blue", "B": "orange", "C": "green", "D": "green"}
MOST_CELLS = 60                 # lines along one side of a matrix; of more none is drawn


class Cell(NamedTuple):
    """What is in a cell of a grid: a hue, how much of it, and a few letters."""
    hue: str = ""
    shade: float = 0.25
    text: str = ""


def grid(pen: Svg, x: float, y: float, rows: int, columns: int, size: float,
         cell: Callable[[int, int], Cell | None], *, high: float = 0, name: str = "", note: str = "", hue: str = "",
         ticks: tuple[int, int] = (0, 0), text: float = 0, loose: bool = False,
         tip: Callable[[int, int], str] | None = None) -> None:
    """Cells of `size` (and `high`) from (x, y) on. Above them a name, and beside them numbers of every so many rows
    and columns (`ticks`). `text`: the size of what is in cells; `loose`: it begins in its cell and may be longer.
    `tip`: what a pointer over a cell shows; only then each cell is a shape of its own."""
    high = high or size
    looks: dict[tuple[str, float], list[tuple[float, float]]] = defaultdict(list)
    words = []
    for r in range(rows):
        for c in range(columns):
            at, square = (x + c*size, y + r*high), cell(r, c)
            look = (square.hue, square.shade) if square and square.hue else ("", 0)
            looks[look].append(at)
            if square and square.text:
                words.append((*at, square.text, square.shade))
    line, width = ("edge", 0.6) if size >= 5 else ("back", 0.3)
    for (filled, shade), places in looks.items():
        if tip is None:
            pen.boxes(places, size, high, filled or "back", shade, line, width)
            continue
        for left, top in places:
            shown = tip(round((top - y) / high), round((left - x) / size))
            pen.rect(left, top, size, high, filled or "back", shade or 0.01, line, width, tip=shown)
    if hue:
        pen.rect(x, y, columns*size, rows*high, shade=0, line=hue, width=1.5)
    fits = text or min(size, high) * 0.62
    for left, top, label, _ in words:
        if loose:
            pen.text(left + 1, top + max(fits, pen.least), label, fits)
        else:
            pen.text(left + size/2, top + high/2 + max(fits, pen.least) * 0.36, label, fits, anchor="middle")
    above = 4.0
    for c in range(0, columns, ticks[1]) if ticks[1] else ():
        pen.text(x + c*size + 1 if loose else x + (c + 0.5)*size, y - above, str(c), 0, "soft",
                 "start" if loose else "middle")
    for r in range(0, rows, ticks[0]) if ticks[0] else ():
        level = r*high + pen.least if loose else (r + 0.5)*high + pen.least*0.36
        pen.text(x - above, y + level, str(r), 0, "soft", "end")
    if name:
        above += pen.least * 1.15 if ticks[1] else 2
        pen.text(x, y - above, name, 14, hue or "ink", bold=True)
        if note and pen.length(note, 0) < columns*size:
            pen.text(x + pen.length(name + "m", 17.5), y - above, note, 0, "soft")


class Rect(NamedTuple):
    x: float
    y: float
    w: float
    h: float


@dataclass
class Trio:
    """A stands left of C and B above it, so that an element of C lies where its row of A and its column of B meet.
    To scale: `unit` is how long an element is."""
    pen: Svg
    m: int
    n: int
    k: int
    unit: float
    x: float = 0
    y: float = 0
    gap: float = 14
    names: tuple[str, str, str] = ("A", "B", "C")
    sizes: dict[str, tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = {"A": (self.m, self.k), "B": (self.k, self.n), "C": (self.m, self.n)}

    def place(self, which: str, rows: tuple[float, float] | None = None, columns: tuple[float, float] | None = None
           ) -> Rect:
        """Where rows and columns of a matrix are; all of them unless given."""
        high, wide = self.sizes[which]
        (r0, r1), (c0, c1) = rows or (0, high), columns or (0, wide)
        left = self.x + (self.k*self.unit + self.gap if which != "A" else 0)
        top = self.y + (self.k*self.unit + self.gap if which != "B" else 0)
        return Rect(left + c0*self.unit, top + r0*self.unit, (c1 - c0)*self.unit, (r1 - r0)*self.unit)

    def matrices(self, named: bool = True, shade: float = 0.1, which: str = "ABC") -> None:
        for letter in which:
            place = self.place(letter)
            self.pen.rect(*place, MATRIX[letter], shade, MATRIX[letter], 1.2)
            if named:
                name = self.names["ABC".index(letter)]
                self.pen.text(place.x + place.w - 6, place.y + place.h - 7, name, 16, MATRIX[letter], "end", True)

    def part(self, which: str, rows: tuple[float, float] | None = None, columns: tuple[float, float] | None = None,
             hue: str = "", shade: float = 0.55, line: bool = True, text: str = "", size: float = 13) -> Rect:
        """A marked part of a matrix; its text stands in the middle."""
        place = self.place(which, rows, columns)
        hue = hue or MATRIX[which]
        self.pen.rect(*place, hue, shade, hue if line else "", 1.5)
        if text:
            self.pen.text(place.x + place.w/2, place.y + place.h/2 + size*0.36, text, size, anchor="middle", bold=True)
        return place

    def cut(self, which: str, rows: float = 0, columns: float = 0, hue: str = "") -> None:
        """Lines between parts of so many rows, and of so many columns."""
        place, hue = self.place(which), hue or MATRIX[which]
        for extent, step, down in ((place.h, rows*self.unit, True), (place.w, columns*self.unit, False)):
            for i in range(1, round(extent / step + 0.499)) if step and extent / step <= MOST_CELLS else ():
                if down:
                    self.pen.line(place.x, place.y + i*step, place.x + place.w, place.y + i*step, hue, 0.6)
                else:
                    self.pen.line(place.x + i*step, place.y, place.x + i*step, place.y + place.h, hue, 0.6)

    def side(self, which: str, where: str, words: str, between: tuple[float, float] | None = None, hue: str = ""
             ) -> None:
        """How long something is: "above", "left", "below" or "right" of a matrix, from one row or column to another."""
        place = self.place(which, between, None) if where in ("left", "right") else self.place(which, None, between)
        hue = hue or MATRIX[which]
        brace(self.pen, place, where, words, hue)


def brace(pen: Svg, place: Rect, where: str, words: str, hue: str = "soft", off: float = 5) -> None:
    """A bracket along one side of a box, and words in its middle."""
    x, y, w, h = place
    if where in ("above", "below"):
        level = y - off if where == "above" else y + h + off
        turn = 3 if where == "above" else -3
        pen.path([(x, level + turn), (x, level), (x + w, level), (x + w, level + turn)], hue)
        pen.text(x + w/2, level - 4 if where == "above" else level + pen.least + 3, words, 0, hue, "middle")
    else:
        level = x - off if where == "left" else x + w + off
        turn = 3 if where == "left" else -3
        pen.path([(level + turn, y), (level, y), (level, y + h), (level + turn, y + h)], hue)
        pen.text(level - 4 if where == "left" else level + 4, y + h/2 + pen.least*0.36, words, 0, hue,
                 "end" if where == "left" else "start")


def key(pen: Svg, x: float, y: float, entries: Iterable[tuple[str, float, str]], room: float = 600) -> float:
    """A legend: boxes of a hue and a shade, each with words, in lines; where the next line would be."""
    left = x
    for hue, shade, words in entries:
        wide = 18 + pen.length(words, 0) + 14
        if left > x and left + wide > x + room:
            left, y = x, y + pen.least * 1.5
        pen.rect(left, y - 9, 11, 11, hue, shade, hue)
        pen.text(left + 17, y, words, 0, "soft")
        left += wide
    return y + pen.least * 1.6
