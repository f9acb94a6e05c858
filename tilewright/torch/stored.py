"""Weights in few bits that layers of other libraries hold, as tilewright.checkpoints.Weight, without quantising again.

    torchao             tensors that stand for weights of torch.nn.Linear
    GPTQModel, AutoGPTQ, AutoAWQ    layers with qweight, qzeros and scales
    compressed-tensors  torch.nn.Linear with a quantization_scheme, in its compressed state
    transformers        FP8Linear, with weight_scale_inv; GgufLinear, with ggml_type

They are recognised by what they hold; none of these libraries is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tilewright.api import tensors
from tilewright.checkpoints import Weight, awq, compressed, floats, gptq
from tilewright.checkpoints.blocks import numbers
from tilewright.checkpoints.gguf import TYPES
from tilewright.checkpoints.words import halves
from tilewright.formats import Scaled

WORDS = "qweight", "qzeros", "scales", "g_idx"
PACKED = ("weight_packed", "weight", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx",
          "weight_global_scale")
IN_ORDER = ("TorchQuantLinear", "TorchLinear", "TritonV2QuantLinear", "TritonV2Linear", "QuantLinear", "AwqTorchLinear",
            "AwqTorchQuantLinear", "AwqGEMMLinear", "AwqGEMMTritonLinear", "WQLinear_GEMM")  # arrays as in files


def holds(module: nn.Module) -> bool:
    """Whether a layer of another library holds a weight in few bits."""
    weight = getattr(module, "weight", None)
    if _words(module) or _blocks_of_gguf(module):
        return True
    if not isinstance(weight, Tensor):
        return _scheme(module)
    return _torchao(weight) or (weight.element_size() == 1 and (_scheme(module) or _scaled(module)))


def weight_of(name: str, module: nn.Module) -> Weight:
    """The weight of a layer that holds one in few bits. ValueError with the reason for what is not taken."""
    weight: Any = getattr(module, "weight", None)
    if _words(module):
        return _of_words(name, module)
    if _blocks_of_gguf(module):
        order, kind = getattr(module, "input_permutation", None), TYPES[module.ggml_type]
        return Weight(numbers(name, kind, array(weight)), None if order is None else array(order), f"gguf {kind}")
    if isinstance(weight, Tensor) and _torchao(weight):
        return of_torchao(name, weight)
    if _scheme(module):
        return _of_scheme(name, module)
    scales: Any = module.weight_scale_inv
    return floats.scaled(name, array(weight), array(scales.float()), "fp8", getattr(module, "block_size", None))


def _words(module: Any) -> bool:
    return all(isinstance(getattr(module, part, None), Tensor) for part in WORDS[:3])


def _blocks_of_gguf(module: Any) -> bool:
    return isinstance(getattr(module, "ggml_type", None), int) and hasattr(module, "in_features")


def _torchao(weight: Tensor) -> bool:
    return any(type(x).__module__.startswith("torchao.") for x in (weight, weight.data))


def _scheme(module: Any) -> bool:
    scheme, scales = (getattr(module, part, None) for part in ("quantization_scheme", "weight_scale"))
    return scheme is not None and scheme.weights is not None and isinstance(scales, Tensor)


def _scaled(module: Any) -> bool:
    return isinstance(getattr(module, "weight_scale_inv", None), Tensor)


def array(x: Tensor) -> Any:
    """A tensor as NumPy's array in the host's memory."""
    return tensors.array(x.detach().cpu().contiguous(), "x")


def _arrays(module: nn.Module, parts: tuple[str, ...]) -> dict[str, Any]:
    named = {part: getattr(module, part, None) for part in parts}
    return {part: array(x) for part, x in named.items() if isinstance(x, Tensor) and x.numel()}


def _of_words(name: str, module: Any) -> Weight:
    """The weight of a layer of GPTQModel, AutoGPTQ or AutoAWQ."""
    kind, bits = type(module).__name__, int(getattr(module, "bits", 0) or getattr(module, "w_bit", 4))
    if kind not in IN_ORDER:
        raise ValueError(f"{name} is a {kind}, whose arrays are in the order of a kernel: load the model with the "
                         "backend torch, or read its files by tilewright.checkpoints.load")
    arrays, group = _arrays(module, WORDS), int(getattr(module, "group_size", -1))
    if "awq" in f"{type(module).__module__}.{kind}".lower() or kind.startswith("WQ"):
        return awq.weight(name, arrays, {"bits": bits, "group_size": group})
    state = getattr(module, "qzero_format", None)
    layout = "gptq_v2" if callable(state) and state() == 2 else "gptq"
    return gptq.weight(name, arrays, {"bits": bits, "group_size": group, "checkpoint_format": layout})


def _of_scheme(name: str, module: Any) -> Weight:
    """The weight of a layer that compressed-tensors has compressed."""
    groups = {"0": {"targets": ["Linear"], "weights": module.quantization_scheme.weights.model_dump()}}
    return compressed.weight(name, _arrays(module, PACKED), {"config_groups": groups})


# ---- torchao


def of_torchao(name: str, weight: Any) -> Weight:
    """The weight [outputs, inputs] of a tensor of torchao's. ValueError with the reason for kinds not taken."""
    weight = getattr(weight, "data", weight)
    kind = type(weight).__name__
    if kind not in TORCHAO:
        raise ValueError(f"{name} is torchao's {kind}, which is not taken: those are {', '.join(TORCHAO)}")
    if getattr(weight, "act_pre_scale", None) is not None:
        raise ValueError(f"{name} is torchao's {kind} with act_pre_scale: its activations are multiplied by numbers "
                         "first, which no layer here does")
    if weight.dim() != 2:
        raise ValueError(f"{name} is torchao's {kind} of the shape {tuple(weight.shape)}: weights have two axes")
    return TORCHAO[kind](name, weight)


