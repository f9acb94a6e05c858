"""Block-scaled operands in a GPU's memory: Quantized arrays whose elements and scales are there, and arrays of an
element format with scale_a or scale_b of blocks along k.

Two of them are multiplied as they are, by instructions with scales or by a plan whose passes decode both
(plans/passes.py). Beside an operand of another kind one is decoded to an array first: of bf16 if that has all numbers
of both, else of f32.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright import formats
from tilewright.formats.quantized import Quantized
from tilewright.formats.table import BLOCK_FORMATS, FORMATS, BlockFormat, holds
from tilewright.plans.passes import DECODED, Pass, lacking
from tilewright.rules import arguments, scaling
from tilewright.rules.arguments import F32, Array
from tilewright.rules.signature import signature
from tilewright.runtime.gpu.arrays import HIP, Look, library_of
from tilewright.runtime.gpu.operands import address, format_of, leading

if TYPE_CHECKING:
    from tilewright.rules.call import Call
    from tilewright.runtime.gpu.product import Run

PAIRS = "float4_e2m1fn_x2"              # torch's bytes of two elements of e2m1, along the contiguous axis
QUANTIZE = "tilewright.kernels.gpu.quantize:emit_quantize"
LARGEST = "tilewright.kernels.gpu.quantize:emit_largest"
QUANTIZE_NV = "tilewright.kernels.gpu.quantize:emit_quantize_nv"
DECODE = "tilewright.kernels.gpu.rewrite:emit_decode"
BYTE = np.dtype(np.uint8)


class Formats(NamedTuple):
    """The block-scaled formats of A and B, and k."""

    a: str
    b: str
    k: int


class Blocked(NamedTuple):
    """An operand's elements [..., rows, bytes] and scales [..., rows, blocks], as bytes; rows are A's, or B's columns.
    Rows can be read up to a multiple of 8 elements."""

    elements: Array
    scales: Array
    format: BlockFormat
    depth: int  # k
    factor: float  # of all numbers

    def as_multiplied(self, name: str, *arrays: Array) -> tuple[Array, ...]:
        """Arrays [..., rows, k], of b with the last axes exchanged."""
        return tuple(x if name == "a" else x.swapaxes(-1, -2) for x in arrays)

    def stand_in(self, name: str) -> Array:
        """An array that has the operand's shape, and nothing else of it."""
        return self.as_multiplied(name, np.broadcast_to(F32.type(0), (*self.elements.shape[:-1], self.depth)))[0]


def as_bytes(x: Any) -> Any:
    """An operand; the bytes of one of PAIRS."""
    return x.view(sys.modules["torch"].uint8) if _is_pairs(x) else x


def in_memory(a: Any, b: Any) -> dict[str, Any]:
    """The arrays of operands that are in a GPU's memory, by the names of messages."""
    return {name: x for name, x in signature(a, b)[0].items() if library_of(x) is not None}


def factor(*operands: Any) -> float:
    """The factor of all numbers of these operands, which is one of alpha: the scales that nvfp4 has for whole
    arrays."""
    return math.prod(x.tensor_scale for x in operands if isinstance(x, Quantized))


def placed(q: Quantized, name: str, place: Callable[[Any, str], Look]) -> tuple[Look, Look]:
    """Elements and scales, of which `place` makes looks. ValueError for elements of which a kernel cannot take the
    strides."""
    elements, scales = place(q.elements, name), place(q.scales, f"{name}.scales")
    if elements.shadow.size and leading(elements.shadow) is None:
        raise ValueError(f"the elements of {name} must have contiguous rows, but their strides are "
                         f"{elements.shadow.strides} bytes")
    return elements, scales


