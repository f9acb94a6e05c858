"""A call on this processor, prepared: steps over numbered buffers, which later calls of its kind take again.

`recorded` makes a call with shadows of its arrays. Whatever does something to an array then says so: the engine, of a
recipe (`Recorder.step`), and who calls functions of NumPy (`do`, `computed`, `converted`). A step is noted with
its arrays, each a view of one of the call's buffers: its arrays, its results, its temporaries (`empty`), and constants.
A call that does something else, or whose steps depend on the numbers in its arrays, says `not_repeated`.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.rules import arguments, shapes
from tilewright.runtime import repeats
from tilewright.runtime.cpu import workspace
from tilewright.runtime.cpu.layout import address
from tilewright.runtime.program import Array, Buffers, root

cold: dict[tuple[Any, ...], Any] = {}       # keys of calls that have no record, and what these have ids of
repeats.derived.append(cold)
Make = Callable[[tuple[int, ...]], repeats.Run]     # of the numbers that its arrays' addresses have: a step
ALIGNMENT = 64                                      # of temporaries in their block


class _Preparing(threading.local):
    recorder: Recorder | None = None                # of the call that this thread prepares


preparing = _Preparing()


class Recorder:
    """What a call does, in order, with the arrays. `whole`: whether it can be done again."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """Shadows of the call's arrays, in the order of their addresses."""
        self.arrays = arrays
        self.noted: list[tuple[Make, Sequence[Array], Any]] = []
        self.temporaries: list[Array] = []
        self.constants: list[Array] = []
        self.whole = True
        self.scalar: Array | None = None            # of which the result is the number

    def step(self, make: Make, arrays: Sequence[Array], run: Any = None) -> None:
        """`run`: of these arrays' addresses the engine's Run, if that is all."""
        self.noted.append((make, arrays, run))

    def remember(self, like: repeats.Asked, results: Sequence[Any], outs: Sequence[Array | None], functions: Any
                 ) -> None:
        """What was noted becomes the record of calls like this one. `outs`: which of the results were given."""
        arrays, given = [*self.arrays.values()], {id(x) for x in outs}
        if not self.whole or any(id(x) not in given and not self._holds(x) for x in results):
            return
        if [x for x in outs if x is not None] and [id(x) for x in results] != [
                id(x if y is None else y) for x, y in zip(results, outs)]:
            return                              # which result is where would not be seen
        written = {id(root(x)) for _, noted, _ in self.noted for x in noted}
        if any(x.size and id(root(x)) not in written for x in results):
            return                              # by something that was not noted
        made = {id(root(x)) for x in results if id(x) not in given}
        temporaries = [x for x in self.temporaries if id(root(x)) not in made]
        buffers = Buffers(None, {}, [*arrays, *results], [*temporaries, *self.constants])
        try:
            places = [[buffers.place(x) for x in noted] for _, noted, _ in self.noted]
        except LookupError:                     # memory that is in none of the call's buffers
            return
        count = len(arrays) + len(results) + len(temporaries) + len(self.constants)
        inside = [*dict.fromkeys(x for step in places for x in step if x[1])]
        number = {x: count + i for i, x in enumerate(inside)}
        steps = [make(tuple(number.get(x, x[0]) for x in step)) for (make, _, _), step in zip(self.noted, places)]
        run = _program(steps, [x.nbytes for x in temporaries], self.constants, inside)
        product = None
        if steps and run is steps[0]:
            engines, order = self.noted[0][2], [x for x, _ in places[0]]
            product = engines and (lambda at: engines([at[i] for i in order]))
        repeats.remember(like, run, arrays, results, kept=functions, product=product)

    def _holds(self, x: Array) -> bool:
        """Whether a new result is all of a temporary, so that another array of its shape and strides can be one."""
        whole = root(x)
        return (type(x) is np.ndarray and any(whole is y for y in self.temporaries) and whole.nbytes == x.nbytes
                and address(whole) == address(x) and repeats.dense(x))


