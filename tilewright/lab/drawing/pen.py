"""A pen that writes SVG: boxes, lines, paths and text in named hues, for light and dark pages.

The picture's view box is what was drawn, and a margin: nothing can lie outside it. Text is never smaller than 8 pixels
when the picture is shown 390 pixels wide, as on a phone: the pen enlarges what would be (`least`).

    pen = Svg("A tile of C")
    pen.rect(0, 0, 40, 20, "green", shade=0.3)
    pen.text(20, 14, "C", anchor="middle")
    str(pen)                                                # <svg ...>
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html import escape
from typing import NamedTuple

# name → (on a light page, on a dark one). A is blue, B orange and C green everywhere; red is what goes wrong.
HUES = {
    "ink": ("#1b1f24", "#e6e9ee"), "soft": ("#57606a", "#a3adb8"), "edge": ("#c4ccd4", "#4a535e"),
    "back": ("#fdfdfb", "#15181d"), "blue": ("#1f6fd6", "#6aa9ff"), "orange": ("#c77a0a", "#f0a83c"),
    "green": ("#1c9170", "#3fc49b"), "red": ("#d3262f", "#ff6b70"), "violet": ("#7a4cc9", "#b491ff"),
    "pink": ("#c22f7c", "#ff7bbd"), "teal": ("#16839b", "#4fc3dc"), "gold": ("#8f8400", "#d8cc4a"),
}
ROUND = ("blue", "orange", "green", "violet", "pink", "teal", "gold", "red")    # for many things of one kind
PHONE, READABLE = 390, 8        # pixels: of a phone's width, and of the smallest text on it
DENSE = 7                       # and of numbers in many small cells
WIDTH = 640                     # of a picture, about: what texts are sized for unless another width is given
_WIDE, _MONO = 0.56, 0.61       # of a character, in sizes


def _style() -> str:
    def variables(theme: int) -> str:
        return "".join(f"--tw-{name}:{both[theme]};" for name, both in HUES.items())
    classes = "".join(f".tw .f-{x}{{fill:var(--tw-{x})}}.tw .l-{x}{{stroke:var(--tw-{x})}}" for x in HUES)
    return (f".tw{{{variables(0)}font-family:system-ui,'DejaVu Sans',sans-serif}}"
            f"@media(prefers-color-scheme:dark){{.tw{{{variables(1)}}}}}{classes}"
            ".tw text{fill:var(--tw-ink)}.tw .m{font-family:ui-monospace,'DejaVu Sans Mono',monospace}")


STYLE = _style()


def number(x: float) -> str:
    return f"{x:.2f}".rstrip("0").rstrip(".") if x % 1 else str(int(x))


class Shape(NamedTuple):
    """Closed shapes of one look, or a line: corners of each; no fill, or no line, is ""."""
    corners: list[list[tuple[float, float]]]
    fill: str
    shade: float
    line: str
    width: float
    dash: bool


class Words(NamedTuple):
    x: float
    y: float
    text: str
    size: float
    hue: str
    anchor: str
    bold: bool
    mono: bool
    turned: bool


class Svg:
    """`width`: how wide the picture will be, about; smaller text than can be read then is enlarged, to so many pixels
    on a phone."""

    def __init__(self, title: str, width: float = WIDTH, margin: float = 10, readable: float = READABLE) -> None:
        self.title, self.margin = title, margin
        self.least = readable * width / PHONE
        self.parts: list[str] = []
        self.shapes: list[Shape | Words] = []       # the same as data, which raster.py makes pixels of
        self._dx = self._dy = 0.0
        self._box: list[float] = []         # left, top, right, bottom

    # ---- what is drawn

    def rect(self, x: float, y: float, w: float, h: float, hue: str = "edge", shade: float = 1.0, line: str = "",
             width: float = 1, dash: bool = False, tip: str = "", round: float = 0) -> None:
        """A box, filled with a hue (not at all with shade 0), and a frame in the hue `line`."""
        look = self._look(hue if shade else "", shade, line, width, dash, [[(x, y), (x + w, y), (x + w, y + h),
                                                                            (x, y + h)]])
        corner = f' rx="{number(round)}"' if round else ""
        self._add("rect", f'x="{number(x + self._dx)}" y="{number(y + self._dy)}" width="{number(w)}" '
                          f'height="{number(h)}"{corner} {look}', tip)

    def boxes(self, places: Iterable[tuple[float, float]], w: float, h: float, hue: str, shade: float = 1.0,
              line: str = "", width: float = 1) -> None:
        """Many equal boxes of one look, as one path."""
        corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y in places]
        if corners:
            look = self._look(hue if shade else "", shade, line, width, False, corners)
            drawn = "".join(f"M{number(x + self._dx)} {number(y + self._dy)}h{number(w)}v{number(h)}h{number(-w)}z"
                            for (x, y), *_ in corners)
            self._add("path", f'd="{drawn}" {look}')

    def line(self, x1: float, y1: float, x2: float, y2: float, hue: str = "soft", width: float = 1,
             dash: bool = False, arrow: bool = False) -> None:
        self.path([(x1, y1), (x2, y2)], hue, width, dash)
        if arrow:
            length = max(((x2 - x1)**2 + (y2 - y1)**2)**0.5, 1e-9)
            ux, uy, size = (x2 - x1) / length, (y2 - y1) / length, 4 + 2*width
            back = x2 - size*ux, y2 - size*uy
            across, along = size/2*uy, size/2*ux
            self.path([(x2, y2), (back[0] - across, back[1] + along), (back[0] + across, back[1] - along)], hue, 0,
                      shade=1)

    def path(self, points: Iterable[tuple[float, float]], hue: str = "soft", width: float = 1, dash: bool = False,
             shade: float = 0) -> None:
        """A line through points; with a shade a closed shape, filled. Width 0: no line."""
        corners = list(points)
        drawn = "L".join(f"{number(x + self._dx)} {number(y + self._dy)}" for x, y in corners)
        look = self._look(hue if shade else "", shade, hue if width else "", width, dash, [corners])
        self._add("path", f'd="M{drawn}{"z" if shade else ""}" {look}')

    def text(self, x: float, y: float, words: str, size: float = 13, hue: str = "", anchor: str = "start",
             bold: bool = False, mono: bool = False, tip: str = "", turned: bool = False) -> None:
        """A line of text whose baseline is at y; `turned` reads upwards."""
        size = max(size, self.least)
        long = self.length(words, size, mono)
        start = {"start": 0.0, "middle": -long / 2, "end": -long}[anchor]
        if turned:
            self._room(x - size, y - start - long, x + size/4, y - start)
        else:
            self._room(x + start, y - size, x + start + long, y + size/4)
        self.shapes.append(Words(x + self._dx, y + self._dy, words, size, hue or "ink", anchor, bold, mono, turned))
        px, py = number(x + self._dx), number(y + self._dy)
        more = "".join((f' text-anchor="{anchor}"' if anchor != "start" else "", ' font-weight="600"' if bold else "",
                        f' style="fill:var(--tw-{hue})"' if hue else "", ' class="m"' if mono else "",
                        f' transform="rotate(-90 {px} {py})"' if turned else ""))
        self._add("text", f'x="{px}" y="{py}" font-size="{number(size)}"{more}', tip, escape(words, quote=False))

    def lines(self, x: float, y: float, words: str, room: float, size: float = 13, hue: str = "soft") -> float:
        """A paragraph, broken to the room; where the next one would begin."""
        size, line = max(size, self.least), ""
        for word in words.split():
            if line and self.length(f"{line} {word}", size) > room:
                self.text(x, y, line, size, hue)
                y, line = y + 1.3*size, word
            else:
                line = f"{line} {word}".lstrip()
        if line:
            self.text(x, y, line, size, hue)
        return y + 1.3*size * bool(line)

    def put(self, other: Svg, x: float, y: float) -> None:
        """Another picture, whose box begins at (x, y)."""
        left, top, wide, high = other.box
        self._room(x, y, x + wide, y + high)
        dx, dy = x + self._dx - left, y + self._dy - top
        self.parts += [f'<g transform="translate({number(dx)} {number(dy)})">', *other.parts, "</g>"]
        self.shapes += [x._replace(x=x.x + dx, y=x.y + dy) if isinstance(x, Words) else
                        x._replace(corners=[[(a + dx, b + dy) for a, b in shape] for shape in x.corners])
                        for x in other.shapes]

    @contextmanager
    def moved(self, dx: float, dy: float) -> Iterator[None]:
        """What is drawn inside lies so much further right and down."""
        self._dx, self._dy = self._dx + dx, self._dy + dy
        try:
            yield
        finally:
            self._dx, self._dy = self._dx - dx, self._dy - dy

    # ---- what it has become

    def length(self, words: str, size: float = 13, mono: bool = False) -> float:
        """How long a text is, about."""
        return len(words) * max(size, self.least) * (_MONO if mono else _WIDE)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, width and height of all that was drawn, and the margin."""
        left, top, right, bottom = self._box or [0, 0, 0, 0]
        m = self.margin
        return left - m, top - m, right - left + 2*m, bottom - top + 2*m

    def __str__(self) -> str:
        x, y, w, h = map(number, self.box)
        size = f'width="{w}" height="{h}"'
        return (f'<svg xmlns="http://www.w3.org/2000/svg" class="tw" viewBox="{x} {y} {w} {h}" {size} '
                f'style="max-width:100%;height:auto" role="img" aria-label="{escape(self.title)}">'
                f"<title>{escape(self.title, quote=False)}</title><style>{STYLE}</style>"
                f'<rect x="{x}" y="{y}" {size} class="f-back"/>\n' + "\n".join(self.parts) + "\n</svg>\n")

    def _room(self, left: float, top: float, right: float, bottom: float) -> None:
        left, right, top, bottom = left + self._dx, right + self._dx, top + self._dy, bottom + self._dy
        old = self._box or [left, top, right, bottom]
        self._box = [min(old[0], left), min(old[1], top), max(old[2], right), max(old[3], bottom)]

    def _look(self, hue: str, shade: float, line: str, width: float, dash: bool,
              corners: list[list[tuple[float, float]]]) -> str:
        """Attributes; the shape is noted, and room made for it."""
        for shape in corners:
            for x, y in shape:
                self._room(x, y, x, y)
        moved = [[(x + self._dx, y + self._dy) for x, y in shape] for shape in corners]
        self.shapes.append(Shape(moved, hue, shade, line, width, dash))
        names = " ".join(([f"f-{hue}"] if hue else []) + ([f"l-{line}"] if line else []))
        return "".join((f'class="{names}"', "" if hue else ' fill="none"',
                        f' fill-opacity="{number(shade)}"' if hue and shade != 1 else "",
                        f' stroke-width="{number(width)}"' if line and width != 1 else "",
                        ' stroke-dasharray="5 3"' if dash else ""))

    def _add(self, what: str, attributes: str, tip: str = "", inside: str = "") -> None:
        inside = (f"<title>{escape(tip, quote=False)}</title>" if tip else "") + inside
        self.parts.append(f"<{what} {attributes}>{inside}</{what}>" if inside else f"<{what} {attributes}/>")
