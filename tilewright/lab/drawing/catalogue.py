"""FIGURES: every drawing of the four sources, from our own data, by "source/name".

    FIGURES["nvidia/bank_conflict"].draw()      # SVG text

The order is the sources'. Photographs and screenshots have a reason in place of a drawing.
"""
from __future__ import annotations

from tilewright.lab.drawing import cdna, cpu, lecture, nvidia
from tilewright.lab.drawing.figure import Figure

MODULES = cpu, nvidia, cdna, lecture
FIGURES: dict[str, Figure] = {figure.key: figure for module in MODULES for figure in module.GALLERY.figures}
