"""Calls of loops on a GPU like an earlier one: its launches once more at other addresses, without a look at the arrays.

What makes calls alike is what the arrays' library says about plain ones (shapes, strides, formats, the last bits of
addresses), and the numbers among the arguments.
"""
from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, cast
from weakref import WeakSet

import numpy as np

from tilewright.runtime import repeats
from tilewright.runtime.gpu.arrays import library_of

MOST_CALLS = 64                 # that are kept of a function
MOST_LAUNCHES = 256             # of a call
NUMBERS = {int, float}


class _Launches(NamedTuple):
    """`steps`: records, each with its addresses: the number of an array, and bytes from its first element; `apart`:
    arrays of which one is written; `spans`: the bytes that arrays reach over."""
    steps: tuple[tuple[repeats.Record, tuple[tuple[int, int], ...]], ...]
    apart: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, int], ...]


class Calls:
    """The calls of one function; none are known any more when plans are chosen anew."""

    every: ClassVar[WeakSet[Calls]] = WeakSet()
    library: Any = None

    def __init__(self) -> None:
        self.known: dict[Any, _Launches] = {}
        self.every.add(self)

    @classmethod
    def clear(cls) -> None:
        for calls in cls.every:
            calls.known.clear()

    def again(self, args: Sequence[Any]) -> bool:
        """Launch as a call of arguments like these did; False, and nothing done, if there was none."""
        library = self.library
        if library is None:
            return False
        arrays = [x for x in args if type(x) not in NUMBERS]
        asked = library.asked(arrays)
        if asked is None:
            return False
        numbers = [(type(x), x or str(x)) for x in args if type(x) in NUMBERS] if len(arrays) < len(args) else ()
        launches = self.known.get((asked[0], *numbers))
        if launches is None:
            return False
        at = asked[1]
        if meet(at, launches.apart, launches.spans):
            return False
        stream = library.stream(arrays[0], launches.steps[0][0].device)
        for record, places in launches.steps:
            addresses = [at[i] + offset for i, offset in places]
            if record.run(addresses, (), (), 1, stream):
                raise AssertionError("a program does not take a factor of 1")
            if repeats.watch.ran is not None:
                repeats.watch.ran.append((record, addresses))
        return True

    def run(self, args: Sequence[Any], seen: Sequence[Any], written: Sequence[int],
            first: Callable[[], int | None]) -> None:
        """first(), which launches, and says how many launches there are, all of whose arrays are views of the call's;
        None: others may come to something else. `seen`: shadows of arrays, and numbers; `written`: which of them."""
        places = [n for n, x in enumerate(seen) if isinstance(x, np.ndarray)]
        library = library_of(*[args[n] for n in places])
        asked = None if library is None else library.asked([args[n] for n in places])
        if asked is None:
            first()
            return
        with repeats.watching() as ran:
            count = first()
        spans, at = tuple([span(seen[n]) for n in places]), asked[1]
        ends = sorted((where + low, where + high) for where, (low, high) in zip(at, spans))
        if len(ran) != count or not 0 < count <= MOST_LAUNCHES or any(x[1] > y[0] for x, y in pairwise(ends)):
            return                      # a place may be in several arrays, or in none
        steps = [(record, [_place(x, at, spans) for x in addresses]) for record, addresses in ran]
        if any(record.device is None or None in owner for record, owner in steps):
            return
        self.library = library
        if len(self.known) >= MOST_CALLS:
            self.known.clear()
        number = {n: i for i, n in enumerate(places)}
        apart = tuple([(number[n], i) for n in written for i in range(len(places)) if i != number[n]])
        key = asked[0], *[(type(x), x or str(x)) for n, x in enumerate(args) if n not in number]    # -0.0 is not 0.0
        self.known[key] = _Launches(cast(Any, tuple([(record, tuple(owner)) for record, owner in steps])), apart, spans)


repeats.derived.append(cast(Any, Calls))
atexit.register(Calls.clear)            # while the driver is there to be given the code back


def meet(at: Sequence[int], apart: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> bool:
    """Whether any of these pairs of arrays share memory."""
    for i, j in apart:
        if at[i] + spans[i][0] < at[j] + spans[j][1] and at[j] + spans[j][0] < at[i] + spans[i][1]:
            return True
    return False


def span(x: np.ndarray) -> tuple[int, int]:
    """The first byte of its elements and the one behind the last, from its address on."""
    ways = [(n - 1) * stride for n, stride in zip(x.shape, x.strides)] if x.size else []
    return sum(min(way, 0) for way in ways), sum(max(way, 0) for way in ways) + x.itemsize * (x.size > 0)


def _place(address: int, at: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """In which array this is, and how far from its address; None: in none."""
    return next(((i, address - at[i]) for i, (first, last) in enumerate(spans)
                 if at[i] + first <= address < at[i] + last), None)