def taken(run: Run, call: Call, looks: Mapping[str, Look]) -> tuple[Call, dict[str, Blocked]]:
    """The call without scales of blocks, its alpha times factors of whole operands, and the operands that have them, by
    name. TypeError and ValueError for scales that do not fit."""
    operands = {name: x for name in "ab" if (x := _operand(run, call, name, looks)) is not None}
    for name, x in operands.items():
        alpha = call.alpha if x.factor == 1 else scaling.times(arguments.number(call.alpha, "alpha"), x.factor)
        without: dict[str, Any] = {"alpha": alpha, f"scale_{name}": None, f"trans_{name}": "n"}
        call = call._replace(**without)
    return call, operands


def _operand(run: Run, call: Call, name: str, looks: Mapping[str, Look]) -> Blocked | None:
    x, scale, trans = (getattr(call, option) for option in (name, f"scale_{name}", f"trans_{name}"))
    there = looks[name].shadow
    if isinstance(x, Quantized):
        scaling.no_scale_beside(x, scale, name)
        scaling.along_k(x, trans, name)
        return _placed(run, there, looks[f"{name}.scales"].shadow, x.format, x.length, x.tensor_scale)
    at = looks.get(f"scale_{name}")
    scales = np.asarray(scale) if at is None else at.shadow
    element = "e2m1" if _is_pairs(x) else format_of(there.dtype)
    if scales.ndim == 0 or scales.dtype not in (BYTE, *(f.scale.dtype for f in BLOCK_FORMATS.values())):
        if _is_pairs(x):
            raise TypeError(f"{name} has dtype {PAIRS}, so scale_{name} must be an array of its blocks' scales")
        return None
    packed = _is_pairs(x) or FORMATS[element].bits == 8
    f = next((f for f in BLOCK_FORMATS.values() if packed and f.element.name == element and (
        scales.dtype == f.scale.dtype or (f.mx and scales.dtype == BYTE))), None)
    if f is None:
        raise TypeError(f"scale_{name} of {scales.dtype} on {run.on.target.name} is for blocks of e4m3fn, e5m2 or "
                        f"{PAIRS} along k, and {name} is of {there.dtype}; float32 is for rows and columns")
    axis = scaling.k_axis(there.ndim, trans, name)
    depth = there.shape[axis] * (1 + _is_pairs(x))
    wanted = list(there.shape)
    wanted[axis] = f.blocks(depth)
    if scales.shape != tuple(wanted):
        raise ValueError(f"scale_{name}, one for each {f.block} along axis {axis}, must have the shape "
                         f"{tuple(wanted)}, not {scales.shape}")
    if _is_pairs(x) and there.strides[axis] != 1 and there.shape[axis] > 1:
        raise ValueError(f"{name} has pairs of numbers along k, axis {axis}, which must be contiguous, but its strides "
                         f"are {there.strides} bytes")
    elements, scales = (np.moveaxis(y.view(BYTE), axis, -1) for y in (there, scales))
    if at is None:
        scales = run.uploaded(np.ascontiguousarray(scales).reshape((1,) * (2 - scales.ndim) + scales.shape))
    return _placed(run, elements, scales, f, depth, 1.0)


