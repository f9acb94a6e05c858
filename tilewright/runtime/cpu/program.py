"""A call on this processor, prepared: what it does to arrays, which later calls of its kind do again.

`recorded` makes a call with shadows of its arrays. Whatever does something to an array then says so: the engine, of a
recipe (`by_recipe`), and who calls functions of NumPy (`do`, `computed`, `converted`). A call that does something else,
or whose steps depend on the numbers in its arrays, says `not_repeated`.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright import forks
from tilewright.kernels.cpu import jobs
from tilewright.kernels.cpu.jobs import NOTHING
from tilewright.rules import arguments, shapes
from tilewright.runtime import program, repeats
from tilewright.runtime.cpu import symmetric, workspace
from tilewright.runtime.cpu.layout import address
from tilewright.runtime.program import Array, Buffers, Run, root

NO_ROWS: Mapping[str, Any] = {}
ALIGNMENT = 64                              # of temporaries in their block


class _Preparing(threading.local):
    recorder: Recorder | None = None                # of the call that this thread prepares


preparing = _Preparing()


class Recorder(program.Recorder):
    def __init__(self, arrays: Sequence[Array]) -> None:
        """Shadows of the call's arrays, in the order of their addresses."""
        super().__init__()
        self.arrays = arrays
        self.constants: list[Array] = []
        self.scalar: Array | None = None            # of which the result is the number
        self.product: Any = None                    # of the last step: of its arrays' addresses the engine's Run

    def remember(self, like: repeats.Asked, results: Sequence[Any], outs: Sequence[Array | None], functions: Any
                 ) -> None:
        """What was noted becomes the record of calls like this one. `outs`: which of the results were given."""
        given = {id(x) for x in outs if x is not None}
        if not self.whole or any(id(x) not in given and not self._holds(x) for x in results):
            return
        if given and [id(x) for x in results] != [id(x if y is None else y) for x, y in zip(results, outs)]:
            return                              # which result is where would not be seen
        written = {id(root(x)) for _, noted in self.noted for x in noted}
        if any(x.size and id(root(x)) not in written for x in results):
            return                              # by something that was not noted
        created = {id(root(x)) for x in results if id(x) not in given}
        buffers = Buffers([*self.arrays, *results], [x for x in self.temporaries if id(root(x)) not in created],
                          self.constants)
        steps = self.steps(buffers)
        if steps is None:
            return
        run, product, make = _program(steps, buffers), None, self.product
        if make is not None and run is steps[0]:
            order = [*map(buffers.number, self.noted[0][1])]
            product = lambda at: make([at[i] for i in order])       # noqa: E731
        repeats.remember(like, run, self.arrays, results, kept=(functions, self.constants), product=product)

    def _holds(self, x: Array) -> bool:
        """Whether a new result is all of a temporary, so that another array of its shape and strides can be one."""
        memory = root(x)
        return (type(x) is np.ndarray and any(memory is y for y in self.temporaries) and memory.nbytes == x.nbytes
                and address(memory) == address(x) and repeats.dense(x))


def _program(steps: Sequence[Run], buffers: Buffers) -> Run:
    """The steps one after the other, with temporaries in one block."""
    offsets, size = buffers.places(ALIGNMENT)
    inside = [*buffers.inside]
    if len(steps) == 1 and not (offsets or inside):
        return steps[0]

    def run(at: list[int], arrays: Any, results: Any, alpha: float, stream: int) -> bool:
        at = [*at]
        if offsets:
            block = np.empty(size + ALIGNMENT, np.uint8)
            first = address(block)
            first += -first % ALIGNMENT
            at += [first + offset for offset in offsets]
        for buffer, offset in inside:
            at.append(offset if buffer < 0 else at[buffer] + offset)
        for step in steps:
            if step(at, arrays, results, alpha, stream):
                return True
        return False
    return run


