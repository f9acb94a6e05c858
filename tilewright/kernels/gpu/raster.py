"""In which order CTAs take the tiles of C."""
from __future__ import annotations

from tilewright.ir import Kernel, Value


def grouped(k: Kernel, index: Value, tiles_m: Value, tiles_n: Value, GROUP_M: int) -> tuple[Value, Value]:
    """(row, column) of tile `index`: GROUP_M rows of tiles are finished column by column before the next rows begin,
    so that the CTAs that run together share rows of A and columns of B in L2."""
    per_group = tiles_n*GROUP_M
    first = index // per_group * GROUP_M
    height = k.min(tiles_m - first, GROUP_M)
    inside = index % per_group
    return first + inside % height, inside // height


def tail(k: Kernel, index: Value, whole: Value, parts: Value) -> tuple[Value, Value, Value]:
    """(tile, part, parts of it) of CTA `index`: the first `whole` CTAs have a tile each, the others a part of one.

    With as many whole tiles as fill all multiprocessors some number of times, the tiles left over are divided, so that
    the last round is as short as the work in it: 288 tiles on 132 multiprocessors take 2.2 rounds instead of 3.
    """
    beyond = index - whole
    divided = beyond >= 0
    tile = k.select(divided, whole + k.max(beyond, 0) // parts, index)
    return tile, k.select(divided, k.max(beyond, 0) % parts, 0), k.select(divided, parts, 1)


def by_die(k: Kernel, index: Value, total: Value, DIES: int) -> Value:
    """Which tile workgroup `index` of `total` takes, on a chip that deals workgroups out to its DIES dies in turn: each
    die, which has an L2 of its own, gets tiles that follow each other."""
    die, place = index % DIES, index // DIES
    return die*(total // DIES) + k.min(die, total % DIES) + place
