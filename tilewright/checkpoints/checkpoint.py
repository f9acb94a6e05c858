"""`load` and `save`: checkpoints as mappings from names to arrays and Weights."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.checkpoints import awq, compressed, floats, gguf, gptq, safetensors
from tilewright.checkpoints.record import Array, Tensors, Weight
from tilewright.formats import BLOCK_FORMATS, Quantized, Scaled
from tilewright.formats.scaled import Nibbles

INDEX, CONFIG, ALSO = "model.safetensors.index.json", "config.json", ("quantize_config.json", "quant_config.json")
OWN = "tilewright"                  # the metadata that says what tilewright has saved, and the method of such a model
ARRAYS = "elements", "scales", "zeros", "minima", "order"

DAMAGE = ValueError, TypeError, LookupError, AttributeError, ArithmeticError     # of makers of weights, by wrong arrays

# method → the ends of the names of a layer's arrays, the first and the others; and what makes a Weight of them
Make = Callable[[str, Tensors, Mapping[str, Any]], Weight]
METHODS: dict[str, tuple[tuple[str, ...], tuple[str, ...], Make]] = {
    "gptq": (("qweight",), ("qzeros", "scales", "g_idx"), gptq.weight),
    "awq": (("qweight",), ("qzeros", "scales"), awq.weight),
    "compressed-tensors": (("weight_packed", "weight"), (
        "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx", "weight_global_scale", "input_scale",
        "input_global_scale", "input_zero_point"), compressed.weight),
    **dict.fromkeys(("fp8", "mxfp8", "fbgemm_fp8", "modelopt", "nvfp4"), (("weight",), (
        "weight_scale_inv", "weight_scale", "weight_scale_2", "input_scale", "input_scale_ub", "activation_scale"),
        floats.by_method)),
}
METHODS["auto-gptq"] = METHODS["gptq"]
REFUSED = {
    "bitsandbytes": "its numbers are from a table of 16 (nf4), or have outliers beside them, and are no elements times "
                    "scales in a format of tilewright's",
    "hqq": "its files are pickled objects", "aqlm": "its numbers are sums of vectors from tables",
    "vptq": "its numbers are from tables of vectors", "quip": "its numbers are from tables of vectors",
    "higgs": "its numbers are from tables of vectors, and activations are rotated",
    "spqr": "it has a sparse part", "eetq": "its arrays are in the order of a kernel for some GPUs",
    "exl2": "rows have different bits", "exl3": "its numbers are from tables of vectors",
    "bitnet": "its digits are ternary", "quanto": "its files are pickled objects",
    "torchao": "its files are torch's objects: load the model by transformers, and tilewright.torch.convert takes its "
               "weights",
}


def refusal(method: str) -> str:
    """The sentence for a method of quantization that is not taken."""
    known = ", ".join(x for x in METHODS if x != "auto-gptq")
    return f"checkpoints quantized by {method!r} are not taken" + (
        f": {REFUSED[method]}" if method in REFUSED else f", but those of {known}, mxfp4 and GGUF")


class Checkpoint(Mapping[str, Any]):
    """The weights of a model, by their names: NAME.weight is a Weight if it has few bits, all others are arrays.

    path        the file or folder
    config      how it was quantized: quantization_config of the model's config.json, with its quant_method
    metadata    of the file, or of its first part
    tensors     the arrays of files of safetensors as they are, by their own names; of GGUF its tensors
    quantized   the names of the Weights
    """

    def __init__(self, path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, Any],
                 config: Mapping[str, Any]) -> None:
        self.path, self.tensors, self.metadata, self.config = path, tensors, metadata, config
        self.quantized: frozenset[str] = frozenset()
        self._made = self._makers()

    def _makers(self) -> dict[str, Callable[[], Any]]:
        """What reads each weight, and each array that is none's part."""
        if self.tensors and isinstance(next(iter(self.tensors.values())), gguf.Stored):
            self.quantized = frozenset(name for name, x in self.tensors.items() if x.type not in gguf.PLAIN)
            return {name: x.read for name, x in self.tensors.items()}
        method = str(self.config.get("quant_method") or "")
        made: dict[str, Callable[[], Any]] = {}
        taken: set[str] = set()
        for name, entry in own_entries(self.metadata, self.path).items():
            made[name] = partial(_own, name, self.tensors, entry)
            taken |= {f"{name}.{part}" for part in ARRAYS}
        if method and method != OWN:
            stored = self._mxfp4() if method == "mxfp4" else self._layers(method)
            for name, (parts, read) in stored.items():
                made[name] = read
                taken |= parts
        self.quantized = frozenset(made)
        return {**{name: partial(np.asarray, x) for name, x in self.tensors.items() if name not in taken}, **made}

    def _layers(self, method: str) -> dict[str, tuple[set[str], Callable[[], Any]]]:
        """name → (names of its arrays, what reads it)"""
        if method not in METHODS:
            raise ValueError(refusal(method))
        firsts, others, make = METHODS[method]
        layers: dict[str, tuple[set[str], Callable[[], Any]]] = {}
        for name in self.tensors:
            layer, _, part = name.rpartition(".")
            names = {x: f"{layer}.{x}" for x in (part, *others) if f"{layer}.{x}" in self.tensors}
            if part in firsts and len(names) > 1 and not (part == "weight" and _floats(self.tensors[name])):
                arrays = {x: self.tensors[y] for x, y in names.items()}
                layers[f"{layer}.weight"] = {*names.values()}, partial(make, layer, arrays, self.config)
        return layers

    def _mxfp4(self) -> dict[str, tuple[set[str], Callable[[], Any]]]:
        """Experts of gpt-oss: NAME_blocks and NAME_scales."""
        layers: dict[str, tuple[set[str], Callable[[], Any]]] = {}
        for name, x in self.tensors.items():
            scales = self.tensors.get(f"{name.removesuffix('_blocks')}_scales")
            if name.endswith("_blocks") and scales is not None:
                layers[name.removesuffix("_blocks")] = {name, f"{name.removesuffix('_blocks')}_scales"}, partial(
                    floats.blocks, x.reshape(*x.shape[:-2], -1), scales, "mxfp4", "mxfp4")
        return layers

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            raise KeyError(f"{name}: {self.path} has no such weight")
        try:
            return self._made[name]()
        except DAMAGE as error:
            if isinstance(error, ValueError) and name.removesuffix(".weight") in str(error):
                raise
            why = f"{error} is missing" if isinstance(error, KeyError) else error
            raise ValueError(f"{name} of {self.path} cannot be made of what the file and its configuration have: {why}"
                             ) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def __repr__(self) -> str:
        how = self.config.get("quant_method", "")
        return f"Checkpoint({self.path}, {len(self)} weights{how and f', {how}'})"


