"""Products of block-scaled operands: exact where they can be, within the bound elsewhere, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gpu_kernels import emit_scaled_mfma_gemm
from tilewright import formats, simulator
from tilewright.api import scaled
from tilewright.formats import BLOCK_FORMATS, Quantized, dequantize, quantize
from tilewright.rules.call import Call

ALL = list(BLOCK_FORMATS.values())
NAMES = list(BLOCK_FORMATS)


def whole(f: Any, shape: tuple[int, ...], axis: int = -1, seed: int = 1) -> Quantized:
    """Small whole numbers in blocks of scales 1, 2 and 4, so that all sums are exact."""
    r, found = np.random.default_rng(seed), formats.block_format(f)
    elements = r.integers(-3, 4, shape).astype(found.element.dtype)
    blocks = list(shape)
    blocks[axis] = found.blocks(shape[axis])
    scales = 2.0 ** r.integers(0, 3, blocks)
    return Quantized.of(elements, scales.astype(found.scale.dtype), axis)


def exact(a: Any, b: Any) -> Any:
    return dequantize(a, "f64") @ dequantize(b, "f64")


def test_the_scale_of_an_array_is_a_factor_of_alpha():
    r = np.random.default_rng(5)
    a, b = quantize(r.standard_normal((66, 70)), "nvfp4"), quantize(100 * r.standard_normal((70, 65)), "nvfp4", 0)
    one = (Quantized(q.elements, q.scales, q.shape, q.format, q.axis) for q in (a, b))
    factor = 3 * a.tensor_scale * b.tensor_scale
    assert a.tensor_scale != 1 != b.tensor_scale
    np.testing.assert_array_equal(tw.matmul(a, b, alpha=3), tw.matmul(*one, alpha=factor))


def test_the_operands_decide_in_what_they_are_multiplied():
    """bf16 where it flushes nothing, f32 where a number, a product or a sum may be below 2^-126: the same numbers."""
    a, b = whole("mxfp8", (70, 96)), whole("mxfp4", (96, 65), -2)

    def dtypes(a: Quantized, b: Quantized, native: bool = True) -> set[str]:
        x, y, *_ = scaled.without_scales(Call(a, b, algorithm=None if native else "fastest"))[0]
        np.testing.assert_array_equal(x.astype(np.float64), dequantize(a, "f64"))
        np.testing.assert_array_equal(y.astype(np.float64), dequantize(b, "f64"))
        return {x.dtype.name, y.dtype.name}

    assert dtypes(a, b) == {"bfloat16"}
    assert dtypes(a, b, native=False) == {"float32"}
    assert dtypes(whole("mxfp8", (7, 96)), b) == {"bfloat16"}  # small
    assert dtypes(whole("mxfp8", (150, 16)), whole("mxfp4", (16, 150), -2)) == {"bfloat16"}
    assert dtypes(whole("mxfp8", (2100, 16)), whole("mxfp4", (16, 2100), -2)) == {"bfloat16"}  # few steps of k

    def times(q: Quantized, power: int) -> Quantized:
        return Quantized(q.elements, (q.scales.astype(np.int32) + power).astype(np.uint8), q.shape, q.format, q.axis)

    least = int(a.scales.min()) - 127 - 9, int(b.scales.min()) - 127 - 1  # the exponents of both units
    down = -126 - sum(least)
    assert dtypes(times(a, down // 2), times(b, down - down // 2)) == {"bfloat16"}
    assert dtypes(times(a, down // 2), times(b, down - down // 2 - 1)) == {"float32"}
    down = -126 - least[0]
    assert dtypes(times(a, down), times(b, 60)) == {"bfloat16"}
    assert dtypes(times(a, down - 1), times(b, 60)) == {"float32"}

    nothing = Quantized(b.elements.copy(), b.scales.copy(), b.shape, b.format, b.axis)
    nothing.elements[3], nothing.scales[3] = 0, 0  # blocks of zeros have the smallest scale, and are no reason
    assert dtypes(a, nothing) == {"bfloat16"}
    nothing.elements[3, 0] = 1
    assert dtypes(a, nothing) == {"float32"}


def test_small_products_are_not_flushed():
    """2^-140, a subnormal sum of f32, from operands that are normal."""
    a, b = np.full((70, 64), 2.0**-70), np.full((64, 70), 2.0**-76)
    got = tw.matmul(quantize(a, "mxfp8"), quantize(b, "mxfp8", axis=0))
    np.testing.assert_array_equal(got, np.full((70, 70), 2.0**-140, np.float32))


def test_nan_and_inf_propagate():
    a = np.ones((64, 96), np.float32)
    a[3, 5], a[9, 70] = np.nan, np.inf
    b = quantize(np.ones((96, 64), np.float32), "mxfp4", axis=-2)
    for f in NAMES:
        got = tw.matmul(quantize(a, f), b)
        assert np.isnan(got[3]).all()
        assert (got[9] == np.inf).all() if f == "mxfp8_e5m2" else np.isnan(got[9]).all()
        np.testing.assert_array_equal(np.delete(got, (3, 9), 0), 96)
    largest = quantize(np.full((2, 32), 2.0**140), "mxfp8")
    np.testing.assert_array_equal(tw.matmul(largest, np.ones((32, 1), np.float32)), np.inf)  # beyond f32


# ---- the same arrays on CDNA4, in the simulator


def on_cdna4(a: Quantized, b: Quantized) -> Any:
    """What a gfx950's matrix instructions make of A and B as they are."""
    kernel = emit_scaled_mfma_gemm(
        A=a.format.element.name, B=b.format.element.name, CTA_M=64, CTA_N=64, CTA_K=128, WARP_M=32, WARP_N=32
    )
    (m,), (n,), blocks = a.others, b.others, a.scales.shape[-1]
    operands = [x for q in (a, b) for x in (q.elements.view(np.int8), q.elements.shape[-1])]
    scales = [x for q in (a, b) for x in (q.scales.view(np.int8), blocks)]
    c = np.full((m, n), 7, np.float32)
    simulator.run(kernel, m, n, 32 * blocks, 1.0, *operands, *scales, 0.0, c, n, grid=(1, 1, 1))
    return c


