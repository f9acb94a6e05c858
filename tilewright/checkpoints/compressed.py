"""Layers of compressed-tensors (llm-compressor, vLLM).

    pack-quantized          weight_packed int32 [outputs, words]: integers of 2 to 8 bits, 2^(bits - 1) more than they
                            mean; weight_scale [outputs, groups]; weight_zero_point int32 [words, groups], packed along
                            the outputs; weight_g_idx, the group of each input
    int-quantized, naive    weight int8, weight_scale and weight_zero_point [outputs, 1], [1] or by groups
    float-quantized, naive  weight e4m3fn, weight_scale [outputs, 1], [1], by groups or [blocks, blocks]
    nvfp4-pack-quantized    weight_packed uint8, weight_scale e4m3fn, weight_global_scale, by which numbers are divided
    mxfp4-pack-quantized    weight_packed uint8, weight_scale uint8, exponents
    mxfp8-quantized         weight e4m3fn, weight_scale uint8

A number is (code - zero point) * scale. How activations are quantised in the programs that these were made for is not
used: they stay as they come.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.checkpoints import floats
from tilewright.checkpoints.gptq import order_of
from tilewright.checkpoints.record import Tensors, Weight
from tilewright.checkpoints.words import BITS, WORD, halves, unpacked
from tilewright.formats import Scaled


def weight(name: str, tensors: Tensors, config: Mapping[str, Any]) -> Weight:
    """The weight of the layer with these tensors. config: the model's quantization_config. ValueError with the reason
    for what is not taken."""
    if (config.get("sparsity_config") or {}).get("format", "dense") != "dense":
        raise ValueError(f"{name} is sparse ({config['sparsity_config']['format']}): products have no format for that")
    if (config.get("transform_config") or {}).get("config_groups"):
        raise ValueError(f"{name} needs activations that are rotated (transform_config), which no layer here does")
    args = arguments_of(name, config)
    packed = tensors.get("weight_packed")
    if packed is None:
        return _apart(name, tensors, args)
    if packed.dtype == np.uint8:
        if "weight_global_scale" in tensors:
            return floats.nvfp4(packed, tensors["weight_scale"], 1 / floats.number(tensors["weight_global_scale"]),
                                "compressed-tensors nvfp4")
        return floats.blocks(packed, tensors["weight_scale"], "mxfp4", "compressed-tensors mxfp4")
    return _words(name, tensors, args)


def arguments_of(name: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of the weights of the first group of layers that a layer is in, by its name: of those that are
    named by classes the first that has any."""
    groups = [x for x in (config.get("config_groups") or {}).values() if x.get("weights")]

    def named(group: Any, by_class: bool) -> bool:
        targets = group.get("targets") or ["Linear"]
        if by_class:
            return any(not x.startswith("re:") and "." not in x for x in targets)
        return any(re.match(x[3:], name) if x.startswith("re:") else name == x or name.endswith(f".{x}")
                   for x in targets)
    scheme = next((x for by_class in (False, True) for x in groups if named(x, by_class)), None)
    arguments: Mapping[str, Any] = scheme["weights"] if scheme else {}
    return arguments


def _words(name: str, tensors: Tensors, args: Mapping[str, Any]) -> Weight:
    bits, words, scales = int(args.get("num_bits") or 4), tensors["weight_packed"], tensors["weight_scale"]
    if bits not in BITS:
        raise ValueError(f"{name} has {bits} bits: integers are taken with {BITS.start} to {BITS.stop - 1}")
    outputs, inputs = (int(x) for x in np.asarray(tensors["weight_shape"]).ravel()[-2:])
    if words.ndim != 2 or words.shape != (outputs, -(-inputs * bits // WORD)):
        raise ValueError(f"{name} has words {words.shape} for {outputs} outputs and {inputs} inputs of {bits} bits")
    if scales.size != 1 and scales.shape[:1] != (outputs,):
        raise ValueError(f"{name} has scales {scales.shape} for {outputs} outputs")
    scales = scales.reshape(1, 1) if scales.size == 1 else scales.reshape(outputs, -1)
    middle = np.uint8(1 << (bits - 1))
    codes = unpacked(words, bits, inputs)
    zeros, index, order = tensors.get("weight_zero_point"), tensors.get("weight_g_idx"), None
    groups = scales.shape[1]
    group = 0 if groups == 1 else int(args.get("group_size") or -(-inputs // groups))
    if zeros is not None:
        zeros = unpacked(zeros.T, bits, outputs).T if zeros.dtype == np.int32 else zeros.view(np.uint8) + middle
        zeros = (np.ascontiguousarray(zeros).reshape(scales.shape) - middle).view(np.int8)
    if index is not None and index.size and (index >= 0).all():
        if index.size != inputs:
            raise ValueError(f"weight_g_idx has {index.size} inputs, and weight_packed has {inputs}")
        order = order_of(name, np.asarray(index), group or inputs)
        codes = codes if order is None else codes[:, order]
    signed = codes - middle
    if bits > 4:
        q = Scaled(signed.view(np.int8), scales, zeros, group)
    else:
        q = Scaled(halves(signed & np.uint8(15)), scales, zeros, group, ("i4", -1, inputs))
    return Weight(q, order, f"compressed-tensors int{bits}")


def _apart(name: str, tensors: Tensors, args: Mapping[str, Any]) -> Weight:
    elements, scales = tensors["weight"], tensors["weight_scale"]
    if elements.dtype == np.int8:
        zeros = tensors.get("weight_zero_point")
        return floats.scaled(name, elements, scales, "compressed-tensors int8", args.get("block_structure"), zeros)
    if scales.dtype == np.uint8:
        return floats.blocks(elements.view(np.uint8), scales, "mxfp8", "compressed-tensors mxfp8")
    return floats.scaled(name, elements, scales, "compressed-tensors fp8", args.get("block_structure"))
