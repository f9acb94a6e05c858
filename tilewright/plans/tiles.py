"""Register tiles (mr, vectors) per vector register file, best first, from `tilewright bench tiles`.

The first is what plans use; the others are candidates of the tuner.
"""
from __future__ import annotations

# registers → tiles. Every one fits mr*v + v + 1 registers. 32: 14 rows of 2 vectors beat 9x3 and 6x4, which load less per
# multiply-add but leave fewer rows to balance. 16: 6x2 is the article's 16x6.
TILES = {
    32: ((14, 2), (13, 2), (12, 2), (9, 3), (8, 3), (6, 4)),
    16: ((6, 2), (5, 2), (4, 3), (3, 4)),
}
MOST_DOTS = 4               # columns up to which dot products along k are considered
DOT_ROWS = {32: 6, 16: 3}   # rows at a time: independent streams of A
