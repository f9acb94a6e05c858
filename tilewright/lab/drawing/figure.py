"""One figure of the catalogue: a drawing with its title and caption, or the reason why it is left out."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilewright.lab.drawing.pen import Svg

SOURCES = {
    "cpu": "Advanced Matrix Multiplication Optimization on Modern Multi-Core Processors",
    "nvidia": "Advanced Matrix Multiplication Optimization on NVIDIA GPUs",
    "cdna": "Matrix Core Programming on AMD CDNA3 and CDNA4 architecture",
    "tilewright": "none: layouts that the sources do not show",
    "lecture": "GPU MatMul and Compilers, a lecture of CSE 234, Data Systems for ML",
}


@dataclass(frozen=True)
class Figure:
    """`draw()` is SVG text, or `draw` is None, and `reason` says why; `drawn()` is the pen's picture. `caption` names
    the thing, then says what to see."""
    source: str
    name: str
    title: str
    drawn: Callable[[], Svg] | None
    caption: str = ""
    reason: str = ""
    measured: bool = False      # a plot of rates, which a row of lab/reproduce draws

    @property
    def draw(self) -> Callable[[], str] | None:
        drawn = self.drawn
        return None if drawn is None else lambda: str(drawn())

    @property
    def key(self) -> str:
        return f"{self.source}/{self.name}"


Drawer = Callable[[str], Svg]           # of the title


class Gallery:
    """The figures of one source, in its order."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.figures: list[Figure] = []

    def add(self, name: str, title: str, caption: str, draw: Drawer) -> None:
        self.figures.append(Figure(self.source, name, title, partial(draw, title), caption))

    def figure(self, name: str, title: str, caption: str) -> Callable[[Drawer], None]:
        """The decorator of a function that draws it, under this title."""
        return partial(self.add, name, title, caption)

    def measured(self, name: str, title: str) -> None:
        """A plot of what was measured."""
        self.figures.append(Figure(self.source, name, title, None, measured=True, reason="A plot of rates, which "
                                   f"`tilewright reproduce {self.source} --only {name}.png` draws."))

    def left_out(self, name: str, title: str, reason: str) -> None:
        self.figures.append(Figure(self.source, name, title, None, reason=reason))
