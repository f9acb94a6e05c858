"""Products as operators of torch: tilewright::mm, bmm, addmm and linear, with their derivatives.

Gradients and tangents are products, too, of the same operators. Their transposed operands are views, which kernels read
in place.
A result has its operands' dtype (of fp8, f32) and contiguous rows; sums are added up as in tilewright.matmul.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import tilewright
from tilewright.expressions.functions import gelu, relu, silu
from tilewright.torch.library import define, differentiate, library, shaped, total

ACTIVATIONS = {
    "none": lambda z: z,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
}
# Of sums without a bias, and with one.
EPILOGUES: dict[str, tuple[Any, Any]] = {
    "none": (None, lambda acc, bias: acc + bias),
    "relu": (lambda acc: relu(acc), lambda acc, bias: relu(acc + bias)),
    "silu": (lambda acc: silu(acc), lambda acc, bias: silu(acc + bias)),
    "gelu": (lambda acc: gelu(acc), lambda acc, bias: gelu(acc + bias)),
    "gelu_tanh": (lambda acc: gelu(acc, "tanh"), lambda acc, bias: gelu(acc + bias, "tanh")),
}
RESULTS = {dtype: str(dtype).removeprefix("torch.") for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.int8,
    torch.uint8, torch.int16, torch.int32, torch.int64)}
FP8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz


# ---- checks, the same for kernels and for the compiler


def result_dtype(**named: Tensor) -> torch.dtype:
    """The dtype of the product of these operands. TypeError unless they have one dtype, which is multiplied."""
    (first, x), *others = named.items()
    for name, other in others:
        if other.dtype != x.dtype:
            raise TypeError(f"{first} is {x.dtype} and {name} is {other.dtype}; they must have one dtype")
    if x.dtype in FP8:
        return torch.float32
    if x.dtype not in RESULTS:
        raise TypeError(f"{first} is {x.dtype}, which must be a floating-point, complex or integer dtype")
    return x.dtype


def matrices(axes: int, **named: Tensor) -> None:
    """ValueError unless the operands have so many axes and can be multiplied."""
    (name_a, a), (name_b, b) = named.items()
    for name, x in named.items():
        if x.dim() != axes:
            raise ValueError(f"{name} must have {axes} axes, but its shape is {tuple(x.shape)}")
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise ValueError(f"{name_a} {tuple(a.shape)} and {name_b} {tuple(b.shape)} cannot be multiplied")


def empty(like: Tensor, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device)


def multiply(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b in this dtype. Nothing waits for a GPU."""
    if a.is_cuda:
        return tilewright.matmul(a, b, empty(a, *a.shape[:-1], b.shape[-1], dtype=dtype))
    return tilewright.matmul(a, b, out_dtype=RESULTS[dtype])


def multiply_add(a: Tensor, b: Tensor, c: Tensor | None, dtype: torch.dtype, activation: str = "none") -> Tensor:
    """activation(a @ b + c), or without c, in this dtype; it is evaluated on sums before they are rounded."""
    epilogue = EPILOGUES[activation][c is not None]
    if epilogue is None:
        return multiply(a, b, dtype)
    if not dtype.is_floating_point:
        return tilewright.matmul(a, b, empty(a, a.shape[0], b.shape[1], dtype=dtype), c=c, beta=1)
    operands, name = None if c is None else {"bias": c}, RESULTS[dtype]
    if a.is_cuda:
        out = empty(a, a.shape[0], b.shape[1], dtype=dtype)
        return tilewright.matmul(a, b, out, epilogue=epilogue, operands=operands)
    return tilewright.matmul(a, b, out_dtype=name, epilogue=epilogue, operands=operands)


def rows_of(x: Tensor) -> Tensor:
    """[..., k] as a matrix: a view, if its leading axes have one stride."""
    return x if x.dim() == 2 else x[None] if x.dim() == 1 else x.flatten(0, -2)


def transposed(x: Tensor) -> Tensor:
    """The conjugate transpose, a view."""
    return x.transpose(-1, -2).conj()


# ---- mm and bmm


