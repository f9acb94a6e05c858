"""Tiles of the GPU ladder's kernels: of CTAs, warps and threads, by the kernels' own functions."""
from __future__ import annotations

from tilewright.lab.drawing.pen import ROUND, Svg
from tilewright.lab.drawing.pieces import Rect, Trio

CTAS = 4                        # tiles along each side of C in drawings


def cta_tile(title: str, rows: int, columns: int, depth: int) -> Svg:
    """C in tiles, one of them marked, and the slabs of A and B that it goes through."""
    m, n, k = CTAS * rows, CTAS * columns, 24 * depth
    pen = Svg(title, 560)
    trio = Trio(pen, m, n, k, 300 / m)
    trio.matrices()
    trio.cut("C", rows, columns)
    i, j, p = rows, 2*columns, 5*depth
    trio.part("A", (i, i + rows), None, shade=0.2)
    trio.part("B", None, (j, j + columns), shade=0.2)
    trio.cut("A", 0, depth)
    trio.cut("B", depth, 0)
    trio.part("A", (i, i + rows), (p, p + depth), "violet", 0.9)
    trio.part("B", (p, p + depth), (j, j + columns), "violet", 0.9)
    trio.part("C", (i, i + rows), (j, j + columns), text="CTA")
    trio.side("A", "left", str(rows), (i, i + rows))
    trio.side("B", "above", str(columns), (j, j + columns))
    trio.side("A", "below", str(depth), (p, p + depth), "violet")
    y = trio.place("C").y + trio.place("C").h + 38
    size = (rows*depth + depth*columns) * 4
    pen.text(0, y, f"shared memory: {rows} x {depth} of A and {depth} x {columns} of B, {size:,} bytes", 0, "violet")
    return pen


def addresses(title: str, buffer: int, offset: int) -> Svg:
    """An offset into two buffers of a power of two of bytes, in bits."""
    pen, size, bits = Svg(title, 530), 25, (2*buffer).bit_length() + 2
    switch = buffer.bit_length() - 1
    rows = [("begin", 0), ("buffer 0", offset), (f"^ {buffer}", buffer), ("buffer 1", offset ^ buffer)]
    for i, (name, value) in enumerate(rows):
        y = i * (size + 12)
        pen.text(0, y + 17, name, 12)
        for bit in range(bits):
            x = 78 + (bits - 1 - bit) * size
            high = bit > switch
            hue, shade = ("red", 0.45) if bit == switch else ("edge", 0.5) if high else ("blue", 0.15)
            pen.rect(x, y, size, size, hue, shade, "edge", 0.7)
            digit = "*" if high and i != 2 else str(value >> bit & 1)
            pen.text(x + size/2, y + 17, digit, 13, anchor="middle", mono=True)
            if not i:
                pen.text(x + size/2, -5, str(bit), 0, "soft", "middle")
    y = 4 * (size + 12) + 12
    pen.text(78, y, f"* as in the address of the array, a multiple of {2*buffer:,}", 0, "soft")
    pen.text(78, y + 18, f"bit {switch} = {buffer:,} bytes, one buffer", 0, "red")
    return pen


