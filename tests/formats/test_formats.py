"""Number formats: every bit pattern of every small format, every rounding decision, every group of packed bits.

What a pattern means is compared with ml_dtypes (or NumPy) and with gfloat, an independent decoder; what a number is
rounded to, with the list of all the numbers that a format has.
"""

from __future__ import annotations

import itertools
import math
import re
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gfloat import Domain, FormatInfo, RoundMode, decode_ndarray, round_ndarray

from tests.helpers.command_line import refused, said as printed
from tests.helpers.processes import printed as printed_alone
from tilewright import Gemm, formats, matmul
from tilewright.formats import FORMATS, Bool, Complex, Float, Integer, convert, explain, pack, promote, unpack
from tilewright.formats.conversion import packed_bytes
from tilewright.formats.table import holds
from tilewright.lab.drawing import format_table

SMALL = [f for f in FORMATS.values() if f.bits <= 16]
FLOATS = [f for f in FORMATS.values() if isinstance(f, Float)]
INTEGERS = [f for f in FORMATS.values() if isinstance(f, Integer)]
NARROW = [f for f in FLOATS if f.bits <= 16]


def words(f: Any, patterns: Any) -> Any:
    """Patterns as an array of a format's dtype."""
    return np.asarray(patterns, f"u{f.itemsize}").view(f.dtype)


def patterns_of(x: Any, f: Any) -> Any:
    return np.ascontiguousarray(x).view(f"u{f.itemsize}") & np.uint64(2**f.bits - 1).astype(f"u{f.itemsize}")


@cache
def decoded(f: Any) -> Any:
    """What each pattern of a small format means, in our own arithmetic."""
    values = np.array([f.decode(pattern) for pattern in range(2**f.bits)], np.float64)
    values.flags.writeable = False
    return values


def same(x: Any, y: Any) -> None:
    """To the bit: nan equals nan, 0 does not equal -0."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(np.signbit(x) & ~np.isnan(x), np.signbit(y) & ~np.isnan(y))


# ---- what a pattern means


@pytest.mark.parametrize("f", SMALL, ids=str)
def test_every_pattern_means_what_the_library_says(f):
    with np.errstate(invalid="ignore"):  # signaling nans
        same(decoded(f), words(f, np.arange(2**f.bits)).astype(np.float64))


def foreign(f: Any) -> FormatInfo:
    """The same format in gfloat's terms, spelled out: its own list lacks some, and nothing is derived from ours."""
    ieee, plain = {"domain": Domain.Extended, "has_nz": True}, {"domain": Domain.Finite, "has_nz": True}
    unsigned_zero = {"domain": Domain.Finite, "has_nz": False, "num_high_nans": 0}
    rows: dict[str, Any] = {
        "f16": (16, 11, 15, ieee | {"num_high_nans": 1023}),
        "bf16": (16, 8, 127, ieee | {"num_high_nans": 127}),
        "e4m3fn": (8, 4, 7, plain | {"num_high_nans": 1}),
        "e4m3fnuz": (8, 4, 8, unsigned_zero),
        "e5m2": (8, 3, 15, ieee | {"num_high_nans": 3}),
        "e5m2fnuz": (8, 3, 16, unsigned_zero),
        "e2m3": (6, 4, 1, plain | {"num_high_nans": 0}),
        "e3m2": (6, 3, 3, plain | {"num_high_nans": 0}),
        "e2m1": (4, 2, 1, plain | {"num_high_nans": 0}),
        "e8m0": (8, 1, 127, unsigned_zero | {"num_high_nans": 1, "is_signed": False, "has_subnormals": False}),
    }
    if f.name in rows:
        k, precision, bias, rest = rows[f.name]
    else:  # an integer, as a number without exponent, all "subnormal", in units of the last bit
        k, precision, bias = f.bits, f.bits + (not f.signed), 2 - f.bits - (not f.signed)
        rest = unsigned_zero | {"is_signed": f.signed, "is_twos_complement": f.signed}
    rest = {"is_signed": True, "has_subnormals": True, "is_twos_complement": False} | rest
    return FormatInfo(f.name, k, precision, bias=bias, **rest)


@pytest.mark.parametrize("f", [f for f in SMALL if not isinstance(f, Bool)], ids=str)
def test_every_pattern_means_what_an_independent_decoder_says(f):
    same(decoded(f), decode_ndarray(foreign(f), np.arange(2**f.bits)))


