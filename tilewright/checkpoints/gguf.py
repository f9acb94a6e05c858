"""Files of GGUF, versions 2 and 3: metadata, and tensors in blocks, read by memory map.

    "GGUF", version u32, count of tensors u64, count of metadata u64
    metadata    key, type, value
    tensors     name, axes u32, lengths u64 (the contiguous axis first), type u32, offset u64
    data        aligned to general.alignment, 32 unless it says otherwise
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.checkpoints import blocks
from tilewright.checkpoints.record import Array, Weight
from tilewright.checkpoints.safetensors import mapped

MAGIC, ALIGNMENT, AXES, MOST_ALIGNMENT = b"GGUF", 32, 8, 1 << 20
VERSIONS = 2, 3
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
PLAIN: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64,
                         "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64}
TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
         12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
         20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
         29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"}


class Stored:
    """A tensor of a file: its type, its shape with the contiguous axis last, its bytes [..., bytes of a row]."""

    def __init__(self, name: str, type: str, shape: tuple[int, ...], data: Array) -> None:
        self.name, self.type, self.shape, self.data = name, type, shape, data

    def read(self) -> Array | Weight:
        """An array where it is numbers itself, or a Weight. ValueError for types that are not taken."""
        if self.type in PLAIN:
            return self.data.view(PLAIN[self.type]).reshape(self.shape)
        return Weight(blocks.numbers(self.name, self.type, self.data), None, f"gguf {self.type}")


class _Reader:
    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self.path, self.memory, self.at = path, memory, 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + form, self.memory, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def text(self) -> str:
        length, = self.numbers("Q")
        if length > len(self.memory) - self.at:
            raise ValueError(f"{self.path} is no file of GGUF: a text of it would have {length:,} bytes")
        self.at += length
        return self.memory[self.at - length:self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == TEXT:
            return self.text()
        if kind == LIST:
            kind, count = self.numbers("IQ")
            if kind in SCALARS:
                return list(self.numbers(f"{count}{SCALARS[kind]}"))
            return [self.value(kind) for _ in range(count)]
        if kind not in SCALARS:
            raise ValueError(f"{self.path} has metadata of the type {kind}, which GGUF lacks")
        return self.numbers(SCALARS[kind])[0]


def load(path: Path) -> tuple[dict[str, Stored], dict[str, Any]]:
    """The tensors of a file, or of all files of a model in parts, and its metadata. ValueError for other files."""
    if part := re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name):
        tensors, metadata = dict[str, Stored](), dict[str, Any]()
        for at in range(1, int(part[2]) + 1):
            more, own = _load(path.with_name(f"{part[1]}-{at:05}-of-{part[2]}.gguf"))
            tensors |= more
            metadata = own | metadata
        return tensors, metadata
    return _load(path)


def _load(path: Path) -> tuple[dict[str, Stored], dict[str, Any]]:
    if path.stat().st_size < 24:
        raise ValueError(f"{path} is no file of GGUF: it has {path.stat().st_size} bytes")
    memory = mapped(path)
    read = _Reader(path, memory)
    try:
        magic, version, count, pairs = read.numbers("4sIQQ")
        if magic != MAGIC or version not in VERSIONS:
            raise ValueError(f"{path} is no file of GGUF in version 2 or 3: it begins with {magic!r}, {version}")
        metadata = {read.text(): read.value(read.numbers("I")[0]) for _ in range(pairs)}
        entries = []
        for _ in range(count):
            name, (axes,) = read.text(), read.numbers("I")
            if axes > AXES:
                raise ValueError(f"{path} has a tensor of {axes} axes")
            entries.append((name, read.numbers(f"{axes}Q"), *read.numbers("IQ")))
    except (struct.error, RecursionError) as error:
        raise ValueError(f"{path} is no complete file of GGUF: {error}") from None
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= MOST_ALIGNMENT:
        raise ValueError(f"{path} has general.alignment {alignment!r}, which must be 1 to {MOST_ALIGNMENT}")
    data = -(-read.at // alignment) * alignment
    return {name: _stored(path, memory, data + offset, name, lengths, type)
            for name, lengths, type, offset in entries}, metadata


def _stored(path: Path, memory: mmap.mmap, at: int, name: str, lengths: tuple[int, ...], type: int) -> Stored:
    kind, shape = TYPES.get(type, ""), tuple(reversed(lengths))
    if not kind:
        raise ValueError(f"tensor {name} of {path} is of GGUF's type {type}, which is not known here")
    if kind in PLAIN:
        row = shape[-1] * np.dtype(PLAIN[kind]).itemsize if shape else np.dtype(PLAIN[kind]).itemsize
    else:
        numbers, bytes = blocks.BLOCKS[kind][:2]
        if not shape or shape[-1] % numbers:
            raise ValueError(f"tensor {name} of {path} is {kind} {shape}, and blocks have {numbers} numbers")
        row = shape[-1] // numbers * bytes
    rows = math.prod(shape[:-1])
    if at + rows*row > len(memory) or max(shape, default=0) > len(memory):
        raise ValueError(f"tensor {name} of {path} ends behind the file, which is not complete")
    return Stored(name, kind, shape, np.frombuffer(memory, np.uint8, rows*row, at).reshape(*shape[:-1], row))
