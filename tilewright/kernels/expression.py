"""Expressions in kernels: the operations of a traced function, recorded on numbers or on vectors."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.expressions.operations import CONVERSIONS, OPERATIONS
from tilewright.expressions.program import Expression
from tilewright.ir import Kernel, Type, Value, elementary_rounded, f32, i1, i32, vec


def recorded(k: Kernel, expression: Expression, inputs: Mapping[str, Value], FLOAT: Type, INT: Type = i32
             ) -> list[Value]:
    """The results, before reductions, of inputs by name: numbers or vectors of one length, of the types FLOAT, INT and
    i1. Which operations are recorded, and in which order, does not depend on the target. Those that may be short
    (expressions/rounding.py) are so of f32."""
    types = {"float": FLOAT, "int": INT, "bool": i1}
    length = max((x.type.length for x in inputs.values()), default=1)

    def spread(x: Value) -> Value:
        return x if x.type.length == length else k.broadcast(x, length)

    def constant(x: Any) -> Value:
        return k.constant(vec(types[type(x).__name__], length), x)

    def operation(name: str, *xs: Value) -> Value:
        name, _, bits = name.partition("~")
        if bits and xs[0].type.scalar == f32:
            return elementary_rounded.gelu(k, name, int(bits), xs[0])
        return k.cast(xs[0], vec(types[name], length)) if name in CONVERSIONS else OPERATIONS[name].record(k, *xs)

    return expression.run(operation, {name: spread(x) for name, x in inputs.items()}, constant)
