"""The main loop of a GEMM on Matrix Cores: tiles of k come into LDS while the tile before is multiplied.

Roles       All waves do everything: each copies its share of every tile and multiplies its part of C. A tile's products
            come in GROUPS (`Products`); what is copied is a list of `Stream`s: A, B, and their scales if they have any.

Pipelines   LDS, stage t % STAGES   tile t of every stream. `through_registers` has 2 stages, filled by stores; `direct`
                                    has STAGES, filled by copies past the registers. Free again at the barrier before
                                    the last group of tile t: by then every wave has that group's operands in
                                    registers.
            registers of a stream   the tile after the one in LDS, in `through_registers` only: loaded from memory as
                                    soon as they have been stored to LDS.
            operands                of one group, in registers, read one group ahead; those of a tile's first group, and
                                    all its scales, after the barrier in the tile before (`Ahead`).

Timeline    one tile t of `through_registers` or `direct`; L = the last group, S = STAGES

            registers   store(t+1), load(t+2) .............. |
            copies      second half of t+S-1 ..... wait(t+1) |         | first half of t+S ...
            barrier                                          | free(t) |
            reads       group 1    group 2    ...    group L           | t+1: group 0
            products    group 0    group 1    ...    group L-1         | group L

With two stages, all copies of a tile start at once after the barrier; with more, half of them wait for the next tile's
first products, so that LDS has work while waves wait for their last reads.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol, TypeVar

from tilewright.ir import Kernel, Value, i32
from tilewright.ir.values import Variable

Operands = list[Value]
Do = Callable[[], None]
Read = Callable[[], Operands]                # operands, read from LDS


MOVING = ("salu", "valu")                   # instructions that LLVM's scheduler may take across others
LATENCY = 128                               # cycles of products behind a group's last read, in which it arrives


class Products(Protocol):
    """The products of a tile, in GROUPS, each of which is multiplied in so many PARTS; as a whole, or one by one."""
    GROUPS: int
    PARTS: int
    CYCLES: int                                                     # of an instruction

    def shifted(self, words: Operands) -> Operands: ...
    def read(self, at: Value, group: int) -> Operands: ...          # of the tile in LDS at this address
    def reads(self, at: Value, group: int) -> list[Read]: ...
    def words(self, at: Value) -> list[Read]: ...                   # of scales, for all groups
    def multiply(self, operands: Operands, group: int, part: int) -> None: ...
    def instructions(self, operands: Operands, group: int, part: int) -> list[Do]: ...


class Stream(Protocol):
    """Tiles of k of one matrix, in turn."""
    SIZE: int                                                       # bytes of LDS that a tile takes

    def load_first_tile(self, steps: Value) -> None: ...            # of which so many steps of k exist
    def stores_to_lds(self, smem: Value) -> list[list[Do]]: ...     # of the registers that were loaded last, in parts

    def release_tile(self) -> None:
        """The tile before has been multiplied."""
        return


class Buffered(Stream, Protocol):
    """One that goes through registers. `more`: whether there is another tile after this one; if not, the same comes
    again, and is not used."""

    def loads(self, more: Value) -> list[list[Do]]: ...             # of the next tile into registers, part by part


class Direct(Stream, Protocol):
    """One that is copied past the registers, but for its first tile."""
    COPIES: int                                         # that `start` makes, in a wave

    def start(self, smem: Value) -> list[Do]: ...       # copy the next tile straight into LDS, in this order
    def advance(self, more: Value) -> None: ...         # to the next tile, once that has been started


AnyStream = TypeVar("AnyStream", bound=Stream)


def through_registers(k: Kernel, streams: Sequence[Buffered], smem: Value, tiles: Value, short: Value,
                      products: Products) -> None:
    """Two tiles in LDS and one in registers. `short`: steps of k in the first of `tiles`, which are at least one."""
    STAGE = sum(x.SIZE for x in streams)
    _load_first_tile(k, streams, smem, short)
    with k.when(tiles > 1):
        _do(load for x in streams for part in x.loads(tiles > 2) for load in part)
    k.barrier()
    stage = k.variable(i32, 0)
    ahead = _read_ahead(k, products, smem)
    with k.loop(tiles - 1) as number:
        now = stage.get()
        more = number + 3 < tiles
        moves = [move for x, at in _stage_addresses(streams, smem + (STAGE - now))
                 for stores, loads in zip_longest(x.stores_to_lds(at), x.loads(more), fillvalue=())
                 for move in (*stores, *loads)]
        _tile(k, streams, products, ahead, smem + now, smem + (STAGE - now), moves=moves)
        stage.set(STAGE - now)
    _last_tile(k, products, ahead, smem + stage.get())


def direct(k: Kernel, streams: Sequence[Direct], smem: Value, tiles: Value, short: Value, products: Products,
           STAGES: int) -> None:
    """STAGES tiles in LDS, at least two: one is multiplied, the others are there or on their way past the registers.
    Reads, copies and products take turns in the order in which they are written here."""
    STAGE = sum(x.SIZE for x in streams)
    PENDING = (STAGES - 2) * sum(x.COPIES for x in streams)     # of the tiles after the next one
    HALVES = STAGES > 2
    held = [x for x in streams if not x.SIZE]                   # by registers

    def copies(at: Value) -> tuple[list[Do], list[Do]]:
        """Copies to be started at once, and later."""
        started = [copy for x, place in _stage_addresses(streams, at) if x.SIZE for copy in x.start(place)]
        half = (len(started) + 1) // 2 if HALVES else len(started)
        return started[:half], started[half:]

    def advance(tile: Value | int) -> None:
        """All copies of a tile have been started."""
        for x in streams:
            if x.SIZE:
                x.advance(tiles > tile + 1)
    _load_first_tile(k, streams, smem, short)
    with k.when(tiles > 1):
        for x in held:
            _do(x.start(smem))
            x.advance(tiles > 2)
        for tile in range(1, STAGES):
            first, others = copies(smem + tile*STAGE)
            _do(first)
            if tile < STAGES - 1 or not HALVES:
                _do(others)
                advance(tile)
    k.barrier()
    stage, end = k.variable(i32, 0), (STAGES - 1)*STAGE
    ahead = _read_ahead(k, products, smem)
    with k.loop(tiles - 1) as number:
        now = stage.get()
        next_tile = k.select(now == end, k.constant(i32, 0), now + STAGE)
        late: list[Do] = []
        if HALVES:
            late = copies(smem + k.select(now == 0, k.constant(i32, end), now - STAGE))[1]

        def wait(tile: Value = number + (STAGES - 1)) -> None:
            if HALVES:
                advance(tile)
            k.lds_wait(PENDING)

        def start(at: Value = smem + now) -> list[Do]:
            return [load for x in held for load in x.start(smem)] + copies(at)[0]
        _tile(k, streams, products, ahead, smem + now, smem + next_tile, late=late, wait=wait, copies=start)
        for x in held:
            x.advance(number + 3 < tiles)
        if not HALVES:
            advance(number + STAGES)
        stage.set(next_tile)
    _last_tile(k, products, ahead, smem + stage.get())
    k.lds_wait(0)                                               # no copy may outlive the workgroup


@dataclass
class Ahead:
    """What is in registers of a tile when its round begins: its first group's operands, and all its scales."""
    operands: list[Variable]
    scales: list[Variable]


