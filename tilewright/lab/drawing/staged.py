"""What the threads of the GPU ladder's kernels move: tiles of A and B to shared memory, C to global memory."""
from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.lab.drawing import accesses
from tilewright.lab.drawing.pen import DENSE, ROUND, Svg
from tilewright.lab.drawing.pieces import Cell, grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.simulator import Event

Places = dict[tuple[int, int], int]     # (row, column) → thread


def places(events: Sequence[Event], columns: int, threads: int = 256) -> Places:
    """Which thread accesses which element of an array with rows of so many elements."""
    positions: Places = {}
    for event in events:
        assert event.at is not None
        for thread, at in zip(event.threads.tolist(), event.at.tolist()):
            for e in range(event.width):
                positions[divmod(at + e, columns)] = thread % threads
    return positions


def _thread(found: Places, colours: int = 16) -> object:
    def cell(row: int, column: int) -> Cell | None:
        if (row, column) not in found:
            return Cell("edge", 0.5)
        thread = found[row, column]
        return Cell(ROUND[thread % 8], 0.2 + 0.35 * (thread // 8 % 2), str(thread)) if thread < colours else \
            Cell("edge", 0.15, str(thread))
    return cell


def transposed(title: str, loads: Sequence[Event], stores: Sequence[Event], depth: int, row: int) -> Svg:
    """A's tile as it is loaded, and transposed in shared memory, in rows of `row` elements: thread numbers."""
    pen, size, shown = Svg(title, 560, readable=DENSE), 25, 16
    grid(pen, 0, 0, shown, depth, size, _thread(places(loads, depth)), name="A", hue="blue", ticks=(4, 4), text=11,    # type: ignore[arg-type]
         note="global memory")
    found, small = places(stores, row), 17
    x = depth*size + 42
    grid(pen, x, 0, depth, shown, small, _thread(found), name="sA", hue="violet", ticks=(4, 4), text=9,   # type: ignore[arg-type]
         note="shared memory, transposed")
    end = max(column for _, column in found) + 1
    pen.lines(x, depth*small + 30, f"The first {shown} rows of {end}, and the first {shown} columns of {end}"
              + (f"; rows of sA are {row} words, of which {row - end} are padding." if row > end else "."), 270, 0)
    pen.lines(x, depth*small + 90, "A thread loads four numbers of a column of A, one after another, and stores them "
              "side by side, 16 bytes at once.", 270, 0)
    return pen


def straight(title: str, loads: Sequence[Event], columns: int) -> Svg:
    """B's tile: which warp loads which row, and which lane which elements of it."""
    pen, unit = Svg(title, 560, readable=DENSE), 4.1
    cells = places(loads, columns)
    rows = max(row for row, _ in cells) + 1

    def cell(row: int, column: int) -> Cell:
        thread = cells[row, column]
        return Cell(ROUND[thread // 32 % 8], 0.15 + 0.7 * (thread % 32) / 31)
    grid(pen, 0, 0, rows, columns, unit, cell, high=16, name="B", hue="orange", note=f"{rows} x {columns}")
    for row in range(rows):
        pen.text(columns*unit + 6, row*16 + 13, f"warp {cells[row, 0] // 32}", 0, "soft")
    for e, event in enumerate(loads):
        assert event.at is not None
        pen.text(int(event.at[0]) % columns * unit + 2, rows*16 + 15, f"load {e + 1}", 0, "soft")
    size, y = 16.4, rows*16 + 56
    grid(pen, 0, y, 1, 32, size, lambda _, c: Cell(ROUND[cells[0, c] // 32], 0.15 + 0.7 * (cells[0, c] % 32) / 31,
                                                 str(cells[0, c])), high=20, text=10, name="the first load of warp 0",
         note="32 neighbours")
    pen.text(0, y + 42, "sB in shared memory is filled in the same order: no two lanes share a bank", 0, "soft")
    return pen


def scattered(title: str, event: Event, columns: int, rows: int = 32, wide: int = 64) -> Svg:
    """One store of C by a warp that holds 4 x 4 blocks: the elements, and the sectors that they are in."""
    pen, unit = Svg(title, 560), 8.4
    warp = accesses.first_warp(event)
    positions = {divmod(elements[0], columns): lane for lane, elements in accesses.lanes_of(event, warp).items()}
    top, left = min(row for row, _ in positions) // rows * rows, min(column for _, column in positions) // wide * wide
    touched = {(row, column // 8) for row, column in positions}

    def cell(row: int, column: int) -> Cell:
        if (row + top, column + left) in positions:
            return Cell("green", 0.9)
        return Cell("red", 0.3) if (row + top, (column + left) // 8) in touched else Cell()
    grid(pen, 0, 0, rows, wide, unit, cell, name="C", hue="green", note=f"{rows} x {wide} of warp {warp}")
    cost = event.costs()[warp]
    for (row, column), lane in positions.items():
        pen.text((column - left + 1.2)*unit, (row - top)*unit + 10, str(lane), 10)
    y = rows*unit + 20
    pen.text(0, y, f"one store of 32 lanes touches {int(cost.moved)} sectors of 32 bytes, where {int(cost.ideal)} "
             "would do", 13, "red")
    return pen


def exchanged(title: str, stores: Sequence[Event], loads: Sequence[Event]) -> Svg:
    """A warp's 16 x 32 of C in shared memory: which lane stores which elements, and which lane reads them."""
    pen, size = Svg(title, 600, readable=DENSE), 17
    warp = accesses.first_warp(stores[0])
    stored: Places = {}
    for event in stores:
        for lane, elements in accesses.lanes_of(event, warp).items():
            stored |= {divmod(element, 32): lane for element in elements}
    rows = 16
    grid(pen, 0, 0, rows, 32, size, lambda r, c: Cell(ROUND[stored[r, c] % 8], 0.2 + 0.12 * (stored[r, c] // 8),
         str(stored[r, c]) if c % 4 == 0 or stored[r, c] != stored[r, c - 1] else ""), name="stored by lane",
         ticks=(4, 4), text=10, note="4 neighbours each, in four stores")
    y = rows*size + 60
    event = loads[0]
    read = {divmod(elements[0], 32): lane for lane, elements in accesses.lanes_of(event, warp).items()}
    row = next(iter(read))[0]
    grid(pen, 0, y, 1, 32, size, lambda _, c: Cell("green", 0.4, str(read[row, c])), name="read by lane", text=10,
         note=f"row {row}, the first of 16 reads: a lane for each column")
    moved, ideal = (sum(int(getattr(event.costs()[warp], what)) for event in (*stores, *loads))
                    for what in ("moved", "ideal"))
    pen.text(0, y + 44, f"{len(stores)} stores and {len(loads)} loads of the warp: {moved} passes, where {ideal} would "
             "do", 13, "green" if moved == ideal else "red")
    return pen


def by_rows(title: str, before: Event, after: Event, columns: int) -> Svg:
    """Stores of C by a warp, of single elements of its blocks, and by rows: the sectors of each."""
    pen, unit = Svg(title, 560), 8.4
    y = 0.0
    for name, event in (("from registers", before), ("through shared memory", after)):
        warp = accesses.first_warp(event)
        found = {divmod(elements[0], columns) for elements in accesses.lanes_of(event, warp).values()}
        top, left = min(row for row, _ in found), min(column for _, column in found) // 64 * 64
        touched = {(row, column // 8) for row, column in found}
        high = max(max(row for row, _ in found) - top + 1, 4)

        def cell(row: int, column: int, found: object = found, touched: object = touched, top: int = top,
                 left: int = left) -> Cell:
            place = (row + top, column + left)
            return Cell("green", 0.9) if place in found else Cell("red", 0.3) if (   # type: ignore[operator]
                place[0], place[1] // 8) in touched else Cell()
        grid(pen, 0, y, high, 64, unit, cell, name=name, hue="green")
        cost = event.costs()[warp]
        y += high*unit + 20
        pen.text(0, y, f"{int(cost.moved)} sectors of 32 bytes, where {int(cost.ideal)} would do", 13,
                 "green" if cost.moved == cost.ideal else "red")
        y += 50
    return pen
