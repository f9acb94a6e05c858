"""Lines against sizes, as a drawing for light and dark pages."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilewright.lab.bench.peer import OURS
from tilewright.lab.bench.results import Result
from tilewright.lab.drawing.pen import Svg

HUES = {OURS: "red", "numpy": "blue", "openblas": "teal", "mkl": "green", "blis": "pink", "torch": "gold",
        "cuBLAS": "blue", "triton": "green"}
SPARE = ("violet", "orange", "soft")
WIDTH, HEIGHT, LEFT = 560, 250, 46
Point = tuple[float, float]


def lines(title: str, series: Mapping[str, Sequence[Point]], unit: str, along: str = "m = n = k",
          hollow: Mapping[str, set[float]] | None = None, ceiling: tuple[str, float] | None = None) -> str:
    """A line for each series of (x, y). Points at the x of `hollow` are rings: other processes disturbed them."""
    pen = Svg(title, WIDTH + LEFT)
    every = [point for points in series.values() for point in points]
    most_x, least_x = max(x for x, _ in every), min(x for x, _ in every)
    step = _step(max([y for _, y in every] + ([ceiling[1]] if ceiling else [])))
    top = step * math.ceil(max([y for _, y in every] + ([ceiling[1]] if ceiling else [])) * 1.02 / step)

    def place(x: float, y: float) -> Point:
        return LEFT + (x - least_x) / max(most_x - least_x, 1e-9) * WIDTH, HEIGHT - y / top * HEIGHT

    pen.text(0, -14, f"{title}, {unit}", 13, bold=True)
    for i in range(round(top / step) + 1):
        y = place(0, i * step)[1]
        pen.line(LEFT, y, LEFT + WIDTH, y, "edge", 0.7)
        pen.text(LEFT - 6, y + 4, f"{i * step:g}", 11, "soft", "end")
    ticks = _step(most_x, 6)
    for i in range(math.ceil(least_x / ticks), int(most_x / ticks) + 1):
        x = place(i * ticks, 0)[0]
        pen.line(x, HEIGHT, x, HEIGHT + 4, "soft")
        pen.text(x, HEIGHT + 19, f"{i * ticks:g}", 11, "soft", "middle")
    pen.text(LEFT + WIDTH / 2, HEIGHT + 38, along, 12, "soft", "middle")
    spare, legend, row = iter(SPARE * 9), float(LEFT), HEIGHT + 62.0
    if ceiling:
        y = place(0, ceiling[1])[1]
        pen.line(LEFT, y, LEFT + WIDTH, y, "ink", 1, dash=True)
        pen.text(LEFT + WIDTH, y - 5, ceiling[0], 11, "soft", "end")
    for name in sorted(series, key=lambda name: name == OURS):     # ours on top
        hue, width = HUES.get(name) or next(spare), 2.2 if name == OURS else 1.3
        points = [place(*point) for point in series[name]]
        pen.path(points, hue, width)
        rings = (hollow or {}).get(name, set())
        for (x, y), (size, rate) in zip(points, series[name]):
            tip = f"{name}, {size:g}: {rate:.4g} {unit}"
            ring = size in rings
            pen.rect(x - 2, y - 2, 4, 4, "back" if ring else hue, 1, line=hue, tip=tip, round=2)
        long = pen.length(name, 12) + 34
        if legend + long > LEFT + WIDTH:
            legend, row = float(LEFT), row + 19
        pen.line(legend, row - 4, legend + 16, row - 4, hue, max(width, 2))
        pen.text(legend + 21, row, name, 12)
        legend += long
    return str(pen)


def sweep(title: str, results: Sequence[Result], ceiling: tuple[str, float] | None = None, scale: float = 1.0,
          unit: str = "GFLOP/s") -> str:
    """The rates of squares by all who multiplied them."""
    series: dict[str, list[Point]] = {}
    hollow: dict[str, set[float]] = {}
    for r in sorted(results, key=lambda r: r.case.problem.n):
        for row in r.rows:
            if row.sample and (rate := r.gflops(row.name)):
                series.setdefault(row.name, []).append((r.case.problem.n, rate * scale))
                if row.sample.disturbed:
                    hollow.setdefault(row.name, set()).add(r.case.problem.n)
    return lines(title, series, unit, hollow=hollow, ceiling=ceiling)


def _step(most: float, parts: int = 5) -> float:
    """A round distance of about `parts` ticks."""
    raw = most / parts
    unit = 10.0 ** math.floor(math.log10(raw))
    return unit * next(x for x in (1, 2, 2.5, 5, 10) if x * unit >= raw)
