"""An explanation as a picture, and as a page: tiles within tiles, roofline, bytes by level, the time by cause, other
plans with the reason why they were not taken."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise
from math import floor, log10
from typing import TYPE_CHECKING

from tilewright.lab.bench.chart import Axis
from tilewright.lab.drawing.pen import ROUND, Svg
from tilewright.lab.drawing.pieces import MATRIX, MOST_CELLS
from tilewright.lab.explanation.terminal import duration, not_taken, rate
from tilewright.text import size

if TYPE_CHECKING:
    from tilewright.lab.explanation.record import Explanation, Level, Tile, Time

WIDTH = 720                     # of the picture
ACROSS, ROOM = 3, 210           # pairs of tiles beside each other, and how much room each has
LEAST = 3                       # how long the shortest
SOURCES = {"predicted": "blue", "simulated": "orange", "measured": "green"}


def html(found: Explanation) -> str:
    """A page of its own."""
    return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
            f"<title>{escape(found.title)}</title></head>\n<body>{body(found)}</body></html>\n")


def body(found: Explanation) -> str:
    """What a notebook shows: the picture and the text."""
    return f"<div>\n{svg(found)}\n<pre>{escape(str(found))}</pre>\n</div>\n"


def svg(found: Explanation) -> str:
    return str(draw(found))


def draw(found: Explanation) -> Svg:
    """A panel below the other."""
    pen, time = Svg(found.title, WIDTH), found.time
    y = pen.lines(0, 0, found.title, WIDTH, 16, "ink")
    if str(found.plan) not in found.title:
        y = pen.lines(0, y, str(found.plan), WIDTH)
    for sentence in found.violations:
        y = pen.lines(0, y, f"cannot run: {sentence}", WIDTH, 13, "red")
    if time:
        y = pen.lines(0, y, _summary(found, time), WIDTH)
    for heading, panel in _panels(found):
        pen.line(0, y + 4, WIDTH, y + 4, "edge")
        pen.text(0, y + 26, heading, 15, bold=True)
        y = panel(pen, y + 46)
    return pen


def _panels(found: Explanation) -> Iterator[tuple[str, Callable[[Svg, float], float]]]:
    """(heading, what draws it from a height on and tells where it ends)."""
    time = found.time
    if len(found.tiles) > 1:
        placed = ": C, with A left of it and B above" if "m" in found.tiles[0].extents else ""
        yield f"Tiles within tiles{placed}", lambda pen, y: _tiles(pen, y, found.tiles)
    known = [level for level in found.levels if level.rate and found.intensity(level)] if time and time.peak else []
    if time and known:
        yield "Roofline", lambda pen, y: _roofline(pen, y, known, found, time)
    if found.levels and time:
        yield "Bytes by level of memory, to one scale", lambda pen, y: _traffic(pen, y, found.levels)
    if time:
        yield "Time by cause", lambda pen, y: _time(pen, y, time)
    if found.alternatives:
        yield (f"The next best of {found.considered:,} other plans: predicted time against the chosen one",
               lambda pen, y: _others(pen, y, found))


def _summary(found: Explanation, time: Time) -> str:
    said = f"predicted {duration(time.predicted)}"
    if found.flops:
        said += f", {rate(found.flops / time.predicted, time.peak)}"
        if time.peak:
            said += f", {found.flops / time.predicted / time.peak:.1%} of the ceiling"
    if time.measured:
        said += f"; measured {duration(time.measured[0])}, {time.measured[0] / time.predicted:.2f} of the prediction"
    return f"{said}. What limits it: {time.limit}."


# ---- tiles

def _tiles(pen: Svg, y: float, tiles: Sequence[Tile]) -> float:
    """Each tile as A, B and C, to scale; in them the next one, and what it needs of A and B."""
    end, wide = y, WIDTH / ACROSS
    for number, (outer, inner) in enumerate(pairwise(tiles)):
        if number % ACROSS == 0:
            y = end
        left = number % ACROSS * wide
        below = _product(pen, left, y, outer, inner) + 16
        pen.text(left, below, f"{outer.name}  {outer}", 13, bold=True)
        many = f"{inner.count:,} x " if inner.count > 1 else ""
        below = pen.lines(left, below + 19, f"{many}{inner.name}  {inner}", wide - 16, 13, "violet")
        end = max(end, pen.lines(left, below, inner.held, wide - 16) + 12)
    return end


def _product(pen: Svg, x: float, y: float, outer: Tile, inner: Tile) -> float:
    """Where the picture of one tile in another ends."""
    (m, n), (rows, columns) = outer.plane, inner.plane
    k, depth = outer.extents.get("k", 0), inner.extents.get("k", 0)
    unit = ROOM / max(m + k, n + k, 1)
    high, wide, deep = (max(extent * unit, LEAST) if extent else 0 for extent in (m, n, k))
    gap = 6 if k else 0
    shares = {"m": (rows / m if m else 1) * high, "n": (columns / n if n else 1) * wide,
              "k": (depth / k if k else 1) * deep}
    part = {along: min(max(share, 2), full) for (along, share), full in zip(shares.items(), (high, wide, deep))}
    places = {"A": (x, y + deep + gap, deep, high, part["k"], part["m"]),
              "B": (x + deep + gap, y, wide, deep, part["n"], part["k"]),
              "C": (x + deep + gap, y + deep + gap, wide, high, part["n"], part["m"])}
    for letter, (left, top, w, h, across, down) in places.items():
        if not (w and h):
            continue
        hue = MATRIX[letter]
        pen.rect(left, top, w, h, hue, 0.1, hue)
        if letter == "C":
            for i in range(1, round(h / down)) if h / down <= MOST_CELLS else ():
                pen.line(left, top + i*down, left + w, top + i*down, hue, 0.4)
            for j in range(1, round(w / across)) if w / across <= MOST_CELLS else ():
                pen.line(left + j*across, top, left + j*across, top + h, hue, 0.4)
        pen.rect(left, top, across if letter != "A" else w, down if letter != "B" else h, hue, 0.25)
        pen.rect(left, top, across, down, "violet", 0.75)
        if min(w, h) > 24:
            pen.text(left + w - 5, top + h - 5, letter, 14, hue, "end", True)
    return y + deep + gap + high


# ---- rates and bytes

def _roofline(pen: Svg, top: float, levels: Sequence[Level], found: Explanation, time: Time) -> float:
    """Operations per second by operations per byte. A line for each level's bandwidth, and on its intensity a point,
    hollow where it is predicted and full where it is measured."""
    peak = time.peak or 1.0
    reached = [found.flops / seconds for seconds in (time.predicted, *(time.measured or ())[:1])]
    shown = [(level, found.intensity(level) or 1.0, level.rate or 1.0) for level in levels]
    high, left = 200, 64
    wide = WIDTH - left - 40
    x = Axis(min(min(i, peak / speed) for _, i, speed in shown) / 4,
             max(max(i, peak / speed) for _, i, speed in shown) * 4, wide, log=True)
    y = Axis(min(*reached, peak) / 8, peak * 2.5, high, log=True)

    def place(intensity: float, speed: float) -> tuple[float, float]:
        return left + x.place(intensity), top + high - min(max(y.place(speed), 0), high)
    pen.rect(left, top, wide, high, "back", line="edge")
    for tick in _ticks(y.low, y.high):
        pen.line(left, place(1, tick)[1], left + wide, place(1, tick)[1], "edge", 0.6)
        pen.text(left - 5, place(1, tick)[1] + 4, _many(tick), 12, "soft", "end")
    for tick in _ticks(x.low, x.high):
        pen.line(place(tick, peak)[0], top, place(tick, peak)[0], top + high, "edge", 0.6)
        pen.text(place(tick, peak)[0], top + high + 17, _many(tick), 12, "soft", "middle")
    pen.text(14, top + high/2 + 70, "operations per second", 13, "soft", turned=True)
    pen.text(left + wide/2, top + high + 36, "operations per byte", 13, "soft", "middle")
    below = top + high + 62
    for hue, (level, intensity, speed) in zip(ROUND * 2, shown):
        first = max(x.low, y.low / speed)
        pen.path([place(first, first * speed), place(peak / speed, peak)], hue, 1.8)
        for achieved, full in zip(reached, (False, True)):
            px, py = place(intensity, achieved)
            pen.rect(px - 5, py - 5, 10, 10, hue if full else "back", 1, hue, 1.8, round=5,
                     tip=f"{level.name}: {'measured' if full else 'predicted'} {rate(achieved, peak)}")
        pen.line(0, below - 4, 22, below - 4, hue, 2.5)
        pen.text(30, below, f"{level.name} {speed / 1e9:,.0f} GB/s, {intensity:.4g} operations a byte", 13)
        below += 19
    pen.line(left, place(1, peak)[1], left + wide, place(1, peak)[1], "ink", 1.6)
    pen.line(0, below - 4, 22, below - 4, "ink", 2.5)
    below = pen.lines(30, below, f"ceiling {rate(peak)}: {time.peak_of}", WIDTH - 30, 13, "ink")
    said = "hollow points: predicted" + ("; full: measured" if time.measured else "")
    pen.text(30, below, said, 13, "soft")
    return below + 20


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers of a logarithmic axis, nine at most."""
    tens = range(floor(log10(low)), floor(log10(high)) + 1)
    for steps in ((1, 2, 5), (1,)):
        ticks = [step * 10.0**ten for ten in tens for step in steps if low <= step * 10.0**ten <= high]
        if len(ticks) < 10:
            break
    return ticks


