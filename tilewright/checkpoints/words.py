"""Numbers of 2 to 8 bits in words of 32, one after the other from the lowest bits on, across the ends of words; and
numbers of 4 bits two to a byte."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.checkpoints.record import Array
from tilewright.formats import Scaled

BITS = range(2, 9)
WORD = 32


def unpacked(words: Array, bits: int, count: int) -> NDArray[np.uint8]:
    """`count` numbers of so many bits along the last axis of int32 [..., words], as uint8. ValueError for others."""
    if words.dtype.kind not in "iu" or words.dtype.itemsize != 4 or words.shape[-1] != -(-count * bits // WORD):
        raise ValueError(f"{count} numbers of {bits} bits must be in {-(-count * bits // WORD)} words of int32, not "
                         f"{words.dtype} {words.shape}")
    rows = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return rows[..., :count]
    if bits in (2, 4):
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        parts = rows[..., None] >> shifts & np.uint8((1 << bits) - 1)
        return parts.reshape(*rows.shape[:-1], -1)[..., :count]
    stream = np.unpackbits(rows, axis=-1, bitorder="little")[..., :count * bits]
    parts = stream.reshape(*stream.shape[:-1], count, bits)
    return np.packbits(parts, axis=-1, bitorder="little")[..., 0]


def scaled(codes: Array, bits: int, scales: Array, zeros: Array | None, group: int) -> Scaled:
    """(code - zero) * scale of codes [outputs, inputs] of so many bits, one to a byte. Zero points [outputs, groups] of
    the same range; None: 2^(bits - 1) everywhere, which is taken from the codes. Up to 4 bits two share a byte."""
    middle = 1 << (bits - 1)
    if zeros is not None and (zeros == middle).all():
        zeros = None
    if zeros is None:
        signed = (codes.astype(np.int16) - middle).astype(np.int8)
        if bits > 4:
            return Scaled(signed, scales, None, group)
        return Scaled(halves(signed.view(np.uint8) & 15), scales, None, group, ("i4", -1, codes.shape[-1]))
    if bits > 4:
        return Scaled(np.ascontiguousarray(codes), scales, zeros, group)
    return Scaled(halves(codes), scales, zeros, group, ("u4", -1, codes.shape[-1]))


def halves(codes: Array) -> NDArray[np.uint8]:
    """uint8 below 16, two to a byte along the last axis, the first in the lower half."""
    if codes.shape[-1] % 2:
        codes = np.concatenate((codes, np.zeros((*codes.shape[:-1], 1), np.uint8)), -1)
    return np.ascontiguousarray(codes[..., ::2] | codes[..., 1::2] << 4)
