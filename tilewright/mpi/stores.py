"""How parts of an operand become messages of bytes, and messages operands: plain arrays, and numbers with scales.

A message of numbers with scales has the elements of a piece, then their scales, then zero points. How long each is
follows from the piece's size, so that nothing but bytes is sent.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm, prod
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Scaled
from tilewright.mpi.layouts import slices
from tilewright.mpi.transport import Bytes

ONE, EACH, GROUP = "1eg"    # how many scales there are along an axis: one, one for each element, one for each group
Shape = tuple[int, ...]


def scaled(x: Any) -> bool:
    return isinstance(x, (Scaled, Quantized))


class Plain:
    """Elements of a NumPy array."""

    pooled = True    # buffers are used again
    unit = 1, 1      # along rows and columns: pieces begin at multiples

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype, self.bytes = dtype, float(dtype.itemsize)

    @property
    def trial(self) -> np.dtype[Any]:
        """The dtype of an array that multiplies as these do."""
        return self.dtype

    def size(self, rows: int, cols: int) -> int:
        return rows * cols * self.dtype.itemsize

    def similar(self, dtype: np.dtype[Any]) -> Plain:
        """A store of arrays of another dtype in the same memory."""
        return Plain(dtype)

    def empty(self, rows: int, cols: int) -> Any:
        return np.empty((rows, cols), self.dtype)

    def blank(self, rows: int, cols: int) -> Any:
        """Where a message of a piece of this size is received."""
        return np.empty(self.size(rows, cols), np.uint8)

    def ready(self) -> None:
        """What was begun before is done: the operand can be read."""

    def launched(self) -> None:
        """A product of the panels made last has begun, and is not done unless it runs on the CPU."""

    def finished(self) -> None:
        """Wait until no product reads a panel."""

    def message(self, part: Any) -> Any:
        """A piece as bytes; of a contiguous one no copy."""
        return np.ascontiguousarray(part).reshape(-1).view(np.uint8)

    def operand(self, buffer: Any, rows: int, cols: int) -> Any:
        return buffer.view(self.dtype).reshape(rows, cols)

    def joined(self, parts: list[tuple[Any, Any]], rows: int, cols: int, axis: int) -> Any:
        """Pieces of a panel at their indices along an axis."""
        joint = np.empty((rows, cols), self.dtype)
        for at, part in parts:
            index = slices(at)
            joint[(index, slice(None)) if axis == 0 else (slice(None), index)] = part
        return joint


class WithScales(Plain):
    """Numbers with scales like those of a local part. kinds: for each axis ONE, EACH or GROUP, of Scaled."""

    def __init__(self, like: Scaled | Quantized, kinds: str) -> None:
        self.like, self.kinds = like, kinds
        blocked = [1, 1]
        if isinstance(like, Quantized):
            self.element = like.format.element
            blocked[like.axis] = like.format.block
        else:
            self.element = like.format
            for axis, kind in enumerate(kinds):
                blocked[axis] = like.group if kind == GROUP else 1
            if like.nibbles:
                blocked[like.nibbles.axis] = lcm(2, blocked[like.nibbles.axis])
        self.unit = blocked[0], blocked[1]
        self.bytes = self.element.bits / 8
        self.dtype = np.dtype(np.float32)

    def shapes(self, rows: int, cols: int) -> list[tuple[Shape, np.dtype[Any]]]:
        """The shapes and dtypes of elements, scales and zero points."""
        x = self.like
        if isinstance(x, Quantized):
            other, along = (rows, cols) if x.axis == -1 else (cols, rows)
            blocks = x.format.blocks(along)
            byte = np.dtype(np.uint8)
            return [((other, blocks * x.format.block_bytes), byte), ((other, blocks), byte)]
        elements = [rows, cols]
        if x.nibbles:
            elements[x.nibbles.axis] = -(-elements[x.nibbles.axis] // 2)
        counts = {ONE: lambda n: 1, EACH: lambda n: n, GROUP: lambda n: -(-n // x.group)}
        scales = tuple(counts[kind](n) for kind, n in zip(self.kinds, (rows, cols)))
        zeros = [] if x.zeros is None else [(scales, x.zeros.dtype)]
        return [(tuple(elements), x.elements.dtype), (scales, x.scales.dtype), *zeros]

    def size(self, rows: int, cols: int) -> int:
        return sum(prod(shape) * dtype.itemsize for shape, dtype in self.shapes(rows, cols)) if rows and cols else 0

    def message(self, part: Any) -> Bytes:
        arrays = [part.elements, part.scales, *([] if getattr(part, "zeros", None) is None else [part.zeros])]
        return np.concatenate([np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in arrays])

    def operand(self, buffer: Bytes, rows: int, cols: int) -> Any:
        arrays, at = [], 0
        for shape, dtype in self.shapes(rows, cols):
            end = at + prod(shape) * dtype.itemsize
            arrays.append(np.array(buffer[at:end]).view(dtype).reshape(shape))      # a copy, aligned
            at = end
        x = self.like
        if isinstance(x, Quantized):
            return Quantized(arrays[0], arrays[1], (rows, cols), x.format, x.axis, x.tensor_scale)
        how = x.nibbles and x.nibbles._replace(length=(rows, cols)[x.nibbles.axis])
        return replace(x, elements=arrays[0], scales=arrays[1], zeros=arrays[2] if x.zeros is not None else None,
                       nibbles=how)

    def joined(self, parts: list[tuple[Any, Any]], rows: int, cols: int, axis: int) -> Any:
        raise ValueError("numbers with scales are sent in panels that one process has")


def described(x: Any) -> str:
    """What must be equal on all ranks."""
    if isinstance(x, Quantized):
        return f"{x.format} along axis {x.axis}, scaled by {x.tensor_scale}"
    if isinstance(x, Scaled):
        shared = f", {x.nibbles.format} in halves of bytes along axis {x.nibbles.axis}" if x.nibbles else ""
        zeros = "" if x.zeros is None else f", zero points of {x.zeros.dtype}"
        return f"{x.format} with scales of {x.scales.dtype} in groups of {x.group}{shared}{zeros}"
    return str(x.dtype) if isinstance(x, np.ndarray) else f"{x.dtype} in a GPU's memory"


def possible(x: Any) -> str:
    """For each axis the kinds that the scales of a local part may be of: "1e 1g"."""
    if not isinstance(x, Scaled):
        return "- -"
    sentences = []
    for n, count in zip(x.shape, x.scales.shape):
        groups = -(-n // x.group) if x.group else -1
        sentences.append(ONE * (count == 1) + EACH * (count == n) + GROUP * (count == groups))
    return " ".join(sentences)


def store_of(x: Any, said: list[str]) -> Plain:
    """The store for matrices of which x is the local part. said: `possible` of all ranks. A small part leaves open
    which kind of scales there are along an axis; what all parts leave open makes no difference."""
    if not scaled(x):
        return Plain(x.dtype)
    kinds = ""
    for axis in (0, 1):
        left = set.intersection(*(set(text.split()[axis]) for text in said))
        kinds += next((kind for kind in (EACH, GROUP, ONE, "-") if kind in left), "?")
    if "?" in kinds:
        raise ValueError("local must have scales of one kind along each axis on all ranks: one, one for each element "
                         f"or one for each group, and ranks have {', '.join(sorted(set(said)))} (1, e, g)")
    return WithScales(x, kinds)


def turned(store: Plain, transposed: Any) -> Plain:
    """The store of the transposed matrix."""
    return WithScales(transposed, store.kinds[::-1]) if isinstance(store, WithScales) else store


def known(x: Any) -> bool:
    """Can x be a local part?"""
    return scaled(x) or (isinstance(x, np.ndarray) and formats.find(x.dtype) is not None)
