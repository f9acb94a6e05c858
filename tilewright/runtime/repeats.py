"""Calls like an earlier one: what was chosen for that one runs again for other arrays, without rules, tracing or plans.

What makes calls alike is in a key: of every array what its library says about plain ones (dtype, sizes, strides, where
it is) and the bits of its address that a plan depends on; of a function what it names (expressions/remembered.py); and
whatever else was asked for. Nothing else is looked at, so a call is remembered only if it ran one recipe, directly
on the caller's arrays. Where a given result may overlap another array, a call is not repeated.

Most products of NumPy's arrays are repeated by emitted code before they come here: api/builtin_repeats.py.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tilewright.expressions import remembered
from tilewright.kernels.cpu import jobs
from tilewright.rules.arguments import Array
from tilewright.rules.signature import DECODED, NUMBERS, signature
from tilewright.runtime.cpu import pool
from tilewright.runtime.cpu.layout import address, addresses
from tilewright.runtime.program import Run

MOST = 4096
ALIGNED, BOTH = 0x100, 0x500            # NumPy's flags: ALIGNED, and WRITEABLE too
NDARRAY = np.ndarray
FACTORS = {int, float}                 # types of alpha and beta

Asked = tuple[tuple[Any, ...], list[int]]           # a key; and the addresses of arrays, then of results


class Record(NamedTuple):
    run: Run                                # (addresses, arrays, results, alpha, stream) → true if these mean nothing
    results: tuple[Callable[..., Any], ...]     # what makes them; on a device it takes a stream
    spans: tuple[tuple[int, int], ...]      # the bytes that each array reaches over, from its address on
    device: int | None                      # None: the host
    kept: Any                               # what the key has ids of
    product: Callable[[list[int]], Any] | None      # of the addresses the engine's Run, if the call came down to one
    shared: tuple[tuple[int, int], ...]     # which array is which result, in the same memory


def no_program(*_: Any) -> bool:
    """The run of calls that do something else than run a program."""
    return True


# By keys; emptied when plans are chosen anew, and with them what is made of records.
records: dict[tuple[Any, ...], Record] = {}
derived: list[dict[Any, Any]] = []


class _Watch(threading.local):
    """Calls of this thread that are or become records, with their addresses, where a caller wants to know them."""
    ran: list[tuple[Record, list[int]]] | None = None
    temporaries: tuple[Any, ...] = ()       # tensors that these calls write for each other


watch = _Watch()


class watching:
    """Within, a list of the calls of this thread that are or become records, with their addresses. A class, since a
    generator as context takes a microsecond more."""

    def __enter__(self) -> list[tuple[Record, list[int]]]:
        self.before, watch.ran = watch.ran, (ran := list[tuple[Record, list[int]]]())
        self.ran = ran
        return ran

    def __exit__(self, *_: object) -> None:
        watch.ran = self.before
        if self.before is not None:
            self.before += self.ran
        else:
            watch.temporaries = ()


class View(NamedTuple):
    """An array but for its address."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    memory: Any                 # ctypes' type of its bytes
    first: int                  # of these is that of the first element

    @classmethod
    def of_array(cls, x: Array) -> View:
        low, high = _span(x) if x.size else (0, 0)
        return cls(x.shape, x.dtype, x.strides, ctypes.c_char * (high - low), -low)

    def array(self, place: int) -> Array:
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

    def maker(self, shape: tuple[int, ...], x: Array, device: None) -> Callable[[], Array]:
        """Makes arrays of this shape like x."""
        array: Any = np.ndarray
        return partial(np.empty, shape, x.dtype) if x.flags.c_contiguous else partial(
            array, shape, x.dtype, None, 0, x.strides)

    pointer = staticmethod(address)


HOST = _Host()


def array_of(x: Any) -> Any:
    """A number of Python's as the array that rules make of it; anything else as it is."""
    return np.asarray(x) if type(x) is float or type(x) is int else x


