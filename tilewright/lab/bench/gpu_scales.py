"""Operands with scales on a GPU, for `tilewright bench gpu`: fp8 with a scale for each row and column, and block-scaled
formats, as tensors of torch's."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.formats import Float, Quantized
from tilewright.formats.quantized import values_of
from tilewright.problem import Gemm

Tensor = Any
F64 = np.dtype(np.float64)
EXPONENTS = -3, 4  # of scales of blocks: 2^-3 to 2^3


def of_rows(torch: Any, problem: Gemm, device: Any) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """scale_a [m, 1] and scale_b [1, n] of a problem with scales="rows"; none of another."""
    if problem.scales != "rows":
        return None, None
    return (torch.rand((problem.m, 1), device=device) + 0.5, torch.rand((1, problem.n), device=device) + 0.5)


def blocked(torch: Any, problem: Gemm, device: Any) -> tuple[Quantized, Quantized]:
    """A and B in block-scaled formats: elements of 8 bits normal, of fewer every one alike; scales near 1."""
    def quantized(format: str, rows: int, axis: int) -> Quantized:
        f, depth = formats.BLOCK_FORMATS[format], problem.k
        shape = rows, f.blocks(depth) * f.block_bytes
        if f.element.bits == 8:
            elements = torch.randn(shape, device=device).to(getattr(torch, f.element.numpy_name)).view(torch.uint8)
        else:  # of which all are finite
            elements = torch.randint(0, 256, shape, device=device, dtype=torch.uint8)
        powers = torch.as_tensor((2.0 ** np.arange(*EXPONENTS)).astype(f.scale.dtype).view("u1"), device=device)
        scales = powers[torch.randint(0, len(powers), (rows, f.blocks(depth)), device=device)]
        return Quantized(elements, scales, (rows, depth) if axis == -1 else (depth, rows), f, axis)
    return quantized(problem.a, problem.m, -1), quantized(problem.b, problem.n, -2)


def decoded(x: Any, dtype: str) -> Tensor:
    """The numbers of an operand, as it is multiplied, in torch's dtype of this name; of a block-scaled one elements
    times scales."""
    import torch

    wanted = getattr(torch, dtype)
    if not isinstance(x, Quantized):
        return x.to(wanted)
    f, elements, scales = x.format, *(torch.as_tensor(part) for part in (x.elements, x.scales))
    words = elements.int()
    if f.element.bits == 4:
        words = torch.stack((words & 15, words >> 4), -1).flatten(-2)
    elif f.element.bits == 6:
        first, second, third = (words[..., i::3] for i in range(3))
        packed = first | second << 8 | third << 16
        words = torch.stack([packed >> shift & 63 for shift in (0, 6, 12, 18)], -1).flatten(-2)
    elements, scales = (_values(part, dtype, words.device)[which]
                        for part, which in ((f.element, words), (f.scale, scales.int())))
    values = (elements.unflatten(-1, (-1, f.block)) * scales[..., None]).flatten(-2)[..., : x.length]
    return values if x.axis == -1 else values.transpose(-1, -2)


@cache
def _values(format: Float, dtype: str, device: Any) -> Tensor:
    """What patterns of a format mean: kept, since a graph that is recorded cannot copy from the host."""
    import torch

    return torch.as_tensor(values_of(format, F64, 1).copy(), device=device).to(getattr(torch, dtype))
