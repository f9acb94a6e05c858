"""What the chapters' pictures share: measured results, axes, and files that are the same in every run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"


def measured(name: str) -> dict[str, Any]:
    """A result file of this repository: its machine, and its rows."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def rates(name: str, **where: object) -> dict[str, dict[int, float]]:
    """GFLOP/s by the name of what was measured, and by size."""
    found: dict[str, dict[int, float]] = {}
    for case in measured(name)["results"]:
        if all(case[field] == value for field, value in where.items()):
            for row in (x for x in case["rows"] if "gflops" in x):
                found.setdefault(row["name"], {})[case["n"]] = row["gflops"]
    return found


def wanted() -> bool:
    """Whether the chapter is to draw: `python docs/tutorial/NN_name.py --plot`."""
    return "--plot" in sys.argv


def axes(xlabel: str, ylabel: str, **more: Any) -> Any:
    import matplotlib

    matplotlib.use("svg")
    grey = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#808080")
    matplotlib.rcParams.update({"svg.hashsalt": "tilewright", "svg.fonttype": "none", "font.size": 11,
                                "font.family": "sans-serif", **grey})
    from matplotlib import pyplot

    _, ax = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    ax.set(xlabel=xlabel, ylabel=ylabel, **more)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def save(ax: Any, chapter: str) -> None:
    """Beside the chapter's file: NN_name.svg. Grey on nothing, which can be read on white and on black."""
    ax.figure.savefig(Path(chapter).with_suffix(".svg"), transparent=True, metadata={"Date": None})
