"""The documentation site: it builds without a warning, its links lead somewhere, and its search finds (where
there is a Chromium to ask)."""

from __future__ import annotations

import html
import re
import runpy
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers import browser

ROOT = Path(__file__).resolve().parents[2]
needs_sphinx = pytest.mark.skipif(not all(map(find_spec, ("sphinx", "myst_parser", "furo"))),
                                  reason="the site needs sphinx: pip install -e '.[docs]'")


def build(docs: Path, out: Path) -> str:
    """What Sphinx complains of."""
    command = [sys.executable, *"-m sphinx -q -W --keep-going -b html".split(), str(docs), str(out)]
    return subprocess.run(command, capture_output=True, text=True).stderr


@cache
def ids(page: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\bid="([^"]+)"', page.read_text()))


@needs_sphinx
def test_the_site_builds_without_a_warning(tmp_path):
    assert build(ROOT / "docs", tmp_path) == ""
    for page in tmp_path.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="(?!\w+:)([^"]+)"', page.read_text()):
            path, _, anchor = html.unescape(link).partition("#")
            target = (page.parent / path.partition("?")[0]) if path else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor and target.suffix == ".html" and target.name != "search.html":
                assert anchor in ids(target.resolve()), f"{page.name}: {link}"
        assert not re.search(r'<(script|link|img)[^>]*(src|href)="https?:', page.read_text()), "it needs no network"
    index = (tmp_path / "searchindex.js").read_text()
    assert all(word in index for word in ("epilogu", "wgmma", "grouped_matmul"))
    if browser.CHROMIUM and find_spec("playwright"):
        with browser.browser() as chromium, browser.page(chromium, tmp_path / "index.html") as page:
            page.fill("input.sidebar-search", "softmax")
            page.press("input.sidebar-search", "Enter")
            found = page.locator("#search-results ul.search li a")
            found.first.wait_for()
            assert "8 A kernel of your own" in " ".join(found.all_inner_texts())


@needs_sphinx
def test_what_is_refused(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in "docs/conf.py", "docs/_templates", "docs/_static", "tilewright", "pyproject.toml":
        (tmp_path / name).symlink_to(ROOT / name)
    (docs / "index.md").write_text("# I\n\n```{toctree}\nother\nnot_yet*\n```\n")
    (docs / "other.md").write_text("# O\n\n[a](page.md#nowhere) and [b](../nothing.py)\n")
    (docs / "page.md").write_text("# P\n")
    complaints = build(docs, tmp_path / "out")
    assert "nowhere" in complaints
    assert "docs/other.md links to ../nothing.py, which does not exist" in complaints
    assert "docs/page.md is in 0 toctrees of docs/index.md, and must be in one" in complaints
    assert "not_yet" not in complaints


CHAPTERS = sorted((ROOT / "docs/tutorial").glob("[0-9]*.py"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda x: x.stem)
def test_a_chapter_draws_its_plot(chapter, tmp_path, monkeypatch):
    """From what the repository has: results that were measured, and what is counted now."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(chapter.parent)
    copy = tmp_path / chapter.name
    shutil.copy(chapter, copy)
    runpy.run_path(str(copy))["plot"]()
    drawn = {x.name for x in tmp_path.glob("*.svg")}
    assert copy.with_suffix(".svg").name in drawn <= {x.name for x in chapter.parent.glob("*.svg")}


def test_a_chapter_has_a_page_a_script_and_a_plot():
    pages = sorted((ROOT / "docs/tutorial").glob("[0-9]*.md"))
    assert [page.stem[:2] for page in pages] == [chapter.stem[:2] for chapter in CHAPTERS]
    for page, chapter in zip(pages, CHAPTERS, strict=True):
        text = page.read_text()
        assert f"$ python docs/tutorial/{chapter.name}\n" in text
        assert f"({chapter.stem}.svg)" in text
        assert all(part in text for part in ("**Goal:**", "## What changed", "## Predicted and measured"))
