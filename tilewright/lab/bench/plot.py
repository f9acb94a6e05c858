"""A report as pictures: rates against sizes, a line for each peer, and a GPU's power and clocks; of other shapes our
ratio to one peer; number formats at one size; the steps of the GPU ladder. A page has them below its tables, `draw`
writes them into one file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, zip_longest
from pathlib import Path
from typing import Any

from tilewright import outputs, targets
from tilewright.lab.bench import tables
from tilewright.lab.bench.chart import Point, Series, chart, sheet, strip
from tilewright.lab.bench.peer import OURS
from tilewright.lab.bench.report import on_gpu, warnings
from tilewright.lab.bench.results import BESIDE, CELLS, NUMPY, Report, Result
from tilewright.lab.bench.tables import baseline, groups, names, state, times
from tilewright.lab.drawing import raster
from tilewright.lab.drawing.pen import Svg
from tilewright.lab.measure.measure import Spread

# A library keeps its hue from picture to picture; others take turns with what is left.
HUES = {OURS: "orange", "numpy": "blue", "openblas": "teal", "mkl": "green", "blis": "pink", "torch": "soft",
        "cuBLAS": "blue", "triton": "green"}
SPARE = ("violet", "gold", "red", "ink")
GPU_ROWS = {"power, W": "watts", "SM clock, MHz": "sm_mhz"}
COLUMNS = 4  # of ratios, at most
SHAPES = {(True, True): "m = n = 1", (False, True): "n = 1", (True, False): "m = 1", (False, False): "m, n > 1"}
RATIOS = "x NumPy, x fastest peer"  # beside the rates of number formats

Pair = tuple[float, float]
Pictures = dict[str, list[Svg]]  # by the title of the table that they belong to


def draw(report: Report, path: Path, n: int | None = None) -> None:
    """Write a picture of the report to `path`, whose suffix chooses the format: of its suites of squares; where it has
    none, or is one of CELLS, of the ratios in all cells; of number formats at the size n (of those measured the
    largest). ValueError if there is nothing to plot, or no matplotlib, which all formats but SVG need."""
    named = ""
    if report.kind == "formats":
        n = n or max((r.case.problem.n for r in report.results if r.gflops()), default=0)
        pictures_by_title, named = _formats(report, n), f"m = n = k = {n}"
    elif report.kind == "ladder simulated":
        pictures_by_title = _simulated(report)
    elif report.kind == "ladder cuda":
        pictures_by_title = _steps(report)
    else:
        pictures_by_title = _squares(report) or _ratios(report)
        named = "" if on_gpu(report) else _where(report)
    if not pictures_by_title:
        raise ValueError("nothing to plot: " + ("tilewright has no sample at that size" if report.kind == "formats" else
                                                "no two cells with a peer were measured"))
    pictures = list(pictures_by_title.values())
    rows = list(zip_longest(*pictures)) if len(pictures) <= COLUMNS else [
        tuple(x for some in pictures[at:at + COLUMNS] for x in some) for at in range(0, len(pictures), COLUMNS)]
    page = sheet(named or report.kind, rows, [_where(report), *warnings(report)[:1]])
    if path.suffix == ".svg":
        outputs.write(path, str(page))
        return
    # What a PNG says of itself: what is shown, and of which results. Nothing in it changes from run to run.
    said = {"Title": named, "Source": digest(report), "Software": None} if named and path.suffix == ".png" else None
    raster.png(page, path, said, 1.5)


def digest(report: Report) -> str:
    """A digest of everything in a result file."""
    return hashlib.sha256(json.dumps(report.to_json(), sort_keys=True).encode()).hexdigest()


def of_tables(report: Report) -> Pictures:
    """What a page shows below its tables."""
    if report.kind == "formats":
        return _formats(report)
    return _squares(report) | _ratios(report)


def _where(report: Report) -> str:
    machine = report.machine["gpu"].get("name", "a GPU") if on_gpu(report) else report.machine["cpu"]
    clocks = f"; clocks {report.extra.get('clocks', 'unknown')}" if on_gpu(report) else ""
    return f"tilewright {report.tilewright} on {machine}, {report.created[:10]}{clocks}"


def hues(sides: Iterable[str]) -> dict[str, str]:
    """The hue of each side of a picture."""
    spare = cycle(SPARE)
    return {side: HUES.get(side) or next(spare) for side in sides}


# ---- against size


def drawable(results: list[Result]) -> bool:
    """Squares of two or more sizes, in one layout."""
    sizes = [r.case.size for r in results]
    calls = results[0].case.suite == "overhead"
    return len(sizes) > 1 and len(set(sizes)) == len(sizes) and all(map(str.isdecimal, sizes)) and not calls \
        and not any(r.case.beside for r in results)


def _squares(report: Report) -> Pictures:
    """Rates of each suite of squares, and on a GPU power and clocks below them."""
    pictures: Pictures = {}
    for group, results in groups(report.results) if report.kind not in CELLS else ():
        if drawable(results) and any(row.sample for r in results for row in r.rows):
            title, gpu = tables.title(group), on_gpu(report)
            pictures[title] = [rates(title, results, tables.peak_of(report, group), gpu)]
            for unit, what in GPU_ROWS.items() if gpu else ():
                series = {name: [(float(r.case.problem.n), float(value)) for r in results
                                 if (value := state(r, name, what)) is not None] for name in names(results)}
                if any(series.values()):
                    pictures[title].append(lines(f"{title}: {unit}", series, unit))
    return pictures


def rates(title: str, results: Sequence[Result], peak: float | None = None, gpu: bool = False) -> Svg:
    """Medians of all who multiplied these squares, with their quartiles; `peak`: of multiply-adds alone, in GFLOP/s."""
    unit, scale = ("TFLOP/s", 1e12) if gpu else ("GFLOP/s", 1e9)
    ordered, series = sorted(results, key=lambda r: r.case.problem.n), []
    for name, hue in hues(names(results)).items():
        points = []
        for r in ordered:
            if sample := r.sample(name):
                low, middle, high = (r.operations(name) / scale / s for s in
                                     (sample.spread.q3, sample.spread.median, sample.spread.q1))
                points.append(Point(r.case.problem.n, middle, low, high, sample.disturbed,
                                    f"n = {r.case.size}, {middle:.1f} {unit}"))
        series.append(Series(name, hue, points, bold=name == OURS))
    sizes = [r.case.problem.n for r in ordered]
    return chart(title, series, ("m = n = k", unit), log=(sizes[-1] / sizes[0] >= 16, False),
                 ticks=sizes if len(sizes) < 12 else (), rule=(peak, "multiply-adds alone") if peak else None)


def lines(title: str, series: Mapping[str, Sequence[Pair]], unit: str) -> Svg:
    """A line of (size, figure) for each side."""
    return chart(title, [Series(name, hue, [Point(x, y, y, y, tip=f"n = {x:g}, {y:.4g} {unit}")
                                            for x, y in series[name]], bold=name == OURS)
                         for name, hue in hues(series).items()], ("m = n = k", unit))


# ---- cells of any shape: our ratio to one peer against the work


def _ratios(report: Report) -> Pictures:
    """A point for each cell, with the quartiles of its rounds; points above 1 are those where tilewright is faster than
    the picture's one peer (tables.baseline). Of CELLS a picture for each format and number of threads, else for each
    group that is no suite of squares."""
    members: dict[str, list[Result]] = {}
    for group, results in groups(report.results):
        _, label, threads, isa = group
        if report.kind in CELLS:
            title = label if on_gpu(report) else f"{label}, {tables.setting(threads, isa)}"
            members.setdefault(title, []).extend(results)
        elif not drawable(results):
            members[tables.title(group)] = results
    by_title = {title: picture for title, results in members.items() if (picture := _against_one(title, results))}
    if sum(points for _, points in by_title.values()) < 2:
        return {}
    pictures = {title: [picture] for title, (picture, _) in by_title.items()}
    if report.kind in CELLS:        # one table stands for all groups
        return {f"{report.kind}: the fastest peer's time over ours": [x for dots in pictures.values() for x in dots]}
    return pictures


def _against_one(title: str, results: Sequence[Result]) -> tuple[Svg, int] | None:
    """The picture, and how many points it has. A hue for each suite, or of one suite for each kind of shape."""
    peer, several, series = baseline(results), len({r.case.suite for r in results}) > 1, dict[str, list[Point]]()
    for r in results:
        if peer and (x := r.ratio(peer, hollow=True)):
            shape = r.case.suite if several else SHAPES[r.case.problem.m == 1, r.case.problem.n == 1]
            series.setdefault(shape, []).append(Point(r.operations(), x.median, x.q1, x.q3, r.disturbed,
                                                      f"{r.case.label}, {x.median:.2f}"))
    if not series:
        return None
    hue = dict(zip(series, cycle((*dict.fromkeys(HUES.values()), *SPARE))))
    picture = chart(f"{title}: {peer}'s time over ours",
                    [Series(name, hue[name], points, joined=False) for name, points in series.items()],
                    ("operations of a product", f"times as fast as {peer}"), log=(True, True), rule=(1.0, ""))
    return picture, sum(map(len, series.values()))


# ---- rows: number formats, and the steps of the GPU ladder


def baselines(results: Iterable[Result]) -> dict[str, tuple[dict[str, float], dict[str, float]]]:
    """By formats, a rate for each peer, and for those that found B packed: the highest that it reached beside any of
    our ways to this product, so that f32 by bf16 terms is compared with the same figure as f32 is."""
    series: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    for r in results:
        every = series.setdefault(r.case.product.formats, ({}, {}))
        for row in r.rows:
            if row.sample and row.name not in (OURS, BESIDE):
                peers = every[row.prepared]
                peers[row.name] = max(peers.get(row.name, 0.0), r.gflops(row.name) or 0.0)
    return series


def _formats(report: Report, only: int | None = None) -> Pictures:
    """A row for each product, with a point for each side, and our ratios beside it; at one size, or at each."""
    pictures: Pictures = {}
    for (threads, isa, n), members in tables.format_groups(report.results).items():
        there = [r for r in members if r.gflops()]
        if only not in (None, n) or not there:
            continue
        peers, rows, notes = baselines(there), [], []
        for r in there:
            theirs, packed = peers[r.case.product.formats]
            ours = r.gflops() or 0.0
            rows.append((r.case.product.label, {OURS: (ours, r.disturbed)} | {
                side: (rate, False) for side, rate in (theirs | packed).items()}))
            notes.append("  ".join(times(Spread(ours / x, 0, 0) if x else None)
                                   for x in (theirs.get(NUMPY), max(theirs.values(), default=None))))
        title = tables.formats_title(n, threads, isa)
        sides = hues(dict.fromkeys(side for _, row in rows for side in row))
        pictures[title] = [strip(title, rows, "GFLOP/s, of integers GOP/s", sides, notes=(RATIOS, notes))]
    return pictures


def _steps(report: Report) -> Pictures:
    """TFLOP/s of each step of the GPU ladder, a hue for each size."""
    from tilewright.lab.bench.suites import ladders

    rows = [(row[0], {f"n = {r.case.size}": (rate / 1e3, False) for r in report.results if (rate := r.gflops(row[0]))})
            for row in ladders.table(report.results)[1:]]
    title = report.machine.get("gpu", report.extra.get("device", {})).get("name", "")
    return {title: [strip(title, rows, "TFLOP/s", hues(dict.fromkeys(x for _, row in rows for x in row)))]}


def _simulated(report: Report) -> Pictures:
    """For each step, what a multiprocessor is busy with in units of its multiply-adds: the rightmost point is the
    bound."""
    from tilewright.lab.bench.suites import ladders

    steps = ladders.counted(report)
    target: Any = targets.target(report.options["target"])
    rows = [(c.title, {what: (clocks / c.busy["multiply-adds"], False) for what, clocks in c.busy.items() if clocks})
            for c in steps]
    title = f"simulated, m = n = k = {steps[0].n}; clocks of {target.model}"
    return {title: [strip(title, rows, "clocks that a multiprocessor is busy, over those of the multiply-adds",
                          hues(steps[0].busy))]}