@pytest.mark.parametrize("f", [f for f in FORMATS.values() if f.bits > 16], ids=str)
def test_wide_patterns_mean_what_numpy_says(f):
    """At every boundary, one before and one after it, and at random."""
    part = f.part if isinstance(f, Complex) else f
    edges = [0, 2 ** (part.bits - 1), 2**part.bits - 1]
    if isinstance(part, Float):
        edges += [*part.zeros, *part.infs, *(n for run in part.nans for n in (run.start, run.stop))]
        edges += [2**part.mantissa, part.bias << part.mantissa, 5 << part.mantissa]
    near = [n + step for n in edges for step in (-1, 0, 1)]
    rng = np.random.default_rng(0)
    near += [int(n) for n in rng.integers(0, 2**part.bits - 1, 300, np.uint64, endpoint=True)]
    near = [n for n in near if 0 <= n < 2**part.bits]
    given = np.array(near, f"u{part.bits // 8}").view(part.dtype)
    if isinstance(f, Complex):
        real, imaginary = given[:-1], given[1:]
        ours = [f.decode(low + (high << part.bits)) for low, high in itertools.pairwise(near)]
        both = np.stack([real, imaginary], axis=-1).view(f.dtype)[..., 0]  # the real part lies first
        with np.errstate(invalid="ignore"):
            same([z.real for z in ours], both.real)
            same([z.imag for z in ours], both.imag)
    elif isinstance(f, Float):
        with np.errstate(invalid="ignore"):  # signaling nans
            same([f.decode(n) for n in near], given)
    else:
        assert [f.decode(n) for n in near] == given.tolist()


@pytest.mark.parametrize("f", SMALL, ids=str)
def test_limits_are_those_of_all_values(f):
    finite = decoded(f)[np.isfinite(decoded(f))]
    assert (f.smallest, f.largest) == (finite.min(), finite.max())


@pytest.mark.parametrize("f", FLOATS, ids=str)
def test_limits_agree_with_the_library(f):
    info = (np.finfo if f.numpy_name in ("float64", "float32", "float16") else ml_dtypes.finfo)(f.dtype)
    assert f.bits == info.bits
    assert f.itemsize == f.dtype.itemsize
    assert f.eps == float(info.eps)
    assert (f.smallest, f.largest) == (float(info.min), float(info.max))
    assert f.smallest_normal == float(info.smallest_normal)
    assert f.smallest_subnormal == float(info.smallest_subnormal)
    assert (f.exponent, f.mantissa) == (f.bits - f.signed - info.nmant, info.nmant)


@pytest.mark.parametrize("f", INTEGERS, ids=str)
def test_limits_of_integers_agree_with_the_library(f):
    info = (ml_dtypes if f.bits < 8 else np).iinfo(f.dtype)
    assert (f.bits, f.smallest, f.largest) == (info.bits, int(info.min), int(info.max))
    assert f.itemsize == f.dtype.itemsize


@pytest.mark.parametrize("f", NARROW, ids=str)
def test_special_encodings_are_all_that_there_are(f):
    values = decoded(f)
    assert [n for run in f.nans for n in run] == np.flatnonzero(np.isnan(values)).tolist()
    assert list(f.infs) == np.flatnonzero(np.isinf(values)).tolist()
    assert list(f.zeros) == np.flatnonzero(values == 0).tolist()
    kinds = np.array([f.kind(n) for n in range(2**f.bits)])
    np.testing.assert_array_equal(kinds == "subnormal", (values != 0) & (np.abs(values) < f.smallest_normal))


def test_the_nan_of_the_fnuz_formats_is_one_pattern():
    """Where the article's table prints S 00000 00 for e5m2fnuz, 0 00000 00 is zero."""
    for name in ("e4m3fnuz", "e5m2fnuz"):
        f = FORMATS[name]
        assert isinstance(f, Float)
        assert f.nans == (range(0x80, 0x81),)
        assert f.zeros == (0,)
    assert format_table.row(FORMATS["e5m2fnuz"])[7:10] == ("0 00000 00", "1 00000 00", "-")


def test_the_table_has_the_formats_of_the_design():
    names = "f64 f32 f16 bf16 e4m3fn e4m3fnuz e5m2 e5m2fnuz e2m3 e3m2 e2m1 e8m0 i2 u2 i4 u4 i8 u8 i16 u16 i32 u32 i64"
    assert list(FORMATS) == f"{names} u64 bool c64 c128".split()
    assert set(formats.MULTIPLIED) <= set(FORMATS)


@pytest.mark.parametrize("f", FORMATS.values(), ids=str)
def test_every_name_finds_its_format(f):
    for name in (f, f.name, f.numpy_name, f.dtype, f.dtype.type):
        assert formats.get(name) is f
    assert str(f) == f.name
    assert f.dtype.name == f.numpy_name


