"""Products whose sums are scaled: operands with a scale for each row of a, each column of b, or all of an operand.

    result = alpha * ((sums of elements' products) * scale_a * scale_b) + beta * c

Sums of integers are exact, in 32 bits, 64 where k times the largest product needs them, or f64 beyond; those of floats
are what matmul adds up without scales. They are brought to f32 (to f64 if floats are added up in f64, or sums of
integers or the result are f64), and each step from there is an operation of that format, in the order written. The last
rounding is to the result's format: out_dtype, or f32 (f64 if floats are added up in f64 or c is f64).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.rules import arguments
from tilewright.rules.arguments import F32, F64, Array


def product(
    multiply: Callable[..., Any], a: Any, b: Any, scales: Sequence[Array], out_in: Any, out_dtype: Any, alpha_in: Any,
    beta_in: Any, c_in: Any, out_name: str, k_axis: int,
) -> Any:
    """The scaled product. `multiply(a, b, out_dtype)` gives the sums in that format; `scales` broadcast to them."""
    out = arguments.output(out_in, out_name)
    a = arguments.operand(a, "a")
    is_number = isinstance(c_in, (int, float))
    c: Any = None if c_in is None else np.asarray(c_in) if is_number else arguments.operand(c_in, "c", least=0)
    sums, result = _dtypes(a, b, a.shape[k_axis], c_in if is_number else c, out_dtype)
    wide: Any = F64 if F64 in (sums, result) else F32
    alpha, beta = (arguments.factor(x, name, wide) for x, name in ((alpha_in, "alpha"), (beta_in, "beta")))
    if c is None and beta:
        raise ValueError(f"beta = {beta_in} needs a c to multiply")
    if out is not None:
        arguments.check_cast(result, out.dtype, out_name)
        if out_dtype is not None and out.dtype != result:
            raise TypeError(f"out has dtype {out.dtype}, but out_dtype asks for {result}")
    found = np.asarray(multiply(a, b, sums))
    with np.errstate(all="ignore"):
        values: Any = found.astype(wide)  # a copy, or the sums themselves would be scaled twice by who keeps them
        if not alpha:
            values[...] = 0
        else:
            for scale in scales:
                np.multiply(values, scale.astype(wide, copy=False), out=values)
            if alpha != 1:
                values *= wide.type(alpha)
        if beta:
            values = _added(values, c.astype(wide) * wide.type(beta))
        values = arguments.rounded(values, result)
    if out is None:
        return values if values.ndim else values[()]
    core = (a.ndim > 1) + (b.ndim > 1)  # axes of the result that are no stack's
    lead, lead_out = values.shape[: values.ndim - core], out.shape[: max(out.ndim - core, 0)]
    try:
        fits = values.shape[len(lead) :] == out.shape[len(lead_out) :] and np.broadcast_shapes(lead, lead_out)
    except ValueError:
        fits = False
    if fits != lead_out:
        raise ValueError(f"{out_name} must have the result's shape {values.shape}, but its shape is {out.shape}")
    np.copyto(out, values, casting="unsafe")
    return out_in[0] if isinstance(out_in, tuple) else out_in


def _dtypes(a: Array, b: Any, k: int, c: Any, out_dtype: Any) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """In what elements' products are added up, and the result's."""
    found = [formats.get(x.dtype, name) for x, name in ((a, "a"), (b, "b"))]
    whole = all(isinstance(f, (formats.Integer, formats.Bool)) for f in found)
    if any(isinstance(f, formats.Complex) for f in found):
        raise TypeError(f"a is {a.dtype} and b is {b.dtype}: operands with scales are real")
    if whole:
        sums, result = whole_sums(found, k), F32
    else:
        sums = arguments.dtypes(a, np.empty(0, b.dtype), None, None)[0]
        result = sums
    if c is not None and not isinstance(c, (int, float)):
        result = formats.promote(result, formats.get(c.dtype, "c")).dtype
    if out_dtype is not None:
        result = formats.get(out_dtype, "out_dtype").dtype
    if not isinstance(formats.get(result), formats.Float):
        raise TypeError(f"the result of operands with scales is of a floating-point format, not {result}: so must be "
                        "out_dtype and c")
    return sums, result


def whole_sums(found: Sequence[Any], k: int) -> np.dtype[Any]:
    """The format in which no sum of k products overflows, or f64."""
    largest = k * int(np.prod([float(2 ** (f.bits - getattr(f, "signed", False))) for f in found]))
    return np.dtype(np.int32 if largest < 2**31 else np.int64 if largest < 2**63 else np.float64)


def _added(values: Array, c: Array) -> Array:
    try:
        return np.add(values, np.broadcast_to(c, values.shape), out=values)
    except ValueError:
        raise ValueError(f"c must broadcast to the result's shape {values.shape}, but its shape is {c.shape}") from None
