"""The formats there are, a row each, how to find one by any of its names, and the format in which operands of
different formats meet; block-scaled formats likewise."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

from tilewright.formats.records import Bool, Complex, Float, Format, Integer, Specials

if TYPE_CHECKING:
    import numpy as np

IEEE754 = "IEEE 754-2019, table 3.5"
BFLOAT16 = "Intel 338302-001, BFLOAT16 Hardware Numerics Definition"
OFP8 = "OCP 8-bit Floating Point Specification (OFP8), 1.0"
GRAPHCORE = "Noune et al., 8-bit Numerical Formats for Deep Neural Networks, arXiv 2206.02915"
MX = "OCP Microscaling Formats (MX) Specification, 1.0"
INTEGERS = "two's complement, or binary"
C_BOOL = "ISO C, _Bool: a byte that is 0 or 1"
C_COMPLEX = "ISO C, 6.2.5: two numbers, the real part first"
NVFP4 = ("NVIDIA, Introducing NVFP4 for Efficient and Accurate Low-Precision Inference, "
         "developer.nvidia.com/blog/introducing-nvfp4-for-efficient-and-accurate-low-precision-inference")

F32 = Float("f32", "float32", 8, 23, 127, Specials.IEEE, IEEE754)
F64 = Float("f64", "float64", 11, 52, 1023, Specials.IEEE, IEEE754)

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        F64,
        F32,
        #     name        numpy              e  m  bias specials          source
        Float("f16",      "float16",         5, 10, 15, Specials.IEEE,    IEEE754),
        Float("bf16",     "bfloat16",        8, 7, 127, Specials.IEEE,    BFLOAT16),
        Float("e4m3fn",   "float8_e4m3fn",   4, 3, 7,   Specials.FN,      OFP8),
        Float("e4m3fnuz", "float8_e4m3fnuz", 4, 3, 8,   Specials.FNUZ,    GRAPHCORE),
        Float("e5m2",     "float8_e5m2",     5, 2, 15,  Specials.IEEE,    OFP8),
        Float("e5m2fnuz", "float8_e5m2fnuz", 5, 2, 16,  Specials.FNUZ,    GRAPHCORE),
        Float("e2m3",     "float6_e2m3fn",   2, 3, 1,   Specials.NONE,    MX),
        Float("e3m2",     "float6_e3m2fn",   3, 2, 3,   Specials.NONE,    MX),
        Float("e2m1",     "float4_e2m1fn",   2, 1, 1,   Specials.NONE,    MX),
        Float("e8m0",     "float8_e8m0fnu",  8, 0, 127, Specials.SCALE,   MX),
        *(Integer(f"{'i' if signed else 'u'}{width}", f"{'' if signed else 'u'}int{width}", width, signed, INTEGERS)
          for width in (2, 4, 8, 16, 32, 64) for signed in (True, False)),
        Bool("bool", "bool", C_BOOL),
        Complex("c64", "complex64", F32, C_COMPLEX),
        Complex("c128", "complex128", F64, C_COMPLEX),
    )
}

# Those of kernels that have one format for A, B and C: the ladder for CPUs, the study of register tiles. matmul takes
# all formats.
MULTIPLIED = ("f32", "f64")

# Floats that CPUs' packing converts on the way to the micro-kernel, and to which sums are rounded: kernels/narrow.py.
NARROW = ("f16", "bf16", "e5m2", "e4m3fn", "e4m3fnuz", "e5m2fnuz")

_BY_NUMPY_NAME = {f.numpy_name: f for f in FORMATS.values()}

# What they are called elsewhere. Several of these words mean different formats to different people, so that only those
# of CLEAR are accepted as names; the others are explained.
ALSO_CALLED = {
    "f64": ("fp64", "double"),
    "f32": ("fp32", "single"),
    "f16": ("fp16", "half", "e5m10"),
    "bf16": ("e8m7",),
    "e4m3fn": ("fp8", "e4m3"),
    "e4m3fnuz": ("fp8", "e4m3"),
    "e5m2": ("bf8", "fp8"),
    "e5m2fnuz": ("bf8", "fp8", "e5m2"),
    "e2m3": ("fp6",),
    "e3m2": ("bf6", "fp6"),
    "e2m1": ("fp4",),
    "e8m0": ("ue8m0", "e8m0fnu"),
}

CLEAR = {"fp64": F64, "double": F64, "fp32": F32, "single": F32, "fp16": FORMATS["f16"], "half": FORMATS["f16"]}

# What NumPy has and tilewright will not: why, and what to take instead.
_INSTEAD = {
    "longdouble": ("long double has no vector instructions", "f64"),
    "clongdouble": ("long double has no vector instructions", "c128"),
    "object": ("Python objects are not laid out as numbers", "f64"),
}
_EXTENDED = {"float80", "float96", "float128", "longfloat", "complex160", "complex192", "complex256"}


def find(what: object, among: Collection[str] = FORMATS) -> Format | None:
    """The format called `what`, or None: a record, a short name, NumPy's or one of CLEAR, a dtype of NumPy's or
    torch's, a scalar type.

    `among` are the names of those that are wanted, such as MULTIPLIED. NumPy's one-letter codes are not accepted: its
    "f16" and "i8" count bytes where ours count bits.
    """
    format = _find(what)
    return format if format is not None and format.name in among else None


def _find(what: object) -> Format | None:
    if isinstance(what, Format):
        return what
    if isinstance(what, str):
        return FORMATS.get(what) or _BY_NUMPY_NAME.get(what) or CLEAR.get(what)
    if type(what).__module__ == "torch":  # torch.bfloat16, which is not imported for this
        return _BY_NUMPY_NAME.get(str(what).removeprefix("torch."))
    dtype = _dtype(what)
    return _BY_NUMPY_NAME.get(dtype.name) if dtype is not None else None


def _dtype(what: object) -> np.dtype[Any] | None:
    import numpy as np

    try:
        return np.dtype(what) if isinstance(what, (np.dtype, type)) else None
    except TypeError:  # np.floating, which is no one type
        return None


def _dtype_of_code(text: str) -> np.dtype[Any] | None:
    """What NumPy takes the text for: "f4", "<i2", "d"."""
    import numpy as np

    try:
        return np.dtype(text)
    except (TypeError, ValueError, SyntaxError):
        return None


def get(what: object, argument: str = "format", among: Collection[str] = FORMATS) -> Format:
    """The format with this name or dtype. ValueError, which names the argument and the choices, if it is unknown."""
    format = find(what, among)
    if format is None:
        shown = repr(str(what) if isinstance(what, Format) else what)
        raise ValueError(f"{argument} must be one of {', '.join(among)}, not {shown}{advice(what, among)}")
    return format


def array_format(array: np.ndarray[Any, Any], argument: str = "x") -> Format:
    """The format of an array's elements, or a TypeError."""
    format = find(array.dtype)
    if format is None:
        known = ", ".join(FORMATS)
        raise TypeError(f"{argument} must hold one of {known}, but its dtype is {array.dtype}{advice(array.dtype)}")
    return format


