"""Number formats: what the bits of a number mean, how to get there from another format, how small ones are packed.

    records.py     what a format is: one frozen record each, from which limits and special encodings are derived
    table.py       the formats there are, and how to find one: FORMATS, get, find; MULTIPLIED, those of the ladder;
                   block-scaled formats, mxfp4 and its kin: BLOCK_FORMATS, block_format; promote: the format in which
                   operands of different formats meet
    conversion.py  convert: from any format to any other; pack, unpack: numbers of 2, 4 and 6 bits in whole bytes
    decodable.py   what the two have in common
    scaled.py      Scaled, an array with a scale per row, per column or for all of it
    quantized.py   Quantized, an array in a block-scaled format; dequantize
    quantization.py  quantize: OCP's rules
    patterns.py    explain: one bit pattern taken apart

A record and its numbers need neither NumPy nor ml_dtypes; both are imported when a dtype or an array is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tilewright.formats.records import Bool, Complex, Float, Format, Integer, Specials
from tilewright.formats.table import (
    ALSO_CALLED,
    BLOCK_FORMATS,
    FORMATS,
    MULTIPLIED,
    BlockFormat,
    accumulator,
    advice,
    block_format,
    find,
    get,
    integral,
    promote,
    rank,
)

if TYPE_CHECKING:
    from tilewright.formats.conversion import convert, pack, unpack
    from tilewright.formats.patterns import explain
    from tilewright.formats.quantization import quantize
    from tilewright.formats.quantized import Quantized, dequantize
    from tilewright.formats.scaled import Scaled

__all__ = ["ALSO_CALLED", "BLOCK_FORMATS", "FORMATS", "MULTIPLIED", "BlockFormat", "Bool", "Complex", "Float", "Format",
           "Integer", "Quantized", "Scaled", "Specials", "accumulator", "advice", "block_format", "convert",
           "dequantize", "explain", "find", "get", "integral", "pack", "promote", "quantize", "rank", "unpack"]

# What works on arrays, and so needs NumPy, and text. No module here bears the name of a function, which would hide it.
_LAZY = {"conversion": ("convert", "pack", "unpack"), "patterns": ("explain",), "quantization": ("quantize",),
         "quantized": ("Quantized", "dequantize"), "scaled": ("Scaled",)}


def __getattr__(name: str) -> object:
    home = next((module for module, names in _LAZY.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'tilewright.formats' has no attribute {name!r}")
    value = getattr(import_module(f"tilewright.formats.{home}"), name)
    globals()[name] = value  # so that this function is not asked again
    return value
