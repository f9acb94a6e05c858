"""matmul of every number format, and of every two of them: against Python's integers, or float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.numbers import modulo, numbers
from tilewright import simulator
from tilewright.formats import FORMATS
from tilewright.kernels.cpu.packing import emit_pack
from tilewright.plans.lowering import word
from tilewright.runtime import run
from tilewright.runtime.cpu import engine

pytestmark = pytest.mark.sampled


def test_alpha_of_many_digits():
    alpha = 2**62 + 1
    a, b = numbers(FORMATS["i64"], 9, 9), numbers(FORMATS["i64"], 9, 9)
    wide = np.frompyfunc(int, 1, 1)
    np.testing.assert_array_equal(modulo(tw.matmul(a, b, alpha=alpha), 64), modulo(alpha * (wide(a) @ wide(b)), 64))


def test_nan_and_inf_of_narrow_floats():
    for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
        a = np.array([[np.inf, 1], [np.nan, 1], [0, 1]], dtype)
        c = tw.matmul(a, np.array([[1], [1]], dtype)).astype(np.float32)
        np.testing.assert_array_equal(c, [[np.inf], [np.nan], [1]])


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
