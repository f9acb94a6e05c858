"""Complex matrices as real ones, and times a factor: what a GPU does beside the real product that a complex one
becomes.

    target[g, i, j] = factor * source[g, i, j], or of its conjugate

as complex numbers, or each as the two rows and two columns by which a real product multiplies by it:

     re  im
    -im  re
"""
from __future__ import annotations

from tilewright.ir import Function, Kernel, f32, f64, i64, ptr, vec

PARTS = {"c64": f32, "c128": f64}
COLUMNS, ROWS = 32, 8       # of a workgroup


def emit_complex(FORMAT: str = "c64", EXPANDED: bool = False, WARP: int = 32) -> Function:
    """Strides in real numbers, of any sign. `sign`: 1, or -1 for the conjugate. Source and target may be the same
    matrices, unless EXPANDED. The grid covers the columns along x; rows are dealt out along y, matrices along z, as
    many as it has there (`depth`)."""
    R = PARTS[FORMAT]
    k = Kernel(f"complex_{FORMAT}{'_expanded'*EXPANDED}", threads=(COLUMNS, ROWS), warp=WARP, noalias=False,
               batch=i64, depth=i64, rows=i64, columns=i64, real=R, imaginary=R, sign=R, source=ptr(R), sss=i64,
               rss=i64, css=i64, target=ptr(R), sst=i64, rst=i64, cst=i64)
    batch, depth, rows, columns, real, imaginary, sign, source, sss, rss, css, target, sst, rst, cst = k.args
    (x, y), (block_x, block_y) = k.thread, k.block
    j = k.cast(block_x*COLUMNS + x, i64)
    with (k.when(j < columns), k.loop(batch, start=k.cast(k.block_z, i64), step=depth) as g,
          k.loop(rows, start=k.cast(block_y*ROWS + y, i64), step=k.cast(k.grid[1]*ROWS, i64)) as i):
        number = k.load(source + (g*sss + i*rss + j*css), vec(R, 2), align=R.bytes)
        re, im = number[0], number[1]*sign
        # a real factor meets each part alone: inf times 1 has no nan in it
        turned_re, turned_im = k.fma(re, real, -(im*imaginary)), k.fma(im, real, re*imaginary)
        alone = imaginary == 0
        re, im = k.select(alone, re*real, turned_re), k.select(alone, im*real, turned_im)
        at = target + (g*sst + i*rst*(1 + EXPANDED) + j*cst)
        k.store(at, k.pack(re, im), align=R.bytes)
        if EXPANDED:
            k.store(at + rst, k.pack(-im, re), align=R.bytes)
    return k.function


def grid(batch: int, rows: int, columns: int) -> tuple[int, int, int]:
    """Workgroups for so many matrices."""
    return -(-columns // COLUMNS), min(-(-rows // ROWS), 65535), min(batch, 65535)
