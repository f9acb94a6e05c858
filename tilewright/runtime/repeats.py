"""Calls like an earlier one: what was chosen for that one runs again for other arrays, without rules, tracing or plans.

What makes calls alike is in a key: of every array what its library says about plain ones (dtype, sizes, strides, where
it is) and the bits of its address that a plan depends on; of a function what it names (expressions/remembered.py); and
whatever else was asked for. Nothing else is looked at, so a call is remembered only if it came down to one run of a
recipe, from the caller's own arrays to the arrays that it returned. Where a given result may overlap another array, a
call is not repeated.

Most products of NumPy's arrays are repeated by emitted code before they come here: api/builtin_repeats.py.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright import forks
from tilewright.expressions import remembered
from tilewright.expressions.function import Epilogue, Prologue
from tilewright.kernels.cpu import jobs
from tilewright.kernels.cpu.jobs import NOTHING
from tilewright.runtime.cpu import pool
from tilewright.runtime.cpu.layout import address, addresses

if TYPE_CHECKING:
    from tilewright.runtime.cpu.engine import Run as EngineRun

Array = NDArray[Any]

MOST = 4096
ALIGNED, BOTH = 0x100, 0x500            # NumPy's flags: ALIGNED, and WRITEABLE too
NDARRAY = np.ndarray

Asked = tuple[tuple[Any, ...], list[int]]           # a key; and the addresses of arrays, then of results
Run = Callable[[list[int], Sequence[Any], Sequence[Any], float, int], Any]     # see Record


class Record(NamedTuple):
    run: Run                                # (addresses, arrays, results, alpha, stream) → true if these mean nothing
    results: tuple[tuple[Any, ...], ...]    # what `library.empty` takes, but for the stream
    spans: tuple[tuple[int, int], ...]      # the bytes that each array reaches over, from its address on
    device: int | None                      # None: the host
    kept: Any                               # what the key has ids of


# By keys; emptied when plans are chosen anew, and with them what is made of records.
records: dict[tuple[Any, ...], Record] = {}
derived: list[dict[Any, Any]] = []


class _Watch(threading.local):
    ran: list[tuple[Record, list[int]]] | None = None


watch = _Watch()


@contextmanager
def watching() -> Iterator[list[tuple[Record, list[int]]]]:
    """Within, calls of this thread that are or become records, with their addresses."""
    before, ran = watch.ran, list[tuple[Record, list[int]]]()
    watch.ran = ran
    try:
        yield ran
    finally:
        watch.ran = before
        if before is not None:
            before += ran


class View(NamedTuple):
    """An array but for its address."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    memory: Any                 # ctypes' type of its bytes
    first: int                  # of these is that of the first element

    @classmethod
    def of(cls, x: Array) -> View:
        low, high = _span(x) if x.size else (0, 0)
        return cls(x.shape, x.dtype, x.strides, ctypes.c_char * (high - low), -low)

    def at(self, place: int) -> Array:
        """The array whose first element is there, which keeps nothing."""
        return np.ndarray(self.shape, self.dtype, self.memory.from_address(place - self.first), self.first,
                          self.strides)


class _Host:
    """NumPy's arrays, as runtime.gpu.arrays.Library has those of others."""

    alignment = 0

    def asked(self, arrays: Iterable[Any], *options: Any) -> Asked | None:
        """What a call is known by that takes these arrays, its results last (None: one that is to be made). None for a
        call that is not remembered: of other than plain arrays of this library."""
        key: list[Any] = [self, options]
        given, absent = list[Array](), list[int]()
        for i, x in enumerate(arrays):
            if x is None:
                key.append(None)
                absent.append(i)
            elif type(x) is NDARRAY and (flags := x.flags.num & BOTH) & ALIGNED:
                key += x.dtype, x.dtype.num, x.shape, x.strides, flags     # int64 and longlong are equal
                given.append(x)
            else:
                return None
        at = addresses(given)
        for i in absent:
            at.insert(i, 0)
        return tuple(key), at

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None, stream: int) -> Any:
        return np.empty(shape, dtype) if strides is None else np.ndarray(shape, dtype, None, 0, strides)

    def to_make(self, shape: tuple[int, ...], x: Array, device: None) -> tuple[Any, ...]:
        """What `empty` makes arrays like x of."""
        return shape, x.dtype, None if x.flags.c_contiguous else x.strides

    pointer = staticmethod(address)


HOST = _Host()


def functions(given: Iterable[Any], operands: Any) -> Any:
    """What an epilogue and prologues, some of them None, and the names of their operands are known by; None if one has
    to be traced in every call."""
    if not (operands is None or type(operands) is dict):
        return None
    known: list[Any] = []
    for x in given:
        found = id(x) if x is None or type(x) is Epilogue or type(x) is Prologue else remembered.key(x, ())
        if found is None:
            return None
        known.append(found)
    return (*known, *(operands or ()))


