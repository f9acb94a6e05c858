"""An explanation as a picture: tiles within tiles, roofline, bytes by level, the time by cause, other plans."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from tilewright.lab.explanation.canvas import SERIES, Canvas
from tilewright.lab.explanation.terminal import duration, rate, why
from tilewright.text import size

if TYPE_CHECKING:
    from tilewright.lab.explanation.record import Explanation, Level, Tile, Time

WIDTH, MARGIN, GAP = 960, 20, 28
INNER = WIDTH - 2*MARGIN
SIDE = 132              # of a drawn tile, at most
MOST_LINES = 48         # between tiles, along one side; of more every so many are drawn
LEAST = 2.5             # pixels of the smallest thing that is to be seen
PLOT = 230              # height of the roofline
SOURCES = {"predicted": SERIES[0], "simulated": SERIES[1], "measured": SERIES[2]}
SMALL = 10


def draw(found: Explanation) -> Canvas:
    """The picture, with the places of its texts."""
    canvas = Canvas(WIDTH)
    y = canvas.paragraph(MARGIN, 30, found.title, INNER, 14, bold=True)
    if str(found.plan) not in found.title:
        y = canvas.paragraph(MARGIN, y, str(found.plan), INNER, 11)
    for sentence in found.violations:
        y = canvas.paragraph(MARGIN, y, f"cannot run: {sentence}", INNER, 11, SERIES[4])
    time = found.time
    if time:
        y = canvas.paragraph(MARGIN, y, _summary(found, time), INNER, 11, "soft")
    if len(found.tiles) > 1:
        y = _tiles(canvas, _headed(canvas, y, "Tiles within tiles"), found.tiles)
    if found.levels and time:
        half = (INNER - GAP) / 2
        left, right = y, y
        if _has_roofline(found, time):
            left = _roofline(canvas, MARGIN, _headed(canvas, y, "Roofline", half), half, found, time)
            right = _traffic(canvas, MARGIN + half + GAP, _headed(canvas, y, "Bytes by level, each to its own scale",
                                                                  half, MARGIN + half + GAP), half, found.levels)
        else:
            right = _traffic(canvas, MARGIN, _headed(canvas, y, "Bytes by level, each to its own scale"), INNER,
                             found.levels)
        y = max(left, right)
    if time:
        y = _time(canvas, _headed(canvas, y, "Time by cause"), time)
    if found.alternatives:
        _instead(canvas, _headed(canvas, y, f"The next best of {found.considered:,} other plans"), found)
    return canvas


def svg(found: Explanation) -> str:
    return draw(found).svg(found.title)


def _headed(canvas: Canvas, y: float, words: str, width: float = INNER, x: float = MARGIN) -> float:
    """A rule and a heading; the y below them."""
    canvas.line([(x, y + 4), (x + width, y + 4)])
    return canvas.text(x, y + 22, words, 12, bold=True) + 4


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

def _tiles(canvas: Canvas, y: float, tiles: Sequence[Tile]) -> float:
    """A panel for each tile, in which the next one is drawn to scale."""
    pairs = list(pairwise(tiles))
    width = (INNER - GAP*(len(pairs) - 1)) / max(len(pairs), 3)
    lowest, below_all = y, y + 18 + max(min(SIDE * outer.plane[0] / max(*outer.plane, 1), SIDE) for outer, _ in pairs)
    for number, (outer, inner) in enumerate(pairs):
        x = MARGIN + number*(width + GAP)
        _nested(canvas, x, y, outer, inner, SERIES[number % len(SERIES)], SERIES[(number + 1) % len(SERIES)])
        many = f"{inner.count:,} x " if inner.count > 1 else ""
        held = ""
        if inner.room and inner.bytes > inner.room:
            held = inner.held
        elif inner.place:
            held = f"in {inner.place}" + (f": {size(inner.bytes)}" if inner.bytes else "")
            held += f", {inner.bytes / inner.room:.0%}" if inner.room else ""
        below = canvas.paragraph(x, below_all, f"{outer.name}  {outer}", width, SMALL, bold=True)
        for words in (f"{many}{inner.name}  {inner}", held):
            below = canvas.paragraph(x, below, words, width, SMALL, "soft") if words else below
        lowest = max(lowest, below)
    return lowest


def _nested(canvas: Canvas, x: float, y: float, outer: Tile, inner: Tile, colour: str, other: str) -> None:
    """The outer tile with the inner ones, of which the first is filled."""
    (rows, columns), (high, wide) = outer.plane, inner.plane
    scale = SIDE / max(rows, columns, 1)
    height, width = max(rows*scale, LEAST), max(columns*scale, LEAST)
    canvas.rect(x, y, width, height, colour, 0.14, colour)
    for extent, each, along in ((rows, high, 1), (columns, wide, 0)):
        count = ceil(extent / max(each, 1))
        every = ceil(count / MOST_LINES)
        for n in range(every, count, every):
            at = n * each * scale
            canvas.line([(x, y + at), (x + width, y + at)] if along else [(x + at, y), (x + at, y + height)],
                        colour, 0.6)
    canvas.rect(x, y, min(max(wide*scale, LEAST), width), min(max(high*scale, LEAST), height), other, 0.85)


# ---- rates

def _has_roofline(found: Explanation, time: Time) -> bool:
    return bool(time.peak and any(level.rate and found.intensity(level) for level in found.levels))


def _roofline(canvas: Canvas, x: float, y: float, width: float, found: Explanation, time: Time) -> float:
    """Both axes logarithmic: operations per byte, operations per second. A line for each level's bandwidth, and on
    its intensity a point, hollow where it is predicted and full where it is measured."""
    peak = time.peak
    assert peak is not None
    levels = [(level, intensity, level.rate, SERIES[n % len(SERIES)]) for n, level in enumerate(found.levels)
              if level.rate and (intensity := found.intensity(level))]
    rates = [found.flops / seconds for seconds in (time.predicted, *(time.measured or ())[:1])]
    first = min(min(each, peak / speed) for _, each, speed, _ in levels) / 4
    last = max(max(each, peak / speed) for _, each, speed, _ in levels) * 4
    low, high = min(*rates, peak) / 8, peak * 2.5
    left, bottom, right = x + 62, y + PLOT, x + width - 6
    across = _axis(first, last, left, right)
    up = _axis(low, high, bottom, y)
    canvas.line([(left, y), (left, bottom), (right, bottom)], "soft")
    for n in range(ceil(log10(low)), floor(log10(high)) + 1):
        canvas.line([(left, up(10.0**n)), (right, up(10.0**n))], "rule", 0.7)
        canvas.text(left - 5, up(10.0**n) + 3, _short(10.0**n), SMALL, "soft", anchor="end")
    ticks = range(ceil(log10(first)), floor(log10(last)) + 1)
    for n in ticks:
        canvas.line([(across(10.0**n), bottom), (across(10.0**n), y)], "rule", 0.7)
        if n % max(len(ticks) // 6 + 1, 1) == 0 and across(10.0**n) < right - 12:
            canvas.text(across(10.0**n), bottom + 13, f"{10.0**n:g}", SMALL, "soft", anchor="middle")
    for _, _, speed, colour in levels:
        start, knee = max(first, low / speed), peak / speed
        canvas.line([(across(start), up(start * speed)), (across(min(knee, last)), up(min(knee, last) * speed))],
                    colour, 1.8)
    canvas.line([(across(max(first, min(peak / speed for *_, speed, _ in levels))), up(peak)), (right, up(peak))],
                "ink", 1.8)
    for _, each, _, colour in levels:
        canvas.line([(across(each), bottom), (across(each), up(max(rates)))], colour, 0.8, "2 3")
        for number, reached in enumerate(rates):
            canvas.dot(across(each), up(reached), colour, filled=number > 0)
    below = canvas.text(left, bottom + 28, "operations per byte; at the left operations per second", SMALL, "soft")
    below = _key(canvas, x, below, width, "ink", f"ceiling {rate(peak)}: {time.peak_of}")
    for level, each, speed, colour in levels:
        below = _key(canvas, x, below, width, colour, f"{level.name} {_speed(speed)}, {each:.4g} operations a byte")
    return _key(canvas, x, below, width, "", "hollow: predicted" + "; full: measured"*(len(rates) > 1))


def _axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    def at(value: float) -> float:
        share = (log10(min(max(value, low), high)) - log10(low)) / (log10(high) - log10(low))
        return start + share*(end - start)
    return at


def _key(canvas: Canvas, x: float, y: float, width: float, colour: str, words: str) -> float:
    """A line of a legend."""
    if colour:
        canvas.rect(x, y - 8, 9, 9, colour)
    return canvas.paragraph(x + 15, y, words, width - 15, SMALL, "soft") + 1


def _short(value: float) -> str:
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:g} {unit}"
    return f"{value:g}"


def _speed(value: float) -> str:
    return f"{value / 1e12:.3g} TB/s" if value >= 1e12 else f"{value / 1e9:.3g} GB/s"


# ---- bytes

def _traffic(canvas: Canvas, x: float, y: float, width: float, levels: Sequence[Level]) -> float:
    """A bar for each source that says something of a level."""
    name, value = 78, 92
    for level in levels:
        counts = {source: count for source in SOURCES if (count := getattr(level, source)) is not None}
        y = canvas.text(x, y, level.name, SMALL, bold=True)
        most = max(counts.values(), default=1) or 1
        for source, count in counts.items():
            canvas.text(x + 8, y, source, SMALL, "soft")
            room = width - name - value
            canvas.rect(x + name, y - 8.5, max(count / most * room, LEAST), 9.5, SOURCES[source])
            y = canvas.text(x + width, y, size(count), SMALL, anchor="end")
        if "measured" not in counts and (why := level.notes.get("measured")):
            y = canvas.paragraph(x + 8, y, why, width - 8, SMALL, "soft")
        y += 5
    return y


# ---- time

def _time(canvas: Canvas, y: float, time: Time) -> float:
    """What adds up, as one bar; beneath it what is measured, to the same scale, and what goes on meanwhile."""
    seen = [part for part in time.parts if part.seconds > 0 and not part.hidden]
    hidden = [part for part in time.parts if part.seconds > 0 and part.hidden]
    measured = time.measured[0] if time.measured else 0.0
    most = max(time.predicted, measured, *(part.seconds for part in hidden), 1e-30)
    name, value = 78, 92
    room = INNER - name - value
    scale = room / most
    at, colours = float(MARGIN + name), dict[str, str]()
    canvas.text(MARGIN, y, "predicted", SMALL, "soft")
    for n, part in enumerate(seen):
        colours[part.what] = SERIES[n % len(SERIES)]
        canvas.rect(at, y - 9, part.seconds * scale, 13, colours[part.what])
        at += part.seconds * scale
    canvas.text(MARGIN + INNER, y, duration(time.predicted), SMALL, anchor="end")
    y += 20
    if measured:
        canvas.text(MARGIN, y, "measured", SMALL, "soft")
        canvas.rect(MARGIN + name, y - 9, measured * scale, 13, SOURCES["measured"])
        canvas.text(MARGIN + INNER, y, duration(measured), SMALL, anchor="end")
        y += 20
    for part in seen:
        y = _key(canvas, MARGIN + name, y, room, colours[part.what], f"{part.what}  {duration(part.seconds)}")
    if hidden:
        y = canvas.text(MARGIN, y + 6, "at the same time, hidden behind the longest:", SMALL, "soft")
        for part in hidden:
            canvas.rect(MARGIN + name, y - 7, max(part.seconds * scale, LEAST), 6, "soft", 0.55)
            canvas.text(MARGIN + INNER, y, duration(part.seconds), SMALL, "soft", anchor="end")
            y = canvas.text(MARGIN + name, y + 11, part.what, SMALL, "soft") + 3
    return y


# ---- other plans

def _instead(canvas: Canvas, y: float, found: Explanation) -> float:
    for each in found.alternatives:
        canvas.text(MARGIN + 52, y, f"{each.slower:+.1%}", SMALL, bold=True, anchor="end")
        y = canvas.paragraph(MARGIN + 62, y, str(each.plan), INNER - 62, SMALL)
        if each.cause:
            y = canvas.paragraph(MARGIN + 62, y, why(each), INNER - 62, SMALL, "soft")
    return y
