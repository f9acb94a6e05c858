"""What a source has, and what tilewright has beside it.

    Item    a figure, table, listing, formula or number of a source: data, in items/SOURCE.json
    Cell    tilewright's counterpart of an item, and how it was made
    Row     an item with the function that makes its cell, or the reason why it has none
    Rows    the rows of one source; a module of this folder is one, and names a function for each item:

        rows = Rows("cpu")

        @rows("FLOP per cycle")
        def per_cycle(setting):
            return Cell("computed", "64 a cycle: two units, 16 lanes, 2 operations", short="64")

A figure without a function is the drawing of that name in lab/drawing/catalogue.py.
"""
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

SOURCES = ("cpu", "nvidia", "cdna", "lecture")
KINDS = ("figure", "table", "listing", "formula", "number")
# how a cell was made, and what that means
HOW = {
    "drawn": "drawn now, from a plan, a recorded kernel or the catalogue of instructions",
    "simulated": "counted now in tilewright's simulator, which runs the kernel without a GPU",
    "measured": "timed now, on the machine that the page names",
    "committed": "measured earlier, on the machine that the row names, and read from a file of bench/results",
    "computed": "calculated now, from a formula or from data of tilewright",
    "compiled": "tilewright's own code for it, or machine code that was compiled now",
}
MISSING = "not here"  # the label of a row that this machine or installation cannot fill
WRONG = "failed"


class Absent(Exception):
    """What a row needs and this machine or installation has not, as a sentence."""


@dataclass(frozen=True)
class Setting:
    """How a report is made."""
    quick: bool = False


@dataclass(frozen=True)
class Cell:
    """`text` has paragraphs, with `code` in backticks; `table` begins with its heading; `short` is at most 19
    characters, for a terminal; `differs` goes on from the item's, with what is known only now."""
    how: str
    text: str = ""
    short: str = ""
    svg: str = ""
    table: tuple[tuple[str, ...], ...] = ()
    code: str = ""
    differs: str = ""


@dataclass(frozen=True)
class Item:
    """`theirs` is the source's own figure in words, `short` the same for a terminal; `differs` says what differs from
    ours and why; `left_out` why there is no counterpart; `again` is the item that it shows once more."""
    kind: str
    name: str
    section: str
    title: str = ""
    theirs: str = ""
    short: str = ""
    differs: str = ""
    left_out: str = ""
    again: str = ""


@dataclass(frozen=True)
class Row:
    item: Item
    ours: Callable[[Setting], Cell] | None


@dataclass(frozen=True)
class Source:
    """What is known of a source, without a word of it."""
    name: str
    title: str
    author: str
    address: str
    about: str
    items: tuple[Item, ...]


@cache
def source(name: str) -> Source:
    """ValueError for a name that is no source's, or two items of one name."""
    if name not in SOURCES:
        raise ValueError(f"there is no source {name!r}; the sources are {', '.join(SOURCES)}")
    data = json.loads((Path(__file__).parent / "items" / f"{name}.json").read_text(encoding="utf-8"))
    sections = data.pop("sections")
    items = tuple(Item(section=section["name"], **item) for section in sections for item in section["items"])
    names = [item.name for item in items]
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise ValueError(f"{name} has two items called {twice[0]!r}")
    return Source(name, items=items, **data)


def figure(name: str, setting: Setting) -> Cell:
    """The drawing "SOURCE/NAME" of the catalogue, with its caption."""
    from tilewright.lab.drawing.catalogue import FIGURES

    picture = FIGURES.get(name) or FIGURES.get(name.rpartition(".")[0])
    if picture is None or picture.draw is None:
        raise Absent(picture.reason if picture else f"the drawing {name} is not made yet")
    return Cell("drawn", picture.caption, svg=picture.draw())


def drawing(name: str) -> str:
    """The SVG of a drawing of the catalogue, for a cell that has more than it."""
    return figure(name, Setting()).svg


class Rows:
    def __init__(self, source: str) -> None:
        self.source, self._made = source, {}  # type: str, dict[str, Callable[[Setting], Cell]]

    def __call__(self, *names: str) -> Callable[[Callable[..., Cell]], Callable[..., Cell]]:
        """For a function that makes the cell of this item; where it is for several, it is also given the name."""
        known = {item.name for item in source(self.source).items}
        if unknown := [name for name in names if name not in known or name in self._made]:
            raise ValueError(f"{self.source} has no item {unknown[0]!r}, or it has a function already")

        def add(make: Callable[..., Cell]) -> Callable[..., Cell]:
            for name in names:
                self._made[name] = partial(make, name) if len(names) > 1 else make
            return make

        return add

    def __iter__(self) -> Any:
        """The rows in the source's order."""
        for item in source(self.source).items:
            ours = self._made.get(item.name)
            if ours is None and item.kind == "figure" and not (item.left_out or item.again):
                ours = partial(figure, f"{self.source}/{item.name}")
            yield Row(item, ours)
