"""A call, prepared: steps over numbered buffers, which later calls of its kind take again with other arrays.

While a call runs for the first time, a `Recorder` notes what it does, with the arrays, each a view of one of the call's
buffers: its arrays, its results, its temporaries, or what is the same in all calls. A view says whose memory it shows
(`base`). runtime/gpu/program.py and runtime/cpu/program.py have the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.rules.arguments import Array
from tilewright.runtime.cpu.layout import address

Run = Callable[[list[int], Sequence[Any], Sequence[Any], float, int], Any]      # see repeats.Record
Make = Callable[[tuple[int, ...]], Any]     # of the numbers that its arrays' addresses have: a step


class Buffers:
    """Numbers of addresses: the call's arrays and results, then temporaries, then `inside`: (buffer, bytes from its
    address) of views that begin elsewhere, (-1, address) of what is the same in all calls."""

    def __init__(self, arrays: Sequence[Array | None], temporaries: Sequence[Array], constants: Sequence[Array] = ()
                 ) -> None:
        """arrays: results, too; None for numbers."""
        self.keep = [*arrays, *temporaries, *constants]
        self.sizes, self.count = [x.nbytes for x in temporaries], len(arrays) + len(temporaries)
        self.inside: dict[tuple[int, int], int] = {}
        self._roots = {id(root(x)): (i if i < self.count else -1, address(x))
                       for i, x in enumerate(self.keep) if x is not None}

    def number(self, x: Any) -> int:
        """Which address is an array's, or that of all calls. LookupError if it is in no buffer."""
        if type(x) is int:
            buffer, offset = -1, x
        else:
            buffer, offset = self._roots[id(root(x))]
            offset = address(x) - (offset if buffer >= 0 else 0)
        if buffer >= 0 and not offset:
            return buffer
        return self.inside.setdefault((buffer, offset), self.count + len(self.inside))

    def places(self, alignment: int) -> tuple[list[int], int]:
        """Offsets of the temporaries in one block, and its size."""
        offsets, size = [], 0
        for x in self.sizes:
            offsets.append(size)
            size += -(-x // alignment) * alignment
        return offsets, size


class Recorder:
    """What a call does, in order, with the arrays. `whole`: whether it can be done again."""

    def __init__(self) -> None:
        self.noted: list[tuple[Make, Sequence[Any]]] = []
        self.temporaries: list[Array] = []
        self.whole = True

    def step(self, make: Make, arrays: Sequence[Any]) -> None:
        """Arrays may be addresses instead, which all calls have."""
        self.noted.append((make, arrays))

    def steps(self, buffers: Buffers) -> list[Run] | None:
        """None if the call cannot be made again."""
        if not self.whole:
            return None
        try:
            return [make(tuple(map(buffers.number, arrays))) for make, arrays in self.noted]
        except LookupError:                     # memory that is in none of the call's buffers
            return None


def root(x: Any) -> Any:
    """What a view's memory was first described by."""
    while True:
        inner = getattr(x, "base", None)
        if inner is None:
            inner = getattr(x, "keep", None)
            if not isinstance(inner, np.ndarray):
                return x
        x = inner