def _many(x: float) -> str:
    """200, 5 G, 1 T"""
    for letter, unit in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if x >= unit:
            return f"{x / unit:g} {letter}"
    return f"{x:g}"


def _traffic(pen: Svg, y: float, levels: Sequence[Level]) -> float:
    """A bar for each source that says something of a level, as long as its bytes are many."""
    counts = [(level, source, count) for level in levels for source in SOURCES
              if (count := getattr(level, source)) is not None]
    most = max((count for *_, count in counts), default=0) or 1
    before = ""
    for level, source, count in counts:
        if level.name != before:
            pen.text(0, y + 13, level.name, 13, bold=True)
        before = level.name
        pen.text(150, y + 13, source, 13, "soft", "end")
        wide = 430 * count / most
        pen.rect(158, y + 1, wide, 15, SOURCES[source], 0.7)
        pen.text(158 + wide + 6, y + 13, size(count), 13)
        y += 21
    return y + 8


# ---- time, and other plans

def _time(pen: Svg, y: float, time: Time) -> float:
    """What adds up, as one bar; beneath it what is measured, and what goes on meanwhile."""
    shown = [part for part in time.parts if part.seconds > 0 and not part.hidden]
    hidden = [part for part in time.parts if part.seconds > 0 and part.hidden]
    measured = time.measured[0] if time.measured else 0.0
    most = max(time.predicted, measured, *(part.seconds for part in hidden), 1e-30)

    def row(name: str, seconds: float, hue: str, y: float, left: float = 0.0) -> float:
        wide = 420 * seconds / most
        pen.rect(90 + left, y, wide, 17, hue, 0.7)
        if name:
            pen.text(82, y + 13, name, 13, "soft", "end")
        return wide
    left, name = 0.0, "predicted"
    for hue, part in zip(ROUND * 3, shown):
        left += row(name, part.seconds, hue, y, left)
        name = ""
    pen.text(96 + left, y + 13, duration(time.predicted), 13)
    y += 24
    if measured:
        pen.text(96 + row("measured", measured, "ink", y), y + 13, duration(measured), 13)
        y += 24
    for part in hidden:
        wide = row("meanwhile", part.seconds, "edge", y)
        pen.text(96 + wide, y + 13, f"{part.what}  {duration(part.seconds)}", 13)
        y += 24
    y += 10
    for hue, part in zip(ROUND * 3, shown):
        pen.rect(90, y - 10, 12, 12, hue, 0.7)
        share = f", {part.seconds / time.predicted:.0%}" if time.predicted else ""
        limits = ": this bounds it" if part.what == time.limit else ""
        pen.text(108, y, f"{part.what}  {duration(part.seconds)}{share}{limits}", 13)
        y += 19
    return y + 4


def _others(pen: Svg, y: float, found: Explanation) -> float:
    """Each with why it was not taken."""
    for other in found.alternatives:
        pen.text(62, y, f"{other.slower:+.1%}", 13, "green" if other.slower < 0 else "red", "end", True)
        y = pen.lines(72, y, str(other.plan), WIDTH - 72, 13, "ink")
        y = pen.lines(72, y, not_taken(found, other), WIDTH - 72) + 4
    return y
