"""A reproduction as one HTML page, which needs no network, and as a table for a terminal. The frame of the page and its
style are page.html and page.css."""
from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from string import Template

from tilewright import __version__
from tilewright.lab.reproduce.row import HOW, KINDS, MISSING, WRONG
from tilewright.lab.reproduce.run import Done, Reproduction
from tilewright.text import plural

MOST_BYTES = 5_000_000
LONG = 30               # lines of a listing that scrolls
FOLDER = Path(__file__).parent
LABELS = HOW | {
    "as above": "the source shows the same figure once more",
    "left out": "nothing to reproduce: the row says why",
    MISSING: "this machine or installation lacks what the row needs; the row says what",
    WRONG: "an error in tilewright, which the row shows: please report it",
}


def page(made: Reproduction) -> str:
    """The page. ValueError if it were larger than MOST_BYTES."""
    source = made.source
    sections = [(name, [*rows]) for name, rows in groupby(made.rows, lambda done: done.row.item.section)]
    address = html.escape(source.address)
    text = Template((FOLDER / "page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(source.title), version=__version__, style=(FOLDER / "page.css").read_text(encoding="utf-8"),
        by=f'by {html.escape(source.author)}: <a href="{address}">{address}</a>', about=_inline(source.about),
        made=_inline(_made(made)), contents=_contents(sections), overview=_overview(made),
        sections="\n".join(_section(*section) for section in sections),
        foot=_inline(f"Made by `{_command(made)}`. The source is the work of its author; this page quotes figures and "
                     "numbers of it, and links to it for everything else."))
    if len(text.encode()) > MOST_BYTES:
        raise ValueError(f"the page would have {len(text.encode()) / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f} MB")
    return text


def _command(made: Reproduction) -> str:
    return f"tilewright reproduce {made.source.name}{' --quick' * made.setting.quick} -o report.html"


def _made(made: Reproduction) -> str:
    others = f" Other processes kept {made.others:.1f} CPUs busy meanwhile." if made.others >= 0.1 else ""
    quick = " `--quick`: fewer and smaller measurements." if made.setting.quick else ""
    return (f"Made {made.created[:16].replace('T', ' ')} UTC in {made.seconds:.0f} s on {made.machine['cpu']}, "
            f"{plural(made.machine['cpus_allowed'], 'CPU')}, from commit {made.commit or 'unknown'}.{quick}{others}")


def _contents(sections: list[tuple[str, list[Done]]]) -> str:
    lines = ['<ol><li><a href="#overview">Overview</a></li>']
    for name, rows in sections:
        inner = "".join(f'<li><a href="#{anchor(done.row.item.name)}">{_inline(done.row.item.title)}</a></li>'
                        for done in rows)
        lines.append(f'<li><a href="#{anchor(name)}">{_inline(name)}</a><ol>{inner}</ol></li>')
    return "\n".join(lines) + "</ol>"


def _overview(made: Reproduction) -> str:
    counts = made.counts
    labels = "".join(f'<dt><button type="button" data-how="{how}" aria-pressed="false">{_label(how)}</button> '
                     f"{counts[how]}</dt><dd>{_inline(LABELS[how])}</dd>"
                     for how in LABELS if counts[how])
    kinds = ", ".join(plural(count, kind) for kind in KINDS
                      if (count := sum(done.row.item.kind == kind for done in made.rows)))
    rows = [done for done in made.rows if done.row.item.short and done.cell and done.cell.short]
    glance = "".join(
        f'<tr><td><a href="#{anchor(done.row.item.name)}">{_inline(done.row.item.title)}</a></td>'
        f"<td>{_inline(done.row.item.short)}</td><td>{_inline(done.cell.short)}</td><td>{_label(done.how)}</td></tr>"
        for done in rows if done.cell)
    table = (f'<details open><summary>At a glance: {plural(len(rows), "item")} with a number or a word</summary>'
             '<div class="wide"><table class="glance"><thead><tr><th>item</th><th>the source</th><th>tilewright</th>'
             f"<th></th></tr></thead><tbody>{glance}</tbody></table></div></details>" if rows else "")
    return f"<p>{kinds}. Every row has a label; press one to see its rows alone.</p><dl>{labels}</dl>{table}"


def _section(name: str, rows: list[Done]) -> str:
    articles = "\n".join(map(_article, rows))
    return f'<section id="{anchor(name)}">\n<h2>{_inline(name)}</h2>\n{articles}\n</section>'


def _article(done: Done) -> str:
    item, cell = done.row.item, done.cell
    link = anchor(item.name)
    named = f"{item.kind}: {item.name}" + (f", {done.seconds:.1f} s" if done.seconds >= 0.1 else "")
    head = (f'<div class="head"><h3><a href="#{link}">{_inline(item.title)}</a></h3>{_label(done.how)}'
            f'<span class="name">{html.escape(named)}</span></div>')
    opened = f'<article id="{link}" data-how="{done.how}"'
    theirs = f"<div><h4>The source</h4>{_paragraphs(item.theirs)}</div>" if item.theirs else ""
    if cell is None:
        why = done.why or item.left_out
        if item.again:
            why = f"The same as [above](#{anchor(item.again)})."
        return f'{opened} class="thin">{head}{theirs}<div class="why">{_paragraphs(why)}</div></article>'
    ours = "".join([
        _paragraphs(cell.text), f'<div class="wide">{cell.svg}</div>' * bool(cell.svg), _table(cell.table),
        f"<pre{' class=long' * (cell.code.count(chr(10)) > LONG)} tabindex=0>{html.escape(cell.code)}</pre>"
        * bool(cell.code)])
    wide = cell.svg or cell.code or not theirs or any(len(row) > 4 for row in cell.table)
    narrow = "" if wide else " narrow"
    differs = _paragraphs("\n\n".join(filter(None, [item.differs, cell.differs])))
    below = f'<div class="differs"><h4>What differs, and why</h4>{differs}</div>' if differs else ""
    return (f'{opened}>{head}<div class="pair{narrow}">{theirs}<div><h4>tilewright</h4>{ours}</div></div>'
            f"{below}</article>")


def _label(how: str) -> str:
    colour = how if how in HOW or how == WRONG else "none"
    return f'<span class="label" style="--how:var(--{colour})">{how}</span>'


def _table(rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    numbers = [all(re.fullmatch(r"[-+<>≤≥~]?[\d.,]+\S{0,3}( ?[(]?[\d.,]+ ?%[)]?)?|-|", row[i]) for row in rows[1:])
               for i in range(len(rows[0]))]

    def line(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}{' class=n' * right}>{_inline(cell)}</{tag}>"
                                for cell, right in zip(cells, numbers)) + "</tr>"

    return (f'<div class="wide"><table><thead>{line(rows[0], "th")}</thead><tbody>'
            + "".join(line(row, "td") for row in rows[1:]) + "</tbody></table></div>")


def anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{_inline(part)}</p>" for part in text.split("\n\n") if part)


def _inline(text: str) -> str:
    """`code`, [words](link), m_R with a subscript, 2^3 with a superscript."""
    parts = html.escape(text).split("`")
    for i in range(0, len(parts), 2):
        part = re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", r'<a href="\2">\1</a>', parts[i])
        part = re.sub(r"\b([A-Za-z])_([A-Za-z0-9])\b", r"\1<sub>\2</sub>", part)
        parts[i] = re.sub(r"(?<=[\w)])\^(-?\w+)", r"<sup>\1</sup>", part)
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


# ---- for a terminal

WIDTHS = {"kind": 7, "item": 21, "how": 9, "the source": 16, "tilewright": 19}   # 80 columns with the gaps


def table(made: Reproduction) -> list[list[str]]:
    """A heading and a line for each row, none wider than 80 columns."""
    rows = [[done.row.item.kind, done.row.item.name, done.how, done.row.item.short,
             done.cell.short if done.cell else ""] for done in made.rows]
    return [[*WIDTHS], *([cell if len(cell) <= most else cell[:most - 1] + "…"
                          for cell, most in zip(row, WIDTHS.values())] for row in rows)]


def summary(made: Reproduction) -> str:
    """What there is of each label, and what failed."""
    counts = ", ".join(f"{count} {how}" for how in LABELS if (count := made.counts[how]))
    return f"{plural(len(made.rows), 'row')} in {made.seconds:.0f} s: {counts}"
