"""Python's and NumPy's functions of numbers, called with a value of a kernel: an error in a sentence, with the line of
the kernel and what to write instead.

A value is known when the kernel runs, and these run when it is recorded.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilewright.ir.program import caller

if TYPE_CHECKING:
    from tilewright.ir.values import Value

TRUTH = ("it cannot decide if, while, and, or, not, in or a < b < c. For a branch write `with k.when(t == 0):`, for a "
         "choice k.select(condition, x, y), for and, or, not `&`, `|`, `~`")
POWER = "Write x * x for x ** 2, k.sqrt(x) for x ** 0.5, and k.exp(y * k.log(x)) for x ** y, of x > 0"
NUMBER = ("float(), math.exp() and other functions of Python's numbers cannot take it. Write k.exp(x), k.log(x), "
          "k.sqrt(x), k.tanh(x), and k.cast(x, f32) for another type")
INTEGER = "int() cannot take it. Write k.cast(x, i32), which rounds floats towards 0"
ROUND = ("round(), math.floor() and math.ceil() cannot take it. k.cast(x, i32) rounds floats towards 0; for x >= 0 "
         "k.cast(x + 0.5, i32) rounds to the nearest")
INDEX = ("range(), a list's index and a slice cannot take it. For a loop write `with k.loop(n) as i:`; what an index "
         "chooses from at run time is an array: k.smem, k.local or a parameter")
# NumPy's function → what does the same in a kernel
FUNCTIONS = {"exp": "k.exp(x)", "log": "k.log(x)", "sqrt": "k.sqrt(x)", "tanh": "k.tanh(x)", "absolute": "abs(x)",
             "fabs": "abs(x)", "maximum": "k.max(x, y)", "minimum": "k.min(x, y)", "fmax": "k.fmax(x, y)",
             "fmin": "k.fmin(x, y)", "add": "x + y", "subtract": "x - y", "multiply": "x * y", "divide": "x / y",
             "square": "x * x", "reciprocal": "1.0 / x", "bitwise_count": "k.popcount(x)"}
# NumPy's function for an operator with a number of NumPy's on the left → the value's method
REFLECTED = {"add": "__radd__", "subtract": "__rsub__", "multiply": "__rmul__", "divide": "__rtruediv__",
             "bitwise_and": "__rand__", "bitwise_or": "__ror__", "bitwise_xor": "__rxor__", "less": "__gt__",
             "less_equal": "__ge__", "greater": "__lt__", "greater_equal": "__le__", "equal": "__eq__",
             "not_equal": "__ne__", "power": "__rpow__"}


def refuse(why: str) -> NoReturn:
    line = caller()
    raise TypeError(f"{line}: a value of the kernel is not known while the kernel is recorded, so {why}\n    "
                    f"{line.text}")


def ufunc(value: Value, function: np.ufunc, method: str, inputs: tuple[Any, ...]) -> Any:
    """np.float32(2) * value is value * np.float32(2); else NumPy's functions are refused."""
    name = function.__name__
    if method == "__call__" and len(inputs) == 2 and inputs[1] is value and name in REFLECTED:
        left = inputs[0][()] if np.ndim(inputs[0]) == 0 else inputs[0]          # NumPy compares in an array of it
        return getattr(value, REFLECTED[name])(left)
    instead = FUNCTIONS.get(name, "the kernel's own: k.exp, k.log, k.sqrt, k.tanh, k.min, k.max")
    refuse(f"np.{name}() cannot take it. {POWER if name.endswith('power') else f'Write {instead}'}")