def advice(what: object, among: Collection[str] = FORMATS) -> str:
    """The end of a sentence that refuses `what`: why, or which one `among` these to use instead; often nothing."""
    known = _find(what)
    if known is not None and known.name in FORMATS:
        return f"; {known} is taken by tilewright.matmul, but not here"
    if isinstance(what, str):
        word = what.lower()
        named = [name for name in FORMATS if word == name or word in ALSO_CALLED.get(name, ())]
        if named:
            return f"; {what} may stand for {' or '.join(named)}"
        coded = _find(_dtype_of_code(what))
        if coded is not None:
            return f"; NumPy's {what!r} is {coded.name!r} here, where names count bits"
        kind = ("c" if word.startswith("c") else "") + "longdouble" if word in _EXTENDED else word
    else:
        dtype = _dtype(what)
        kind = {"g": "longdouble", "G": "clongdouble", "O": "object"}.get(dtype.char if dtype is not None else "", "")
    if kind not in _INSTEAD:
        return ""
    why, instead = _INSTEAD[kind]
    use = f", use {instead}: x.astype({FORMATS[instead].numpy_name!r})" if instead in among else ""
    return f"; {why}{use}"


# ---- block-scaled formats: numbers of few bits that share a scale with their neighbours

@dataclass(frozen=True)
class BlockFormat:
    """`block` neighbouring elements of one format and a scale for all of them: value = scale * element.

    Such a number has no bit pattern of its own, so that these are no rows of FORMATS. MX formats are those of OCP: 32
    elements, and a power of two in e8m0.
    """

    name: str
    element: Float
    scale: Float
    block: int  # elements that share a scale
    source: str

    @property
    def emax(self) -> int:
        """The exponent of the largest element: 8 of e4m3fn, whose largest number is 1.75 * 2^8."""
        return math.frexp(self.element.largest)[1] - 1

    @property
    def mx(self) -> bool:
        """Are scales powers of two? Else they are relative to a scale of the whole array."""
        return self.scale.specials is Specials.SCALE

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's elements, packed: 32, 24 or 16 for 32 of 8, 6 and 4 bits."""
        return self.block * self.element.bits // 8

    @property
    def bits(self) -> float:
        """Bits of memory that a number takes, with its share of the scale: 4.25 in mxfp4."""
        return self.element.bits + self.scale.bits / self.block

    def blocks(self, length: int) -> int:
        """How many blocks `length` numbers take; the last one may be filled up with zeros."""
        return -(-length // self.block)

    def __str__(self) -> str:
        return self.name


def _block_format(name: str, element: str, scale: str = "e8m0", block: int = 32, source: str = MX) -> BlockFormat:
    of_elements, of_scales = FORMATS[element], FORMATS[scale]
    assert isinstance(of_elements, Float)
    assert isinstance(of_scales, Float)
    return BlockFormat(name, of_elements, of_scales, block, source)


BLOCK_FORMATS = {
    f.name: f
    for f in (
        _block_format("mxfp8", "e4m3fn"),
        _block_format("mxfp8_e5m2", "e5m2"),
        _block_format("mxfp6", "e2m3"),
        _block_format("mxfp6_e3m2", "e3m2"),
        _block_format("mxfp4", "e2m1"),
        _block_format("nvfp4", "e2m1", "e4m3fn", 16, NVFP4),
    )
}

# Other names of block formats: OCP's, which state the format of elements also where it is the default.
_ALSO = {"mxfp8_e4m3": "mxfp8", "mxfp6_e2m3": "mxfp6", "mxfp4_e2m1": "mxfp4"}


def block_format(what: object, argument: str = "format") -> BlockFormat:
    """The block format called `what`, or `what` itself; ValueError for anything else."""
    if isinstance(what, BlockFormat):
        return what
    block = BLOCK_FORMATS.get(_ALSO.get(what, what)) if isinstance(what, str) else None
    if block is None:
        raise ValueError(f"{argument} must be one of {', '.join((*BLOCK_FORMATS, *_ALSO))}, not {what!r}")
    return block


# ---- where formats meet

def promote(*formats: object) -> Format:
    """The format in which mixed operands meet, whatever their order: the one NumPy would choose.

    For its own formats that is numpy.result_type, and for those of ml_dtypes what ml_dtypes has taught NumPy; it is
    not always a format that holds all of both operands (i8 with e2m1 gives e2m1). Where NumPy refuses any two of them,
    as it does f16 and bf16, it is the narrowest format that does hold every number of all operands (of integers, the
    narrowest integer format), the first in the table of several; and f64 where none does, or c128 if one is complex.
    """
    import numpy as np

    if not formats:
        raise ValueError("promote needs at least 1 format")
    operands = [get(name) for name in formats]
    dtypes = [f.dtype for f in operands]
    try:
        for pair in combinations(dtypes, 2):  # of three, NumPy refuses some in one order and not in another
            np.result_type(*pair)
        return get(np.result_type(*dtypes))
    except TypeError:
        return narrowest(*operands)


def accumulator(*formats: object) -> Format:
    """The format in which products of such operands, for such a result, are added up: f32, f64, i32, i64, c64 or c128.

    It holds every product of two narrow floats, and 32 or 64 bits of a sum of integers, which is all of it modulo the
    result's 2^bits. Integers for an integer result are never added up as floats, though i64 and u64 meet in f64.
    """
    if integral(*formats):
        return FORMATS["i64" if max(get(f).bits for f in formats) > 32 else "i32"]
    common = promote(*formats)
    if isinstance(common, Complex):
        return common
    return FORMATS["f64" if common.bits > 32 else "f32"]


def integral(*formats: object) -> bool:
    """Are all of these integers, or bool?"""
    return all(isinstance(get(f), (Integer, Bool)) for f in formats)


def rank(format: object) -> int:
    """NumPy's kinds in order, bool, integer, float, complex: what is of one may be cast to the same or a later one."""
    known = get(format)
    return next(i for i, kind in enumerate((Bool, Integer, Float, Complex)) if isinstance(known, kind))


def narrowest(*formats: Format) -> Format:
    """The format of fewest bits that holds every number of all of these; f64 or c128 if none does, as in NumPy.

    Integers meet in integers, though a small float would often do.
    """
    integral = all(isinstance(format, Integer) for format in formats)
    eligible = [f for f in FORMATS.values() if isinstance(f, Integer) or not integral]
    holding = [f for f in eligible if all(holds(f, format) for format in formats)]
    widest = "c128" if any(isinstance(format, Complex) for format in formats) else "f64"
    return min(holding, key=lambda f: f.bits, default=FORMATS[widest])


@cache
def holds(wide: Format, narrow: Format) -> bool:
    """Is every number of `narrow`, inf and nan included, one of `wide`? The sign of a zero does not count."""
    if wide == narrow:
        return True
    if isinstance(wide, Complex):
        return holds(wide.part, narrow.part if isinstance(narrow, Complex) else narrow)
    if narrow.smallest < wide.smallest or narrow.largest > wide.largest or isinstance(narrow, Complex):
        return False
    if isinstance(wide, Float):
        digits, unit = _digits(narrow)
        specials = not isinstance(narrow, Float) or (
            len(wide.nans) >= min(len(narrow.nans), 1) and len(wide.infs) >= len(narrow.infs)
        )
        zero = bool(wide.zeros) or (isinstance(narrow, Float) and not narrow.zeros)
        return specials and zero and digits <= wide.mantissa + 1 and unit >= wide.smallest_subnormal
    return isinstance(wide, Integer) and not isinstance(narrow, Float)


def _digits(f: Format) -> tuple[int, float]:
    """How many binary digits the numbers of a format have at most, and the unit of which all are multiples."""
    if isinstance(f, Float):
        return f.mantissa + 1, f.smallest_subnormal
    return int(f.largest).bit_length(), 1.0
