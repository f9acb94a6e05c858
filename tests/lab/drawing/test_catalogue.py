"""Every figure of the catalogue: well-formed, readable on a phone, all text inside the picture, named and described."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.helpers.figures import drawn
from tilewright.lab.drawing.catalogue import FIGURES
from tilewright.lab.drawing.figure import SOURCES
from tilewright.lab.drawing.pen import DENSE, PHONE, Svg
from tilewright.lab.reproduce.row import source

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = [key for key, figure in FIGURES.items() if figure.draw]


def test_every_figure_is_drawn_or_has_a_reason() -> None:
    for key, figure in FIGURES.items():
        assert key == f"{figure.source}/{figure.name}"
        assert figure.source in SOURCES
        assert figure.title
        assert bool(figure.draw) == bool(figure.caption) != bool(figure.reason)
        assert (figure.caption or figure.reason).endswith(".")
    of_articles = [figure for figure in FIGURES.values() if figure.source in ("cpu", "nvidia", "cdna")]
    assert len(of_articles) == 55       # two are shown twice
    assert sum(bool(figure.draw or figure.measured) for figure in of_articles) == 52


def test_the_names_are_the_sources() -> None:
    """Those of the items of `tilewright reproduce`, in their order."""
    for name in ("cpu", "nvidia", "cdna"):
        items = [item for item in source(name).items if item.kind == "figure" and not item.again]
        assert [item.name.removesuffix(".png") for item in items] == [
            figure.name for figure in FIGURES.values() if figure.source == name]
        for item in items:
            assert not (item.left_out and FIGURES[f"{name}/{item.name.removesuffix('.png')}"].draw)


@pytest.mark.parametrize("key", DRAWN)
def test_the_figure_can_be_read(key: str) -> None:
    text = drawn(key)
    root = ElementTree.fromstring(text)
    assert root.findtext(f"{SVG}title")
    assert "prefers-color-scheme:dark" in text
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    scale = min(PHONE / width, 1)
    for label in root.iter(f"{SVG}text"):
        size, x, y = (float(label.attrib[name]) for name in ("font-size", "x", "y"))
        assert size * scale >= DENSE * 0.95, (label.text, size, width)
        assert left <= x <= left + width, label.text
        assert top <= y <= top + height, label.text
    assert len(text) < 400_000


def test_no_text_is_outside() -> None:
    """Its view box is what was drawn, whatever is drawn in a part that was moved."""
    pen = Svg("x", margin=0)
    with pen.moved(100, 50):
        pen.text(0, 20, "words", size=20, anchor="end")
        pen.rect(-300, 0, 10, 10)
    x, y, w, h = pen.box
    assert (x, y, w) == (-200, 50, 300)
    assert y + h >= 70
    assert re.search(r'viewBox="-200 50 300 \d+', str(pen))
