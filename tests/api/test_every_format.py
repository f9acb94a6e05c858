"""matmul of every number format, and of every two of them: against Python's integers, or float64."""

from __future__ import annotations

import itertools
import warnings

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.numbers import modulo, numbers
from tilewright import formats, simulator
from tilewright.formats import FORMATS, Bool, Complex, Integer
from tilewright.kernels.cpu.packing import emit_pack
from tilewright.plans.lowering import word
from tilewright.runtime import run
from tilewright.runtime.cpu import engine

pytestmark = pytest.mark.sampled

RNG = np.random.default_rng(4)
INTEGERS = [f for f in FORMATS.values() if isinstance(f, Integer)]
FLOATS = [f for f in FORMATS.values() if not isinstance(f, (Integer, Bool, Complex))]


def check(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    found = formats.get(c.dtype)
    if isinstance(found, Integer):
        wide = np.frompyfunc(int, 1, 1)
        np.testing.assert_array_equal(modulo(c, found.bits), modulo(wide(a) @ wide(b), found.bits))
    elif isinstance(found, Bool):
        np.testing.assert_array_equal(c, a @ b)
    elif isinstance(found, Complex):
        np.testing.assert_array_equal(c, (a.astype(np.complex128) @ b.astype(np.complex128)).astype(c.dtype))
    else:
        sums = formats.accumulator(a.dtype, b.dtype).dtype
        with np.errstate(all="ignore"):
            wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(sums).astype(c.dtype)
        if sums == np.float64 or isinstance(formats.get(a.dtype), Integer) or isinstance(formats.get(b.dtype), Integer):
            np.testing.assert_allclose(c.astype(np.float64), wanted.astype(np.float64), rtol=2**-20)
        else:
            np.testing.assert_array_equal(c.astype(np.float64), wanted.astype(np.float64))


def numpys(a: np.ndarray, b: np.ndarray) -> np.dtype:
    """The dtype of NumPy's product, from as few elements as there can be."""
    return np.matmul(a[:1, :1], b[:1, :1]).dtype


@pytest.mark.parametrize("f", FORMATS.values(), ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (33, 20, 130), (2, 0, 3), (70, 90, 65)], ids=str)
def test_a_format_by_itself(f, shape):
    m, k, n = shape
    a, b = numbers(f, m, k), numbers(f, k, n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c = tw.matmul(a, b)
    assert (c.shape, c.dtype) == ((m, n), numpys(a, b))
    check(a, b, c)
    if c.dtype != f.dtype:
        check(a, b, tw.matmul(a, b, out_dtype=f))


@pytest.mark.parametrize("f", FORMATS.values(), ids=str)
def test_any_two_formats(f):
    for g in FORMATS.values():
        a, b = numbers(f, 6, 9), numbers(g, 9, 5)
        wanted = numpys(a, b)
        c = tw.matmul(a, b)
        assert c.dtype == wanted
        if not isinstance(formats.get(wanted), (Integer, Bool)) and isinstance(f, Integer) | isinstance(g, Integer):
            continue    # the integers may be too large for exact sums: the next test has smaller ones
        check(a, b, c)


@pytest.mark.parametrize(("f", "g"), [*itertools.product(("i4", "u8", "i16"), ("f16", "bf16", "e4m3fn", "f64"))])
def test_integers_with_floats(f, g):
    a, b = RNG.integers(0, 7, (6, 9)).astype(FORMATS[f].dtype), numbers(FORMATS[g], 9, 5)
    for x, y in ((a, b), (b.T, a.T)):
        c = tw.matmul(x, y, out_dtype="f64")
        np.testing.assert_array_equal(c, x.astype(np.float64) @ y.astype(np.float64))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("f", INTEGERS, ids=str)
def test_integers_in_every_layout_and_stride(f):
    a, b = numbers(f, 40, 37), numbers(f, 37, 50)
    for x in (a, a[::-1], np.asfortranarray(a), a[:, ::-1], a[::2]):
        for y in (b, np.asfortranarray(b), b[:, ::3]):
            check(x, y, tw.matmul(x, y))
    out = np.zeros((50, 40), f.dtype).T
    assert tw.matmul(a, b, out) is out
    check(a, b, out)
    stack = numbers(f, 3, 37, 4)
    c = tw.matmul(a, stack)
    for one, product in zip(stack, c):
        check(a, one, product)
    vector = numbers(f, 37)
    check(a, vector[:, None], tw.matmul(a, vector)[:, None])


@pytest.mark.parametrize(("f", "out"), [("i8", "i32"), ("u8", "i32"), ("i8", "i64"), ("i4", "i16"), ("u16", "u64")])
def test_wide_results_of_narrow_integers_are_exact(f, out):
    a, b = numbers(FORMATS[f], 20, 300), numbers(FORMATS[f], 300, 30)
    wide = np.frompyfunc(int, 1, 1)
    c = tw.matmul(a, b, out_dtype=out)
    assert c.dtype == FORMATS[out].dtype
    np.testing.assert_array_equal(c, (wide(a) @ wide(b)).astype(c.dtype))


@pytest.mark.parametrize("f", INTEGERS, ids=str)
def test_alpha_beta_and_c_of_integers(f):
    a, b, c = numbers(f, 20, 30), numbers(f, 30, 40), numbers(f, 20, 40)
    wide = np.frompyfunc(int, 1, 1)
    found = tw.matmul(a, b, alpha=-3, beta=2, c=c)
    np.testing.assert_array_equal(modulo(found, f.bits), modulo(-3 * (wide(a) @ wide(b)) + 2 * wide(c), f.bits))
    with pytest.raises(TypeError, match=r"alpha must be a whole number where integers are multiplied, not 0\.5"):
        tw.matmul(a, b, alpha=0.5)
    out = c.copy()
    tw.gemm(2, a, b, -1, out)
    np.testing.assert_array_equal(modulo(out, f.bits), modulo(2 * (wide(a) @ wide(b)) - wide(c), f.bits))


def test_alpha_of_many_digits():
    alpha = 2**62 + 1
    a, b = numbers(FORMATS["i64"], 9, 9), numbers(FORMATS["i64"], 9, 9)
    wide = np.frompyfunc(int, 1, 1)
    np.testing.assert_array_equal(modulo(tw.matmul(a, b, alpha=alpha), 64), modulo(alpha * (wide(a) @ wide(b)), 64))


@pytest.mark.parametrize("f", ["f16", "bf16", "e4m3fn", "e5m2", "e2m1"])
def test_narrow_floats_are_added_up_in_f32_and_rounded_once(f):
    dtype = FORMATS[f].dtype
    a, b = (RNG.standard_normal(shape).astype(dtype) for shape in ((50, 700), (700, 40)))
    wide = a.astype(np.float64) @ b.astype(np.float64)
    sums = tw.matmul(a, b, out_dtype="f32").astype(np.float64)
    bound = 700 * 2.0**-24 * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)))
    assert (np.abs(sums - wide) <= bound).all()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(tw.matmul(a, b, out_dtype=f).astype(np.float32),
                                      sums.astype(np.float32).astype(dtype))


