"""Products of groups of unequal size as an operator of torch, tilewright::grouped_mm: the experts of a mixture.

Its gradients are products of groups, too, by the same operator: groups of rows and groups of steps of k are each
other's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import tilewright
from tilewright.torch.functions import call
from tilewright.torch.library import define, differentiate, shaped, total
from tilewright.torch.ops import RESULTS, empty, result_dtype, save_factors, transposed


def grouped_mm(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """The product of each group of rows of a, or of steps of k, as torch._grouped_mm: differentiable in a and b.

    a, b    [M, k] and [G, k, n]: rows offs[g-1] ... offs[g] of a by b[g], the result is [M, n], rows from offs[-1] on
            being 0; or [m, K] and [K, n]: these steps of both, the result is [G, m, n]. One dtype, any strides.
    offs    [G] of int32 or int64, on the operands' device: where each group ends; ends do not descend

    The result has the operands' dtype (f32 of fp8), sums are those of tilewright.grouped_matmul. On a GPU offs are
    read there: nothing waits, and nothing checks them. TypeError and ValueError for other arguments.
    """
    if not a.is_cuda:           # where the kernel depends on what offs contain
        return _operator(a, b, offs)
    given = a, b, offs
    return call(_operator, given, given, "grouped_mm")


def _checked(a: Tensor, b: Tensor, offs: Tensor) -> tuple[torch.dtype, tuple[int, ...]]:
    """The result's dtype and shape."""
    dtype = result_dtype(a=a, b=b)
    if a.dim() != 2 or b.dim() not in (2, 3) or a.shape[1] != b.shape[-2]:
        raise ValueError("a and b must be [M, k] and [G, k, n], or [m, K] and [K, n], but their shapes are "
                         f"{tuple(a.shape)} and {tuple(b.shape)}")
    if offs.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"offs must be int32 or int64, not {offs.dtype}")
    if offs.dim() != 1 or (b.dim() == 3 and offs.shape[0] != b.shape[0]):
        raise ValueError(f"offs must have the end of each of b's groups, but its shape is {tuple(offs.shape)} beside "
                         f"{tuple(b.shape)}")
    return dtype, (a.shape[0], b.shape[2]) if b.dim() == 3 else (offs.shape[0], a.shape[0], b.shape[1])


def _kernel(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    dtype, shape = _checked(a, b, offs)
    if a.is_cuda:
        return tilewright.grouped_matmul(a, b, offs, empty(a, *shape, dtype=dtype))
    return tilewright.grouped_matmul(a, b, offs, out_dtype=RESULTS[dtype])


_operator = define("grouped_mm(Tensor a, Tensor b, Tensor offs) -> Tensor", _kernel, shaped(_checked), autocast=True)


def _backward(ctx: Any, g: Tensor) -> Any:
    a, b, offs = ctx.saved_tensors
    wants_a, wants_b, *_ = ctx.needs_input_grad
    if b.dim() == 3:                        # of rows, and of steps of k
        of_a = _operator(g, transposed(b), offs) if wants_a else None
        return of_a, _operator(transposed(a), g, offs) if wants_b else None, None
    of_a = transposed(_operator(b, transposed(g), offs)) if wants_a else None       # whose rows are a's steps of k
    return of_a, _operator(transposed(a), g, offs) if wants_b else None, None


def _tangent(inputs: Any, tangents: Any, output: Tensor) -> Any:
    (a, b, offs), (of_a, of_b, _) = inputs, tangents
    return total(None if of_a is None else _operator(of_a, b, offs), None if of_b is None else _operator(a, of_b, offs))


differentiate(_operator, _backward, save_factors, _tangent)
