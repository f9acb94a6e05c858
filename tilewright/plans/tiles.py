"""Register tiles by the number of vector registers: what plans are made from, best first.

Rows hold for every chip with these registers; figures from a Zen 4 (L1d 32 KiB, 8 ways; 2026-11-21, f32), where
`tilewright bench tiles` and `tilewright tune` repeat them. What is best on one chip for one problem is the tuner's to
find; the rows here only say what is worth trying.
"""
from __future__ import annotations

from typing import Any

from tilewright.targets.base import CpuTarget

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
# from L1 and L2: m = 8 with 14x2 and kc = 512 gave 0.84 of the best peer, with 8x3 and 32 2.7. On a Zen 5, m = 8 16 32
# 64 against 4096 x 4096: 80 116 123 117 GFLOP/s by 8x3 and 32, 86 115 146 161 by 9x3 and 128, 72 105 119 138 by 6x4.
FEW_ROWS: dict[int, tuple] = {32: ((9, 3, 128), (6, 4, 64)), 29: ((8, 3, 128), (6, 4, 64)),
                              16: ((4, 3, 32), (6, 2, 64))}
MOST_ROWS = 64
# (mr, vectors). A's rows are often a power of two apart, so that all of a panel's lines fall into one set of L1: fewer
# rows than L1 has ways. n = 16 with 14x2 gave 59 GFLOP/s, with 6x4 98.
FEW_COLUMNS: dict[int, tuple] = {32: ((6, 4),), 29: ((6, 4),), 16: ((6, 2), (4, 3))}
MOST_COLUMNS = 128
# (rows of C, rows of B at a time) for kernels/cpu/stream.py. On a Zen 5, 8 rows of B at a time read 30 GB/s, 4 read 34.
STREAM_DEPTH: dict[int, tuple] = {
    32: ((1, 4), (2, 4), (3, 4), (4, 4)), 29: ((1, 4), (2, 4), (3, 4), (4, 4)), 16: ((1, 8), (2, 4), (3, 4), (4, 2))}
# (columns of C, rows at a time) for kernels/cpu/dots.py
DOT_ROWS: dict[int, tuple] = {
    32: ((1, 8), (2, 8), (3, 6), (4, 6)), 29: ((1, 8), (2, 8), (3, 6), (4, 5)), 16: ((1, 6), (2, 5), (3, 4), (4, 2))}
SHORT = 32              # k up to which neither operand is read often enough to be worth packing


def packed_tiles(target: CpuTarget) -> Any:
    """Register tiles for packed plans on this chip, best first."""
    return PACKED.get((target.model.split()[0] if target.model else "", target.tile_registers), tiles_of(target, TILES))


def tiles_of(target: CpuTarget, table: dict[int, Any]) -> Any:
    """The row of a table for this target's registers."""
    return table[target.tile_registers]
