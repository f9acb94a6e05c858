"""The layouts of a matrix instruction as a picture: A, B and D as grids, in each cell the lane, some lanes in colour.

A stands left of D and B above it, so that an element of D lies where its row of A and its column of B meet. One picture
is a list of boxes and texts; SVG is written from it directly, and PNG by matplotlib.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from tilewright import outputs
from tilewright.lab.cli.describe import located, operands
from tilewright.text import install

if TYPE_CHECKING:
    from tilewright.atoms.fragment import Fragment
    from tilewright.atoms.mfma import Mfma

CELL, GAP, TITLE = 20, 46, 24  # pixels: a cell, the space between matrices, a line of text
COLOURS = {"red": "#ff9d9d", "green": "#9fdf9f", "blue": "#9fc3ff", "yellow": "#ffd27f", "violet": "#d8b0ff"}
EDGE = "#999999"


@dataclass
class Picture:
    title: str
    width: float = 0
    height: float = 0
    boxes: list[tuple[float, float, str, str, str]] = field(default_factory=list)  # x, y, fill, text, what it is
    texts: list[tuple[float, float, str, int]] = field(default_factory=list)  # x, y, text, size

    def box(self, x: float, y: float, fill: str, text: str, what: str) -> None:
        self.boxes.append((x, y, fill, text, what))
        self.width, self.height = max(self.width, x + CELL + GAP), max(self.height, y + CELL + GAP / 2)


def marked(atom: Mfma) -> list[int]:
    """The first lane, and for scales the first of the second group: its elements and its scales are apart."""
    return [0, atom.m] if atom.scaled else [0]


def picture(atom: Mfma, lanes: list[int]) -> Picture:
    """In the cells of A, B and D the lane is written; in an SVG a cell tells its register too."""
    arch = "" if len(atom.cycles) > 1 else f" ({next(iter(atom.cycles))})"
    drawn = Picture(f"{atom.name}: A {atom.a_format}, B {atom.b_format}, D {atom.c_format}{arch}")
    named = dict(zip(lanes, cycle(COLOURS)))
    colour = {lane: COLOURS[name] for lane, name in named.items()}
    left, top = GAP, 3.0 * TITLE + GAP / 2
    a, b, d = operands(atom).values()
    scales = atom.k // 32 if atom.scaled else 0
    beside = (a.columns + scales) * CELL + GAP * (1 + bool(scales))  # of D: A and its scales
    above = (b.rows + scales) * CELL + GAP * (1 + bool(scales))
    across = 4 if atom.blocks > 4 else 2  # blocks side by side
    for block in range(atom.blocks):
        x = left + block % across * (beside + d.columns * CELL + GAP)
        y = top + block // across * (above + d.rows * CELL + GAP)
        of = f" of block {block}" * (atom.blocks > 1)
        _grid(drawn, "A" + of, a, block, x, y + above, colour)
        _grid(drawn, "B" + of, b, block, x + beside, y, colour)
        _grid(drawn, "D" + of, d, block, x + beside, y + above, colour)
        if scales:
            _scales(drawn, atom, x + a.columns * CELL + GAP, y + above, x + beside, y + b.rows * CELL + GAP, colour)
    drawn.texts.append((GAP, TITLE, drawn.title, 16))
    legend = "".join(f", lane {lane} in {name}" for lane, name in named.items())
    drawn.texts.append((GAP, 2 * TITLE, f"in each cell the lane that holds it{legend}", 11))
    drawn.width = max(drawn.width, 10.0 * len(drawn.title) + 2 * GAP)
    return drawn


def _grid(drawn: Picture, name: str, x: Fragment, block: int, left: float, top: float, colour: dict[int, str]) -> None:
    drawn.texts.append((left, top - 16, f"{name}: {x.rows} x {x.columns} {x.format}", 12))
    for (which, row, column), (lane, _) in x.where.items():
        if which == block:
            what = f"{name[0]}[{row}][{column}]: {located(x, block, row, column)}"
            drawn.box(left + column * CELL, top + row * CELL, colour.get(lane, "#ffffff"), str(lane), what)
    drawn.texts += [(left - 20, top + row * CELL + 14, str(row), 9) for row in range(0, x.rows, 4)]
    drawn.texts += [(left + column * CELL + 4, top - 3, str(column), 9) for column in range(0, x.columns, 4)]


def _scales(drawn: Picture, atom: Mfma, ax: float, ay: float, bx: float, by: float, colour: dict[int, str]) -> None:
    """Beside A and below B: which lane's register has the scale of each row's, or column's, 32 elements."""
    drawn.texts += [(ax, ay - 16, "Ax e8m0", 12), (bx, by - 16, "Bx e8m0", 12)]
    for lane in range(64):
        for name, (row, column), x, y in (("Ax", atom.scale_a(lane), ax, ay), ("Bx", atom.scale_b(lane), bx, by)):
            drawn.box(x + column * CELL, y + row * CELL, colour.get(lane, "#ffffff"), str(lane),
                      f"{name}[{row}][{column}]: lane {lane}")


def svg(drawn: Picture, path: Path) -> None:
    """Write it as SVG: a tooltip over a cell names its element, lane and register."""
    width, height = round(drawn.width), round(drawn.height)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
             f'height="{height}" font-family="sans-serif">',
             f"<title>{escape(drawn.title)}</title>", '<rect width="100%" height="100%" fill="#ffffff"/>',
             f'<g stroke="{EDGE}" stroke-width="0.5" font-size="9" text-anchor="middle">']
    for x, y, fill, text, what in drawn.boxes:
        lines.append(f'<g><title>{escape(what)}</title><rect x="{x:g}" y="{y:g}" width="{CELL}" height="{CELL}" '
                     f'fill="{fill}"/><text x="{x + CELL / 2:g}" y="{y + 14:g}" stroke="none">{text}</text></g>')
    lines.append("</g>")
    lines += [f'<text x="{x:g}" y="{y:g}" font-size="{size}">{escape(text)}</text>' for x, y, text, size in drawn.texts]
    outputs.write(path, "\n".join([*lines, "</svg>", ""]))


def png(drawn: Picture, path: Path) -> None:
    """Write it as PNG. RuntimeError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.collections import PolyCollection
        from matplotlib.figure import Figure
    except ImportError:
        raise RuntimeError(f"a PNG needs matplotlib: {install('plot')}; an SVG needs nothing") from None
    dots = 100
    figure = Figure((drawn.width / dots, drawn.height / dots), dots)
    FigureCanvasAgg(figure)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, drawn.width), ylim=(drawn.height, 0))
    axis.axis("off")
    corners = [[(x, y), (x + CELL, y), (x + CELL, y + CELL), (x, y + CELL)] for x, y, *_ in drawn.boxes]
    fills = [fill for _, _, fill, *_ in drawn.boxes]
    axis.add_collection(PolyCollection(corners, facecolors=fills, edgecolors=EDGE, linewidths=0.4))
    points = 72 / dots  # of a pixel
    for x, y, _, text, _ in drawn.boxes:
        axis.text(x + CELL / 2, y + CELL / 2, text, fontsize=9 * points, ha="center", va="center_baseline")
    for x, y, text, size in drawn.texts:
        axis.text(x, y, text, fontsize=size * points, va="baseline")
    figure.savefig(path)
