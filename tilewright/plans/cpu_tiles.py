"""Register tiles of CPU kernels that are worth a try, by the number of vector registers, best first.

Rows of these tables hold for every chip with these registers; figures are those of a Zen 4 (L1d 32 KiB, 8 ways;
2026-11-21, f32), which `tilewright bench tiles` and `tilewright tune` measure. The rows say what is worth trying; which
is best for one problem on one chip the tuner finds.
"""
from __future__ import annotations

from typing import Any

from tilewright.targets.cpu import CpuTarget

# registers: (mr, vectors). 14x2 leaves the most rows to balance; 9x3 and 6x4 load less per multiply-add.
# 29: AArch64, where LLVM wants three registers for itself. 16: 6x2 is the article's 16x6.
TILES: dict[int, tuple] = {
    32: ((14, 2), (13, 2), (12, 2), (9, 3), (8, 3), (6, 4)),
    29: ((8, 3), (13, 2), (6, 4)),
    16: ((6, 2), (5, 2), (4, 3)),
}
# What packed plans use instead, by maker. On a Zen 4, 9x48 (8x48, 6x64) is 1 % faster than 14x32 from n = 2048 on, as
# fast below, in f32 and f64: it reads B in longer runs. On an Intel with two FMA units 14x32 was faster by 3 to 8 %.
PACKED: dict[tuple[str, int], tuple] = {("AMD", 32): ((9, 3), (14, 2), (6, 4), (8, 3))}
# (mr, vectors, kc). Rows of B pass by in runs as wide as the tile, kc of them at a time, and C is re-read k/kc times
# from L1 and L2. On a Zen 5, m = 8 16 32 64 against 4096 x 4096: 80 116 123 117 GFLOP/s by 8x3 and 32, 86 115 146 161
# by 9x3 and 128, 72 105 119 138 by 6x4; on a Xeon 6x4 and 32 is the fastest where B stays in L2.
FEW_ROWS: dict[int, tuple] = {32: ((9, 3, 128), (6, 4, 32), (6, 4, 64)), 29: ((8, 3, 128), (6, 4, 64)),
                              16: ((4, 3, 32), (6, 2, 64))}
# By maker, (mr, vectors, kc) of what is multiplied in place by blocks of k, whose panels of B stay in L1: matrices with
# few rows or columns, too little for packing to pay (1.05 to 1.16 of the time on a Xeon).
IN_BLOCKS: dict[tuple[str, int], tuple] = {("Intel(R)", 32): ((14, 2, 64), (9, 3, 64), (6, 4, 64))}
MOST_IN_BLOCKS = 512
MOST_ROWS = 64
TALLEST = 14            # rows of a tile in a semiring
# (mr, vectors) of f64 on more than two threads, and the depth: C, which they read and write once for each block of k,
# is what memory has to bring. 4096^3 on 16 and 32 vCPUs of a Xeon: 0.88 and 1.00 of MKL, by 14x16 0.84 and 0.95.
DEEP: dict[int, tuple] = {32: ((9, 3),), 29: (), 16: ()}
DEEPEST = 1376
STREAMED = 4            # rows of C up to which STREAM_DEPTH has plans
# (mr, vectors). A's rows are often a power of two apart, so that all of a panel's lines fall into one set of L1: fewer
# rows than L1 has ways. n = 16 with 14x2 gave 59 GFLOP/s, with 6x4 98.
FEW_COLUMNS: dict[int, tuple] = {32: ((6, 4),), 29: ((6, 4),), 16: ((6, 2), (4, 3))}
MOST_COLUMNS = 128
# (rows of C, rows of B at a time) for kernels/cpu/skinny.py. On a Zen 5, 8 rows of B at a time read 30 GB/s, 4 read 34.
STREAM_DEPTH: dict[int, tuple] = {
    32: ((1, 4), (2, 4), (3, 4), (4, 4)), 29: ((1, 4), (2, 4), (3, 4), (4, 4)), 16: ((1, 8), (2, 4), (3, 4), (4, 2))}
# (mr, vectors) for kernels/cpu/complex_in_place.py, which has two sums for each row and vector: by most vectors of C's
# rows first.
COMPLEX_TILES: dict[int, tuple] = {32: ((4, 3), (7, 2), (8, 1)), 29: ((4, 3), (6, 2), (8, 1)), 16: ((3, 2), (6, 1))}
# (columns of C, rows at a time) for kernels/cpu/skinny.py: as many as leave registers for all sums (plans/cpu.dot_sums)
DOT_ROWS: dict[int, tuple] = {
    32: ((1, 10), (2, 8), (3, 6), (4, 6), (5, 4), (6, 3), (7, 3), (8, 2)),
    29: ((1, 8), (2, 8), (3, 6), (4, 5), (5, 4), (6, 3), (7, 2), (8, 2)),
    16: ((1, 6), (2, 5), (3, 4), (4, 2), (5, 1), (6, 1), (7, 1))}
# (mr, nr) for kernels/cpu/dot_tiles.py, which loads mr + nr vectors for mr * nr multiply-adds, and the fewest rows and
# columns for it: fewer go by DOT_ROWS, in the same time on a Zen 4.
FEWEST_TILED = 4
DOT_TILES: dict[int, tuple] = {32: ((6, 4), (5, 5)), 29: ((6, 4), (5, 4)), 16: ((4, 3), (3, 4))}
# For kernels/cpu/complex_rows.py: the most columns of dots, columns at a time of more, vectors at a time of stream
COMPLEX_ROW: dict[int, tuple] = {32: (12, 8, 4), 29: (12, 8, 4), 16: (6, 4, 4)}


def packed_tiles(target: CpuTarget) -> Any:
    """Register tiles for packed plans on this chip, best first."""
    return PACKED.get(_chip(target), tiles_of(target, TILES))


def tiles_in_blocks(target: CpuTarget) -> Any:
    """Register tiles and depths of blocks for what is multiplied in place by blocks of k, where that was measured."""
    return IN_BLOCKS.get(_chip(target), ())


def _chip(target: CpuTarget) -> tuple[str, int]:
    return target.model.split()[0] if target.model else "", target.tile_registers


def tiles_of(target: CpuTarget, table: dict[int, Any]) -> Any:
    """The row of a table for this target's registers."""
    return table[target.tile_registers]
