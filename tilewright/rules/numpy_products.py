"""What NumPy itself multiplies: operands of classes that handle NumPy's functions, long doubles and Python objects.

The first are handed to np.matmul, which asks their class. The others go through matmul's rules: np.matmul multiplies,
and alpha, beta and c are applied to its result in NumPy's arithmetic, so that alpha and beta may be anything that
multiplies the elements: a Fraction, a Decimal, a long double with all its digits. Here also: which keywords of
np.matmul tilewright.matmul takes.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy import matmul  # not looked up at each call: users put tilewright's in its place

from tilewright import formats
from tilewright.rules import arguments
from tilewright.rules.arguments import Array
from tilewright.rules.call import Arithmetic, Call, Product, decide

# Keywords of np.matmul → their defaults, which change nothing and are taken, and what there is for other values.
_KEYWORDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "dtype": ((None,), "out_dtype= names the format of the result, and the sums are in one that holds it and the "
                       "operands; a.astype(dtype) and b.astype(dtype) are multiplied as np.matmul(dtype=) does"),
    "casting": (("same_kind",), "operands of different formats meet in one that holds both, and out= and out_dtype= "
                                "take what can be cast by the rule same_kind"),
    "order": (("K", "C", None), "the result has contiguous rows; out= takes an array of any strides"),
    "subok": ((True,), "subclasses of ndarray come back as from np.matmul; np.asarray(a) is a plain array"),
    "signature": ((None,), "out_dtype= names the format of the result"),
    "axes": ((None, [(-2, -1)] * 3), "np.moveaxis, trans_a= and trans_b= bring the axes of the matrices to the end "
                                     "without a copy"),
    "axis": ((), "np.matmul refuses it, too; np.moveaxis brings the axes of the matrices to the end"),
    "keepdims": ((False,), "np.matmul refuses it, too"),
    "where": ((True,), "np.matmul refuses it, too; np.where chooses among the results"),
}


def check_keywords(given: dict[str, Any]) -> None:
    """TypeError for keywords that matmul does not take; those of np.matmul with what there is instead."""
    for name, value in given.items():
        if name not in _KEYWORDS:
            raise TypeError(f"matmul() got an unexpected keyword argument {name!r}")
        defaults, instead = _KEYWORDS[name]
        if not any(value is default or (type(value) is type(default) and value == default) for default in defaults):
            raise TypeError(f"matmul() takes no {name}= as np.matmul does: {instead}")


def overridden(*operands: Any) -> bool:
    """Is one of these, or the array in a tuple of one, of a class that handles NumPy's functions itself?"""
    for x in operands:
        if type(x) is not np.ndarray and (override(x) or (type(x) is tuple and len(x) == 1 and override(x[0]))):
            return True
    return False


def override(x: Any) -> Any:
    """The __array_ufunc__ of x's class, if it has one of its own; None in other cases, and where it says None."""
    ufunc = getattr(type(x), "__array_ufunc__", None)
    return None if ufunc is np.ndarray.__array_ufunc__ else ufunc


def by_operands_class(call: Call) -> Any:
    """What np.matmul(a, b, out) gives where an operand's class handles it. TypeError for options that np.matmul does
    not have."""
    name = "a" if override(call.a) else "b"
    for option, default in Call._field_defaults.items():
        value = getattr(call, option)
        if option not in ("out", "deterministic") and value is not default and (default is None or value != default):
            _refuse_option(getattr(call, name), name, option)
    return matmul(call.a, call.b) if call.out is None else matmul(call.a, call.b, out=call.out)


def _refuse_option(x: Any, name: str, option: str) -> NoReturn:
    kind = f"{type(x).__module__}.{type(x).__qualname__}"
    raise TypeError(f"{name} is {kind}, which handles NumPy's functions itself (__array_ufunc__), and np.matmul has no "
                    f"{option}=; pass np.asarray({name}) to multiply it here")


# ---- long doubles and objects

# Long double, its complex numbers, and objects. Not by NumPy's one-letter codes: "G" is float8_e4m3fnuz, too.
KINDS = {np.longdouble, np.clongdouble, np.object_}


def takes(*operands: Any) -> bool:
    """Is one of these an array (or its dtype, or the type of its elements) that only NumPy multiplies?"""
    return not KINDS.isdisjoint(map(_kind, operands))


def _kind(x: Any) -> Any:
    """The type of x's elements; of a type that is none of KINDS whatever it has for a dtype."""
    if x is object:
        return np.object_
    dtype = getattr(x, "dtype", x)
    return dtype.type if isinstance(dtype, np.dtype) else x if isinstance(x, type) else None


def product(call: Call, a: Array, b: Array, c: Any, out: Array | None) -> tuple[Product, Array]:
    """alpha * (a @ b) + beta * c in NumPy's arithmetic, for operands that `takes` knows; c is not read if beta is 0.
    ValueError for options that NumPy's product does not have."""
    kind = next(str(getattr(x, "dtype", x)) for x in (a, b, c, call.out_dtype) if takes(x))
    arguments.refuse(f"with operands of {kind}, which NumPy multiplies", algorithm=call.algorithm,
                     plan=None if call.plan is None else str(call.plan))
    p = decide(call, a, b, c, out, Arithmetic(_dtypes, _factor))
    a, b = (x.conj() if trans == "c" else x for x, trans in ((p.a, call.trans_a), (p.b, call.trans_b)))
    with np.errstate(all="ignore"):
        result: Array = matmul(a, b, dtype=p.sums, casting="unsafe")
        if not _is_one(p.alpha):
            result = np.asarray(np.multiply(result, p.alpha, dtype=p.sums))
        if p.beta:
            result = np.asarray(result + (p.c if _is_one(p.beta) else np.multiply(p.c, p.beta)))
    return p, result if result.shape == p.shape else np.array(np.broadcast_to(result, p.shape))


def _dtypes(a: Array, b: Array, c: Any, out_dtype: Any, *_: Any) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The dtype in which NumPy multiplies, and that of the result, as arguments.dtypes has them."""
    product = matmul(np.empty((1, 0), a.dtype), np.empty((0, 1), b.dtype)).dtype
    sums = product if c is None else np.result_type(product, c if isinstance(c, (int, float)) else np.asarray(c))
    if out_dtype is None:
        return sums, sums
    if takes(out_dtype):
        wanted: np.dtype[Any] = np.dtype(out_dtype)
        return np.result_type(sums, wanted), wanted
    wanted = formats.get(out_dtype, "out_dtype").dtype
    arguments.check_cast(sums, wanted, "out_dtype")
    return sums, wanted


def _factor(value: Any, name: str, sums: np.dtype[Any]) -> Any:
    """alpha or beta as it is, with all its digits; TypeError unless it may multiply sums in this dtype."""
    if sums.kind != "O":
        arguments.factor(value, name, sums)
    elif isinstance(value, (str, bytes)) or getattr(value, "ndim", 0) != 0:
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    return value


def _is_one(x: Any) -> bool:
    return isinstance(x, (int, float)) and x == 1
