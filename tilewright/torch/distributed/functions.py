"""What users call: products whose rows come from all ranks, or whose sums go to them, with gradients.

The gradient of one is the other: that of gathered rows is scattered, that of scattered sums is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Tensor

from tilewright.torch import functions
from tilewright.torch.distributed import products
from tilewright.torch.distributed.products import Group
from tilewright.torch.ops import rows_of, transposed

NARROW = "operands with scales are for inference"


def name_of(group: Group) -> str:
    """The name by which operators know a group; of all ranks if it is None."""
    if not dist.is_initialized():
        raise RuntimeError("torch.distributed.init_process_group must be called first")
    name: str = (group or dist.distributed_c10d._get_default_group()).group_name
    return name


def _differentiable(*tensors: Tensor | None) -> bool:
    asked = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    if asked and not all(x is None or (x.dtype.is_floating_point and x.itemsize > 1) for x in tensors):
        raise RuntimeError(f"there is no backward pass: {NARROW}")
    return asked


@overload
def all_gather_matmul(a: Tensor, b: Tensor, *, group: Group = None, scale_a: Tensor | None = None,
                      scale_b: Tensor | None = None, out_dtype: torch.dtype | None = None, plan: str = ""
                      ) -> Tensor: ...
@overload
def all_gather_matmul(a: Tensor, b: Sequence[Tensor], *, group: Group = None, scale_a: Tensor | None = None,
                      scale_b: Sequence[Tensor] | None = None, out_dtype: torch.dtype | None = None, plan: str = ""
                      ) -> list[Tensor]: ...
def all_gather_matmul(a: Tensor, b: Any, *, group: Group = None, scale_a: Tensor | None = None, scale_b: Any = None,
                      out_dtype: torch.dtype | None = None, plan: str = "") -> Any:
    """The rows of all ranks times b: torch.cat([a of rank 0, a of rank 1, ...]) @ b, without waiting for all of them.

    a           [m, ..., k], of one shape on all ranks; rows are gathered along the first axis
    b           [k, n], each rank's own, or several: one result each, and rows are gathered once
    scale_a, scale_b  f32 scales of a's rows [rows, 1] and of b's columns [1, n] (several if b are), for fp8 and int8
    out_dtype   of the result [ranks * m, ..., n]: by default a's dtype; f32 with scales and for fp8, int32 for int8
    plan        "pair" (a collective, then a product), "one" (copies, then a product) or "pieces", "pieces:2" ...
                (products of pieces as they come); "" lets the model choose

    Differentiable: the gradient of a is a matmul_reduce_scatter. ValueError, TypeError; PeerTimeout if another rank
    does not come (`set_timeout`).
    """
    several = not isinstance(b, Tensor)
    many: list[Tensor] = list(b) if several else [b]
    scales: list[Tensor] = [] if scale_b is None else list(scale_b) if several else [scale_b]
    name = name_of(group)
    if _differentiable(a, *many):
        outs = list(_Gather.apply(a, name, plan, *many))
    else:
        outs = products.gather_operator(a, many, scale_a, scales, out_dtype, name, plan, False)
    return outs if several else outs[0]


def matmul_reduce_scatter(a: Tensor, b: Tensor, *, group: Group = None, scale_a: Tensor | None = None,
                          scale_b: Tensor | None = None, out_dtype: torch.dtype | None = None, plan: str = ""
                          ) -> Tensor:
    """This rank's rows of the sum over ranks of a @ b: each partial sum leaves while the next is multiplied.

    a           [m, ..., k], where m is a multiple of the number of ranks, which gives each the rows of its part
    b           [k, n]; k may differ between ranks
    scale_a, scale_b, out_dtype  as in all_gather_matmul; the result is [m / ranks, ..., n]. Partial sums go from rank
                to rank in the result's dtype, always in one order: the same bits in each call
    plan        "pair", "one", "pieces" or "stores" (the product's kernel writes into the other rank's memory), these
                two with ":2" ... for pieces

    Differentiable: the gradient of a is an all_gather_matmul. Errors as there.
    """
    name = name_of(group)
    if _differentiable(a, b):
        result: Tensor = _Scatter.apply(a, b, name, plan)
        return result
    return products.scatter_operator(a, b, scale_a, scale_b, out_dtype, name, plan)


def matmul_all_reduce(a: Tensor, b: Tensor, *, group: Group = None, scale_a: Tensor | None = None,
                      scale_b: Tensor | None = None, out_dtype: torch.dtype | None = None, plan: str = ""
                      ) -> Tensor:
    """The sum over ranks of a @ b, on each of them, with the same bits: as matmul_reduce_scatter, whose rows go to all.

    Differentiable: the gradient is the same on all ranks, as what they compute from the result is.
    """
    name = name_of(group)
    if _differentiable(a, b):
        result: Tensor = _All.apply(a, b, name, plan)
        return result
    return products.all_operator(a, b, scale_a, scale_b, out_dtype, name, plan)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, name: str, plan: str, *b: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(a, *b)
        ctx.group, ctx.plan = name, plan
        return tuple(products.gather_operator(a, list(b), None, [], None, name, plan, False))

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> Any:
        a, *b = ctx.saved_tensors
        group = products.group_of(ctx.group)
        of_a, of_b = None, [None]*len(b)
        plan = "pair" if ctx.plan == "pair" else ""
        if ctx.needs_input_grad[0]:
            rows, columns = (g[0], b[0]) if len(b) == 1 else (torch.cat(g, -1), torch.cat(b, 1))
            of_a = matmul_reduce_scatter(rows, transposed(columns), group=group, plan=plan)
        if any(ctx.needs_input_grad[3:]):
            left = transposed(rows_of(_Gathered.apply(a, ctx.group)))
            wanted = ctx.needs_input_grad[3:]
            of_b = [functions.mm(left, rows_of(x)) if asked else None for x, asked in zip(g, wanted)]
        return of_a, None, None, *of_b


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, name: str, plan: str) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.group, ctx.plan = name, plan
        result: Tensor = products.scatter_operator(a, b, None, None, None, name, plan)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        of_a = of_b = None
        if ctx.needs_input_grad[1]:         # whose product needs all rows
            rows = _Gathered.apply(g, ctx.group)
            of_b = functions.mm(transposed(rows_of(a)), rows_of(rows))
            if ctx.needs_input_grad[0]:
                of_a = functions.matmul(rows, transposed(b))
        else:
            of_a = all_gather_matmul(g, transposed(b), group=products.group_of(ctx.group))
        return of_a, of_b, None, None


class _All(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, name: str, plan: str) -> Tensor:
        ctx.save_for_backward(a, b)
        result: Tensor = products.all_operator(a, b, None, None, None, name, plan)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return (functions.matmul(g, transposed(b)) if ctx.needs_input_grad[0] else None,
                functions.mm(transposed(rows_of(a)), rows_of(g)) if ctx.needs_input_grad[1] else None, None, None)


class _Gathered(torch.autograd.Function):
    """Rows of all ranks; the gradient of each goes back to it, summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.group = name
        return products.gathered(x, products.group_of(name))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return products._sums(g.contiguous(), products.group_of(ctx.group)), None
