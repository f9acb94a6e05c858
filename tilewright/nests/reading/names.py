"""The source of a function, and what its names mean outside of it: numbers, and functions that loops may call."""
from __future__ import annotations

import ast
import builtins
import inspect
import math
import textwrap
from collections.abc import Hashable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from tilewright.expressions import functions
from tilewright.ir.program import Line
from tilewright.nests.nest import refuse

# What loops may call, and the operation that it is: Python's and NumPy's functions, and those of epilogues.
CALLED: dict[Any, str] = {min: "fmin", max: "fmax", abs: "abs", float: "float", np.float32: "float32",
                          np.int32: "int32", math.fabs: "abs", np.abs: "abs", np.fabs: "abs", np.where: "where",
                          math.erf: "erf"}
CALLED |= {getattr(np, name): operation for name, operation in
           {"minimum": "min", "maximum": "max", "fmin": "fmin", "fmax": "fmax"}.items()}
CALLED |= {getattr(module, name): name for module in (math, np, functions) for name in ("exp", "log", "sqrt", "tanh")}
CALLED |= {getattr(functions, name): name for name in ("erf", "gelu", "relu", "sigmoid", "silu", "where")}
CALLED |= {functions.minimum: "min", functions.maximum: "max"}


def definition(function: Any) -> Any:
    """The `def` of a function, as its source has it."""
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    line = Line(code.co_filename, code.co_firstlineno) if code else Line("", 0)
    if not isinstance(function, FunctionType):
        refuse(line, f"{name} is no function of Python")
    if hasattr(function, "__wrapped__"):
        refuse(line, f"{name} is what a decorator has made: the loops are decorated first")
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, SyntaxError):
        refuse(line, f"the source of {name} is not to be had")
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef) or body[0].name != name:
        refuse(line, f"{name} is not written as a `def` of its own")
    return body[0]


class Unknown(LookupError):
    """A name that has no value outside of the function, or one that loops cannot use."""


def meaning(function: FunctionType, n: Any) -> Any:
    """The object that a name, or an attribute of a module, stands for outside of the function."""
    match n:
        case ast.Name(x):
            if x in function.__code__.co_freevars:
                value = _cell(function, function.__code__.co_freevars.index(x))
                if value is not Unknown:
                    return value
                raise Unknown(x)
            for space in (function.__globals__, vars(builtins)):
                if x in space:
                    return space[x]
        case ast.Attribute(base, x):
            value = meaning(function, base)
            if isinstance(value, ModuleType) and hasattr(value, x):
                return getattr(value, x)
    raise Unknown(ast.unparse(n))


def _cell(function: FunctionType, n: int) -> Any:
    """What an enclosing function has assigned to the n-th free variable, or Unknown."""
    try:
        return (function.__closure__ or ())[n].cell_contents
    except ValueError:
        return Unknown


def outside(function: FunctionType) -> tuple[Any, ...]:
    """Equal as long as the numbers and the functions that the source names are the same."""
    code, space = function.__code__, function.__globals__
    values = [space.get(x) for x in code.co_names] + [_cell(function, n) for n in range(len(code.co_freevars))]
    return tuple([(type(x), x) if isinstance(x, (int, float)) else x if callable(x) and isinstance(x, Hashable)
                  else None for x in values])


def called(function: FunctionType, n: Any) -> str | None:
    """The operation that a function is, as the source calls it."""
    try:
        return CALLED.get(meaning(function, n))
    except (Unknown, TypeError):            # no such name, or what cannot be hashed
        return None
