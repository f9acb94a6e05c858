"""Rows quantised to fp8 by one kernel: the bits of arithmetic in f32, on a simulated GPU and on this CPU."""

import ml_dtypes
import numpy as np
import pytest

from tilewright import simulator
from tilewright.ir import vectors
from tilewright.kernels.quantized_rows import emit_quantize_rows
from tilewright.runtime.run import run

DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
FP8 = ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize("options", [
    {"THREADS": None}, {"THREADS": 64}, {"THREADS": 64, "BY": "warp"}, {"THREADS": 64, "CONVERT": True}], ids=str)
@pytest.mark.parametrize("cols", [1, 100, 768])
@pytest.mark.parametrize("format", DTYPES)
def test_rows(format, cols, options):
    rng = np.random.default_rng(cols)
    x = (rng.standard_normal((7, cols)) * [[1], [0], [1e-4], [300], [1], [1e-7], [1]]).astype(DTYPES[format])
    x[4, cols // 2], x[6, cols // 3] = np.nan, np.inf
    wide = x.astype(np.float32)
    with np.errstate(all="ignore"):
        scales = np.maximum(np.abs(wide).max(1) / np.float32(448), np.float32(2.0**-126))
        elements = np.clip(wide * (1 / scales[:, None]), -448, 448).astype(FP8).view(np.int8)
    function = emit_quantize_rows(format, **options)
    given = x.view(np.int16) if format == "bf16" else x
    y, found = np.full((7, cols), 99, np.int8), np.full(7, 99, np.float32)
    if options["THREADS"]:
        simulator.run(function, 7, cols, given, y, found, grid=(3,))
    else:
        run(function, 7, cols, given, y, found)
    np.testing.assert_array_equal(found, scales)
    lost = np.isnan(elements.view(FP8).astype(np.float32))
    np.testing.assert_array_equal(np.isnan(y.view(FP8).astype(np.float32)), lost)
    np.testing.assert_array_equal(y[~lost], elements[~lost])


def test_they_are_read_and_written_as_vectors():
    for format in DTYPES:
        for convert in (False, True):
            assert not vectors.reasons(emit_quantize_rows(format, CONVERT=convert))