def asked_on_host(library: Any, a: Any, b: Any, outs: Sequence[Any], out_dtype: Any, trans_a: Any, trans_b: Any,
                  threads: Any, epilogue: Any, operands: Any, c: Any = None, scale_a: Any = None, scale_b: Any = None,
                  prologue_a: Any = None, prologue_b: Any = None, algorithm: Any = None, plan: Any = None,
                  alpha: Any = 1, beta: Any = 0, deterministic: Any = False, batch_invariant: Any = False,
                  updates: bool = False) -> tuple[Asked | None, Sequence[Any]]:
    """What a product of these arguments of matmul, or with `updates` of gemm, is known by, and the arrays that it
    reads."""
    if not (operands is None or type(operands) is dict):
        return None, ()
    read: Any = (a, b, *operands.values()) if operands else (a, b)
    given: tuple[Any, ...] = (epilogue,)
    more: tuple[Any, ...] = ()
    if not (c is scale_a is scale_b is prologue_a is prologue_b is plan is algorithm is None
            and deterministic is batch_invariant is False and type(alpha) is int and alpha == 1
            and type(beta) is int and beta == 0 and type(a) not in DECODED and type(b) not in DECODED):
        factors = type(alpha), alpha, type(beta), beta
        if not {*factors[::2]} <= FACTORS or alpha != alpha or beta != beta or (
                not type(deterministic) is type(batch_invariant) is bool):
            return None, ()
        by_name, described = signature(a, b, operands, scale_a, scale_b, c)
        read, given = by_name.values(), (epilogue, prologue_a, prologue_b)
        more = algorithm, plan, *factors, deterministic, batch_invariant, updates, *described
    alone = operands is epilogue is prologue_a is prologue_b is None
    known_by = given if alone else remembered.keys(given)
    if known_by is None:
        return None, ()
    arrays = [np.asarray(x) if type(x) is float or type(x) is int else x for x in read] if operands else [*read]
    threads = pool.get_num_threads() if threads is None else threads
    asked: Asked | None = library.asked((*arrays, *outs), known_by, (*(operands or ()),), out_dtype, trans_a, trans_b,
                                        type(threads), threads, *more)
    if asked is not None and outs[0] is not None and (same := same_memory(asked[1], len(arrays))):
        asked = (*asked[0], same), asked[1]
    return asked, arrays


def beside(alpha: Any, beta: Any, c: Any, epilogue: Any, operands: Any) -> tuple[Sequence[Any], tuple[Any, ...]] | None:
    """The arrays beside a product's operands, and what else makes calls alike; None for calls that are not remembered.
    """
    factors = type(alpha), alpha, type(beta), beta
    known_by = remembered.keys((epilogue,)) if {*factors[::2]} <= FACTORS and alpha == alpha and beta == beta else None
    if known_by is None or not (operands is None or type(operands) is dict):
        return None
    names: Any = operands or ()
    arrays = [*names.values()] if operands else []
    if c is not None and type(c) not in NUMBERS:
        arrays.append(c)
        c = NDARRAY
    if not FACTORS.isdisjoint(map(type, arrays)):
        arrays = [*map(array_of, arrays)]
    return arrays, (known_by, *factors, *names, type(c), repr(c))


def asked_on_device(library: Any, a: Any, b: Any, outs: Sequence[Any], out_dtype: Any, trans_a: Any, trans_b: Any,
                    threads: Any, epilogue: Any, operands: Any, c: Any, scale_a: Any, scale_b: Any, prologue_a: Any,
                    prologue_b: Any, algorithm: Any, plan: Any, alpha: Any, beta: Any, deterministic: Any,
                    batch_invariant: Any) -> tuple[Asked | None, Sequence[Any]]:
    """What a product on a GPU is known by, which takes alpha as a number, and the arrays that it reads."""
    if (threads is not None or type(alpha) not in FACTORS or not alpha or abs(alpha) >= 2.0**31
            or type(beta) not in FACTORS or beta != beta or not type(deterministic) is type(batch_invariant) is bool):
        return None, ()
    if (out_dtype is c is scale_a is scale_b is epilogue is prologue_a is prologue_b is operands is algorithm is None
            and deterministic is batch_invariant is False and not (beta or trans_a or trans_b)
            and type(a) not in DECODED and type(b) not in DECODED):
        return library.asked((a, b, *outs), plan), (a, b)
    given = epilogue, prologue_a, prologue_b
    known_by = given if epilogue is prologue_a is prologue_b is None else remembered.keys(given)
    if known_by is None or not (operands is None or type(operands) is dict):
        return None, ()
    named, described = signature(a, b, operands, scale_a, scale_b, c)
    arrays = (*named.values(),)
    return library.asked((*arrays, *outs), known_by, out_dtype, trans_a, trans_b, algorithm, plan, beta, deterministic,
                         batch_invariant, *described), arrays


