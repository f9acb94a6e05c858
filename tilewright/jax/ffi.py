"""Two functions with the interface of XLA's FFI, for its CPU and CUDA platforms: `execute` reads the call frame and has
tilewright multiply the buffers, on the stream that XLA says.

https://github.com/openxla/xla/blob/main/xla/ffi/api/c_api.h. The structures are those of versions 0.1 to 0.3; each has
its size in its first word, by which an XLA that has others is recognised, and refused with a sentence.
"""
from __future__ import annotations

import ctypes
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

import tilewright
from tilewright import formats
from tilewright.api import as_matmul, tensor_repeats
from tilewright.expressions.operations import CONVERSIONS
from tilewright.expressions.program import Expression
from tilewright.expressions.tracing import apply, cast
from tilewright.runtime import repeats
from tilewright.runtime.gpu import dlpack
from tilewright.runtime.gpu.arrays import CUDA, Library, Look, shadow

TARGET = "tilewright_product"
# XLA's numbers of formats that it and tilewright have
FORMATS = {1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
           10: "float16", 11: "float32", 12: "float64", 15: "complex64", 16: "bfloat16", 18: "complex128",
           19: "float8_e5m2", 20: "float8_e4m3fn", 24: "float8_e5m2fnuz", 25: "float8_e4m3fnuz", 28: "float8_e4m3",
           33: "float8_e8m0fnu"}
INTERNAL, METADATA = 13, 1                      # a code of errors, a kind of extension
ERROR_CREATE, STREAM_GET, DEVICE_GET = 48, 80, 184      # places of functions in XLA's table of them


# Places of 8-byte words in XLA_FFI_CallFrame, and of the sizes of its parts
SIZE, EXTENSION, API, CONTEXT, ARGS, RESULTS, ATTRIBUTES = 0, 1, 2, 3, 5, 10, 15
COUNT, ALL, ALL_ATTRIBUTES = 2, 4, 5            # of a part, and the addresses of what it has
DTYPE, DATA, RANK, DIMS = 2, 3, 4, 5            # of XLA_FFI_Buffer

