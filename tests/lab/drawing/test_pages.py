"""Figures of pages are what is drawn: `python -m tests.figures` writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import figures
from tests.helpers.figures import drawn


@pytest.mark.parametrize(("path", "key"), [*figures.shown()], ids=lambda x: x.name if isinstance(x, Path) else "")
def test_the_figure_of_the_page_is_what_is_drawn(path: Path, key: str) -> None:
    assert path.read_text() == drawn(key), "python -m tests.figures"


def test_figures_of_notebooks_are_what_is_drawn() -> None:
    for path, notebook in figures.in_notebooks():
        assert json.loads(path.read_text()) == notebook, f"{path.name}: python -m tests.figures"


def test_no_figure_is_left_that_no_page_shows() -> None:
    assert {*(figures.DOCS / "figures").iterdir()} <= {path for path, _ in figures.shown()}
