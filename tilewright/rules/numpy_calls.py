"""What else a call of np.matmul may have: keywords that tilewright.matmul does not take, and operands of classes that
handle NumPy's functions themselves.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

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
    found = getattr(type(x), "__array_ufunc__", None)
    return None if found is np.ndarray.__array_ufunc__ else found


def product(a: Any, b: Any, out: Any, options: dict[str, Any]) -> Any:
    """What np.matmul(a, b, out) gives where an operand's class handles it. TypeError for options that np.matmul does
    not have."""
    for name, value in options.items():
        if value is not None:
            _refuse(a if override(a) else b, "a" if override(a) else "b", name)
    return np.matmul(a, b) if out is None else np.matmul(a, b, out=out)


def _refuse(x: Any, name: str, option: str) -> NoReturn:
    kind = f"{type(x).__module__}.{type(x).__qualname__}"
    raise TypeError(f"{name} is {kind}, which handles NumPy's functions itself (__array_ufunc__), and np.matmul has no "
                    f"{option}=; pass np.asarray({name}) to multiply it here")