_words = (ctypes.c_size_t * (sys.maxsize // 8)).from_address(0)     # all memory: structures are read in it by number


def _text(address: int) -> bytes:
    """What an XLA_FFI_ByteSpan says."""
    return ctypes.string_at(_words[address // 8], _words[address // 8 + 1])


def _ask(frame: int, place: int, *words: int) -> list[int]:
    """Call one of XLA's functions with a structure of these words behind its first two; they are given back, with the
    function's result, 0 or an error, behind them."""
    function = _entry(_words[_words[frame // 8 + API] // 8 + place // 8])
    asked = (ctypes.c_size_t * (len(words) + 2))(8 * len(words) + 16, 0, *words)
    error = function(ctypes.addressof(asked)) or 0
    return [*asked[2:], error]


_entry = lru_cache(maxsize=64)(ctypes.PYFUNCTYPE(c_void_p, c_void_p))


def _error(frame: int, message: str, code: int) -> int:
    text = ctypes.create_string_buffer(message.encode())
    return _ask(frame, ERROR_CREATE, ctypes.addressof(text), code)[-1]


@lru_cache(maxsize=1)
def _version() -> tuple[int, int]:
    """The version that the installed jaxlib has."""
    text = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    major, minor = (re.search(rf"#define XLA_FFI_API_{word} (\d+)", text) for word in ("MAJOR", "MINOR"))
    assert major is not None
    assert minor is not None
    return int(major[1]), int(minor[1])


# ---- a call


@lru_cache(maxsize=4096)
def _call(text: bytes) -> Callable[..., None]:
    """What the text of a call says, as a function of operands and result: see `describe`."""
    said = json.loads(text)
    options: dict[str, Any] = {} if said["threads"] is None else {"threads": said["threads"]}
    names = said["operands"]
    if said["epilogue"] is not None:
        options["epilogue"] = _function(Expression.read(said["epilogue"]))

    count = 2
    how = as_matmul.as_matmul(said["subscripts"])

    def run(arrays: list[Any], out: Any) -> None:
        extras: dict[str, Any] = {"operands": dict(zip(names, arrays[count:]))} if names else {}
        if how is None:
            tilewright.einsum(said["subscripts"], *arrays[:count], out=out, **options, **extras)
            return
        a, b = (arrays[1], arrays[0]) if how.exchanged else arrays[:count]
        tilewright.matmul(a, b, out, out_dtype=None if out.dtype.kind == "f" else out.dtype, trans_a=how.transposed_a,
                          trans_b=how.transposed_b, **options, **extras)
    return run


def _function(expression: Expression) -> Any:
    """An expression as a function of Python, with names and constants in its code alone: calls with it are repeated."""
    def text(x: Any) -> str:
        if isinstance(x, tuple):
            return f"float({str(x[0])!r})" if isinstance(x[0], float) else repr(x[0])
        return x if isinstance(x, str) else f"value_{x}"
    lines = [f"value_{i} = {'cast' if line.operation in CONVERSIONS else 'apply'}("
             + (f"{text(line.operands[0])}, {line.operation!r})" if line.operation in CONVERSIONS else
                f"{line.operation!r}, {', '.join(map(text, line.operands))})")
             for i, line in enumerate(expression.lines)]
    names = [name for name, _ in expression.parameters]
    source = "\n    ".join((f"def epilogue({', '.join(names)}):", *lines,
                           f"return {text(expression.results[0].operand)}"))
    space: dict[str, Any] = {"apply": apply, "cast": cast}
    exec(source, space)     # of names that were parameters of a function, numbers, and names of operations
    return space["epilogue"]


def describe(subscripts: str, threads: int | None, epilogue: str | None, operands: tuple[str, ...]) -> str:
    """A call in words: all that it is, so that a compiled program that was stored means the same in another process."""
    return json.dumps({"subscripts": subscripts, "threads": threads, "epilogue": epilogue, "operands": operands})


def _execute(on_device: bool, address: int) -> int:
    """XLA_FFI_Handler."""
    frame = address // 8
    if (extension := _words[frame + EXTENSION] // 8) and _words[extension + 1] & 0xffff_ffff == METADATA:
        # {size, type, next, metadata}; that is {size, {size, extension, major, minor}, ...}
        major, minor = _version()
        _words[_words[extension + 3] // 8 + 3] = minor << 32 | major
        return 0
    if not _words[frame + ARGS] == _words[frame + RESULTS] == 40 == _words[frame + ATTRIBUTES] - 8:
        return _error(address, "tilewright does not know this version of XLA's FFI: update one of both", INTERNAL)
    try:
        text = _text(_words[_words[frame + ATTRIBUTES + ALL_ATTRIBUTES] // 8])
        first, count = _words[frame + ARGS + ALL] // 8, _words[frame + ARGS + COUNT]
        buffers = [*_words[first:first + count], _words[_words[frame + RESULTS + ALL] // 8]]
        if on_device:
            _run_on_device(frame, text, buffers)
        else:
            *arrays, out = map(_in_host, buffers)
            _call(text)(arrays, out)
    except BaseException as error:  # it must not leave this function, which XLA called
        return _error(address, f"tilewright: {type(error).__name__}: {error}", INTERNAL)
    return 0


# ---- buffers


@lru_cache(maxsize=4096)
def _kind(number: int, *shape: int) -> tuple[np.dtype[Any], Any]:
    """The dtype of a buffer, and the type of its memory."""
    name = FORMATS.get(number)
    if name is None:
        raise TypeError(f"XLA's format number {number} is none that tilewright multiplies")
    number_format = formats.find(name)
    dtype = np.dtype(name) if number_format is None else number_format.dtype
    return dtype, ctypes.c_char * (math.prod(shape) * dtype.itemsize)


def _read(buffer: int) -> tuple[int, tuple[int, ...], np.dtype[Any], Any]:
    """Address, shape, dtype, and the type of its memory."""
    at = buffer // 8
    dims = _words[at + DIMS] // 8
    shape = tuple(_words[dims:dims + _words[at + RANK]]) if dims else ()
    return (_words[at + DATA], shape, *_kind(_words[at + DTYPE] & 0xffff_ffff, *shape))


def _in_host(buffer: int) -> Any:
    address, shape, dtype, memory = _read(buffer)
    return np.ndarray(shape, dtype, memory.from_address(address)) if address else np.empty(shape, dtype)


class _OnDevice(dlpack.DeviceArray):
    """A buffer of XLA's, which lives as long as the call."""

    def __init__(self, device: int, stream: int, buffer: int) -> None:
        self.platform, self.device, self.stream = PLATFORM, device, stream
        self.address, self.shape, self.dtype, _ = _read(buffer)

    def __repr__(self) -> str:
        return f"<XLA's buffer of shape {self.shape}, {self.dtype}, on {self.platform.name} {self.device}>"

    @property
    def pointer(self) -> int:
        return self.address


def _run_on_device(frame: int, text: bytes, buffers: Sequence[int]) -> None:
    context = _words[frame + CONTEXT]
    _, stream, error = _ask(8 * frame, STREAM_GET, context, 0)
    _, device, more = _ask(8 * frame, DEVICE_GET, context, 0)
    if error or more:
        raise RuntimeError("XLA does not say stream and device")
    device, stream = device & 0x7fff_ffff, stream or CUDA.default_stream
    key, at = [text, device], list[int]()
    for buffer in buffers:
        dtype, data, rank, dims = _words[buffer // 8 + DTYPE:buffer // 8 + DIMS + 1]
        at.append(data)
        key += dtype & 0xffff_ffff, data & LIBRARY.alignment, rank, *_words[dims // 8:dims // 8 + rank]
    record, order = _records.get(tuple(key), (None, ()))
    if record is not None and not record.run([at[i] for i in order], (), (), 1, stream):
        return
    with repeats.watching() as ran:
        *arrays, out = [_OnDevice(device, stream, x) for x in buffers]
        _call(text)(arrays, out)
    if len(ran) == 1 and {*ran[0][1]} <= {*at} and len({*at}) == len(at) and not tensor_repeats.recording:
        if len(_records) >= repeats.MOST:
            _records.clear()
        _records[tuple(key)] = ran[0][0], tuple(map(at.index, ran[0][1]))


# What calls with the same text, formats, shapes and device repeat, and which buffers its addresses are of
_records: dict[tuple[Any, ...], tuple[repeats.Record, tuple[int, ...]]] = {}
repeats.derived.append(_records)


class _Xla(Library):
    """How such buffers are looked at."""

    def device(self, x: Any) -> int:
        return int(x.device)

    def stream(self, x: Any, device: int) -> int:
        return int(x.stream)

    def look(self, x: Any, name: str, stream: int, write: bool = False) -> Look:
        return Look(shadow(x.pointer, x.shape, dlpack.contiguous(x.shape, x.dtype.itemsize), x.dtype), x)

    def plain(self, arrays: Any) -> list[tuple[tuple[Any, ...], int] | None]:
        return [((x.dtype, x.shape, x.device), x.pointer) if type(x) is _OnDevice else None for x in arrays]

    def pointer(self, x: Any) -> int:
        return int(x.pointer)


LIBRARY = _Xla(CUDA)
PLATFORM: Any = SimpleNamespace(own=LIBRARY, name=CUDA.name, kinds=CUDA.kinds)      # by which it is found
_HANDLER = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_handlers = {"cpu": _HANDLER(partial(_execute, False)), "CUDA": _HANDLER(partial(_execute, True))}


def register() -> None:
    """Make the functions known to XLA, once per process."""
    for platform, handler in _handlers.items():
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform=platform)
