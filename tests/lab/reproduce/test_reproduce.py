"""`tilewright reproduce`: every item of a source has a row, a row says what it is, and the page stands by itself."""
from __future__ import annotations

import re

import pytest

from tests.helpers import browser
from tests.helpers.command_line import call, refused
from tilewright.lab.reproduce import report, run
from tilewright.lab.reproduce.row import HOW, KINDS, SOURCES, Absent, Cell, Item, Row, Setting, source

# figures of the sources, twice where a source shows one twice
FIGURES = {"cpu": 20, "nvidia": 27, "cdna": 10, "lecture": 0}
COMPLETE = ("nvidia", "cdna")


def rows(*parts):
    """A reproduction of rows made here."""
    return run.Reproduction(source("cpu"), Setting(), [run.make(row, Setting()) for row in parts],
                            "2026-11-30T10:00:00+00:00", None, {"cpu": "a CPU", "cpus_allowed": 2}, 0.0, 1.0)


def row(name="an item", ours=lambda setting: Cell("computed", "42"), **item):
    return Row(Item("number", name, "1 Section", **{"title": "A title", "theirs": "43", **item}), ours)


@pytest.mark.parametrize("name", SOURCES)
def test_every_item_is_reproduced_or_has_a_reason(name):
    for each in run.rows_of(name):
        item = each.item
        assert item.kind in KINDS, item
        assert item.title, item
        assert len(item.short) <= 16, item
        assert name not in COMPLETE or (each.ours is not None) + bool(item.left_out) + bool(item.again) == 1, item
        assert item.left_out or item.again or item.theirs or item.kind == "figure", item
        assert each.ours is None or item.differs, item
        assert not item.again or item.again in [x.name for x in source(name).items]
        assert "," not in item.name             # which separates names on the command line


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_an_item(name):
    assert sum(item.kind == "figure" for item in source(name).items) == FIGURES[name]


def test_an_unknown_source_or_item_is_a_sentence():
    assert "the sources are cpu, nvidia, cdna, lecture" in refused("reproduce", "gpu")
    assert "has no item 'nothing'" in refused("reproduce", "cpu", "--only", "nothing")


def test_the_table_fits_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = call("reproduce", "cpu", "--only", "16 YMM,cpu_arch.png").stdout
    assert max(map(len, said.splitlines())) <= 80
    assert "left out" in said
    assert "2 rows in" in said


def test_json_has_every_row():
    import json

    (found,) = json.loads(call("reproduce", "cpu", "--only", "16 YMM", "--json").stdout)["rows"]
    assert found["how"] == "computed"
    assert found["ours"]["short"] == "16"


def test_a_broken_row_does_not_break_the_page():
    def broken(setting):
        raise KeyError("what")

    def absent(setting):
        raise Absent("it needs a GPU")

    made = rows(row("one", broken), row("two", absent), row("three"))
    assert [done.how for done in made.rows] == ["failed", "not here", "computed"]
    text = report.page(made)
    assert "KeyError" in text
    assert "it needs a GPU" in text


def test_the_page_needs_nothing_else(tmp_path):
    path = tmp_path / "page.html"
    assert call("reproduce", "cpu", "--only", "16 YMM", "-o", path).exit_code == 0
    text = path.read_text()
    assert not re.search(r'(?:src|href)="(?!#|data:,|https://)', text)
    assert not re.search(r"<(?:script|link|img)[^>]+https?:", text)


def test_what_a_page_writes_is_escaped():
    text = report.page(rows(row(title="a < b & m_R", ours=lambda setting: Cell("computed", code="x < y"))))
    assert "a &lt; b &amp; m<sub>R</sub>" in text
    assert "x &lt; y" in text


def test_a_page_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(report, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="MB"):
        report.page(rows(row()))


def test_labels_are_explained():
    assert {*HOW} < {*report.LABELS}


# ---- looked at

def test_the_page_fits_a_phone_and_a_desktop(tmp_path):
    """One row of each shape: two columns, a wide table, a drawing, a long listing, a formula, what is left out."""
    shown = "core_arch.png,registers,test machine,outer_product.png,intel_core_perf.png,matmul_pack,16 cores"
    path = tmp_path / "page.html"
    call("reproduce", "cpu", "--only", shown, "-o", path)
    with browser.browser() as chromium:
        for size in (browser.PHONE, browser.DESKTOP):
            with browser.page(chromium, path, size, dark=size == browser.PHONE) as page:
                assert page.errors == []
                assert browser.overflow(page) == 0
                phone = size == browser.PHONE
                assert page.locator("nav details").evaluate("x => x.open") is not phone
                if phone:
                    page.locator("nav summary").click()
                page.locator("nav a", has_text="An outer product").click()
                assert page.url.endswith("#outer-product-png")
                assert page.locator("#outer-product-png svg").is_visible()
                assert browser.colours(page.screenshot()) > 20
                page.locator("button[data-how=drawn]").click()
                assert page.locator("article:visible").count() == 1
                page.locator("button[data-how=drawn]").click()
                assert page.locator("article:visible").count() == shown.count(",") + 1
