"""The notebooks of docs: without answers they put out what is stored in them, and with the solutions all is solved."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests import notebooks
from tilewright.lab.exercises import mechanism

every = pytest.mark.parametrize("path", notebooks.notebooks(), ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def no_window(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(mechanism, "VERDICTS", {})


@every
def test_a_notebook_runs_before_anybody_has_answered(path):
    for source, stored, said in notebooks.run(path, {}):
        assert said == stored, f"{source}\n\n`python -m tests.notebooks {path.name}` writes outputs anew"


@every
def test_the_solutions_are_right(path):
    answers = notebooks.solutions(path)
    for _ in notebooks.run(path, answers):
        pass
    book = next(name for name, file in mechanism.BOOKS.items() if file == path.name)
    assert [x.name for x in mechanism.of_book(book)] == [*answers] == [*mechanism.VERDICTS]
    assert [x for x in mechanism.VERDICTS.values() if not x] == []


def test_every_notebook_is_there():
    assert {path.name for path in notebooks.notebooks()} == {*mechanism.BOOKS.values()}


@every
def test_in_jupyter(path, request):
    if not request.config.getoption("--all-ways"):
        pytest.skip("with --all-ways")
    if not find_spec("nbclient") or not find_spec("ipykernel"):
        pytest.skip("needs nbclient and ipykernel: pip install -e '.[notebooks]'")
    book = notebooks.by_jupyter(path, notebooks.solutions(path))
    said = "".join(output.get("text", "") for cell in book.cells for output in cell.get("outputs", ()))
    assert "6 of 6 solved" in said
