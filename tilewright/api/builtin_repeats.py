"""Calls like earlier ones, which the builtin makes without Python: what may be repeated, and the records of it.

The Python function that the builtin calls watches the engine. A call that came down to one run of a recipe, from the
caller's own arrays to the array that it returns, gets a record: kernels/cpu/repeat.py says what is in one, and which
calls are like it. So what is repeated is what has run, with the same plan and the same bits.
"""
from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import forks
from tilewright.api import dispatch
from tilewright.kernels.cpu.abi import FACTOR, KEY, MOST_FIELDS, MOST_KEYWORDS, RECORD, SHIFT, SLOTS
from tilewright.runtime.cpu import pool, workspace
from tilewright.runtime.cpu.layout import address

if TYPE_CHECKING:
    from tilewright.runtime.cpu.engine import Run
    from tilewright.runtime.cpu.recipe import Work

SPACE = 16 << 20            # bytes for packed panels: products whose call takes longer need no record
KEYWORDS = {"out_dtype", "trans_a", "trans_b", "algorithm", "deterministic", "batch_invariant",     # beside out
            "threads"}
MASK = (1 << 64) - 1


class Repeats:
    """The table of one builtin. `begin(table, pool)` gives it their addresses, before the first record."""

    def __init__(self, release_above: int, begin: Callable[[int, Any], None]) -> None:
        self._slots = (ctypes.c_int64 * SLOTS)()
        self._release_above, self._begin = release_above, begin
        self._records: dict[int, tuple[Any, ...]] = {}      # by slot: the key, the record and what it points to
        self._replaced: list[Any] = []                      # records that may still be running
        self._space: Any = None
        self._lock = forks.Lock()

    def forget(self) -> None:
        """Plans are chosen anew from now on."""
        with self._lock:
            ctypes.memset(self._slots, 0, ctypes.sizeof(self._slots))
            self._replaced += self._records.values()
            self._records.clear()

    def remember(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, run: Run,
                 running: Callable[[], int]) -> None:
        """Record a call that came down to this run, if it can be repeated. `running`: how many records are running."""
        with self._lock:
            if not running():                               # what is in no slot cannot begin any more
                self._replaced.clear()
            self._remember(args, kwargs, result, run)

    def _remember(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, run: Run) -> None:
        out = args[2] if len(args) == 3 else kwargs.get("out")
        named = {name: value for name, value in kwargs.items() if name != "out"}
        if not _repeatable(args, out, named, result, run):
            return
        key = _key(args[0], args[1], out, kwargs, pool.get_num_threads())
        slot = _slot(key)
        if slot in self._records and self._records[slot][0] == key:
            return                                          # its operands overlap, or the workspace was taken
        if self._space is None:
            self._space = workspace.take(SPACE)
            self._begin(ctypes.addressof(self._slots), pool.pool())
        work = _work(run, self._space)
        if work is None or len(work.job) > MOST_FIELDS:
            return
        record = self._record(run, work, args, result)
        whole = array("q", [len(key), *record, *key, *(0 for _ in range(KEY - len(key))), *work.job])
        assert len(record) + 1 == len(RECORD)
        if slot in self._records:
            self._replaced.append(self._records[slot])
        kept = [x.dtype for x in (*args[:2], result)], list(named.items()), run.recipe, self._space
        self._records[slot] = key, whole, kept
        self._slots[slot] = whole.buffer_info()[0]

    def _record(self, run: Run, work: Work, args: tuple[Any, ...], result: Any) -> list[int]:
        recipe = run.recipe
        at = {name: place for place, name in enumerate(work.layout)} or recipe.at
        spaced = recipe.space > 0 and not work.layout
        at_a, at_b = (at["b"], at["a"]) if run.swapped else (at["a"], at["b"])
        multiplications = result.size * args[0].shape[-1]
        special = at["special"] if recipe.shape.tiles else len(work.job)
        sizes = [x.itemsize for x in (*args[:2], result)]
        return [work.function, work.parts, work.threads, work.wake, int(work.team),
                int(multiplications >= self._release_above), int(spaced), self._space.barriers,
                recipe.zeroed // 8, len(work.job), at_a, at_b, at["c"], special, *sizes, result.dtype.num, result.ndim,
                *[*result.shape, 0][:3]]


def watching(python: Callable[..., Any], repeats: Repeats, running: Callable[[], int],
             builtin: Callable[[], Any]) -> Callable[..., Any]:
    """The Python function, which remembers calls; a function, since the builtin may call nothing else in Python 3.10.
    """
    def matmul(*args: Any, **kwargs: Any) -> Any:
        if "epilogue" in kwargs:                            # of which runtime/repeats.py has records
            return python(*args, **kwargs)
        made = {name: sys.intern(x) for name, x in kwargs.items() if type(x) is str and sys.intern(x) is not x}
        if made:                                            # names that were read or composed: keys have the usual ones
            return builtin()(*args, **kwargs | made)
        result, run = dispatch.watched(lambda: python(*args, **kwargs))
        if run is not None:
            repeats.remember(args, kwargs, result, run, running)
        return result
    return matmul


def _repeatable(args: tuple[Any, ...], out: Any, named: dict[str, Any], result: Any, run: Run) -> bool:
    """Whether the run was all that the call came down to."""
    if not 2 <= len(args) <= 3 or len(named) > MOST_KEYWORDS or not named.keys() <= KEYWORDS:
        return False
    a, b = (run.b, run.a) if run.swapped else (run.a, run.b)
    for x, ran in zip((*args[:2], result), (a, b, run.c)):
        if (type(x) is not np.ndarray or not 2 <= x.ndim <= 3 or not x.flags.aligned or address(x) != address(ran)
                or x.itemsize != ran.itemsize or (x.dtype.kind == "c") != (ran.dtype.kind == "c")
                or not _lasting(x.dtype)):
            return False
    if out is not result and (out is not None or not result.flags.c_contiguous):
        return False
    return run.alpha == 1 and run.beta == 0 and all(map(_lasting, named.values()))


def _lasting(value: Any) -> bool:
    """Whether equal values are one object, so that its address tells them from others."""
    if type(value) is str:
        return sys.intern(value) is value
    return (isinstance(value, (bool, NoneType, type)) or (type(value) is int and -5 <= value <= 256)
            or (isinstance(value, np.dtype) and value is np.dtype(value.type)))


def _work(run: Run, space: Any) -> Work | None:
    found: Work | None = run.recipe.repeatable(run.batch, run.steps, space)
    return found


def _key(a: Any, b: Any, out: Any, kwargs: dict[str, Any], threads: int) -> tuple[int, ...]:
    """As emit_repeat makes it."""
    def of(x: Any) -> list[int]:
        return [id(x.dtype), x.ndim, *(number for pair in zip(x.shape, x.strides) for number in pair)]

    named = (number for name, value in kwargs.items() if name != "out" for number in (id(name), id(value)))
    return *of(a), *of(b), *named, *([0] if out is None else [1, *of(out)]), threads


def _slot(key: tuple[int, ...]) -> int:
    found = 0
    for word in key:
        found = ((found ^ word) & MASK) * FACTOR & MASK
    return found >> SHIFT & (SLOTS - 1)
