"""`PackedWeights`: weights of few bits that tilewright.pack has arranged as kernels read them, and their file.

They stay as narrow as they were: elements, two to a byte if they have 4 bits, scales and zero points, all contiguous
along k, column after column. Kernels for few rows decode them in registers; for many rows blocks of columns are decoded
before they are multiplied, so that no more than a block is ever wide.

    "tilewright weights 1\\n"                    the magic, with the version of this layout
    size, SHA-256                               8 bytes, little-endian, of the whole file; 32 bytes, of all that follows
    size of the index, the index                8 bytes; JSON
    arrays                                      each at a multiple of 64 bytes behind the index
"""
from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import outputs, targets
from tilewright.compiler.bundle import HEAD, Refused
from tilewright.formats.conversion import pack as packed_bits
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import HALVES, Nibbles, Scaled
from tilewright.formats.table import BLOCK_FORMATS, get

MAGIC, VERSION = b"tilewright weights ", 1
ALIGNED = 64
DECODED = 16 << 20          # bytes that a block of columns takes when it is decoded
FIELDS = {"tilewright": str, "target": str, "kind": str, "format": str, "shape": list, "group": int, "nibbles": bool,
          "tensor_scale": float, "arrays": list}
OF_ARRAYS = {"name": str, "dtype": str, "shape": list, "at": int}


