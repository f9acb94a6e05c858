"""A report as a picture: rate against size, one panel per format and thread count, one line per contender."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright import extras
from tilewright.bench.report import groups, names, peak_of, title, warnings
from tilewright.bench.results import OURS, Report, Result

MISSING = f"plots need matplotlib: {extras.install('plot')}"
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


def provenance(report: Report, path: Path, title: str) -> dict[str, str | None] | None:
    """What a PNG says of itself: what is shown, and of which results. Nothing in it changes from run to run."""
    if path.suffix != ".png":
        return None
    return {"Title": title, "Source": digest(report), "Software": None}


def digest(report: Report) -> str:
    """Of everything in a result file."""
    return hashlib.sha256(json.dumps(report.to_json(), sort_keys=True).encode()).hexdigest()


def warning(report: Report) -> str:
    """A line for the title where other processes kept the machine busy."""
    return "".join(f"\n{line}" for line in warnings(report)[:1])


class PlotUnavailable(Exception):
    """matplotlib is not installed; the message says what to do."""


def available() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def draw(report: Report, path: Path, suites: Sequence[str] | None = None) -> None:
    """Write a plot of the report's square-like suites (or those named) to `path`; its suffix chooses the format."""
    try:
        import matplotlib
    except ImportError:
        raise PlotUnavailable(MISSING) from None
    matplotlib.use("Agg")  # a file is all that is wanted, with or without a display
    import matplotlib.pyplot as plt

    panels = [(group, results) for group, results in groups(report.results) if _drawable(results, suites)]
    if not panels:
        raise ValueError("nothing to plot: no suite with two or more square sizes was measured")
    figure, axes = plt.subplots(1, len(panels), figsize=(6.2 * len(panels), 4.4), squeeze=False, layout="constrained")
    everybody = dict.fromkeys(name for _, results in panels for name in names(results))
    spare = iter(CYCLE * 3)  # one for all panels: a line has one colour in the common legend
    colours = {name: COLOURS.get(name) or next(spare) for name in everybody}
    try:
        for axis, (group, results) in zip(axes[0], panels):
            _panel(axis, results, peak_of(report, group), colours)
            axis.set_title(title(group))
        # One legend for all panels, because a peer may be missing from one of them (a BLIS without threads).
        handles = {label: h for axis in axes[0] for h, label in zip(*axis.get_legend_handles_labels())}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4 * len(panels))
        where = f"tilewright {report.tilewright} on {report.machine['cpu']}, {report.created[:10]}"
        figure.suptitle(where + warning(report), fontsize=9)
        figure.savefig(path, dpi=144, metadata=provenance(report, path, where))
    finally:
        plt.close(figure)


def _drawable(results: list[Result], suites: Sequence[str] | None) -> bool:
    square = all(r.case.problem.m == r.case.problem.n == r.case.problem.k for r in results)
    wanted = results[0].case.suite in suites if suites else results[0].case.suite != "overhead"
    return wanted and square and len(results) > 1 and not any(r.case.beside for r in results)


def _panel(axis: Any, results: list[Result], peak: float | None, colours: dict[str, str]) -> None:
    """Lines of medians with quartiles shaded; the sizes that were measured are the ticks, while they are few."""
    for name in names(results):
        points = [(r.case.problem.n, r.flops(), s.spread) for r in results if (s := r.sample(name))]
        if not points:
            continue
        x = [n for n, _, _ in points]
        colour, ours = colours[name], name == OURS
        style = {"color": colour, "linewidth": 2.2 if ours else 1.2, "zorder": 3 if ours else 2}
        axis.plot(x, [f / s.median / 1e9 for _, f, s in points], marker="o", markersize=3, label=name, **style)
        low, high = [f / s.q3 / 1e9 for _, f, s in points], [f / s.q1 / 1e9 for _, f, s in points]
        axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    if peak:
        axis.axhline(peak, color="black", linestyle=":", linewidth=1, label="measured peak")
    sizes = sorted({r.case.problem.n for r in results})
    if sizes[-1] / sizes[0] >= 16 and len(sizes) < 12:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(n) for n in sizes])
        axis.minorticks_off()
    axis.set_xlabel("m = n = k")
    axis.set_ylabel("GFLOP/s")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