def by_recipe(recipe: Any, order: tuple[int, ...], batch: int, steps: tuple[int, ...], table: Any = None,
              rows: Sequence[int] = (), copied: repeats.View | None = None, alpha: Any = 1.0, beta: Any = 0.0,
              mirrored: bool = False, firsts: Mapping[str, int] = NO_ROWS) -> Run:
    """The step that runs a recipe. `order`: which addresses are those of its A, B and C; `batch` products, if not 0, so
    many bytes from one to the next; `table`: of the operands of an epilogue (jobs.OPERAND) and of prologues
    (jobs.BESIDE), whose addresses are `rows`; `firsts`: by the fields of jobs.Beside the row with which those of each
    begin; `copied`: B, where the plan copies it; `mirrored`: whether it is A^T wherever it is where A is."""
    a, b, c = order
    batches = forks.imported("tilewright.runtime.cpu.batches")     # not loaded by a process of a GPU
    work = batches.repeatable(recipe, batch, steps, None, alpha, beta)
    alone = work is not None and work.parts == 1 and not (work.layout or (copied and batch))
    at_once = recipe.at_once(alpha, beta) and (alone or not batch or not (work is None or copied or table))

    def copy_of_b(place: int) -> Array:
        assert copied is not None
        return forks.imported("tilewright.runtime.cpu.batches").copied_b(copied.array(place), recipe.plan)
    if not at_once:
        product = None if batch else recipe.then_scaled(alpha, beta)

        def run(at: list[int], arrays: Any, results: Any, now: float, stream: int) -> Any:
            copy = None if copied is None else copy_of_b(at[b])
            at_b = at[b] if copy is None else address(copy)
            if product is not None:
                return product(at[a], at_b, at[c])
            words = repeats.filled(table, rows, at) if table else None
            finish = NOTHING if words is None else jobs.Beside(words.buffer_info()[0])
            return batches.run(recipe, batch, steps, at[a], at_b, at[c], alpha, beta, finish)
        return run
    if work is not None and batch and not alone:
        where = [work.fields(recipe)[x] for x in "abc"]
        return lambda at, *_: batches.do(recipe, work, where, (at[a], at[b], at[c]))
    template = work.job if work is not None and alone else recipe.job(0, 0, 0, alpha, beta)
    call, i_a, i_b, i_c = recipe.call, recipe.i_a, recipe.i_b, recipe.i_c
    tables = [(recipe.at[name], 8*len(jobs.OPERAND)*first) for name, first in firsts.items()]

    def run_once(at: list[int], arrays: Any, results: Any, now: float, stream: int) -> Any:
        if mirrored and at[a] == at[b]:
            symmetric.multiply(recipe, at[a], at[c], alpha)
            return False
        job = template[:]
        job[i_a], job[i_b], job[i_c] = at[a], at[b], at[c]
        if copied is not None:
            copy = copy_of_b(at[b])
            job[i_b] = address(copy)
        if table:
            words = repeats.filled(table, rows, at)
            for field, offset in tables:
                job[field] = words.buffer_info()[0] + offset
        return call(job.buffer_info()[0], 0) if alone else recipe.run_job(job)
    return run_once


def repeatable(like: repeats.Asked | None) -> bool:
    """Whether a call that is known by this may be prepared here."""
    try:
        record = None if like is None else repeats.records.get(like[0])
        return like is not None and preparing.recorder is None and (
            record is None or record.run is not repeats.no_program)
    except TypeError:                           # what cannot be hashed, of which the long way has words
        return False


