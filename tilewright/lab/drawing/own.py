"""Figures that no source has: registers of NVIDIA's matrix instructions, a swizzle, packed panels, number formats."""
from __future__ import annotations

from collections.abc import Mapping

from tilewright.atoms.nvidia import mma
from tilewright.lab.drawing import bits, lanes
from tilewright.lab.drawing.figure import Gallery
from tilewright.lab.drawing.pen import DENSE, ROUND, Svg
from tilewright.lab.drawing.pieces import Cell, grid

GALLERY = Gallery("tilewright")
add, figure = GALLERY.add, GALLERY.figure


add("mma", "Registers of mma.sync.m16n8k16, bf16",
    "The lane that holds each element of A, B and D; lane 0 is red. Four lanes share a row of A or a column of B, "
    "two neighbours of it in each register.",
    lambda _: lanes.layouts(mma("bf16", "bf16", "f32", 16, 8, 16)))


@figure("wgmma", "Registers of wgmma.m64n32k16, bf16",
        "The thread of the warpgroup that holds each element of D; thread 0 is red. Each warp has 16 rows, as mma.sync "
        "has them; A and B are in shared memory.")
def wgmma(title: str) -> Svg:
    from tilewright.atoms.wgmma import ROWS_WARP, WARPS, Wgmma
    atom, size = Wgmma(32), 19
    held = atom.sums
    pen = Svg(title, 680, readable=DENSE)

    def cell(row: int, column: int) -> Cell:
        warp, inside = divmod(row, ROWS_WARP)
        thread = held.where[0, inside, column][0] + 32*warp
        return Cell("red", 0.7, "0") if not thread else Cell(ROUND[warp], 0.12 + 0.12 * (inside // 8),
                                                             str(thread) if column % 2 == 0 else "")
    grid(pen, 0, 0, ROWS_WARP * WARPS, atom.n, size, cell, ticks=(8, 8), text=10, name="D", loose=True,
         note=f"64 x {atom.n} {held.format}, {held.elements} in each thread", hue="green")
    for warp in range(WARPS):
        pen.text(atom.n*size + 8, (warp + 0.5)*ROWS_WARP*size, f"warp {warp}", 13, ROUND[warp], bold=True)
    return pen


@figure("swizzle", "Rows of shared memory with their pieces permuted",
        "Eight rows of 128 bytes in pieces of 16, in each the step of k that it holds: as they are, and by the "
        "128-byte swizzle of TMA and wgmma. One step of k is marked in all rows: in four banks before, in 32 after.")
def swizzle(title: str) -> Svg:
    from tilewright.atoms.wgmma import PIECE, ROWS, swizzled
    pen, width, size, chosen = Svg(title, 560), 128, 33, 2
    pieces = range(width // PIECE)
    for x, kind in ((0, 0), (len(pieces) * size + 34, width)):
        there = {swizzled(row*width + piece*PIECE, kind): piece for row in range(ROWS) for piece in pieces}

        def cell(row: int, column: int, there: dict[int, int] = there) -> Cell:
            piece = there[row*width + column*PIECE]
            return Cell("red" if piece == chosen else ROUND[piece % 8], 0.75 if piece == chosen else 0.15, str(piece))
        grid(pen, x, 20, ROWS, len(pieces), size, cell, high=24, text=12)
        for column in pieces[::2]:
            pen.text(x + column*size, 15, f"bank {column * PIECE // 4}", 0, "soft")
        pen.text(x, -4, "swizzled" if kind else "as they are", 14, bold=True)
        banks = {(at % width) // 4 + word for at, piece in there.items() if piece == chosen for word in range(4)}
        pen.text(x, 20 + ROWS*24 + 18, f"k = {chosen} of 8 rows: {len(banks)} banks", 13, "green" if kind else "red")
    return pen


@figure("panels", "Panels of A and B, before and after packing",
        "Blocks of A and B, and in each cell where packing puts the element: a panel of A is stored by columns, a "
        "panel of B by rows, so that the kernel reads both from begin to end. Zeros fill the last panel.")
def panels(title: str) -> Svg:
    from tilewright.lab.drawing.records import packed
    pen, y = Svg(title, 620), 0.0
    for name, hue, rows, columns in (("A", "blue", 9, 8), ("B", "orange", 5, 20)):
        order, panel, count = packed(name, rows, columns)
        size = 27.0 if name == "A" else 29.0
        many = count // (panel * (columns if name == "A" else rows))

        def cell(r: int, c: int, order: Mapping[tuple[int, int], int] = order, panel: int = panel,
                 by_rows: bool = name == "A") -> Cell:
            return Cell(ROUND[(r if by_rows else c) // panel], 0.3, str(order[r, c]))
        grid(pen, 0, y, rows, columns, size, cell, high=22, text=11, name=f"{name}, {rows} x {columns}", hue=hue)
        y += rows*22 + 20
        pen.text(0, y, f"{many} panels of {panel} {'rows' if name == 'A' else 'columns'}: {count} numbers in memory, "
                 f"{count - rows*columns} of them zeros", 13, "soft")
        y += 44
    return pen


add("formats", "Number formats",
    "The bits of every format, to one scale, and the range from its smallest positive to its largest number.",
    lambda _: bits.table())
