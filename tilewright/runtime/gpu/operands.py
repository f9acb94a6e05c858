"""Operands of a compiled GEMM in a GPU's memory: their library, and whether a kernel can use their strides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.expressions import HALVES, texts
from tilewright.formats.quantized import check_operand
from tilewright.plans import gpu, gpu_shape
from tilewright.plans.common import Plan
from tilewright.problem import Gemm
from tilewright.rules import shapes
from tilewright.rules.arguments import Array
from tilewright.runtime.cpu.layout import address
from tilewright.runtime.gpu.arrays import Library, Look, kind, library_of, shadow
from tilewright.targets.tensor_maps import ImageMap, Tile, TiledMap

MAPPED = {"a": "a", "b": "b", "c_map": "c"}  # parameters of kernels that may be tensor maps, and of what


def library_of_all(**named: Any) -> Library | None:
    """The library of all these arrays in GPUs' memory; None if none is. TypeError if they are of different kinds."""
    libraries = {name: library_of(x) for name, x in named.items() if x is not None}
    first = next((library for library in libraries.values() if library is not None), None)
    if first is None:
        return None
    which = next(name for name, library in libraries.items() if library is first)
    for name, library in libraries.items():
        if library is not first:
            other = kind(named[name]) + ("" if library else ", which is not")
            raise TypeError(f"{which} is {kind(named[which])} in {first.platform.memory}, and {name} is {other}; all "
                            "arrays of a product must be of one library and on one device")
    return first


def same_device(library: Library, **named: Any) -> int:
    """The number of the device that all these arrays are on; ValueError if there is no such."""
    devices = {name: library.device(x) for name, x in named.items() if x is not None}
    (first, device), *others = devices.items()
    for name, other in others:
        if other != device:
            what = library.platform.name
            raise ValueError(f"{first} is on {what} {device} and {name} on {what} {other}; move one of them")
    return device


def operand(kernel: Any, name: str, shadow: Array) -> int:
    """The leading dimension of an operand, in elements; an exception if the kernel cannot use its strides."""
    p, shape = kernel.problem, kernel.problem.shapes[name]
    check_operand(name, shadow, getattr(p, name), shape)
    if not shadow.size:
        return shape[-1]
    by_rows = name == "out" or p.layout["ab".index(name)] == "n"
    shadow_by_rows = leading(shadow if by_rows else transposed(shadow))
    if shadow_by_rows is None or (name == "out" and shadow_by_rows < shape[-1] and shape[-2] > 1):
        requires = f", as layout {p.layout!r} requires" if name != "out" else ""
        raise ValueError(f"{name} must have contiguous {'rows' if by_rows else 'columns'}{requires}, but its strides "
                         f"are {shadow.strides} bytes")
    return shadow_by_rows


def leading(x: Array) -> int | None:
    """Elements from one row of a matrix to the next, or of each matrix of a stack; None if rows are not contiguous, or
    not whole elements apart. A single row may be followed by anything."""
    (rows, columns), (*stack, row, column) = x.shape[-2:], x.strides
    if (columns > 1 and column != x.itemsize) or any(stride % x.itemsize for stride in stack):
        return None
    if rows <= 1:
        return columns
    return row // x.itemsize if row % x.itemsize == 0 else None


def transposed(x: Array) -> Array:
    """The transpose of a matrix, or of each of a stack."""
    return x.swapaxes(-1, -2)


def of_batch(*matrices: Array) -> dict[str, int]:
    """The arguments for stacks A, B and C: what a kernel takes beside leading dimensions, by the names of
    kernels/gpu/work.py."""
    if matrices[-1].ndim == 2:
        return {}
    return {"batch": len(matrices[-1])} | {f"stride_{name}": x.strides[0] // x.itemsize
                                           for name, x in zip("abc", matrices)}


