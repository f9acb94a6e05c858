"""One warp's access of memory: lanes, banks and passes of shared memory, lanes and sectors of global memory.

The events are those of `simulator.run(..., observer=f)`.
"""
from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.lab.drawing.pen import ROUND, Svg
from tilewright.lab.drawing.pieces import Cell, grid, key
from tilewright.targets.banks import WORD, for_target

if TYPE_CHECKING:
    from tilewright.simulator import Event

SECTOR = 32                     # bytes
LONG = 50                       # characters of a source line
MOST_ROWS = 40                  # of sectors that are drawn


class At:
    """An observer that keeps the first load or store at a line, such as "gpu06_padded.py:64", and counts them."""

    def __init__(self, line: str) -> None:
        self.line, self.count = line, 0
        self.first: Event | None = None

    def __call__(self, event: Event) -> None:
        if event.what in ("load", "store") and self.line in (str(event.line), str(event.line.number)):
            self.first, self.count = self.first or event, self.count + 1


def lanes_of(event: Event, warp: int, lanes: int = 32) -> dict[int, list[int]]:
    """Lane → the elements of the array that it accesses."""
    assert event.at is not None
    touched = {}
    for i, thread in enumerate(event.threads.tolist()):
        if thread // lanes == warp:
            there = range(event.width) if event.mask is None else np.flatnonzero(event.mask[:, i]).tolist()
            touched[thread % lanes] = [int(event.at[i]) + e for e in there]
    return touched


def first_warp(event: Event, lanes: int = 32) -> int:
    return int(event.threads[0]) // lanes


