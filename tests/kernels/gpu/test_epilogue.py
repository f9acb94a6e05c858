"""Every kernel for a GPU stores C through gpu/epilogue.Out: an epilogue of its reaches all of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.gemms import simulated
from tests.helpers.gpu_kernels import (
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
    """2 x + 1000 i + j of what a kernel would store at (i, j)."""
    expression = trace(lambda acc, i, j: acc*2 + i + j, {"acc": "float", "i": "float", "j": "float"})
    return Epilogue(expression, (Aux("i", format, "column"), Aux("j", format, "row")), ("-",)).text


def stored(emit, m, n, T="f32", **options):
    """The kernel stores 2 x + 1000 i + j of each x: its result."""
    dtype = {"f32": np.float32, "f64": np.float64}[T]
    beside = {"x_i": 1000*np.arange(m, dtype=dtype), "ld_x_i": 1, "x_j": np.arange(n, dtype=dtype)}
    found = simulated(emit, m, n, more=beside, finish=lambda x: 2*x + np.add.outer(1000*np.arange(m), np.arange(n)),
                      EPILOGUE=fused(T), **options)
    np.testing.assert_array_equal(found.c, found.wanted)


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
    vector_c = {"VECTOR_C": 4} if emit is emit_mfma_gemm else {}
    stored(emit, m, n, "f64" if options.get("A") == "f64" else "f32", k=24, alpha=2.0, beta=beta, **vector_c | options)


def test_an_expression_at_the_seam_reaches_kernels_with_scales():
    stored(emit_scaled_mfma_gemm, 33, 35, k=128, A="e2m1", VECTOR_C=1, CTA_K=128, **WAVES)


def test_the_expression_comes_before_rounding():
    """Of a narrow result: what is rounded is the expression's number."""
    halves = np.full((2, 32), 0.5, np.float16), np.full((32, 64), 0.5, np.float16)
    stored(emit_mfma_gemm, 2, 64, k=32, alpha=float(np.float32(0.01)), given=halves, ARCH="gfx942", A="f16",
           OUT="f16", CTA_K=32, VECTOR_C=4, **WAVES)
