"""Who is told of everything that a simulated run does, as it happens: `simulator.run(..., observer=f)`.

A machine without an observer has none of what is here: accesses are WatchedAccess, and steps are wrapped, only if there
is somebody to tell.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.program import Function
from tilewright.ir.types import Pointer, TensorMap
from tilewright.simulator.access import Access
from tilewright.simulator.pattern import Cost, Pattern, granules, passes

if TYPE_CHECKING:
    from tilewright.ir.program import Line, Loop
    from tilewright.simulator.code import Code, Step
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine
    from tilewright.simulator.memory import Region

ARITHMETIC = ("fma", "mma")             # kinds of operations without effects that are told
ROLES = ("effect", "blocking")


@dataclass(frozen=True, eq=False)
class Where:
    """Where a pointer points, for each of an event's threads: elements of the pointer's type from the array's begin."""
    array: str
    at: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Event:
    """`what` happens at a line, for these `threads`, numbered through all CTAs of the grid (of a CPU's team, through
    the team):

    load, store     of memory. Thread threads[i] accesses `width` elements of `item` bytes from element at[i] of its
                    copy of the array on, those of `mask` [width, threads] if there is one; `value` [width, threads]
    copy            the same by a bulk copy or a product: elements `at` of `item` bytes, for all of the threads
                    together, `value` [elements]. `name` says "load" or "store"
    fma, mma        `operands`, and `results`, as they are held: [], [threads], or of vectors [length, threads or 1]
    loop, mark      a round of a loop begins, its index is `value`; k.mark(name, value)
    wake            they have waited at this line, and go on
    others          as the operation's kind: barrier, fence, mbarrier, "cp.async group" ... It begins. Its `name` is the
                    operation's, pointers among its operands are a Where, and tensor maps the names of their parameters

    The simulator lets all warps go on until each of them waits: that is a `round`.
    """
    what: str
    name: str
    line: Line
    function: str
    round: int
    threads: NDArray[np.int64]
    array: str = ""
    space: str = ""
    item: int = 0
    width: int = 0
    at: NDArray[np.int64] | None = None
    mask: NDArray[np.bool_] | None = None
    value: Any = None
    operands: tuple[Any, ...] = ()
    results: tuple[Any, ...] = ()
    price: Callable[[], tuple[NDArray[np.int64], Cost]] | None = None

    def costs(self) -> dict[int, Cost]:
        """Warp (numbered through all CTAs) → what it pays of a load or store: sectors, or passes over the banks, the
        fewest that there could be, and of shared memory the turns [width, lanes] in which its elements come."""
        if self.price is None:
            return {}
        warps, cost = self.price()
        lanes = 0 if cost.phase is None else cost.phase.shape[1] // len(warps)
        return {int(warp): Cost(cost.moved[i], cost.ideal[i], None if cost.phase is None else
                                cost.phase[:, i * lanes:(i + 1) * lanes]) for i, warp in enumerate(warps)}


Tell = Callable[["Event"], None]
_watching: list[tuple[Tell, Mapping[Function, Function]]] = []


@contextmanager
def observed(tell: Tell, instead: Mapping[Function, Function] | None = None) -> Iterator[None]:
    """`with observed(f):` every run that begins meanwhile is told to f, whoever begins it, and runs other functions
    `instead` of those that are asked for."""
    _watching.append((tell, instead or {}))
    try:
        yield
    finally:
        _watching.pop()


def current() -> tuple[Tell | None, Mapping[Function, Function]]:
    return _watching[-1] if _watching else (None, {})


