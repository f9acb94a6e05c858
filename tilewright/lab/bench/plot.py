"""A report as a picture: rates against sizes, one line per peer; a GPU's power and clocks too; of other shapes our
ratio to the fastest peer; number formats at one size; the steps of the GPU ladder."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilewright.lab.bench.peer import OURS
from tilewright.lab.bench.report import on_gpu, warnings
from tilewright.lab.bench.results import BESIDE, CELLS, NUMPY, Report, Result
from tilewright.lab.bench.tables import (
    Group,
    baseline,
    format_groups,
    groups,
    names,
    peak_of,
    setting,
    state,
    times,
    title,
)
from tilewright.lab.measure.measure import Spread
from tilewright.text import install

MISSING = f"plots need matplotlib: {install('plot')}"
# Readable for the colour-blind (Okabe and Ito) and stable from plot to plot: a library keeps its colour.
COLOURS = {
    OURS: "#d55e00",
    "numpy": "#0072b2",
    "openblas": "#56b4e9",
    "mkl": "#009e73",
    "blis": "#cc79a7",
    "torch": "#999999",
    "cuBLAS": "#0072b2",
    "triton": "#009e73",
}
CYCLE = ("#e69f00", "#f0e442", "#000000", "#8c564b", "#7f7f7f", "#bcbd22", "#17becf")


def available() -> bool:
    return find_spec("matplotlib") is not None


def draw(report: Report, path: Path, n: int | None = None) -> None:
    """Write a plot of the report to `path`, whose suffix chooses the format: of its suites of squares; where it has
    none, or is one of CELLS, of the ratios in all cells; of number formats at the size n (of those measured the
    largest).  ValueError if there is nothing to plot, or no matplotlib."""
    if not available():
        raise ValueError(MISSING)
    import matplotlib

    matplotlib.use("Agg")  # a file is all that is wanted, with or without a display
    import matplotlib.pyplot as plt

    named = ""
    if report.kind == "formats":
        n = n or max((r.case.problem.n for r in report.results if r.gflops()), default=0)
        figure, named = formats_figure(report, n), f"m = n = k = {n}"
    elif report.kind == "ladder cuda":
        figure = _steps(report)
    elif report.kind == "ladder simulated":
        figure = _simulated(report)
    else:
        squares = [(group, found) for group, found in groups(report.results) if drawable(found)]
        figure = _against_size(report, squares) if squares and report.kind not in CELLS else _ratios(report)
        named = "" if on_gpu(report) else _where(report)
    # What a PNG says of itself: what is shown, and of which results. Nothing in it changes from run to run.
    said = {"Title": named, "Source": digest(report), "Software": None} if named and path.suffix == ".png" else None
    try:
        figure.savefig(path, dpi=144, metadata=said)
    finally:
        plt.close(figure)


def digest(report: Report) -> str:
    """A digest of everything in a result file."""
    return hashlib.sha256(json.dumps(report.to_json(), sort_keys=True).encode()).hexdigest()


def _where(report: Report) -> str:
    machine = report.machine["gpu"].get("name", "a GPU") if on_gpu(report) else report.machine["cpu"]
    return f"tilewright {report.tilewright} on {machine}, {report.created[:10]}"


def _busy(report: Report) -> str:
    """A line for the title where other processes kept the machine busy."""
    return "".join(f"\n{line}" for line in warnings(report)[:1])


def _legend(figure: Any, axes: Iterable[Any], ncols: int, first: Callable[[str], Any] = lambda label: 0,
            **options: Any) -> None:
    """One legend for all panels, because a peer may be missing from one of them (a BLIS without threads)."""
    handles = {label: h for axis in axes for h, label in zip(*axis.get_legend_handles_labels())}
    labels = sorted(handles, key=first)
    figure.legend([handles[label] for label in labels], labels, loc="outside lower center", ncols=ncols, **options)


# ---- against size: a column for each suite of squares; rows are rate, and on a GPU power and SM clock

GPU_ROWS = (("power, W", "watts"), ("SM clock, MHz", "sm_mhz"))


def _against_size(report: Report, suites: list[tuple[Group, list[Result]]]) -> Any:
    import matplotlib.pyplot as plt

    gpu = on_gpu(report)
    more = [row for row in GPU_ROWS if any(_states(results, name, row[1]) for _, results in suites
                                           for name in names(results))]
    figure, axes = plt.subplots(1 + len(more), len(suites), figsize=(6.8 * len(suites), 4.4 + 2.6 * len(more)),
                                squeeze=False, sharex="col", layout="constrained")
    spare = iter(CYCLE * 4)
    drawn = dict.fromkeys(name for _, results in suites for name in names(results))
    colours = {name: COLOURS.get(name) or next(spare) for name in drawn}  # one for all panels
    for column, (group, results) in zip(axes.T, suites):
        _rates(column[0], results, peak_of(report, group), colours, ("TFLOP/s", 1e12) if gpu else ("GFLOP/s", 1e9))
        column[0].set_title(title(group))
        for axis, (label, what) in zip(column[1:], more):
            for name in names(results):
                if points := _states(results, name, what):
                    axis.plot(*zip(*points), marker="o", markersize=2.5, **_style(name, colours))
            axis.set_ylabel(label)
            axis.grid(alpha=0.3)
        column[-1].set_xlabel("m = n = k")
    _legend(figure, axes.flat, min(8, 3 * len(suites) + 2))
    clocks = f"; clocks {report.extra.get('clocks', 'unknown')}" if gpu else ""
    figure.suptitle(_where(report) + clocks + _busy(report), fontsize=9)
    return figure


def drawable(results: list[Result]) -> bool:
    """Squares of two or more sizes, in one layout."""
    sizes = [r.case.size for r in results]
    calls = results[0].case.suite == "overhead"
    return len(sizes) > 1 and len(set(sizes)) == len(sizes) and all(map(str.isdecimal, sizes)) and not calls \
        and not any(r.case.beside for r in results)


def _style(name: str, colours: dict[str, str]) -> dict[str, Any]:
    ours = name == OURS
    return {"color": colours[name], "linewidth": 2.2 if ours else 1.2, "zorder": 3 if ours else 2}


def _rates(axis: Any, results: list[Result], peak: float | None, colours: dict[str, str],
           unit: tuple[str, float]) -> None:
    """Lines of medians with quartiles shaded; the sizes that were measured are the ticks, while they are few."""
    label, scale = unit
    for name in names(results):
        points = [(r.case.problem.n, r.operations() / scale, s) for r in results if (s := r.sample(name))]
        if points:
            x = [n for n, _, _ in points]
            medians, low, high = ([work / seconds for (_, work, _), seconds in zip(points, column)]
                                  for column in zip(*((y.median, y.q3, y.q1) for y in (s.spread for *_, s in points))))
            axis.plot(x, medians, marker="o", markersize=3, label=name, **_style(name, colours))
            axis.fill_between(x, low, high, color=colours[name], alpha=0.15, linewidth=0)
            hollow = [(n, y) for (n, _, s), y in zip(points, medians) if s.disturbed]
            if hollow:
                axis.plot(*zip(*hollow), "o", markersize=4, markerfacecolor="white", markeredgecolor=colours[name],
                          zorder=4)
    if peak:
        axis.axhline(peak, color="black", linestyle=":", linewidth=1, label="measured peak")
    sizes = sorted({r.case.problem.n for r in results})
    if sizes[-1] / sizes[0] >= 16 and len(sizes) < 12:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(n) for n in sizes])
        axis.minorticks_off()
    axis.set_ylabel(label)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)


def _states(results: list[Result], name: str, what: str) -> list[tuple[int, float]]:
    """(n, a figure of the GPU's state) where it is known."""
    return [(r.case.problem.n, float(value)) for r in results if (value := state(r, name, what)) is not None]


# ---- cells of any shape: our ratio to the fastest peer against the work, a panel for each format, threads and ISA

COLUMNS = 4  # of panels, at most
TICKS = (0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10, 100, 1000)
SHAPES = {(True, True): "m = n = 1", (False, True): "n = 1", (True, False): "m = 1", (False, False): "m, n > 1"}


def _ratios(report: Report) -> Any:
    """A point for each cell, with the quartiles of its rounds; points above 1 are those where tilewright is faster than
    the panel's one peer (tables.baseline). Hollow: disturbed by other processes."""
    import matplotlib.pyplot as plt

    gpu, several = on_gpu(report), len({r.case.suite for r in report.results}) > 1
    members: dict[str, list[Result]] = {}
    for (_, label, threads, isa), results in groups(report.results):
        members.setdefault(label if gpu else f"{label}, {setting(threads, isa)}", []).extend(results)
    panels: dict[str, dict[str, list[tuple[float, Spread, bool]]]] = {}
    for label, results in members.items():
        peer = baseline(results)
        panel = panels.setdefault(f"{label}: {peer}'s time over ours", {})
        for r in results:
            if ratio := r.ratio(peer or "", hollow=True):
                shape = r.case.suite if several else SHAPES[r.case.problem.m == 1, r.case.problem.n == 1]
                panel.setdefault(shape, []).append((r.operations(), ratio, r.disturbed))
    panels = {label: series for label, series in panels.items() if series}
    if sum(len(points) for series in panels.values() for points in series.values()) < 2:
        raise ValueError("nothing to plot: no two cells with a peer were measured")
    rows = math.ceil(len(panels) / COLUMNS)
    columns = math.ceil(len(panels) / rows)
    figure, axes = plt.subplots(rows, columns, figsize=(1 + 4.2 * columns, 1.2 + 3 * rows), squeeze=False, sharex=True,
                                sharey=True, layout="constrained")
    names = dict.fromkeys(name for series in panels.values() for name in series)
    colours = dict(zip(names, (*dict.fromkeys(COLOURS.values()), *CYCLE)))
    for axis, (label, series) in zip(axes.flat, panels.items()):
        axis.axhline(1, color="black", linewidth=1)
        for name, points in series.items():
            for disturbed in {hollow for *_, hollow in points}:
                work, spreads = zip(*((x, s) for x, s, hollow in points if hollow == disturbed))
                middle = [s.median for s in spreads]
                error = [[s.median - s.q1 for s in spreads], [s.q3 - s.median for s in spreads]]
                axis.errorbar(work, middle, error, fmt="o", markersize=3, elinewidth=0.8, color=colours[name],
                              label=name, markerfacecolor="white" if disturbed else colours[name])
        axis.set_xscale("log")
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        axis.minorticks_off()
        axis.tick_params(labelbottom=True)
        axis.set_xlabel("operations of a product", fontsize=8)
        axis.set_title(label, fontsize=9)
        axis.grid(alpha=0.3)
    low, high = axes.flat[0].get_ylim()
    axes.flat[0].set_yticks([tick for tick in TICKS if low <= tick <= high])
    for axis in axes.flat[len(panels):]:
        axis.remove()
    _legend(figure, axes.flat[:len(panels)], 8)
    figure.supylabel("the peer's time over ours", fontsize=9)
    figure.suptitle(_where(report) + _busy(report), fontsize=9)
    return figure


# ---- number formats at one size: a point for each peer's rate, a line for each product, a panel per thread count, and
# our ratios in columns beside it

# A library's colour is that of all plots; with B packed beforehand its mark is hollow.
MARKS = {NUMPY: "o", "numpy floats": "v", "openblas": "^", "mkl": "s", "blis": "<", "torch": "D"}
RATIOS = ("x NumPy", "x fastest peer")
WIDTHS = (8, 16)  # of the columns of ratios, in letters


def formats_figure(report: Report, n: int) -> Any:
    """The plot of number formats at size n, before it is written."""
    import matplotlib.pyplot as plt

    panels = {g: [r for r in found if r.gflops()] for g, found in format_groups(report.results).items() if g[2] == n}
    panels = {g: found for g, found in panels.items() if found}
    if not panels:
        raise ValueError("nothing to plot: tilewright has no sample at that size")
    products = list(dict.fromkeys(r.case.product for found in panels.values() for r in found))
    height = 1.8 + 0.27 * len(products)
    whole, axes = plt.subplots(
        1, len(panels), figsize=(1.8 + 5.4 * len(panels), height), squeeze=False, sharey=True, layout="constrained"
    )
    for axis, ((threads, isa, _), found) in zip(axes[0], panels.items()):
        _products(axis, {r.case.product: r for r in found}, products)
        axis.set_title(setting(threads, isa), fontsize=9)
    _legend(whole, axes[0], 5, lambda label: label != OURS, fontsize=8)
    whole.suptitle(f"m = n = k = {n}\n{_where(report)}{_busy(report)}", fontsize=9)
    return whole


def baselines(results: Iterable[Result]) -> dict[str, tuple[dict[str, float], dict[str, float]]]:
    """By formats, a rate for each peer, and for those that found B packed: the highest that it reached beside any of
    our ways to this product, so that f32 by bf16 terms is compared with the same figure as f32 is."""
    found: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    for r in results:
        every = found.setdefault(r.case.product.formats, ({}, {}))
        for row in r.rows:
            if row.sample and row.name not in (OURS, BESIDE):
                rates = every[row.prepared]
                rates[row.name] = max(rates.get(row.name, 0.0), r.gflops(row.name) or 0.0)
    return found


def _products(axis: Any, found: dict[Any, Result], products: list[Any]) -> None:
    """Rates span four decades, from NumPy's integers to ours, so that the axis is logarithmic: points, no bars, since
    a length from an arbitrary left edge says nothing."""
    at = {product: y for y, product in enumerate(products)}
    ratios = [""] * len(products)
    rates = baselines(found.values())
    for product, r in found.items():
        theirs, packed = rates[product.formats]
        for every, prepared in ((theirs, False), (packed, True)):
            for peer, rate in every.items():
                name = peer.removesuffix(" packed")
                colour = COLOURS.get(name, "#000000")
                edge, width, face = (colour, 1.2, "none") if prepared else ("black", 0.4, colour)
                axis.plot(rate, at[product], MARKS.get(name, "P"), markersize=4.5, zorder=3, label=peer,
                          linestyle="none", markeredgecolor=edge, markeredgewidth=width, markerfacecolor=face)
        axis.plot(
            r.gflops(), at[product], "|", markersize=12, markeredgewidth=3, color=COLOURS[OURS], zorder=4, label=OURS,
            linestyle="none", alpha=0.4 if r.disturbed else 1,
        )
        ours = r.gflops() or 0.0
        numpy, best = theirs.get(NUMPY), max(theirs.values(), default=None)
        ratios[at[product]] = "".join(f"{times(Spread(ours / x, 0, 0) if x else None):>{width}}"
                                      for x, width in zip((numpy, best), WIDTHS))
    axis.set_xscale("log")
    axis.set_yticks(range(len(products)), [p.label for p in products], fontsize=8)
    axis.set_ylim(len(products) - 0.4, -1.6)
    axis.set_xlabel("GFLOP/s, of integers GOP/s", fontsize=8)
    axis.grid(alpha=0.3, zorder=0)
    beside = axis.twinx()
    beside.set_ylim(axis.get_ylim())
    head = "".join(f"{heading:>{width}}" for heading, width in zip(RATIOS, WIDTHS))
    beside.set_yticks(range(-1, len(products)), [head, *ratios], fontsize=6.5, family="monospace")
    beside.tick_params(right=False)


# ---- the GPU ladder: a line for each step


def _ladder(rows: Sequence[str], height: float) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 0.5 + height * len(rows)), layout="constrained")
    axis.set_yticks(range(len(rows)), rows)
    axis.invert_yaxis()
    return figure, axis


