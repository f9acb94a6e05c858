"""Weights of linear layers in few bits: quantised and decoded by torch's operations, on the device where they are.

Elements, scales and zero points have the bits that tilewright.quantize gives them (formats/quantization.py and
formats/scaled.py say by which rules); a part of the rows is in work at a time, so that what is made on the way stays
small: in a CPU's caches, and within a few hundred megabytes on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import tilewright
from tilewright import formats
from tilewright.api import tensors
from tilewright.formats.scaled import LEAST

FLOATS = torch.float32, torch.bfloat16, torch.float16   # which f32 holds, in which the arithmetic is
BYTES = "i8", "u8"
INTEGERS = *BYTES, "i4", "u4"      # with groups, which have two of 4 bits to a byte
BLOCKS = "mxfp8", "mxfp4", "nvfp4"
AT_ONCE, ON_GPU = 1 << 18, 1 << 25      # numbers in work: of each thread of a CPU, and of a GPU
MOST = torch.finfo(torch.float32).max
TINY = torch.finfo(torch.float32).tiny


def quantize(weight: Tensor, format: str, group: int | None = None, zero_points: bool = False) -> dict[str, Any]:
    """A weight [n, k] with scales along k: elements, scales, zeros (or None) and tensor_scale, as tilewright.quantize
    has them. Formats that are not among INTEGERS and BLOCKS, numbers of more than 32 bits, and nan and inf take the way
    over the host."""
    here = format in BLOCKS or format in (BYTES if group is None else INTEGERS)
    if here and weight.dtype in FLOATS and weight.numel():
        parts = _of_blocks(weight, format) if format in BLOCKS else _of_integers(weight, format, group, zero_points)
        if parts is not None:
            return parts
    options: Any = {} if format in formats.BLOCK_FORMATS else {"group": group, "zero_points": zero_points}
    q: Any = tilewright.quantize(weight.detach().cpu(), format, -1, **options)
    made = {name: getattr(q, name, None) for name in ("elements", "scales", "zeros")}
    arrays = {name: x if x is None else tensors.tensor(x).contiguous().to(weight.device) for name, x in made.items()}
    return {**arrays, "tensor_scale": getattr(q, "tensor_scale", 1.0)}


def _parts(n: int, k: int, on: torch.device) -> Iterator[slice]:
    """Slices of n rows of k elements, of a size for one pass each."""
    step = max(1, (ON_GPU if on.type != "cpu" else AT_ONCE * torch.get_num_threads()) // max(1, k))
    return (slice(start, start + step) for start in range(0, n, step))


def _wide(x: Tensor) -> Tensor:
    return x.float().contiguous()


def _in_groups(x: Tensor, length: int) -> Tensor:
    """[rows, k] as [rows, groups, length], with zeros behind the end."""
    missing = -x.shape[1] % length
    return (torch.nn.functional.pad(x, (0, missing)) if missing else x).view(x.shape[0], -1, length)


def _two_to_a_byte(patterns: Tensor) -> Tensor:
    """uint8 [..., n] below 16 as [..., ceil(n / 2)]: the first of two in the lower half."""
    if patterns.shape[-1] % 2:
        patterns = torch.nn.functional.pad(patterns, (0, 1))
    return patterns[..., ::2] | patterns[..., 1::2] << 4


def _over(x: Tensor, number: float) -> Tensor:
    """x / number, rounded once on GPUs, too, where torch multiplies by the reciprocal of a number of Python's."""
    return x / torch.full((), number, dtype=x.dtype, device=x.device)


# ---- fp8 with a scale for each row


def rows_in_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row to e4m3: elements [..., k] and a scale [..., 1] in f32 for each row."""
    wide = x.float()
    scale = _over(wide.abs().amax(-1, keepdim=True), 448.0).clamp_min(LEAST)
    return (wide * (1 / scale)).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale


def weight_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row of a weight [n, k] to e4m3, some rows at a time."""
    (n, k), on = weight.shape, weight.device
    elements, scales = torch.empty(n, k, dtype=torch.float8_e4m3fn, device=on), torch.empty(n, 1, device=on)
    for rows in _parts(n, k, on):
        elements[rows], scales[rows] = rows_in_fp8(weight[rows])
    return elements, scales


# ---- integers


