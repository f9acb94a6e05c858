"""Operands of a compiled GEMM in a GPU's memory: whose they are, and whether a kernel can use them as they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.plans.gpu import REACH
from tilewright.runtime.gpu.arrays import Library, kind, library_of

if TYPE_CHECKING:
    from tilewright.problem import Gemm

Array = NDArray[Any]

WIDEST = 16  # bytes that a thread moves at once, into registers or LDS
ROWS = 256  # of a tile, at the most


def library_of_all(**named: Any) -> Library | None:
    """The library of all these arrays in GPUs' memory; None if none is. TypeError if they are of different kinds."""
    found = {name: library_of(x) for name, x in named.items() if x is not None}
    first = next((library for library in found.values() if library is not None), None)
    if first is None:
        return None
    which = next(name for name, library in found.items() if library is first)
    for name, library in found.items():
        if library is not first:
            other = kind(named[name]) + ("" if library else ", which is not")
            raise TypeError(
                f"{which} is {kind(named[which])} in {first.platform.memory}, and {name} is {other}; "
                "all arrays of a product must be of one library and on one device"
            )
    return first


def same_device(library: Library, **named: Any) -> int:
    """The number of the device that all these arrays are on; ValueError if there is no such."""
    found = {name: library.device(x) for name, x in named.items() if x is not None}
    (first, device), *others = found.items()
    for name, other in others:
        if other != device:
            what = library.platform.name
            raise ValueError(f"{first} is on {what} {device} and {name} on {what} {other}; move one of them")
    return device


def operand(kernel: Any, name: str, shadow: Array) -> int:
    """The leading dimension of an operand, in elements; an exception if the kernel cannot use it as it lies."""
    p = kernel.problem
    shape, dtype = shapes(p)[name], dtype_of(p, name)
    if shadow.dtype != dtype:
        raise TypeError(f"{name} must have dtype {dtype}, as the problem says, not {shadow.dtype}")
    if shadow.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, not {shadow.shape}")
    by_rows = name == "out" or p.layout["ab".index(name)] == "n"
    matrix = shadow[0] if p.batch > 1 else shadow
    found = leading(matrix if by_rows else matrix.T)
    if found is None or (name == "out" and found < shape[-1] and shape[-2] > 1):
        raise ValueError(
            f"{name} must have contiguous {'rows' if by_rows else 'columns'}"
            + (f", as layout {p.layout!r} says" if name != "out" else "")
            + f", but its strides are {shadow.strides} bytes"
        )
    return found


def leading(matrix: Array) -> int | None:
    """Elements from one row to the next; None if rows are not contiguous. A single row may be followed by anything."""
    rows, columns = matrix.shape
    row, column = matrix.strides
    if columns > 1 and column != matrix.itemsize:
        return None
    if rows <= 1:
        return columns
    return row // matrix.itemsize if row % matrix.itemsize == 0 else None


def common_vector(*matrices: Array) -> int:
    """How many elements of these matrices can be moved at once, up to 16 bytes: addresses, distances of rows (or
    columns, or matrices of a batch) and lengths of contiguous rows (or columns) are all multiples of so many."""
    size = matrices[0].itemsize
    bits = WIDEST
    for x in matrices:
        bits |= x.__array_interface__["data"][0]
        for extent, stride in zip(x.shape, x.strides):
            if extent > 1:
                bits |= extent * size if stride == size else stride
        if not any(extent > 1 and stride == size for extent, stride in zip(x.shape, x.strides)):
            bits |= size  # no two elements side by side
    return (bits & -bits) // size


def check_vectors(kernel: Any, shadows: Sequence[Array]) -> None:
    """ValueError if an NVIDIA GPU's plan moves more elements at once than the operands allow."""
    wanted, allowed = vector_width(kernel), common_vector(*shadows)
    if wanted > allowed:
        raise ValueError(
            f"the plan moves {wanted} elements at once, and these operands allow {allowed}: addresses, strides and "
            f"contiguous extents must be multiples of {wanted} elements; tilewright.matmul chooses a plan that fits"
        )


def vector_width(kernel: Any) -> int:
    """Elements that the kernel's plan moves at once."""
    return int(getattr(getattr(kernel, "plan", None), "vector", 1))


def check_lds_copies(kernel: Any, shadows: Sequence[Array]) -> None:
    """ValueError if an AMD GPU's plan copies rows of A and B directly into LDS that do not begin at multiples of 16
    bytes."""
    if kernel.plan.copy == "direct" and not fits_lds_copies(*shadows[:2]):
        raise ValueError(
            f"the plan copies rows of A and B directly into LDS (copy=direct), for which addresses and strides must be "
            f"multiples of {WIDEST} bytes and {ROWS} rows must span less than 2^31 bytes; tilewright.matmul chooses a "
            "plan that fits"
        )


def fits_lds_copies(*matrices: Array) -> bool:
    """Do addresses and distances of rows allow a plan with copy=direct?"""
    steps = [stride for x in matrices for n, stride in zip(x.shape, x.strides) if n > 1 and stride != x.itemsize]
    near = all(0 <= step * ROWS <= REACH for step in steps)
    return near and not any(x % WIDEST for x in (*steps, *(m.__array_interface__["data"][0] for m in matrices)))


def no_overlap(a: Array, b: Array, out: Array) -> None:
    """ValueError if the output shares memory with an operand, by their bounds."""
    for name, x in (("a", a), ("b", b)):
        if np.may_share_memory(out, x):
            raise ValueError(f"out overlaps {name}; tilewright.matmul makes the copy that this needs")


def shapes(p: Gemm) -> dict[str, tuple[int, ...]]:
    batch = (p.batch,) if p.batch != 1 else ()
    return {"a": (*batch, p.m, p.k), "b": (*batch, p.k, p.n), "out": (*batch, p.m, p.n)}


def dtype_of(p: Gemm, name: str) -> np.dtype[Any]:
    """Of a, b or out."""
    return formats.FORMATS[getattr(p, name)].dtype
