"""Figures of the catalogue, each drawn once for all tests."""

from __future__ import annotations

from functools import cache

from tilewright.lab.drawing.catalogue import FIGURES


@cache
def drawn(key: str) -> str:
    draw = FIGURES[key].draw
    assert draw
    return draw()
