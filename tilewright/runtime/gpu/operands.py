"""Operands of a compiled GEMM in a GPU's memory: whose they are, and whether a kernel can use them as they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.formats.operands import check_operand
from tilewright.plans import gpu
from tilewright.plans.common import Plan
from tilewright.runtime.gpu.arrays import Library, kind, library_of

if TYPE_CHECKING:
    from tilewright.problem import Gemm

Array = NDArray[Any]


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
            raise TypeError(f"{which} is {kind(named[which])} in {first.platform.memory}, and {name} is {other}; all "
                            "arrays of a product must be of one library and on one device")
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
    p, shape = kernel.problem, kernel.problem.shapes[name]
    check_operand(name, shadow, getattr(p, name), shape)
    by_rows = name == "out" or p.layout["ab".index(name)] == "n"
    matrix = shadow[0] if p.batch > 1 else shadow
    found = leading(matrix if by_rows else matrix.T)
    if found is None or (name == "out" and found < shape[-1] and shape[-2] > 1):
        requires = f", as layout {p.layout!r} requires" if name != "out" else ""
        raise ValueError(f"{name} must have contiguous {'rows' if by_rows else 'columns'}{requires}, but its strides "
                         f"are {shadow.strides} bytes")
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


def shape_of(problem: Gemm, target: Any, a: Array, b: Array, c: Array) -> gpu.GpuShape:
    """What a plan for these operands is chosen by: their sizes, formats, addresses and strides."""
    rows = (x if letter == "n" else x.T for x, letter in zip((a, b, c), problem.layout + "n"))
    at = [(x.__array_interface__["data"][0], x.strides[0] if x.shape[0] > 1 else 0) for x in rows]
    found: gpu.GpuShape = gpu.planner(target).shape_of(problem, at)
    return found


def alignment(*matrices: Array) -> tuple[int, ...]:
    """What the choice of a plan takes from the addresses of operands, beside their strides."""
    return tuple(x.__array_interface__["data"][0] % gpu.WIDEST for x in matrices)


def check(kernel: Any, shadows: Sequence[Array]) -> None:
    """ValueError if the plan of a kernel cannot run operands that lie like these, though it may run others."""
    plan, batched = getattr(kernel, "plan", None), kernel.problem.batch > 1
    if not isinstance(plan, Plan) or not all(x.size for x in shadows):
        return
    for matrices in ([x[i] for x in shadows] for i in range(2)) if batched else (shadows,):
        a, b, c = matrices
        if reasons := plan.violations(shape_of(kernel.problem, kernel.target, a, b, c), kernel.target):
            raise ValueError(f"plan {plan} cannot run these operands: {' '.join(reasons)} tilewright.matmul chooses a "
                             "plan that fits")


def no_overlap(a: Array, b: Array, out: Array) -> None:
    """ValueError if the output shares memory with an operand, by their bounds."""
    for name, x in (("a", a), ("b", b)):
        if np.may_share_memory(out, x):
            raise ValueError(f"out must not overlap {name}; tilewright.matmul copies operands where they overlap")


def letter(x: Array) -> str:
    """ "n" if rows are contiguous, "t" if columns are, "" if neither; of rows or columns of one element, the other."""
    by_rows, by_columns = leading(x) is not None, leading(x.T) is not None
    return "n" if by_rows and not (by_columns and x.shape[1] == 1) else "t" if by_columns else ""


def address(x: Array) -> int:
    """Of the first element."""
    return int(x.__array_interface__["data"][0])


def format_of(dtype: np.dtype[Any]) -> str:
    return formats.get(dtype).name