def test_what_is_no_format():
    for what in (None, 3, "f9", "f8", "e4m3", "float128", object, np.dtype("M8[s]"), np.floating, np.dtype("2f4")):
        assert formats.find(what) is None
    assert formats.find("f16") is FORMATS["f16"]  # 16 bits, and not NumPy's 16 bytes
    assert formats.find("f16", formats.MULTIPLIED) is None
    with pytest.raises(ValueError, match="a must be one of f32, f64, not 'f16'"):
        formats.get("f16", "a", formats.MULTIPLIED)
    with pytest.raises(ValueError, match=r"format must be one of f64, f32, f16, .*, c128, not 'f9'"):
        formats.get("f9")
    with pytest.raises(ValueError, match=r"f32, f64, not 'e2m1'; e2m1 is taken by tilewright.matmul, but not here"):
        formats.get(FORMATS["e2m1"], "a", formats.MULTIPLIED)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (np.longdouble, "long double has no vector instructions, use f64: x.astype('float64')"),
        (np.dtype("g"), "use f64: x.astype('float64')"),
        ("float128", "use f64: x.astype('float64')"),
        ("longdouble", "use f64: x.astype('float64')"),
        (np.clongdouble, "use c128: x.astype('complex128')"),
        ("complex256", "use c128: x.astype('complex128')"),
        (object, "Python objects are not laid out as numbers, use f64: x.astype('float64')"),
        ("object", "use f64: x.astype('float64')"),
        ("fp4", "; fp4 may stand for e2m1"),
        ("FP6", "; FP6 may stand for e2m3 or e3m2"),
        ("F16", "; F16 may stand for f16"),
    ],
)
def test_what_to_use_instead(what, words):
    with pytest.raises(ValueError, match=f"fmt must be one of .*{re.escape(words)}$"):
        formats.get(what, "fmt")
    if isinstance(what, type):
        with pytest.raises(TypeError, match=f"x must hold one of .*{re.escape(words)}$"):
            convert(np.ones(2, what), "f32", saturate=True)
        if what is not object and np.dtype(what).kind != "c":
            with pytest.raises(ValueError, match=f"a must be one of f64, f32, .*, not .*{re.escape(words)}$"):
                Gemm(2, 3, 4, a=what)


def test_dtypes_of_torch_are_found_by_name():
    """torch itself is not needed for it, nor imported."""
    kind = type("dtype", (), {"__module__": "torch", "__str__": lambda self: "torch." + self.name})
    for name, found in (("bfloat16", "bf16"), ("float8_e4m3fn", "e4m3fn"), ("int32", "i32"), ("bool", "bool")):
        of_torch = kind()
        of_torch.name = name
        assert formats.find(of_torch).name == found
    of_torch.name = "quint8"
    assert formats.find(of_torch) is None


def test_other_names_are_nobodys_own():
    for name, others in formats.ALSO_CALLED.items():
        assert name in FORMATS
        for other in others:
            assert other not in FORMATS or other == "e5m2"  # which some write for e5m2fnuz


@pytest.mark.parametrize(
    ("pattern", "error", "sentence"),
    [(256, ValueError, "0 to 0xff for e5m2, which has 8 bits, not 0x100"), (-1, ValueError, "not -1"),
     (1.0, TypeError, "pattern must be an integer, not 1.0"), ("7", TypeError, "not '7'")],
)
def test_what_is_no_pattern(pattern, error, sentence):
    for function in (FORMATS["e5m2"].decode, lambda p: explain("e5m2", p)):
        with pytest.raises(error, match=sentence):
            function(pattern)
    assert FORMATS["e5m2"].decode(np.uint8(0x3C)) == 1


def test_no_library_is_imported_before_it_is_needed():
    printed_alone("""
        import sys
        from tilewright import formats
        f = formats.get("e4m3fn")
        f.largest, f.decode(3), str(formats.explain(f, 3)), formats.FORMATS
        assert "numpy" not in sys.modules
        formats.promote(formats.get("f32"), formats.get("float64")), formats.convert([1], "f16", saturate=True)
        assert "ml_dtypes" not in sys.modules
        assert f.dtype.name == "float8_e4m3fn"
    """)


# ---- steps


def test_the_steps_of_a_normal_number():
    steps = explain("e4m3fnuz", 0xC5)
    assert (steps.kind, steps.value) == ("normal", -1.625)
    assert str(steps).splitlines() == [
        "e4m3fnuz 0xc5 = 1 1000 101",
        "sign      1: negative",
        "exponent  1000 = 8, bias 8",
        "mantissa  101 = 5, of 8",
        "a normal number: a hidden 1 stands before the mantissa",
        "= (-1)^1 * 2^(8 - 8) * (1 + 5/8)",
        "= -2^0 * 1.625",
        "= -1.625",
    ]


@pytest.mark.parametrize(
    ("name", "pattern", "kind", "words"),
    [
        ("e4m3fnuz", 0x80, "nan", "the only nan is where -0 would be"),
        ("e4m3fn", 0xFF, "nan", "nan only where all bits but the sign are 1"),
        ("e5m2", 0xFC, "inf", "= -inf"),
        ("e5m2", 0x80, "zero", "= -0"),
        ("e5m2", 0x03, "subnormal", "2^(1 - 15) * (0 + 3/4)"),
        ("e8m0", 0x80, "normal", "2^(128 - 127)\n= 2"),
        ("e8m0", 0xFF, "nan", "powers of two"),
        ("i8", 0xC5, "integer", "1 * -128 + 69\n= -59"),
        ("u4", 0x9, "integer", "unsigned: 9"),
        ("bool", 2, "bool", "any bit is 1: True"),
        ("c64", 0x40000000_3F800000, "complex", "= (1+2j)"),
    ],
)
def test_the_steps_of_other_kinds(name, pattern, kind, words):
    steps = explain(name, pattern)
    assert steps.kind == kind
    assert words in str(steps)


