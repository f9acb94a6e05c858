"""torch.vmap of mm, bmm and linear: a product of matrices of which one or both have a further axis becomes one product,
or a stack of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.torch.library import library
from tilewright.torch.ops import ACTIVATIONS, bmm_operator, linear_operator, linear_sums_operator, mm_operator

Dims = tuple[int | None, ...]


def _first(x: Tensor, dim: int | None, count: int) -> Tensor:
    """With the axis that is mapped over in front."""
    return x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)


def _mm(info: Any, dims: Dims, a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    if dims[1] is None:                                 # one B: rows of all A
        a = _first(a, dims[0], info.batch_size)
        return mm_operator(a.flatten(0, 1), b).view(*a.shape[:2], b.shape[1]), 0
    return bmm_operator(*(_first(x, dim, info.batch_size) for x, dim in zip((a, b), dims))), 0


def _bmm(info: Any, dims: Dims, a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    a, b = (_first(x, dim, info.batch_size) for x, dim in zip((a, b), dims))
    product = bmm_operator(a.flatten(0, 1), b.flatten(0, 1))
    return product.view(*a.shape[:2], *product.shape[1:]), 0


def _linear(info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none"
            ) -> tuple[Tensor, int]:
    of_bias = None if bias is None else dims[2]
    x = _first(x, dims[0], info.batch_size)
    if dims[1] is None and of_bias is None:
        return linear_operator(x, weight, bias, activation), 0
    rows = x[:, None] if x.dim() == 2 else x.flatten(1, -2)
    result = bmm_operator(rows, _first(weight, dims[1], info.batch_size).mT)
    if bias is not None:                                # after rounding, unlike that of one product
        result = result + (bias if of_bias is None else bias.movedim(of_bias, 0)[:, None])
    return ACTIVATIONS[activation](result).view(*x.shape[:-1], result.shape[-1]), 0


def _linear_sums(info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str
                 ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    sums, _ = _linear(info, dims, x, weight, bias)
    return (ACTIVATIONS[activation](sums), sums), (0, 0)


for _operator, _rule in ((mm_operator, _mm), (bmm_operator, _bmm), (linear_operator, _linear),
                         (linear_sums_operator, _linear_sums)):
    torch.library.register_vmap(_operator._schema.name, _rule, lib=library)
