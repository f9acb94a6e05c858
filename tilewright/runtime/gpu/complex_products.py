"""Complex matrices on GPUs: copied, conjugated, times a factor, and multiplied by one real product.

C with contiguous rows is a real matrix with twice as many columns, A too, and B is written anew with two rows and two
columns for each number (kernels/gpu/copy.py). Batches of small matrices on NVIDIA's GPUs have kernels of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.kernels.gpu import copy
from tilewright.rules import complex_product, shapes
from tilewright.rules.arguments import Array
from tilewright.runtime.gpu.operands import address, format_of, leading

if TYPE_CHECKING:
    from tilewright.runtime.gpu.product import Run

COMPLEX = "tilewright.kernels.gpu.copy:emit_complex"


def reals(x: Array) -> Array:
    """[..., m, n] complex numbers with contiguous rows as [..., m, 2n] real ones."""
    part = complex_product.part(x.dtype)
    return shapes.strided(x.real, (*x.shape[:-1], 2 * x.shape[-1]), (*x.strides[:-1], part.itemsize))


def turned(run: Run, source: Array, target: Array, factor: complex = 1.0, conjugated: bool = False,
           expanded: bool = False) -> None:
    """target = factor * source, or of its conjugate, of one complex format; as complex numbers, or `expanded` in a real
    [..., 2k, 2n] target."""
    if 0 in source.shape:
        return
    if not expanded:
        source, target = (x.reshape((1,) * (2 - x.ndim) + x.shape) if x.ndim < 2 else x for x in (source, target))
    for i in np.ndindex(source.shape[:-3]):
        _turned(run, source[i], target[i], complex(factor), conjugated, expanded)


def _turned(run: Run, source: Array, target: Array, factor: complex, conjugated: bool, expanded: bool) -> None:
    source, target = (x if x.ndim == 3 else x[None] for x in (source, target))
    if not expanded and abs(target.strides[1]) < abs(target.strides[2]):        # lanes go along the smaller stride
        source, target = (x.swapaxes(1, 2) for x in (source, target))
    size = source.itemsize // 2
    if any(s % size for x in (source, target) for s in x.strides) or any(address(x) % size for x in (source, target)):
        raise ValueError("an operand or out is not aligned to its numbers")
    (sss, rss, css), (sst, rst, cst) = ([s // size for s in x.strides] for x in (source, target))
    batch, rows, columns = source.shape
    grid = *copy.grid(rows, columns), min(batch, 65535)
    args = {"batch": batch, "depth": grid[2], "rows": rows, "columns": columns, "real": factor.real,
            "imaginary": factor.imag, "sign": -1.0 if conjugated else 1.0, "source": source, "sss": sss,
            "rss": rss, "css": css, "target": target, "sst": sst, "rst": rst,
            "cst": 2*cst if expanded else cst}
    function = run.kernel(COMPLEX, FORMAT=format_of(source.dtype), EXPANDED=expanded)
    run.launch(function, grid, args)


def conjugate(run: Run, x: Array) -> Array:
    """A copy; of what a broadcast axis repeats one."""
    one = x[tuple(slice(1) if not stride and n > 1 else slice(None) for n, stride in zip(x.shape, x.strides))]
    there = run.temporary(one.shape, x.dtype)
    turned(run, one, there, conjugated=True)
    return np.broadcast_to(there, x.shape)


def multiply(run: Run, a: Array, b: Array, c: Array, alpha: complex, beta: complex) -> None:
    """c = alpha * a @ b + beta * c, of matrices or stacks, by one real product; c has contiguous rows."""
    if isinstance(beta, complex) and beta.imag:
        turned(run, c, c, beta)
        beta = 1.0
    if leading(a) is None:
        a = run.copied(a, a.dtype)
    one = b[:1] if b.ndim > 2 and not b.strides[0] else b
    *stack, k, n = one.shape
    twice = run.temporary((*stack, 2*k, 2*n), complex_product.part(b.dtype))
    turned(run, one, twice, alpha, expanded=True)
    run.multiply(reals(a), np.broadcast_to(twice, (*b.shape[:-2], 2*k, 2*n)), reals(c), 1.0, beta.real)