@pytest.mark.parametrize("f", [f for f in SMALL if f.bits <= 8], ids=str)
def test_the_steps_end_at_the_value(f):
    """The formula of each finite number, worked out as it stands, is the number."""
    for pattern in range(2**f.bits):
        steps = explain(f, pattern)
        last = steps.lines[-1].split()[-1]
        same([float(last) if last not in ("True", "False") else last == "True"], [f.decode(pattern)])
        for line in steps.lines[1:]:
            if line.startswith("= ") and "nan" not in line and "inf" not in line:
                exact = eval(line[2:].replace("^", "**"), {}) if "/" not in line else evaluated(line[2:])
                assert exact == f.decode(pattern), line


def evaluated(formula: str) -> Fraction:
    """(-1)^1 * 2^(8 - 8) * (1 + 5/8), in fractions."""
    return eval(formula.replace("^", "**").replace("2**", "Fraction(2)**"), {"Fraction": Fraction})


# ---- conversion


@cache
def finite(f: Any) -> tuple[Any, Any]:
    """Every number of a format once, ascending, and its pattern: of the zeros the positive one."""
    values, order = np.unique(np.where(np.isfinite(decoded(f)), decoded(f) + 0.0, np.nan), return_index=True)
    keep = np.isfinite(values)
    return values[keep], order[keep]


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("f", NARROW, ids=str)
def test_every_decision_of_rounding(f, saturate):
    """Between any two neighbours: the tie goes to the even pattern, and the f64 next to it to the nearer number.

    Casting by way of f32, as ml_dtypes does, takes that f64 for the tie.
    """
    values, patterns = finite(f)
    low, high = values[:-1], values[1:]
    tie = (low + high) / 2  # exact: f64 has digits enough
    even = np.where(patterns[:-1] % 2 == 0, low, high)
    if f.name == "e8m0":  # its significand, always 1, is odd: the next power of two has the even one
        even = high
    same(np.abs(convert(tie, f, saturate=saturate).astype(np.float64)), np.abs(even))
    below, above = np.nextafter(tie, low), np.nextafter(tie, high)
    same(np.abs(convert(below, f, saturate=saturate).astype(np.float64)), np.abs(low))
    same(np.abs(convert(above, f, saturate=saturate).astype(np.float64)), np.abs(high))
    same(convert(values, f, saturate=saturate).astype(np.float64), values)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("f", [f for f in NARROW if f.signed], ids=str)
def test_an_independent_rounding_agrees(f, saturate):
    """f64 of all sizes, and next to the largest number: gfloat rounds them to the same."""
    rng = np.random.default_rng(2)
    sizes = rng.uniform(math.log2(f.smallest_subnormal) - 3, math.log2(f.largest) + 3, 20000)
    x = rng.standard_normal(20000) * 2.0**sizes
    x = np.concatenate([x, f.largest * (1 + np.linspace(0, 2 * f.eps, 101)), [0.0, -0.0, math.inf, -math.inf]])
    saturates = saturate or not (f.nans or f.infs)
    same(convert(x, f, saturate=saturate), round_ndarray(foreign(f), x, RoundMode.TiesToEven, saturates))


def test_ml_dtypes_rounds_twice_and_convert_once():
    x = 1 + 2**-4 + 2**-40  # more than the middle between 1 and 1.125
    assert np.asarray(x).astype(ml_dtypes.float8_e4m3fn) == 1  # once this fails, conversion.py can do less
    assert convert(x, "e4m3fn", saturate=True) == 1.125


@pytest.mark.parametrize("f", NARROW, ids=str)
def test_f32_goes_where_ml_dtypes_and_f64_say(f):
    """Random patterns of f32: of all sizes, with inf, without nan; both ways of `convert` and the cast agree."""
    x = np.random.default_rng(1).integers(0, 2**32, 20000, np.uint32).view(np.float32)
    x = np.concatenate([x[~np.isnan(x)], np.float32([0.0, -0.0, np.inf, -np.inf])])
    usual = np.abs(x) >= FORMATS["f32"].smallest_normal if f.name == "e8m0" else slice(None)  # ml_dtypes errs below
    with np.errstate(over="ignore"):
        cast = x.astype(f.dtype)
    same(convert(x, f, saturate=False)[usual], cast[usual])
    for saturate in (False, True):
        same(convert(x, f, saturate=saturate), convert(x.astype(np.float64), f, saturate=saturate))
    clipped = np.clip(x, f.smallest if f.signed else None, f.largest).astype(f.dtype)
    same(convert(x, f, saturate=True)[usual], clipped[usual])