def _floats(x: Array) -> bool:
    """Is it an array of floats of 16 bits or more, which has no scales?"""
    return x.dtype.itemsize > 1


def load(path: str | os.PathLike[str], config: Mapping[str, Any] | None = None) -> Checkpoint:
    """The checkpoint in a file of GGUF or safetensors, or a folder with files of safetensors, by memory map: nothing is
    read before it is asked for.

    config  how it was quantized, in place of the quantization_config in config.json beside the file: a mapping with
            quant_method, as transformers has it

    Parts of a GGUF file are found by the name of any of them, those of safetensors by the folder's index. OSError if it
    cannot be read; ValueError with the reason if it is no such file, or quantized in a way that is not taken. Names
    of weights are the file's.
    """
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"config must be a mapping with quant_method, not {config!r}")
    where = Path(path)
    if where.is_dir() and not any(where.glob("*.safetensors")) and len(files := [*where.glob("*.gguf")]) == 1:
        where = files[0]
    if where.suffix == ".gguf":
        stored, metadata = gguf.load(where)
        return Checkpoint(where, stored, metadata, {"quant_method": "gguf"})
    folder = where if where.is_dir() else where.parent
    tensors: dict[str, Array] = {}
    first: dict[str, str] = {}
    for part in _parts(where):
        more, metadata = safetensors.load(part)
        tensors |= more
        first = {**metadata, **first, **({OWN: _merged(part, first, metadata)} if OWN in metadata else {})}
    return Checkpoint(where, tensors, first, _config(folder) if config is None else config)