def maps(tiles: Mapping[str, Tile], shape: Any, values: Mapping[str, Any]) -> dict[str, TiledMap | ImageMap]:
    """Tensor maps of the operands of a product with the layout and prologues of `shape`, by the names of the parameters
    that have these tiles; `values` are sizes, leading dimensions and what `of_batch` gives, by name; of an operand that
    is windows of images `images`, their map (windows.py)."""
    m, n, k = (values[name] for name in "mnk")
    bytes_a, bytes_b = (k // 2 if text and texts.prologue(text).source.endswith(HALVES) else k     # two to a byte
                        for text in (shape.prologue_a, shape.prologue_b))
    stored = {"a": (m, bytes_a) if shape.layout[0] == "n" else (k, m),
              "b": (k, n) if shape.layout[1] == "n" else (n, bytes_b), "c": (m, values.get("columns_c", n))}
    images: dict[str, TiledMap | ImageMap] = {
        name: replace(values["images"], tile=tile) for name, tile in tiles.items() if tile.images}
    return images | {
        name: TiledMap.of_matrices(
            tiles[name], *stored[x], values[f"ld{x}"], values.get("batch", 1), values.get(f"stride_{x}", 0),
            values.get(f"planes_{x}", 0), values.get(f"plane_{x}", 0)
        ) for name, x in MAPPED.items() if name in tiles and name not in images
    }


def shape_of(problem: Gemm, target: Any, a: Array, b: Array, c: Array) -> gpu_shape.GpuShape:
    """What a plan for these operands is chosen by: their sizes, formats, addresses and strides."""
    rows = (x if letter == "n" else transposed(x) for x, letter in zip((a, b, c), problem.layout + "n"))
    at = [(address(x), x.strides[-2] if x.shape[-2] > 1 else 0, *x.strides[:-2]) for x in rows]
    return gpu.planner(target).shape_of(problem, at)


def of_block_scaled(kernel: Any, a: Array, b: Array, c: Array) -> Any:
    """The kernel for block-scaled operands that lie so, a and b as bytes [..., rows, k] and [..., k, columns]."""
    return kernel.of_blocks(shape_of(kernel.problem, kernel.target, a, b, c))


def check(kernel: Any, shadows: Sequence[Array]) -> None:
    """ValueError if the plan of a kernel cannot run operands of these addresses and strides, but others."""
    plan, (a, b, c) = getattr(kernel, "plan", None), shadows
    if not isinstance(plan, Plan) or not all(x.size for x in shadows):
        return
    if reasons := plan.violations(shape_of(kernel.problem, kernel.target, a, b, c), kernel.target):
        raise ValueError(f"plan {plan} cannot run these operands: {' '.join(reasons)} tilewright.matmul chooses a "
                         "plan that fits")


def uploaded(driver: Any, on: Any, x: Array, by_columns: bool) -> Look:
    """A copy of the host's matrices in a device's memory, stored by rows or by columns."""
    stored = np.ascontiguousarray(x.swapaxes(-1, -2) if by_columns else x)
    memory = driver.Memory.upload(on, stored)
    there = shadow(memory.pointer, stored.shape, stored.strides, stored.dtype)
    return Look(there.swapaxes(-1, -2) if by_columns else there, memory)


def stacks(arrays: Sequence[Array], most: int = gpu_shape.MOST_BATCH) -> Iterator[Sequence[Array]]:
    """Collapsed operands as matrices, or stacks of at most so many: what a launch takes."""
    if arrays[0].ndim == 2:
        yield arrays
        return
    for parts in shapes.pieces(*arrays):
        for first in range(0, len(parts[0]), most):
            part = [x[first : first + most] for x in parts]
            yield [x[0] for x in part] if len(part[0]) == 1 else part


def letter(x: Array) -> str:
    """ "n" if rows are contiguous, "t" if columns are, "" if neither; of rows or columns of one element, the other."""
    by_rows, by_columns = leading(x) is not None, leading(transposed(x)) is not None
    return "n" if by_rows and not (by_columns and x.shape[-1] == 1) else "t" if by_columns else ""


def format_of(dtype: np.dtype[Any]) -> str:
    return formats.get(dtype).name
