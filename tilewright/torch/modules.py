"""Layers in place of torch.nn.Linear, by tilewright's products, and `convert`, which puts them into a model.

    Linear              f32, f64, bf16, f16: trained as torch.nn.Linear is, whose parameters it has
    Fp8Linear           weights of e4m3fn with a scale for each output; activations are quantised by rows in each call
    WeightLinear        weights of few bits, activations as they come

The last two are for inference. Their weights are buffers, which state_dict saves and load_state_dict checks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from tilewright.formats import Quantized, Scaled
from tilewright.torch import functions, narrow, ops, quantization, stored

VERSION = 1  # of what narrow layers save
GROUP = 128  # inputs that share a scale, of weights in 4 bits

# kind of a layer → the format of its weights, and inputs that share a scale unless the caller says otherwise
WEIGHTS: dict[str, tuple[str, int | None]] = {
    "int8": ("i8", None), "int4": ("i4", GROUP), "mxfp8": ("mxfp8", None), "mxfp4": ("mxfp4", None),
    "nvfp4": ("nvfp4", None),
}
KINDS = ("float", "fp8", *WEIGHTS)
FEW = 8  # rows for which our kernels are expected to be faster than torch's on a GPU
LISTED = 8  # names of modules in a warning


class Linear(nn.Linear):
    """torch.nn.Linear by tilewright.torch.linear, with an activation in the product: the same parameters, the same
    state_dict. On a GPU a layer without an activation takes torch's product where ours is not expected to be faster:
    for more than FEW rows whose operands are multiples of 16 bytes apart."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None,
                 *, activation: str = "none") -> None:
        if activation not in ops.ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ops.ACTIVATIONS)}, not {activation!r}")
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, activation: str = "none") -> Linear:
        """With the parameters of a torch.nn.Linear, not copies of them."""
        new = cls(linear.in_features, linear.out_features, linear.bias is not None, "meta", activation=activation)
        new.weight, new.bias = linear.weight, linear.bias
        return new.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and self.activation == "none" and x.numel() > FEW * self.in_features and not functions.unaligned(
                x, self.weight):
            return nn.functional.linear(x, self.weight, self.bias)
        return functions.linear(x, self.weight, self.bias, self.activation)

    def extra_repr(self) -> str:
        return super().extra_repr() + f", activation={self.activation!r}" * (self.activation != "none")


class _Narrow(nn.Module):
    """A layer whose weight is stored in few bits. `saved` says in which way, beside the buffers."""

    bias: Tensor | None

    def __init__(self, in_features: int, out_features: int, saved: dict[str, Any], **buffers: Tensor | None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.saved: dict[str, Any] = {"version": VERSION, "in_features": in_features, **saved}
        for name, x in buffers.items():
            self.register_buffer(name, None if x is None else x.detach())

    def _own(self, *names: str) -> list[Any]:
        """These tensors, which torch takes a microsecond longer for as attributes."""
        buffers = self._buffers
        return [buffers[name] if name in buffers else getattr(self, name) for name in names]

    def get_extra_state(self) -> dict[str, Any]:
        return dict(self.saved)

    def set_extra_state(self, state: Any) -> None:
        """Take the scale of all weights; what else was saved must be what this layer has."""
        wanted, given = ({**x, "tensor_scale": None} for x in (self.saved, state))
        if given != wanted:
            raise ValueError(f"these weights were saved as {state}, and the layer that loads them is {self.saved}: "
                             "convert the model in the way that the saved one was converted")
        self.saved = dict(state)

    def extra_repr(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.saved.items() if name not in (
            "version", "in_features", "tensor_scale"))
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}, {options}"


