"""The check of a compiled kernel's operand in the host's memory: a NumPy array, or Quantized if it has block scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.formats.blocks import BLOCK_FORMATS
from tilewright.formats.quantized import Quantized
from tilewright.formats.table import FORMATS


def check_operand(name: str, x: Any, format: str, shape: tuple[int, ...], *, allowed: str = "a NumPy array",
                  given: str = "", hint: str = "") -> None:
    """TypeError or ValueError unless x has this format and shape, and of a block-scaled format blocks along k.

    `allowed` is what x may be and `given` what it is, for the message; `hint` follows a message about the shape.
    """
    given = given or type(x).__name__
    if format in BLOCK_FORMATS:
        if not isinstance(x, Quantized):
            raise TypeError(f"{name} must be Quantized ({format}), not {given}")
        if x.format.name != format or x.shape != shape or x.axis != (-1 if name == "a" else -2):
            raise ValueError(f"{name} must be {format} of shape {shape} with blocks along k, not {x!r}")
        return
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name} must be {allowed}, not {given}")
    dtype = FORMATS[format].dtype
    if x.dtype != dtype:
        raise TypeError(f"{name} must have dtype {dtype}, as the problem requires, not {x.dtype}")
    if x.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, not {x.shape}{hint}")
