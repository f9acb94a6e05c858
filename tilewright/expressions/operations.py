"""The elementary operations of expressions: for each what it takes, its meaning in NumPy, and how a kernel records it.

A number is of one of three kinds: "float", "int" or "bool". Which format floats and ints have is decided by the product
that an expression belongs to, not by the expression.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

KINDS = ("bool", "int", "float")        # in the order of promotion


@dataclass(frozen=True)
class Operation:
    """TAKES: the kinds of operands, of which all but `where`'s condition are brought to the highest among them, and at
    least to the lowest in TAKES. GIVES: the kind of the result, "": that of the operands.

    numpy       of arrays that broadcast; the reference
    record      (k, *values of one type) → value, of numbers or vectors
    """
    name: str
    numpy: Callable[..., Any]
    record: Callable[..., Any]
    takes: tuple[str, ...] = ("int", "float")
    gives: str = ""


def _minimum(k: Any, x: Any, y: Any) -> Any:
    """NumPy's: a NaN on either side is the result."""
    return k.select((x < y) | (x != x), x, y) if x.type.is_float else k.min(x, y)


def _maximum(k: Any, x: Any, y: Any) -> Any:
    return k.select((y < x) | (x != x), x, y) if x.type.is_float else k.max(x, y)


def _error_function(x: Any) -> Any:
    """math.erf of each element: NumPy has none."""
    from math import erf
    return np.vectorize(erf, otypes=[np.float64])(x)


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-np.asarray(x, np.float64)))


def _gelu_tanh(x: Any) -> Any:
    """x/2 (1 + tanh ...) of each element, exact where the factor is small."""
    x = np.asarray(x, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return x / (1 + np.exp(-2*np.sqrt(2/np.pi) * (x + 0.044715*(x*x*x))))


def _gelu(x: Any) -> Any:
    """x Φ(x) of each element, exact where Φ(x) is small."""
    from math import erfc
    x = np.asarray(x, np.float64)
    return 0.5 * x * np.vectorize(erfc, otypes=[np.float64])(x * -np.sqrt(0.5))


def bits_set(x: Any) -> Any:
    """How many bits of each integer, of its own format, are one. NumPy has a function for it from 2.0 on."""
    x = np.asarray(x)
    bits = np.unpackbits(np.ascontiguousarray(x).reshape(-1, 1).view(np.uint8), axis=-1)
    return bits.sum(-1).reshape(x.shape).astype(x.dtype)


LOGICAL = ("bool", "int")
_ALL = (
    Operation("add", np.add, lambda k, x, y: x + y),
    Operation("sub", np.subtract, lambda k, x, y: x - y),
    Operation("mul", np.multiply, lambda k, x, y: x * y),
    # One rounding; a multiplication whose only use is an addition becomes this one (program.py).
    Operation("fma", lambda x, y, z: x * y + z, lambda k, x, y, z: k.fma(x, y, z)),
    Operation("div", np.divide, lambda k, x, y: x / y, ("float",)),
    Operation("neg", np.negative, lambda k, x: -x),
    Operation("abs", np.abs, lambda k, x: k.abs(x)),
    Operation("min", np.minimum, _minimum),
    Operation("max", np.maximum, _maximum),
    # Of two numbers, the first of which is no NaN: it stays where the second one is.
    Operation("fmin", np.fmin, lambda k, x, y: k.fmin(x, y) if x.type.is_float else k.min(x, y)),
    Operation("fmax", np.fmax, lambda k, x, y: k.fmax(x, y) if x.type.is_float else k.max(x, y)),
    Operation("exp", np.exp, lambda k, x: k.exp(x), ("float",)),
    Operation("log", np.log, lambda k, x: k.log(x), ("float",)),
    Operation("tanh", np.tanh, lambda k, x: k.tanh(x), ("float",)),
    Operation("erf", _error_function, lambda k, x: k.erf(x), ("float",)),
    Operation("gelu", _gelu, lambda k, x: k.gelu(x), ("float",)),
    Operation("sigmoid", _sigmoid, lambda k, x: k.sigmoid(x), ("float",)),
    Operation("gelu_tanh", _gelu_tanh, lambda k, x: k.gelu_tanh(x), ("float",)),
    Operation("sqrt", np.sqrt, lambda k, x: k.sqrt(x), ("float",)),
    Operation("lt", np.less, lambda k, x, y: x < y, gives="bool"),
    Operation("le", np.less_equal, lambda k, x, y: x <= y, gives="bool"),
    Operation("eq", np.equal, lambda k, x, y: x == y, KINDS, "bool"),
    Operation("ne", np.not_equal, lambda k, x, y: x != y, KINDS, "bool"),
    Operation("and", np.bitwise_and, lambda k, x, y: x & y, LOGICAL),
    Operation("or", np.bitwise_or, lambda k, x, y: x | y, LOGICAL),
    Operation("xor", np.bitwise_xor, lambda k, x, y: x ^ y, LOGICAL),
    Operation("shl", np.left_shift, lambda k, x, y: x << y, ("int",)),
    Operation("shr", np.right_shift, lambda k, x, y: x >> y, ("int",)),
    Operation("popcount", bits_set, lambda k, x: k.popcount(x), ("int",)),
    Operation("where", np.where, lambda k, c, x, y: k.select(c, x, y), KINDS),
)
OPERATIONS = {operation.name: operation for operation in _ALL}

# Conversions between kinds, which tracing writes where an operation needs them. Floats become ints towards 0.
CONVERSIONS = ("float", "int")