class Fp8Linear(_Narrow):
    """Weights in e4m3fn with an f32 scale for each output, and activations quantised in each call, by rows."""

    weight: Tensor
    scales: Tensor

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> Fp8Linear:
        weight, scales = quantization.weight_rows(linear.weight.detach())
        return cls(linear.in_features, linear.out_features, {"kind": "fp8"}, weight=weight, scales=scales,
                   bias=linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.in_features:
            raise ValueError(f"x {tuple(x.shape)} must have {self.in_features} numbers along its last axis")
        return functions.fp8_linear(x, *self._own("weight", "scales", "bias"))

    def dequantized(self) -> Tensor:
        """The weight in f32."""
        return self.weight.float() * self.scales


class WeightLinear(_Narrow):
    """Weights in few bits, decoded on the way to the product; activations in f32, bf16 or f16."""

    elements: Tensor
    scales: Tensor
    zeros: Tensor | None
    minima: Tensor | None
    order: Tensor | None

    @classmethod
    def from_linear(cls, linear: nn.Linear, kind: str = "int8", *, group: int | None = None, zero_points: bool = False
                    ) -> WeightLinear:
        """kind        "int8", "int4", "mxfp8", "mxfp4" or "nvfp4"
        group       of integers: how many inputs share a scale; by default all, of int4 128
        zero_points of integers: a zero point beside each scale; elements are unsigned then
        """
        if kind not in WEIGHTS:
            raise ValueError(f"kind must be one of {', '.join(WEIGHTS)}, not {kind!r}")
        format, usual = WEIGHTS[kind]
        if kind not in ("int8", "int4") and (group is not None or zero_points):
            raise ValueError(f"group and zero_points must not be given for {kind}, which has blocks of its own")
        format = {"i8": "u8", "i4": "u4"}[format] if zero_points else format
        with torch.no_grad():
            made = narrow.stored(linear.weight, format, group or usual, zero_points)
        arrays = {name: made.pop(name) for name in ("elements", "scales", "zeros")}
        return cls(linear.in_features, linear.out_features, {"kind": kind, **made}, **arrays, minima=None, order=None,
                   bias=linear.bias)

    @classmethod
    def from_weight(cls, weight: Quantized | Scaled, bias: Tensor | None = None, order: Any = None) -> WeightLinear:
        """A layer of a weight that is quantised already, as a checkpoint has it: a tilewright.Scaled or Quantized
        [outputs, inputs] in the host's memory, with scales along its last axis. docs/checkpoints.md shows how the usual
        files are read.

        order   which input of the layer each input of the weight is, integers [inputs], where they are in another order
                (GPTQ's act-order): a permutation. None: the same
        """
        made = narrow.taken(weight)
        if order is not None:
            order = torch.as_tensor(order).to(torch.int64)
            if not torch.equal(order.sort().values, torch.arange(weight.shape[1])):
                raise ValueError(f"order must be a permutation of the {weight.shape[1]} inputs")
        if bias is not None and tuple(bias.shape) != weight.shape[:1]:
            raise ValueError(f"bias must have the shape {weight.shape[:1]}, not {tuple(bias.shape)}")
        arrays = {name: made.pop(name) for name in ("elements", "scales", "zeros", "minima")}
        return cls(weight.shape[1], weight.shape[0], {"kind": "weight", **made}, **arrays, order=order, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.in_features:
            raise ValueError(f"x {tuple(x.shape)} must have {self.in_features} numbers along its last axis")
        order, elements, scales, *more = self._own("order", "elements", "scales", "zeros", "minima", "bias")
        x, how = x if order is None else x.index_select(-1, order), self.saved
        zeros, minima, bias = more
        return functions.weight_linear(x, elements, scales, zeros, minima, bias, how["format"], how["group"],
                                       how["tensor_scale"])

    def dequantized(self) -> Tensor:
        """The weight in f32, on the layer's device."""
        how = self.saved
        made = quantization.dequantize(self.elements, self.scales, self.zeros, self.minima, how["format"], how["group"],
                                       how["tensor_scale"], self.in_features)
        return made if self.order is None else made[:, self.order.argsort()]


Skip = Iterable[str] | Callable[[str, nn.Module], bool]


def convert(model: nn.Module, kind: str = "float", *, skip: Skip = (), **options: Any) -> nn.Module:
    """Replace every torch.nn.Linear of a model by one of tilewright's, in place, and every Linear of tilewright's by a
    narrow one; the model, or its replacement if it is such a layer itself. A layer of another library that holds few
    bits (torchao, GPTQModel, AutoAWQ, compressed-tensors, transformers' fp8 and GGUF) becomes a WeightLinear with these
    bits, whatever the kind; ValueError with the reason if it cannot.

    kind        "float": the same parameters, trainable. "fp8", "int8", "int4", "mxfp8", "mxfp4", "nvfp4": for inference
    skip        names of layers that stay, in which * stands for any letters ("lm_head", "*.router"), or a function of a
                name and a layer that says so
    options     group= and zero_points= of WeightLinear, activation= of Linear

    Other subclasses of torch.nn.Linear stay, as the output projection of torch.nn.MultiheadAttention, whose weights are
    read by others. A layer that is in several places stays one. A UserWarning names the modules that have matrices and
    stay though no name in `skip` says so: those of other libraries (Conv1D of GPT-2, experts with weights of three
    axes), and of torch attention and recurrent layers; not embeddings and convolutions.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    patterns = [skip] if isinstance(skip, str) else None if callable(skip) else list(skip)
    made: dict[nn.Module, nn.Module] = {}

    def stays(name: str, module: nn.Module) -> bool:
        if patterns is None:
            return bool(skip(name, module))  # type: ignore[operator]
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    def replaced(layer: nn.Linear) -> nn.Module:
        if kind == "float":
            return layer if type(layer) is Linear and not options else Linear.from_linear(layer, **options)
        if kind == "fp8":
            return Fp8Linear.from_linear(layer, **options)
        return WeightLinear.from_linear(layer, kind, **options)

    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, _Narrow) and stored.holds(module):
            if stays(name, module):
                continue
            w = stored.weight_of(name, module)
            bias: Any = getattr(module, "bias", None)
            layer = WeightLinear.from_weight(w.numbers, bias, w.order).train(module.training)
            made[module] = made.get(module) or layer.to(device_of(module))
        elif type(module) in (nn.Linear, Linear) and not stays(name, module):
            if kind != "float" and getattr(module, "activation", "none") != "none":
                raise ValueError(f"{name or 'model'} has activation={module.activation!r}, which {kind} layers lack: "
                                 "name it in skip=, or make the activation a layer of its own")
            if module not in made:
                made[module] = replaced(module)
        else:
            continue
        if not name:
            return made[module]
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made[module])
    left = [f"{name or 'model'} ({type(module).__name__})" for name, module in model.named_modules()
            if _has_matrices(module) and not (patterns and stays(name, module))]
    if left:
        shown = ", ".join(left[:LISTED]) + f" and {len(left) - LISTED} others" * (len(left) > LISTED)
        warnings.warn(f"convert replaces torch.nn.Linear; these modules have matrices and stay as they are: {shown}",
                      stacklevel=2)
    return model


def device_of(module: nn.Module) -> torch.device:
    """Where the first tensor of a module is."""
    return next((x.device for x in (*module.parameters(), *module.buffers())), torch.device("cpu"))


def _has_matrices(module: nn.Module) -> bool:
    """Has a module matrices of its own that products may use? No embedding, convolution or layer of tilewright."""
    others = Linear, _Narrow, nn.Embedding, nn.EmbeddingBag, nn.modules.conv._ConvNd
    return not isinstance(module, others) and any(
        p.dim() > 1 and p.is_floating_point() for p in module.parameters(recurse=False))