def _placed(run: Run, elements: Array, scales: Array, f: BlockFormat, depth: int, factor: float) -> Blocked:
    elements, scales = (x[None] if x.ndim == 1 else x for x in (elements, scales))
    by_blocks = run.engine.platform is HIP              # kernels read whole blocks, NVIDIA's 8 elements at a time
    length, group = elements.shape[-1], f.block_bytes if by_blocks else f.element.bits
    apart = any(n % DECODED for n in (address(elements), *elements.strides[:-1]))       # AMD's load so many bytes
    if elements.size and (leading(elements) is None or length % group or (by_blocks and apart)):
        wide = run.temporary((*elements.shape[:-1], -(-length // group) * group), BYTE)
        run.copy(elements, wide[..., :length])
        run.copy(wide[..., length:], wide[..., length:], 0.0)
        elements = wide if by_blocks else wide[..., :length]
    if by_blocks and scales.size and scales.strides[-1] != 1:
        rows = run.temporary(scales.shape, BYTE)
        run.copy(scales, rows)
        scales = rows
    return Blocked(elements, scales, f, depth, factor)


def quantized(run: Run, x: Array, f: BlockFormat) -> Quantized:
    """A contiguous array of f32 [..., columns] quantized along its rows, as by formats.quantize, but for nvfp4."""
    elements, scales, to = _new(run, x, f)
    if x.size:
        _launch(run, x, f, QUANTIZE, {"BLOCKS": f.name}, to)
    return Quantized(elements, scales, x.shape, f)


def largest(run: Run, x: Array, f: BlockFormat) -> Array:
    """The largest finite size of each block [rows, blocks] of such an array."""
    maxima = run.temporary((math.prod(x.shape[:-1]), f.blocks(x.shape[-1])), F32)
    _launch(run, x, f, LARGEST, {}, {"largest": maxima})
    return maxima


def quantized_nv(run: Run, x: Array, f: BlockFormat, by_block: Array, whole: float) -> Quantized:
    """An array quantized in nvfp4, by the largest sizes of blocks and the scale of all."""
    elements, scales, to = _new(run, x, f)
    _launch(run, x, f, QUANTIZE_NV, {}, {"whole": whole, "largest": by_block, **to})
    return Quantized(elements, scales, x.shape, f, tensor_scale=whole)


def _new(run: Run, x: Array, f: BlockFormat) -> tuple[Any, Any, dict[str, Array]]:
    """Elements and scales, and their shadows by name."""
    run.not_repeated()          # whose results are no arrays
    blocks = f.blocks(x.shape[-1])
    (elements, there), (scales, where) = (run.result((*x.shape[:-1], n), BYTE) for n in (blocks*f.block_bytes, blocks))
    return elements, scales, {"elements": there, "scales": where}


def _launch(run: Run, x: Array, f: BlockFormat, emitter: str, options: dict[str, Any], args: dict[str, Any]) -> None:
    """A kernel that has a thread for each block."""
    VECTOR = 4 if x.shape[-1] % 4 == 0 else 1

    function = run.kernel(emitter, VECTOR=VECTOR, **options)
    rows = math.prod(x.shape[:-1])
    args = {"rows": rows, "columns": x.shape[-1], "source": x, **args}
    run.launch(function, (-(-rows * f.blocks(x.shape[-1]) // function.threads[0]),), args)


def _is_pairs(x: Any) -> bool:
    return str(getattr(x, "dtype", "")).endswith(PAIRS)


def decoded(run: Run, name: str, x: Blocked, other: np.dtype[Any]) -> Array:
    """The operand as an array beside one of this dtype."""
    bf16 = FORMATS["bf16"]
    wide = lacking(x.format.name) > 0 or not holds(bf16, formats.get(other))
    dtype = F32 if wide else bf16.dtype
    rows, align = x.elements.shape[-2], DECODED
    while any(n % align for n in (address(x.elements), *x.elements.strides[:-1])):
        align //= 2
    of = Pass("a", x.format.element.name, "", True, rows, x.depth, 1, x.format.name, align, wide)
    target = run.temporary((*x.elements.shape[:-1], of.ld), dtype)
    function = run.kernel(DECODE, OPERAND="a", BLOCKS=of.blocks, ALIGN=align, WIDE=wide)
    for i in np.ndindex(x.elements.shape[:-2]) if target.size else ():
        elements, scales, to = x.elements[i], x.scales[i], target[i]
        ld_scale, k_scale = scales.strides
        args = {"tiles": of.ctas, "rows": rows, "depth": x.depth, "a": elements, "lda": elements.strides[0],
                "scale_a": scales, "ld_scale_a": ld_scale, "k_scale_a": k_scale, "target": to, "ld": of.ld}
        run.launch(function, (of.ctas,), args)
    return x.as_multiplied(name, target[..., : x.depth])[0]