def own_entries(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    """What the arrays of weights in tilewright's own layout mean, by their names. ValueError for other metadata."""
    entries = safetensors.parsed(metadata.get(OWN, "{}"), f"the metadata {OWN!r} of {path}")
    if wrong := [name for name, x in entries.items() if not isinstance(x, dict)]:
        raise ValueError(f"the metadata {OWN!r} of {path} say nothing of {wrong[0]}")
    return entries


def _merged(path: Path, *metadata: Mapping[str, str]) -> str:
    return json.dumps({name: x for entries in metadata for name, x in own_entries(entries, path).items()})


def _parts(where: Path) -> list[Path]:
    if not where.is_dir():
        return [where]
    if (index := where / INDEX).exists():
        names = safetensors.parsed(index.read_bytes(), str(index)).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(x, str) and Path(x).name == x for x in names.values()):
            raise ValueError(f"{index} must have names of files in this folder in its weight_map")
        return [where / name for name in sorted({*names.values()})]
    if files := sorted(where.glob("*.safetensors")):
        return files
    raise FileNotFoundError(f"{where} has no files of safetensors, and not one of GGUF")


def _config(folder: Path) -> Mapping[str, Any]:
    if (file := folder / CONFIG).exists():
        parsed = safetensors.parsed(file.read_bytes(), str(file))
        for level in (parsed, parsed.get("text_config") or {}):
            if config := level.get("quantization_config") or level.get("compression_config"):
                if not isinstance(config, dict):
                    raise ValueError(f"{file} has a quantization_config that is no object of JSON: {config!r}")
                return dict(config)
    for name in ALSO:
        if (file := folder / name).exists():
            config = safetensors.parsed(file.read_bytes(), str(file))
            method = "awq" if "w_bit" in config or "zero_point" in config else "gptq"
            return {"quant_method": method, **config}
    return {}


def save(path: str | os.PathLike[str], weights: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write a file of safetensors with weights in tilewright's own layout: arrays as they are, and of a Weight, Scaled
    or Quantized NAME.elements, NAME.scales and what else it has, whose meaning is in the metadata. `load` uses them in
    place. What was read from such a file is written with the same bytes."""
    tensors: dict[str, Array] = {}
    entries: dict[str, Any] = {}
    for name in weights:
        x = weights[name]
        w = Weight(x) if isinstance(x, (Scaled, Quantized)) else x
        if not isinstance(w, Weight):
            tensors[name] = np.asarray(w)
            continue
        arrays = {part: getattr(w if part == "order" else w.numbers, part, None) for part in ARRAYS}
        tensors |= {f"{name}.{part}": y for part, y in arrays.items() if y is not None}
        entries[name] = meaning(w)
    own = {OWN: json.dumps(entries, sort_keys=True)} if entries else {}
    safetensors.save(path, tensors, {**(metadata or {}), **own})


def meaning(w: Weight) -> dict[str, Any]:
    """What the arrays of a weight in tilewright's own layout mean, for the metadata."""
    q, also = w.numbers, {"source": w.source, "exact": w.exact, "shape": list(w.shape)}
    if isinstance(q, Quantized):
        return {**also, "format": q.format.name, "axis": q.axis, "tensor_scale": q.tensor_scale}
    return {**also, "group": q.group, "nibbles": list(q.nibbles) if q.nibbles else None}


def _own(name: str, tensors: Mapping[str, Array], entry: Mapping[str, Any]) -> Weight:
    arrays: dict[str, Any] = {part: tensors.get(f"{name}.{part}") for part in ARRAYS}
    order = arrays.pop("order")
    if "format" in entry:
        q: Any = Quantized(arrays["elements"], arrays["scales"], tuple(entry["shape"]), BLOCK_FORMATS[entry["format"]],
                           entry["axis"], entry["tensor_scale"])
    else:
        how = entry["nibbles"] and Nibbles(*entry["nibbles"])
        q = Scaled(arrays["elements"], arrays["scales"], arrays["zeros"], entry["group"], how, arrays["minima"])
    if q.shape != tuple(entry["shape"]):
        raise ValueError(f"{name} has the shape {q.shape} in the file, which says {entry['shape']}")
    return Weight(q, order, entry["source"], entry["exact"])