def test_nan_and_inf_of_narrow_floats():
    for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
        a = np.array([[np.inf, 1], [np.nan, 1], [0, 1]], dtype)
        c = tw.matmul(a, np.array([[1], [1]], dtype)).astype(np.float32)
        np.testing.assert_array_equal(c, [[np.inf], [np.nan], [1]])


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex(dtype):
    a, b, c = (numbers(formats.get(dtype), *shape) for shape in ((4, 20, 30), (30, 25), (4, 20, 25)))
    np.testing.assert_array_equal(tw.matmul(a, b), a @ b)
    np.testing.assert_array_equal(tw.matmul(a, b, alpha=2, beta=-3, c=c), 2 * (a @ b) - 3 * c)
    np.testing.assert_array_equal(tw.matmul(a.conj(), b), a.conj() @ b)
    np.testing.assert_array_equal(tw.matmul(a, b.real), a @ b.real)
    out = np.zeros((4, 20, 25), dtype)
    assert tw.matmul(a, b, out) is out
    np.testing.assert_array_equal(out, a @ b)


def test_what_is_refused():
    half, brain = np.ones((2, 2), np.float16), np.ones((2, 2), ml_dtypes.bfloat16)
    with pytest.raises(TypeError, match="b is float16, c is bfloat16, which have no common dtype in NumPy"):
        tw.matmul(half, half, c=brain, beta=1)
    assert tw.matmul(half, half, c=brain, beta=1, out_dtype="f32").dtype == np.float32
    with pytest.raises(TypeError, match="out_dtype must not be int32, to which products of float16 cannot be cast"):
        tw.matmul(half, half, out_dtype="i32")
    with pytest.raises(TypeError, match="out_dtype must not be float32, to which products of complex64 cannot be cast"):
        tw.matmul(half.astype(np.complex64), half, out_dtype="f32")


