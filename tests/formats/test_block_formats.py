"""Block-scaled formats: OCP's rules for quantising, every number that elements and scales make, and the packed bytes.

Blocks are compared with gfloat, which has its own decoder and its own quantisation, with ml_dtypes, and with the
specification's words worked out in fractions.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gfloat import block as gblock, decode_float, formats as gformats

import tilewright as tw
from tests.helpers.command_line import call
from tilewright import formats
from tilewright.formats import BLOCK_FORMATS, Quantized, block_format, dequantize, quantize

ALL = [f for f in BLOCK_FORMATS.values() if f.mx]
GFLOAT = {
    "mxfp8": gformats.format_info_mxfp8_e4m3,
    "mxfp8_e5m2": gformats.format_info_mxfp8_e5m2,
    "mxfp6": gformats.format_info_mxfp6_e2m3,
    "mxfp6_e3m2": gformats.format_info_mxfp6_e3m2,
    "mxfp4": gformats.format_info_mxfp4_e2m1,
}
# The table of the specification, section 5: exponent of the largest element, that element, bytes of a block's elements
SPECIFIED = {
    "mxfp8": (8, 448, 32),
    "mxfp8_e5m2": (15, 57344, 32),
    "mxfp6": (2, 7.5, 24),
    "mxfp6_e3m2": (4, 28, 24),
    "mxfp4": (2, 6, 16),
}

each_format = pytest.mark.parametrize("f", ALL, ids=str)


def data(*shape: int, spread: float = 3.0, seed: int = 1) -> Any:
    """Numbers of many sizes, some zeros."""
    r = np.random.default_rng(seed)
    x = r.standard_normal(shape) * np.exp2(spread * r.standard_normal(shape))
    return np.where(r.random(shape) < 0.05, 0, x).astype(np.float32)


def patterns(q: Quantized) -> list[int]:
    """The elements of one row, read out of the packed bytes bit by bit."""
    stream = int.from_bytes(q.elements.tobytes(), "little")
    bits = q.format.element.bits
    return [stream >> (bits * i) & (2**bits - 1) for i in range(q.scales.size * q.format.block)]


def by_the_book(block: Any, f: Any) -> tuple[int, list[float]]:
    """A scale's exponent and the elements of finite numbers, in fractions: the nearest element, the even one of two."""
    numbers = [Fraction(v.item() if isinstance(v, np.integer) else float(v)) for v in block]
    top = max(abs(v) for v in numbers)
    exponent = -127
    if top:
        floor = math.floor(math.log2(top.numerator) - math.log2(top.denominator))
        floor += (Fraction(2) ** (floor + 1) <= top) - (Fraction(2) ** floor > top)
        exponent = min(max(floor - f.emax, -127), 127)
    finite = {p: f.element.decode(p) for p in range(2 ** (f.element.bits - 1))}
    finite = {p: Fraction(v) for p, v in finite.items() if math.isfinite(v)}
    found = []
    for v in numbers:
        size = abs(v) / Fraction(2) ** exponent
        p = min(finite, key=lambda p: (abs(finite[p] - size), p % 2))
        found.append(math.copysign(float(finite[p]), float(v)))
    return exponent, found


@each_format
def test_the_specification_s_table(f):
    assert (f.emax, f.element.largest, f.block_bytes) == SPECIFIED[f.name]
    assert f.block == GFLOAT[f.name].k == 32
    assert f.bits == f.element.bits + 0.25
    assert f.scale.name == "e8m0"
    assert "MX" in f.source


@each_format
def test_blocks_are_gfloat_s(f):
    x = data(6, 32)
    x[0] = 0
    q = quantize(x, f.name)
    for row in range(6):
        scale = gblock.compute_scale_amax(f.emax, x[row])
        codes = list(gblock.encode_block(GFLOAT[f.name], scale, x[row] / scale))
        alone = quantize(x[row], f)
        assert [int(q.scales[row, 0]), *patterns(alone)] == codes
        assert alone.elements.tobytes() == q.elements[row].tobytes()
        decoded = np.fromiter(gblock.decode_block(GFLOAT[f.name], codes), np.float64)
        np.testing.assert_array_equal(dequantize(q, "f64")[row], decoded)


