"""Scales of operands in a GPU's memory: scale_a and scale_b of a call, as kernels multiply sums by them.

They are arrays of the operands' library, or NumPy's, which are copied in every call, or numbers. As in
api/scaled.py, a number beside floats is a factor of alpha.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.rules import arguments, scaling, shapes
from tilewright.rules.arguments import F32, F64
from tilewright.runtime.gpu.arrays import library_of
from tilewright.runtime.gpu.auxiliary import SCALES
from tilewright.runtime.gpu.operands import format_of

if TYPE_CHECKING:
    from tilewright.problem import Gemm
    from tilewright.rules.call import Call
    from tilewright.runtime.gpu.arrays import Look
    from tilewright.runtime.gpu.product import Run

Array = NDArray[Any]


def given(call: Call) -> dict[str, Any]:
    """The caller's scales that are not None, by name."""
    return {name: x for name, x in zip(SCALES, (call.scale_a, call.scale_b)) if x is not None}


def of_call(run: Run, call: Call, looks: Mapping[str, Look], a: Array, b: Array) -> tuple[Call, tuple[Array, ...]]:
    """The call without scales, and what its sums are multiplied by: nothing, or arrays [..., m, 1] and [..., 1, n] with
    blocks in place of 1, of which any axis may be 1. a and b are as they are multiplied. TypeError and ValueError for
    other scales."""
    found: dict[str, Array] = {}
    for name, scale in given(call).items():
        x, trans = (a, call.trans_a) if name == "scale_a" else (b, call.trans_b)
        if name in looks or np.ndim(scale):
            found[name] = _by_sums(run, looks[name].shadow if name in looks else np.asarray(scale), x, trans, name)
        elif isinstance(formats.get(x.dtype), formats.Float):
            factor = arguments.real(scale, name)
            call = call._replace(alpha=scaling.times(arguments.number(call.alpha, "alpha"), factor))
        else:
            found[name] = np.full((1, 1), arguments.real(scale, name), F32)
    call, one = call._replace(scale_a=None, scale_b=None), np.ones((1, 1), F32)
    if not found:
        return call, ()
    return call, tuple(found[name] if name in looks else _sent(run, found.get(name, one)) for name in SCALES)


def _by_sums(run: Run, scale: Array, x: Array, trans: str, name: str) -> Array:
    if scale.dtype not in scaling.SCALE_DTYPES:
        known = ", ".join(format_of(each) for each in scaling.SCALE_DTYPES)
        raise TypeError(f"{name} must be a number or an array of {known} on {run.on.target.name}, not of {scale.dtype}")
    by_blocks = scaling.by_blocks(scale.swapaxes(-1, -2) if trans != "n" and scale.ndim > 1 else scale, x, name[-1])
    if by_blocks is not None:
        return by_blocks
    stored = x.swapaxes(-1, -2) if trans != "n" and x.ndim > 1 else x
    found = scaling.by_sums(scale, stored, trans, name[-1])
    return found if found.ndim > 1 else found.reshape(1, 1)


def _sent(run: Run, x: Array) -> Array:
    """A copy of the host's scales; of a single one in the command, so that a graph that is recorded keeps it."""
    return run.number(x.reshape(()), x.dtype).reshape(1, 1) if x.size == 1 else run.uploaded(x)


def of_kernel(problem: Gemm, scale_a: Any, scale_b: Any) -> dict[str, Any]:
    """The scales of a call of a compiled kernel by name, 1 for those that are None. ValueError for a problem without
    scales that is given some."""
    if not problem.scales:
        arguments.refuse(f"by a kernel for {problem}, which has no scales", scale_a=scale_a, scale_b=scale_b)
        return {}
    return {name: 1.0 if x is None else x for name, x in zip(SCALES, (scale_a, scale_b))}


def placed(problem: Gemm, given: Mapping[str, Any], place: Callable[[Any, str], Look]) -> list[Look]:
    """What of_kernel gives, by looks that `place` makes, as rules.scaling.of_problem has it. TypeError for arrays on a
    GPU in another format than that of scaled sums."""
    found, wanted = [], F64 if problem.sums == "f64" else F32
    for name, x in given.items():
        axes = len(problem.shapes["a"])
        there = place(x if library_of(x) is not None else np.array(x, wanted, ndmin=axes), name)
        if there.shadow.dtype != wanted:
            raise TypeError(f"{name} must have dtype {wanted}, as sums of {problem} have when they are scaled, not "
                            f"{there.shadow.dtype}")
        found.append(there)
    if not found:
        return []
    views = scaling.of_problem(problem, [x.shadow for x in found])
    return [x._replace(shadow=view) for x, view in zip(found, views)]


def ready(run: Run, x: Array, sums: np.dtype[Any], product: Array) -> Array:
    """Scales in the format of scaled sums, which the product does not overlap."""
    x = run.typed(x, sums)
    return run.copied(x, sums) if shapes.overlap(product, x) else x
