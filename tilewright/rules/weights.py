"""Products with weights of few bits: a `Scaled` operand becomes its elements and a prologue that makes numbers of them.

    b * s           symmetric
    (b - z) * s     with zero points

So matmul(x, w) is the product of x and dequantize(w), decoded on the way, by any engine that takes prologues. Only
dtypes and shapes are read.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.expressions import prologue
from tilewright.expressions.epilogue import kind_of
from tilewright.expressions.program import Expression
from tilewright.expressions.prologue import Beside
from tilewright.expressions.remembered import traced
from tilewright.formats.scaled import Decodable, Scaled, format_of
from tilewright.rules import prologues
from tilewright.rules.call import Call

NAMES = {"scales": "scale_of_{}_", "zeros": "zero_of_{}_"}      # of operands, by role: beside a caller's own


def present(call: Call) -> bool:
    """Has either operand what a prologue makes numbers of: groups, zero points or two elements to a byte?"""
    return any(isinstance(x, Scaled) and not x.plain for x in (call.a, call.b))


def parts(b: Scaled, operands: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """What a call with this right operand is known by: its elements, operands with those beside them, and the rest."""
    if not (operands is None or type(operands) is dict):
        return b, operands, ()                          # which is refused
    beside = {NAMES[kind].format("b"): x for kind, x in (("scales", b.scales), ("zeros", b.zeros)) if x is not None}
    return b.elements, {**(operands or {}), **beside}, (b.group, b.nibbles)


def without(call: Call) -> Call:
    """The same product with prologues of elements in place of Scaled operands. TypeError and ValueError for what cannot
    be combined."""
    given: dict[str, Any] = dict(call.operands or {})
    functions: dict[str, tuple[Expression, dict[str, Any]]] = {}
    arrays: dict[str, Any] = {}
    formats_of = {role: _format(getattr(call, role), role) for role in "ab"}
    for role in "ab":
        q = getattr(call, role)
        if not isinstance(q, Scaled):
            if isinstance(q, Decodable):
                raise TypeError(f"{role} is {q.format}, and the other operand has groups, zero points or two elements "
                                f"to a byte: tilewright.dequantize({role}) gives numbers to be multiplied with it")
            continue
        if getattr(call, f"scale_{role}") is not None or getattr(call, f"prologue_{role}") is not None:
            raise ValueError(f"{role} is a Scaled, which has its own scales: scale_{role} and prologue_{role} must be "
                             "None with it")
        if q.ndim < 2:
            raise ValueError(f"{role} must have two axes or more to be multiplied by way of its scales, and its shape "
                             f"is {q.shape}")
        arrays[role], operands = multiplied(q, getattr(call, f"trans_{role}"), role)
        functions[role] = expression(formats_of[role], role, q.zeros is not None), operands
        given |= operands
    results = prologues.multiplied(formats_of, dict.fromkeys(functions, "float"))
    for role, (e, operands) in functions.items():
        group = getattr(call, role).group or 1
        beside = tuple(Beside(name, format_of(x).name, "full", group) for name, x in operands.items())
        made = prologue.made(e, beside, formats_of[role], results[role], f"prologue_{role}")
        now: Any = {role: arrays[role], f"prologue_{role}": made, f"trans_{role}": "n"}
        call = call._replace(**now)
    return call._replace(operands=given)


def by_matrices(call: Call) -> tuple[Call, int | None]:
    """The same with a vector beside a Scaled as a matrix of one row or column; and the axis that the result has then
    and the call's has not. With an epilogue a vector is refused, as ever."""
    for role, other, axis in (("a", call.b, -2), ("b", call.a, -1)):
        x = getattr(call, role)
        if call.epilogue is None and isinstance(other, Scaled) and not isinstance(x, Decodable) and np.ndim(x) == 1:
            made: Any = {role: np.expand_dims(np.asarray(x), axis), f"trans_{role}": "n"}
            for name in ("out", "c"):
                y = getattr(call, name)
                if isinstance(y, np.ndarray) and y.ndim:
                    made[name] = np.expand_dims(y, axis)
            return call._replace(**made), axis
    return call, None


def _format(x: Any, role: str) -> str:
    if isinstance(x, Decodable):
        return str(x.format.name)
    dtype = getattr(x, "dtype", None)
    return prologues.format_of(dtype, role) if dtype is not None else "f32"


def expression(source: str, role: str, zero: bool) -> Expression:
    """Of an element, its scale and its zero point."""
    names = {kind: name.format(role) for kind, name in NAMES.items()}
    kinds = [(role, kind_of(source)), (names["scales"], "float"), *[(names["zeros"], "int")]*zero]
    return traced(_from_zero if zero else _by_scale, tuple(kinds), f"prologue_{role}", len(kinds))


def _by_scale(x: Any, s: Any) -> Any:
    return x * s


def _from_zero(x: Any, s: Any, z: Any) -> Any:
    return (x - z) * s


def multiplied(q: Scaled, trans: str, role: str) -> tuple[Any, dict[str, Any]]:
    """The elements and what is beside them, as they are multiplied, A [m, k] or B [k, n]."""
    if trans != "n":
        q = q.mT
    axis = prologues.AXIS[role]
    if q.axis not in (None, axis):
        raise ValueError(f"the groups of {role} must be along k, axis {axis} as it is multiplied, but they are along "
                         f"axis {q.axis}: quantize(x, ..., axis={axis}), or trans_{role}")
    names = {kind: name.format(role) for kind, name in NAMES.items()}
    arrays = {names[kind]: x for kind, x in (("scales", q.scales), ("zeros", q.zeros)) if x is not None}
    return q.unpacked(), arrays
