"""A picture in SVG that needs nothing else: rectangles, lines and text, on a card of its own colour.

Colours are attributes, so that any program shows them; where a page is dark, a style sheet in the picture changes them.
Text is monospaced, so that its width is known and `boxes` say where it is.
"""
from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

CHARACTER = 0.61        # of the size of a font: the width of a character, a little generous
LINE = 1.45             # and from one line to the next
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# class → colour on a light page, on a dark one
COLOURS = {"ink": ("#1f2328", "#e6edf3"), "soft": ("#59636e", "#9da7b3"), "card": ("#ffffff", "#0d1117"),
           "rule": ("#d1d9e0", "#3d444d")}
SERIES = ("#3f7fbf", "#e07b00", "#3a9a4b", "#a86bb0", "#d64550", "#4aa5a0", "#8c6d4f", "#8b949e")


class Box(NamedTuple):
    """Where a text is, and what it says."""
    left: float
    top: float
    right: float
    bottom: float
    text: str


class Canvas:
    """What is drawn from the top left corner; `svg` makes the picture as high as it has become."""

    def __init__(self, width: float) -> None:
        self.width, self.height = width, 0.0
        self.parts: list[str] = []
        self.boxes: list[Box] = []

    def rect(self, x: float, y: float, width: float, height: float, fill: str = "none", opacity: float = 1.0,
             stroke: str = "") -> None:
        self._reaches(y + height)
        outline = f' {_paint("stroke", stroke)}' if stroke else ""
        faint = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
                          f'{_paint("fill", fill)}{faint}{outline}/>')

    def line(self, points: Sequence[tuple[float, float]], stroke: str = "rule", width: float = 1.0,
             dashes: str = "") -> None:
        at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(f'<polyline points="{at}" fill="none" {_paint("stroke", stroke)} stroke-width="{width:g}"'
                          f'{dashed}/>')

    def dot(self, x: float, y: float, fill: str, radius: float = 4.5, filled: bool = True) -> None:
        inside = _paint("fill", fill if filled else "card")
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" {inside} {_paint("stroke", fill)} '
                          'stroke-width="1.6"/>')

    def text(self, x: float, y: float, words: str, size: float = 11, fill: str = "ink", bold: bool = False,
             anchor: str = "start") -> float:
        """A line whose base is at y; the y of the next."""
        long = len(words) * CHARACTER * size
        left = x - {"start": 0.0, "middle": long / 2, "end": long}[anchor]
        self.boxes.append(Box(left, y - 0.8*size, left + long, y + 0.2*size, words))
        self._reaches(y + 0.3*size)
        heavy, placed = ' font-weight="bold"' * bold, f' text-anchor="{anchor}"' * (anchor != "start")
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" {_paint("fill", fill)}{heavy}{placed} '
                          f'xml:space="preserve">{escape(words)}</text>')
        return y + LINE*size

    def paragraph(self, x: float, y: float, words: str, width: float, size: float = 11, fill: str = "ink",
                  bold: bool = False) -> float:
        """Lines that are no wider; the y of the next."""
        for line in wrapped(words, width, size):
            y = self.text(x, y, line, size, fill, bold)
        return y

    def svg(self, title: str, margin: float = 16) -> str:
        height = self.height + margin
        dark = "".join(f".{name}-f{{fill:{dark}}}.{name}-s{{stroke:{dark}}}" for name, (_, dark) in COLOURS.items())
        body = "\n".join(self.parts)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:g}" height="{height:.0f}" '
                f'viewBox="0 0 {self.width:g} {height:.0f}" role="img" aria-label={quoteattr(title)} '
                f'font-family="{FONT}">\n<title>{escape(title)}</title>\n'
                f'<style>@media (prefers-color-scheme: dark) {{ {dark} }}</style>\n'
                f'<rect width="{self.width:g}" height="{height:.0f}" {_paint("fill", "card")}/>\n{body}\n</svg>\n')

    def _reaches(self, y: float) -> None:
        self.height = max(self.height, y)


def wrapped(words: str, width: float, size: float) -> list[str]:
    return textwrap.wrap(words, max(int(width / (CHARACTER * size)), 8), break_on_hyphens=False) or [""]


def _paint(what: str, colour: str) -> str:
    """A colour by its class, or by itself."""
    if colour not in COLOURS:
        return f'{what}="{colour}"'
    return f'{what}="{COLOURS[colour][0]}" class="{colour}-{what[0]}"'


def overlaps(boxes: Sequence[Box]) -> Iterator[tuple[Box, Box]]:
    """Texts that lie on each other."""
    for n, one in enumerate(boxes):
        for other in boxes[n + 1:]:
            if (one.left < other.right and other.left < one.right and one.top < other.bottom
                    and other.top < one.bottom and one.text.strip() and other.text.strip()):
                yield one, other