def recorded(like: repeats.Asked | None, arrays: Mapping[str, Any], outs: Sequence[Array | None],
             compute: Callable[[Mapping[str, Any], Sequence[Any]], Any], functions: Any = None) -> Any:
    """compute(arrays, outs), which becomes the record of calls like it. `functions`: what the key has ids of."""
    if not repeatable(like) or any(x is None for x in arrays.values()) or any(
            x is not None and shapes.overlap(x, y) and not shapes.same(x, y) for x in outs for y in arrays.values()):
        return compute(arrays, outs)
    assert like is not None
    shadows = {name: _shadow(x) for name, x in arrays.items()}
    seen = [None if x is None else _shadow(x) for x in outs]
    preparing.recorder = recorder = Recorder([*shadows.values()])
    try:
        computed_array = compute(shadows, seen)
    finally:
        preparing.recorder = None
    several = type(computed_array) is tuple
    result = recorder.scalar if isinstance(computed_array, np.generic) else computed_array
    recorder.remember(like, computed_array if several else (result,), seen, functions)
    if like[0] not in repeats.records:
        repeats.keep(like[0], repeats.Record(repeats.no_program, (), (), None, functions, None, ()), None)
    back = {id(x): given for x, given in zip(seen, outs)}
    if several:
        return tuple(back.get(id(x), x) for x in computed_array)
    return back.get(id(computed_array), computed_array)


def _shadow(x: Array) -> Array:
    """An array of these elements, as memory of which no other array is a view."""
    view = repeats.View.of_array(x).array(address(x))
    view.flags.writeable = x.flags.writeable
    return view


# ---- what a call does

def not_repeated() -> None:
    """For a call that does what its record would not."""
    if preparing.recorder is not None:
        preparing.recorder.whole = False


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], order: Any = "C") -> Array:
    """A temporary, or a result."""
    memory = workspace.scratch(shape, dtype) if order == "C" else np.empty(shape, dtype, order)
    if preparing.recorder is not None:
        preparing.recorder.temporaries.append(memory)
    return memory


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
    value = np.asarray(function(*arrays))
    if preparing.recorder is not None:
        _temporary(value)
        note(partial(_assign, function), value, *arrays)
    return value


def _temporary(found: Array) -> None:
    """An array that NumPy made is a temporary with all of its memory, of which it may be a view with gaps."""
    memory, recorder = root(found), preparing.recorder
    assert recorder is not None
    if isinstance(memory, np.ndarray):
        recorder.temporaries.append(memory)
    else:
        recorder.whole = False


def _assign(function: Callable[..., Any], to: Array, *arrays: Array) -> None:
    to[...] = function(*arrays)


def note(function: Callable[..., Any], *arrays: Array) -> None:
    """Take a step: function(*arrays) was done, in this way or in another."""
    if preparing.recorder is not None:
        preparing.recorder.step(partial(_by_numpy, function, [*map(repeats.View.of_array, arrays)]), arrays)


def take(make: program.Make, arrays: Sequence[Array]) -> None:
    """Take the step that is made for these arrays."""
    make(tuple(range(len(arrays))))([address(x) for x in arrays], arrays, (), 1, 0)
    if preparing.recorder is not None:
        preparing.recorder.step(make, arrays)


def cast(to: Array, source: Array) -> None:
    with np.errstate(all="ignore"):
        np.copyto(to, source.reshape(to.shape) if source.size == to.size else source, casting="unsafe")


def assign(to: Array, source: Array) -> None:
    """to[...] = source, in whatever dtype; of as many elements their shapes may differ."""
    do(np.copyto if (to.dtype, to.shape) == (source.dtype, source.shape) else cast, to, source)


def copied(found: Array, source: Array) -> Array:
    """An array that NumPy made of source, and that may be a copy of it."""
    if preparing.recorder is not None and root(found) is not root(source):
        _temporary(found)
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


def places_of(views: Sequence[repeats.View], order: Sequence[int]) -> list[tuple[Any, ...]]:
    """What makes arrays of the addresses that have these numbers, without a function of ours, as steps do."""
    return [(i, x.shape, x.dtype, x.memory.from_address, x.first, x.strides) for i, x in zip(order, views)]


def _by_numpy(function: Callable[..., Any], views: Sequence[repeats.View], order: tuple[int, ...]) -> Run:
    places = places_of(views, order)

    def run(at: list[int], arrays: Any, results: Any, alpha: float, stream: int) -> None:
        function(*[np.ndarray(shape, dtype, memory(at[i] - first), first, strides)
                   for i, shape, dtype, memory, first, strides in places])
    return run
