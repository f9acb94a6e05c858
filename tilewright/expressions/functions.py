"""Functions for expressions: of traced numbers they are written down, of NumPy's arrays and of numbers they are values.

So a function that uses them is its own reference: called with float64 arrays it gives what a kernel is to compute.
"""
from __future__ import annotations

from typing import Any

from tilewright.expressions.tracing import Symbol, apply, paired, reduced


def exp(x: Any) -> Any:
    """e^x."""
    return apply("exp", x)


def log(x: Any) -> Any:
    """The natural logarithm."""
    return apply("log", x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return apply("tanh", x)


def erf(x: Any) -> Any:
    """The error function."""
    return apply("erf", x)


def sqrt(x: Any) -> Any:
    """The square root."""
    return apply("sqrt", x)


def popcount(x: Any) -> Any:
    """How many bits of an integer are one."""
    return apply("popcount", x)


def minimum(x: Any, y: Any) -> Any:
    """The smaller of two numbers; a NaN if either is one."""
    return apply("min", x, y)


def maximum(x: Any, y: Any) -> Any:
    """The larger of two numbers; a NaN if either is one."""
    return apply("max", x, y)


def where(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, elsewhere y."""
    return apply("where", condition, x, y)


def clamp(x: Any, low: Any, high: Any) -> Any:
    """x, but at least `low` and at most `high`."""
    return minimum(maximum(x, low), high)


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return maximum(x, 0.0)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    return apply("sigmoid", x)


def silu(x: Any) -> Any:
    """x sigmoid(x), also called swish."""
    return x * sigmoid(x)


def gelu(x: Any, approximate: str = "none") -> Any:
    """x Φ(x), Φ the normal distribution; approximate="tanh": by tanh, as torch's function of this name."""
    if approximate == "tanh":
        return apply("gelu_tanh", x)
    if approximate != "none":
        raise ValueError(f'approximate must be "none" or "tanh", not {approximate!r}')
    return apply("gelu", x)


def pairs(acc: Any) -> tuple[Any, Any]:
    """Two neighbouring columns of an epilogue's first parameter, 2j and 2j + 1: the result has half as many columns,
    and j counts them. SwiGLU, whose weights' columns alternate, is gate, up = tw.pairs(acc)."""
    return paired(acc)


def _reduction(how: str, sentence: str) -> Any:
    def result(x: Any) -> Any:
        from tilewright.expressions.program import REDUCED
        if isinstance(x, Symbol):
            return reduced(x, how)
        axis, function = REDUCED[how]
        return function(x, axis=axis)
    result.__name__ = result.__qualname__ = how
    result.__doc__ = f"{sentence}: a result of an epilogue."
    return result


row_sum = _reduction("row_sum", "The sum of each row")
row_max = _reduction("row_max", "The largest number of each row")
row_min = _reduction("row_min", "The smallest number of each row")
row_argmax = _reduction("row_argmax", "The column of the largest number of each row, as np.argmax finds it")
row_argmin = _reduction("row_argmin", "The column of the smallest number of each row, as np.argmin finds it")
row_amax = _reduction("row_amax", "The largest absolute value of each row")
column_sum = _reduction("column_sum", "The sum of each column")
column_max = _reduction("column_max", "The largest number of each column")
column_min = _reduction("column_min", "The smallest number of each column")
column_argmax = _reduction("column_argmax", "The row of the largest number of each column, as np.argmax finds it")
column_argmin = _reduction("column_argmin", "The row of the smallest number of each column, as np.argmin finds it")
column_amax = _reduction("column_amax", "The largest absolute value of each column")