class Observer:
    def __init__(self, machine: Machine, tell: Callable[[Event], None]) -> None:
        self.machine, self.tell, self.round = machine, tell, 1

    def numbers(self, threads: NDArray[np.int64]) -> NDArray[np.int64]:
        """Threads of those that run now, numbered through the grid."""
        return threads + self.machine.first * self.machine.cta if self.machine.gpu else threads

    def woken(self, gang: Gang, line: Line) -> None:
        self.tell(Event("wake", "", line, gang.frame.code.name, self.round, self.numbers(gang.threads)))

    def round_of(self, code: Code, node: Loop) -> Callable[[Gang], None]:
        """A step that tells the index of a loop."""
        index = code.slot(node.index)

        def step(gang: Gang) -> None:
            on = gang.active()
            value = np.broadcast_to(gang.frame.env[index], gang.size)[on]
            self.tell(Event("loop", "", node.line, code.name, self.round, self.numbers(gang.threads[on]), value=value))
            gang.frame.pc += 1
        return step

    def step(self, code: Code, node: Any, step: Step) -> Step:
        """The step of an operation, and telling of it."""
        operation = getattr(node, "operation", None)
        if operation is None or (operation.kind not in ARITHMETIC and operation.role not in ROLES):
            return step
        name, what = operation.name, operation.kind or operation.name
        if what.startswith("mark "):
            what, name = "mark", name[5:]
        after = operation.role not in ROLES
        xs, ds = [code.slot(x) for x in node.operands], [code.slot(x) for x in node.results]

        def told(gang: Gang, env: list) -> None:
            if after:
                step(gang, env)
            on = gang.active()
            operands = tuple(self._operand(gang, code, x, env[slot], on) for x, slot in zip(node.operands, xs))
            results = tuple(self._own(env[slot], on) for slot in ds) if after else ()
            self.tell(Event(what, name, node.line, code.name, self.round, self.numbers(gang.threads[on]),
                            operands=operands, results=results, value=operands[0] if what == "mark" else None))
            if not after:
                step(gang, env)
        return told

    @staticmethod
    def _own(x: Any, on: NDArray[np.bool_]) -> Any:
        """A value's part of the active threads."""
        return x[..., on] if np.ndim(x) and np.shape(x)[-1] == on.size and on.size > 1 else x

    def _operand(self, gang: Gang, code: Code, x: Any, value: Any, on: NDArray[np.bool_]) -> Any:
        if isinstance(x.type, TensorMap):
            names = {param.id: name for name, param in code.function.params}
            return names.get(x.id, "")
        mine = self._own(value, on)
        if not isinstance(x.type, Pointer):
            return mine
        region = self.machine.memory.find(int(np.ravel(mine)[0]))
        if region is None:
            return mine
        offset = np.broadcast_to(mine, int(np.count_nonzero(on))) - region.base
        return Where(region.name, (offset if region.pitch is None else offset % region.pitch) // x.type.element.bytes)


class WatchedAccess(Access):
    """An access that is told before it is checked, so that one which does wrong is the last event."""

    def store(self, gang: Gang, address: Any, value: Any, mask: Any = None) -> None:
        self.storing = value
        super().store(gang, address, value, mask)

    def scatter(self, gang: Gang, address: Any, value: Any, mask: Any) -> None:
        self.storing = value
        super().scatter(gang, address, value, mask)

    def locate(self, gang: Gang, address: int, elements: int) -> tuple[Region, int]:
        """An access of one CPU thread."""
        region, offset = super().locate(gang, address, elements)
        start, watch = offset // self.item, self.machine.observer
        if self.reads:
            value = region.view(self.dtype, offset % self.item)[start:start + elements, None].copy()
        else:
            value = np.broadcast_to(self.storing, (self.length, 1))[:elements]
        assert watch is not None
        watch.tell(Event(self.verb, "", self.line, self.function, watch.round, watch.numbers(gang.threads), region.name,
                         region.space, self.item, elements, np.array([start]), None, value))
        return region, offset

    def order(self, gang: Gang, region: Region, pattern: Pattern, start: int) -> None:
        if self.verb in ("load", "store"):
            self._tell(gang, region, pattern, start)
        super().order(gang, region, pattern, start)

    def _tell(self, gang: Gang, region: Region, pattern: Pattern, start: int) -> None:
        machine, watch = self.machine, self.machine.observer
        assert watch is not None
        shape = pattern.on.shape
        where, value = np.full(shape, start), np.zeros(shape, self.dtype)
        where[pattern.on] = (start + pattern.offsets).ravel()
        if self.reads:
            value[pattern.on] = np.ravel(pattern.read(region, self.dtype, start - region.base))
        elif self.storing is not None:
            value = np.broadcast_to(self.storing, shape)
        lanes, e = pattern.on.any(0), pattern.on.argmax(0)          # of each lane, and its first element that there is
        first = np.take_along_axis(where, e[None], 0)[0] - e * self.item - region.base
        if region.pitch is not None:
            first = first % region.pitch

        def price() -> tuple[NDArray[np.int64], Cost]:
            if region.space == "shared":
                piece = max(machine.banks.pieces(self.bytes, self.align), self.item)
                return warps, passes(where, pattern.on, self.item, machine.warp, machine.banks, piece, self.reads)
            return warps, granules(where, pattern.on, self.item, machine.warp, machine.report.granule)
        threads = watch.numbers(gang.threads)
        warps = threads[::machine.warp] // machine.warp
        all_on = bool(pattern.on[:, lanes].all())
        watch.tell(Event(self.verb, "", self.line, self.function, watch.round, threads[lanes], region.name,
                         region.space, self.item, self.length, first[lanes] // self.item,
                         None if all_on else pattern.on[:, lanes], value[:, lanes], price=price))

    def asynchronous(self, gang: Gang, region: Region, offsets: NDArray[np.int64], item: int, threads: Any) -> None:
        watch = self.machine.observer
        assert watch is not None
        at = offsets if region.pitch is None else offsets % region.pitch
        own = self.item if item % self.item == 0 else item
        elements = (at[:, None] + np.arange(0, item, own)).ravel()
        if self.storing is None:
            value = region.data[(offsets[:, None] + np.arange(item))].ravel().view(self.dtype)
        else:
            value, self.storing = np.ravel(self.storing).view(self.dtype), None
        watch.tell(Event("copy", self.verb, self.line, self.function, watch.round, watch.numbers(threads), region.name,
                         region.space, own, 1, elements // own, value=value))