@each_format
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_blocks_are_the_book_s(f, dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    ties = (np.arange(32) + 0.5) * f.element.smallest_subnormal * 2.0 ** (np.arange(32) // 4)  # between elements
    ties[0] = f.element.largest
    rows = [data(32, seed=seed) for seed in range(4)] + [ties, -ties, data(32, spread=12), data(32) * 2.0**-130]
    x = np.clip(np.stack(rows), -65504, 65504).astype(dtype)
    q = quantize(x, f)
    elements = q.unpacked().astype(np.float64)
    for row in range(len(rows)):
        exponent, wanted = by_the_book(x[row], f)
        assert int(q.scales[row, 0]) - 127 == exponent
        np.testing.assert_array_equal(elements[row], wanted)


@each_format
def test_numbers_are_rounded_once_from_f64(f):
    """A little beyond the middle of two elements, by less than f32 sees; and integers of 64 bits likewise."""
    middle = f.element.smallest_normal * (1 + f.element.eps / 2)
    x = np.zeros(32)
    x[:3] = f.element.largest, middle * (1 + 2.0**-40), middle
    above, even = dequantize(quantize(x, f), "f64")[1:3]
    assert above == f.element.smallest_normal * (1 + f.element.eps)
    assert even == f.element.smallest_normal
    whole = np.array([2**62, 2**58 + 2 ** (57 - f.element.mantissa) + 1, -(2**62) - 1], np.int64)
    exponent, wanted = by_the_book(whole, f)
    np.testing.assert_array_equal(dequantize(quantize(whole, f), "f64"), np.ldexp(wanted, exponent))


# ---- the specification's corner cases


@each_format
def test_what_lies_above_the_largest_element_saturates(f):
    """[largest, 2^(emax+1)) has the same scale as the largest, and no elements."""
    top = np.float32(f.element.largest)
    below = np.nextafter(np.float32(2.0 ** (f.emax + 1)), np.float32(0))
    x = np.zeros((3, 32), np.float32)
    x[0, :2], x[1, :2], x[2, :2] = (top, -top), (below, -below), (2.0 ** (f.emax + 1), -below)
    q = quantize(x, f)
    assert q.scales[:, 0].tolist() == [127, 127, 128]
    np.testing.assert_array_equal(dequantize(q)[:2, :2], [[top, -top]] * 2)
    assert dequantize(q)[2, 0] == 2.0 ** (f.emax + 1)


@each_format
@pytest.mark.parametrize("power", [-149, -140, -128, -127, -126, 0, 1, 126, 127])
def test_powers_of_two_take_their_scale(f, power):
    x = np.zeros(32, np.float32)
    x[5] = 2.0**power
    q = quantize(x, f)
    assert int(q.scales[0]) - 127 == max(power - f.emax, -127)
    smallest = f.element.smallest_subnormal * 2.0**-127
    wanted = 2.0**power if 2.0**power >= smallest else 0 if 2.0**power <= smallest / 2 else smallest
    assert dequantize(q, "f64")[5] == wanted
    assert np.count_nonzero(q.unpacked()) == (wanted > 0)


@each_format
def test_scales_are_cut_to_what_e8m0_has(f):
    q = quantize(np.array([[2.0**300, -1e300, 2.0**127], [2.0**-300, 2.0**-127, -(2.0**-126)]]), f)
    assert q.scales.tolist() == [[254], [0]]
    top = f.element.largest * 2.0**127
    np.testing.assert_array_equal(dequantize(q, "f64")[0], [top, -top, 2.0**127])
    np.testing.assert_array_equal(dequantize(q, "f64")[1], [0, 2.0**-127, -(2.0**-126)])


@each_format
def test_a_block_of_zeros(f):
    x = np.array([0.0, -0.0, 0.0], np.float32)
    q = quantize(x, f)
    assert q.scales.tolist() == [0]
    np.testing.assert_array_equal(np.signbit(dequantize(q)), np.signbit(x))
    assert not dequantize(q).any()


@each_format
def test_nan_and_inf_are_never_lost(f):
    x = np.tile(data(1, 32, spread=1), (4, 1))
    x[0, 3], x[1, 4], x[2, 5] = np.nan, np.inf, -np.inf
    q = quantize(x, f)
    plain = quantize(np.where(np.isfinite(x), x, 0), f)
    got, finite = dequantize(q), dequantize(plain)
    np.testing.assert_array_equal(got[3], finite[3])
    for row, column in ((0, 3), (1, 4), (2, 5)):
        if f.element.nans:
            inf = f.element.infs and row
            assert got[row, column] == x[row, column] if inf else np.isnan(got[row, column])
            np.testing.assert_array_equal(np.delete(got[row], column), np.delete(finite[row], column))
            assert q.scales[row, 0] == plain.scales[row, 0]
        else:
            assert q.scales[row, 0] == 255
            assert np.isnan(got[row]).all()


@each_format
def test_a_scale_of_nan_makes_nan_of_its_block(f):
    q = quantize(data(2, 70), f)
    scales = q.scales.copy()
    scales[1, 1] = 255
    got = dequantize(Quantized(q.elements, scales, q.shape, f))
    assert np.isnan(got[1, 32:64]).all()
    np.testing.assert_array_equal(np.isnan(got).sum(), 32)


# ---- every number that elements and scales make


@each_format
def test_every_element_with_every_scale(f):
    count = 2**f.element.bits
    codes = (np.arange(max(count, 32)) % count).astype(np.uint8)
    element = np.array([decode_float(GFLOAT[f.name].etype, int(c)).fval for c in codes])
    ours = codes.view(f.element.dtype)
    scales = np.arange(256, dtype=np.uint8)
    scale = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    packed = np.tile(formats.pack(ours), (256, 1))
    q = Quantized(packed, np.tile(scales[:, None], (1, codes.size // 32)), (256, codes.size), f)
    with np.errstate(all="ignore"):
        exact = scale[:, None] * element
        single = exact.astype(np.float32)
    np.testing.assert_array_equal(dequantize(q, "f64"), exact)
    np.testing.assert_array_equal(dequantize(q), single)
    differ = ~np.isnan(exact) & (single != exact)
    assert not (differ & (np.abs(exact) < 2.0**128)).any()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(dequantize(q, "f16"), single.astype(np.float16))


@each_format
def test_what_is_quantised_stays(f):
    q = quantize(data(8, 96), f)
    again = quantize(dequantize(q), f)
    np.testing.assert_array_equal(again.elements, q.elements)
    np.testing.assert_array_equal(again.scales, q.scales)


@each_format
def test_the_error_is_bounded(f):
    """By half a step of the elements, or by what saturation cuts off the largest (docs/formats.md)."""
    x = data(200, 64)
    error = np.abs(dequantize(quantize(x, f), "f64") - x).reshape(200, 2, 32)
    amax = np.abs(x).reshape(200, 2, 32).max(-1, keepdims=True)
    cut = 1 - f.element.largest / 2.0 ** (f.emax + 1)
    sizes = np.abs(x).reshape(200, 2, 32)
    step = np.maximum(sizes * f.element.eps / 2, amax * 2.0**-f.emax * f.element.smallest_subnormal / 2)
    assert (error <= np.maximum(step, np.where(sizes > amax / 2, amax * cut, 0))).all()
    assert (error > 0).mean() > 0.5


# ---- nvfp4, which OCP does not have

NVFP4 = BLOCK_FORMATS["nvfp4"]


def test_nvfp4_by_its_words():
    """A scale for all that makes the largest of a block's scales 448; these rounded to e4m3fn; elements to e2m1."""
    x = data(5, 40).astype(np.float64)
    q = quantize(x, "nvfp4")
    assert q.tensor_scale == np.float32(np.abs(x).max() / 6 / 448)
    assert q.elements.shape == (5, 24)
    assert q.scales.shape == (5, 3)
    assert q.scales.view(ml_dtypes.float8_e4m3fn).max() == 448
    elements = q.unpacked().astype(np.float64)
    values = np.array(sorted({NVFP4.element.decode(p) for p in range(16)}))
    for row in range(5):
        for start in (0, 16, 32):
            block = x[row, start : start + 16]
            scale = np.float64(np.abs(block).max() / 6 / q.tensor_scale).astype(ml_dtypes.float8_e4m3fn)
            assert q.scales[row, start // 16] == scale.view(np.uint8)
            sizes = block / (float(scale) * q.tensor_scale)
            nearest = np.abs(values - sizes[:, None]).min(axis=1)
            np.testing.assert_array_equal(np.abs(elements[row, start : start + 16] - sizes), nearest)
    np.testing.assert_array_equal(dequantize(q, "f64"), elements * np.repeat(_scales(q), 16, axis=1)[:, :40])
    single = (elements.astype(np.float32) * np.repeat(_scales(q), 16, axis=1)[:, :40].astype(np.float32))
    np.testing.assert_allclose(dequantize(q), single, rtol=2.0**-23, atol=0)


def _scales(q: Quantized) -> Any:
    return q.scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * q.tensor_scale


def test_nvfp4_at_the_ends():
    nothing = quantize(np.array([0.0, -0.0]), "nvfp4")
    assert nothing.tensor_scale == 1
    np.testing.assert_array_equal(np.signbit(dequantize(nothing)), [False, True])
    x = np.ones((2, 32))
    x[0, 1], x[1, 17] = np.nan, -np.inf
    lost = np.isnan(dequantize(quantize(x, "nvfp4")))
    np.testing.assert_array_equal(lost, np.repeat([[True, False], [False, True]], 16, axis=1))
    x = np.zeros(32)
    x[0], x[16:] = 1.0, 1e-7  # a block whose scale would be less than the smallest
    np.testing.assert_array_equal(dequantize(quantize(x, "nvfp4"), "f64")[16:], 0)
    for size in (1e-300, 1e300):
        q = quantize(np.full(3, size), "nvfp4")
        limits = np.finfo(np.float32)
        assert q.tensor_scale == (limits.tiny if size < 1 else limits.max)
        assert np.isfinite(dequantize(q, "f64")).all()


def test_nvfp4_s_arrays():
    q = quantize(data(40, 3), "nvfp4", axis=0)
    again = Quantized.of(q.unpacked(), q.scales.view(ml_dtypes.float8_e4m3fn).T, 0, q.tensor_scale)
    assert again.format is NVFP4
    np.testing.assert_array_equal(dequantize(again), dequantize(q))
    with pytest.raises(ValueError, match=r"tensor_scale must be 1 in mxfp4, which has no scale for all numbers, not 2"):
        Quantized(np.zeros(16, np.uint8), np.zeros(1, np.uint8), (3,), block_format("mxfp4"), tensor_scale=2)
    with pytest.raises(TypeError, match=r"scales of e2m1 must be of float8_e8m0fnu or float8_e4m3fn, or uint8"):
        Quantized.of(q.unpacked(), np.ones((3, 3), np.float32), 0)


# ---- the bytes


def test_two_numbers_of_4_bits_share_a_byte_the_first_in_the_low_half():
    q = quantize([0.5, -6, 1.5, 4], "mxfp4")
    assert q.scales.tolist() == [127]
    assert q.elements.tolist() == [0b1111_0001, 0b0110_0011] + [0] * 14


def test_four_numbers_of_6_bits_fill_three_bytes():
    q = quantize([0.125, -7.5, 1, -0.25], "mxfp6")  # patterns 000001 111111 001000 100010
    assert q.elements.tolist()[:3] == [0b11_000001, 0b1000_1111, 0b100010_00]
    assert q.elements.size == 24


@each_format
@pytest.mark.parametrize(("shape", "axis"), [((70,), 0), ((5, 70), -1), ((70, 5), 0), ((2, 33, 3), 1), ((3, 4, 32), 2)])
def test_any_axis_and_tails(f, shape, axis):
    """The blocked axis comes last in the arrays; what is beyond the end is zero and not part of the result."""
    x = data(*shape)
    q = quantize(x, f, axis)
    others = tuple(n for i, n in enumerate(shape) if i != axis % len(shape))
    blocks = -(-shape[axis] // 32)
    assert q.shape == shape
    assert q.axis == axis % len(shape) - len(shape)
    assert q.elements.shape == (*others, blocks * f.block_bytes)
    assert q.scales.shape == (*others, blocks)
    assert q.elements.flags.c_contiguous
    assert q.scales.flags.c_contiguous
    assert q.nbytes == q.elements.size + q.scales.size
    assert str(f) in repr(q)
    last = quantize(np.moveaxis(x, axis, -1), f)
    np.testing.assert_array_equal(last.elements, q.elements)
    np.testing.assert_array_equal(last.scales, q.scales)
    np.testing.assert_array_equal(np.moveaxis(dequantize(last), -1, axis), dequantize(q))
    assert dequantize(q).shape == q.unpacked().shape == shape
    padded = formats.unpack(q.elements, f.element)
    assert padded.shape[-1] == 32 * blocks
    assert not padded[..., shape[axis] :].astype(np.float32).any()
    for index in np.ndindex(others):
        row = np.moveaxis(x, axis, -1)[index]
        np.testing.assert_array_equal(quantize(row, f).elements, q.elements[index])


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 40), (0, 0)])
def test_nothing(shape):
    q = quantize(np.zeros(shape), "mxfp6")
    assert dequantize(q).shape == shape
    assert q.elements.shape == (*shape[:-1], 24 * (-(-shape[-1] // 32)))


def test_other_numbers_than_floats():
    for x in (np.arange(-40, 40, dtype=np.int8), np.arange(80, dtype=np.uint64), np.arange(80) % 3 == 0):
        q = quantize(x, "mxfp8")
        np.testing.assert_array_equal(q.elements, quantize(x.astype(np.float64), "mxfp8").elements)
    strided = data(7, 64)[::2, ::-1]
    np.testing.assert_array_equal(quantize(strided, "mxfp4").elements, quantize(strided.copy(), "mxfp4").elements)


# ---- names and refusals


@pytest.mark.parametrize(("short", "long"), [("mxfp8", "mxfp8_e4m3"), ("mxfp6", "mxfp6_e2m3"), ("mxfp4", "mxfp4_e2m1")])
def test_names(short, long):
    assert block_format(short) is block_format(long) is block_format(block_format(short))
    assert tw.quantize is quantize
    assert tw.dequantize is dequantize
    assert tw.Quantized is Quantized


def test_refusals():
    with pytest.raises(ValueError, match=r"format must be one of mxfp8, .*nvfp4, mxfp8_e4m3.*, not 'fp4'"):
        quantize([1.0], "fp4")
    with pytest.raises(ValueError, match=r"format must be one of .*, not 4"):
        quantize([1.0], 4)
    with pytest.raises(ValueError, match="x must have at least 1 axis"):
        quantize(1.0, "mxfp4")
    with pytest.raises(ValueError, match="axis must be -2 to 1 for an array of 2 axes, not 2"):
        quantize([[1.0]], "mxfp4", axis=2)
    with pytest.raises(TypeError, match=r"x is c128; quantize x.real"):
        quantize([1j], "mxfp4")
    with pytest.raises(TypeError, match="x must hold one of"):
        quantize(["a"], "mxfp4")
    with pytest.raises(TypeError, match=r"q must be a Quantized or a Scaled, .* not ndarray"):
        dequantize(np.zeros(3))
    with pytest.raises(ValueError, match="dtype must be a floating-point format, not i8"):
        dequantize(quantize([1.0], "mxfp4"), "i8")


def test_what_a_quantized_array_is_made_of():
    q = quantize(data(4, 64), "mxfp6")
    again = Quantized(q.elements, q.scales, [4, 64], "mxfp6", axis=1)
    assert again.format is q.format
    assert again.shape == (4, 64)
    assert again.axis == -1
    assert again.ndim == 2
    with pytest.raises(ValueError, match=r"elements of mxfp4 \(4, 64\) along axis -1 must have the shape \(4, 32\)"):
        Quantized(q.elements, q.scales, (4, 64), "mxfp4")
    with pytest.raises(ValueError, match=r"scales of mxfp6 .* must have the shape \(4, 2\), not \(4, 1\)"):
        Quantized(q.elements, q.scales[:, :1], (4, 64), "mxfp6")
    with pytest.raises(TypeError, match="scales must be an array of uint8, not an array of float32"):
        Quantized(q.elements, q.scales.astype(np.float32), (4, 64), "mxfp6")
    with pytest.raises(TypeError, match="elements must be an array of uint8, not list"):
        Quantized([[0]], q.scales, (4, 64), "mxfp6")
    with pytest.raises(AttributeError):
        q.axis = 0


# ---- the command


def test_the_command():
    shown = call("formats", "MXFP6").output
    for part in ("mxfp6\n", "e2m3, of which 32 share a scale", "e8m0", "6.25 a number", "7.5 = 2^2", "32 in 24 B"):
        assert part in shown
    assert "f32, one for the whole array" in call("formats", "nvfp4").output
    assert "NAME must be one of mxfp8" in call("formats", "mxfp5").output
    assert "PATTERN must be left out" in call("formats", "mxfp4", 3).output
