"""What a CTA does, in the order of its instructions: copies on their way, products, barriers."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tilewright.lab.drawing.pen import Svg

if TYPE_CHECKING:
    from tilewright.simulator import Event

WIDE, HIGH = 450, 22
NEAR = 8                        # instructions between stores of one tile


class Line(NamedTuple):
    """Spans of one kind of work, in instructions from the begin."""
    name: str
    hue: str
    spans: Sequence[tuple[int, int, str]]


def lines_of(events: Sequence[Event]) -> tuple[list[Line], list[int], int]:
    """Tiles on their way from global memory (from the load to the store that needs it), stores to shared memory,
    products, where barriers are, and how many instructions there are. A round's tile has the round's number."""
    moves, stores, products = (list[tuple[int, int, str]]() for _ in range(3))
    barriers = list[int]()
    now, tile, used, began = 0, 0, 0, -1
    for event in events:
        if event.what == "load" and event.space == "global" and began < 0:
            began = now
        elif event.what == "store" and event.space == "shared":
            if began >= 0:
                moves.append((began, now, str(tile)))
                tile, began = tile + 1, -1
                stores.append((now, now + 1, ""))
            elif now - stores[-1][1] > NEAR if stores else True:
                stores.append((now, now + 1, ""))
            else:
                stores[-1] = (stores[-1][0], now + 1, "")
        elif event.what == "fma":
            if products and products[-1][1] >= now - 40 and products[-1][2] == str(used):
                products[-1] = (products[-1][0], now + 1, str(used))
            else:
                products.append((now, now + 1, str(used)))
        elif event.what == "barrier":
            barriers.append(now)
        elif event.what == "store" and event.space == "global":
            break
        if event.what == "loop" and products:
            used += 1
        if event.what in ("load", "store", "fma", "copy"):
            now += 1
    return [Line("tile from global memory", "blue", moves), Line("stored to shared", "violet", stores),
            Line("products of tile", "green", products)], barriers, now


def timelines(title: str, runs: Sequence[tuple[str, Sequence[Event]]]) -> Svg:
    """Runs below each other, to one scale each."""
    pen, y = Svg(title, 640), 0.0
    for name, events in runs:
        lines, barriers, end = lines_of(events)
        pen.text(0, y, name, 14, bold=True)
        y += 12
        for i, line in enumerate(lines):
            top = y + i*(HIGH + 5)
            pen.text(0, top + 15, line.name, 0, "soft")
            for start, stop, words in line.spans:
                x, wide = 168 + start/end*WIDE, max((stop - start)/end*WIDE, 1.5)
                pen.rect(x, top, wide, HIGH, line.hue, 0.4, line.hue)
                if words and wide > pen.length(words, 0) + 4:
                    pen.text(x + wide/2, top + 15, words, 0, anchor="middle")
        for at in barriers:
            x = 168 + at/end*WIDE
            pen.line(x, y - 2, x, y + 3*(HIGH + 5), "red", 1, dash=True)
        y += 3*(HIGH + 5) + 30
    pen.text(168, y - 8, "instructions in their order; dashed: a barrier", 0, "soft")
    return pen
