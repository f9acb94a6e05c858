"""What may be multiplied: Dask arrays, NumPy's, which are cut as the other operand is, and what is one block."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize

from tilewright.compiled.packed_weights import PackedWeights
from tilewright.dask import blocks, chunks
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Scaled
from tilewright.rules import arguments
from tilewright.rules.subscripts import Labels
from tilewright.runtime.cpu.packed import Packed

WHOLE = Quantized, Scaled, Packed, PackedWeights


@dataclass(frozen=True)
class Fixed:
    """An operand that is multiplied as a whole, in the place of a Dask array: one block, under one key."""
    name: str
    value: Any
    shape: tuple[int, ...]
    fixed: bool = True

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        return tuple((n,) for n in self.shape)

    @property
    def numblocks(self) -> tuple[int, ...]:
        return (1,) * len(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return int(self.value.nbytes)


def fixed(x: Any) -> Fixed:
    token = tokenize(*blocks.Whole(x).__reduce__()[1]) if isinstance(x, (Packed, PackedWeights)) else tokenize(x)
    return Fixed(f"tilewright-whole-{token}", x, tuple(x.shape))


def operand(x: Any, name: str, whole: bool = False) -> Any:
    """A Dask array as it is; weights of few bits and packed ones as a whole, where the call takes these; everything
    else as NumPy's array."""
    if isinstance(x, da.Array):
        if type(x._meta) is not np.ndarray:
            raise TypeError(f"{name} must have blocks that are NumPy arrays, and they are "
                            f"{type(x._meta).__module__}.{type(x._meta).__name__}")
        return x
    if isinstance(x, WHOLE):
        if not whole:
            raise TypeError(f"{name} must be an array of Dask or NumPy, not {type(x).__name__}: b of matmul and of "
                            "grouped_matmul may be quantized or packed")
        return fixed(x)
    return arguments.operand(x, name)


def cut_alike(a: Any, b: Any, labels: Sequence[Labels]) -> list[Any]:
    """Both operands, NumPy's arrays as Dask's: cut where the other is, along axes of one label."""
    pair = [a, b]
    for i, (own, other) in enumerate((labels, labels[::-1])):
        if isinstance(pair[i], np.ndarray):
            theirs = dict(zip(other, getattr(pair[1 - i], "chunks", ())))
            cut = [theirs.get(label, (n,)) for label, n in zip(own, pair[i].shape)]
            fits = [chunks.known(c) and sum(c) == n for c, n in zip(cut, pair[i].shape)]
            pair[i] = da.from_array(pair[i], chunks=tuple(
                c if fit else (n,) for c, fit, n in zip(cut, fits, pair[i].shape)))
    return [_merged(x) for x in pair]


def _merged(x: Any) -> Any:
    """With one block along axes of size 1, which broadcast."""
    for axis, n in enumerate(() if x is None else x.shape):
        if n == 1 and len(x.chunks[axis]) > 1:
            x = chunks.rechunked(x, axis, (1,))
    return x


def is_array(x: Any) -> bool:
    """Whether it is an array with axes, of NumPy or Dask, and no number."""
    return isinstance(x, (np.ndarray, da.Array)) and x.ndim > 0