def _of_integers(weight: Tensor, format: str, group: int | None, zero_points: bool) -> dict[str, Any] | None:
    """None: there is nan, inf or, of unsigned numbers without zero points, a negative number."""
    f: Any = formats.get(format)
    (n, k), on = weight.shape, weight.device
    halves = f.bits == 4
    length = group or k
    count, signed = -(-k // length), f.smallest < 0
    dtype = torch.int8 if signed else torch.uint8
    elements = torch.empty(n, -(-k // 2) if halves else k, dtype=torch.uint8 if halves else dtype, device=on)
    scales = torch.empty(n, count, device=on)
    zeros = torch.empty(n, count, dtype=dtype, device=on) if zero_points else None
    strange = torch.zeros((), dtype=torch.bool, device=on)
    for rows in _parts(n, k, on):
        x = _wide(weight[rows])
        groups = _in_groups(x, length)
        low, high = (t.double() for t in torch.aminmax(groups, dim=-1))
        low, high = low.clamp(max=0), high.clamp(min=0)
        strange |= ~torch.isfinite(high - low).all()
        if not signed and not zero_points:
            strange |= (low < 0).any()
        width = f.largest - f.smallest if zero_points else f.largest
        wide = _over(high - low if zero_points else torch.maximum(high, -low), width)
        scale = torch.where(wide > 0, wide.clamp(LEAST, MOST), 1.0).float()
        scales[rows] = scale
        groups = (groups / scale[..., None]).round_()
        if zeros is not None:
            zero = (f.smallest - low / scale.double()).round_().clamp_(f.smallest, f.largest)
            zeros[rows] = zero.to(dtype)
            groups += zero.float()[..., None]
        made = groups.clamp_(f.smallest, f.largest).to(dtype).view(len(x), -1)[:, :k]
        elements[rows] = _two_to_a_byte(made.view(torch.uint8) & 15) if halves else made
    if strange.item():
        return None
    return {"elements": elements, "scales": scales, "zeros": zeros, "tensor_scale": 1.0}


# ---- formats with blocks


def _of_blocks(weight: Tensor, format: str) -> dict[str, Any] | None:
    """None: there is nan or inf."""
    f = formats.block_format(format)
    (n, k), on = weight.shape, weight.device
    blocks = f.blocks(k)
    elements = torch.empty(n, blocks * f.block_bytes, dtype=torch.uint8, device=on)
    scales = torch.empty(n, blocks, dtype=torch.uint8, device=on)
    low, high = torch.aminmax(weight)
    most = float(torch.maximum(high.float(), -low.float()).item())
    if not most < float("inf"):
        return None
    tensor_scale = 1.0
    if not f.mx and most:
        tensor_scale = float(torch.tensor(most / f.element.largest / f.scale.largest).clamp(TINY, MOST))
    for rows in _parts(n, k if f.mx else 4*k, on):     # not of powers of two: in f64
        x = _wide(weight[rows])
        groups = _in_groups(x, f.block)
        amax = groups.abs().amax(-1)
        if f.mx:
            exponent = torch.where(amax > 0, torch.frexp(amax).exponent - 1 - f.emax, -f.scale.bias)
            exponent.clamp_(-f.scale.bias, f.scale.bias)
            # 2^-exponent by its bits: 2^-127 is subnormal
            inverse = torch.where(exponent == 127, 1 << 22, (127 - exponent) << 23).to(torch.int32).view(torch.float32)
            groups = groups * inverse[..., None]
            scales[rows] = (exponent + f.scale.bias).to(torch.uint8)
        else:
            scale = _e4m3(_over(_over(amax.double(), f.element.largest), tensor_scale))
            divisor = scale.double()[..., None] * tensor_scale
            groups = torch.where(divisor > 0, groups / divisor, torch.zeros_like(groups).copysign(groups).double())
            scales[rows] = scale.view(torch.uint8)
        groups = groups.view(len(x), -1)
        if f.element.bits == 4:
            elements[rows] = _two_to_a_byte(_e2m1(groups))
        else:
            top = f.element.largest
            elements[rows] = groups.clamp_(-top, top).to(torch.float8_e4m3fn).view(torch.uint8)
    return {"elements": elements, "scales": scales, "zeros": None, "tensor_scale": tensor_scale}


def _e2m1(x: Tensor) -> Tensor:
    """Patterns: 0 0.5 1 1.5 2 3 4 6 are 0 to 7, to nearest even, and 8 more below zero; what is larger becomes 6.
    Steps are of 1/2 below 2, of 1 up to 4, and of 2 above; a pattern is how many there are up to the number."""
    size = x.abs().clamp_(max=6)
    low, middle = (size * 2).clamp_(max=4).round_(), (size - 2).clamp_(0, 2).round_()
    high = (size / 2 - 2).clamp_(min=0).round_()
    return (low + middle + high).to(torch.uint8) | x.signbit().to(torch.uint8) << 3


def _e4m3(x: Tensor) -> Tensor:
    """f64, not negative, as float8_e4m3fn, to nearest even at once; what is larger becomes 448."""
    exponent = torch.frexp(x).exponent.sub_(1).clamp_(min=-6)
    unit = torch.ldexp(torch.ones_like(x), exponent - 3)
    return ((x / unit).round_() * unit).clamp_(max=448).float().to(torch.float8_e4m3fn)


# ---- and back


def dequantize(elements: Tensor, scales: Tensor, zeros: Tensor | None, minima: Tensor | None, format: str, group: int,
               tensor_scale: float, k: int) -> Tensor:
    """The weight [n, k] in f32, as tilewright.dequantize has it."""
    n, on = len(elements), elements.device
    block = formats.block_format(format) if format in formats.BLOCK_FORMATS else None
    f: Any = block.element if block else formats.get(format)
    length = block.block if block else group or k
    out = torch.empty(n, k, device=on)
    table = _values(f, on) if f.bits < 8 or block else None
    spread = _values(block.scale, on) if block else None
    for rows in _parts(n, k, on):
        x, s = elements[rows], scales[rows]
        if f.bits == 4:
            x = torch.stack((x & 15, x >> 4), -1).flatten(1)
        numbers = _in_groups((x.float() if table is None else table[x.int()])[:, :k], length)
        if zeros is not None:
            numbers = numbers - zeros[rows].float()[..., None]
        numbers = numbers * (s if spread is None else spread[s.int()])[..., None]
        numbers = numbers if minima is None else numbers + minima[rows][..., None]
        made = numbers.view(len(x), -1)[:, :k]
        out[rows] = made if tensor_scale == 1 else made * tensor_scale
    return out


def _values(f: Any, device: torch.device) -> Tensor:
    """What a format's patterns mean, in f32."""
    values: Any = [f.decode(pattern) for pattern in range(2**f.bits)]
    return torch.tensor(values, dtype=torch.float32, device=device)
