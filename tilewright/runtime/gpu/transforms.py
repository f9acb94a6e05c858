"""What the prologues of operands read beside them in a GPU's memory, as kernels take it (kernels/gpu/transform.py).

Arrays are shadows with two axes, rows and columns of the operand as it is multiplied, of which an axis of 1 has one
number for all, and the one along k may have a number for each group. What varies across k of an operand that is
contiguous across it must be contiguous and as aligned as vectors can be; anything else is copied before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.plans import gpu_shape, prologues
from tilewright.runtime.gpu.operands import address, format_of

if TYPE_CHECKING:
    from tilewright.expressions.function import Aux
    from tilewright.problem import Gemm

Array = NDArray[Any]
I_AXIS = {"a": 0, "b": 1}                   # of rows of A, and columns of B


def beside(problem: Gemm) -> Iterator[tuple[str, Aux]]:
    """(operand, what its prologue reads), in the order of arrays and of addresses."""
    for role in problem.prologues:
        for each in prologues.read(getattr(problem, f"prologue_{role}")).reads:
            yield role, each


def pointers(problem: Gemm) -> list[str]:
    """The parameters that are addresses, in this order."""
    return [each.parameter(role) for role, each in beside(problem)]


def strides(problem: Gemm, arrays: list[Array]) -> dict[str, int]:
    """What a kernel takes beside their addresses."""
    found = {}
    for (role, each), x in zip(beside(problem), arrays, strict=True):
        at = I_AXIS[role]
        for letter, axis in ("i", at), ("k", 1 - at):
            apart = x.strides[axis] // x.itemsize if x.shape[axis] > 1 else 0
            found[f"{letter}_{each.parameter(role)}"] = apart
    return found


def ready(x: Array, role: str, along_k: bool) -> bool:
    """Whether a kernel can read it where it is; `along_k`: the operand has k contiguous."""
    at = I_AXIS[role]
    if any(x.strides[axis] % x.itemsize for axis in (0, 1) if x.shape[axis] > 1) or address(x) % x.itemsize:
        return False
    if along_k or x.shape[at] == 1:
        return True
    apart = [x.strides[1 - at]] if x.shape[1 - at] > 1 else []
    bits, extent = 8*x.itemsize, x.shape[at]
    return x.strides[at] == x.itemsize and gpu_shape.vector_of(bits, extent, address(x), *apart) == gpu_shape.vector_of(
        bits, extent, 0)


def of_kernel(problem: Gemm, given: Mapping[str, Any] | None, look: Any = np.asarray) -> list[Array]:
    """A compiled kernel's arrays by name, which `look` makes shadows of. TypeError and ValueError for those of another
    format, shape or order."""
    found = []
    for role, each in beside(problem):
        x, name = look((given or {})[each.name]), f"operands[{each.name!r}]"
        if format_of(x.dtype) != each.format:
            raise TypeError(f"{name} must be {each.format}, as prologue_{role} says, not {x.dtype}")
        rows, columns = (problem.m, problem.k) if role == "a" else (problem.k, problem.n)
        shape = each.extents(rows, columns, role == "a")
        try:
            whole = np.broadcast_to(x, shape)
        except ValueError:
            raise ValueError(f"{name} must broadcast to {shape}, as prologue_{role} says, and has {x.shape}") from None
        if not ready(whole, role, problem.layout["ab".index(role)] == ("n" if role == "a" else "t")):
            raise ValueError(f"{name} must be contiguous along the same axis as {role}, with an address and a distance "
                             f"of rows as for vectors of it; its strides are {x.strides} bytes: tilewright.matmul "
                             "copies it")
        found.append(whole)
    return found
