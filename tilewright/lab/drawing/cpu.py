"""Figures of the article on CPUs, from the ladder's tiles, plans and chips."""
from __future__ import annotations

from tilewright.lab.drawing.figure import Gallery
from tilewright.lab.drawing.pen import Svg
from tilewright.lab.drawing.pieces import Trio

GALLERY = Gallery("cpu")
figure = GALLERY.figure
CHIP = "x86-avx2"               # what the article measures: 16 registers of 8 floats


@figure("matmul_kernel", "C is computed tile by tile",
        "C cut into register tiles, one of them marked, with the rows of A and the columns of B that it needs.")
def matmul_kernel() -> Svg:
    from tilewright import targets
    from tilewright.lab.ladder.cpu2_registers import tiling
    tile = tiling(targets.target(CHIP), "f32")
    m, n, k, i, j = 5*tile.MR, 4*tile.NR, 30, 2*tile.MR, 2*tile.NR
    pen = Svg("C is computed tile by tile", width=480)
    trio = Trio(pen, m, n, k, 4.2)
    trio.matrices()
    trio.cut("C", tile.MR, tile.NR)
    trio.part("A", rows=(i, i + tile.MR))
    trio.part("B", columns=(j, j + tile.NR))
    trio.part("C", (i, i + tile.MR), (j, j + tile.NR))
    trio.side("A", "left", f"{tile.MR} rows", (i, i + tile.MR))
    trio.side("B", "above", f"{tile.NR} columns", (j, j + tile.NR))
    trio.side("A", "below", "k")
    return pen
