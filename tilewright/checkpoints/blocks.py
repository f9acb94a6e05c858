"""GGUF's blocks as numbers of few bits with scales: whole rows of bytes → Scaled or Quantized, without rounding.

    Q4_0 Q5_0 Q8_0          scale f16, integers
    Q4_1 Q5_1               scale and minimum f16, integers without sign
    Q2_K Q4_K Q5_K          256 numbers: super scales d and dmin in f16, and small integers for each 16 or 32: the scale
                            is d * integer, the minimum -dmin * integer
    Q3_K Q6_K               256 numbers: super scale in f16, and a small integer with sign for each 16
    IQ4_NL IQ4_XS           4 bits that index a table of bytes with sign
    MXFP4                   exponent, e2m1

A super scale (11 bits) times a small integer (6 to 8 bits) is an f32, and times an element of up to 6 bits, too, so
that scales are expanded to f32 exactly and numbers are those of the reference decoder, the package gguf, to the bit.
Elements of 5 and 6 bits get a byte each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.checkpoints.words import halves
from tilewright.formats import Quantized, Scaled, block_format

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
SUPER = 256             # numbers in a block of K-quants
AT_ONCE = 1 << 17       # bytes of blocks: 1.2 to 1.6 times as fast as all at once, Q8_0 0.85
LOOKED_UP = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8)


class Block(NamedTuple):
    """Numbers in a block, its bytes, and what makes arrays of blocks [blocks, bytes]: elements [blocks, numbers], one
    to a byte, scales [blocks, groups], and minima or None; None for formats that are not taken."""

    numbers: int
    bytes: int
    arrays: Callable[[Bytes], tuple[Array, Array, Array | None]] | None = None
    element: str = ""       # i4 and u4: two to a byte
    why: str = ""           # it is not taken


def _wide(x: Bytes) -> Array:
    """f16 in f32."""
    return np.ascontiguousarray(x).view(np.float16).astype(np.float32)


def _lower_and_upper(x: Bytes, length: int) -> Bytes:
    """The lower halves of each `length` bytes, and then the upper ones."""
    some = x.reshape(len(x), -1, 1, length)
    return np.concatenate((some & 15, some >> 4), 2).reshape(len(x), -1)


def _shifted(x: Bytes, length: int, shifts: Any, mask: int) -> Bytes:
    """The bits of each `length` bytes from these places on: all of the first place, then of the second."""
    some: Bytes = x.reshape(len(x), -1, 1, length) >> np.array(shifts, np.uint8)[:, None] & np.uint8(mask)
    return some.reshape(len(x), -1)


def _fifth(x: Bytes) -> Bytes:
    """Bit e of 32 as 16 for number e."""
    bits: Bytes = np.unpackbits(np.ascontiguousarray(x), axis=-1, bitorder="little")
    return bits << np.uint8(4)


def _q4_0(x: Bytes) -> Any:
    return _lower_and_upper(x[:, 2:], 16) ^ 8, _wide(x[:, :2]), None


def _q4_1(x: Bytes) -> Any:
    return _lower_and_upper(x[:, 4:], 16), _wide(x[:, :2]), _wide(x[:, 2:4])


def _q5_0(x: Bytes) -> Any:
    return (_lower_and_upper(x[:, 6:], 16) | _fifth(x[:, 2:6])).view(np.int8) - np.int8(16), _wide(x[:, :2]), None


def _q5_1(x: Bytes) -> Any:
    return _lower_and_upper(x[:, 8:], 16) | _fifth(x[:, 4:8]), _wide(x[:, :2]), _wide(x[:, 2:4])


def _q8_0(x: Bytes) -> Any:
    return x[:, 2:].view(np.int8), _wide(x[:, :2]), None


def _two_levels(x: Bytes) -> tuple[Array, Array]:
    """Scales and minima of Q4_K and Q5_K: d, dmin, and 8 of 6 bits each in 12 bytes."""
    low, high, rest = x[:, 4:8], x[:, 8:12], x[:, 12:16]
    scales = np.concatenate((low & 63, rest & 15 | low >> 2 & 48), 1).astype(np.float32)
    minima = np.concatenate((high & 63, rest >> 4 | high >> 2 & 48), 1).astype(np.float32)
    return _wide(x[:, :2]) * scales, -(_wide(x[:, 2:4]) * minima)


def _q4_k(x: Bytes) -> Any:
    return _lower_and_upper(x[:, 16:], 32), *_two_levels(x)


def _q5_k(x: Bytes) -> Any:
    return _lower_and_upper(x[:, 48:], 32) | _shifted(x[:, 16:48], 32, range(8), 1) << 4, *_two_levels(x)


def _q2_k(x: Bytes) -> Any:
    small = x[:, :16]
    scales, minima = _wide(x[:, 80:82]) * (small & 15), _wide(x[:, 82:84]) * (small >> 4)
    return _shifted(x[:, 16:80], 32, (0, 2, 4, 6), 3), scales.astype(np.float32), -minima.astype(np.float32)


def _q3_k(x: Bytes) -> Any:
    high = _shifted(x[:, :32], 32, range(8), 1) ^ 1
    elements = _shifted(x[:, 32:96], 32, (0, 2, 4, 6), 3).view(np.int8) - (high << 2).view(np.int8)
    low, rest = _shifted(x[:, 96:104], 8, (0, 4), 15), _shifted(x[:, 104:108], 4, (0, 2, 4, 6), 3)
    small = (low | rest << 4).view(np.int8) - np.int8(32)
    return elements.view(np.uint8) & 15, _wide(x[:, 108:]) * small.astype(np.float32), None


def _q6_k(x: Bytes) -> Any:
    low, high = _lower_and_upper(x[:, :128], 64), _shifted(x[:, 128:192], 32, (0, 2, 4, 6), 3)
    small = x[:, 192:208].view(np.int8).astype(np.float32)
    return (low | high << 4).view(np.int8) - np.int8(32), _wide(x[:, 208:]) * small, None


def _iq4_nl(x: Bytes) -> Any:
    return LOOKED_UP[_lower_and_upper(x[:, 2:], 16)], _wide(x[:, :2]), None


def _iq4_xs(x: Bytes) -> Any:
    low = np.stack((x[:, 4:8] & 15, x[:, 4:8] >> 4), -1).reshape(len(x), 8)
    high = np.ascontiguousarray(x[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    small = (low | high.astype(np.uint8) << 4).view(np.int8) - np.int8(32)
    return LOOKED_UP[_lower_and_upper(x[:, 8:], 16)], _wide(x[:, :2]) * small.astype(np.float32), None


def _mxfp4(x: Bytes) -> Any:
    return _lower_and_upper(x[:, 1:], 16), x[:, :1], None


GRID = "its numbers are from a table of vectors, not elements times scales"
BLOCKS: dict[str, Block] = {
    "Q4_0": Block(32, 18, _q4_0, "i4"), "Q4_1": Block(32, 20, _q4_1, "u4"), "Q5_0": Block(32, 22, _q5_0),
    "Q5_1": Block(32, 24, _q5_1), "Q8_0": Block(32, 34, _q8_0),
    "Q8_1": Block(32, 36, why="it is a format of activations"),
    "Q2_K": Block(SUPER, 84, _q2_k, "u4"), "Q3_K": Block(SUPER, 110, _q3_k, "i4"),
    "Q4_K": Block(SUPER, 144, _q4_k, "u4"), "Q5_K": Block(SUPER, 176, _q5_k), "Q6_K": Block(SUPER, 210, _q6_k),
    "Q8_K": Block(SUPER, 292, why="it is a format of activations"),
    "IQ4_NL": Block(32, 18, _iq4_nl), "IQ4_XS": Block(SUPER, 136, _iq4_xs), "MXFP4": Block(32, 17, _mxfp4, "e2m1"),
    "IQ2_XXS": Block(SUPER, 66, why=GRID), "IQ2_XS": Block(SUPER, 74, why=GRID), "IQ2_S": Block(SUPER, 82, why=GRID),
    "IQ3_XXS": Block(SUPER, 98, why=GRID), "IQ3_S": Block(SUPER, 110, why=GRID), "IQ1_S": Block(SUPER, 50, why=GRID),
    "IQ1_M": Block(SUPER, 56, why=GRID), "TQ1_0": Block(SUPER, 54, why="its digits are ternary, five to a byte"),
    "TQ2_0": Block(SUPER, 66, why="its digits are ternary"),
    "NVFP4": Block(64, 36, why="its scales are without the scale of all numbers that nvfp4 has here"),
}


def numbers(name: str, type: str, rows: Bytes) -> Scaled | Quantized:
    """The numbers of rows [..., bytes] of blocks of this type. ValueError with the reason for types not taken."""
    block = BLOCKS[type]
    if block.arrays is None:
        raise ValueError(f"{name} is in GGUF's {type}, which is not taken: {block.why}")
    lead, count = rows.shape[:-1], rows.shape[-1] // block.bytes
    elements, scales, minima = _arrays(block, rows.reshape(-1, block.bytes))
    length, groups = count * block.numbers, count * scales.shape[-1]
    elements = elements.reshape(*lead, -1)
    scales, minima = scales.reshape(*lead, groups), None if minima is None else minima.reshape(*lead, groups)
    group = block.numbers * count // groups if groups else 0
    if block.element == "e2m1":
        return Quantized(elements, scales, (*lead, length), block_format("mxfp4"))
    return Scaled(elements, scales, None, group, (block.element, -1, length) if block.element else None, minima)


def _arrays(block: Block, x: Bytes) -> tuple[Array, Array, Array | None]:
    """The arrays of blocks, elements as they are kept: AT_ONCE bytes of blocks at a time, so that what is made on the
    way stays small."""
    assert block.arrays is not None
    step, parts = max(1, AT_ONCE // block.bytes), []
    with np.errstate(all="ignore"):
        for i in range(0, max(len(x), 1), step):
            elements, *more = block.arrays(x[i:i + step])
            parts.append((halves(elements) if block.element else elements, *more))
    elements, scales = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    return elements, scales, None if parts[0][2] is None else np.concatenate([part[2] for part in parts])
