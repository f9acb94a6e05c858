"""Operands and further results of epilogues in a GPU's memory, as kernels take them (kernels/gpu/fused.py).

Operands are shadows that are broadcast to the first result [..., m, n]. What varies along n must be contiguous and as
aligned as vectors of n numbers can be; anything else is copied before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.plans import epilogues, gpu_shape
from tilewright.runtime.gpu import transforms
from tilewright.runtime.gpu.operands import address, format_of

if TYPE_CHECKING:
    from tilewright.expressions.function import Aux, Epilogue
    from tilewright.problem import Gemm

Array = NDArray[Any]


def of_problem(problem: Gemm) -> Epilogue | None:
    return epilogues.read(problem.epilogue) if problem.epilogue else None


def others(epilogue: Epilogue) -> list[int]:
    """Results that are stored beside C, in order."""
    return [i for i in range(len(epilogue.results)) if i != epilogue.main and not epilogue.axis(i)]


def pointers(problem: Gemm) -> list[str]:
    """The parameters that are addresses of operands and further results, in this order."""
    epilogue = of_problem(problem)
    if epilogue is None:
        return []
    return [*(x.parameter() for x in epilogue.reads), *(f"c{i}" for i in others(epilogue))]


def formats_of(problem: Gemm) -> list[np.dtype[Any]]:
    """Of further results."""
    epilogue = of_problem(problem)
    names = [] if epilogue is None else [epilogue.results[i] for i in others(epilogue)]
    return [formats.FORMATS[problem.out if name == epilogues.DEFAULT else name].dtype for name in names]


def strides(problem: Gemm, operands: Sequence[Array], results: Sequence[Array]) -> dict[str, int]:
    """What a kernel takes beside their addresses."""
    epilogue, found = of_problem(problem), dict[str, int]()
    if epilogue is None:
        return found
    for x, array in zip(epilogue.reads, operands):
        row = array.strides[-2] // array.itemsize if array.shape[-2] > 1 else 0
        found[f"ld_{x.parameter()}"] = row
        if array.ndim > 2:
            found[f"stride_{x.parameter()}"] = array.strides[0] // array.itemsize
    for i, array in zip(others(epilogue), results):
        found[f"ldc{i}"] = array.strides[-2] // array.itemsize if array.shape[-2] > 1 else array.shape[-1]
        if array.ndim > 2:
            found[f"stride_c{i}"] = array.strides[0] // array.itemsize
    return found


def ready(x: Array, place: str) -> bool:
    """Whether a kernel can read an operand, or write a result, of this place where it is."""
    extent, apart = x.shape[-1], [stride for stride, n in zip(x.strides[:-1], x.shape[:-1]) if n > 1]
    if any(stride % x.itemsize for stride in (*apart, address(x))):
        return False
    if place not in ("row", "full"):
        return True
    if extent > 1 and x.strides[-1] != x.itemsize:
        return False
    bits = 8*x.itemsize
    return gpu_shape.vector_of(bits, extent, address(x), *apart) == gpu_shape.vector_of(bits, extent, 0)


def placed(read: Aux, x: Array, shape: tuple[int, ...]) -> Array:
    """A compiled kernel's operand, broadcast to its first result. TypeError and ValueError for one of another format or
    place."""
    if format_of(x.dtype) != read.format:
        raise TypeError(f"{read.name} must be {read.format}, as the epilogue says, not {x.dtype}")
    try:
        found = np.broadcast_to(x, shape)
    except ValueError:
        raise ValueError(f"{read.name} must broadcast to the result's shape {shape}, and has {x.shape}") from None
    row, column = (n > 1 and stride != 0 for n, stride in zip(found.shape[-2:], found.strides[-2:]))
    if (row and read.place in ("row", "scalar")) or (column and read.place in ("column", "scalar")):
        raise ValueError(f"{read.name} must be one of place {read.place}, as the epilogue says, and its shape is "
                         f"{x.shape}")
    if not ready(found, read.place):
        raise ValueError(f"{read.name} must be contiguous along rows, which begin at multiples of as many elements as "
                         f"vectors of {shape[-1]} have; its strides are {x.strides} bytes: tilewright.matmul copies it")
    return found


def named(problem: Gemm, operands: Mapping[str, Any] | None) -> list[Any]:
    """A compiled kernel's operands in the order of its epilogue. TypeError if they, and those of prologues, are not all
    there."""
    epilogue, given = of_problem(problem), dict(operands or {})
    names = [] if epilogue is None else [x.name for x in epilogue.reads]
    every = dict.fromkeys((*names, *(x.name for _, x in transforms.beside(problem))))
    if set(every) != set(given):
        raise TypeError(f"operands must be given for {', '.join(every) or 'no names'}, as the functions of {problem} "
                        f"have them, not for {', '.join(given) or 'none'}")
    return [given[name] for name in names]
