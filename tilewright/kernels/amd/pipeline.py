"""In which order tiles of k come into LDS and are multiplied: a tile is on its way while the one before is multiplied.

What comes along is a list of `Stream`s: A, B, and their scales if they have any. What is done with a tile is `Products`
in groups, and the operands of a group are read from LDS before the group before is multiplied, so that nobody waits for
LDS. The first group of the next tile is no exception: once the last group's operands are in registers, this tile is not
needed any more, the waves meet at their barrier, and the last group is multiplied after it.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tilewright.ir import Kernel, Value, i32

Operands = list[Value]
Multiply = Callable[[Value], None]          # the tile in LDS at this address


MOVING = ("salu", "valu")                   # instructions that LLVM's scheduler may take from one group to another


class Products(Protocol):
    """Of a tile, in GROUPS, each of which is multiplied in so many PARTS."""
    GROUPS: int
    PARTS: int

    def read(self, at: Value, group: int) -> Operands: ...          # of the tile in LDS at this address
    def multiply(self, operands: Operands, group: int, part: int) -> None: ...


class Stream(Protocol):
    """Tiles of k of one matrix, in turn. `more`: whether there is another tile after this one; if not, the same comes
    again, which nobody will use."""
    SIZE: int                                           # bytes of LDS that a tile takes

    def fetch_some(self, steps: Value) -> None: ...     # load the first tile, of which so many steps are there
    def fetch(self, more: Value) -> None: ...           # load the next tile
    def stash(self, smem: Value) -> None: ...           # what was loaded last goes to LDS
    def turn(self) -> None: ...                         # the tile before is not needed any more


class Direct(Stream, Protocol):
    """One that also goes another way than through registers."""

    def start(self, smem: Value, more: Value) -> None: ...      # load the next tile straight into LDS

    @property
    def COPIES(self) -> int: ...                        # that `start` makes


AnyStream = TypeVar("AnyStream", bound=Stream)


def through_registers(k: Kernel, streams: Sequence[Stream], smem: Value, tiles: Value, short: Value,
                      products: Products) -> None:
    """Two tiles in LDS and one in registers. `short`: steps of k in the first of `tiles`, which are at least one."""
    STAGE = sum(x.SIZE for x in streams)
    _first(k, streams, smem, short)
    with k.when(tiles > 1):
        for x in streams:
            x.fetch(tiles > 2)
    k.barrier()
    stage = k.variable(i32, 0)
    ahead = [k.variable(x.type, x) for x in products.read(smem, 0)]
    with k.loop(tiles - 1) as tile:
        now = stage.get()

        def bring(next_tile: Value = smem + (STAGE - now), more: Value = tile + 3 < tiles) -> None:
            for x, at in _places(streams, next_tile):
                x.stash(at)
            for x in streams:
                x.fetch(more)

        last = _all_but_last(k, products, smem + now, [x.get() for x in ahead], bring)
        _half(k, products, last, 0)
        k.barrier()
        for x in streams:
            x.turn()
        coming = products.read(smem + (STAGE - now), 0)
        _half(k, products, last, 1)
        for register, value in zip(ahead, coming, strict=True):
            register.set(value)
        stage.set(STAGE - now)
    _multiply(products, _all_but_last(k, products, smem + stage.get(), [x.get() for x in ahead]),
              products.GROUPS - 1)


def in_turn(k: Kernel, streams: Sequence[Stream], smem: Value, tiles: Value, short: Value, multiply: Multiply,
            mix: Callable[[], None] | None = None) -> None:
    """The same where registers are scarce: operands are read when they are multiplied.

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


def direct(k: Kernel, streams: Sequence[Direct], smem: Value, tiles: Value, short: Value, products: Products,
           STAGES: int) -> None:
    """STAGES tiles in LDS, at least two: one is multiplied, the others are there or on their way past the registers.
    The place of a tile is free at the barrier before its last products, and taken at once. What stays in registers has
    no such place, and is loaded a tile less ahead."""
    STAGE = sum(x.SIZE for x in streams)
    PENDING = (STAGES - 2) * sum(x.COPIES for x in streams)     # of the tiles after the next one
    _first(k, streams, smem, short)
    with k.when(tiles > 1):
        for ahead in range(1, STAGES):
            for x, at in _places(streams, smem + ahead*STAGE):
                if x.SIZE or ahead < STAGES - 1:
                    x.start(at, tiles > ahead + 1)
    k.barrier()
    stage, end = k.variable(i32, 0), (STAGES - 1)*STAGE
    registers = [k.variable(x.type, x) for x in products.read(smem, 0)]
    with k.loop(tiles - 1) as tile:
        now = stage.get()
        after = k.select(now.equals(end), k.constant(i32, 0), now + STAGE)
        for x in streams:
            if not x.SIZE:
                x.start(smem, tile + STAGES < tiles)
        last = _all_but_last(k, products, smem + now, [x.get() for x in registers], FREE=MOVING)
        _half(k, products, last, 0, FREE=("salu",))
        k.lds_wait(PENDING)
        k.barrier()
        for x in streams:
            x.turn()
        coming = products.read(smem + after, 0)
        more = tile + (STAGES + 1) < tiles
        for x, at in _places(streams, smem + now):
            if x.SIZE:
                x.start(at, more)
        _half(k, products, last, 1)
        for register, value in zip(registers, coming, strict=True):
            register.set(value)
        stage.set(after)
    _multiply(products, _all_but_last(k, products, smem + stage.get(), [x.get() for x in registers]),
              products.GROUPS - 1)
    k.lds_wait(0)                                               # no copy may outlive the workgroup


def _all_but_last(k: Kernel, products: Products, at: Value, operands: Operands,
                  bring: Callable[[], None] | None = None, FREE: tuple[str, ...] = ()) -> Operands:
    """Multiply all groups of a tile but the last, from the first one's operands on; returns the last one's. `bring` is
    done between the first reads and what they are there for. FREE: what LLVM may move from one group to another."""
    for group in range(1, products.GROUPS):
        coming = products.read(at, group)
        if bring:
            k.sched_fence()
            if group == 1:
                bring()
        _multiply(products, operands, group - 1)
        k.sched_fence(*FREE)
        operands = coming
    if bring and products.GROUPS == 1:
        bring()
    return operands


def _multiply(products: Products, operands: Operands, group: int) -> None:
    for part in range(products.PARTS):
        products.multiply(operands, group, part)


def _half(k: Kernel, products: Products, operands: Operands, half: int, FREE: tuple[str, ...] = ()) -> None:
    """Of the last group: before and after the barrier. A group that is not the only one is multiplied after it."""
    before = products.PARTS // 2 if products.GROUPS == 1 else 0
    for part in (range(before, products.PARTS) if half else range(before)):
        products.multiply(operands, products.GROUPS - 1, part)
    k.sched_fence(*FREE)


def _first(k: Kernel, streams: Sequence[Stream], smem: Value, short: Value) -> None:
    for x in streams:
        x.fetch_some(short)
    for x, at in _places(streams, smem):
        x.stash(at)
    for x in streams:
        x.turn()


def _places(streams: Sequence[AnyStream], smem: Value) -> list[tuple[AnyStream, Value]]:
    """Where each of them has its part of a stage."""
    found: list[tuple[AnyStream, Value]] = []
    offset = 0
    for x in streams:
        found.append((x, smem + offset))
        offset += x.SIZE
    return found
