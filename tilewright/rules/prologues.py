"""What prologue_a=, prologue_b= and operands= of a product may be, and what they come to: a `Prologue` and arrays.

Only dtypes, shapes and strides are read, so that the arrays may be NumPy's or shadows of arrays in a GPU's memory.
"""
from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tilewright import formats
from tilewright.expressions import HALVES
from tilewright.expressions.function import Aux, Prologue, checked_prologue, kind_of
from tilewright.expressions.operations import KINDS
from tilewright.expressions.program import ELEMENT, Expression
from tilewright.expressions.remembered import traced
from tilewright.rules import arguments
from tilewright.rules.arguments import Array
from tilewright.rules.call import KERNELS, Call, Product, decide

AXIS = {"a": -1, "b": -2}               # of k


class Prepared(NamedTuple):
    """The prologue of an operand.

    arrays      broadcast to the operand [..., rows, columns], with strides of 0 where they have fewer elements; along k
                one number for each block of `group` steps of those that have a group
    """
    prologue: Prologue
    arrays: tuple[Array, ...]


def shared_out(call: Call, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Which operands each of the call's functions has, by the functions' names: by those of their parameters, and of
    one function by itself all. TypeError for operands of no function."""
    functions = {name: f for name in ("epilogue", "prologue_a", "prologue_b") if (f := getattr(call, name)) is not None}
    if len(functions) == 1:
        return {name: dict(given) for name in functions}
    shares = {name: {x: given[x] for x in given if x in _names(f)} for name, f in functions.items()}
    unused = [x for x in given if not any(x in taken for taken in shares.values())]
    if unused:
        raise TypeError(f"operands has {', '.join(unused)}, which is a parameter of none of {', '.join(functions)}")
    return shares


def _names(function: Any) -> list[str]:
    """The names of the parameters that are operands."""
    expression = getattr(function, "expression", function)
    if isinstance(expression, Expression):
        return [name for name, _ in expression.parameters if name not in expression.sums]
    try:
        return [*inspect.signature(function).parameters][1:]
    except (TypeError, ValueError):
        return []                       # which is refused where it is traced


def prepared(function: Any, x: Array, role: str, given: Mapping[str, Array]) -> tuple[Expression, Prologue | None]:
    """The function's expression of elements of x; what tilewright.prologue made of it, if that did."""
    name = f"prologue_{role}"
    source = format_of(x.dtype, role)
    if isinstance(function, Prologue):
        if function.source.removesuffix(HALVES) != source:
            raise TypeError(f"{name} was made for elements of {function.source}, and {role} is {x.dtype}")
        names = [aux.name for aux in function.reads]
        if set(names) != set(given):
            raise TypeError(f"operands must have the names of {name} ({', '.join(names)}), and has "
                            f"({', '.join(given)})")
        return function.expression, function
    if not callable(function):
        raise TypeError(f"{name} must be a function of an element and operands, or what tilewright.prologue makes, not "
                        f"{arguments.shown(function)}")
    kinds = [(aux, kind_of(format_of(y.dtype, f"operands[{aux!r}]"))) for aux, y in given.items()]
    return traced(function, ((ELEMENT, kind_of(source)), *kinds), name), None


def format_of(dtype: np.dtype[Any], name: str) -> str:
    number_format = None if dtype.kind == "c" else formats.find(dtype)
    if number_format is None:
        raise TypeError(f"{name} is {dtype}: with a prologue it must be of integers or real floating-point numbers")
    return number_format.name


def multiplied(sources: Mapping[str, str], kinds: Mapping[str, str]) -> dict[str, str]:
    """In which format numbers of the prologues, by role, are multiplied: that of the floating-point operands, a or b,
    if it is f16, bf16 or f64, bf16 of narrower ones, else f32; integers in i32, of 64 bits in i64."""
    floats = {f for role, f in sources.items() if isinstance(formats.FORMATS[f], formats.Float)}
    narrow = {f for f in floats if formats.FORMATS[f].bits < 16}
    own = floats - narrow
    common = "f32" if len(own) > 1 or not floats else next(iter(own)) if own else "bf16"
    if "f64" in floats:
        common = "f64"
    wide = any(f in ("i64", "u64", "u32") for f in sources.values())
    return {role: common if kind == "float" else "i64" if wide else "i32" for role, kind in kinds.items()}


def all_of(call: Call, a: Array, b: Array, given: Mapping[str, dict[str, Array]]) -> dict[str, Prepared]:
    """The prologues of a call's operands, by role. TypeError and ValueError for what the argument named may not be."""
    arrays = {"a": a, "b": b}
    given = {name: {x: _narrow(y) for x, y in arrays_of.items()} for name, arrays_of in given.items()}
    functions = {role: f for role in "ab" if (f := getattr(call, f"prologue_{role}")) is not None}
    if not functions:
        return {}
    expressions = {role: prepared(f, arrays[role], role, given[f"prologue_{role}"]) for role, f in functions.items()}
    sources = {role: format_of(x.dtype, role) for role, x in arrays.items()}
    formats_of = multiplied(sources, {role: expression.kinds[0] for role, (expression, _) in expressions.items()})
    made = {}
    for role, (expression, ready) in expressions.items():
        x, name = arrays[role], f"prologue_{role}"
        if x.ndim < 2:
            raise ValueError(f"{role} must have two axes or more with {name}, and its shape is {x.shape}")
        groups = {arrays_of.name: arrays_of.group for arrays_of in ready.reads} if ready else {}
        read = [_beside(arrays_of, kind, given[name][arrays_of], x, role, groups.get(arrays_of, 1))
                for arrays_of, kind in expression.parameters[1:]]
        reads = tuple(arrays_of for arrays_of, _ in read)
        result = ready.result if ready else formats_of[role]
        source = ready.source if ready else sources[role]
        made[role] = Prepared(checked_prologue(expression, reads, source, result, name),
                              tuple(array for _, array in read))
    return made


def decided(call: Call, a: Array, b: Array, c: Any, wide: str | None, prepared: dict[str, Prepared]) -> Product:
    """`rules.call.decide` by the formats in which operands with a prologue are multiplied; integers by themselves are
    added up as such, in the format `wide` if that is one of integers, whatever out_dtype says, others in f64 if `wide`
    says so. Of a product without k prologues are taken out of `prepared`."""
    stand_ins = [np.empty(0, formats.FORMATS[prepared[role].prologue.result].dtype) if role in prepared else x
                 for role, x in zip("ab", (a, b))]
    integral = formats.integral(*(f for f in (formats.find(x.dtype) for x in stand_ins if x.dtype.kind != "c") if f))

    def dtypes(a: Any, b: Any, *others: Any) -> tuple[np.dtype[Any], np.dtype[Any]]:
        return arguments.dtypes(stand_ins[0], stand_ins[1], *others)
    p = decide(call._replace(out_dtype=None if integral == (wide == "f64") else wide), a, b, c, None,
               KERNELS._replace(dtypes=dtypes) if prepared else KERNELS)
    if prepared and p.sums.kind == "c":
        raise TypeError(f"prologues must be None for complex products, whose sums here are {p.sums}")
    if not p.sizes[2]:
        prepared.clear()
    return p


def _narrow(x: Array) -> Array:
    """A number, as those of Python are, in 32 bits if it is whole and these hold it."""
    small_integer = x.ndim == 0 and x.dtype.kind == "i" and x.dtype.itemsize == 8 and -2**31 <= int(x) < 2**31
    return x.astype(np.int32) if small_integer else x


def _beside(name: str, kind: str, x: Array, of: Array, role: str, group: int) -> tuple[Aux, Array]:
    """An operand of a prologue beside the operand `of`, and its array broadcast to that. `group`: steps of k that share
    a number, the argument of tilewright.prologue: the last of them may be fewer."""
    label = f"operands[{name!r}]"
    format = format_of(x.dtype, label)
    if KINDS.index(kind_of(format)) > KINDS.index(kind):
        raise TypeError(f"{label} is {x.dtype}, and prologue_{role} takes {kind} for it")
    axis, shape = AXIS[role], [*of.shape]
    k, count = of.shape[axis], x.shape[axis] if x.ndim >= -axis else 1
    if not 1 < count < k:
        group = 1
    elif group == 1 or count != -(-k // group):
        group = k // count if k % count == 0 else 1
    if group > 1:
        shape[axis] = count
    try:
        full = np.broadcast_to(x, shape)
    except ValueError:
        raise ValueError(f"{label} must broadcast to the shape of {role}, {of.shape}, or have there a number for each "
                         f"of several equal blocks of k = {k} steps, but its shape is {x.shape}") from None
    rows, columns = (full.shape[at] > 1 and full.strides[at] != 0 for at in (-2, -1))
    place = "full" if rows and columns else "row" if columns else "column" if rows else "scalar"
    return Aux(name, format, place, group), full