def _read_ahead(k: Kernel, products: Products, at: Value) -> Ahead:
    return Ahead(*([k.variable(x.type, x) for read in reads for x in read()]
                   for reads in (products.reads(at, 0), products.words(at))))


def _tile(k: Kernel, streams: Sequence[Stream], products: Products, ahead: Ahead, at: Value, next_at: Value, *,
          moves: Sequence[Do] = (), late: Sequence[Do] = (), wait: Do | None = None,
          copies: Callable[[], list[Do]] = list) -> None:
    """Multiply the tile at `at`, in groups, and read ahead from the next one. Before the barrier come `moves` to where
    the next tile will be, `late` copies behind the last reads, and the wait for what is on its way there; after it
    `copies` to where this tile was."""
    AFTER = -(-LATENCY // products.CYCLES)
    before, after = _around_barrier(products)
    scales = products.shifted([x.get() for x in ahead.scales])
    operands = [x.get() for x in ahead.operands] + scales
    moved = copied = 0
    for group in range(1, products.GROUPS):
        coming: Operands = []
        reads = [_into(coming, read) for read in products.reads(at, group)]
        until, by = (-(-len(x)*group // (products.GROUPS - 1)) for x in (moves, late))
        _weave(k, _products(products, operands, group - 1), [*reads, *moves[moved:until]], AFTER, late[copied:by])
        operands, moved, copied = coming + scales, until, by
    _weave(k, _products(products, operands, products.GROUPS - 1, before), moves[moved:], AFTER, late[copied:])
    k.sched_fence("valu")                                       # waits and barriers are of the scalar unit
    if wait:
        wait()
    k.barrier()
    k.sched_fence()
    for x in streams:
        x.release_tile()
    coming, scales = [], []
    reads = [_into(scales, read) for read in products.words(next_at)]
    reads += [_into(coming, read) for read in products.reads(next_at, 0)]
    _weave(k, _products(products, operands, products.GROUPS - 1, after), _alternately(reads, copies()),
           0 if wait else AFTER)
    for register, value in zip(ahead.operands + ahead.scales, coming + scales, strict=True):
        register.set(value)


def _last_tile(k: Kernel, products: Products, ahead: Ahead, at: Value) -> None:
    scales = products.shifted([x.get() for x in ahead.scales])
    operands = [x.get() for x in ahead.operands] + scales
    for group in range(products.GROUPS):
        more = group + 1 < products.GROUPS
        coming = products.read(at, group + 1) if more else []
        for part in range(products.PARTS):
            products.multiply(operands, group, part)
        if more:
            k.sched_fence()
        operands = coming


def _do(list_of: Iterable[Do]) -> None:
    for action in list_of:
        action()


def _into(operands: Operands, read: Read) -> Callable[[], None]:
    return lambda: operands.extend(read())


def _around_barrier(products: Products) -> tuple[range, range]:
    """The parts of the last group that are multiplied before the barrier, and after it: a group that is not the only
    one is multiplied after it."""
    before = products.PARTS // 2 if products.GROUPS == 1 else 0
    return range(before), range(before, products.PARTS)


def _products(products: Products, operands: Operands, group: int, parts: range | None = None) -> list[Do]:
    return [x for part in (range(products.PARTS) if parts is None else parts)
            for x in products.instructions(operands, group, part)]


def _alternately(*lists: Sequence[Do]) -> list[Do]:
    return [x for row in zip_longest(*lists) for x in row if x]


def _weave(k: Kernel, instructions: Sequence[Do], others: Sequence[Do] = (), after: int = 0,
           late: Sequence[Do] = ()) -> None:
    """Others follow each instruction, spread evenly over all but `after` of them, and `late` ones those. LLVM moves
    across them only what computes in other units."""
    among = max(len(instructions) - after, 1)
    for some, filling in ((instructions[:among], others), (instructions[among:], late)):
        done = 0
        for number, instruction in enumerate(some, 1):
            instruction()
            k.sched_fence(*MOVING)
            until = -(-len(filling)*number // len(some))
            for other in filling[done:until]:
                other()
                k.sched_fence(*MOVING)
            done = until
        _do(filling[done:])                  # all of them if there are no instructions


def _load_first_tile(k: Kernel, streams: Sequence[Stream], smem: Value, short: Value) -> None:
    for x in streams:
        x.load_first_tile(short)
    for x, at in _stage_addresses(streams, smem):
        _do(store for part in x.stores_to_lds(at) for store in part)
    for x in streams:
        x.release_tile()


def _stage_addresses(streams: Sequence[AnyStream], smem: Value) -> list[tuple[AnyStream, Value]]:
    """Where each of them has its part of a stage."""
    addresses: list[tuple[AnyStream, Value]] = []
    offset = 0
    for x in streams:
        addresses.append((x, smem + offset))
        offset += x.SIZE
    return addresses
