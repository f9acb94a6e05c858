"""A layout of arrays in shared memory that is no strides: a function from an index to the element it is kept in.

It is applied to Python numbers to prove something of it, and to values of a kernel to compute addresses:
`smem.view(layout=Swizzle(64, 8))[i, j]`.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Swizzle:
    """Rows of `width` elements, in which vectors of `vector` elements change places: vector v of row i is kept where v
    XOR i was, so that a column of vectors lies in different banks. Both are powers of two.

    A row of 128 bytes in vectors of 16 is the pattern of NVIDIA's 128-byte swizzle.
    """
    width: int
    vector: int

    def __post_init__(self) -> None:
        for what in ("width", "vector"):
            n = getattr(self, what)
            if n < 1 or n & (n - 1):
                raise ValueError(f"the {what} of a swizzle is a power of two, not {n}")
        if self.vector > self.width:
            raise ValueError(f"a row of {self.width} elements has no vectors of {self.vector}")

    def __call__(self, i: Any, j: Any) -> Any:
        """Where element (i, j) is kept; vectors must begin at multiples of their length."""
        moved = (i % (self.width // self.vector)) * self.vector
        return i * self.width + (j ^ moved)
