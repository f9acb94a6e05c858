"""Numbers of 2, 4 and 6 bits in whole bytes: ml_dtypes keeps one in a byte, matrix instructions want them packed.

Along the last axis the patterns of all elements are one long stream of bits, lowest bits first: two numbers of 4 bits
in a byte, the first in the low half; four of 2 bits; and of 6 bits four in three bytes, the second one straddling the
first two. The last byte is filled up with zeros. Formats of whole bytes come out as their bytes, the lowest first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.formats.records import Format
from tilewright.formats.table import get, of

Array = NDArray[Any]
Bytes = NDArray[np.uint8]


def packed_bytes(fmt: Format, count: int) -> int:
    """Bytes that `count` numbers take when they are packed."""
    return -(-count * fmt.bits // 8)


def pack(x: ArrayLike) -> Bytes:
    """An array [..., n] of any format's dtype as uint8 [..., packed_bytes(n)]: nothing is converted, see `convert`."""
    array = np.asarray(x)
    fmt = of(array)
    if array.ndim == 0:
        raise ValueError("x must have at least 1 axis, along which to pack")
    count = array.shape[-1]
    if fmt.bits % 8 == 0:
        plain = np.ascontiguousarray(array, fmt.dtype)
        return plain.view(np.uint8).reshape(*array.shape[:-1], packed_bytes(fmt, count))
    patterns = np.ascontiguousarray(array).view(np.uint8) & (2**fmt.bits - 1)
    elements, size = fmt.packing
    wide: Any = np.uint8 if size == 1 else np.uint32
    groups = _in_groups(patterns, elements)
    word: Any = groups[..., 0].astype(wide)
    for i in range(1, elements):
        word |= groups[..., i].astype(wide, copy=False) << wide(fmt.bits * i)
    whole = np.stack([(word >> wide(8 * i)).astype(np.uint8) for i in range(size)], axis=-1)
    return _joined(whole)[..., : packed_bytes(fmt, count)]


def unpack(packed: ArrayLike, fmt: object, count: int | None = None) -> Array:
    """What `pack` was given: [..., count] of the format's dtype from uint8 [..., bytes].

    Without a count, as many numbers as the bytes hold, padding included. ValueError if there are fewer than `count`.
    """
    f, array = get(fmt, "fmt"), np.asarray(packed)
    if array.dtype != np.uint8 or array.ndim == 0:
        raise ValueError(f"packed must be an array of uint8 with at least 1 axis, not {array.dtype} {array.shape}")
    held = array.shape[-1] * 8 // f.bits
    if count is None:
        count = held
    elif not 0 <= count <= held:
        raise ValueError(f"count must be 0 to {held}, which is what {array.shape[-1]} bytes of {f} hold, not {count}")
    elements, size = f.packing
    if f.bits % 8 == 0:
        return np.ascontiguousarray(array[..., : count * size]).view(f.dtype)
    groups = _in_groups(array, size).astype(np.uint32)
    word = sum((groups[..., i] << (8 * i) for i in range(size)), np.uint32(0))
    patterns = np.stack([(word >> (f.bits * i)) & (2**f.bits - 1) for i in range(elements)], axis=-1)
    return np.ascontiguousarray(_joined(patterns.astype(np.uint8))[..., :count]).view(f.dtype)


def _in_groups(x: Bytes, length: int) -> Bytes:
    """The last axis cut into groups of this length, with zeros behind the end."""
    missing = -x.shape[-1] % length
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], missing), np.uint8)], axis=-1) if missing else x
    return padded.reshape(*x.shape[:-1], padded.shape[-1] // length, length)


def _joined(groups: Bytes) -> Bytes:
    """The last two axes as one."""
    return groups.reshape(*groups.shape[:-2], groups.shape[-2] * groups.shape[-1])
