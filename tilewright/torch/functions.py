"""What users of torch call: mm, bmm, addmm, matmul and linear by the operators of ops.py.

A repeated call does not go through torch's dispatcher, whose way to an operator in Python takes several times as long
as what there is to do (api/tensor_repeats.py). It does where somebody may want to see the operator: while torch.compile
traces, in a function mode, and under the profiler. A call with another dispatch mode or transform, or with another need
for a gradient, is no repeated one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import _profiler_enabled
from torch.compiler import is_dynamo_compiling
from torch.utils._device import DeviceContext

from tilewright.api import tensor_repeats
from tilewright.torch import narrow, ops

_modes, _mode = torch._C._len_torch_function_stack, torch._C._get_function_stack_at


def call(operator: Any, given: tuple[Any, ...], tensors: Sequence[Tensor], how: Any) -> Any:
    """operator(*given). `tensors`: those of the arguments; `how`: the operator, and what else is given."""
    if is_dynamo_compiling() or _profiler_enabled() or (
            _modes() and not (_modes() == 1 and type(_mode(0)) is DeviceContext)):
        return operator(*given)     # somebody may want to see it; torch.set_default_device's mode does not
    result = tensor_repeats.run_recorded(how, tensors)
    return tensor_repeats.remembered(operator, given, how, tensors) if result is None else result


def unaligned(*tensors: Tensor) -> bool:
    """Has an operand of 16 bits rows that are not multiples of 16 bytes? An H200 ran these at 2.4 to 4.3 of cuBLAS."""
    if tensors[0].itemsize == 2:
        for x in tensors:           # without generators, which are most of what this would cost
            if x.dim() == 2:
                for stride in x.stride():
                    if stride % 8 and stride > 1:
                        return True
    return False


def mm(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of matrices [m, k] and [k, n] of one dtype, as torch.mm: any strides, differentiable.

    The result has that dtype (f32 of fp8), sums are those of tilewright.matmul. TypeError and ValueError for other
    arguments."""
    given = a, b
    return call(ops.mm_operator, given, given, "mm")


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of stacks [batch, m, k] and [batch, k, n], as torch.bmm; otherwise as mm."""
    given = a, b
    return call(ops.bmm_operator, given, given, "bmm")


def addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: complex = 1, alpha: complex = 1) -> Tensor:
    """beta * c + alpha * (a @ b), c broadcast to [m, n], as torch.addmm; otherwise as mm. beta = 0 does not read c."""
    return ops.addmm_operator(c, a, b, beta=beta, alpha=alpha)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """activation(x @ weight.T + bias) of x [..., k], weight [n, k] and bias [n] of one dtype; otherwise as mm.

    activation  "none", "relu", "silu", "gelu" or "gelu_tanh". It is evaluated, as is the bias, on sums before they are
                rounded to the dtype; where a gradient is needed, silu's and gelu's sums are kept, rounded, for the
                backward pass: a second result of the product.
    """
    if activation in ops.SUMS and torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in (x, weight, bias)):
        return ops.linear_sums_operator(x, weight, bias, activation)[0]
    tensors = (x, weight) if bias is None else (x, weight, bias)
    return call(ops.linear_operator, (x, weight, bias, activation), tensors, (activation, bias is None))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b by the rules of torch.matmul: vectors, matrices, and leading axes that are broadcast; otherwise as mm.
    Operands of a stack are copied only where broadcasting leaves no common stride."""
    if a.dim() == 0 or b.dim() == 0:
        raise ValueError(f"a and b must have at least 1 axis, but their shapes are {tuple(a.shape)}, {tuple(b.shape)}")
    if a.dim() == 1:
        return matmul(a[None], b).squeeze(-1 if b.dim() == 1 else -2)
    if b.dim() == 1:
        return matmul(a, b[:, None]).squeeze(-1)
    if b.dim() == 2:
        product = mm(ops.rows_of(a), b)
        return product if a.dim() == 2 else product.view(*a.shape[:-1], b.shape[-1])
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    count = math.prod(lead)
    x, y = (t.expand(*lead, *t.shape[-2:]).reshape(count, *t.shape[-2:]) for t in (a, b))
    return bmm(x, y).view(*lead, a.shape[-2], b.shape[-1])


def scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
              out_dtype: torch.dtype = torch.float32) -> Tensor:
    """a @ b * scale_a * scale_b + bias of fp8 or int8 matrices [m, k] and [k, n], in f32 until it is rounded to
    out_dtype, f32, bf16 or f16. Scales are f32 [m, 1] and [1, n], or [1, 1]; bias [n]. It has no backward pass."""
    tensors = (a, b, scale_a, scale_b) if bias is None else (a, b, scale_a, scale_b, bias)
    how = out_dtype, bias is None
    return call(narrow.scaled_mm_operator, (a, b, scale_a, scale_b, bias, out_dtype), tensors, how)


def weight_linear(x: Tensor, elements: Tensor, scales: Tensor, zeros: Tensor | None, minima: Tensor | None,
                  bias: Tensor | None, format: str, group: int, tensor_scale: float) -> Tensor:
    """x @ weight.T + bias of a weight in few bits, as WeightLinear has it: see narrow.stored. In x's dtype; without a
    backward pass."""
    how = "weight", zeros is None, minima is None, bias is None, format, group, tensor_scale
    given = x, elements, scales, zeros, minima, bias
    return call(narrow.weight_linear_operator, (*given, *how[4:]), [t for t in given if t is not None], how)


def fp8_linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., k] @ (weight * scales).T + bias by scaled_mm, rows of x quantised by quantize_rows: in x's dtype, of an
    e4m3fn weight [n, k] with scales [n, 1] and bias [n]. It has no backward pass."""
    tensors = (x, weight, scales) if bias is None else (x, weight, scales, bias)
    return call(narrow.fp8_linear_operator, (x, weight, scales, bias), tensors, ("fp8", bias is None))


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [m, k] in e4m3fn, and the f32 scales [m, 1] by which rows were divided: each row's largest size becomes 448.
    x is f32, bf16 or f16. On a GPU it is one kernel. It has no backward pass."""
    return narrow.quantize_rows_operator(x)
