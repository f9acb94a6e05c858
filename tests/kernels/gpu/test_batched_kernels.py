"""Kernels of a batch: every family, however it divides work, in the simulator; and what ptxas makes of them."""

from __future__ import annotations

import pytest

import tilewright as tw
from tests.helpers.gemms import right

SMALL = "simt 64x64x32 warp=32x32 thread=8x4 stages=3"
DMMA = "dmma 32x64x16 warp=16x32 stages=4"
# target, format, m, n, k, layout, plan
KERNELS = [
    ("sm_90a", "f32", 70, 40, 50, "nn", SMALL),
    ("sm_90a", "f32", 70, 40, 50, "tt", f"{SMALL} vector=2"),
    ("sm_90a", "f32", 70, 40, 52, "nn", f"{SMALL} vector=4 split_k=2"),
    ("sm_90a", "f32", 200, 40, 52, "nt", f"{SMALL} vector=4 tail"),
    ("sm_90a", "f64", 40, 70, 34, "nn", f"{DMMA} vector=2 split_k=3"),
    ("sm_90a", "f64", 40, 70, 34, "tn", f"{DMMA} vector=2 tail"),
    ("sm_90a", "f32", 1, 40, 60, "nn", "gemv 1x128x8 stages=2 copy=registers vector=4 split_k=2"),
    ("sm_90a", "f64", 40, 1, 60, "nn", "gemv 8x1x8 stages=2 copy=registers"),
    ("sm_90a", "f32", 16, 16, 16, "nn", "simt 16x16x16 warp=16x16 thread=4x2 stages=3 vector=4"),
    ("sm_90a", "f32", 17, 30, 70, "nt", "simt 16x16x32 warp=16x16 thread=4x2 stages=3 vector=2 slices=2"),
    ("sm_90a", "f32", 33, 35, 70, "tn", "simt 32x32x32 warp=32x32 thread=8x4 stages=3 slices=4"),
    ("sm_90a", "f32", 32, 32, 32, "tt", "simt 32x32x16 warp=32x32 thread=8x4 stages=3 vector=4"),
    ("sm_90a", "f32", 40, 68, 34, "nn",
     "simt 32x64x32 warp=32x64 thread=8x8 stages=3 vector=2 vector_c=4 registers=160 slices=4"),
    ("sm_90a", "f32", 40, 70, 34, "nt", "simt 32x64x32 warp=32x64 thread=8x8 stages=3 vector=2 as_stored slices=4"),
    ("sm_90a", "f32", 3, 132, 90, "nn", "gemv 4x40x10 stages=2 copy=registers vector=4"),
    ("sm_90a", "f32", 130, 260, 3, "nn", "simt 64x128x16 warp=32x64 thread=8x8 stages=2 copy=registers vector_c=4"),
    ("sm_90a", "f64", 17, 34, 19, "nn", "dmma 16x16x16 warp=16x16 stages=3 vector_c=2"),
    ("sm_90a", "f64", 34, 66, 40, "tt", "dmma 32x32x16 warp=16x16 stages=4 vector=2"),
    ("gfx942", "f64", 40, 64, 50, "tn", None),
    ("gfx942", "f16", 70, 40, 300, "nt", "mfma 32x64x64 wave=32x32 mfma=16 copy=registers stages=2 split_k=3"),
    ("gfx950", "f16", 72, 40, 256, "nn", "mfma 32x64x64 wave=32x32 mfma=32 copy=lds stages=3 split_k=2"),
    ("gfx950", "bf16", 70, 40, 128, "nt", "mfma 32x64x64 wave=32x32 mfma=32 copy=lds stages=3"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("chip", "name", "m", "n", "k", "layout", "plan"), KERNELS)
def test_values(chip, name, m, n, k, layout, plan):
    """Of three matrices, with one B for all, and beta: no race, nothing left unwritten, counters 0 again."""
    problem = tw.Gemm(m, n, k, name, out="f32" if name == "bf16" else name, layout=layout, batch=3)
    kernel = tw.compile(problem, chip, plan)
    right(kernel, one_b=True)
    right(kernel, alpha=2, beta=-1, one_b=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("chip", "name", "m", "n", "k", "layout", "plan"), [x for x in KERNELS if x[0] == "sm_90a"])
def test_resources(chip, name, m, n, k, layout, plan):
    """No spills, and a few registers more than without a batch: the number of the matrix, and its C."""
    one, many = (tw.compile(tw.Gemm(m, n, k, name, layout=layout, batch=batch), chip, plan).resources
                 for batch in (1, 3))
    assert many.spills == 0
    assert many.registers <= one.registers + 12
