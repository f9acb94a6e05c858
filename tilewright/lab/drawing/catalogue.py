"""FIGURES: every drawing of the four sources, and some of our own, by "source/name"; all from our own data.

    FIGURES["nvidia/bank_conflict"].draw()      # SVG text

The order is the sources'. Photographs and screenshots have a reason in place of a drawing.
"""
from __future__ import annotations

from difflib import get_close_matches

from tilewright.lab.drawing import cdna, cpu, lecture, nvidia, own
from tilewright.lab.drawing.figure import Figure

MODULES = cpu, nvidia, cdna, lecture, own
FIGURES: dict[str, Figure] = {figure.key: figure for module in MODULES for figure in module.GALLERY.figures}


def find(name: str) -> Figure:
    """The figure of this key, or of this name where only one source has it. ValueError with what there is."""
    wanted = name.removesuffix(".png").removesuffix(".svg")
    named = [figure for key, figure in FIGURES.items() if wanted in (key, figure.name)]
    if len(named) != 1:
        near = [figure.key for figure in named] or get_close_matches(wanted, FIGURES, 3, 0.3) or list(FIGURES)[:3]
        raise ValueError(f"there is no figure {name!r}; there is {', '.join(near)}; `tilewright show` lists them all")
    return named[0]