@pytest.mark.parametrize("f", NARROW, ids=str)
def test_what_is_too_large(f):
    last, before = finite(f)[0][-1], finite(f)[0][-2]
    middle = last + (last - before) / 2 if f.name != "e8m0" else 1.5 * last  # where the next number would begin
    beyond = {"e4m3fn": math.nan, "e4m3fnuz": math.nan, "e5m2fnuz": math.nan, "e8m0": math.nan,
              "e2m3": last, "e3m2": last, "e2m1": last}.get(f.name, math.inf)
    inside, outside = np.nextafter(middle, 0), np.nextafter(middle, math.inf)
    for sign in (1, -1)[: 1 + f.signed]:
        assert convert(sign * inside, f, saturate=False) == sign * last
        same(convert([sign * outside, sign * 1e300, sign * math.inf], f, saturate=False), [sign * beyond] * 3)
        same(convert([sign * outside, sign * 1e300, sign * math.inf], f, saturate=True), [sign * last] * 3)


def test_nan_stays_nan_where_there_is_one_and_is_refused_elsewhere():
    for f in FORMATS.values():
        for saturate in (True, False):
            if isinstance(f, (Float, Complex)) and (isinstance(f, Complex) or f.nans):
                assert np.isnan(convert([math.nan], f, saturate=saturate)).all()
            elif isinstance(f, Bool):
                assert convert([math.nan], f, saturate=saturate).all()  # as NumPy has it
            else:
                with pytest.raises(ValueError, match=f"x holds nan 2 times, and {f} has no nan"):
                    convert([math.nan, 1, math.nan], f, saturate=saturate)
    with pytest.raises(ValueError, match="x holds nan once, and e2m1 has no nan"):
        convert(np.array([1, math.nan], ml_dtypes.bfloat16), "e2m1", saturate=True)


def test_signs_of_zero():
    for f in NARROW:
        if f.signed:
            same(
                convert([-0.0, -1e-300, 1e-300], f, saturate=True),
                [-0.0, -0.0, 0.0] if len(f.zeros) == 2 else [0.0] * 3,
            )


def test_scales_are_powers_of_two():
    x = [1, 1.4, 1.5, 3, 2.0**-127, 2.0**-128, 1e-300, 2.0**127, 2.0**128, 0, -0.0, -1]
    least, top, nan = 2.0**-127, 2.0**127, math.nan
    same(convert(x, "e8m0", saturate=False), [1, 1, 2, 4, least, least, least, top, nan, nan, nan, nan])
    same(convert(x, "e8m0", saturate=True), [1, 1, 2, 4, least, least, least, top, top, nan, nan, nan])


def test_f64_to_numpys_own_formats():
    x = [1e300, -math.inf, 65519.99, 65520.0, 1 + 2**-24 + 2**-50]
    same(convert(x, "f32", saturate=False), [math.inf, -math.inf, np.float32(65519.99), 65520, 1 + 2**-23])
    same(convert(x[:4], "f16", saturate=False), [math.inf, -math.inf, 65504, math.inf])
    same(convert(x[:4], "f16", saturate=True), [65504, -65504, 65504, 65504])
    same(convert(np.float32([math.inf, 1]), "f64", saturate=True), [FORMATS["f64"].largest, 1])


def nearest(value: int, f: Any) -> float:
    """An integer rounded to a format, in integers: to the nearest multiple of a unit, ties to even."""
    unit = 1 << max(abs(value).bit_length() - f.mantissa - 1, 0)
    return float(round(Fraction(value, unit)) * unit)


@pytest.mark.parametrize("f", [FORMATS[name] for name in ("f64", "f32", "bf16")], ids=str)
def test_long_integers_are_rounded_once(f):
    """Next to a tie of the format: 64 bits are more than f64 holds, so that it would take the number for the tie."""
    ties = [n + (n >> (f.mantissa + 1)) for n in (2**62, 2**60 + 2**59, 2**62 + (2**62 >> f.mantissa))]
    for tie, step, sign in itertools.product(ties, (-1, 0, 1), (1, -1)):
        value = sign * (tie + step)
        same(convert(np.array([value]), f, saturate=True), [nearest(value, f)])
        same(convert(np.array([value]), f, saturate=False), [nearest(value, f)])
    value = 2**63 + (2**63 >> (f.mantissa + 1)) + 1
    same(convert(np.array([value], np.uint64), f, saturate=False), [nearest(value, f)])
    values = [0, 5, -7, 2**53, -(2**53), 2**63 - 1, -(2**63)]
    same(convert(np.array(values), f, saturate=False), [nearest(value, f) for value in values])


def test_integers_become_small_floats():
    x = np.arange(-300, 300, dtype=np.int32)
    for f in NARROW:
        if f.signed:
            same(convert(x, f, saturate=True), convert(x.astype(np.float64), f, saturate=True))
            same(convert(x, f, saturate=False), convert(x.astype(np.float32), f, saturate=False))
    assert convert(np.array([100], np.int8), "e2m1", saturate=True) == 6


def integer_cases() -> list[int]:
    edges = {n for f in INTEGERS for n in (f.smallest, f.largest)}
    return sorted({n + step for n in edges for step in (-1, 0, 1)} | {-300, 5, 1000})


