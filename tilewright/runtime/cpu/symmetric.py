"""A @ A^T, which BLAS has syrk for: tiles on and below the diagonal are multiplied, and the rest is copied from there.

Of real numbers every element has the bits that it has in any other product by the same plan: an element and its mirror
image are the same products, added up in the same order. Of complex numbers those above the diagonal add the two
products of a step to the imaginary part in the other order, so that a product of two arrays may differ there in the
last bits.
"""
from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from tilewright.formats import FORMATS
from tilewright.kernels.cpu import jobs
from tilewright.rules.arguments import Array

if TYPE_CHECKING:
    from tilewright.runtime.cpu.recipe import Recipe

LEAST = 1 << 22         # multiplications from which half of them take longer than the copy and a call without a record


def may_be(a: Array, b: Array, c: Array) -> bool:
    """Whether a product of arrays with these shapes and strides is A @ A^T, if they are in the same memory."""
    return (c.ndim == 2 and c.shape[0] == c.shape[1] and a.ndim == b.ndim == 2 and a.strides == b.strides[::-1]
            and a.shape == b.shape[::-1] and a.dtype == b.dtype == c.dtype and c.size * a.shape[1] >= LEAST)


def applies(recipe: Recipe, a: Array, b: Array, c: Array, alpha: float) -> bool:
    """Whether this is A @ A^T, if A and B are in the same memory, and its recipe one that can leave tiles out."""
    shape = recipe.shape
    return (may_be(a, b, c) and recipe.plan.algorithm == "packed" and recipe.takes_c
            and shape.dtype in ("f32", "f64") and not (recipe.conj or recipe.finish or recipe.prepacked)
            and not (shape.out or shape.semiring or shape.prologues) and recipe.at_once(alpha, 0.0)
            and (not shape.converts if not shape.complex else not shape.invariant))


def multiply(recipe: Recipe, a: int, c: int, alpha: float) -> None:
    """C = alpha * A @ A^T, for addresses of operands of which `applies` is true."""
    if recipe.half is None:
        recipe.half = recipe.lower()
    recipe.half.run(a, a, c, alpha, 0.0)
    shape, host, pair = recipe.shape, recipe.host, 2 if recipe.shape.complex else 1
    parts = min(4 * shape.threads, shape.m) if shape.threads > 1 else 1
    fields = {"n": shape.m, "c": c, "ldc": recipe.strides.rsc // pair, "parts": parts}
    job = array("q", [fields[name] for name in jobs.MIRROR])
    function = host.address("mirror:emit_mirror", recipe.target, FORMATS[recipe.added_in].itemsize * pair)
    if parts > 1:
        host.run_parts(function, host.job(job), parts, shape.threads, shape.threads)
    else:
        host.callable(function)(host.job(job), 0)
