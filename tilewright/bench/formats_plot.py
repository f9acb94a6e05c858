"""The formats as a picture, at one size: a point for each contender's rate, a line for each product, a panel per thread
count, and our ratios in columns beside it.

    python -m tilewright.bench.formats_plot RESULT.json PICTURE.png [N]     # of committed results, for documents
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tilewright.bench.formats_report import times
from tilewright.bench.formats_results import F32, NUMPY, Group, Timed, groups, timed
from tilewright.bench.plot import COLOURS, MISSING, PlotUnavailable, provenance, warning
from tilewright.bench.results import OURS, Report, load

# A library's colour is that of all plots; with B packed beforehand its mark is hollow.
MARKS = {NUMPY: "o", "numpy floats": "v", "openblas": "^", "mkl": "s", "blis": "<", "torch": "D"}
RATIOS = ("x NumPy", "x fastest peer")
WIDTHS = (8, 16)  # of the columns of ratios, in letters


def draw(report: Report, path: Path, n: int | None = None) -> None:
    """Write the plot at size n, of those measured the largest; `path`'s suffix chooses the format."""
    try:
        import matplotlib
    except ImportError:
        raise PlotUnavailable(MISSING) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    n = n or max((t.n for t in timed(report) if t.rate()), default=0)
    whole = figure(report, n)
    try:
        whole.savefig(path, dpi=144, metadata=provenance(report, path, f"m = n = k = {n}"))
    finally:
        plt.close(whole)


def figure(report: Report, n: int) -> Any:
    """The plot at size n, before it is written."""
    import matplotlib.pyplot as plt

    panels = {g: [t for t in found if t.rate()] for g, found in groups(timed(report)).items() if g[2] == n}
    panels = {g: found for g, found in panels.items() if found}
    if not panels:
        raise ValueError("nothing to plot: tilewright has no sample at that size")
    products = list(dict.fromkeys(t.product for found in panels.values() for t in found))
    height = 1.8 + 0.27 * len(products)
    whole, axes = plt.subplots(
        1, len(panels), figsize=(1.8 + 5.4 * len(panels), height), squeeze=False, sharey=True, layout="constrained"
    )
    for axis, (group, found) in zip(axes[0], panels.items()):
        _panel(axis, group, {t.product: t for t in found}, products)
    handles = {label: h for axis in axes[0] for h, label in zip(*axis.get_legend_handles_labels())}
    ours_first = sorted(handles, key=lambda label: label != OURS)
    whole.legend(
        [handles[label] for label in ours_first], ours_first, loc="outside lower center", ncols=5, fontsize=8
    )
    where = f"m = n = k = {n}\ntilewright {report.tilewright} on {report.machine['cpu']}, {report.created[:10]}"
    whole.suptitle(where + warning(report), fontsize=9)
    return whole


def _panel(axis: Any, group: Group, found: dict[Any, Timed], products: list[Any]) -> None:
    """Rates span four decades, from NumPy's integers to ours, so that the axis is logarithmic: points, no bars, since
    a length from an arbitrary left edge says nothing."""
    at = {product: y for y, product in enumerate(products)}
    ratios = [""] * len(products)
    for product, t in found.items():
        for row in t.rows:
            name = row.name.removesuffix(" packed")
            if row.sample is None or name not in MARKS or row.name == F32:
                continue
            colour = COLOURS.get(name, "#000000")
            edge, width, face = (colour, 1.2, "none") if row.prepared else ("black", 0.4, colour)
            axis.plot(
                t.rate(row.name), at[product], MARKS[name], markersize=4.5, zorder=3, label=row.name, linestyle="none",
                markeredgecolor=edge, markeredgewidth=width, markerfacecolor=face,
            )
        axis.plot(
            t.rate(), at[product], "|", markersize=12, markeredgewidth=3, color=COLOURS[OURS], zorder=4, label=OURS,
            linestyle="none",
        )
        numpy, best = t.ratio(NUMPY), t.ratio(t.peers()[0]) if t.peers() else None
        ratios[at[product]] = "".join(f"{times(r):>{width}}" for r, width in zip((numpy, best), WIDTHS))
    threads, isa, _ = group
    axis.set_title(f"{threads} thread{'s' * (threads != 1)}" + ("" if isa == "native" else f", {isa}"), fontsize=9)
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


def main(arguments: list[str]) -> None:
    source, path, *n = arguments
    draw(load(Path(source)), Path(path), int(n[0]) if n else None)


if __name__ == "__main__":
    main(sys.argv[1:])
