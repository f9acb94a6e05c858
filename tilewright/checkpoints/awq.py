"""AWQ's layers in the format "gemm": rows of words, which hold 8 neighbours along the outputs in the order
0 2 4 6 1 3 5 7.

    qweight   int32 [inputs, outputs / 8]
    qzeros    int32 [groups, outputs / 8]
    scales    f16 [groups, outputs]

A number is (code - zero point) * scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.checkpoints.record import Array, Tensors, Weight
from tilewright.checkpoints.words import scaled, unpacked

PLACES = (0, 4, 1, 5, 2, 6, 3, 7)       # in which place of a word each of 8 outputs is


def weight(name: str, tensors: Tensors, config: Mapping[str, Any]) -> Weight:
    """The weight of the layer with these tensors. config: the model's quantization_config. ValueError with the reason
    for what is not taken."""
    bits, layout = int(config.get("bits") or config.get("w_bit") or 4), str(
        config.get("version") or config.get("format") or "gemm").lower()
    if bits != 4:
        raise ValueError(f"{name} has {bits} bits: AWQ's layers have 4")
    if layout != "gemm":
        raise ValueError(f"{name} is stored in AWQ's layout {layout!r} of a kernel: layers are taken in the layout "
                         "gemm, in which AutoAWQ and GPTQModel save them unless asked for another one")
    scales = tensors["scales"]
    codes, zeros = (_codes(tensors[part]) for part in ("qweight", "qzeros"))
    group = int(config.get("group_size") or config.get("q_group_size") or -1)
    groups, inputs = len(scales), codes.shape[1]
    return Weight(scaled(codes, bits, np.ascontiguousarray(scales.T), zeros,
                         0 if groups == 1 else group if group > 0 else -(-inputs // groups)), None, "awq")


def _codes(words: Array) -> NDArray[np.uint8]:
    """[rows, words] as [columns, rows], one to a byte."""
    rows, count = words.shape
    eight = unpacked(words, 4, count * 8).reshape(rows, count, 8)
    return np.ascontiguousarray(eight[..., PLACES].reshape(rows, -1).T)
