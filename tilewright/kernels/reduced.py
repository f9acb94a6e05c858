"""Reductions of rows and columns of C (expressions/program.REDUCTIONS), in parts: with what one begins, what is reduced
of a number, and what two of these are together. They are tuples: a number, and its index where that is wanted.

All of it is of numbers or of vectors of one type, an element for each reduction.
"""
from __future__ import annotations

from tilewright.expressions.operations import OPERATIONS
from tilewright.expressions.program import INDICES
from tilewright.ir import Kernel, Type, Value, vec
from tilewright.kernels.semiring import combined, numbers

Part = tuple[Value, ...]
# With what a reduction begins, and how two of its numbers are combined; amax: of sizes.
COMBINED = {"sum": (0.0, "add"), "max": (float("-inf"), "max"), "min": (float("inf"), "min"), "amax": (0.0, "max"),
            "argmax": (float("-inf"), ""), "argmin": (float("inf"), "")}


def nothing(k: Kernel, how: str, type: Type) -> Part:
    """The neutral element of a reduction of numbers of this type."""
    start, most = COMBINED[how][0], (1 << type.scalar.bits - 1) - 1
    if not type.is_float and start:
        start = -most - 1 if start < 0 else most
    number = k.constant(type, start if type.is_float else int(start))
    return (number, k.constant(indices(type), most)) if how in INDICES else (number,)


def indices(type: Type) -> Type:
    """The type of indices of numbers of this type."""
    return vec(numbers(type.scalar)["int"], type.length)


def part(k: Kernel, how: str, x: Value, index: Value) -> Part:
    """The reduction of x alone, which is at this index: `indices` of it, or an integer that is the same for all."""
    if how not in INDICES:
        return (k.abs(x) if how == "amax" else x,)
    if index.type.length < x.type.length:
        index = k.broadcast(k.cast(index, indices(x.type).scalar), x.type.length)
    return x, k.cast(index, indices(x.type))


def both(k: Kernel, how: str, x: Part, y: Part) -> Part:
    if how in INDICES:
        return combined(k, x[0].type.scalar, how, x, y)
    operation = OPERATIONS[COMBINED[how][1]]
    if x[0].type.is_float or x[0].type.length > 1:
        return (operation.record(k, x[0], y[0]),)
    return (operation.record(k, *(k.pack(z[0], z[0]) for z in (x, y)))[0],)     # as data, which may overflow: no index
