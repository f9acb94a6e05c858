"""`Config`: transformers' from_pretrained with tilewright's layers.

    AutoModelForCausalLM.from_pretrained(path, quantization_config=tilewright.torch.Config("int4"))

A checkpoint that is quantized already is read as it is: a layer's bits become a WeightLinear. Of others, layers are
quantised once they are loaded. Registered with transformers under the name "tilewright", when this module is imported;
AutoHfQuantizer.merge_quantization_configs, which would refuse a config of another kind than the checkpoint's, passes
this one.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tilewright import checkpoints
from tilewright.checkpoints import Checkpoint, Weight
from tilewright.checkpoints.checkpoint import ARRAYS, OWN, meaning
from tilewright.torch import modules, narrow
from tilewright.torch.filling import layer_of, replace
from tilewright.torch.modules import KINDS, WeightLinear

try:
    from transformers.quantizers import auto
    from transformers.quantizers.base import HfQuantizer, get_keys_to_not_convert
    from transformers.utils.quantization_config import QuantizationConfigMixin
except ImportError as error:
    raise ImportError("tilewright.torch.Config needs transformers: pip install transformers") from error


class Config(QuantizationConfigMixin):
    """How from_pretrained makes tilewright's layers.

    kind    of layers of a checkpoint that is not quantized: as tilewright.torch.convert takes it
    skip    names of layers that stay, in which * stands for any letters. None: the output layer, and layers that share
            their weights with others
    group, zero_points  as tilewright.torch.WeightLinear.from_linear takes them
    """

    def __init__(self, kind: str = "int8", *, skip: list[str] | None = None, group: int | None = None,
                 zero_points: bool = False, **_: Any) -> None:
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
        self.quant_method: Any = OWN
        self.kind, self.skip, self.group, self.zero_points = kind, skip, group, zero_points

    def options(self) -> dict[str, Any]:
        """The arguments of convert that were given."""
        return {name: x for name in ("group", "zero_points") if (x := getattr(self, name))}


class _Pending(nn.Module):
    """The place of a layer whose weight the checkpoint has in few bits, until the rest of the model is loaded."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias


class Quantizer(HfQuantizer):
    """What from_pretrained calls while it loads a model with a Config."""

    requires_calibration = False
    quantization_config: Config

    def _process_model_before_weight_loading(self, model: Any, checkpoint_files: Any = None, **_: Any) -> None:
        self.pending: dict[str, str] = {}
        self.checkpoint: Checkpoint | None = None
        files = [Path(x) for x in checkpoint_files or () if str(x).endswith(".safetensors")]
        if not files:
            return
        self.checkpoint = loaded = checkpoints.load(files[0].parent if len(files) > 1 else files[0])
        quantized = set(loaded.quantized)
        for path, module in list(model.named_modules()):
            name = next((x for x in (f"{path}.weight", *_without(model, path)) if x in quantized), "")
            if name and type(module) is nn.Linear:
                replace(model, path, _Pending(module))
                self.pending[path] = name
                quantized.discard(name)
        if quantized:
            raise ValueError(f"{loaded.path} has weights in few bits for which the model has no torch.nn.Linear: "
                             f"{', '.join(sorted(quantized)[:8])}")
        used = {re.sub(r"\d+", r"\\d+", re.escape(x)) for x in loaded.tensors
                if x not in loaded or x in loaded.quantized}
        model._keys_to_ignore_on_load_unexpected = {*(model._keys_to_ignore_on_load_unexpected or ()), *used}

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        if not self.pending:
            config = self.quantization_config
            skip = get_keys_to_not_convert(model) if config.skip is None else config.skip
            return modules.convert(model, config.kind, skip=skip, **config.options())
        assert self.checkpoint is not None
        for path, name in self.pending.items():
            layer = layer_of(name, self.checkpoint[name], model.get_submodule(path))
            replace(model, path, layer.to(model.device))
        return model

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """A model in tilewright's own layout, which tilewright.checkpoints.load and from_pretrained read."""
        state = {name: x for name, x in model.state_dict().items() if isinstance(x, torch.Tensor)}
        entries = {}
        for path, module in model.named_modules():
            if not isinstance(module, WeightLinear):
                continue
            how = module.saved
            parts = {part: state.pop(f"{path}.{part}", None) for part in ARRAYS}
            host: list[Any] = [x if x is None else x.cpu() for x in map(parts.get, ARRAYS[:-1])]
            more: Any = how["format"], how["group"], how["tensor_scale"], how["in_features"]
            q = narrow.as_weight(*host, *more)
            state |= {f"{path}.weight.{part}": x for part, x in parts.items() if x is not None}
            entries[f"{path}.weight"] = meaning(Weight(q))
        return state, {OWN: json.dumps(entries, sort_keys=True)}

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return self.quantization_config.kind == "float"

    @property
    def is_compileable(self) -> bool:
        return True


def _without(model: Any, path: str) -> list[str]:
    """The name without the prefix of the model's base, as checkpoints of bases have it."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    return [f"{path.removeprefix(prefix)}.weight"] if path.startswith(prefix) else []


def _register() -> None:
    auto.register_quantization_config(OWN)(Config)
    auto.register_quantizer(OWN)(Quantizer)
    theirs = auto.AutoHfQuantizer.merge_quantization_configs

    def merged(stored: Any, given: Any) -> Any:
        method = stored.get("quant_method") if isinstance(stored, dict) else getattr(stored, "quant_method", None)
        return given if isinstance(given, Config) and method != OWN else theirs(stored, given)
    auto.AutoHfQuantizer.merge_quantization_configs = staticmethod(merged)


if OWN not in auto.AUTO_QUANTIZER_MAPPING:
    _register()