@pytest.mark.parametrize("f", INTEGERS, ids=str)
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int8, np.uint16, "int4"])
def test_integers_are_clipped_or_wrapped(f, dtype):
    source = formats.get(dtype)
    values = [n for n in integer_cases() if source.smallest <= n <= source.largest]
    x = np.array(values).astype(source.dtype) if source.bits < 8 else np.array(values, source.dtype)
    clipped = convert(x, f, saturate=True)
    assert clipped.dtype == f.dtype
    assert [int(n) for n in clipped] == [min(max(n, f.smallest), f.largest) for n in values]
    wrapped = convert(x, f, saturate=False)
    assert [int(n) for n in wrapped] == [f.decode(n % 2**f.bits) for n in values]
    if f.bits >= 8:
        np.testing.assert_array_equal(wrapped, x.astype(np.int64 if source.bits < 8 else x.dtype).astype(f.dtype))


@pytest.mark.parametrize("f", INTEGERS, ids=str)
def test_floats_become_integers_to_the_nearest(f):
    values = [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999999999999994, *(float(n) for n in integer_cases()), 1e19, -1e19, 1e300]
    clipped, wrapped = (convert(values, f, saturate=saturate) for saturate in (True, False))
    assert [int(n) for n in clipped] == [min(max(round(x), f.smallest), f.largest) for x in values]
    assert [int(n) for n in wrapped] == [f.decode(round(x) % 2**f.bits) for x in values]
    assert [int(n) for n in convert([math.inf, -math.inf], f, saturate=True)] == [f.largest, f.smallest]
    with pytest.raises(ValueError, match=f"x holds inf once, and {f} has no inf"):
        convert([1, -math.inf], f, saturate=False)


def test_complex_and_bool():
    z = np.array([1 + 2j, complex(1e300, -math.inf)])
    big = FORMATS["f32"].largest
    assert convert(z, "c64", saturate=True).tolist() == [1 + 2j, complex(big, -big)]
    assert convert(z, "c64", saturate=False).tolist() == [1 + 2j, complex(math.inf, -math.inf)]
    assert convert(np.int8(3), "c128", saturate=True) == 3 + 0j
    assert convert([0, 0.1, -0.0, 2], "bool", saturate=True).tolist() == [False, True, False, True]
    assert convert(np.zeros(2, ml_dtypes.float4_e2m1fn), "bool", saturate=True).tolist() == [False, False]
    assert convert([True, False], "e4m3fn", saturate=True).tolist() == [1, 0]
    with pytest.raises(TypeError, match=r"x is c128 and f32 has no imaginary part; convert x.real"):
        convert(z, "f32", saturate=True)


@pytest.mark.parametrize("f", FORMATS.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)], ids=str)
def test_conversion_keeps_shapes_and_copies(f, shape):
    for source in (np.float64, np.float32, np.int64, f.dtype):
        if source is f.dtype or not isinstance(f, Complex):
            x = np.ones(shape).astype(source)
            for saturate in (True, False):
                y = convert(x, f, saturate=saturate)
                assert (type(y), y.dtype, y.shape) == (np.ndarray, f.dtype, shape)
                assert not np.shares_memory(x, y)
                assert (y.astype(np.complex128) == 1).all()


def test_conversion_refuses_in_sentences():
    with pytest.raises(TypeError, match=r"x must hold one of f64, .*, c128, but its dtype is <U1"):
        convert(["a"], "f32", saturate=True)
    with pytest.raises(ValueError, match=r"fmt must be one of f64, .* not 'f31'"):
        convert([1], "f31", saturate=True)
    with pytest.raises(TypeError, match="saturate"):
        convert([1], "f32")  # type: ignore[call-arg]


def test_conversion_warns_of_nothing():
    with np.errstate(all="raise"):
        for f in FORMATS.values():
            for x in ([1e300, -math.inf, 1e-320, 0.0], 1e300, -math.inf, 1e-320, 0.0, -1.0, 300):
                convert(x, f, saturate=True)
                if not isinstance(f, Integer) or np.isfinite(x).all():
                    convert(x, f, saturate=False)


# ---- packing


@pytest.mark.parametrize("f", [f for f in FORMATS.values() if f.bits <= 8], ids=str)
@pytest.mark.parametrize("order", [1, -1])
def test_every_pattern_survives_packing(f, order):
    x = words(f, np.arange(2**f.bits)[::order])
    packed = pack(x)
    assert packed.dtype == np.uint8
    assert packed.size == 2**f.bits * f.bits // 8
    back = unpack(packed, f)
    assert back.dtype == f.dtype
    np.testing.assert_array_equal(patterns_of(back, f), patterns_of(x, f))


