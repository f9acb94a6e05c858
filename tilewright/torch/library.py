"""Registration of tilewright's operators with torch: schema, kernels, shapes for the compiler, gradients, autocast.

An operator's kernel runs on tensors of one device: the CPU's, or a GPU's on torch's current stream, without waiting for
it. `fake` says what the kernel returns without memory (meta tensors, torch.compile), with the same checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "tilewright"
DEVICES = {"CPU": "cpu", "CUDA": "cuda"}  # dispatch keys and devices; torch on ROCm calls its GPUs by CUDA's names
TAGS = tuple(getattr(torch.Tag, name) for name in ("pt2_compliant_tag", "flexible_layout") if hasattr(torch.Tag, name))

library = torch.library.Library(NAMESPACE, "DEF")


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], *, autocast: bool = False) -> Any:
    """The operator of this schema, "name(Tensor a, ...) -> Tensor". Any strides are taken. `autocast`: in an autocast
    region floating-point arguments are brought to the region's dtype first."""
    name = schema.partition("(")[0]
    library.define(schema, tags=TAGS)
    for key in DEVICES:
        library.impl(name, kernel, key)
    qualified = f"{NAMESPACE}::{name}"
    torch.library.register_fake(qualified, fake, lib=library)
    operator = getattr(getattr(torch.ops, NAMESPACE), name).default
    if autocast:
        for key, device in DEVICES.items():
            library.impl(name, _in_autocast(operator, f"Autocast{key}", device), f"Autocast{key}")
    return operator


def differentiate(operator: Any, backward: Callable[..., Any], setup: Callable[..., None]) -> None:
    """Register the backward pass. Both functions are those of torch.library.register_autograd."""
    torch.library.register_autograd(operator._schema.name, backward, setup_context=setup, lib=library)


def refuse_gradients(operator: Any, why: str) -> None:
    """Of an operator without a backward pass: RuntimeError where a gradient would be needed."""
    name = operator._schema.name

    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"{name} has no backward pass: {why}")
    differentiate(operator, backward, lambda ctx, inputs, output: None)


def _in_autocast(operator: Any, key: str, device: str) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(*args: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)

        def cast(x: Any) -> Any:
            eligible = isinstance(x, torch.Tensor) and x.dtype in CAST and x.device.type == device
            return x.to(dtype) if eligible else x
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(*map(cast, args), **{name: cast(x) for name, x in options.items()})
    return kernel


CAST = {torch.float32, torch.float16, torch.bfloat16}  # as torch's own: f64 stays