@pytest.mark.parametrize(("fa", "fb"), list(zip(NAMES[:5], (*NAMES[1:5], NAMES[0]))))
def test_cdna4_multiplies_the_same_arrays(fa, fb):
    a, b = whole(fa, (40, 70)), whole(fb, (70, 36), -2)
    np.testing.assert_array_equal(on_cdna4(a, b), tw.matmul(a, b))


def test_cdna4_has_the_same_nan_and_the_same_bound():
    r = np.random.default_rng(7)
    x, y = r.standard_normal((40, 100)), r.standard_normal((100, 36))
    x[3, 99], x[5, 40], y[0, 8] = np.nan, np.inf, -np.inf
    a, b = quantize(x, "mxfp4"), quantize(y, "mxfp8_e5m2", axis=0)
    got, wanted = on_cdna4(a, b), tw.matmul(a, b)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    numbers = np.isfinite(wanted)
    assert numbers.sum() == 38 * 35
    np.testing.assert_array_equal(got[~numbers], wanted[~numbers])
    x, y = (np.nan_to_num(np.abs(dequantize(q, "f64")), posinf=0) for q in (a, b))
    assert (np.abs(got[numbers] - wanted[numbers]) <= 2 * 100 * 2.0**-24 * (x @ y)[numbers]).all()


# ---- scale_a and scale_b


@pytest.mark.parametrize("f", ALL, ids=str)
def test_scales_beside_elements(f):
    """Elements as ml_dtypes has them, and scales with k cut into blocks, whichever way the operand is stored."""
    for m, n, k in ((3, 4, 40), (65, 66, 96)):
        a, b = whole(f, (m, k)), whole(f, (k, n), -2)
        scale_a, scale_b = a.scales.view(f.scale.dtype), b.scales.view(f.scale.dtype).T
        if f.mx:
            scale_b = scale_b.view(np.uint8)
        wanted = exact(a, b)
        x, y = a.unpacked(), b.unpacked()
        assert x.dtype == f.element.dtype
        np.testing.assert_array_equal(tw.matmul(x, y, scale_a=scale_a, scale_b=scale_b), wanted)
        turned = tw.matmul(x.T, y.T, scale_a=scale_a.T, scale_b=scale_b.T, trans_a=True, trans_b=True)
        np.testing.assert_array_equal(turned, wanted)
        np.testing.assert_array_equal(tw.matmul(x, b, scale_a=scale_a), wanted)
        c = np.ones((m, n), np.float32)
        np.testing.assert_array_equal(tw.gemm(1, x, y, 1, c, scale_a=scale_a, scale_b=scale_b), wanted + 1)
        again = Quantized.of(y, scale_b, -2)
        np.testing.assert_array_equal(again.elements, b.elements)
        np.testing.assert_array_equal(again.scales, b.scales)


def test_refusals():
    a, b = whole("mxfp4", (4, 64)), whole("mxfp4", (64, 4), -2)
    x = np.zeros((4, 64), ml_dtypes.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"the blocks of b must be along k, its axis -2, .* axis=-2\), or trans_b"):
        tw.matmul(a, quantize(np.zeros((64, 4)), "mxfp4"))
    with pytest.raises(ValueError, match=r"the blocks of a must be along k, its axis -2, but they are along axis -1"):
        tw.matmul(a, b, trans_a=True)
    with pytest.raises(ValueError, match="a is a Quantized, which has its own scales: scale_a must be None"):
        tw.matmul(a, b, scale_a=2)
    with pytest.raises(ValueError, match=r"a and b must agree in k, but a has 64 columns and b has 32 rows"):
        tw.matmul(a, whole("mxfp4", (32, 4), -2))
    with pytest.raises(ValueError, match=r"scale_a must be a number, f32 for each row of a, or scales of blocks along "
                                         r"k, axis -1 of a: scales for e4m3fn \(4, 64\), one for each 32 along axis "
                                         r"-1, must have the shape "
                                         r"\(4, 2\), not \(4, 1\)"):
        tw.matmul(x, b, scale_a=np.zeros((4, 1), np.uint8))
    with pytest.raises(TypeError, match=r"scale_b .*: scales of e4m3fn must be of float8_e8m0fnu, or .*, not int32"):
        tw.matmul(x, x.T, scale_b=np.ones((2, 4), np.int32))
    with pytest.raises(TypeError, match=r"scale_a .*: elements must be of one of e4m3fn, e5m2, .* not f32"):
        tw.matmul(np.zeros((4, 64), np.float32), b, scale_a=np.zeros((4, 2), np.uint8))
    with pytest.raises(ValueError, match="trans_a needs a to have two axes"):
        tw.matmul(quantize(np.zeros(64), "mxfp4"), b, trans_a=True)
    np.testing.assert_array_equal(tw.matmul(a, b, epilogue=abs), abs(tw.matmul(a, b)))
