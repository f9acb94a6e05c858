"""An explanation as HTML: the picture, tables of tiles, bytes and other plans, and the text."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from tilewright.lab.explanation.record import COLUMNS
from tilewright.lab.explanation.terminal import why
from tilewright.text import size

if TYPE_CHECKING:
    from tilewright.lab.explanation.record import Explanation

STYLE = """<style>
.tilewright { max-width: 960px; font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12px; }
.tilewright svg { max-width: 100%; height: auto; }
.tilewright table { border-collapse: collapse; margin: 12px 0; }
.tilewright th, .tilewright td { text-align: right; padding: 2px 10px 2px 0; vertical-align: top; }
.tilewright th.words, .tilewright td.words { text-align: left; }
.tilewright thead th { border-bottom: 1px solid #8b949e; }
.tilewright pre { overflow-x: auto; }
</style>"""


def html(found: Explanation) -> str:
    """A whole page."""
    return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{escape(found.title)}</title></head>\n<body>{body(found)}</body></html>\n")


def body(found: Explanation) -> str:
    """What a notebook shows."""
    text = f"<details><summary>in words</summary><pre>{escape(str(found))}</pre></details>"
    return f'{STYLE}\n<div class="tilewright">\n{found.svg()}\n{"".join(_tables(found))}{text}\n</div>\n'


def _tables(found: Explanation) -> Iterator[str]:
    if len(found.tiles) > 1:
        yield _table(("tile", "extents", "how many", "where", "bytes", "of"), (
            (tile.name, str(tile), f"{tile.count:,}", tile.place, size(tile.bytes) if tile.bytes else "",
             size(tile.room) if tile.room else "") for tile in found.tiles), (0, 1, 3))
    if found.levels:
        yield _table(("bytes by level", *COLUMNS, "operations a byte"), (
            (level.name, *(_count(getattr(level, source)) for source in COLUMNS), _figure(found.intensity(level)))
            for level in found.levels), (0,))
    if found.alternatives:
        yield _table(("other plan", "slower by", "largest cause"), (
            (str(each.plan), f"{each.slower:+.1%}", why(each)) for each in found.alternatives), (0, 2))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f'<{tag}{" class=words" * (n in words)}>{escape(cell)}</{tag}>'
                                for n, cell in enumerate(cells)) + "</tr>"
    return (f"<table><thead>{row(head, 'th')}</thead><tbody>{''.join(row(each, 'td') for each in rows)}</tbody>"
            "</table>\n")


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _figure(number: float | None) -> str:
    return "" if number is None else f"{number:.4g}"
