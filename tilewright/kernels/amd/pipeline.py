"""In which order tiles of k come into LDS and are multiplied: a tile is on its way while the one before is multiplied.

What comes along is a list of `Stream`s: A, B, and their scales if they have any.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tilewright.ir import Kernel, Value, i32

Multiply = Callable[[Value], None]          # the tile in LDS at this address


class Stream(Protocol):
    """Tiles of k of one matrix, in turn. `more`: whether there is another tile after this one; if not, the same comes
    again, which nobody will use."""
    SIZE: int                                           # bytes of LDS that a tile takes

    def fetch_some(self, steps: Value) -> None: ...     # load the first tile, of which so many steps are there
    def fetch(self, more: Value) -> None: ...           # load the next tile
    def stash(self, smem: Value) -> None: ...           # what was loaded last goes to LDS
    def turn(self) -> None: ...                         # the tile before is not needed any more
    def start(self, smem: Value, more: Value) -> None: ...      # load the next tile straight into LDS

    @property
    def COPIES(self) -> int: ...                        # that `start` makes


def through_registers(k: Kernel, streams: list[Stream], smem: Value, tiles: Value, short: Value, multiply: Multiply,
                      mix: Callable[[], None] | None = None) -> None:
    """Two tiles in LDS and one in registers. `short`: steps of k in the first of `tiles`, which are at least one.

    `mix`: for streams that compute as they stash. That comes after the products then, so that LLVM can put it between
    matrix instructions (it moves no read of LDS before a write), and `mix` tells it how.
    """
    STAGE = sum(x.SIZE for x in streams)
    _first(k, streams, smem, short)
    with k.when(tiles > 1):
        for x in streams:
            x.fetch(tiles > 2)
    k.barrier()
    stage = k.variable(i32, 0)
    with k.loop(tiles - 1) as tile:
        now = stage.get()
        if mix:
            multiply(smem + now)
        for x, at in _places(streams, smem + (STAGE - now)):
            x.stash(at)
        more = tile + 3 < tiles
        for x in streams:
            x.fetch(more)
        if mix:
            mix()
        else:
            multiply(smem + now)
        for x in streams:
            x.turn()
        k.barrier()
        stage.set(STAGE - now)
    multiply(smem + stage.get())


def direct(k: Kernel, streams: list[Stream], smem: Value, tiles: Value, short: Value, multiply: Multiply,
           STAGES: int) -> None:
    """STAGES tiles in LDS, at least two: one is multiplied, the others are there or on their way past the registers."""
    STAGE = sum(x.SIZE for x in streams)
    PENDING = (STAGES - 2) * sum(x.COPIES for x in streams)     # of the tiles after the next one
    _first(k, streams, smem, short)
    with k.when(tiles > 1):
        for ahead in range(1, STAGES - 1):
            for x, at in _places(streams, smem + ahead*STAGE):
                x.start(at, tiles > ahead + 1)
    k.lds_wait(PENDING)
    k.barrier()
    stage, last = k.variable(i32, 0), (STAGES - 1)*STAGE
    with k.loop(tiles - 1) as tile:
        now = stage.get()
        before = k.select(now.equals(0), k.constant(i32, last), now - STAGE)
        for x, at in _places(streams, smem + before):
            x.start(at, tile + STAGES < tiles)
        multiply(smem + now)
        for x in streams:
            x.turn()
        k.lds_wait(PENDING)
        k.barrier()
        stage.set(k.select(now.equals(last), k.constant(i32, 0), now + STAGE))
    multiply(smem + stage.get())


def _first(k: Kernel, streams: list[Stream], smem: Value, short: Value) -> None:
    for x in streams:
        x.fetch_some(short)
    for x, at in _places(streams, smem):
        x.stash(at)
    for x in streams:
        x.turn()


def _places(streams: list[Stream], smem: Value) -> list[tuple[Stream, Value]]:
    """Where each of them has its part of a stage."""
    found, offset = [], 0
    for x in streams:
        found.append((x, smem + offset))
        offset += x.SIZE
    return found