# ---- converted while it is packed


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("f", "g", "into", "isa"), [
    (f, g, into, isa) for f, g, into in (
        ("f16", "f16", "f32"), ("bf16", "bf16", "f32"), ("bf16", "f32", "f32"), ("f32", "f16", "f32"),
        ("i8", "f16", "f32"), ("u16", "bf16", "f32"), ("e4m3fn", "e5m2", "f32"), ("e4m3fnuz", "bf16", "f32"),
        ("i8", "i8", "i32"), ("u8", "i8", "i32"), ("i16", "u16", "i32"), ("i32", "u8", "i32"))
    for isa in ("x86-avx2", "x86-avx512", "native")     # without extensions only where some of them would multiply
    if isa != "x86-avx512" or word(into, (f, g), tw.detect())])
def test_packing_converts(f, g, into, isa):
    """Every pattern of the narrow format, by rows, by columns and with gaps, on both instruction sets."""
    target = tw.detect() if isa == "native" else tw.target(isa)
    if target.missing:
        pytest.skip(f"this CPU lacks {', '.join(target.missing)}")
    dtype, f, g = FORMATS[into].dtype, FORMATS[f], FORMATS[g]
    for m, k, n in ((64, 64, 64), (101, 131, 97), (70, 300, 129)):
        a, b = (numbers(each, *shape) for each, shape in ((f, (m, k)), (g, (k, n))))
        wide = a.astype(np.float64) @ b.astype(np.float64) if into == "f32" else a.astype(dtype) @ b.astype(dtype)
        for x in (a, np.asfortranarray(a), np.repeat(a, 2, 1)[:, ::2]):
            for y in (b, np.asfortranarray(b), b[::-1][::-1]):
                for c in (np.full((m, n), 7, dtype), np.full((n, m), 7, dtype).T):
                    engine.gemm(x, y, c, target=target, threads=1 + (m > 64))
                    np.testing.assert_array_equal(c, wide.astype(dtype))


def test_one_driver_serves_all_formats_that_are_loaded_alike():
    """What packing and micro-kernels do not share is compiled once, not for every pair of formats."""
    def names(f, g):
        kernel = tw.compile(tw.Gemm(70, 80, 90, f, g, "f32"), "x86-avx2")
        return {function.name for function in kernel.functions if function.name.startswith("gemm_")}

    assert names("e4m3fn", "u8") == names("i8", "e5m2") == {"gemm_f32_6x16_i8_i8"}
    assert names("bf16", "e4m3fn") == names("bf16", "i8") == {"gemm_f32_6x16_i16_i8"}
    assert names("f16", "f32") == {"gemm_f32_6x16_f16_f32"}


@pytest.mark.parametrize("f", ["f16", "bf16"])
def test_every_number_is_converted_exactly_in_packing(f):
    """Subnormal numbers, infinities and NaN too: each times one. Where pairs of bf16 are multiplied, subnormal ones are
    zeros (docs/formats.md); beside f32 they are not."""
    dtype = FORMATS[f].dtype
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(256, 256)
    one = np.eye(256)
    with np.errstate(all="ignore"):
        finite = np.where(np.isfinite(every.astype(np.float32)), every, np.zeros_like(every))
        flushed = np.where(np.abs(finite.astype(np.float32)) < 2.0**-126, 0, finite.astype(np.float32))
        for units in (dtype, np.float32):
            pairs = f == "bf16" and units == dtype and tw.detect().has("avx512bf16")
            wanted = flushed if pairs else finite.astype(np.float32)
            for x in (finite, np.asfortranarray(finite)):
                np.testing.assert_array_equal(tw.matmul(x, one.astype(units), out_dtype="f32"), wanted)
                np.testing.assert_array_equal(tw.matmul(one.astype(units), x, out_dtype="f32"), wanted)
        one = one.astype(dtype)
        special = tw.matmul(every[255:] + np.zeros((64, 1), dtype), one, out_dtype="f32")
        assert np.isnan(special).all()


