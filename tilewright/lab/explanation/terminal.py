"""An explanation as text: its words, tiles within tiles, bytes by level, roofline, and the time by cause."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tilewright.lab.measure.probes import OUT_OF_DATE, exceeded

if TYPE_CHECKING:
    from tilewright.lab.explanation.record import Alternative, Explanation, Level, Time

HEADING = 12            # columns of a section's heading
BIG, SOME = 1e13, 1e12  # operations per second, from which rates are in TFLOP/s
FIRST = "plan", "cannot run", "formats", "prologue", "epilogue", "kernel"          # sections before the drawing


def lines(found: Explanation) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it begins a section."""
    yield found.title, True
    for heading, section in sections(found):
        yield "", False
        for number, line in enumerate(section):
            yield f"{'' if number else heading:<{HEADING}}{line}".rstrip(), number == 0


def sections(found: Explanation) -> Iterator[tuple[str, Iterable[str]]]:
    """(heading, lines)."""
    yield from ((section.heading, section.lines) for section in found.sections if section.heading.startswith(FIRST))
    if len(found.tiles) > 1:
        yield "tiles", drawn(found)
    yield from ((section.heading, section.lines) for section in found.sections if not section.heading.startswith(FIRST))
    if found.alternatives or found.refused:
        yield "instead", instead(found)
    if found.instructions:
        yield "counts", [f"{count:>15,}  {kind}" for kind, count in found.instructions.items()]
    if found.levels:
        yield "bytes", traffic(found)
        if any(found.intensity(level) and level.rate for level in found.levels):
            yield "roofline", roofline(found)
    if found.time:
        yield "time", timed(found, found.time)


# ---- tiles

def drawn(found: Explanation) -> Iterator[str]:
    """Each tile inside the one above it."""
    names = [f"{'  ' * depth}{'└ ' if depth else ''}{tile.name}" for depth, tile in enumerate(found.tiles)]
    wide, sizes = max(map(len, names)), max(len(str(tile)) for tile in found.tiles)
    for name, tile in zip(names, found.tiles):
        count = f"{tile.count:,} of them" if tile.count > 1 else ""
        yield f"{name:<{wide}}  {tile!s:<{sizes}}  {count:<16}  {tile.held}".rstrip()


# ---- other plans

# Why the plan is not one that is predicted to be faster, by its origin.
FASTER = {"given": "which was given"}
CHOSEN = "which was measured, or chosen among fewer tiles; `tilewright tune` measures these"


def instead(found: Explanation) -> Iterator[str]:
    """The plans that were not chosen, a line each, and what is wrong with those that cannot run."""
    width = max((len(str(alternative.plan)) for alternative in found.alternatives), default=0)
    for alternative in found.alternatives:
        yield f"{alternative.plan!s:<{width}}  {alternative.slower:+7.1%}  {why(alternative)}".rstrip()
    if found.alternatives:
        yield ("alternatives, best first: predicted time against the chosen plan, and the main reason "
               f"({found.considered} considered)")
        if any(alternative.slower < 0 for alternative in found.alternatives):
            yield f"a minus sign: predicted to be faster than the plan, {FASTER.get(found.origin, CHOSEN)}"
    yield from (f"{count:,} cannot run: {sentence}" for sentence, count in found.refused.items())


def why(other: Alternative) -> str:
    """multiply-adds, 12 us longer"""
    seconds = other.seconds
    if not seconds:
        return other.cause
    return f"{other.cause}, {duration(abs(seconds))} {'longer' if seconds > 0 else 'less'}"


def not_taken(found: Explanation, other: Alternative) -> str:
    """Why a plan is not the one that runs, in words: what takes longer, or why the chosen one is kept although this one
    is predicted to be faster."""
    said = why(other)
    if other.slower < 0:
        return f"{said}{', ' * bool(said)}predicted to be faster than the plan, {FASTER.get(found.origin, CHOSEN)}"
    return said or "as long as the plan by the model: neither is better"


# ---- bytes

