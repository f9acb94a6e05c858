"""Every kernel for a GPU stores C through gpu/epilogue.Out: an epilogue of its reaches all of them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gpu_kernels import (
    emit_emulated_mx_gemm,
    emit_gemv,
    emit_mfma_gemm,
    emit_mma_gemm,
    emit_scaled_mfma_gemm,
    emit_simt_gemm,
)
from tilewright.expressions.function import Aux, Epilogue
from tilewright.expressions.tracing import trace

SIMT = {"CTA_M": 64, "CTA_N": 64, "CTA_K": 8, "WARP_M": 32, "WARP_N": 32, "THREAD_M": 8, "THREAD_N": 4}
MMA = {"CTA_M": 64, "CTA_N": 64, "CTA_K": 8, "WARP_M": 32, "WARP_N": 32, "STAGES": 3}
F64 = MMA | dict.fromkeys(("A", "B", "OUT", "SUMS"), "f64") | {"ARCH": "sm_90a", "VECTOR_A": 2, "VECTOR_B": 2}
TF32 = MMA | {"A": "tf32", "B": "tf32", "VECTOR_A": 4, "VECTOR_B": 4}
WAVES = {"CTA_M": 64, "CTA_N": 64, "WARP_M": 32, "WARP_N": 32}


def fused(format="f32"):
    """2 x + 1000 i + j of what a kernel would store at (i, j): the text, and its arguments for an m x n product."""
    expression = trace(lambda acc, i, j: acc*2 + i + j, {"acc": "float", "i": "float", "j": "float"})
    return Epilogue(expression, (Aux("i", format, "column"), Aux("j", format, "row")), ("-",)).text


def given(m, n, T=np.float32):
    return [1000*np.arange(m, dtype=T), 1, np.arange(n, dtype=T)]


def wanted(product, c, beta, alpha):
    i, j = np.indices(product.shape)
    return 2 * (alpha*product + (beta*c if beta else 0)) + 1000*i + j


@pytest.mark.sampled(2)
@pytest.mark.parametrize("beta", [0.0, 3.0])
@pytest.mark.parametrize(("emit", "options", "m", "n"), [
    (emit_simt_gemm, SIMT | {"VECTOR": 4}, 65, 68),
    (emit_simt_gemm, SIMT | {"VECTOR": 1}, 65, 67),                 # through shared memory
    (emit_simt_gemm, SIMT | {"VECTOR": 1, "CTA_K": 16, "SLICES": 2}, 9, 67),
    (emit_simt_gemm, SIMT | {"VECTOR": 1, "SPLIT_K": 2}, 65, 67),
    (emit_simt_gemm, SIMT | {"VECTOR": 1, "TAIL": True}, 65, 67),
    (emit_mma_gemm, F64, 66, 68),
    (emit_mma_gemm, F64 | {"SPLIT_K": 2}, 66, 68),
    (emit_mma_gemm, TF32 | {"VECTOR_C": 4}, 66, 68),
    (emit_mma_gemm, TF32 | {"VECTOR_C": 2, "LAYOUT": "tt", "SPLIT_K": 2}, 68, 66),
    (emit_gemv, {"VECTOR": 4, "LAYOUT": "nn"}, 1, 132),
    (emit_gemv, {"VECTOR": 4, "LAYOUT": "nt", "SPLIT_K": 2}, 1, 33),
    (emit_gemv, {"VECTOR": 4, "COLUMN": True}, 33, 1),
    (emit_gemv, {"VECTOR": 4, "COLUMN": True, "LAYOUT": "tn", "SPLIT_K": 2}, 36, 1),
    (emit_mfma_gemm, WAVES | {"ARCH": "gfx942", "A": "f32", "CTA_K": 32}, 33, 68),
    (emit_mfma_gemm, WAVES | {"ARCH": "gfx950", "A": "f64", "CTA_K": 16, "MFMA": 16, "SPLIT_K": 2}, 65, 68),
], ids=lambda value: getattr(value, "__name__", str(value)))
def test_an_expression_at_the_seam_reaches_every_kernel(emit, options, m, n, beta):
    k, rng = 24, np.random.default_rng(m + n)
    letters = options.get("LAYOUT", "nt" if emit is emit_mfma_gemm else "nn")
    T = np.float64 if options.get("A") == "f64" else np.float32
    a, b, c = (rng.integers(-3, 4, shape).astype(T) for shape in ((m, k), (k, n), (m, n)))
    expected = wanted(a @ b, c, beta, 2.0)
    held = [np.ascontiguousarray(x if letter == "n" else x.T) for x, letter in zip((a, b), letters)]
    tiles = -(-m // 64) * -(-n // 64) if emit is not emit_gemv else -(-max(m, n) // 8)
    parts, grid, more = options.get("SPLIT_K", 1), (tiles, 1, options.get("SPLIT_K", 1)), []
    if options.get("TAIL"):
        parts, grid, more = 2, (1 + (tiles - 1)*2, 1, 1), [1, 2]
    if parts > 1:
        more = [np.zeros(parts*tiles*64*64, T), np.zeros(tiles, np.int32), *more]
    options = {"EPILOGUE": fused(np.dtype(T).str.replace("<f4", "f32").replace("<f8", "f64")), **options}
    more = given(m, n, T) + more
    function = emit(**({"VECTOR_C": 4} | options if emit is emit_mfma_gemm else options))
    if emit is emit_gemv:                                           # as many CTAs as it has, no more
        along = letters[0] == "n" if options.get("COLUMN") else letters[1] == "t"
        grid = (-(-max(m, n) // (8 if along else 32*options["VECTOR"])), 1, parts)
    tw.simulate(function, m, n, k, 2.0, held[0], held[0].shape[1], held[1], held[1].shape[1], beta, c, n, *more,
                grid=grid)
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("emit", [emit_scaled_mfma_gemm, emit_emulated_mx_gemm])
def test_an_expression_at_the_seam_reaches_kernels_with_scales(emit):
    """Elements that are all 0, so that what is stored is the expression's."""
    m, n, k = 33, 35, 128
    a, b, scales = (np.zeros((rows, width), np.int8) for rows, width in ((m, k // 2), (n, k // 2), (64, k // 32)))
    c = np.full((m, n), np.nan, np.float32)
    options = {"CTA_K": 128 if emit is emit_scaled_mfma_gemm else 32}
    function = emit(A="e2m1", VECTOR_C=1, EPILOGUE=fused(), **WAVES, **options)
    tw.simulate(function, m, n, k, 1.0, a.ravel(), k // 2, b.ravel(), k // 2,
                scales.ravel(), k // 32, scales.ravel(), k // 32, 0.0, c, n, *given(m, n), grid=(1, 1, 1))
    np.testing.assert_array_equal(c, wanted(np.zeros((m, n)), c, 0.0, 1.0))


def test_the_expression_comes_before_rounding():
    """Of a narrow result: what is rounded is the expression's number."""
    m, n, k = 2, 64, 32
    a, b = np.full((m, k), 0.5, np.float16), np.full((n, k), 0.5, np.float16)
    c = np.full((m, n), np.nan, np.float16)
    function = emit_mfma_gemm(ARCH="gfx942", A="f16", OUT="f16", CTA_K=32, VECTOR_C=4, EPILOGUE=fused(), **WAVES)
    tw.simulate(function, m, n, k, 0.01, a, k, b, k, 0.0, c, n, *given(m, n), grid=(1, 1, 1))
    expected = wanted(np.full((m, n), 8, np.float32), c, 0.0, np.float32(0.01)).astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(c, expected)
