"""GPTQ's layers, as GPTQModel and AutoGPTQ store them: columns of words, which hold neighbours along the inputs.

    qweight   int32 [inputs * bits / 32, outputs]
    qzeros    int32 [groups, outputs * bits / 32]: zero points, less 1 in checkpoint_format "gptq", not in "gptq_v2"
    scales    f16 [groups, outputs]
    g_idx     int32 [inputs]: the group of each input. Act-order: groups are no neighbours

A number is (code - zero point) * scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.checkpoints.record import Array, Tensors, Weight
from tilewright.checkpoints.words import WORD, halves, scaled, unpacked

BITS = 2, 3, 4, 8


def weight(name: str, tensors: Tensors, config: Mapping[str, Any]) -> Weight:
    """The weight of the layer with these tensors. config: the model's quantization_config. ValueError with the reason
    for what is not taken."""
    bits, layout = int(config.get("bits", 4)), str(config.get("checkpoint_format") or config.get("format") or "gptq")
    if bits not in BITS:
        raise ValueError(f"{name} has {bits} bits: GPTQ's layers are taken with {', '.join(map(str, BITS))}")
    if layout not in ("gptq", "gptq_v2"):
        raise ValueError(f"{name} is stored in the layout {layout!r} of a kernel: GPTQ's layers are taken in the "
                         "formats gptq and gptq_v2, in which GPTQModel saves any of them")
    qweight, qzeros, scales = tensors["qweight"], tensors["qzeros"], tensors["scales"]
    inputs, (groups, outputs) = qweight.shape[0] * WORD // bits, scales.shape
    group = int(config.get("group_size", -1))
    group = inputs if group < 1 else group
    codes = unpacked(qweight.T, bits, inputs)
    zeros = unpacked(qzeros, bits, outputs).T
    if layout == "gptq":
        zeros = zeros + np.uint8(1) & np.uint8((1 << bits) - 1)
    if codes.shape[0] != outputs:
        raise ValueError(f"qweight has {codes.shape[0]} outputs, and scales have {outputs}")
    order = None
    if (index := tensors.get("g_idx")) is not None and index.size:
        if index.size != inputs:
            raise ValueError(f"g_idx has {index.size} inputs, and qweight has {inputs}")
        order = order_of(name, np.asarray(index), group)
        codes = codes if order is None else codes[:, order]
    return Weight(scaled(codes, bits, np.ascontiguousarray(scales.T), zeros, group if groups > 1 else 0), order,
                  f"gptq {bits} bits")


def order_of(name: str, index: Array, group: int) -> NDArray[np.int64] | None:
    """The inputs by groups, of which each input says its own; None if they lie so. ValueError for groups that are
    shorter than others, but for the last."""
    if index.ndim != 1 or index.dtype.kind not in "iu" or (index.size and index.min() < 0):
        raise ValueError(f"{name} has groups of inputs {index.dtype} {index.shape}, not a group, 0 or more, for each")
    order = np.argsort(index, kind="stable")
    if not np.array_equal(index[order], np.arange(len(index)) // group):
        counts = np.bincount(index)
        raise ValueError(f"{name} has groups of {counts.min()} to {counts.max()} inputs: they are taken where each has "
                         f"{group}, as in the whole matrix of a layer")
    return None if np.array_equal(order, np.arange(len(index))) else order


def tensors(weight: Weight, scale_format: Any = np.float16) -> dict[str, Array]:
    """The arrays of a layer that `weight` has read with 4 bits, in checkpoint_format "gptq": the same bytes."""
    q: Any = weight.numbers
    if q.format.bits != 4 or q.minima is not None:
        raise ValueError(f"{weight!r} is none of GPTQ's layers of 4 bits")
    signed = q.zeros is None
    codes = (q.unpacked().view(np.uint8) & 15) ^ (8 * signed)
    codes = codes if weight.order is None else codes[:, np.argsort(weight.order)]
    groups, inputs = q.scales.shape[1], codes.shape[1]
    zeros = np.full(q.scales.shape, 8, np.uint8) if signed else q.zeros
    group = q.group or inputs
    index = np.empty(inputs, np.int32)
    index[weight.order if weight.order is not None else slice(None)] = np.arange(inputs) // group
    return {"qweight": np.ascontiguousarray(halves(codes.astype(np.uint8)).view(np.int32).T),
            "qzeros": halves((zeros.T - np.uint8(1)) & np.uint8(15)).view(np.int32).reshape(groups, -1),
            "scales": np.ascontiguousarray(q.scales.T.astype(scale_format)), "g_idx": index}
