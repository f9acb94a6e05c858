"""Products of what has no kernels here, long double and Python objects: NumPy's own, within matmul's rules.

np.matmul multiplies; alpha, beta and c are applied to its result in NumPy's arithmetic, so that alpha and beta may be
anything that multiplies the elements: a Fraction, a Decimal, a long double with all its digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import formats
from tilewright.rules import arguments
from tilewright.rules.arguments import Array

# Long double, its complex numbers, and objects. Not by NumPy's one-letter codes: "G" is float8_e4m3fnuz, too.
KINDS = (np.longdouble, np.clongdouble, np.object_)


def takes(*operands: Any) -> bool:
    """Is one of these an array (or its dtype, or the type of its elements) that only NumPy multiplies?"""
    return any(_kind(x) in KINDS for x in operands)


def _kind(x: Any) -> Any:
    """The type of x's elements; of a type that is none of KINDS whatever it has for a dtype."""
    if x is object:
        return np.object_
    dtype = getattr(x, "dtype", x)
    return dtype.type if isinstance(dtype, np.dtype) else x if isinstance(x, type) else None


def refuse(kind: str, **options: Any) -> None:
    """ValueError for options that NumPy's product does not have."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} must be None with operands of {kind}, which NumPy multiplies, not {value}")


def kind(*operands: Any) -> str:
    """The dtype of the first of these that only NumPy multiplies, in words."""
    return next(str(getattr(x, "dtype", x)) for x in operands if takes(x))


def dtypes(a: Array, b: Array, c: Any, out_dtype: Any) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The dtype in which NumPy multiplies, and that of the result, as arguments.dtypes has them."""
    product = np.matmul(np.empty((1, 0), a.dtype), np.empty((0, 1), b.dtype)).dtype
    sums = product if c is None else np.result_type(product, c if isinstance(c, (int, float)) else np.asarray(c))
    if out_dtype is None:
        return sums, sums
    if takes(out_dtype):
        wanted: np.dtype[Any] = np.dtype(out_dtype)
        return np.result_type(sums, wanted), wanted
    wanted = formats.get(out_dtype, "out_dtype").dtype
    arguments.check_cast(sums, wanted, "out_dtype")
    return sums, wanted


def factor(value: Any, name: str, sums: np.dtype[Any]) -> Any:
    """alpha or beta as it is, with all its digits; TypeError unless it may multiply sums in this dtype."""
    if sums.kind != "O":
        arguments.factor(value, name, sums)
    elif isinstance(value, (str, bytes)) or getattr(value, "ndim", 0) != 0:
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    return value


def product(a: Array, b: Array, c: Any, alpha: Any, beta: Any, sums: np.dtype[Any]) -> Array:
    """alpha * (a @ b) + beta * c for matrices that broadcast; c is not looked at if beta is 0."""
    with np.errstate(all="ignore"):
        found: Array = np.matmul(a, b, dtype=sums, casting="unsafe")
        if not _is_one(alpha):
            found = np.asarray(np.multiply(found, alpha, dtype=sums))
        if beta:
            found = np.asarray(found + (c if _is_one(beta) else np.multiply(c, beta)))
        return found


def _is_one(x: Any) -> bool:
    return isinstance(x, (int, float)) and x == 1
