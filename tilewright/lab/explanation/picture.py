"""An explanation as a picture, by matplotlib, and as a page: tiles within tiles, roofline, bytes by level, the time by
cause, other plans."""
from __future__ import annotations

from html import escape
from io import StringIO
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from tilewright.lab.explanation.terminal import duration, rate, why
from tilewright.text import install, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.lab.explanation.record import Explanation, Level, Tile, Time

WIDTH, LINE = 10.0, 0.16        # inches: of the picture, and from one line of text to the next
COLUMNS = 130                   # characters of a line
MOST_LINES = 48                 # between tiles, along one side; of more every so many are drawn
THIN = 50                       # times as long as wide is the narrowest tile that is drawn
SOURCES = {"predicted": "C0", "simulated": "C1", "measured": "C2"}
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "tilewright", "font.family": "monospace", "font.size": 8}
MISSING = f"pictures need matplotlib: {install('plot')}"


def html(found: Explanation) -> str:
    """A page of its own."""
    return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f"<title>{escape(found.title)}</title></head>\n<body>{body(found)}</body></html>\n")


def body(found: Explanation) -> str:
    """What a notebook shows: the picture, if matplotlib is there to draw it, and the text."""
    try:
        drawn = svg(found)
    except RuntimeError as missing:
        drawn = f"<p>{escape(str(missing))}</p>"
    return f"<div>\n{drawn}\n<pre>{escape(str(found))}</pre>\n</div>\n"