def array_of(x: Any) -> Any:
    """A number of Python's as the array that rules make of it; anything else as it is."""
    return np.asarray(x) if type(x) is float or type(x) is int else x


def asked_on_host(library: Any, a: Any, b: Any, outs: Sequence[Any], out_dtype: Any, trans_a: Any, trans_b: Any,
                  threads: Any, epilogue: Any, operands: Any) -> tuple[Asked | None, tuple[Any, ...]]:
    """What a product of these arguments of matmul is known by, and the arrays that it reads."""
    known_by = functions((epilogue,), operands)
    if known_by is None or (operands and epilogue is None):
        return None, ()
    arrays = (a, b, *map(array_of, operands.values())) if operands else (a, b)
    threads = pool.get_num_threads() if threads is None else threads
    return library.asked((*arrays, *outs), known_by, out_dtype, trans_a, trans_b, type(threads), threads), arrays


def again(library: Any, like: Asked, arrays: Sequence[Any], results: Sequence[Any], alpha: Any = 1) -> Any:
    """The result, or a tuple of them, if there was such a call; None if the long way has to be taken."""
    key, at = like
    try:
        found = records.get(key)
    except TypeError:                   # what cannot be hashed, of which the long way has words
        return None
    if found is None:
        return None
    run, made, spans, device, _ = found
    stream = 0 if device is None else library.stream(arrays[0], device)
    if len(made) == 1 and results[0] is None:       # as below, but in less time
        x = library.empty(*made[0], stream)
        at[-1] = place = library.pointer(x)
        if place & library.alignment or run(at, arrays, (x,), alpha, stream):
            return None
        if watch.ran is not None:
            watch.ran.append((found, at))
        return x
    outs, i = [], len(arrays)
    if len(made) > len(results):                    # one None stands for all
        results = (None,) * len(made)
        at += [0] * (len(made) - 1)
    for new, x in zip(made, results):
        if x is None:
            x = library.empty(*new, stream)
            at[i] = place = library.pointer(x)
            if place & library.alignment:
                return None
        elif _overlaps(at, spans, i):
            return None
        outs.append(x)
        i += 1
    if run(at, arrays, outs, alpha, stream):
        return None
    if watch.ran is not None:
        watch.ran.append((found, at))
    return tuple(outs) if len(outs) > 1 else x


def remember(like: Asked, run: Run, arrays: Sequence[Array], results: Sequence[Array], device: int | None = None,
             kept: Any = None, shape: tuple[int, ...] | None = None) -> None:
    """What a call came to. `arrays` and `results`: these, or their shadows; `shape`: of the only result, if it is
    another than the shadow's."""
    if len(records) >= MOST:
        records.clear()
    library = like[0][0]
    made = tuple(library.to_make(shape or x.shape, x, device) for x in results)
    if None in made:                    # in a format that the library lacks
        return
    records[like[0]] = Record(run, made, tuple(map(_span, (*arrays, *results))), device, kept)
    if watch.ran is not None:
        watch.ran.append((records[like[0]], [address(x) for x in (*arrays, *results)]))


def remember_run(like: Asked, arrays: Sequence[Array], out: Array | None, result: Any, run: EngineRun | None) -> None:
    """A call of the CPU's engine that came down to one run, if it was from these two arrays to the result."""
    if run is None or run.alpha != 1 or run.beta != 0 or address(arrays[0]) == address(arrays[1]):
        return
    ran_b = run.b if run.given is None else run.given
    first = int(address(run.a) == address(arrays[1]))
    a, b = arrays[::-1] if first else arrays
    if (address(run.a), address(ran_b)) != (address(a), address(b)) or (run.a.itemsize, ran_b.itemsize) != (
            a.itemsize, b.itemsize):
        return
    if isinstance(result, np.generic):
        if run.c.size != 1 or run.c.dtype != result.dtype:
            return
    elif (result is not out if out is not None else not _dense(result)) or address(result) != address(run.c) or (
            result.dtype != run.c.dtype):
        return
    copied = None if run.given is None else View.of(run.given)
    again = by_recipe(run.recipe, (first, 1 - first, 2), run.batch, run.steps, copied=copied)
    remember(like, again, arrays, (np.asarray(result),))