def _product(axes: int) -> tuple[Any, Any]:
    def checked(a: Tensor, b: Tensor) -> tuple[torch.dtype, tuple[int, ...]]:
        dtype = result_dtype(a=a, b=b)
        matrices(axes, a=a, b=b)
        return dtype, (*a.shape[:-1], b.shape[-1])

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return multiply(a, b, checked(a, b)[0])
    return kernel, shaped(checked)


mm_operator = define("mm(Tensor a, Tensor b) -> Tensor", *_product(2), autocast=True, repeated=2)
bmm_operator = define("bmm(Tensor a, Tensor b) -> Tensor", *_product(3), autocast=True, repeated=2)


def save_factors(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _derivatives(operator: Any) -> Any:
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        wants_a, wants_b, _ = ctx.needs_input_grad
        return (operator(g, transposed(b)) if wants_a else None, operator(transposed(a), g) if wants_b else None)

    def tangent(inputs: Any, tangents: Any, output: Tensor) -> Any:
        (a, b), (of_a, of_b) = inputs, tangents
        return total(None if of_a is None else operator(of_a, b), None if of_b is None else operator(a, of_b))
    return backward, save_factors, tangent


for _operator in (mm_operator, bmm_operator):
    differentiate(_operator, *_derivatives(_operator))


# ---- addmm


def _check_addmm(c: Tensor, a: Tensor, b: Tensor, **factors: Any) -> tuple[torch.dtype, tuple[int, int]]:
    dtype = result_dtype(a=a, b=b, c=c)
    matrices(2, a=a, b=b)
    shape = a.shape[0], b.shape[1]
    if c.dim() > 2 or any(n not in (1, size) for n, size in zip(c.shape[::-1], shape[::-1])):
        raise ValueError(f"c {tuple(c.shape)} must broadcast to the product's shape {tuple(shape)}")
    return dtype, shape


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    dtype, _ = _check_addmm(c, a, b)
    if not beta and alpha == 1:
        return multiply(a, b, dtype)
    if alpha == beta == 1:
        return multiply_add(a, b, c, dtype)
    out = empty(a, a.shape[0], b.shape[1], dtype=dtype)
    return tilewright.matmul(a, b, out, alpha=alpha, beta=beta, c=c if beta else None)


addmm_operator = define("addmm(Tensor c, Tensor a, Tensor b, *, Scalar beta=1, Scalar alpha=1) -> Tensor", _addmm,
                        shaped(_check_addmm), autocast=True)


def _save_addmm(ctx: Any, inputs: Any, output: Any) -> None:
    c, a, b, *ctx.factors = inputs
    ctx.save_for_backward(a, b)
    ctx.shape = c.shape


def _addmm_backward(ctx: Any, g: Tensor) -> Any:
    a, b = ctx.saved_tensors
    beta, alpha = ctx.factors
    wants_c, wants_a, wants_b, *_ = ctx.needs_input_grad
    of_c = (g if beta == 1 else g * _conjugate(beta)).sum_to_size(ctx.shape) if wants_c else None
    if alpha != 1:
        g = g * _conjugate(alpha)
    of_a, of_b = mm_operator(g, transposed(b)) if wants_a else None, mm_operator(transposed(a), g) if wants_b else None
    return of_c, of_a, of_b, None, None


def _addmm_tangent(inputs: Any, tangents: Any, output: Tensor) -> Any:
    (_, a, b, beta, alpha), (of_c, of_a, of_b, *_) = inputs, tangents
    products = [mm_operator(x, y) for x, y in ((of_a, b), (a, of_b)) if x is not None and y is not None]
    of_c = None if of_c is None else (of_c * beta).expand(output.shape)
    return total(of_c, *(x * alpha for x in products))


def _conjugate(x: Any) -> Any:
    return x.conjugate() if isinstance(x, complex) else x


differentiate(addmm_operator, _addmm_backward, _save_addmm, _addmm_tangent)


# ---- linear


def _check_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none"
                  ) -> tuple[torch.dtype, tuple[int, ...]]:
    dtype = result_dtype(x=x, weight=weight, **({} if bias is None else {"bias": bias}))
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"x {tuple(x.shape)} and weight {tuple(weight.shape)} must be [..., k] and [n, k]")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"bias must have the shape ({weight.shape[0]},), not {tuple(bias.shape)}")
    if activation not in EPILOGUES:
        raise ValueError(f"activation must be one of {', '.join(EPILOGUES)}, not {activation!r}")
    if activation != "none" and not dtype.is_floating_point:
        raise TypeError(f"activation must be 'none' for {dtype}, not {activation!r}")
    return dtype, (*x.shape[:-1], weight.shape[0])


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    dtype, shape = _check_linear(x, weight, bias, activation)
    result = multiply_add(rows_of(x), weight.t(), bias, dtype, activation)
    return result if x.dim() == 2 else result.view(shape)


