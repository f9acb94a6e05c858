"""A GPU report as a picture: rate, power and SM clock against size, one line per contender."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.bench import gpu_report
from tilewright.bench.plot import COLOURS, CYCLE, MISSING, PlotUnavailable
from tilewright.bench.report import groups, names
from tilewright.bench.results import OURS, Report, Result

PANELS = (("TFLOP/s", None), ("power, W", "watts"), ("SM clock, MHz", "sm_mhz"))


def draw(report: Report, path: Path, panels: tuple[tuple[str, str | None], ...] = PANELS) -> None:
    """Write a plot of every suite of squares to `path`, a column each, a row for each of `panels`; the suffix of `path`
    chooses the format."""
    try:
        import matplotlib
    except ImportError:
        raise PlotUnavailable(MISSING) from None
    matplotlib.use("Agg")  # a file is all that is wanted, with or without a display
    import matplotlib.pyplot as plt

    suites = [(g, r) for g, r in groups(report.results) if len(r) > 1 and all(x.case.size.isdecimal() for x in r)]
    suites = [(g, r) for g, r in suites if len({x.case.size for x in r}) == len(r)]  # one layout
    if not suites:
        raise ValueError("nothing to plot: no suite with two or more square sizes was measured")
    shown = [panel for panel in panels if panel[1] is None or any(_points(r, n, panel[1]) for _, r in suites
             for n in names(r))]
    figure, axes = plt.subplots(len(shown), len(suites), figsize=(7.5 * len(suites), 1.4 + 2.6 * len(shown)),
                                squeeze=False, sharex="col", layout="constrained")
    everybody = dict.fromkeys(name for _, results in suites for name in names(results))
    spare = iter(CYCLE * 4)
    colours = {name: COLOURS.get(name) or next(spare) for name in everybody}
    try:
        for column, (group, results) in enumerate(suites):
            for row, (label, what) in enumerate(shown):
                _panel(axes[row][column], results, what, colours)
                axes[row][column].set_ylabel(label)
            axes[0][column].set_title(gpu_report.title(group))
            axes[-1][column].set_xlabel("m = n = k")
        handles = {label: h for axis in axes.flat for h, label in zip(*axis.get_legend_handles_labels())}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(5, 3 * len(suites) + 2))
        gpu, clocks = report.machine.get("gpu", {}), report.extra.get("clocks", "unknown")
        figure.suptitle(f"tilewright {report.tilewright} on {gpu.get('name', 'a GPU')}, {report.created[:10]}; "
                        f"clocks {clocks}", fontsize=9)
        figure.savefig(path, dpi=144)
    finally:
        plt.close(figure)


def _points(results: list[Result], name: str, what: str | None) -> list[tuple[int, float]]:
    found = []
    for r in results:
        rate = r.gflops(name)
        value = (None if rate is None else rate / 1e3) if what is None else gpu_report.state(r, name, what)
        if value is not None:
            found.append((r.case.problem.n, float(value)))
    return found


def _panel(axis: Any, results: list[Result], what: str | None, colours: dict[str, str]) -> None:
    for name in names(results):
        points = _points(results, name, what)
        ours = name == OURS
        if points:
            axis.plot(*zip(*points), marker="o", markersize=2.5, label=name, color=colours[name],
                      linewidth=2.0 if ours else 1.2, zorder=3 if ours else 2)
    if what is None:
        axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