def traffic(found: Explanation) -> Iterator[str]:
    """Terms of each level with their sum, and beneath it what was simulated and measured."""
    wide = max((len(level.name) for level in found.levels), default=0) + 1
    what = max((len(term.what) for level in found.levels for term in level.terms), default=0)
    what = max(what, len("predicted"))
    for level in found.levels:
        first = level.name
        for term in level.terms:
            yield f"{first:<{wide}}{term.what:<{what}}  {term.size:>15,} x {term.times:<9,}  {term.why}"
            first = ""
        for source, count, note in _sums(level):
            sum_ = "" if count is None else f"={count:>16,} "
            yield f"{first:<{wide}}{source:<{what}}  {sum_}{note}".rstrip()
            first = ""


def _sums(level: Level) -> Iterator[tuple[str, int | None, str]]:
    """(source, bytes, what there is to say of them)."""
    at = "bytes" + (f" at {_bandwidth(level.rate)} = {duration(level.bytes / level.rate)}" if level.rate else "")
    if level.predicted is not None:
        yield "predicted" if level.simulated or level.measured else "", level.predicted, at
    for source in ("simulated", "moved", "measured"):
        count, note = getattr(level, source), level.notes.get(source, "")
        if count is not None or note:
            ratio = "" if source == "moved" else _ratio(count, level.predicted)
            if source == "measured" and count is not None and level.moved:
                ratio = f"{count / level.moved:.4g} of what is moved"
            yield source, count, ", ".join(filter(None, ("bytes" * (count is not None), ratio, note)))


def _ratio(count: int | None, predicted: int | None) -> str:
    if count is None or not predicted:
        return ""
    return "as predicted" if count == predicted else f"{count / predicted:.4g} of the prediction"


def _bandwidth(rate: float) -> str:
    return f"{rate / 1e12:.3g} TB/s" if rate >= 1e12 else f"{rate / 1e9:.0f} GB/s"


# ---- rates

def roofline(found: Explanation) -> Iterator[str]:
    """For each level: operations per byte, and the rate that this allows."""
    time = found.time
    peak = time.peak if time else None
    for level in found.levels:
        intensity = found.intensity(level)
        if intensity is None or not level.rate:
            continue
        roof = intensity * level.rate
        bound = "" if not peak else (f", {roof / peak:.0%} of the ceiling" if roof < peak else ", beyond the ceiling")
        yield f"{level.name:<7} {intensity:>9.4g} operations a byte allow {rate(roof, peak)}{bound}"


def timed(found: Explanation, time: Time) -> Iterator[str]:
    """Ceiling, prediction with its parts, measurement."""
    flops = found.flops
    if time.peak:
        yield (f"{'ceiling':<10} {duration(flops / time.peak):>9}  {flops:,} operations at {rate(time.peak)}, "
               f"{time.peak_of}")
    yield _rated("predicted", time.predicted, found, time)
    yield f"{'':<10} {'':>9}  by {time.basis}"
    for part in time.parts:
        if part.seconds:
            said = ", hidden behind the others"*part.hidden + ": this bounds it"*(part.what == time.limit)
            yield f"{'':<10} {duration(part.seconds):>9}  {part.what}{said}"
    if time.measured:
        median, q1, q3 = time.measured
        yield _rated("measured", median, found, time) + f" (quartiles {duration(q1)} to {duration(q3)})"
        yield (f"{'':<10} other processes disturbed this: repeat on an idle machine" if time.disturbed else
               f"{'':<10} {median / time.predicted:>8.2f}x  the prediction")
        if time.peak and exceeded(flops / median, time.peak):
            yield f"{'':<10} beyond the ceiling: {OUT_OF_DATE}"
    yield from (f"{'':<10} {note}" for note in time.notes)


def _rated(what: str, seconds: float, found: Explanation, time: Time) -> str:
    known = time.peak and not exceeded(found.flops / seconds, time.peak)
    share = f", {found.flops / seconds / time.peak:.1%} of the ceiling" if known and time.peak else ""
    return f"{what:<10} {duration(seconds):>9}  {rate(found.flops / seconds, time.peak)}{share}"


def rate(flops: float, beside: float | None = None) -> str:
    """Operations per second, in TFLOP/s where there are some and what it is compared with has many."""
    big = (beside or flops) >= BIG and flops >= SOME
    return f"{flops / 1e12:.1f} TFLOP/s" if big else f"{flops / 1e9:.1f} GFLOP/s"


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"
