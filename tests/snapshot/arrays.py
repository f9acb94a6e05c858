"""Operands by a short text, in the memory of the target: NumPy's on CPUs, tensors of the fake driver on GPUs.

    "f32 64x128"            64 rows of 128 numbers, at a multiple of 4096 bytes
    "f32 64x128 t"          stored by columns
    "f32 64x128 +1"         one element past that multiple
    "f32 64x128 /2"         every second element of longer rows
    "f32 64x128 -"          rows backwards
    "i4 64x128 q-1 g32 z"   quantised along the last axis, in groups of 32, with zero points
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import formats


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """At the beginning of a page, so that alignment does not depend on what was allocated before; without any work."""
    return np.frombuffer(mmap.mmap(-1, prod(shape)*dtype.itemsize + 1), dtype, prod(shape)).reshape(shape)


def host(text: str) -> Any:
    """The array, or the Quantized or Scaled, in the host's memory."""
    name, size, *flags = text.split()
    shape = tuple(map(int, size.split("x")))
    if axis := next((int(x[1:]) for x in flags if x[0] == "q"), 0):
        group = next((int(x[1:]) for x in flags if x[0] == "g"), None)
        more = {} if name in formats.BLOCK_FORMATS else {"group": group, "zero_points": "z" in flags}
        return tw.quantize(np.ones(shape, np.float32), name, axis, **more)
    dtype = np.dtype(formats.FORMATS[name].dtype)
    if "t" in flags:
        return zeros((*shape[:-2], shape[-1], shape[-2]), dtype).swapaxes(-1, -2)
    if "+1" in flags:
        return zeros((prod(shape) + 1,), dtype)[1:].reshape(shape)
    if "/2" in flags:
        return zeros((*shape[:-1], 2*shape[-1]), dtype)[..., ::2]
    x = zeros(shape, dtype)
    return x[..., ::-1] if "-" in flags else x


class Arrays:
    """`arrays(text)` is an operand; `.on` says on which side, "cpu" or "gpu"."""

    def __init__(self, there: Callable[[np.ndarray], Any] | None = None) -> None:
        self.there, self.on = there, "gpu" if there else "cpu"

    def __call__(self, text: str) -> Any:
        return self.placed(host(text))

    def placed(self, x: Any) -> Any:
        """An array or weights in the memory of the target."""
        if self.there is None:
            return x
        if isinstance(x, np.ndarray):
            return self.there(x)
        parts = {name: getattr(x, name, None) for name in ("elements", "scales", "zeros")}
        return replace(x, **{name: self.there(part if part.dtype in (np.float32, np.int8) else part.view(np.uint8))
                             for name, part in parts.items() if part is not None})

    def resolved(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options of a call, with arrays in place of their texts."""
        arrays = {name: self(x) for name, x in options.items()
                  if name in ("out", "c", "scale_a", "scale_b") and isinstance(x, str)}
        if "operands" in options:
            arrays["operands"] = {name: self(x) if isinstance(x, str) else x
                                  for name, x in options["operands"].items()}
        return options | arrays
