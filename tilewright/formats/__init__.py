"""Number formats: what the bits of a number mean, how to get there from another format, how small ones are packed.

    records.py     what a format is: one frozen record each, from which limits and special encodings are derived
    table.py       the formats there are, and how to find one: FORMATS, get, find; MULTIPLIED, those that matmul takes
    promotion.py   promote: the format in which operands of different formats meet
    steps.py       explain: one bit pattern taken apart, step by step
    conversion.py  convert: from any format to any other, saturating or not
    packing.py     pack, unpack: formats of 2, 4 and 6 bits in whole bytes
    blocks.py      block-scaled formats, mxfp4 and its kin: BLOCK_FORMATS, block_format
    quantized.py   Quantized, an array in one of them; dequantize
    scaled.py      Scaled, an array with a scale per row, per column or for all of it
    decodable.py   what both have in common: indices, @, np.asarray
    quantization.py  quantize: OCP's rules
    overview.py    the table and the details that `tilewright formats` prints

A record and its numbers need neither NumPy nor ml_dtypes; both are imported when a dtype or an array is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tilewright.formats.blocks import BLOCK_FORMATS, BlockFormat, block_format
from tilewright.formats.promotion import accumulator, integral, promote, rank
from tilewright.formats.records import Bool, Complex, Float, Format, Integer, Specials
from tilewright.formats.steps import explain
from tilewright.formats.table import ALSO_CALLED, FORMATS, MULTIPLIED, advice, find, get

if TYPE_CHECKING:
    from tilewright.formats.conversion import convert
    from tilewright.formats.packing import pack, unpack
    from tilewright.formats.quantization import quantize
    from tilewright.formats.quantized import Quantized, dequantize
    from tilewright.formats.scaled import Scaled

__all__ = [
    "ALSO_CALLED",
    "BLOCK_FORMATS",
    "FORMATS",
    "MULTIPLIED",
    "BlockFormat",
    "Bool",
    "Complex",
    "Float",
    "Format",
    "Integer",
    "Quantized",
    "Scaled",
    "Specials",
    "accumulator",
    "advice",
    "block_format",
    "convert",
    "dequantize",
    "explain",
    "find",
    "get",
    "integral",
    "pack",
    "promote",
    "quantize",
    "rank",
    "unpack",
]

# What works on arrays, and so needs NumPy. No module here bears the name of a function, which would hide it.
_HOME = {
    "Quantized": "tilewright.formats.quantized",
    "convert": "tilewright.formats.conversion",
    "Scaled": "tilewright.formats.scaled",
    "dequantize": "tilewright.formats.quantized",
    "pack": "tilewright.formats.packing",
    "quantize": "tilewright.formats.quantization",
    "unpack": "tilewright.formats.packing",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tilewright.formats' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # so that this function is not asked again
    return value
