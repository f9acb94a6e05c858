"""Arrays beside A, B and C in a GPU's memory, as kernels take them (expressions/function.Aux): scales, further results,
and what epilogues and prologues read.

Of a call scale_a and scale_b are arrays of the operands' library, or NumPy's, which are copied in every call, or
numbers: beside floats a number is a factor of alpha.

They are shadows, broadcast to the rows and columns of the matrix beside which they are. What a kernel loads as vectors
must be contiguous along them and as aligned as they can be; anything else is copied before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import formats
from tilewright.expressions import DEFAULT
from tilewright.plans import gpu_shape
from tilewright.problem import Gemm, kernel_arrays
from tilewright.rules import arguments, scaling, shapes
from tilewright.rules.arguments import F32, F64, Array
from tilewright.runtime.gpu.arrays import Look, library_of
from tilewright.runtime.gpu.operands import address, format_of

if TYPE_CHECKING:
    from tilewright.expressions.function import Aux
    from tilewright.rules.call import Call
    from tilewright.runtime.gpu.product import Run

SCALES = "scale_a", "scale_b"


def strides(problem: Gemm, arrays: Sequence[Array]) -> dict[str, int]:
    """What a kernel takes beside the addresses of these arrays, which are in the order of `kernel_arrays`."""
    return {name: apart for x, array in zip(kernel_arrays(problem), arrays, strict=True)
            for name, apart in x.strides(array).items()}


def readable(x: Array, role: str, vectors: bool) -> bool:
    """Whether a kernel can read, or write, an array beside A, B or C, the `role`, where it is. `vectors`: along rows of
    A, or columns of B or C, it has a number for each, which are read several at a time."""
    axis = -2 if role == "a" else -1
    vectors = vectors and x.shape[axis] > 1
    apart = [stride for i, (stride, extent) in enumerate(zip(x.strides, x.shape), -x.ndim)
             if extent > 1 and not (vectors and i == axis)]
    if any(n % x.itemsize for n in (address(x), *apart)):
        return False
    bits, extent = 8*x.itemsize, x.shape[axis]
    return not vectors or (x.strides[axis] == x.itemsize and gpu_shape.vector_of(bits, extent, address(x), *apart)
                           == gpu_shape.vector_of(bits, extent, 0))


def own(x: Array) -> Array:
    """What an array that is broadcast has of its own: an axis of 1 where one number holds for all."""
    return x[tuple(slice(None) if stride else slice(0, 1) for stride in x.strides)]


def on_device(run: Run, x: Array, name: str, host: Collection[str]) -> Array:
    """What an operand that is broadcast has of its own, in the GPU's memory. `host`: names of those that are NumPy's.
    """
    x = own(x)
    if name not in host:
        return x
    return run.uploaded(np.ascontiguousarray(x)) if x.size > 1 else run.number(
        x.reshape(()), x.dtype, name).reshape(x.shape)


def of_kernel(problem: Gemm, scales: Sequence[Array], operands: Mapping[str, Any] | None, outs: Sequence[Array],
              look: Callable[[Any], Array]) -> list[Array]:
    """A compiled kernel's arrays in the order of `kernel_arrays`: scales as they are, operands by name, of which
    `look` makes shadows, and further results. TypeError and ValueError for those that the kernel does not take."""
    given, left, results = dict(operands or {}), iter(scales), iter(outs)
    names = dict.fromkeys(x.name for x in kernel_arrays(problem) if not x.written and x.parameter not in SCALES)
    if set(names) != set(given):
        raise TypeError(f"operands must be given for {', '.join(names) or 'no names'}, as the functions of {problem} "
                        f"have them, not for {', '.join(given) or 'none'}")
    for x, kind in zip(outs, result_dtypes(problem, len(outs))):
        if x.dtype != kind or x.shape != problem.shapes["out"] or not readable(x, "c", True):
            raise ValueError(f"outs must be {kind} of shape {problem.shapes['out']}, with contiguous rows, not "
                             f"{x.dtype} of shape {x.shape} with strides of {x.strides} bytes")
    return [next(left) if x.parameter in SCALES else next(results) if x.written else
            _operand(problem, x, look(given[x.name])) for x in kernel_arrays(problem)]


def result_dtypes(problem: Gemm, count: int) -> list[np.dtype[Any]]:
    """The dtypes of further results. ValueError if there are not so many."""
    kinds = [x.format for x in kernel_arrays(problem) if x.written]
    if len(kinds) != count:
        raise ValueError(f"outs must be arrays for the {len(kinds)} further results of {problem}, not {count}")
    return [formats.FORMATS[problem.out if kind == DEFAULT else kind].dtype for kind in kinds]


def _operand(problem: Gemm, aux: Aux, x: Array) -> Array:
    name, function = f"operands[{aux.name!r}]", "the epilogue" if aux.role == "c" else f"prologue_{aux.role}"
    if format_of(x.dtype) != aux.format:
        raise TypeError(f"{name} must be {aux.format}, as {function} says, not {x.dtype}")
    *lead, m, n = problem.shapes["out"]
    rows, columns = {"a": (m, problem.k), "b": (problem.k, problem.n), "c": (m, n)}[aux.role]
    shape = *lead, *aux.extents(rows, columns, aux.role != "b")
    try:
        placed = np.broadcast_to(own(x), shape)
    except ValueError:
        raise ValueError(f"{name} must broadcast to {shape}, as {function} says, and has {x.shape}") from None
    across = aux.role == "c" or problem.layout["ab".index(aux.role)] == ("t" if aux.role == "a" else "n")
    if not readable(placed, aux.role, across and (aux.by_row if aux.role == "a" else aux.by_column)):
        along = "rows" if aux.role == "c" else f"the same axis as {aux.role}"
        raise ValueError(f"{name} must be contiguous along {along}, with an address and distances of rows as for "
                         f"vectors of it; its strides are {x.strides} bytes: tilewright.matmul copies it")
    return placed


# ---- scales of operands


def scales_of_call(run: Run, call: Call, looks: Mapping[str, Look], a: Array, b: Array
                   ) -> tuple[Call, tuple[Array, ...]]:
    """The call without scales, and what its sums are multiplied by: nothing, or arrays [..., m, 1] and [..., 1, n] with
    blocks in place of 1, of which any axis may be 1. a and b are as they are multiplied. TypeError and ValueError for
    other scales."""
    scales: dict[str, Array] = {}
    for name, scale, x, trans in zip(SCALES, (call.scale_a, call.scale_b), (a, b), (call.trans_a, call.trans_b)):
        if scale is None:
            continue
        if name in looks or np.ndim(scale):
            scales[name] = _by_sums(run, looks[name].shadow if name in looks else np.asarray(scale), x, trans, name)
        elif isinstance(formats.get(x.dtype), formats.Float):
            factor = arguments.real(scale, name)
            call = call._replace(alpha=scaling.times(arguments.number(call.alpha, "alpha"), factor))
        else:
            scales[name] = np.full((1, 1), arguments.real(scale, name), F32)
    call, one = call._replace(scale_a=None, scale_b=None), np.ones((1, 1), F32)
    if not scales:
        return call, ()
    return call, tuple(scales[name] if name in looks else _sent(run, scales.get(name, one)) for name in SCALES)


def _by_sums(run: Run, scale: Array, x: Array, trans: str, name: str) -> Array:
    if scale.dtype not in scaling.SCALE_DTYPES:
        known = ", ".join(format_of(dtype) for dtype in scaling.SCALE_DTYPES)
        raise TypeError(f"{name} must be a number or an array of {known} on {run.on.target.name}, not of {scale.dtype}")
    by_blocks = scaling.by_blocks(scale.swapaxes(-1, -2) if trans != "n" and scale.ndim > 1 else scale, x, name[-1])
    if by_blocks is not None:
        return by_blocks
    stored = x.swapaxes(-1, -2) if trans != "n" and x.ndim > 1 else x
    scales = scaling.by_sums(scale, stored, trans, name[-1])
    return scales if scales.ndim > 1 else scales.reshape(1, 1)


def _sent(run: Run, x: Array) -> Array:
    """A copy of the host's scales; of a single one in the command, so that a graph that is recorded keeps it."""
    return run.number(x.reshape(()), x.dtype).reshape(1, 1) if x.size == 1 else run.uploaded(x)


