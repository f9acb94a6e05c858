"""Files of safetensors: read by a memory map, so that a tensor is an array in the file, and written.

    8 bytes     the length of the header, little-endian
    header      JSON: name → {"dtype", "shape", "data_offsets"}, and "__metadata__", texts by name
    data        of all tensors, contiguous, by rows

Pages are mapped copy-on-write: arrays may be written to, as torch asks of tensors, and the file does not change.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.checkpoints.record import Array

MOST = 100 << 20        # bytes of a header
DTYPES: dict[str, Any] = {     # in the package's order
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E8M0": ml_dtypes.float8_e8m0fnu, "I16": np.int16, "U16": np.uint16,
    "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I32": np.int32, "U32": np.uint32, "F32": np.float32,
    "C64": np.complex64, "F64": np.float64, "I64": np.int64, "U64": np.uint64,
}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


def mapped(path: Path) -> mmap.mmap:
    """A file in memory, copy-on-write."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def load(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors of a file, which are in its memory map, and its metadata. ValueError for what is no such file."""
    if path.stat().st_size < 8:
        raise ValueError(f"{path} is no file of safetensors: it has {path.stat().st_size} bytes")
    memory = mapped(path)
    length = int.from_bytes(memory[:8], "little")
    if length > min(len(memory) - 8, MOST):
        raise ValueError(f"{path} is no file of safetensors: its header would have {length:,} bytes, and the file has "
                         f"{len(memory):,}")
    try:
        header = json.loads(memory[8:8 + length])
        metadata = header.pop("__metadata__", {})
        return {name: _tensor(memory, 8 + length, name, **entry) for name, entry in header.items()}, metadata
    except (UnicodeDecodeError, json.JSONDecodeError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no file of safetensors: its header cannot be read: {error}") from None


def _tensor(memory: mmap.mmap, data: int, name: str, dtype: str, shape: list[int], data_offsets: list[int]) -> Array:
    if dtype not in DTYPES:
        raise ValueError(f"tensor {name} is of {dtype}, which is none of {', '.join(DTYPES)}")
    first, end = data_offsets
    found, count = np.dtype(DTYPES[dtype]), int(np.prod(shape, dtype=np.int64))
    if not 0 <= first <= end <= len(memory) - data or end - first != count * found.itemsize:
        raise ValueError(f"tensor {name} of {dtype} {shape} cannot have the bytes {first} to {end}")
    return np.frombuffer(memory, found, count, data + first).reshape(shape)


def save(path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write a file, whose tensors are in the order that the package safetensors gives them: by dtypes, the widest
    first, and by names. It takes the place of an earlier one once it is complete. TypeError for dtypes that
    the format lacks."""
    arrays = {name: np.asarray(x) for name, x in tensors.items()}
    for name, x in arrays.items():
        if x.dtype not in NAMES:
            raise TypeError(f"tensor {name} is of {x.dtype}, which files of safetensors lack")
    order = sorted(arrays, key=lambda name: (-[*NAMES].index(arrays[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name in order:
        x = arrays[name]
        header[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    part = Path(f"{os.fspath(path)}.part")
    with part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(np.ascontiguousarray(arrays[name]).tobytes())
    part.replace(path)