linear_operator = define('linear(Tensor x, Tensor weight, Tensor? bias=None, str activation="none") -> Tensor',
                         _linear, shaped(_check_linear), autocast=True, repeated=3)


def _save_linear(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, weight, bias, ctx.activation = inputs
    relu = ctx.activation == "relu"
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, weight, output if relu else bias)


def _linear_backward(ctx: Any, g: Tensor) -> Any:
    """Gradients of a linear layer. For silu and gelu the sums are computed again; linear_sums keeps them."""
    x, weight, other = ctx.saved_tensors
    if ctx.activation == "relu":
        g = torch.ops.aten.threshold_backward(g, other, 0)
    elif ctx.activation != "none":
        g = _before(ctx.activation, g, linear_operator(x, weight, other))
    return _of_factors(ctx, g, x, weight)


def _before(activation: str, g: Tensor, z: Tensor, again: bool | None = None) -> Tensor:
    """The gradient of sums z, from that of their activation; or the activation's tangent, from that of the sums.
    `again`: whether it may be differentiated again, as torch's own of silu cannot be; by default if grad mode is on."""
    if activation == "silu" and (torch.is_grad_enabled() if again is None else again):
        s = torch.sigmoid(z)
        gradient: Tensor = g * s * (1 + z * (1 - s))
    elif activation == "silu":
        gradient = torch.ops.aten.silu_backward(g, z)
    else:
        gradient = torch.ops.aten.gelu_backward(g, z, approximate="tanh" if activation == "gelu_tanh" else "none")
    return gradient


def _of_factors(ctx: Any, g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor | None, ...]:
    wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
    rows = rows_of(g)
    of_x = mm_operator(rows, weight.conj()).view(x.shape) if wants_x else None
    of_weight = mm_operator(rows.t(), rows_of(x).conj()) if wants_weight else None
    return of_x, of_weight, rows.sum(0) if wants_bias and ctx.has_bias else None, None


def _sums_tangent(inputs: Any, tangents: Any, shape: Any) -> Tensor:
    (x, weight, *_), (of_x, of_weight, of_bias, _) = inputs, tangents
    if of_x is of_weight is None:
        return of_bias.expand(shape)
    tangent: Tensor = linear_operator(*((of_x, weight) if of_weight is None else (x, of_weight)), of_bias)
    return tangent if of_x is None or of_weight is None else tangent + linear_operator(of_x, weight)


def _linear_tangent(inputs: Any, tangents: Any, output: Tensor) -> Tensor:
    x, weight, bias, activation = inputs
    of_sums = _sums_tangent(inputs, tangents, output.shape)
    if activation == "relu":
        return torch.ops.aten.threshold_backward(of_sums, output, 0)
    return of_sums if activation == "none" else _before(activation, of_sums, linear_operator(x, weight, bias), True)


differentiate(linear_operator, _linear_backward, _save_linear, _linear_tangent)


# ---- linear with the sums of its activation, which the backward pass needs


SUMS: dict[str, tuple[Any, Any]] = {
    "silu": (lambda acc: (silu(acc), acc), lambda acc, bias: (silu(acc + bias), acc + bias)),
    "gelu": (lambda acc: (gelu(acc), acc), lambda acc, bias: (gelu(acc + bias), acc + bias)),
    "gelu_tanh": (lambda acc: (gelu(acc, "tanh"), acc), lambda acc, bias: (gelu(acc + bias, "tanh"), acc + bias)),
}


