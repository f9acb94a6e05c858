"""PyTorch's own samples of operators that multiply matrices: results and gradients under tilewright.torch's switch, and
of its functions, against PyTorch's. `python -m tests.suites torch` runs them, beside the package expecttest.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import tilewright.torch as twt

NAMES = ("mm", "bmm", "matmul", "__rmatmul__", "addmm", "baddbmm", "addbmm", "nn.functional.linear", "einsum", "mv",
         "dot", "vdot", "addmv", "inner", "tensordot", "linalg.multi_dot", "nn.functional.bilinear")
OURS = {"mm": twt.mm, "bmm": twt.bmm, "matmul": twt.matmul, "nn.functional.linear": twt.linear, "addmm": twt.addmm,
        "einsum": lambda tensors, equation: twt.einsum(equation, *tensors)}
DTYPES = torch.float32, torch.float64, torch.bfloat16, torch.complex64
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 2e-2, torch.complex64: 1e-5}
OPERATORS = [op for op in op_db if op.name in NAMES and not op.variant_test_name]


def leaves(x: Any) -> Any:
    """The same of leaves of a graph of their own, with the same elements and strides."""
    if isinstance(x, torch.Tensor):
        return x.detach().requires_grad_(x.requires_grad)
    return type(x)(map(leaves, x)) if isinstance(x, (tuple, list)) else x


def outcome(function: Any, sample: Any) -> list[torch.Tensor]:
    """The result, and the gradients of a weighted sum of it."""
    given = leaves((sample.input, *sample.args))
    options = {name: leaves(x) for name, x in sample.kwargs.items()}
    flat = [x for part in (*given, *options.values()) for x in (part if isinstance(part, (tuple, list)) else (part,))]
    wanted = [x for x in flat if isinstance(x, torch.Tensor) and x.requires_grad]
    result = function(*given, **options)
    weights = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).reshape(result.shape).to(result.dtype)
    if not wanted or not result.requires_grad:
        return [result]
    found = torch.autograd.grad(result, wanted, weights, allow_unused=True)
    return [result, *(torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found))]


def compare(op: Any, dtype: torch.dtype, function: Any) -> None:
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip("PyTorch has none of this dtype")
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        for ours, theirs in zip(outcome(function, sample), outcome(op.op, sample), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=BOUNDS[dtype], atol=10 * BOUNDS[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: str(x)[6:])
@pytest.mark.parametrize("op", OPERATORS, ids=lambda x: x.name)
def test_switch(op, dtype):
    def switched(*args: Any, **kwargs: Any) -> Any:
        with twt.enable(rule="always"):
            return op.op(*args, **kwargs)
    compare(op, dtype, switched)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: str(x)[6:])
@pytest.mark.parametrize("op", [op for op in OPERATORS if op.name in OURS], ids=lambda x: x.name)
def test_functions(op, dtype):
    compare(op, dtype, OURS[op.name])