@pytest.mark.parametrize("f", FORMATS.values(), ids=str)
@pytest.mark.parametrize("count", [*range(10), 31, 64])
def test_packed_numbers_are_one_stream_of_bits(f, count):
    """Lowest bits first, as one long integer has them; what is left of the last byte is 0."""
    x = np.frombuffer(np.random.default_rng(count).bytes(3 * count * f.itemsize), np.uint8).reshape(3, -1)
    if f.bits < 8 or isinstance(f, Bool):
        x = x & np.uint8(1 if isinstance(f, Bool) else 2**f.bits - 1)
    x = x.view(f.dtype)
    packed = pack(x)
    assert packed.shape == (3, packed_bytes(f, count)) == (3, -(-count * f.bits // 8))
    for row, packed_row in zip(x, packed):
        patterns = [int.from_bytes(one.tobytes(), "little") for one in row]
        stream = sum(pattern << (f.bits * i) for i, pattern in enumerate(patterns))
        assert int.from_bytes(packed_row.tobytes(), "little") == stream
    assert unpack(packed, f, count).tobytes() == x.tobytes()


def test_the_order_within_a_byte():
    assert pack(convert([1, 2, -1], "i4", saturate=True)).tolist() == [0x21, 0x0F]
    assert pack(convert([0, 1, 2, 3, 1], "u2", saturate=True)).tolist() == [0b11_10_01_00, 1]
    six = words(FORMATS["e3m2"], [0b000001, 0b110010, 0b001111, 0b101010])
    assert pack(six).tolist() == [0b10_000001, 0b1111_1100, 0b101010_00]
    assert unpack(np.uint8([0x21]), "i4").tolist() == [1, 2]
    assert unpack(np.uint8([0x21, 0xFF]), "u4", 3).tolist() == [1, 2, 15]


def test_packing_takes_views_and_stacks():
    x = convert(np.arange(48).reshape(2, 4, 6) % 8, "e3m2", saturate=True)
    for view in (x, x.transpose(2, 1, 0), x[:, ::-1, ::2], x[..., :0], x[:0]):
        packed = pack(view)
        assert packed.shape == (*view.shape[:-1], packed_bytes(FORMATS["e3m2"], view.shape[-1]))
        np.testing.assert_array_equal(unpack(packed, "e3m2", view.shape[-1]), view)
    np.testing.assert_array_equal(unpack(pack(x)[::-1], "e3m2", 6), x[::-1])


def test_packing_refuses_in_sentences():
    with pytest.raises(TypeError, match=r"x must hold one of f64, .* but its dtype is object"):
        pack([None])
    with pytest.raises(ValueError, match="x must have at least 1 axis"):
        pack(np.float32(1))
    with pytest.raises(ValueError, match=r"packed must be an array of uint8 with at least 1 axis, not int64 \(1,\)"):
        unpack([1], "i4")
    with pytest.raises(ValueError, match="count must be 0 to 5, which is what 4 bytes of e2m3 hold, not 6"):
        unpack(np.zeros(4, np.uint8), "e2m3", 6)
    with pytest.raises(ValueError, match="fmt must be one of"):
        unpack(np.zeros(4, np.uint8), "fp4")


def test_groups_that_fill_whole_bytes():
    assert {f.name: f.packing for f in FORMATS.values() if f.bits < 8} == {
        "e2m3": (4, 3), "e3m2": (4, 3), "e2m1": (2, 1), "i2": (4, 1), "u2": (4, 1), "i4": (2, 1), "u4": (2, 1)
    }
    assert FORMATS["f16"].packing == (1, 2)


# ---- promotion

PAIRS = list(itertools.product(FORMATS.values(), repeat=2))


def test_promotion_is_numpys_where_numpy_has_one():
    asked = 0
    for a, b in PAIRS:
        try:
            expected = np.result_type(a.dtype, b.dtype)
        except TypeError:
            continue
        asked += 1
        assert promote(a, b).dtype == expected, (a, b)
    assert asked > len(PAIRS) / 2


def test_elsewhere_promotion_loses_nothing():
    """The narrowest format that has every number of both, found by looking for each of them."""
    values = {f.name: set(decoded(f)[~np.isnan(decoded(f))]) for f in SMALL}
    nans = {f.name for f in SMALL if np.isnan(decoded(f)).any()}
    for a, b in PAIRS:
        try:
            np.result_type(a.dtype, b.dtype)
        except TypeError:
            found = promote(a, b)
            assert promote(b, a) is found
            if max(a.bits, b.bits, found.bits) > 16:
                assert all(holds(found, each) for each in (a, b)) or found.name == "f64", (a, b)
                continue
            needed, with_nan = values[a.name] | values[b.name], {a.name, b.name} & nans
            whole = isinstance(a, Integer) and isinstance(b, Integer)
            for f in INTEGERS if whole else SMALL:
                if f.bits > 16:
                    continue
                has = needed <= values[f.name] and (f.name in nans or not with_nan)
                assert has if f is found else not has or f.bits >= found.bits, (a, b, f)


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ("f16 bf16", "f32"), ("bf16 i16", "f32"), ("bf16 i32", "f64"), ("f16 e4m3fn", "f16"), ("bf16 e5m2", "bf16"),
        ("e4m3fn e5m2", "f16"), ("e4m3fn e8m0", "bf16"), ("f16 e8m0", "f32"), ("i4 u4", "i8"), ("i4 u8", "i16"),
        ("i4 u32", "i64"), ("i4 u64", "f64"), ("i2 u2", "i4"), ("e2m3 i4", "e4m3fn"), ("f16 bf16 f64", "f64"),
        ("f16 bf16 c64", "c64"), ("f32", "f32"), ("bf16", "bf16"), ("f32 f64", "f64"), ("i8 u8", "i16"),
        ("bf16 f32", "f32"), ("bf16 i8", "bf16"), ("i8 e2m1", "e2m1"), ("bf16 i64 c128", "c128"),
        ("f16 bf16 i64", "f64"), ("e4m3fn i4 u8", "f16"),
    ],
)
def test_promotion_by_hand(operands, expected):
    for order in itertools.permutations(operands.split()):
        assert promote(*(FORMATS[name] for name in order)).name == expected
        assert promote(*order).name == expected