def _int4(name: str, w: Any) -> Weight:
    """Bytes of two elements with sign, scales and what is added [groups, outputs]: q * scale + zero_point."""
    scales, added = (array(x.t().float()) for x in (w.scale, w.zero_point))
    shape = ("i4", -1, w.shape[-1])
    group = int(w.block_size[-1])
    q = Scaled(array(w.qdata).view("u1"), scales, None, group, shape, added if added.any() else None)
    return Weight(q, None, "torchao Int4Tensor")


def _apart(name: str, w: Any) -> Weight:
    """One element to a byte; scales and integer zero points by blocks of outputs and inputs."""
    tall, wide = (int(x) for x in w.block_size)
    zeros = getattr(w, "zero_point", None)
    if zeros is not None and zeros.is_floating_point():
        if not torch.equal(zeros, zeros.round()):
            raise ValueError(f"{name} is torchao's {type(w).__name__} with zero points that are no whole numbers")
        zeros = zeros.to(torch.int8)
    stored = floats.scaled(name, array(w.qdata), array(w.scale.float().reshape(-(-w.shape[0] // tall), -1)),
                          f"torchao {type(w).__name__}", (tall, wide), None if zeros is None else array(zeros))
    bits = {f"torch.int{x}": x for x in range(1, 8)}.get(str(getattr(w, "target_dtype", "")), 8)
    q: Any = stored.numbers
    if bits > 4:
        return stored
    pairs = halves(q.elements.view("u1") & 15)
    return Weight(Scaled(pairs, q.scales, q.zeros, q.group, ("i4", -1, w.shape[-1])), None, stored.source)


def _blocks(name: str, w: Any) -> Weight:
    """NVFP4Tensor and MXTensor of 4 and 8 bits."""
    scales, factor = w.scale, getattr(w, "per_tensor_scale", None)
    if getattr(w, "is_swizzled_scales", False):
        scales = _in_rows(scales.reshape(-1), w.shape[0], w.shape[1] // int(w.block_size))
    data = array(w.qdata.view(torch.uint8)), array(scales.view(torch.uint8))
    source = f"torchao {type(w).__name__}"
    if type(w).__name__ == "NVFP4Tensor":
        return floats.nvfp4(*data, 1.0 if factor is None else floats.number(array(factor.float())), source)
    names = {"torch.float4_e2m1fn_x2": "mxfp4", "torch.float8_e4m3fn": "mxfp8", "torch.float8_e5m2": "mxfp8_e5m2"}
    element = str(w.elem_dtype)
    if element not in names or int(w.block_size) != 32:
        raise ValueError(f"{name} is torchao's MXTensor of {element} in blocks of {w.block_size}: taken are "
                         f"{', '.join(names)} in blocks of 32")
    return floats.blocks(*data, names[element], source)


def _in_rows(scales: Tensor, rows: int, columns: int) -> Tensor:
    """Scales [rows, columns] of those in tiles of 128 x 4, as NVIDIA's instructions take them."""
    tall, wide = -(-rows // 128), -(-columns // 4)
    tiles = scales.view(torch.uint8).reshape(tall, wide, 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(tall * 128, wide * 4)[:rows, :columns].contiguous()


TORCHAO: dict[str, Callable[[str, Any], Weight]] = {
    "Int4Tensor": _int4, "Int8Tensor": _apart, "Float8Tensor": _apart, "IntxUnpackedToInt8Tensor": _apart,
    "NVFP4Tensor": _blocks, "MXTensor": _blocks,
}