def again(library: Any, like: Asked, arrays: Sequence[Any], results: Sequence[Any], alpha: Any = 1) -> Any:
    """The result, or a tuple of them, if there was such a call; None if the long way has to be taken."""
    key, at = like
    try:
        record = records.get(key)
    except TypeError:                   # what cannot be hashed, of which the long way has words
        return None
    if record is None:
        return None
    run, made, spans, device, _, _, shared = record
    stream = 0 if device is None else library.stream(arrays[0], device)
    if len(made) == 1 and results[0] is None:       # as below, but in less time
        x = made[0]() if device is None else made[0](stream)
        at[-1] = place = library.pointer(x)
        if place & library.alignment or run(at, arrays, (x,), alpha, stream):
            return None
        if watch.ran is not None:
            watch.ran.append((record, at))
        return x
    outs, i = [], len(arrays)
    if len(made) > len(results):                    # one None stands for all
        results = (None,) * len(made)
        at += [0] * (len(made) - 1)
    for new, x in zip(made, results):
        if x is None:
            x = new() if device is None else new(stream)
            at[i] = place = library.pointer(x)
            if place & library.alignment:
                return None
        elif _overlaps(at, spans, i, shared):
            return None
        outs.append(x)
        i += 1
    if run(at, arrays, outs, alpha, stream):
        return None
    if watch.ran is not None:
        watch.ran.append((record, at))
    return tuple(outs) if len(outs) > 1 else x


def remember(like: Asked, run: Run, arrays: Sequence[Array], results: Sequence[Array], device: int | None = None,
             kept: Any = None, shape: tuple[int, ...] | None = None, product: Any = None) -> None:
    """What a call came to. `arrays` and `results`: these, or their shadows; `shape`: of the only result, if it is
    another than the shadow's."""
    library = like[0][0]
    made = tuple(library.maker(shape or x.shape, x, device) for x in results)
    if None in made:                    # in a format that the library lacks
        return
    spans, at = tuple(map(_span, (*arrays, *results))), [*map(address, (*arrays, *results))]
    keep(like[0], Record(run, made, spans, device, kept, product, same_memory(at, len(arrays))), at)


def keep(key: tuple[Any, ...], record: Record, at: list[int] | None) -> None:
    """The record of calls with this key from here on, of which one ran just now with these addresses, if it has some.
    """
    if len(records) >= MOST:
        records.clear()
    records[key] = record
    if watch.ran is not None and at is not None:
        watch.ran.append((record, at))


def filled(table: Any, rows: Sequence[int], at: list[int]) -> Any:
    """A table of operands with their addresses."""
    words = table[:]
    for row, i in enumerate(rows):
        words[row * len(jobs.OPERAND)] = at[i]
    return words


def forget() -> None:
    for table in (records, *derived):
        table.clear()


def same_memory(at: list[int], count: int) -> tuple[tuple[int, int], ...]:
    """(array, result) of those that begin in the same place. `count`: of arrays."""
    return tuple([(i, j) for j in range(count, len(at)) for i in range(count) if at[i] == at[j] != 0])


def _overlaps(at: list[int], spans: Sequence[tuple[int, int]], which: int, shared: tuple[tuple[int, int], ...]) -> bool:
    """Whether this one may have memory of any other than those that it is."""
    low, high = at[which] + spans[which][0], at[which] + spans[which][1]
    for i, (begin, end) in enumerate(spans):
        if low < at[i] + end and at[i] + begin < high and i != which and (i, which) not in shared:
            return True
    return False


def _span(x: Array) -> tuple[int, int]:
    low, high = 0, x.itemsize
    for n, stride in zip(x.shape, x.strides):
        low, high = low + min((n - 1) * stride, 0), high + max((n - 1) * stride, 0)
    return low, high


def dense(x: Array) -> bool:
    """Whether a new array of this shape and these strides has room for its elements, and no more."""
    return not x.size or sorted(x.strides[at] for at in range(x.ndim) if x.shape[at] > 1) == sorted(
        stride for stride, extent in zip(_packed(x), x.shape) if extent > 1)


def _packed(x: Array) -> list[int]:
    strides, step = [0] * x.ndim, x.itemsize
    for at in sorted(range(x.ndim), key=lambda at: (x.strides[at], x.shape[at])):
        strides[at], step = step, step * x.shape[at]
    return strides
