"""tilewright in torch: operators with gradients for torch.compile, layers, and a switch for products of torch's own.

    twt = tilewright.torch                               # once it is imported
    y = twt.linear(x, weight, bias, activation="gelu")   # differentiable; also torch.ops.tilewright.linear
    twt.convert(model, kind="int8")                      # nn.Linear becomes a weight-only layer
    with twt.enable():                                   # torch.mm, addmm, matmul and linear where it should be faster
        model(x)

docs/torch.md describes all of it, and docs/checkpoints.md `load_checkpoint` and `Config`, which is for transformers and
imports it. Nothing else in tilewright imports torch.
"""

from tilewright import text

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"tilewright.torch needs torch: {text.install('torch')}, or pip install torch") from error

from typing import Any

from tilewright.torch.contraction import einsum
from tilewright.torch.filling import load_checkpoint
from tilewright.torch.functions import addmm, bmm, linear, matmul, mm, quantize_rows, scaled_mm
from tilewright.torch.grouped import grouped_mm
from tilewright.torch.heads import attention, register_attention, scaled_dot_product_attention
from tilewright.torch.modules import Fp8Linear, Linear, WeightLinear, convert
from tilewright.torch.switch import enable

__all__ = ["Fp8Linear", "Linear", "WeightLinear", "addmm", "attention", "bmm", "convert", "einsum", "enable",
           "grouped_mm", "linear", "load_checkpoint", "matmul", "mm", "quantize_rows", "register_attention",
           "scaled_dot_product_attention", "scaled_mm"]


def __getattr__(name: str) -> Any:
    if name == "Config":
        from tilewright.torch.pretrained import Config
        return Config
    raise AttributeError(f"module 'tilewright.torch' has no attribute {name!r}")
