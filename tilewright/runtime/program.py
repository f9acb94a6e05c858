"""The buffers of a call that is prepared: which of them an array among its arguments lies in.

A view says whose memory it shows (`base`), so that what a call does with arrays can be done again with other ones:
runtime/gpu/program.py and runtime/cpu/program.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Place = tuple[int, int]             # a buffer's number, and bytes from its address
NOWHERE: Place = (-1, 0)            # the address 0 of a parameter that a kernel does not use


class Buffers:
    """A call's arrays and results, in the order of their addresses, then its temporaries."""

    def __init__(self, alpha: Any, arrays: Mapping[str, Array | None], results: Sequence[Array],
                 temporaries: Sequence[Array]) -> None:
        """alpha: the call's. Shadows of arrays by name, None for numbers."""
        self.alpha, self.names = alpha, {name: i for i, name in enumerate(arrays)}
        self.sizes = [x.nbytes for x in temporaries]
        whole = [*arrays.values(), *results, *temporaries]
        self.roots = {id(root(x)): (i, address_of(x)) for i, x in enumerate(whole) if x is not None}
        self.keep = whole

    def place(self, x: Any) -> Place:
        """Where an array is, or the address 0. LookupError if it is in no buffer."""
        if type(x) is int:
            if x:
                raise LookupError(x)
            return NOWHERE
        buffer, at = self.roots[id(root(x))]
        return buffer, address_of(x) - at


def root(x: Any) -> Any:
    """What a view's memory was first described by."""
    while True:
        inner = getattr(x, "base", None)
        if inner is None:
            inner = getattr(x, "keep", None)
            if not isinstance(inner, np.ndarray):
                return x
        x = inner


def address_of(x: Array) -> int:
    return int(x.__array_interface__["data"][0])
