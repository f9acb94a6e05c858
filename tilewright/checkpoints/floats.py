"""Weights one element to a byte with scales beside them, and those in blocks of 16 and 32 as OCP and NVIDIA define
them.

    fp8 (DeepSeek, FineGrainedFP8)  weight e4m3fn, weight_scale_inv [blocks of 128 outputs, blocks of 128 inputs]
    fbgemm_fp8                      weight e4m3fn, weight_scale [outputs, 1]
    modelopt, nvfp4                 weight uint8, weight_scale e4m3fn, weight_scale_2
    mxfp4 (gpt-oss)                 NAME_blocks uint8 [experts, outputs, blocks, 16], NAME_scales uint8
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.checkpoints.record import Array, Tensors, Weight
from tilewright.formats import Quantized, Scaled, block_format

BLOCK = 128


def number(x: Array) -> float:
    """The one number of an array, in f32."""
    return float(np.asarray(x, np.float32).reshape(()))


def sides(name: str, block: Any) -> tuple[int, int]:
    """The outputs and inputs of a block. ValueError for what are no two whole numbers."""
    if isinstance(block, str) and re.fullmatch(r"\d+x\d+", block):        # as compressed-tensors may write it
        block = [int(n) for n in block.split("x")]
    if not isinstance(block, (list, tuple)) or [type(n) for n in block] != [int, int] or min(block) < 1:
        raise ValueError(f"{name} has blocks of {block!r}, not of two whole numbers, 1 or more")
    return block[0], block[1]


def scaled(name: str, elements: Array, scales: Array, source: str, block: Any = None,
           zeros: Array | None = None) -> Weight:
    """Elements [outputs, inputs] and scales: one, one for each output, for groups of inputs, or, with `block`, for
    blocks of outputs and inputs, which are repeated for each output."""
    outputs, inputs = elements.shape
    if scales.shape in ((), (1,), (outputs,)):
        scales = scales.reshape(-1, 1)
    if scales.ndim != 2 or not scales.size:
        raise ValueError(f"{name} has scales {scales.shape} for a weight {elements.shape}")
    rows, columns = scales.shape
    by_rows = block is None or scales.shape in ((1, 1), (outputs, 1))
    tall, wide = (-(-outputs // rows), -(-inputs // columns)) if by_rows else sides(name, block)
    if scales.shape != (-(-outputs // tall), -(-inputs // wide)):
        raise ValueError(f"{name} has scales {scales.shape} for a weight {elements.shape} in blocks of {tall} outputs "
                         f"and {wide} inputs")
    group, tall = 0 if columns == 1 else wide, 1 if rows == 1 else tall
    if zeros is not None:
        zeros = None if not zeros.any() else np.repeat(zeros.reshape(rows, columns), tall, 0)[:outputs]
    scales = scales if tall == 1 else np.repeat(scales, tall, 0)[:outputs]
    return Weight(Scaled(elements, scales, zeros, group), None, source)


def blocks(elements: Array, scales: Array, format: str, source: str) -> Weight:
    """Bytes [..., outputs, bytes] and scales of a byte [..., outputs, blocks] of a block-scaled format."""
    length = scales.shape[-1] * block_format(format).block
    return Weight(Quantized(elements, scales.view(np.uint8), (*scales.shape[:-1], length), block_format(format)),
                  None, source)


def nvfp4(elements: Array, scales: Array, factor: float, source: str) -> Weight:
    """Bytes [outputs, bytes], scales e4m3fn [outputs, blocks], and what multiplies all numbers. The reference rounds
    scale times factor and then that times the element; here the element times its scale is exact."""
    factor = float(np.float32(factor))
    q: Any = replace(blocks(elements, scales, "nvfp4", source).numbers, tensor_scale=factor)  # type: ignore[arg-type]
    return Weight(q, None, source, bool(np.frexp(factor)[0] == 0.5))


def by_method(name: str, tensors: Tensors, config: Mapping[str, Any]) -> Weight:
    """The weight of a layer of transformers' methods fp8, fbgemm_fp8, nvfp4, modelopt and mxfp4."""
    method = str(config.get("quant_method"))
    if "weight_scale_2" in tensors:
        factor = number(tensors["weight_scale_2"])
        return nvfp4(tensors["weight"].view(np.uint8), tensors["weight_scale"], factor, "nvfp4")
    if "weight_scale_inv" in tensors:
        scales = tensors["weight_scale_inv"]
        if scales.dtype == np.uint8:
            return blocks(tensors["weight"].view(np.uint8), scales, "mxfp8", "mxfp8")
        size = config.get("weight_block_size", (BLOCK, BLOCK))
        return scaled(name, tensors["weight"], scales, method, size)
    return scaled(name, tensors["weight"], tensors["weight_scale"], method)
