"""Lines against size, in the style of the pages of `tilewright bench`."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from tilewright.lab.bench.chart import HUES, OUR_HUE, Point, Series, chart
from tilewright.lab.bench.peer import OURS
from tilewright.lab.bench.results import Result

Pair = tuple[float, float]


def lines(title: str, series: Mapping[str, Sequence[Pair]], unit: str, along: str = "m = n = k",
          hollow: Mapping[str, set[float]] | None = None, ceiling: tuple[str, float] | None = None) -> str:
    """A line for each series of (x, y). Points at the x of `hollow` are rings: other processes disturbed them."""
    spare = iter(HUES * 9)
    found = [Series(name, OUR_HUE if name == OURS else next(spare),
                    [Point(x, y, y, y, x in (hollow or {}).get(name, set()), f"{along} = {x:g}, {y:.4g} {unit}")
                     for x, y in points], bold=name == OURS) for name, points in series.items()]
    return f"<h5>{escape(title)}</h5>" + chart(title, found, (along, unit), rule=ceiling and ceiling[::-1])


def sweep(title: str, results: Sequence[Result], ceiling: tuple[str, float] | None = None) -> str:
    """The rates of squares by all who multiplied them, with their quartiles."""
    spare, found = iter(HUES * 9), []
    ordered = sorted(results, key=lambda r: r.case.problem.n)
    for name in dict.fromkeys(row.name for r in ordered for row in r.rows if row.sample):
        points = []
        for r in ordered:
            if sample := r.sample(name):
                low, middle, high = (r.operations(name) / seconds / 1e9 for seconds in
                                     (sample.spread.q3, sample.spread.median, sample.spread.q1))
                n = r.case.problem.n
                points.append(Point(n, middle, low, high, sample.disturbed, f"n = {n}, {middle:.1f} GFLOP/s"))
        found.append(Series(name, OUR_HUE if name == OURS else next(spare), points, bold=name == OURS))
    return f"<h5>{escape(title)}</h5>" + chart(title, found, ("m = n = k", "GFLOP/s"), rule=ceiling and ceiling[::-1])
