"""Weight-only products of arrays in a GPU's memory, on fake drivers: Scaled and Quantized weights beside floats."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gpus import machine

pytestmark = pytest.mark.sampled

RNG = np.random.default_rng(23)
BF16 = ml_dtypes.bfloat16
ROUNDING = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-10}


@pytest.fixture
def on(monkeypatch):
    return machine(monkeypatch, "sm_90a")


def there(on, q):
    """The same weights in the GPU's memory."""
    arrays = {name: getattr(q, name) for name in ("elements", "scales", "zeros") if getattr(q, name, None) is not None}
    bytes = {name: x if x.dtype in (np.float32, np.int8) else x.view(np.uint8) for name, x in arrays.items()}
    return replace(q, **{name: on.array(x) for name, x in bytes.items()})


def launched(on, x, q, **options):
    """The kernels of x @ q, whose result is compared with that of dequantized weights in float64."""
    before = len(on.machine.launches)
    found = tw.matmul(on.array(x), there(on, q), **options)
    on.finish()
    weights = tw.dequantize(q, "f64")
    weights = weights.T if options.get("trans_b") else weights
    size = np.abs(x.astype(float)) @ np.abs(weights)
    bound = (ROUNDING[x.dtype.name] + x.shape[-1]*2.0**-24) * size
    assert (np.abs(found.host.astype(float) - x.astype(float) @ weights) <= bound).all()
    return [each[0] for each in on.machine.launches[before:]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "dtype", "m", "k", "n", "axis"), [
    ("i4", BF16, 9, 288, 24, -1), ("u4", np.float32, 2, 64, 32, -2), ("i4", BF16, 20, 64, 32, -2),
    ("e2m1", BF16, 3, 70, 10, -1), ("e2m1", np.float32, 1, 96, 8, -1)], ids=str)
def test_two_elements_to_a_byte(on, name, dtype, m, k, n, axis):
    w = RNG.standard_normal((n, k) if axis == -1 else (k, n), np.float32)
    q = tw.quantize(w, name, axis=axis, group=32, zero_points=name != "e2m1")
    x = RNG.standard_normal((m, k), np.float32).astype(dtype)
    kernels = launched(on, x, q, trans_b=axis == -1)
    assert len(kernels) == 1, kernels


@pytest.mark.parametrize(("name", "m", "dtype"), [("u4", 3, BF16), ("i4", 9, BF16), ("u4", 1, np.float16)])
def test_zero_points_of_groups_that_are_shorter_than_a_vector(on, name, m, dtype):
    q = tw.quantize(RNG.standard_normal((24, 96), np.float32) + 1, name, -1, group=16, zero_points=True)
    kernel, = launched(on, RNG.standard_normal((m, 96), np.float32).astype(dtype), q, trans_b=True)
    assert "gemv" in kernel


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("k", "n", "axis"), [(1, 5, -1), (2, 5, -1), (3, 1, -2), (4, 2, -2)])
def test_one_byte_of_two_elements(on, k, n, axis):
    """Where neither strides nor lengths say along which axis two share a byte: in kernels, passes, groups, and as a."""
    q = tw.quantize(RNG.standard_normal((n, k) if axis == -1 else (k, n), np.float32), "i4", axis, nibbles=True)
    w, x = np.asarray(q, float), RNG.standard_normal((3, k), np.float32)
    launched(on, x, q, trans_b=axis == -1)
    groups = replace(q, elements=np.stack([q.elements]*2), scales=np.stack([q.scales]*2))
    stacked = [tw.grouped_matmul(on.array(x), there(on, groups), on.array(np.int32([1, 3])), trans_b=axis == -1),
               tw.matmul(there(on, q), on.array(x.T), trans_a=axis != -1)]
    on.finish()
    wanted = x @ (w.T if axis == -1 else w)
    for found, each in zip(stacked, (wanted, wanted.T)):
        np.testing.assert_allclose(found.host, each, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "dtype", "m", "axis"), [
    ("i8", BF16, 1, -1), ("u8", np.float32, 2, -2), ("i8", np.float16, 16, -1), ("i8", BF16, 20, None)], ids=str)