def svg(found: Explanation) -> str:
    """RuntimeError without matplotlib."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise RuntimeError(MISSING) from None
    with rc_context(STYLE), StringIO() as file:
        draw(found).savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Title": found.title})
        text = file.getvalue()
    return text[text.index("<svg"):]


def draw(found: Explanation) -> Any:
    """The figure: a panel below the other."""
    from matplotlib.figure import Figure
    time = found.time
    title = wrap(found.title, COLUMNS * 3 // 4)
    words = [] if str(found.plan) in found.title else wrap(str(found.plan), COLUMNS)
    words += [line for sentence in found.violations for line in wrap(f"cannot run: {sentence}", COLUMNS)]
    words += wrap(_summary(found, time), COLUMNS) if time else []
    others = [line for each in found.alternatives for line in (f"{each.slower:+8.1%}  {each.plan}",
                                                               *([f"{'':10}{why(each)}"] if each.cause else []))]
    panels: list[tuple[str, float, Any]] = []
    if len(found.tiles) > 1:
        panels.append(("Tiles within tiles", 2.6, lambda part: _tiles(part, found.tiles)))
    if found.levels and time:
        panels.append(("Roofline; bytes by level, each to its own scale", 3.6, lambda part: _rates(part, found, time)))
    if time:
        panels.append(("Time by cause", 1.2 + 0.25 * len(time.parts), lambda part: _time(part.subplots(), time)))
    if others:
        panels.append((f"The next best of {found.considered:,} other plans", 0.25 + LINE * len(others),
                       lambda part: _text(part, others)))
    heights = [0.3 + 0.2*len(title) + LINE*len(words), *(height for _, height, _ in panels)]
    figure = Figure((WIDTH, sum(heights)), layout="constrained")
    head, *parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    head.suptitle("\n".join(title), x=0.01, ha="left", fontsize=11, weight="bold")
    _text(head, words)
    for part, (heading, _, fill) in zip(parts, panels):
        part.suptitle(heading, x=0.01, ha="left", fontsize=9, weight="bold")
        fill(part)
    return figure


def _text(part: Any, lines: Sequence[str]) -> None:
    part.text(0.01, 0.02, "\n".join(lines), va="bottom")


def _summary(found: Explanation, time: Time) -> str:
    said = f"predicted {duration(time.predicted)}"
    if found.flops:
        said += f", {rate(found.flops / time.predicted, time.peak)}"
        if time.peak:
            said += f", {found.flops / time.predicted / time.peak:.1%} of the ceiling"
    if time.measured:
        said += f"; measured {duration(time.measured[0])}, {time.measured[0] / time.predicted:.2f} of the prediction"
    return f"{said}. What limits it: {time.limit}."


def _tiles(part: Any, tiles: Sequence[Tile]) -> None:
    """For each tile a drawing to scale of the next ones in it, of which the first is filled."""
    pairs = list(pairwise(tiles))
    axes = part.subplots(1, max(len(pairs), 3), squeeze=False)[0]
    for axis in axes[len(pairs):]:
        axis.axis("off")
    for number, (axis, (outer, inner)) in enumerate(zip(axes, pairs)):
        longest = max(*outer.plane, 1)
        rows, columns = (max(extent, longest / THIN) for extent in outer.plane)
        high, wide = (max(extent, longest / THIN) for extent in inner.plane)
        axis.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xticks=[], yticks=[], facecolor="0.93")
        for lines, extent, step, across in ((axis.hlines, rows, high, columns), (axis.vlines, columns, wide, rows)):
            step *= max(-(-extent // (step * MOST_LINES)), 1)
            lines([step * n for n in range(1, int(-(-extent // step)))], 0, across, color=f"C{number}", linewidth=0.6)
        axis.fill_between([0, min(wide, columns)], 0, min(high, rows), color=f"C{number + 1}", alpha=0.85)
        many = f"{inner.count:,} x " if inner.count > 1 else ""
        axis.set_xlabel("\n".join([f"{outer.name}  {outer}", f"{many}{inner.name}  {inner}",
                                   *wrap(inner.held, COLUMNS // len(axes))]), loc="left")


# ---- rates and bytes

def _rates(part: Any, found: Explanation, time: Time) -> None:
    known = [level for level in found.levels if level.rate and found.intensity(level)] if time.peak else []
    axes = part.subplots(1, 2 if known else 1, squeeze=False)[0]
    if known:
        _roofline(axes[0], known, found, time)
    _traffic(axes[-1], found.levels)


def _roofline(axis: Any, levels: Sequence[Level], found: Explanation, time: Time) -> None:
    """Operations per second by operations per byte. A line for each level's bandwidth, and on its intensity a point,
    hollow where it is predicted and full where it is measured."""
    peak: Any = time.peak
    reached = [found.flops / seconds for seconds in (time.predicted, *(time.measured or ())[:1])]
    shown = [(level, found.intensity(level) or 1.0, level.rate or 1.0) for level in levels]
    first = min(min(intensity, peak / speed) for _, intensity, speed in shown) / 4
    last = max(max(intensity, peak / speed) for _, intensity, speed in shown) * 4
    for number, (level, intensity, speed) in enumerate(shown):
        axis.loglog([first, peak / speed], [first * speed, peak], color=f"C{number}",
                    label=f"{level.name} {speed / 1e9:,.0f} GB/s, {intensity:.4g} operations a byte")
        for rate_, fill in zip(reached, ("none", "full")):
            axis.plot(intensity, rate_, "o", color=f"C{number}", fillstyle=fill)
    axis.plot([first, last], [peak, peak], color="black", label=f"ceiling {rate(peak)}: {time.peak_of}")
    axis.set(xlim=(first, last), ylim=(min(*reached, peak) / 8, peak * 2.5), ylabel="operations per second",
             xlabel="operations per byte; hollow: predicted" + "; full: measured" * bool(time.measured))
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def _traffic(axis: Any, levels: Sequence[Level]) -> None:
    """A bar for each source that says something of a level."""
    names, place = list[str](), 0
    for level in levels:
        counts = {source: count for source in SOURCES if (count := getattr(level, source)) is not None}
        most = max(counts.values(), default=1) or 1
        for source, count in counts.items():
            bars = axis.barh(place, count / most, color=SOURCES[source])
            axis.bar_label(bars, [size(count)], padding=3)
            names.append(f"{level.name} {source}")
            place += 1
    axis.set(xlim=(0, 1.35), xticks=[], yticks=range(place), yticklabels=names)
    axis.invert_yaxis()


# ---- time

def _time(axis: Any, time: Time) -> None:
    """What adds up, as one bar; beneath it what is measured, and what goes on meanwhile."""
    left, names = 0.0, ["predicted"]
    for part in time.parts:
        if part.seconds > 0 and not part.hidden:
            axis.barh(0, part.seconds, left=left, label=f"{part.what}  {duration(part.seconds)}")
            left += part.seconds
    axis.text(left, 0, f" {duration(time.predicted)}", va="center")
    below = [("measured", time.measured[0], SOURCES["measured"])] if time.measured else []
    below += [(f"hidden: {part.what}", part.seconds, "0.7") for part in time.parts if part.hidden and part.seconds > 0]
    for place, (name, seconds, colour) in enumerate(below, 1):
        axis.bar_label(axis.barh(place, seconds, color=colour), [duration(seconds)], padding=3)
        names.append(name)
    axis.set(xlim=(0, 1.15 * max(left, time.predicted, *(seconds for _, seconds, _ in below), 1e-30)), xticks=[],
             yticks=range(len(names)), yticklabels=names)
    axis.invert_yaxis()
    axis.legend(loc="upper left", bbox_to_anchor=(0.0, 0.0), frameon=False)