@pytest.mark.parametrize("f", ["e5m2", "e4m3fn", "e4m3fnuz", "e5m2fnuz"])
def test_every_fp8_number_is_converted_exactly_in_packing(f):
    dtype = FORMATS[f].dtype
    every = np.arange(256, dtype=np.uint8).view(dtype)
    finite = np.resize(every[np.isfinite(every.astype(np.float32))], (70, 128))
    one = np.eye(128).astype(dtype)
    for x in (finite, np.asfortranarray(finite)):
        np.testing.assert_array_equal(tw.matmul(x, one, out_dtype="f32"), finite.astype(np.float32))
        np.testing.assert_array_equal(tw.matmul(one, x.T, out_dtype="f32"), finite.T.astype(np.float32))
    for special in every[~np.isfinite(every.astype(np.float32))]:
        x = np.ones((80, 80), dtype)
        x[3, 5] = special
        got, wanted = tw.matmul(x, x, out_dtype="f32"), x.astype(np.float64) @ x.astype(np.float64)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", [">f2", ">i2", ">u2", ">f4", ">i8"])
@pytest.mark.parametrize("n", [8, 80])
def test_the_other_order_of_bytes(dtype, n):
    a = RNG.integers(0, 9, (n, n)).astype(dtype)
    c = tw.matmul(a, a)
    assert c.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(c, a.astype(np.int64) @ a.astype(np.int64))


def test_stacks_are_converted_in_packing():
    a, b = numbers(FORMATS["bf16"], 3, 70, 80), numbers(FORMATS["i8"], 80, 95)
    wide = a.astype(np.float32) @ (b.astype(np.float32))
    np.testing.assert_array_equal(tw.matmul(a, b, out_dtype="f32"), wide)


@pytest.mark.parametrize("f", ["f16", "bf16", "e4m3fn", "e5m2", "i8", "u16"])
@pytest.mark.parametrize(
    "lead", [((3,), ()), ((), (3,)), ((2, 3), ()), ((2, 1), (3,)), ((2, 1, 2), (2, 3, 1))], ids=str
)
def test_broadcast_stacks_are_converted_in_packing(f, lead):
    a, b = numbers(FORMATS[f], *lead[0], 75, 80), numbers(FORMATS[f], *lead[1], 80, 76)
    check(a, b, tw.matmul(a, b))


def test_packing_that_converts_both_readings():
    """What the simulator makes of the recorded program is what the machine does."""
    for source in ("f16", "bf16", "i8", "u8", "i16", "u16", "e5m2", "e4m3fn", "e4m3fnuz", "e5m2fnuz"):
        for kind, strides in (("across", (1, 40)), ("along", (50, 1)), ("any", (50, 2))):
            raw = numbers(FORMATS[source], 5000)
            seen = raw if source == "f16" else raw.view(np.int8 if raw.itemsize == 1 else np.int16)
            function = emit_pack(tw.detect(), "f32", 20, kind, source)
            machine, meaning = (np.full(20 * 40 + 64, -1, np.float32) for _ in range(2))
            run.run(function, 37, 20, 17, seen.ctypes.data, *strides, machine.ctypes.data)
            simulator.run(function, 37, 20, 17, seen, *strides, meaning)
            lines = raw[np.arange(37)[:, None] * strides[1] + np.arange(17) * strides[0]]
            for found in (machine, meaning):
                np.testing.assert_array_equal(found[: 37 * 20].reshape(37, 20)[:, :17], lines.astype(np.float32))