@dataclass(frozen=True, eq=False, repr=False)
class PackedWeights:
    """What tilewright.pack makes of weights of few bits: b of matmul, for any number of rows of f32, bf16 or f16.

    weights     a Scaled or Quantized [n, k], all of its arrays contiguous along k
    target      the name of the target that it was packed for
    """

    weights: Any
    target: str

    @property
    def shape(self) -> tuple[int, int]:
        """[k, n], as it is multiplied."""
        n, k = self.weights.shape
        return k, n

    @property
    def ndim(self) -> int:
        return 2

    @property
    def nbytes(self) -> int:
        """Bytes of elements, scales and zero points."""
        return int(self.weights.nbytes)

    def __repr__(self) -> str:
        return f"<PackedWeights {self.weights.format} {self.shape} for {self.target}, {self.nbytes:,} bytes>"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("packed weights cannot be used as an array: they can only be b, the right operand of "
                        "tilewright.matmul; tilewright.dequantize(packed.weights.T) is one")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that tilewright.load reads. OSError if it cannot be written."""
        from tilewright import __version__
        q = self.weights
        arrays = {name: x for name in ("elements", "scales", "zeros") if (x := getattr(q, name, None)) is not None}
        listed, at = [], 0
        for name, x in arrays.items():
            listed.append({"name": name, "dtype": get(x.dtype).name, "shape": list(x.shape), "at": at})
            at += -(-x.nbytes // ALIGNED) * ALIGNED
        index = {"tilewright": __version__, "target": self.target, "kind": type(q).__name__,
                 "format": str(q.format.name), "shape": list(q.shape), "group": getattr(q, "group", 0),
                 "nibbles": getattr(q, "nibbles", None) is not None,
                 "tensor_scale": float(getattr(q, "tensor_scale", 1.0)), "arrays": listed}
        first = MAGIC + b"%d\n" % VERSION
        words = json.dumps(index, separators=(",", ":")).encode()
        words += b" " * (-(len(first) + HEAD.size + len(words)) % ALIGNED)
        body = b"".join(x.tobytes().ljust(-(-x.nbytes // ALIGNED) * ALIGNED, b"\0") for x in arrays.values())
        rest = HEAD.pack(0, b"", len(words))[-8:] + words + body
        size = len(first) + HEAD.size - 8 + len(rest)
        outputs.write(Path(path), first + HEAD.pack(size, hashlib.sha256(rest).digest(), len(words)) + rest[8:])


def made(b: Any, trans_b: str, target: Any) -> PackedWeights:
    """Of a Scaled or a Quantized [k, n], or [n, k] that trans_b transposes; copies. ValueError for others."""
    if b.ndim != 2:
        raise ValueError(f"b must have two axes to be packed as weights, but its shape is {b.shape}")
    if isinstance(b, Quantized):
        q = b if trans_b != "n" else b.T
        if q.axis != -1:
            raise ValueError(f"the blocks of b must be along k, its axis {-2 if trans_b == 'n' else -1}, but they are "
                             f"along axis {b.axis}")
        return PackedWeights(replace(q, elements=_copied(q.elements), scales=_copied(q.scales)), target.name)
    q = b if trans_b != "n" else b.mT
    if q.axis not in (None, -1):
        raise ValueError(f"the groups of b must be along k, its axis {-2 if trans_b == 'n' else -1}, but they are "
                         f"along axis {b.axis}")
    elements, how = q.elements, q.nibbles
    if q.format.name in HALVES and (how is None or how.axis != -1):
        elements, how = packed_bits(q.unpacked()), Nibbles(q.format.name, -1, q.shape[-1])
    return PackedWeights(Scaled(_copied(elements), _copied(q.scales), None if q.zeros is None else _copied(q.zeros),
                                q.group, how), target.name)


def _copied(x: Any) -> Any:
    return np.array(x, order="C")


def pieces(packed: PackedWeights, rows: int) -> list[slice]:
    """Blocks of columns for a product of so many rows: one, unless they are decoded before."""
    k, n = packed.shape
    few = max(DECODED // (4 * max(k, 1)) // 64 * 64, 64)
    return [slice(j, min(j + few, n)) for j in range(0, n, few)] if rows > 16 and n > few else [slice(0, n)]


def load(path: Path) -> PackedWeights:
    """What `save` has written, on this machine. OSError; Refused for files that cannot be used here."""
    content = path.read_bytes()
    end = content.find(b"\n", 0, len(MAGIC) + 20) + 1
    version = content[len(MAGIC):end - 1]
    if version != b"%d" % VERSION:
        raise Refused(f"{path} has weights in version {version.decode(errors='replace')} of their layout, and this "
                      f"tilewright reads version {VERSION}: pack and save them again")
    if len(content) < end + HEAD.size:
        raise Refused(f"{path} is truncated: it has {len(content):,} bytes, too few for its head")
    size, digest, length = HEAD.unpack_from(content, end)
    if len(content) != size:
        what = "is truncated" if len(content) < size else "has been written to"
        raise Refused(f"{path} {what}: it has {len(content):,} bytes, and says that they are {size:,}")
    begin, view = end + HEAD.size, memoryview(content)
    if hashlib.sha256(view[begin - 8:]).digest() != digest:
        raise Refused(f"{path} is damaged: its checksum does not match its content")
    try:
        index = json.loads(bytes(view[begin:begin + length]))
        _check(index, FIELDS)
        arrays = {each["name"]: _array(each, view[begin + length:]) for each in index["arrays"]}
        weights = _record(index, arrays)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Refused(f"{path} is damaged: its index is none of packed weights ({error})") from None
    here = targets.detect().name
    try:
        cpu = isinstance(targets.target(index["target"]), targets.CpuTarget)
    except ValueError:
        raise Refused(f"{path} is for {index['target']}, a target that this tilewright has not") from None
    if cpu and index["target"] != here:
        raise Refused(f"{path} was packed for {index['target']}, and this process multiplies by code for {here}: pack "
                      "the weights here, or with target=")
    return PackedWeights(weights, index["target"])


def _check(found: Any, kinds: dict[str, type]) -> None:
    if not isinstance(found, dict) or found.keys() != kinds.keys():
        raise ValueError(f"its fields must be {', '.join(kinds)}")
    for name, value in found.items():
        if type(value) is not kinds[name]:
            raise ValueError(f"{name} must be {kinds[name].__name__}, and is {str(value)[:40]!r}")


def _array(each: Any, body: memoryview) -> Any:
    _check(each, OF_ARRAYS)
    dtype, shape, at = get(each["dtype"]).dtype, tuple(each["shape"]), each["at"]
    if not all(type(n) is int and n >= 0 for n in shape) or not 0 <= at <= len(body) - math.prod(shape)*dtype.itemsize:
        raise ValueError(f"{each['name']} is not inside it")
    return np.frombuffer(body, dtype, math.prod(shape), at).reshape(shape).copy()


def _record(index: Any, arrays: dict[str, Any]) -> Any:
    shape = tuple(index["shape"])
    if index["kind"] == "Quantized":
        return Quantized(arrays["elements"], arrays["scales"], shape, BLOCK_FORMATS[index["format"]], -1,
                         index["tensor_scale"])
    how = Nibbles(index["format"], -1, shape[-1]) if index["nibbles"] else None
    found = Scaled(arrays["elements"], arrays["scales"], arrays.get("zeros"), index["group"], how)
    if found.shape != shape or found.format.name != index["format"]:
        raise ValueError("its arrays do not fit its shape and format")
    return found
