"""The five loops of a packed product: each level the marked part of the one above, in the hue of its cache."""
from __future__ import annotations

from typing import Any

from tilewright.lab.drawing.pen import Svg
from tilewright.lab.drawing.pieces import MATRIX, Rect

HUES = {"registers": "pink", "L1": "violet", "L2": "teal", "L3": "gold", "memory": "soft"}


def five_loops(title: str, chip: Any, tile: Any, blocks: tuple[int, int, int]) -> Svg:
    """`blocks`: (mc, kc, nc). Sizes are not to scale: the largest is thousands of times the smallest."""
    mc, kc, nc = blocks
    size = tile.T.bytes
    fills = {"L3": (kc*nc*size, chip.l3), "L2": (mc*kc*size, chip.l2), "L1": (kc*tile.NR*size, chip.l1d)}

    def share(level: str) -> str:
        used, have = fills[level]
        return f"{used / have:.0%} of {level}"
    # loop, sizes of C (rows, columns) and k in the drawing, how they are cut, and what is said
    rows = [
        ("5th loop: columns", (96, 150, 66), ("n", 3), f"jc, {nc:,} columns at a time", {}),
        ("4th loop: k", (96, 90, 66), ("k", 3), f"pc, {kc} of k: pack B, {share('L3')}", {"B": "L3"}),
        ("3rd loop: rows", (96, 90, 34), ("m", 3), f"ic, {mc} rows: pack A, {share('L2')}", {"A": "L2", "B": "L3"}),
        ("2nd loop: panels of B", (60, 90, 34), ("n", 6), f"jr, {tile.NR} columns: a panel of B, {share('L1')}",
         {"A": "L2", "B": "L1"}),
        ("1st loop: panels of A", (60, 30, 34), ("m", 5), f"ir, {tile.MR} rows of A", {"A": "L2", "B": "L1"}),
        ("the kernel", (24, 30, 34), ("k", 10), f"{tile.MR} x {tile.NR} of C in registers",
         {"A": "L2", "B": "L1", "C": "registers"}),
    ]
    pen, y = Svg(title, 560), 0.0
    previous: Rect | None = None
    for name, (m, n, k), (along, parts), words, caches in rows:
        left = 0.0
        a, b = Rect(left, y + k + 6, k, m), Rect(left + k + 6, y, n, k)
        c = Rect(left + k + 6, y + k + 6, n, m)
        marked: Rect | None = None
        for letter, place in (("A", a), ("B", b), ("C", c)):
            hue = HUES[caches[letter]] if letter in caches else MATRIX[letter]
            pen.rect(*place, hue, 0.45 if letter in caches else 0.08, MATRIX[letter], 1.2)
            down = (along == "m" and letter != "B") or (along == "k" and letter == "B")
            across = (along == "n" and letter != "A") or (along == "k" and letter == "A")
            for i in range(1, parts):
                if down:
                    pen.line(place.x, place.y + i*place.h/parts, place.x + place.w, place.y + i*place.h/parts,
                             MATRIX[letter], 0.6)
                if across:
                    pen.line(place.x + i*place.w/parts, place.y, place.x + i*place.w/parts, place.y + place.h,
                             MATRIX[letter], 0.6)
            part = Rect(place.x, place.y, place.w / parts if across else place.w,
                        place.h / parts if down else place.h)
            if down or across:
                pen.rect(*part, MATRIX[letter], 0.35, MATRIX[letter], 1.8)
            if letter == "C":
                marked = part
            pen.text(place.x + place.w/2, place.y + place.h/2 + 5, letter, 14, MATRIX[letter], "middle", True)
        text = 235
        pen.text(text, y + k + 14, name, 14, bold=True)
        pen.text(text, y + k + 33, words, 0, "soft")
        if previous is not None:            # the part above, which this is
            pen.line(previous.x, previous.y + previous.h, c.x, c.y, "green", 0.7, dash=True)
            pen.line(previous.x + previous.w, previous.y + previous.h, c.x + c.w, c.y, "green", 0.7, dash=True)
        previous = marked
        y = c.y + c.h + 20
    for i, (level, hue) in enumerate((level, HUES[level]) for level in ("L3", "L2", "L1", "registers")):
        pen.rect(i*95, y + 2, 11, 11, hue, 0.45, hue)
        pen.text(i*95 + 17, y + 12, level, 0, "soft")
    return pen
