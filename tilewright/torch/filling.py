"""`load_checkpoint`: the weights of a checkpoint in a model's layers, those of few bits as the file has them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tilewright import checkpoints
from tilewright.api import tensors
from tilewright.checkpoints import Checkpoint, Weight
from tilewright.torch.modules import Linear, WeightLinear

LISTED = 8      # names in a message
# GGUF's names and transformers', of layers and of the model
OF_LAYERS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
             "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
OF_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# architectures whose weights GGUF has as transformers does, but for the rows of those named beside them
HEADS = {"llama": ("attn_q", "attn_k"), "qwen2": (), "qwen3": ()}


class _Source(NamedTuple):
    """Where a weight of a model is in a checkpoint; with `heads`, its rows are of so many heads, halves interleaved."""

    name: str
    heads: int = 0

    def read(self, checkpoint: Mapping[str, Any]) -> Any:
        x = checkpoint[self.name]
        if not self.heads:
            return x
        order = np.arange(x.shape[0]).reshape(self.heads, -1, 2).swapaxes(1, 2).ravel()
        return x.rows(order) if isinstance(x, Weight) else x[order]


def load_checkpoint(model: nn.Module, checkpoint: Checkpoint | str | os.PathLike[str]) -> nn.Module:
    """Give a model the weights of a checkpoint, in place: the model.

    checkpoint  what tilewright.checkpoints.load returns, or takes

    A torch.nn.Linear whose weight has few bits in the checkpoint becomes a WeightLinear of these bits; embeddings and
    other parameters get numbers, in their own dtypes. Names are the model's, with or without the prefix of its first
    part ("model."); of GGUF they are those of transformers' models of the architectures llama, qwen2 and qwen3, whose
    heads' rows are brought into transformers' order. ValueError for other architectures, for shapes that differ, and
    for parameters that the checkpoint has not, but those tied to others.
    """
    loaded = checkpoint if isinstance(checkpoint, Checkpoint) else checkpoints.load(checkpoint)
    modules = dict(model.named_modules())
    left = {name for name, _ in model.named_parameters(remove_duplicate=True)}
    for name, source in _places(loaded, modules).items():
        path, _, part = name.rpartition(".")
        module = modules[path]
        x = source.read(loaded)
        if isinstance(x, Weight) and part == "weight" and type(module) in (nn.Linear, Linear):
            replace(model, path, layer_of(name, x, module))
        else:
            _fill(name, module, part, x)
        left.discard(name)
    known = dict(modules) | dict(model.named_modules())
    left = {name for name in left if name.rpartition(".")[2] in known[name.rpartition(".")[0]]._parameters}
    if left:
        shown = ", ".join(sorted(left)[:LISTED]) + f" and {len(left) - LISTED} others" * (len(left) > LISTED)
        raise ValueError(f"{loaded.path} has no weights for {shown}")
    return model


def layer_of(name: str, weight: Weight, linear: nn.Module) -> WeightLinear:
    """The layer of a weight in place of a torch.nn.Linear, whose bias it has. ValueError for another shape."""
    shape = linear.out_features, linear.in_features
    if tuple(weight.shape) != shape:
        raise ValueError(f"{name} has the shape {tuple(weight.shape)} in the checkpoint, and {shape} in the model")
    bias: Any = linear.bias
    return WeightLinear.from_weight(weight.numbers, bias, weight.order).train(linear.training)


def replace(model: nn.Module, path: str, layer: nn.Module) -> None:
    """Put a layer in the place of another one."""
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)


def _fill(name: str, module: nn.Module, part: str, x: Any) -> None:
    own: Any = getattr(module, part)
    made = tensors.tensor(np.require(x.dequantize() if isinstance(x, Weight) else x, requirements=["C", "W"]))
    if not isinstance(made, Tensor) or made.shape != own.shape:
        raise ValueError(f"{name} has the shape {tuple(x.shape)} in the checkpoint, and {tuple(own.shape)} in the "
                         "model")
    with torch.no_grad():
        if own.is_meta:
            setattr(module, part, nn.Parameter(made.to(own.dtype), requires_grad=own.requires_grad))
        else:
            own.copy_(made)


def _places(checkpoint: Checkpoint, modules: Mapping[str, nn.Module]) -> dict[str, _Source]:
    """The names of the model's parameters and buffers that the checkpoint has, biases first: layers take them along."""
    sources = dict(_of_gguf(checkpoint)) if checkpoint.config.get("quant_method") == "gguf" else {
        name: _Source(name) for name in checkpoint}
    places: dict[str, _Source] = {}
    for name, source in sources.items():
        path, _, part = name.rpartition(".")
        for prefix in ("", *(f"{child}." for child, _ in modules[""].named_children())):
            module = modules.get(prefix + path if path else prefix.rstrip("."))
            if module is not None and isinstance(getattr(module, part, None), Tensor):
                places[f"{prefix}{name}"] = source
                break
    return dict(sorted(places.items(), key=lambda x: not x[0].endswith(".bias")))


def _of_gguf(checkpoint: Checkpoint) -> Iterator[tuple[str, _Source]]:
    of = str(checkpoint.metadata.get("general.architecture"))
    if of not in HEADS:
        raise ValueError(f"{checkpoint.path} is a model of GGUF's architecture {of!r}: names and orders of weights are "
                         f"known of {', '.join(HEADS)}. tilewright.checkpoints.load reads its weights by their names")
    heads = int(checkpoint.metadata.get(f"{of}.attention.head_count", 0))
    by_name = {"attn_q": heads, "attn_k": int(checkpoint.metadata.get(f"{of}.attention.head_count_kv", heads))}
    for name in checkpoint:
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
        if layer and layer[2] in OF_LAYERS:
            yield f"model.layers.{layer[1]}.{OF_LAYERS[layer[2]]}.{layer[3]}", _Source(
                name, by_name[layer[2]] if layer[2] in HEADS[of] else 0)
        path, _, part = name.rpartition(".")
        if path in OF_MODEL:
            yield f"{OF_MODEL[path]}.{part}", _Source(name)
