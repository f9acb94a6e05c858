"""A picture of a pen's as pixels, by matplotlib."""
from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilewright.lab.drawing.pen import HUES, Shape, Svg
from tilewright.text import install

DOTS = 100                      # an inch; a unit of the pen is a dot


MISSING = f"a PNG needs matplotlib: {install('plot')}; an SVG needs nothing"


def available() -> bool:
    return find_spec("matplotlib") is not None


def png(drawn: Svg, path: Path, said: dict[str, Any] | None = None, scale: float = 1.0) -> None:
    """Write it, as it is on a light page, in the format of the suffix. `said`: what the file says of itself; `scale`:
    pixels for a unit of the pen. ValueError without matplotlib."""
    if not available():
        raise ValueError(MISSING)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

    left, top, width, height = drawn.box
    figure = Figure((width / DOTS, height / DOTS), DOTS, facecolor=HUES["back"][0])
    FigureCanvasAgg(figure)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(left, left + width), ylim=(top + height, top))
    axis.axis("off")
    points = 72 / DOTS          # of a unit
    for place, shape in enumerate(drawn.shapes):
        if isinstance(shape, Shape):
            axis.add_collection(PolyCollection(
                shape.corners, closed=bool(shape.fill) or len(shape.corners[0]) == 4, zorder=place,
                facecolors=(HUES[shape.fill][0], shape.shade) if shape.fill else "none",
                edgecolors=HUES[shape.line][0] if shape.line else "none", linewidths=shape.width * points,
                linestyles="dashed" if shape.dash else "solid"))
        else:
            axis.text(shape.x, shape.y, shape.text, zorder=place, fontsize=shape.size * points,
                      color=HUES[shape.hue][0], ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
                      va="baseline", weight="bold" if shape.bold else "normal", rotation=90 if shape.turned else 0,
                      rotation_mode="anchor", family="monospace" if shape.mono else "sans-serif")
    figure.savefig(path, facecolor=HUES["back"][0], metadata=said, dpi=scale * DOTS)