def _steps(report: Report) -> Any:
    """Bars of TFLOP/s per step, a colour per size."""
    from tilewright.lab.bench.suites import ladders

    steps = [row[0] for row in ladders.table(report.results)[1:]]
    figure, axis = _ladder(steps, 0.5)
    count = len(report.results)
    for i, r in enumerate(report.results):
        places = [row + (i - (count - 1) / 2) * 0.8 / count for row in range(len(steps))]
        rates = [(r.gflops(name) or 0.0) / 1e3 for name in steps]
        colour = list(COLOURS.values())[i % len(COLOURS)]
        axis.barh(places, rates, 0.8 / count, label=f"n = {r.case.size}", color=colour)
    axis.set_xlabel("TFLOP/s")
    axis.grid(alpha=0.3, axis="x")
    axis.legend(loc="lower right")
    axis.set_title(report.machine.get("gpu", report.extra.get("device", {})).get("name", ""), fontsize=9)
    return figure


def _simulated(report: Report) -> Any:
    """Per step, what a multiprocessor is busy with in units of its multiply-adds: the rightmost point is the bound.

    Points, not bars: on a logarithmic axis a bar's length depends on where the axis begins.
    """
    from tilewright import targets
    from tilewright.lab.bench.suites import ladders

    found = ladders.counted(report)
    figure, axis = _ladder([c.title for c in found], 0.55)
    what = list(found[0].busy)
    for i, name in enumerate(what):
        clocks = [c.busy[name] / c.busy["multiply-adds"] or math.nan for c in found]
        places = [row + (i - (len(what) - 1) / 2) * 0.1 for row in range(len(found))]
        axis.plot(clocks, places, "osD^"[i], label=name, color=list(COLOURS.values())[i], zorder=3)
    axis.set_xscale("log", base=2)
    axis.axvline(1, color="black", linestyle=":", linewidth=1)
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}" if x >= 1 else f"1/{1 / x:g}")
    axis.set_xlabel("clocks that a multiprocessor is busy, over those of the multiply-adds")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    target: Any = targets.target(report.options["target"])
    axis.set_title(f"simulated, m = n = k = {found[0].n}; clocks of {target.model}", fontsize=9)
    return figure