def test_promotion_does_not_depend_on_the_order():
    for three in itertools.combinations(FORMATS.values(), 3):
        assert len({promote(*order) for order in itertools.permutations(three)}) == 1, three


def test_promotion_refuses_in_sentences():
    with pytest.raises(ValueError, match="at least 1 format"):
        promote()
    with pytest.raises(ValueError, match=r"format must be one of f64, .* not 'f9'"):
        promote("f32", "f9")


def test_holding_is_what_the_values_say():
    values = {f: set(decoded(f)[~np.isnan(decoded(f))].tolist()) for f in SMALL if not isinstance(f, Bool)}
    nan = {f for f in values if np.isnan(decoded(f)).any()}
    for wide, narrow in itertools.product(values, repeat=2):
        inside = values[narrow] <= values[wide] and (wide in nan or narrow not in nan)
        assert holds(wide, narrow) == inside, (wide, narrow)


# ---- what is multiplied


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("f32", "f32"), ("f16 bf16", "f32"), ("e2m1", "f32"), ("f32 f64", "f64"), ("bool", "i32"), ("i8 u32 i64", "i64"),
     ("i4 u16", "i32"), ("u64", "i64"), ("i64 u64", "i64"), ("i64 u64 f64", "f64"),
     ("i32 f32", "f64"), ("c64 f32", "c64"),
     ("c64 i64", "c128")],
)
def test_in_what_products_are_added_up(given, wanted):
    assert formats.accumulator(*given.split()).name == wanted


def test_matmul_refuses_dtypes_that_are_no_formats():
    x = np.ones((2, 2))
    with pytest.raises(TypeError, match="a is float8_e3m4, b is float64, which tilewright does not multiply"):
        matmul(x.astype(ml_dtypes.float8_e3m4), x)


# ---- the command


def call(*given: str) -> str:
    return printed("formats", *given)


def test_the_command_prints_the_table(monkeypatch):
    for width in ("200", "80"):
        monkeypatch.setattr("rich.console.Console.is_terminal", True)
        monkeypatch.setenv("COLUMNS", width)
        said = re.sub("\x1b\\[[0-9;]*m", "", call())
        assert max(map(len, said.splitlines())) <= max(int(width), 100)
        assert "…" not in said.replace("0…0", "").replace("1…1", "")
        for row in format_table.rows():
            assert [line for line in said.splitlines() if line.split()[:1] == [row[0]]]
            assert all(cell in said for cell in row)
    assert "e5m2fnuz" in said
    assert "matmul takes them all" in said


@pytest.mark.parametrize("f", FORMATS.values(), ids=str)
def test_the_command_shows_a_format(f):
    said = call(f.name)
    assert said.startswith(f"{f.name}\nbits ")
    assert f.numpy_name in said
    assert f.source in " ".join(said.split())  # it may be on two lines
    assert re.search(f"^added up in +{formats.accumulator(f)}$", said, re.MULTILINE)
    assert call(f.name.upper()) == said
    if f.bits <= 4:
        assert len(said.split("values\n")[1].splitlines()) == 2**f.bits


@pytest.mark.parametrize("pattern", ["0xc5", "0XC5", "0b11000101", "0b1_1000_101", "197", "0o305"])
def test_the_command_decodes_a_pattern(pattern):
    said = call("e4m3fnuz", pattern)
    assert said == call("float8_e4m3fnuz", "0xc5")
    assert said == f"{explain('e4m3fnuz', 0xC5)}\n"
    assert said.endswith("= -1.625\n")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["fp8"], "tilewright: NAME must be one of f64, .* not 'fp8'; fp8 may stand for e4m3fn or e4m3fnuz or e5m2"),
        (["longdouble"], "not 'longdouble'; long double has no vector instructions, use f64: x.astype"),
        (["banana"], "c128, not 'banana'$"),
        (["e5m2", "0x100"], "tilewright: PATTERN must be 0 to 0xff for e5m2, which has 8 bits, not 0x100"),
        (["e5m2", "-1"], "tilewright: PATTERN must be 0 to 0xff for e5m2, which has 8 bits, not -1"),
        (["e5m2", "banana"], r"tilewright: PATTERN must be a whole number: hexadecimal \(0xc5\).*, not 'banana'"),
        (["e5m2", "1.5"], "not '1.5'"),
    ],
)
def test_the_command_refuses_in_one_line(given, sentence):
    assert re.search(sentence, refused("formats", *given))