def scales_of_kernel(problem: Gemm, scale_a: Any, scale_b: Any) -> dict[str, Any]:
    """The scales of a call of a compiled kernel by name, 1 for those that are None. ValueError for a problem without
    scales that is given some."""
    if not problem.scales:
        arguments.refuse(f"by a kernel for {problem}, which has no scales", scale_a=scale_a, scale_b=scale_b)
        return {}
    return {name: 1.0 if x is None else x for name, x in zip(SCALES, (scale_a, scale_b))}


def scales_placed(problem: Gemm, given: Mapping[str, Any], place: Callable[[Any, str], Look]) -> list[Look]:
    """What scales_of_kernel gives, by looks that `place` makes, as rules.scaling.of_problem has it. TypeError for
    arrays on a GPU in another format than that of scaled sums."""
    placed, wanted = [], F64 if problem.sums == "f64" else F32
    for name, x in given.items():
        axes = len(problem.shapes["a"])
        there = place(x if library_of(x) is not None else np.array(x, wanted, ndmin=axes), name)
        if there.shadow.dtype != wanted:
            raise TypeError(f"{name} must have dtype {wanted}, as sums of {problem} have when they are scaled, not "
                            f"{there.shadow.dtype}")
        placed.append(there)
    if not placed:
        return []
    views = scaling.of_problem(problem, [x.shadow for x in placed])
    return [x._replace(shadow=view) for x, view in zip(placed, views)]


def scales_ready(run: Run, x: Array, sums: np.dtype[Any], product: Array) -> Array:
    """Scales in the format of scaled sums, which the product does not overlap."""
    x = run.typed(x, sums)
    return run.copied(x, sums) if shapes.overlap(product, x) else x
