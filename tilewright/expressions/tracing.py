"""A function's expression: it is called once with symbols, whose operators and functions are written down.

What cannot be written down gets an error that names the operation and the line of the user's code: branches on values,
conversions to Python's numbers, indices, functions of other libraries.
"""
from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import numpy as np

from tilewright.expressions.operations import CONVERSIONS, KINDS, OPERATIONS
from tilewright.expressions.program import OWN, Expression, Line, Operand, Result

_HERE = os.path.dirname(__file__)
EVEN, ODD = ".even", ".odd"         # of the first parameter: its numbers in columns 2j and 2j + 1 (`pairs`)


class Symbol:
    """A number that is not known while a function is traced: a parameter of it, a constant, or an operation's result.

    `&`, `|`, `~` are and, or, not; `==` and `<` compare; NumPy's functions of the same meaning (np.exp, np.maximum,
    np.where through `tw.where`) work as those of tilewright.
    """
    __slots__ = ("kind", "operands", "operation", "reduced")
    __hash__ = object.__hash__
    __iter__ = None             # or Python would index a symbol without end

    def __init__(self, operation: str, operands: tuple[Any, ...], kind: str, reduced: str = "") -> None:
        self.operation, self.operands, self.kind, self.reduced = operation, operands, kind, reduced

    def __add__(self, other: Any) -> Any: return apply("add", self, other)
    def __radd__(self, other: Any) -> Any: return apply("add", other, self)
    def __sub__(self, other: Any) -> Any: return apply("sub", self, other)
    def __rsub__(self, other: Any) -> Any: return apply("sub", other, self)
    def __mul__(self, other: Any) -> Any: return apply("mul", self, other)
    def __rmul__(self, other: Any) -> Any: return apply("mul", other, self)
    def __truediv__(self, other: Any) -> Any: return apply("div", self, other)
    def __rtruediv__(self, other: Any) -> Any: return apply("div", other, self)
    def __neg__(self) -> Any: return apply("neg", self)
    def __pos__(self) -> Any: return self
    def __abs__(self) -> Any: return apply("abs", self)
    def __lt__(self, other: Any) -> Any: return apply("lt", self, other)
    def __le__(self, other: Any) -> Any: return apply("le", self, other)
    def __gt__(self, other: Any) -> Any: return apply("lt", other, self)
    def __ge__(self, other: Any) -> Any: return apply("le", other, self)
    def __eq__(self, other: Any) -> Any: return apply("eq", self, other)
    def __ne__(self, other: Any) -> Any: return apply("ne", self, other)
    def __and__(self, other: Any) -> Any: return apply("and", self, other)
    def __rand__(self, other: Any) -> Any: return apply("and", other, self)
    def __or__(self, other: Any) -> Any: return apply("or", self, other)
    def __ror__(self, other: Any) -> Any: return apply("or", other, self)
    def __xor__(self, other: Any) -> Any: return apply("xor", self, other)
    def __rxor__(self, other: Any) -> Any: return apply("xor", other, self)
    def __lshift__(self, other: Any) -> Any: return apply("shl", self, other)
    def __rlshift__(self, other: Any) -> Any: return apply("shl", other, self)
    def __rshift__(self, other: Any) -> Any: return apply("shr", self, other)
    def __rrshift__(self, other: Any) -> Any: return apply("shr", other, self)

    def __invert__(self) -> Any:
        return apply("xor", self, True if self.kind == "bool" else -1)

    def __pow__(self, power: Any) -> Any:
        """x**2, x**3 ... as products, x**0.5 as a root."""
        if isinstance(power, (int, np.integer)) and not isinstance(power, bool) and 1 <= power <= 64:
            rest = self if power == 1 else self ** (power // 2)
            return rest if power == 1 else rest * rest * self if power % 2 else rest * rest
        if isinstance(power, float) and power == 0.5:
            return apply("sqrt", self)
        exponent = "a traced number" if isinstance(power, Symbol) else repr(power)
        return refuse(f"** {exponent}", "a power is a whole number from 1 to 64, or 0.5")

    def __bool__(self) -> bool:
        refuse("if, while, and, or, not, in or a < b < c", "it is traced once, with symbols in place of numbers; write "
               "tw.where(condition, x, y), &, |, ~")

    def __float__(self) -> float: refuse("float()", _ONCE)
    def __int__(self) -> int: refuse("int()", _ONCE)
    def __index__(self) -> int: refuse("an index", _ONCE)
    def __getitem__(self, index: Any) -> Any: refuse(f"[{index!r}]", _ONCE)
    def __matmul__(self, other: Any) -> Any: refuse("@", _ONCE)
    def __floordiv__(self, other: Any) -> Any: refuse("//", "quotients are /, of floats")
    def __mod__(self, other: Any) -> Any: refuse("%", "& takes the low bits of an integer")
    __rmatmul__, __rfloordiv__, __rmod__ = __matmul__, __floordiv__, __mod__

    def __rpow__(self, other: Any) -> Any: refuse("** with a traced exponent", "tw.exp(y * tw.log(x)) is x**y")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(f".{name}", "the numbers of expressions have no attributes")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **more: Any) -> Any:
        name = _UFUNCS.get(ufunc)
        if method != "__call__" or more or name is None:
            refuse(f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}"), _ALLOWED)
        if name in ("gt", "ge"):
            return apply("lt" if name == "gt" else "le", *reversed(inputs))
        return apply(name, *inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.where and len(args) == 3 and not kwargs:
            return apply("where", *args)
        return refuse(f"np.{function.__name__}", _ALLOWED)


_ONCE = "it is traced once, with symbols, and must work on single elements"
_FUNCTIONS = "abs, clamp, erf, exp, gelu, log, maximum, minimum, popcount, relu, sigmoid, silu, sqrt, tanh, where"
_ALLOWED = f"it has + - * / ** & | ^ ~ << >>, comparisons, and tilewright's {_FUNCTIONS}"
_UFUNCS = {operation.numpy: name for name, operation in OPERATIONS.items() if isinstance(operation.numpy, np.ufunc)} | {
    np.greater: "gt", np.greater_equal: "ge", np.logical_and: "and", np.logical_or: "or", np.logical_xor: "xor"}


class TracingError(TypeError):
    """A function did something that no expression has."""


def refuse(what: str, instead: str) -> NoReturn:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    raise TracingError(f"{line}: {what} cannot be used in this function: {instead}")


def apply(name: str, *operands: Any) -> Any:
    """An operation on symbols and numbers; on numbers and arrays alone its value by NumPy."""
    operation = OPERATIONS[name]
    if Symbol not in map(type, operands):
        value = operation.numpy(*operands)
        return value[()] if isinstance(value, np.ndarray) and not value.ndim else value     # a number, of numbers
    condition, numbers = (operands[:1], operands[1:]) if name == "where" else ((), operands)
    numbers = tuple(map(partial(_symbol, name), numbers))
    kind = max([x.kind for x in numbers], key=KINDS.index)
    if kind not in operation.takes:
        if KINDS.index(kind) > KINDS.index(operation.takes[-1]):
            refuse(f"{name} of a {kind}", f"it takes {' or '.join(operation.takes)}")
        kind = operation.takes[0]
    numbers = tuple([_converted(x, kind) for x in numbers])
    for c in condition:
        if not isinstance(c, Symbol):
            return numbers[0] if c else numbers[1]
        if c.kind != "bool":
            refuse(f"{name} of a condition of kind {c.kind}", "a condition is a comparison")
    return Symbol(name, (*condition, *numbers), operation.gives or kind)


def _symbol(name: str, x: Any) -> Symbol:
    if isinstance(x, Symbol):
        if x.reduced:
            refuse(f"{name} of a {x.reduced}", "reductions can only be returned")
        return x
    number = x.item() if isinstance(x, (np.generic, np.ndarray)) and x.ndim == 0 else x
    if isinstance(number, (bool, int, float)):
        return Symbol("", (number,), type(number).__name__)
    return refuse(f"{name} with {type(x).__name__}",
                  "arrays are given as operands= by name, and numbers are bool, int or float")


def _converted(x: Symbol, kind: str) -> Symbol:
    if x.kind == kind:
        return x
    if not x.operation and x.operands and not isinstance(x.operands[0], str):
        return Symbol("", ({"float": float, "int": int}[kind](x.operands[0]),), kind)
    return Symbol(kind, (x,), kind)


def cast(x: Any, kind: str) -> Any:
    """x as "float" or "int"; floats become ints towards 0."""
    if kind not in CONVERSIONS:
        raise ValueError(f"kind must be one of {', '.join(CONVERSIONS)}, not {kind!r}")
    if not isinstance(x, Symbol):
        return np.asarray(x, np.float64 if kind == "float" else np.int64)[()]
    return _converted(x, kind)


def reduced(x: Any, how: str) -> Symbol:
    """The result `how` of an expression, such as row_max: it can only be returned."""
    x = _symbol(how, x)
    return Symbol(x.operation, x.operands, x.kind, how)


def paired(x: Any) -> tuple[Any, Any]:
    """A parameter's numbers in columns 2j, and in columns 2j + 1."""
    if not isinstance(x, Symbol):
        return x[..., 0::2], x[..., 1::2]
    if x.operation or x.reduced or not isinstance(x.operands[0], str) or x.operands[0].endswith((EVEN, ODD)):
        refuse("pairs of an operation's result", "it takes the first parameter, the sums")
    even, odd = (Symbol("", (x.operands[0] + half,), x.kind) for half in (EVEN, ODD))
    return even, odd


def trace(function: Callable[..., Any], parameters: Mapping[str, str], what: str = "epilogue", positional: int = 1
          ) -> Expression:
    """The expression of a function of `parameters`, kinds by name: the first ones are passed by position and may have
    any name in the function, the others by name.

    TypeError if the function takes other parameters or returns something else than numbers; TracingError, which is one,
    for what it may not do.
    """
    if not callable(function):
        raise TypeError(f"{what} must be a function, not {function!r}")
    symbols = {name: Symbol("", (name,), kind) for name, kind in parameters.items()}
    first = list(symbols.values())[:positional]
    by_name = {name: symbols[name] for name in list(symbols)[positional:]}
    try:
        inspect.signature(function).bind(*first, **by_name)
    except TypeError as error:
        takes, given = (", ".join(inspect.signature(function).parameters),
                        ", ".join(x.removeprefix(OWN) for x in symbols))
        raise TypeError(f"{what} takes ({takes}), and is given ({given}): {error}") from None
    returned = function(*first, **by_name)
    results = returned if isinstance(returned, tuple) else (returned,)
    if not results or [x for x in results if not isinstance(x, (Symbol, bool, int, float, np.generic))]:
        raise TypeError(f"{what} must return a number or a tuple of numbers computed from its parameters, not "
                        f"{returned!r}")
    symbols_of_results = [x if isinstance(x, Symbol) else _symbol(what, x) for x in results]
    return _with_pairs(_written(tuple(parameters.items()), symbols_of_results), what)


def retraced(expression: Expression, symbols: Mapping[str, Any]) -> list[Any]:
    """The results of an expression, without reductions, of other symbols for its parameters, by name."""
    def operation(name: str, *xs: Any) -> Any:
        return cast(xs[0], name) if name in CONVERSIONS else apply(name, *xs)
    return expression.run(operation, symbols, lambda x: x)


def _with_pairs(found: Expression, what: str) -> Expression:
    """The expression, whose first parameter are two where the function took its pairs."""
    used = [x for line in found.lines for x in line.operands] + [x.operand for x in found.results]
    halves = {x for x in used if isinstance(x, str) and x.endswith((EVEN, ODD))}
    if not halves:
        return found
    (first, kind), *others = found.parameters
    if halves - {first + EVEN, first + ODD} or first in used:
        raise TracingError(f"{what} takes pairs of its first parameter, {first!r}, and must use that in no other way, "
                           "nor pairs of another")
    return Expression(((first + EVEN, kind), (first + ODD, kind), *others), found.lines, found.results)


def _written(parameters: tuple[tuple[str, str], ...], results: list[Symbol]) -> Expression:
    """Lines in the order of their first use, equal ones once; a product whose only use is a sum is multiplied and added
    with one rounding."""
    lines: dict[tuple[Any, ...], int] = {}
    known: dict[int, Operand] = {}
    uses: dict[int, int] = {}

    def count(x: Symbol) -> None:
        stack = [x]
        while stack:
            y = stack.pop()
            uses[id(y)] = uses.get(id(y), 0) + 1
            if y.operation and uses[id(y)] == 1:
                stack.extend(y.operands)

    def product(x: Any) -> bool:
        return x.operation == "mul" and x.kind == "float" and uses[id(x)] == 1

    def operand(x: Symbol) -> Operand:
        if not x.operation:
            return x.operands[0] if isinstance(x.operands[0], str) else (x.operands[0],)
        if id(x) in known:
            return known[id(x)]
        name, operands = x.operation, x.operands
        if name == "add" and any(map(product, operands)):
            p, other = operands if product(operands[0]) else reversed(operands)
            name, operands = "fma", (*p.operands, other)
        line = name, *(map(operand, operands))
        known[id(x)] = lines.setdefault(line, len(lines))
        return known[id(x)]

    for x in results:
        count(x)
    outputs = tuple([Result(operand(x), x.reduced) for x in results])
    return Expression(parameters, tuple([Line(name, tuple(xs)) for name, *xs in lines]), outputs)
