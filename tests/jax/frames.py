"""Calls of XLA's FFI without XLA: frames as it makes them, for handlers that run on the fake driver."""

from __future__ import annotations

import ctypes
from typing import Any

from tilewright.jax import ffi


class Frame:
    """XLA_FFI_CallFrame. `buffers`: address, XLA's number of the format, and shape of each operand, then of the result.
    """

    def __init__(self, text: str, *buffers: tuple[int, int, tuple[int, ...]], stream: int = 0, device: int = 0) -> None:
        self.kept: list[Any] = []
        *operands, result = [self.words(48, 0, number, address, len(shape), self.words(*shape))
                             for address, number, shape in buffers]
        table = [0] * (ffi.DEVICE_GET // 8 + 1)
        table[ffi.STREAM_GET // 8], table[ffi.DEVICE_GET // 8] = map(self.answer, (stream, device))
        said = ctypes.create_string_buffer(text.encode())
        self.kept.append(said)
        span = self.words(ctypes.addressof(said), len(text))
        self.address = self.words(
            168, 0, self.words(*table), 0, 0, 40, 0, len(operands), 0, self.words(*operands),
            40, 0, 1, 0, self.words(result), 48, 0, 1, 0, 0, self.words(span))

    def words(self, *values: int) -> int:
        self.kept.append((ctypes.c_size_t * max(len(values), 1))(*values))
        return ctypes.addressof(self.kept[-1])

    def answer(self, value: int) -> int:
        """A function of XLA's that says this."""
        def function(asked: int) -> None:
            (ctypes.c_size_t * 4).from_address(asked)[3] = value
        self.kept.append(ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(function))
        address: int = ctypes.cast(self.kept[-1], ctypes.c_void_p).value
        return address