def turns(event: Event, warp: int, lanes: int = 32, banks: int = 32) -> dict[tuple[int, int], tuple[int, int, int]]:
    """(lane, word) → (phase, pass of the phase, bank): which pass delivers each word, in the order of addresses."""
    phase: Any = event.costs()[warp].phase
    words: dict[tuple[int, int], list[int]] = defaultdict(list)         # (phase, bank) → its words
    order = {}
    for lane, elements in lanes_of(event, warp, lanes).items():
        for e, element in enumerate(elements):
            first = element * event.item // WORD
            for word in range(first, first + max(event.item // WORD, 1)):
                order[lane, word] = int(phase[e, lane]), word % banks
    for (_, word), place in sorted(order.items(), key=lambda item: item[0][1]):
        if word not in words[place]:
            words[place].append(word)
    return {(lane, word): (turn, words[turn, bank].index(word), bank) for (lane, word), (turn, bank) in order.items()}


def passes(found: dict[tuple[int, int], tuple[int, int, int]]) -> int:
    """Passes in all, which the simulator counts in its own way."""
    most: dict[int, int] = defaultdict(int)
    for turn, at, _ in found.values():
        most[turn] = max(most[turn], at + 1)
    return sum(most.values())


def banks(title: str, event: Event, lanes: int = 32, there: int = 32, words: bool = False) -> Svg:
    """A row for each lane, a column for each of the banks that there are: which banks a lane's words are in, and the
    pass that delivers them. `words`: also which word of the array comes first."""
    warp = first_warp(event, lanes)
    cost, turn_of = event.costs()[warp], turns(event, warp, lanes, there)
    size, left = 13.4 * 32 / there, 56
    pen = Svg(title, 580 if words else 500)
    cells = {(lane, bank): (turn, at) for (lane, _), (turn, at, bank) in turn_of.items()}

    def cell(lane: int, bank: int) -> Cell | None:
        if (lane, bank) not in cells:
            return None
        turn, at = cells[lane, bank]
        return Cell("red" if at else ROUND[turn % 4], 0.25 + 0.6 * bool(at), str(at + 1) if there == 32 else "")
    grid(pen, left, 0, lanes, there, size, cell, high=13.4, ticks=(4, there // 8), text=9.5, name="banks")
    pen.text(left - 8, -6, "lane", 0, "soft", "end")
    for lane, elements in sorted(lanes_of(event, warp, lanes).items()) if words else ():
        if lane % 4 == 0:
            pen.text(left + there*size + 6, (lane + 0.7)*13.4, f"word {elements[0] * event.item // WORD:,}", 0, "soft")
    y = lanes*13.4 + 24
    what = f"{event.name or event.what} of {event.array}, {event.width * event.item} bytes a lane"
    pen.text(0, y, what, 13)
    pen.text(0, y + 20, f"{_times(int(cost.moved), 'pass', 'es')} over the banks, where {int(cost.ideal)} would do", 13,
             "red" if cost.moved > cost.ideal else "green", bold=True)
    phases = sorted({turn for turn, _, _ in turn_of.values()})
    entries = [(ROUND[turn % 4], 0.25, f"turn {turn + 1}") for turn in phases] if len(phases) > 1 else []
    if any(at for _, at, _ in turn_of.values()):
        entries.append(("red", 0.85, "waits for a pass before it"))
    key(pen, 0, y + 42, entries, 470)
    return pen


def _times(count: int, noun: str, more: str = "s") -> str:
    return f"{count} {noun}{more * (count != 1)}"


def sectors(title: str, event: Event, lanes: int = 32) -> Svg:
    """A row for each sector of 32 bytes that a warp touches: in each element the lane that asks for it."""
    warp = first_warp(event, lanes)
    cost, item = event.costs()[warp], event.item
    per = max(SECTOR // item, 1)
    asked: dict[int, dict[int, int]] = defaultdict(dict)
    for lane, elements in lanes_of(event, warp, lanes).items():
        for element in elements:
            asked[element * item // SECTOR][element % per] = lane
    rows = sorted(asked)
    pen, size = Svg(title, 480), min(30.0, 320 / per)
    for i, sector in enumerate(rows[:MOST_ROWS]):
        y = i * (size*0.62 + 4)
        pen.text(0, y + size*0.5, f"byte {sector * SECTOR:,}", 0, "soft")
        grid(pen, 120, y, 1, per, size, lambda _, e, s=sector: Cell("blue", 0.4, str(asked[s][e])) if e in asked[s]  # type: ignore[misc]
             else Cell("edge", 0.25), high=size*0.62, text=11)
    y = min(len(rows), MOST_ROWS) * (size*0.62 + 4) + 16
    if len(rows) > MOST_ROWS:
        pen.text(0, y, f"and {len(rows) - MOST_ROWS} sectors more", 0, "soft")
        y += 18
    pen.text(0, y, f"{event.name or event.what} of {event.array}, {event.width * item} bytes a lane", 13)
    pen.text(0, y + 20, f"{_times(int(cost.moved), 'sector')} of {SECTOR} bytes, where {int(cost.ideal)} would do", 13,
             "red" if cost.moved > cost.ideal else "green", bold=True)
    return pen


def access(event: Event, target: str, lanes: int = 32, count: int = 1) -> Svg:
    """The picture for the kind of memory, of a chip with such warps; below it the source line. `count`: how many
    accesses there are at the line."""
    title = f"{event.line}: {event.name or event.what} of {event.array} by warp {first_warp(event, lanes)}"
    pen = sectors(title, event, lanes) if event.space == "global" else \
        banks(title, event, lanes, banks_of(event, target, lanes), words=True)
    y = pen.box[1] + pen.box[3] + 12
    pen.text(0, y, f"{event.line}, the first of {count:,} accesses" if count > 1 else str(event.line), 0, "soft")
    pen.text(0, y + 20, event.line.text[:LONG] + "..." * (len(event.line.text) > LONG), 12, mono=True)
    return pen


def banks_of(event: Event, target: str, lanes: int) -> int:
    """How many banks there are for it: some chips have more for wide loads."""
    return for_target(target, lanes).split(event.item * event.width, event.what == "load").banks
