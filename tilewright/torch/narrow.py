"""Linear layers' products with narrow operands, as operators: tilewright::scaled_mm of fp8 or int8, quantize_rows that
makes operands for it, and weight_linear of weights that are stored in few bits and decoded on the way. They have no
backward pass; weight_linear has a forward-mode derivative.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tilewright
from tilewright import formats
from tilewright.api import tensor_repeats, tensors
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import HALVES, Nibbles, Scaled
from tilewright.kernels.quantized_rows import emit_quantize_rows
from tilewright.plans.prologues import MOST
from tilewright.runtime.run import run
from tilewright.torch import quantization
from tilewright.torch.library import define, refuse_gradients, shaped
from tilewright.torch.ops import EPILOGUES, FP8, empty, matrices, rows_of

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
SHORT = 2048  # elements of a row that is quantised by a warp of a GPU, not by a CTA
# Epilogues of sums without a bias, and with one: with scales of both operands, with those of one.
SCALED = lambda acc, scale_a, scale_b: acc * scale_a * scale_b, lambda acc, scale_a, scale_b, bias: (
    acc * scale_a * scale_b + bias)
OF_COLUMNS = lambda acc, scales: acc * scales, lambda acc, scales, bias: acc * scales + bias
HERE = "layers of narrow weights are for inference; train a model in f32 or bf16 and convert it after"


# ---- scaled_mm


def _check_scaled(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
                  out_dtype: torch.dtype = torch.float32) -> tuple[torch.dtype, tuple[int, int]]:
    matrices(2, a=a, b=b)
    for name, x in (("a", a), ("b", b)):
        if x.dtype not in (*FP8, torch.int8):
            raise TypeError(f"{name} must be of a float8 dtype or int8, not {x.dtype}")
    for name, scale, rows in (("scale_a", scale_a, (a.shape[0], 1)), ("scale_b", scale_b, (1, b.shape[1]))):
        if scale.dtype != torch.float32 or (tuple(scale.shape) not in (rows, (1, 1))):
            raise ValueError(f"{name} must be float32 of the shape {tuple(rows)} or (1, 1), not {scale.dtype} of "
                             f"{tuple(scale.shape)}")
    if bias is not None and tuple(bias.shape) != (b.shape[1],):
        raise ValueError(f"bias must have the shape ({b.shape[1]},), not {tuple(bias.shape)}")
    if out_dtype not in FLOATS:
        raise TypeError(f"out_dtype must be one of {', '.join(map(str, FLOATS))}, not {out_dtype}")
    return out_dtype, (a.shape[0], b.shape[1])


def _scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
               out_dtype: torch.dtype = torch.float32) -> Tensor:
    _check_scaled(a, b, scale_a, scale_b, bias, out_dtype)
    out = empty(a, a.shape[0], b.shape[1], dtype=out_dtype)
    more = {} if bias is None else {"bias": bias}
    if not a.is_cuda and b.dtype in FP8 and a.shape[0] <= MOST:     # as few rows of floats by weights of few bits
        weight = Scaled(tensors.array(b.t(), "b"), tensors.array(scale_b.t(), "scale_b"))
        return tilewright.matmul(a.float(), weight, out, trans_b=True, epilogue=OF_COLUMNS[bias is not None],
                                 operands={"scales": scale_a, **more})
    if a.is_cuda and bias is None:  # kernels of their own
        return tilewright.matmul(a, b, out, scale_a=scale_a, scale_b=scale_b)
    return tilewright.matmul(a, b, out, epilogue=SCALED[bias is not None],
                             operands={"scale_a": scale_a, "scale_b": scale_b, **more})


scaled_mm_operator = define(
    "scaled_mm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias=None, "
    "ScalarType out_dtype=float) -> Tensor", _scaled_mm, shaped(_check_scaled), repeated=5)
refuse_gradients(scaled_mm_operator, HERE)


# ---- quantize_rows


def _rows_in_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    _check_rows(x)
    if not (x.is_cuda and x.numel()):
        return quantization.rows_in_fp8(x)
    x = x.detach().contiguous()
    elements, scales = _fake_quantize_rows(x)
    bits = x.view(torch.int16) if x.dtype == torch.bfloat16 else x
    kernel, given = _row_kernel(x.dtype, x.shape[1] <= SHORT, x.device), (bits, elements.view(torch.int8), scales)
    tensor_repeats.writing(lambda: run(kernel, *x.shape, *given), elements, scales)
    return elements, scales


@cache
def _row_kernel(dtype: torch.dtype, short: bool, device: torch.device) -> Any:
    format = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
    amd = torch.version.hip is not None
    return emit_quantize_rows(format, THREADS=128, WARP=64 if amd else 32, BY="warp" if short else "cta",
                              CONVERT=not amd and torch.cuda.get_device_capability(device) >= (8, 9))


def _check_rows(x: Tensor) -> None:
    if x.dim() != 2 or x.dtype not in FLOATS:
        raise TypeError(f"x must be a matrix of {', '.join(map(str, FLOATS))}, not {x.dtype} of {tuple(x.shape)}")


def _fake_quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    _check_rows(x)
    return empty(x, *x.shape, dtype=torch.float8_e4m3fn), empty(x, x.shape[0], 1, dtype=torch.float32)


quantize_rows_operator = define("quantize_rows(Tensor x) -> (Tensor, Tensor)", _rows_in_fp8, _fake_quantize_rows)
refuse_gradients(quantize_rows_operator, HERE)


# ---- fp8_linear: both of them


def _check_fp8(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None = None
               ) -> tuple[torch.dtype, tuple[int, ...]]:
    if x.dtype not in FLOATS or x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"x {tuple(x.shape)} of {x.dtype} and weight {tuple(weight.shape)} must be [..., k] of one of "
                         f"{', '.join(map(str, FLOATS))} and [n, k]")
    return x.dtype, (*x.shape[:-1], weight.shape[0])


def _fp8_linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
    dtype, shape = _check_fp8(x, weight, scales, bias)
    rows, row_scales = _rows_in_fp8(rows_of(x))
    return _scaled_mm(rows, weight.t(), row_scales, scales.t(), bias, dtype).view(shape)


fp8_linear_operator = define("fp8_linear(Tensor x, Tensor weight, Tensor scales, Tensor? bias=None) -> Tensor",
                             _fp8_linear, shaped(_check_fp8), repeated=4)
refuse_gradients(fp8_linear_operator, HERE)


# ---- weight_linear


def stored(weight: Tensor, format: str, group: int | None = None, zero_points: bool = False) -> dict[str, Any]:
    """A weight [n, k] in a format of few bits, as the arguments of weight_linear: elements, scales and zeros.

    format      "i8", "i4", "u4", "e4m3fn" ..., with groups along k and zero points as in tilewright.quantize; or one
                that has blocks: "mxfp8", "mxfp4", "nvfp4" ...
    """
    made = quantization.quantize(weight.detach(), format, group, zero_points)
    return made | {"format": format, "group": group or 0}


def taken(weight: Quantized | Scaled) -> dict[str, Any]:
    """A weight [n, k] from elsewhere, in the host's memory, as the arguments of weight_linear: tensors in its memory,
    or of copies if it lies otherwise. TypeError and ValueError if its scales are not along k, or it is on a GPU."""
    if not isinstance(weight, (Quantized, Scaled)):
        raise TypeError(f"weight must be a tilewright.Scaled or Quantized, not {type(weight).__name__}")
    if not isinstance(weight.elements, np.ndarray):
        raise TypeError("weight must be in the host's memory: move the layer that is made of it with .to(device)")
    if weight.ndim != 2 or weight.axis not in (-1, None):
        raise ValueError(f"weight must be [outputs, inputs] with scales along its last axis, not of the shape "
                         f"{weight.shape} with scales along axis {weight.axis}: weight.T may be")
    n, k = weight.shape
    if isinstance(weight, Quantized):
        arrays = {"elements": weight.elements, "scales": weight.scales, "zeros": None, "minima": None}
        more = {"format": weight.format.name, "group": 0, "tensor_scale": weight.tensor_scale}
    else:
        name, count = weight.format.name, weight.scales.shape[1]
        if count == k > 1 and not weight.group:
            raise ValueError("scales must be one for each output, or for each group of inputs, not for each of "
                             f"{k} inputs")
        how, elements = weight.nibbles, weight.elements
        if name in HALVES and (how is None or how.axis != -1):
            elements = formats.pack(weight.unpacked())
        arrays = {"elements": elements, **{part: x if x is None else np.broadcast_to(x, (n, count)) for part, x in (
            ("scales", weight.scales), ("zeros", weight.zeros), ("minima", weight.minima))}}
        more = {"format": name, "group": weight.group if count > 1 else 0, "tensor_scale": 1.0}
    made = {name: None if x is None else tensors.tensor(np.require(x, requirements=["C", "W"]))
            for name, x in arrays.items()}
    if any(x is not None and not isinstance(x, Tensor) for x in made.values()):
        raise TypeError(f"weight must be of a format that torch has, not {weight.format}")
    return made | more


def as_weight(elements: Tensor, scales: Tensor, zeros: Tensor | None, minima: Tensor | None, format: str, group: int,
              tensor_scale: float, k: int) -> Quantized | Scaled:
    """What `stored` has stored, in the same memory."""
    elements, scales, zeros, minima = (x if x is None or x.is_cuda else tensors.array(x, name) for name, x in (
        ("elements", elements), ("scales", scales), ("zeros", zeros), ("minima", minima)))
    if format in formats.BLOCK_FORMATS:
        return Quantized(elements, scales, (elements.shape[0], k), formats.block_format(format), -1, tensor_scale)
    halves = Nibbles(format, -1, k) if format in HALVES else None      # also of one input, which has a byte of its own
    return Scaled(elements, scales, zeros, group, halves, minima)


def _check_weight(x: Tensor, elements: Tensor, scales: Tensor, zeros: Tensor | None, minima: Tensor | None,
                  bias: Tensor | None, *_: Any) -> tuple[torch.dtype, tuple[int, ...]]:
    if x.dtype not in FLOATS:
        raise TypeError(f"x must be one of {', '.join(map(str, FLOATS))}, not {x.dtype}")
    if x.dim() < 1 or elements.dim() != 2:
        raise ValueError(f"x {tuple(x.shape)} and elements {tuple(elements.shape)} must be [..., k] and [n, bytes]")
    if bias is not None and tuple(bias.shape) != (elements.shape[0],):
        raise ValueError(f"bias must have the shape ({elements.shape[0]},), not {tuple(bias.shape)}")
    return x.dtype, (*x.shape[:-1], elements.shape[0])


def _weight_linear(x: Tensor, elements: Tensor, scales: Tensor, zeros: Tensor | None, minima: Tensor | None,
                   bias: Tensor | None, format: str, group: int, tensor_scale: float) -> Tensor:
    _, shape = _check_weight(x, elements, scales, zeros, minima, bias)
    rows = rows_of(x)
    weight: Any = as_weight(elements, scales, zeros, minima, format, group, tensor_scale, x.shape[-1])
    operands: dict[str, Any] = {} if bias is None else {"bias": bias}
    epilogue = EPILOGUES["none"][bias is not None]
    if isinstance(weight, Scaled) and weight.plain and not x.is_cuda and rows.shape[0] > MOST:  # which multiply sums
        weight, operands = elements, {"scales": scales.t(), **operands}
        epilogue = OF_COLUMNS[bias is not None]
    options: dict[str, Any] = {} if epilogue is None else {"epilogue": epilogue, "operands": operands}
    out = empty(x, rows.shape[0], shape[-1], dtype=x.dtype)
    return tilewright.matmul(rows, weight, out, trans_b=True, **options).view(shape)


weight_linear_operator = define(
    "weight_linear(Tensor x, Tensor elements, Tensor scales, Tensor? zeros, Tensor? minima, Tensor? bias, str format, "
    "int group, float tensor_scale) -> Tensor", _weight_linear, shaped(_check_weight), repeated=6)


def _weight_linear_tangent(inputs: Any, tangents: Any, output: Tensor) -> Any:
    """The tangent by those of x and of the bias; RuntimeError for those of scales."""
    of_x, *of_weight, of_bias = tangents[:6]
    if any(x is not None for x in of_weight):
        raise RuntimeError(f"tilewright::weight_linear has no forward-mode derivative by the weight: {HERE}")
    if of_x is None:
        return of_bias.expand(output.shape)
    return weight_linear_operator(of_x, *inputs[1:5], of_bias, *inputs[6:])


refuse_gradients(weight_linear_operator, HERE, _weight_linear_tangent)