def _program(steps: Sequence[repeats.Run], sizes: Sequence[int], constants: Sequence[Array],
             inside: Sequence[tuple[int, int]]) -> repeats.Run:
    """Runs the steps, with temporaries of these sizes in one block. `inside`: (buffer, bytes from its address) of
    views that begin elsewhere. Addresses are in the order of arrays, results, temporaries, constants, views."""
    if len(steps) == 1 and not (sizes or constants or inside):
        return steps[0]
    offsets, size = [], 0
    for one in sizes:
        offsets.append(size)
        size += -(-one // ALIGNMENT) * ALIGNMENT
    fixed, kept = [address(x) for x in constants], [*constants]

    def run(at: list[int], arrays: Any, results: Any, alpha: float, stream: int) -> bool:
        places = [*at]
        if offsets:
            block = np.empty(size + ALIGNMENT, np.uint8)
            first = address(block)
            first += -first % ALIGNMENT
            places += [first + offset for offset in offsets]
        if kept:
            places += fixed
        for buffer, offset in inside:
            places.append(places[buffer] + offset)
        for step in steps:
            if step(places, arrays, results, alpha, stream):
                return True
        return False
    return run


def repeatable(like: repeats.Asked | None) -> bool:
    """Whether a call that is known by this may be prepared here."""
    try:
        return like is not None and like[0] not in cold and preparing.recorder is None
    except TypeError:                           # what cannot be hashed, of which the long way has words
        return False


def recorded(like: repeats.Asked | None, arrays: Mapping[str, Any], outs: Sequence[Array | None],
             compute: Callable[[Mapping[str, Any], Sequence[Any]], Any], functions: Any = None) -> Any:
    """compute(arrays, outs), which becomes the record of calls like it. `functions`: what the key has ids of."""
    if not repeatable(like) or any(
            x is not None and shapes.overlap(x, y) for x in outs for y in arrays.values()):     # which is copied
        return compute(arrays, outs)
    assert like is not None
    shadows = {name: _shadow(x) for name, x in arrays.items()}
    seen = [None if x is None else _shadow(x) for x in outs]
    preparing.recorder = recorder = Recorder(shadows)
    try:
        found = compute(shadows, seen)
    finally:
        preparing.recorder = None
    several = type(found) is tuple
    result = recorder.scalar if isinstance(found, np.generic) else found
    recorder.remember(like, found if several else (result,), seen, functions)
    if like[0] not in repeats.records:
        if len(cold) >= repeats.MOST:
            cold.clear()
        cold[like[0]] = functions
    back = {id(x): given for x, given in zip(seen, outs)}
    if several:
        return tuple(back.get(id(x), x) for x in found)
    return back.get(id(found), found)


def _shadow(x: Array) -> Array:
    """An array of these elements, as memory of which no other array is a view."""
    found = repeats.View.of(x).at(address(x))
    found.flags.writeable = x.flags.writeable
    return found


# ---- what a call does

def not_repeated() -> None:
    """For a call that does what its record would not."""
    if preparing.recorder is not None:
        preparing.recorder.whole = False


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], order: Any = "C") -> Array:
    """A temporary, or a result."""
    found = workspace.scratch(shape, dtype) if order == "C" else np.empty(shape, dtype, order)
    if preparing.recorder is not None:
        preparing.recorder.temporaries.append(found)
    return found


def constant(x: Array) -> Array:
    """An array that is the same in all calls of this kind."""
    if preparing.recorder is not None:
        preparing.recorder.constants.append(x)
    return x


def do(function: Callable[..., Any], *arrays: Array) -> None:
    """function(*arrays), which reads and writes nothing else."""
    function(*arrays)
    note(function, *arrays)


def computed(function: Callable[..., Any], *arrays: Array) -> Array:
    """The new array, or number, that function(*arrays) returns, which reads nothing else."""
    found = np.asarray(function(*arrays))
    if preparing.recorder is not None:
        preparing.recorder.temporaries.append(found)
        note(partial(_assign, function), found, *arrays)
    return found


def _assign(function: Callable[..., Any], to: Array, *arrays: Array) -> None:
    to[...] = function(*arrays)


def note(function: Callable[..., Any], *arrays: Array) -> None:
    """Take a step: function(*arrays) was done, in this way or in another."""
    if preparing.recorder is not None:
        preparing.recorder.step(partial(_by_numpy, function, [*map(repeats.View.of, arrays)]), arrays)


def cast(to: Array, source: Array) -> None:
    with np.errstate(all="ignore"):
        np.copyto(to, source.reshape(to.shape) if source.size == to.size else source, casting="unsafe")


def copied(found: Array, source: Array) -> Array:
    """An array that NumPy made of source, and that may be a copy of it."""
    if preparing.recorder is not None and root(found) is not root(source):
        preparing.recorder.temporaries.append(found)
        note(cast, found, source)
    return found


def converted(x: Array, dtype: np.dtype[Any]) -> Array:
    return copied(arguments.converted(x, dtype), x)


def rounded(x: Array, dtype: np.dtype[Any]) -> Array:
    return copied(arguments.rounded(x, dtype), x)


def scalar(x: Array) -> Array:
    """A result, of which the caller gets a number if it has no axes."""
    if preparing.recorder is not None and not x.ndim:
        preparing.recorder.scalar = x
    return x


def _by_numpy(function: Callable[..., Any], views: Sequence[repeats.View], order: tuple[int, ...]) -> repeats.Run:
    places = [(i, x.shape, x.dtype, x.memory.from_address, x.first, x.strides) for i, x in zip(order, views)]

    def run(at: list[int], arrays: Any, results: Any, alpha: float, stream: int) -> None:
        function(*[np.ndarray(shape, dtype, memory(at[i] - first), first, strides)
                   for i, shape, dtype, memory, first, strides in places])
    return run
