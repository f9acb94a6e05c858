"""`PackedWeights`: weights of few bits that tilewright.pack has arranged as kernels read them, and their file.

They stay as narrow as they were: elements, two to a byte if they have 4 bits, scales and zero points, all contiguous
along k, column after column. Kernels for few rows decode them in registers; for many rows blocks of columns are decoded
before they are multiplied, so that no more than a block is ever wide.
"""
from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compiler.checked_file import Kind, believed, made_for
from tilewright.formats import BLOCK_FORMATS, Quantized
from tilewright.formats.conversion import pack as packed_bits
from tilewright.formats.scaled import HALVES, Nibbles, Scaled

FILE = Kind("weights", 1, "file of packed weights", "PackedWeights.save", "pack and save them again")
DECODED = 16 << 20          # bytes that a block of columns takes when it is decoded
FIELDS = {"tilewright": str, "target": str, "kind": str, "format": str, "shape": list[int], "group": int,
          "nibbles": bool, "tensor_scale": float}


@dataclass(frozen=True, eq=False, repr=False)
class PackedWeights:
    """Weights of few bits, packed by tilewright.pack: the right operand of matmul for any number of rows in f32, bf16
    or f16; a stack of them is the right operand of grouped_matmul.

    weights     a Scaled or Quantized [n, k] or [groups, n, k], all of its arrays contiguous along k
    target      the name of the target that it was packed for
    """

    weights: Any
    target: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the right operand: [k, n] or [groups, k, n]."""
        *stack, n, k = self.weights.shape
        return *stack, k, n

    @property
    def ndim(self) -> int:
        return len(self.weights.shape)

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
        arrays = {name: x for name in ("elements", "scales", "zeros", "minima")
                  if (x := getattr(q, name, None)) is not None}
        index = {"tilewright": __version__, "target": self.target, "kind": type(q).__name__,
                 "format": str(q.format.name), "shape": list(q.shape), "group": getattr(q, "group", 0),
                 "nibbles": getattr(q, "nibbles", None) is not None,
                 "tensor_scale": float(getattr(q, "tensor_scale", 1.0))}
        FILE.save(path, index, arrays)


def pack(b: Any, trans_b: str, target: Any) -> PackedWeights:
    """The packed copy of a Scaled or a Quantized [k, n], or [n, k] that trans_b transposes, or of a stack of them.
    ValueError for others."""
    if b.ndim not in (2, 3):
        raise ValueError("b must have two axes, or three for groups, to be packed as weights, but its shape is "
                         f"{b.shape}")
    if isinstance(b, Quantized):
        q = b if trans_b != "n" else b.mT
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
    return PackedWeights(Scaled(_copied(elements), _copied(q.scales), _copied(q.zeros), q.group, how,
                                _copied(q.minima)), target.name)


def _copied(x: Any) -> Any:
    return None if x is None else np.array(x, order="C")


def pieces(packed: PackedWeights, rows: int) -> list[slice]:
    """Blocks of columns for a product of so many rows: one, unless they are decoded before."""
    k, n = packed.shape
    few = max(DECODED // (4 * max(k, 1)) // 64 * 64, 64)
    return [slice(j, min(j + few, n)) for j in range(0, n, few)] if rows > 16 and n > few else [slice(0, n)]


def load(path: Path) -> PackedWeights:
    """What `save` has written, on this machine. OSError; Refused for files that cannot be used here."""
    index, arrays = FILE.load(path, FIELDS)
    with believed(path):
        weights = _record(index, {name: x.copy() for name, x in arrays.items()})
    made_for(path, index["target"])
    return PackedWeights(weights, index["target"])


def _record(index: Any, arrays: dict[str, Any]) -> Any:
    shape = tuple(index["shape"])
    if index["kind"] == "Quantized":
        return Quantized(arrays["elements"], arrays["scales"], shape, BLOCK_FORMATS[index["format"]], -1,
                         index["tensor_scale"])
    how = Nibbles(index["format"], -1, shape[-1]) if index["nibbles"] else None
    value = Scaled(arrays["elements"], arrays["scales"], arrays.get("zeros"), index["group"], how, arrays.get("minima"))
    if value.shape != shape or value.format.name != index["format"]:
        raise ValueError("its arrays do not fit its shape and format")
    return value
