"""Attention's products by AMX: tiles of bf16 in place of registers, on the same strips.

    scores[keys, lanes] = K Q       A: rows of keys as they are staged     B: the strip's queries, pairs in words
    O[size, lanes] += V P           A: values, turned                      B: powers, pairs in words, as they are stored

Four tiles of sums, two of A and two of B: 32 keys (or numbers of a value) by 32 lanes. Blocks have whole groups of 32
keys: scores of keys that do not exist are masked, so that their powers are 0, and their values are 0. Values lie
[group][number of a value][pair of keys], a tile in one piece.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.ir import Kernel, Value, i32, i64, vec
from tilewright.ir.ops.x86 import TileRegisters
from tilewright.kernels.cpu import attention_parts as parts
from tilewright.kernels.cpu.attention_parts import Strip
from tilewright.plans.cpu_attention import TILE_KEYS

SIDE = 16                   # rows of a tile, and words of one
A, B = 4, 6                 # the first tiles of A and of B; sums are 0 to 3


def dots(tiles: TileRegisters, rows: int, columns: int) -> None:
    """Sums[row, column] += A[row] B[column] of so many tiles of A and B that are loaded."""
    for i in range(rows):
        for v in range(columns):
            tiles.dot("bf16", 2*i + v, A + i, B + v)


def scores(k: Kernel, s: Strip, tiles: TileRegisters, n: Value, keys: Value, width: int, words: int, q: Value,
           to: Value) -> None:
    """to[key, lane] of n keys, whole groups: rows of so many words, `width` words apart, by the strip's queries."""
    with k.loop(n // TILE_KEYS) as g:
        row, line = keys + g*(TILE_KEYS*width), to + g*(TILE_KEYS*s.LANES)
        for t in range(4):
            tiles.zero(t)
        for w in range(0, words, SIDE):
            for i in range(2):
                tiles.load(A + i, row + (i*SIDE*width + w), width)
            for v in range(s.NV):
                tiles.load(B + v, q + (w*s.LANES + v*SIDE), s.LANES)
            dots(tiles, 2, s.NV)
        for i in range(2):
            for v in range(s.NV):
                tiles.store(2*i + v, line + (i*SIDE*s.LANES + v*SIDE), s.LANES)


def turned(k: Kernel, s: Strip, n: Value, pitch: int, columns: int, lines: Value, values: Value,
           stage: Callable[[Value, Value], None]) -> None:
    """Values of n keys as tiles. stage(j, to) stores words of keys j - 1 and j at row j // 2 % 16 of `lines`, where
    rows are `pitch` words apart, and of the last key with zeros."""
    with k.loop(k.ceil_div(n, TILE_KEYS)) as g:
        first = g * TILE_KEYS
        with k.when(first + TILE_KEYS > n), k.loop(k.constant(i64, SIDE*pitch // s.V)) as e:
            k.store(lines + e*s.V, k.constant(vec(i32, s.V), 0), 4*s.V)
        with k.loop(k.min(n - first, TILE_KEYS)) as j:
            stage(first + j, lines)
        parts.transposed(k, replace(s, NV=1), lines, pitch, columns, values + g*(columns*SIDE), i32)


def sums(k: Kernel, s: Strip, tiles: TileRegisters, n: Value, values: Value, columns: int, powers: Value, o: Value
         ) -> None:
    """o[number of a value, lane] += values by powers of n keys, whole groups."""
    for first in range(0, columns // SIDE, 2):
        rows = min(columns // SIDE - first, 2)
        places = {2*i + v: o + ((first + i)*SIDE*s.LANES + v*SIDE) for i in range(rows) for v in range(s.NV)}
        for t, at in places.items():
            tiles.load(t, at, s.LANES)
        with k.loop(n // TILE_KEYS) as g:
            for i in range(rows):
                tiles.load(A + i, values + (g*(columns*SIDE) + (first + i)*SIDE*SIDE), SIDE)
            for v in range(s.NV):
                tiles.load(B + v, powers + (g*(SIDE*s.LANES) + v*SIDE), s.LANES)
            dots(tiles, rows, s.NV)
        for t, at in places.items():
            tiles.store(t, at, s.LANES)
