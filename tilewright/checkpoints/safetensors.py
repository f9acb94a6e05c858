"""Files of safetensors: read by a memory map, so that a tensor is an array in the file, and written.

    8 bytes     the length of the header, little-endian
    header      JSON: name → {"dtype", "shape", "data_offsets"}, and "__metadata__", texts by name
    data        of all tensors, contiguous, by rows

Pages are mapped copy-on-write: arrays may be written to, as torch asks of tensors, and the file does not change.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.checkpoints.record import Array

MOST = 100 << 20        # bytes of a header
MOST_AXES = 64          # of an array of NumPy
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
    header = parsed(memory[8:8 + length], f"the header of {path}")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(x, str) for x in metadata.values()):
        raise ValueError(f"the header of {path} has metadata that are no texts by name")
    data = 8 + length
    try:
        tensors = {name: _tensor(memory, data, name, **entry) for name, entry in header.items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is no file of safetensors: {error}") from None
    at = 0
    for first, end, name in sorted((*header[name]["data_offsets"], name) for name in header):
        if first != at:
            raise ValueError(f"{path} is no file of safetensors: tensor {name} begins at byte {first} of the data, and "
                             f"the one before it ends at {at}")
        at = end
    if data + at != len(memory):
        raise ValueError(f"{path} is no complete file of safetensors: tensors end at byte {data + at:,}, and it has "
                         f"{len(memory):,}")
    return tensors, metadata


def parsed(text: bytes | str, what: str) -> dict[str, Any]:
    """An object of JSON. ValueError, which says what is none, for other texts."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object of JSON, not {str(value)[:50]}")
    return value


def _tensor(memory: mmap.mmap, data: int, name: str, dtype: str, shape: list[int], data_offsets: list[int]) -> Array:
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"tensor {name} is of {dtype}, which is none of {', '.join(DTYPES)}")
    valid = all(isinstance(x, list) and all(type(n) is int and n >= 0 for n in x) for x in (shape, data_offsets))
    if not valid or len(data_offsets) != 2 or len(shape) > MOST_AXES:
        raise ValueError(f"tensor {name} must have a shape and two offsets in whole numbers, 0 or more, not {shape} "
                         f"and {data_offsets}")
    first, end = data_offsets
    known, count = np.dtype(DTYPES[dtype]), math.prod(shape)
    if not first <= end <= len(memory) - data or end - first != count * known.itemsize:
        raise ValueError(f"tensor {name} of {dtype} {shape} cannot have the bytes {first} to {end}")
    return np.frombuffer(memory, known, count, data + first).reshape(shape)


def save(path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write a file, whose tensors are in the order that the package safetensors gives them: by dtypes, the widest
    first, and by names. It takes the place of an earlier one once it is complete. TypeError for dtypes that
    the format lacks, and for names and metadata that are no texts."""
    if not all(isinstance(x, str) for x in (*tensors, *(metadata or {}), *(metadata or {}).values())):
        raise TypeError("names of tensors and metadata must be texts")
    if "__metadata__" in tensors:
        raise ValueError("no tensor may have the name __metadata__")
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
    part = Path(f"{os.fspath(path)}.{os.getpid()}-{threading.get_ident()}.part")    # others may write to the path, too
    try:
        with part.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                file.write(np.ascontiguousarray(arrays[name]).tobytes())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