def _linear_sums(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    y, z = _fake_linear_sums(x, weight, bias, activation)
    if y.numel():
        results: Any = tuple(t.view(-1, weight.shape[0]) for t in (y, z))
        tilewright.matmul(rows_of(x), weight.t(), results, epilogue=SUMS[activation][bias is not None],
                          operands=None if bias is None else {"bias": bias})
    return y, z


def _fake_linear_sums(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    dtype, shape = _check_linear(x, weight, bias, activation)
    if activation not in SUMS:
        raise ValueError(f"activation must be one of {', '.join(SUMS)}, not {activation!r}")
    y, z = (empty(x, *shape, dtype=dtype) for _ in range(2))
    return y, z


linear_sums_operator = define("linear_sums(Tensor x, Tensor weight, Tensor? bias, str activation) -> (Tensor, Tensor)",
                              _linear_sums, _fake_linear_sums, autocast=True)


def _save_sums(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, ctx.activation = inputs
    ctx.has_bias = bias is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])


def _sums_backward(ctx: Any, g: Tensor | None, of_z: Tensor | None) -> Any:
    x, weight, z = ctx.saved_tensors
    parts = [*([] if g is None else [_before(ctx.activation, g, z)]), *([] if of_z is None else [of_z])]
    return _of_factors(ctx, sum(parts[1:], parts[0]), x, weight) if parts else (None,)*4


def _of_both(inputs: Any, tangents: Any, output: Any) -> tuple[Tensor, Tensor]:
    of_sums = _sums_tangent(inputs, tangents, output[1].shape)
    return _before(inputs[3], of_sums, output[1], True), of_sums


differentiate(linear_sums_operator, _sums_backward, _save_sums, _of_both)


# ---- torch.vmap: a product of matrices of which one or both have a further axis becomes one product, or a stack

Dims = tuple[int | None, ...]


def _first(x: Tensor, dim: int | None, count: int) -> Tensor:
    """With the axis that is mapped over in front."""
    return x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)


def _mapped_mm(info: Any, dims: Dims, a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    if dims[1] is None:                                 # one B: rows of all A
        a = _first(a, dims[0], info.batch_size)
        return mm_operator(a.flatten(0, 1), b).view(*a.shape[:2], b.shape[1]), 0
    return bmm_operator(*(_first(x, dim, info.batch_size) for x, dim in zip((a, b), dims))), 0


def _mapped_bmm(info: Any, dims: Dims, a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    a, b = (_first(x, dim, info.batch_size) for x, dim in zip((a, b), dims))
    product = bmm_operator(a.flatten(0, 1), b.flatten(0, 1))
    return product.view(*a.shape[:2], *product.shape[1:]), 0


def _mapped_linear(info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None = None,
                   activation: str = "none") -> tuple[Tensor, int]:
    of_bias = None if bias is None else dims[2]
    x = _first(x, dims[0], info.batch_size)
    if dims[1] is None and of_bias is None:
        return linear_operator(x, weight, bias, activation), 0
    rows = x[:, None] if x.dim() == 2 else x.flatten(1, -2)
    result = bmm_operator(rows, _first(weight, dims[1], info.batch_size).mT)
    if bias is not None:                                # after rounding, unlike that of one product
        result = result + (bias if of_bias is None else bias.movedim(of_bias, 0)[:, None])
    return ACTIVATIONS[activation](result).view(*x.shape[:-1], result.shape[-1]), 0


def _mapped_linear_sums(info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str
                        ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    sums, _ = _mapped_linear(info, dims, x, weight, bias)
    return (ACTIVATIONS[activation](sums), sums), (0, 0)


for _operator, _rule in ((mm_operator, _mapped_mm), (bmm_operator, _mapped_bmm), (linear_operator, _mapped_linear),
                         (linear_sums_operator, _mapped_linear_sums)):
    torch.library.register_vmap(_operator._schema.name, _rule, lib=library)