def test_scales_of_whole_columns(on, name, dtype, m, axis):
    """Of few rows they multiply sums: elements are multiplied as they are, without an error of rounding."""
    k, n = 96, 24
    q = tw.quantize(RNG.standard_normal((k, n) if axis == -2 else (n, k), np.float32), name, axis=axis,
                    zero_points=name == "u8")
    x = RNG.standard_normal((m, k), np.float32).astype(dtype)
    kernels = launched(on, x, q, trans_b=axis != -2)
    assert len(kernels) == 1, kernels
    found = tw.matmul(on.array(x), there(on, q), trans_b=axis != -2, out_dtype="f32")
    on.finish()
    weights = tw.dequantize(q, "f64") if axis == -2 else tw.dequantize(q, "f64").T
    tolerance = 1e-5 if m <= 16 else 0.01
    assert np.abs(found.host - x.astype(float) @ weights).max() < tolerance * np.abs(weights).sum(0).max()
    wrong = replace(q, scales=np.ones((k, 1) if axis == -2 else (1, k), np.float32), zeros=None)
    with pytest.raises(ValueError, match="with a scale for each step of k"):
        tw.matmul(on.array(x), there(on, wrong), trans_b=axis != -2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "m", "k", "n", "group", "plan"), [
    ("i4", 3, 1152, 40, 128, "gemv 8x16x4 stages=1 vector=32"),         # a piece beside whole spans, CTAs that overlap
    ("i4", 9, 1056, 32, 32, "gemv 16x32x2 stages=2 vector=32"),         # several groups in a piece
    ("u4", 16, 2048, 48, 128, "gemv 16x48x3 stages=1 vector=32"),       # warps of which one has more spans
    ("i8", 1, 1040, 16, 16, "gemv 8x16x4 stages=3 vector=16"),
    ("i8", 12, 1024, 33, 128, "gemv 16x32x2 stages=2 vector=16 split_k=3"),
    ("mxfp4", 5, 1088, 48, 32, "gemv 8x48x2 stages=1 vector=32"),
    ("nvfp4", 16, 544, 16, 16, "gemv 16x16x2 stages=2 vector=32"),
], ids=str)
def test_copies_in_flight(on, name, m, k, n, group, plan):
    w = RNG.standard_normal((n, k), np.float32)
    q = tw.quantize(w, name) if "fp4" in name else tw.quantize(w, name, axis=-1, group=group, zero_points=name == "u4")
    kernel, = launched(on, RNG.standard_normal((m, k), np.float32).astype(BF16), q, trans_b=True, plan=plan)
    assert "async" in kernel


def test_a_pass_and_groups_of_bytes(on):
    """Where a plan is given that evaluates no prologues, a pass writes numbers before; odd k, too."""
    for name, k, axis in ("i4", 96, -1), ("e2m1", 75, -1):
        w = RNG.standard_normal((16, k) if axis == -1 else (k, 16), np.float32)
        q = tw.quantize(w, name, axis=axis, group=32, zero_points=name == "u4")
        x = RNG.standard_normal((5, k), np.float32).astype(BF16)
        plan = "mma 16x16x32 warp=16x16 stages=2 vector=8 vector_c=2"
        kernels = launched(on, x, q, trans_b=axis == -1, plan=plan if k == 96 else None)
        assert "prepare" in kernels[0], kernels


@pytest.mark.parametrize(("name", "dtype", "m"), [("mxfp4", BF16, 9), ("nvfp4", np.float32, 3), ("mxfp8", BF16, 1)],
                         ids=str)
def test_blocks(on, name, dtype, m):
    q = tw.quantize(RNG.standard_normal((24, 96), np.float32), name)
    x = RNG.standard_normal((m, 96), np.float32).astype(dtype)
    kernels = launched(on, x, q, trans_b=True)
    assert len(kernels) == 1, kernels


@pytest.mark.parametrize(("name", "options"), [("i4", {"group": 32}), ("mxfp4", {}), ("nvfp4", {})],
                         ids=str)
def test_calls_like_an_earlier_one_are_one_launch_with_nothing_chosen(on, monkeypatch, name, options):
    q = tw.quantize(RNG.standard_normal((16, 64), np.float32), name, axis=-1, **options)
    x, held = RNG.standard_normal((2, 64), np.float32), there(on, q)
    first = tw.matmul(on.array(x), held, trans_b=True)
    with monkeypatch.context() as patch:
        patch.setattr(type(on.engine), "matmul", None)
        again = tw.matmul(on.array(2*x), held, trans_b=True)
    on.finish()
    np.testing.assert_array_equal(again.host, 2*first.host)
    if name == "nvfp4":
        other = tw.matmul(on.array(x), replace(held, tensor_scale=2*held.tensor_scale), trans_b=True)
        on.finish()
        np.testing.assert_array_equal(other.host, 2*first.host)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_blocks_with_an_epilogue(on, name):
    q = tw.quantize(RNG.standard_normal((24, 96), np.float32), name)
    x, bias = RNG.standard_normal((3, 96), np.float32).astype(BF16), RNG.standard_normal(24, np.float32)
    for factor in 1, 2:         # the second call is like the first
        before = len(on.machine.launches)
        found = tw.matmul(on.array(factor*x), there(on, q), trans_b=True, epilogue=lambda acc, bias: acc + bias,
                          operands={"bias": on.array(bias)}, out_dtype="f32")
        on.finish()
        assert len(on.machine.launches) == before + 1
        exact = factor*x.astype(float) @ tw.dequantize(q, "f64").T + bias
        assert np.abs(found.host - exact).max() < 1e-4


def test_refused(on):
    q = there(on, tw.quantize(RNG.standard_normal((16, 64), np.float32), "i4", axis=-1, group=32))
    x = RNG.standard_normal((2, 64), np.float32)
    with pytest.raises(ValueError, match="the groups of b must be along k"):
        tw.matmul(on.array(x[:, :16].copy()), q)
    with pytest.raises(TypeError, match="which is multiplied on GPUs by operands of f32, bf16, f16, not of i8"):
        tw.matmul(on.array(x.astype(np.int8)), q, trans_b=True)
    with pytest.raises(ValueError, match="scale_b and prologue_b must be None with it"):
        tw.matmul(on.array(x), q, trans_b=True, scale_b=2.0)