def remember_runs(like: Asked, arrays: Sequence[Array], out: Array | None, result: Any, runs: Sequence[EngineRun]
                  ) -> None:
    """A call of several runs, if each read these arrays or what earlier ones wrote, and the last wrote the result. All
    memory that they took is kept by `runs`, so that an address is one array's."""
    if len(runs) < 2 or type(result) is not np.ndarray or any(x.alpha != 1 or x.beta != 0 for x in runs):
        return
    last = runs[-1]
    if address(last.c) != address(result) or last.c.dtype != result.dtype or (
            result is not out if out is not None else not _dense(result)):
        return
    known = {address(x): i for i, x in enumerate(arrays)}
    if len(known) < len(arrays) or not known.keys().isdisjoint(address(x.c) for x in runs):
        return                                          # which is which cannot be seen
    sources, steps = [*arrays, result], list[Run]()     # then what is between
    for x in runs:
        read = x.a, x.b if x.given is None else x.given
        at = [known.get(address(y), -1) for y in read]
        if any(i < 0 or y.dtype != sources[i].dtype or not _within(_span(y), _span(sources[i]))
               for i, y in zip(at, read)):
            return
        here = len(arrays) if x is last else len(sources)
        copied = None if x.given is None else View.of(x.given)
        steps.append(by_recipe(x.recipe, (at[0], at[1], here), x.batch, x.steps, copied=copied))
        if x is not last:
            sources.append(x.c)
            known[address(x.c)] = here
    memory = [(high - low, low) for low, high in map(_span, sources[len(arrays) + 1:])]

    def again(at: list[int], arrays: Any, results: Any, alpha: float, stream: int) -> Any:
        taken = [np.empty(size, np.uint8) for size, _ in memory]
        places = [*at, *(address(x) - low for x, (_, low) in zip(taken, memory))]
        return any(step(places, arrays, results, alpha, stream) for step in steps)
    remember(like, again, arrays, (result,))


def by_recipe(recipe: Any, order: tuple[int, int, int], batch: int, steps: tuple[int, ...], table: Any = None,
              rows: Sequence[int] = (), copied: View | None = None) -> Run:
    """Run a recipe for CPUs. `order`: which addresses are those of its A, B and C; `batch` products, if not 0, so many
    bytes from one to the next; `table`: of the operands of an epilogue (jobs.OPERAND), whose addresses are `rows`;
    `copied`: B, where the plan copies it."""
    a, b, c = order
    work = recipe.repeatable(batch, steps)

    def copy_of_b(place: int) -> Array:
        assert copied is not None
        found: Array = forks.imported("tilewright.runtime.cpu.engine").copied(copied.at(place), recipe.plan)
        return found
    if work is None or work.parts > 1 or work.layout or (copied and batch):     # memory or threads have to be asked for
        def run(at: list[int], arrays: Any, results: Any, alpha: float, stream: int) -> Any:
            words = filled(table, rows, at) if table else None
            beside = NOTHING if words is None else jobs.Beside(words.buffer_info()[0])
            at_b = at[b]
            if copied is not None:
                copy = copy_of_b(at_b)
                at_b = address(copy)
            if batch:
                return recipe.run_batch(batch, steps, at[a], at_b, at[c], 1.0, 0.0, beside)
            return recipe.run(at[a], at_b, at[c], 1.0, 0.0, beside)
        return run
    template, call, i_a, i_b, i_c = work.job, recipe.call, recipe.i_a, recipe.i_b, recipe.i_c
    operands = recipe.at["operands"] if table else 0

    def at_once(at: list[int], arrays: Any, results: Any, alpha: float, stream: int) -> None:
        job = template[:]
        job[i_a], job[i_b], job[i_c] = at[a], at[b], at[c]
        if copied is not None:
            copy = copy_of_b(at[b])
            job[i_b] = address(copy)
        if table:
            words = filled(table, rows, at)
            job[operands] = words.buffer_info()[0]
        call(job.buffer_info()[0], 0)
    return at_once


def filled(table: Any, rows: Sequence[int], at: list[int]) -> Any:
    """A table of operands with their addresses."""
    words = table[:]
    for row, i in enumerate(rows):
        words[row * len(jobs.OPERAND)] = at[i]
    return words


def forget() -> None:
    for table in (records, *derived):
        table.clear()


def _overlaps(at: list[int], spans: Sequence[tuple[int, int]], which: int) -> bool:
    """Whether this one may have memory of any other."""
    low, high = at[which] + spans[which][0], at[which] + spans[which][1]
    for i, (begin, end) in enumerate(spans):
        if low < at[i] + end and at[i] + begin < high and i != which:
            return True
    return False


def _span(x: Array) -> tuple[int, int]:
    reach = [(n - 1) * stride for n, stride in zip(x.shape, x.strides)]
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + x.itemsize


def _within(part: tuple[int, int], whole: tuple[int, int]) -> bool:
    return whole[0] <= part[0] and part[1] <= whole[1]


def _dense(x: Array) -> bool:
    """Whether a new array of this shape and these strides has room for its elements, and no more."""
    return not x.size or sorted(x.strides[at] for at in range(x.ndim) if x.shape[at] > 1) == sorted(
        stride for stride, extent in zip(_packed(x), x.shape) if extent > 1)


def _packed(x: Array) -> list[int]:
    strides, step = [0] * x.ndim, x.itemsize
    for at in sorted(range(x.ndim), key=lambda at: (x.strides[at], x.shape[at])):
        strides[at], step = step, step * x.shape[at]
    return strides
