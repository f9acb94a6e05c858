"""Products with complex matrices, as one real product each.

Two complex operands go to this processor's engine as they are, which expands B while it packs (kernels/cpu/packing.py)
or reads both where they are (kernels/cpu/complex_rows.py, complex_in_place.py); for another engine B is expanded here.
Of a real and a complex operand the complex one is read as a real matrix with the parts of each number side by side.
plans/lowering.py has the ways and decides among them (`complex_way`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.expressions.numerics import SWAPPED
from tilewright.plans.lowering import complex_way
from tilewright.rules.arguments import Array

_SWAPPED = str.maketrans("ab", "ba")


def by_real_products(run: Callable[..., bool], conj: str = "", packs: bool = True, invariant: str = ""
                     ) -> Callable[..., bool]:
    """What multiplies complex matrices as `run` does real ones: c = alpha * a @ b + beta * c, alpha and beta real.

    c is complex, a or b may be real. conj: the operands that are conjugated, "", "a", "b" or "ab". packs: `run`
    takes complex matrices too, and conj, as this processor's engine does. invariant: of plans/invariant.py, which
    `run` then takes, too.
    """

    def product(a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0, whole: bool = False) -> bool:
        way = complex_way(not (c.size and a.shape[-1]), a.dtype == c.dtype, b.dtype == c.dtype, packs)
        if way.name == "real":  # for a C that is complex
            sums = np.empty(c.shape, part(c.dtype))
            run(a, b, sums, alpha)
            _written(c, sums, sums.dtype.type(0), beta)
            return True
        if way.name == "packed":
            return run(a, b, c, alpha, beta, whole, **({"conj": conj} if conj else {}))
        swap, signs = way.exchange, conj
        if swap:  # C^T = B^T @ A^T
            a, b, c = (x.swapaxes(-1, -2) for x in (b, a, c))
            signs = conj.translate(_SWAPPED)
        out = c if _by_rows(c) else np.empty(c.shape, c.dtype)
        with np.errstate(all="ignore"):
            if a.dtype == c.dtype:
                x, y = _reals(a), _expanded(b, signs)
            else:
                x, y = a, _reals(b.conj() if "b" in signs else b)
            more = {"invariant": SWAPPED[invariant] if swap else invariant} if invariant else {}
            if not run(x, y, _reals(out), alpha, beta if out is c else 0.0, whole and out is c, **more):
                return False
            if out is not c:
                _written(c, out.real, out.imag, beta)
        return True

    return product


def _written(c: Array, real: Any, imaginary: Any, beta: float) -> None:
    """c = (real, imaginary) + beta * c, beta being real: in a dtype in which beta * c does not overflow before the sums
    are added, as it does not in kernels, which round once."""
    wider = np.float64 if c.dtype.itemsize == 8 else np.longdouble
    with np.errstate(all="ignore"):
        for new, old in ((real, c.real), (imaginary, c.imag)):
            old[...] = new + np.multiply(old, beta, dtype=wider) if beta else new


def by_complex_scalars(run: Callable[..., bool]) -> Callable[..., bool]:
    """`run`, which multiplies complex matrices, with an alpha or a beta that is not real: NumPy applies them to its
    sums. Unlike a real factor they meet both parts: inf times 1j has a nan in it."""

    def product(a: Array, b: Array, c: Array, alpha: complex = 1.0, beta: complex = 0.0, whole: bool = False) -> bool:
        sums = np.empty(c.shape, c.dtype)
        run(a, b, sums)
        with np.errstate(all="ignore"):
            if alpha != 1:
                sums *= c.dtype.type(alpha)
            if beta:
                sums += c.dtype.type(beta) * c
        c[...] = sums
        return True

    return product


def part(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the real and imaginary parts of complex numbers."""
    return np.dtype(f"f{dtype.itemsize // 2}")


def wanted(x: Array, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What x is converted to for a product in a complex dtype: real numbers stay real."""
    return dtype if x.dtype.kind == "c" else part(dtype)


def _expanded(b: Array, conj: str) -> Array:
    """[k, n] complex numbers as [2k, 2n] real ones: two rows (br, bi) and (-bi, br) for each."""
    one = _distinct(b)
    sign_a, sign_b = (-1 if x in conj else 1 for x in "ab")
    parts = np.empty((*one.shape[:-1], 2, one.shape[-1], 2), part(b.dtype))  # [..., k, 2, n, 2]
    parts[..., 0, :, 0], parts[..., 0, :, 1] = one.real, sign_b * one.imag
    parts[..., 1, :, 0], parts[..., 1, :, 1] = -sign_a * sign_b * one.imag, sign_a * one.real
    k, n = b.shape[-2:]
    return np.broadcast_to(parts.reshape(*one.shape[:-2], 2 * k, 2 * n), (*b.shape[:-2], 2 * k, 2 * n))


def _reals(x: Array) -> Array:
    """[m, n] complex numbers as [m, 2n] real ones: a view where the rows are contiguous."""
    if not _by_rows(x):
        x = np.broadcast_to(np.ascontiguousarray(_distinct(x)), x.shape)
    return x.view(part(x.dtype))


def _by_rows(x: Array) -> bool:
    return x.strides[-1] == x.itemsize


def _distinct(x: Array) -> Array:
    """Without what broadcast axes repeat."""
    return x[tuple(slice(1) if not stride and n > 1 else slice(None) for n, stride in zip(x.shape[:-2], x.strides))]
