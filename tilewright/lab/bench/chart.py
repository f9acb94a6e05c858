"""Charts: lines against size, points against work, rows of points. Points that other processes disturbed are hollow."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.lab.drawing.pen import Svg

WIDTH, HEIGHT = 520, 260        # of the field of a chart
HOLLOW = "hollow: disturbed by other processes"
DOT = 3.2                       # a point's radius
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float              # quartiles
    high: float
    hollow: bool = False    # other processes disturbed it
    tip: str = ""


@dataclass(frozen=True)
class Series:
    name: str
    hue: str
    points: Sequence[Point] = field(default_factory=tuple)
    joined: bool = True
    bold: bool = False


@dataclass(frozen=True)
class Axis:
    """Values between `low` and `high`, on `length` pixels."""
    low: float
    high: float
    length: float
    log: bool = False

    def place(self, x: float) -> float:
        f: Callable[[float], float] = math.log if self.log else float
        span = f(self.high) - f(self.low)
        return self.length * (f(x) - f(self.low)) / span if span else self.length / 2

    @property
    def ticks(self) -> list[float]:
        """Round numbers, five or so; on a logarithmic axis powers of ten, or of two where there are less than two."""
        if not self.log:
            raw = (self.high - self.low) / 5 or 1
            unit = 10.0 ** math.floor(math.log10(raw))
            step = next(s * unit for s in (1, 2, 5, 10) if s * unit >= raw)
            return [i * step for i in range(math.ceil(self.low / step), math.floor(self.high / step * 1.0001) + 1)]
        base = 10.0 if self.high / self.low > 100 else 2.0 if self.high / self.low > 3 else 1.25
        first, last = (math.log(x, base) for x in (self.low, self.high))
        return [base**i for i in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)]


def words(x: float) -> str:
    """A tick: 0.5, 200, 10⁹."""
    power = round(math.log10(x)) if x > 0 else 0
    if abs(power) >= 5 and math.isclose(x, 10.0**power):
        return "10" + str(power).translate(RAISED)
    return f"{x:.3g}" if x < 1000 else f"{x:.0f}"


def chart(title: str, series: Sequence[Series], labels: tuple[str, str], *, log: tuple[bool, bool] = (False, False),
          ticks: Sequence[float] = (), rule: tuple[float, str] | None = None) -> Svg:
    """labels: of the axis of x, and of y. ticks: those of x, if few. rule: a level of y with its name. ValueError
    without a point."""
    points = [p for s in series for p in s.points]
    if not points:
        raise ValueError("nothing to plot")
    tops = [p.high for p in points] + ([rule[0]] if rule else [])
    lows = [p.low for p in points] + ([rule[0]] if rule else [])
    xs = [p.x for p in points]
    x = Axis(min(xs), max(xs), WIDTH, log[0])
    y = Axis(min(lows) / 1.05 if log[1] else 0.0, max(tops) * 1.05, HEIGHT, log[1])
    pen = Svg(title, WIDTH + 80)
    pen.rect(0, 0, WIDTH, HEIGHT, "back", line="edge")
    for tick in y.ticks:
        pen.line(0, HEIGHT - y.place(tick), WIDTH, HEIGHT - y.place(tick), "edge")
        pen.text(-6, HEIGHT - y.place(tick) + 4, words(tick), 11, "soft", "end")
    for tick in ticks or x.ticks:
        pen.line(x.place(tick), HEIGHT, x.place(tick), HEIGHT + 4, "soft")
        pen.text(x.place(tick), HEIGHT + 18, words(tick), 11, "soft", "middle")
    if rule:
        pen.line(0, HEIGHT - y.place(rule[0]), WIDTH, HEIGHT - y.place(rule[0]), "ink", 1, True)
        if rule[1]:
            pen.text(WIDTH - 4, HEIGHT - y.place(rule[0]) - 5, rule[1], 11, "soft", "end")
    for s in sorted(series, key=lambda s: s.bold):
        places = [(x.place(p.x), HEIGHT - y.place(p.y)) for p in s.points]
        for p, (px, _) in zip(s.points, places):
            pen.line(px, HEIGHT - y.place(p.low), px, HEIGHT - y.place(p.high), s.hue, 1)
        if s.joined and len(places) > 1:
            pen.path(places, s.hue, 3 if s.bold else 1.5)
        for p, (px, py) in zip(s.points, places):
            pen.rect(px - DOT, py - DOT, 2 * DOT, 2 * DOT, "back" if p.hollow else s.hue, line=s.hue, width=1.5,
                     tip=f"{s.name}: {p.tip}" + ", disturbed by other processes" * p.hollow, round=DOT)
    pen.text(WIDTH / 2, HEIGHT + 40, labels[0], 12, "soft", "middle")
    pen.text(-44, HEIGHT / 2, labels[1], 12, "soft", "middle", turned=True)
    _legend(pen, [(s.name, s.hue, s.bold) for s in series if s.points], any(p.hollow for p in points), HEIGHT + 64)
    return pen


def _legend(pen: Svg, names: Sequence[tuple[str, str, bool]], hollow: bool, row: float) -> None:
    at = 0.0
    for name, hue, bold in (*names, *[(HOLLOW, "", False)] * hollow):
        if at and at + 24 + pen.length(name, 12) > WIDTH + 20:
            at, row = 0.0, row + 20
        pen.rect(at, row - 9, 10, 10, hue or "back", line="" if hue else "soft", round=5)
        pen.text(at + 15, row, name, 12, bold=bold)
        at += 36 + pen.length(name, 12)


def strip(title: str, rows: Sequence[tuple[str, Mapping[str, tuple[float, bool]]]], label: str,
          hues: Mapping[str, str], notes: tuple[str, Sequence[str]] = ("", ())) -> Svg:
    """A line for each label, with a point for each side: {side: (value, hollow)}, on a logarithmic axis. notes: at the
    right of each line, below a heading. ValueError without a point."""
    values = [value for _, sides in rows for value, _ in sides.values()]
    if not values:
        raise ValueError("nothing to plot")
    x, line = Axis(min(values) / 1.2, max(values) * 1.2, WIDTH, log=True), 18
    pen = Svg(title, WIDTH + 180)
    pen.rect(0, 0, WIDTH, line * len(rows), "back", line="edge")
    for tick in x.ticks:
        pen.line(x.place(tick), 0, x.place(tick), line * len(rows), "edge")
        pen.text(x.place(tick), line * len(rows) + 16, words(tick), 11, "soft", "middle")
    for number, (name, sides) in enumerate(rows):
        y = line * (number + 0.5)
        pen.text(-6, y + 4, name, 11, anchor="end")
        for side, (value, hollow) in [*sides.items()][::-1]:
            pen.rect(x.place(value) - DOT, y - DOT, 2*DOT, 2*DOT, "back" if hollow else hues[side], line=hues[side],
                     width=1.5, tip=f"{name}: {side} {value:.4g}", round=DOT)
    for number, note in enumerate(notes[1]):
        pen.text(WIDTH + 8, line * (number + 0.5) + 4, note, 11)
    pen.text(WIDTH + 8, -6, notes[0], 11, "soft")
    pen.text(WIDTH / 2, line * len(rows) + 38, label, 12, "soft", "middle")
    sides_shown = dict.fromkeys(side for _, sides in rows for side in sides)
    _legend(pen, [(side, hues[side], False) for side in sides_shown],
            any(hollow for _, sides in rows for _, hollow in sides.values()), line * len(rows) + 62)
    return pen


def sheet(title: str, rows: Sequence[Sequence[Svg | None]], words: Sequence[str] = ()) -> Svg:
    """Pictures beside and below each other, each below its title, under some lines of words."""
    pen, y = Svg(title, WIDTH), 0.0
    for line in words:
        pen.text(0, y, line, 12, "soft")
        y += 20
    for row in rows:
        x, there = 0.0, [picture for picture in row if picture]
        for picture in there:
            pen.text(x + picture.margin, y + 14, picture.title, 14, bold=True)
            pen.put(picture, x, y + 22)
            x += picture.box[2] + 16
        y += max(picture.box[3] for picture in there) + 36
    return pen