def warps(title: str) -> Svg:
    """The CTA's tile of step 9, by the warps that compute it."""
    from tilewright.lab.ladder.gpu06_padded import L
    from tilewright.lab.ladder.gpu09_warps import THREADS, WARP_M, WARP_N, blocks
    pen, unit, depth = Svg(title, 480), 2.7, 8
    trio = Trio(pen, L, L, depth, unit, gap=20)
    trio.matrices(named=False)
    for warp in range(THREADS // 32):
        rows, columns = blocks(32 * warp)
        i, j = rows[0], columns[0]
        last = warp == THREADS // 32 - 1
        trio.part("C", (i, i + WARP_M), (j, j + WARP_N), ROUND[warp % len(ROUND)], 0.5 if last else 0.15,
                  text=f"warp {warp}")
        if last:
            trio.part("A", (i, i + WARP_M), (3, 4), "red", 0.9)
            trio.part("B", (3, 4), (j, j + WARP_N), "red", 0.9)
            trio.side("A", "left", f"{WARP_M}", (i, i + WARP_M), "red")
            trio.side("B", "above", f"{WARP_N}", (j, j + WARP_N), "red")
    trio.side("C", "right", str(L))
    trio.side("C", "below", f"{L}, of {THREADS} threads")
    return pen


def thread_lanes(title: str) -> Svg:
    """A warp's tile of step 9: which lane has which 4 x 4 elements."""
    from tilewright.lab.ladder.gpu09_warps import WARP_M, WARP_N, blocks
    pen, unit, chosen = Svg(title, 560), 8, 0
    trio = Trio(pen, WARP_M, WARP_N, 1, unit, gap=14)
    trio.matrices(named=False, shade=0.06)
    for lane in range(32):
        rows, columns = blocks(lane)
        for i in rows:
            for j in columns:
                hue, shade = ("red", 0.55) if lane == chosen else ("green", 0.1 + 0.1 * (lane // 16))
                trio.part("C", (i, i + 4), (j, j + 4), hue, shade, text=str(lane), size=12)
        if lane == chosen:
            for i in rows:
                trio.part("A", (i, i + 4), None, "red", 0.8)
            for j in columns:
                trio.part("B", None, (j, j + 4), "red", 0.8)
    trio.cut("A", 4)
    trio.cut("B", 0, 4)
    c = trio.place("C")
    pen.line(c.x, c.y + c.h/2, c.x + c.w, c.y + c.h/2, "ink", 1.6)
    pen.line(c.x + c.w/2, c.y, c.x + c.w/2, c.y + c.h, "ink", 1.6)
    trio.side("C", "right", str(WARP_M))
    trio.side("C", "below", str(WARP_N))
    return pen


def levels(title: str) -> Svg:
    """C, the CTA's tile, the warp's and the thread's, each the part of the one before."""
    from tilewright.lab.ladder.gpu06_padded import L, S
    from tilewright.lab.ladder.gpu09_warps import WARP_M, WARP_N, blocks
    pen = Svg(title, 680)
    warp, lane = 6, 9
    rows, columns = blocks(32*warp + lane)
    top, left = (min(blocks(32*warp + l)[side][0] for l in range(32)) for side in (0, 1))
    size = 190

    def picture(at: int, name: str, m: int, n: int, k: int, part: Rect | None, words: str) -> Trio:
        unit = size / max(m, n)
        trio = Trio(pen, m, n, k, unit, x=at % 2 * 320, y=at // 2 * 330, gap=10)
        trio.matrices(named=at == 0)
        place = trio.place("C")
        pen.text(place.x, place.y + place.h + 20, name, 14, bold=True)
        pen.text(place.x, place.y + place.h + 38, words, 0, "soft")
        if part:
            j, i, wide, high = part
            for letter, r, c in (("C", (i, i + high), (j, j + wide)), ("A", (i, i + high), None),
                                 ("B", None, (j, j + wide))):
                trio.part(letter, r, c, "violet" if letter == "C" else "", 0.5)
        return trio
    first = picture(0, "C", CTAS*L, CTAS*L, 24*S, Rect(2*L, L, L, L), f"a CTA: {L} x {L}, k in steps of {S}")
    first.cut("C", L, L)
    second = picture(1, "the CTA's tile", L, L, S, Rect(left, top, WARP_N, WARP_M), f"a warp: {WARP_M} x {WARP_N}")
    second.cut("C", WARP_M, WARP_N)
    third = picture(2, "the warp's tile", WARP_M, WARP_N, 1, None, "a thread: 4 parts of 4 x 4")
    for i in rows:
        third.part("A", (i - top, i - top + 4), None, "pink", 0.8)
        for j in columns:
            third.part("C", (i - top, i - top + 4), (j - left, j - left + 4), "pink", 0.8)
    for j in columns:
        third.part("B", None, (j - left, j - left + 4), "pink", 0.8)
    third.cut("C", 4, 4)
    fourth = picture(3, "the thread's registers", 8, 8, 1, None, f"64 sums, 8 of A, 8 of B: lane {lane} of warp {warp}")
    for letter in "ABC":
        fourth.part(letter, hue="pink", shade=0.3)
        fourth.cut(letter, 1, 1)
    return pen
