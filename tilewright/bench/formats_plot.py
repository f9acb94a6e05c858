"""The formats as a picture, at one size: a bar for each product's rate, peers as marks, a panel per thread count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.bench.formats_report import times
from tilewright.bench.formats_results import F32, NUMPY, Group, Timed, groups, timed
from tilewright.bench.plot import COLOURS, MISSING, PlotUnavailable
from tilewright.bench.results import OURS, Report

# A library's colour is that of all plots; with B packed beforehand its mark is hollow.
MARKS = {NUMPY: "o", "numpy floats": "v", "openblas": "^", "mkl": "s", "blis": "<", "torch": "D"}


def draw(report: Report, path: Path, n: int | None = None) -> None:
    """Write the plot at size n, of those measured the largest; `path`'s suffix chooses the format."""
    try:
        import matplotlib
    except ImportError:
        raise PlotUnavailable(MISSING) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    n = n or max((t.n for t in timed(report) if t.rate()), default=0)
    panels = {g: [t for t in found if t.rate()] for g, found in groups(timed(report)).items() if g[2] == n}
    panels = {g: found for g, found in panels.items() if found}
    if not panels:
        raise ValueError("nothing to plot: tilewright has no sample at that size")
    products = list(dict.fromkeys(t.product for found in panels.values() for t in found))
    height = 1.6 + 0.27 * len(products)
    figure, axes = plt.subplots(
        1, len(panels), figsize=(1.6 + 4.9 * len(panels), height), squeeze=False, sharey=True, layout="constrained"
    )
    try:
        for axis, (group, found) in zip(axes[0], panels.items()):
            _panel(axis, group, {t.product: t for t in found}, products)
        handles = {label: h for axis in axes[0] for h, label in zip(*axis.get_legend_handles_labels())}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize=8)
        where = f"tilewright {report.tilewright} on {report.machine['cpu']}, {report.created[:10]}"
        figure.suptitle(f"{where}, m = n = k = {n}", fontsize=9)
        figure.savefig(path, dpi=144)
    finally:
        plt.close(figure)


def _panel(axis: Any, group: Group, found: dict[Any, Timed], products: list[Any]) -> None:
    """Rates span four decades, from NumPy's integers to ours, so that the axis is logarithmic."""
    at = {product: y for y, product in enumerate(products)}
    rates = {product: t.rate() or 0.0 for product, t in found.items()}
    axis.barh([at[p] for p in rates], list(rates.values()), color=COLOURS[OURS], height=0.62, label=OURS, zorder=2)
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
            )  # fmt: skip
        numpy, best = t.ratio(NUMPY), t.ratio(t.peers()[0]) if t.peers() else None
        said = ", ".join(f"{times(r)} x {who}" for r, who in ((numpy, "NumPy"), (best, "fastest peer")) if r)
        top = max(filter(None, (t.rate(row.name) for row in t.rows if row.name != F32)))
        axis.annotate(said, (top, at[product]), xytext=(4, 0), textcoords="offset points", va="center", fontsize=6.5)
    threads, isa, _ = group
    axis.set_title(f"{threads} thread{'s' * (threads != 1)}" + ("" if isa == "native" else f", {isa}"), fontsize=9)
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    axis.set_xlim(low, high * 20)  # room for the words beside the longest bar
    axis.set_yticks(range(len(products)), [p.label for p in products], fontsize=8)
    axis.set_ylim(len(products) - 0.4, -0.6)
    axis.set_xlabel("GFLOP/s, of integers GOP/s", fontsize=8)
    axis.grid(axis="x", alpha=0.3, zorder=0)
