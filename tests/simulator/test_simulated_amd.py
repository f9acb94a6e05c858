"""tilewright.simulate with compiled kernels for AMD's GPUs: whole products, what is checked of them, planted bugs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tilewright import formats
from tilewright.formats import BLOCK_FORMATS
from tilewright.kernels.gpu.epilogue import Out
from tilewright.simulator import Fault

SCALED = "scaled 64x64x128 wave=32x32 mfma=32"
PLANS = {"f16": "mfma 64x64x32 wave=32x32 mfma=32", "i8": "mfma 64x64x64 wave=32x32 mfma=32",
         "mxfp4": SCALED, "mxfp6_e3m2": SCALED}
SUMS = {"i8": "i32"}


def compiled(m, n, k, a, chip="gfx950", layout="nt", more=""):
    return tw.compile(tw.Gemm(m, n, k, a, out=SUMS.get(a, "f32"), layout=layout), tw.target(chip), PLANS[a] + more)


def matrices(problem):
    """Whole numbers: A, B, C before."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-3, 4, shape) for shape in (problem.shape_a, problem.shape_b, (problem.m, problem.n)))
    a, b = (x.T if letter == "t" else x for x, letter in zip((a, b), problem.layout))
    return a, b, c.astype(formats.FORMATS[problem.out].dtype)


def given(x, format, axis):
    if format in BLOCK_FORMATS:
        return tw.quantize(x.astype(np.float32), format, axis)
    return x.astype(formats.FORMATS[format].dtype)


def operands(problem):
    a, b, c = matrices(problem)
    return given(a, problem.a, -1), given(b, problem.b, -2), c


@pytest.mark.sampled(2)
@pytest.mark.parametrize("more", ["", " split_k=2"])
@pytest.mark.parametrize(("chip", "a", "layout"), [
    ("gfx942", "f16", "nn"), ("gfx950", "f16", "tt"), ("gfx942", "i8", "nt"),
    ("gfx950", "mxfp4", "nt"), ("gfx950", "mxfp6_e3m2", "nt"),
])
def test_a_whole_product(chip, a, layout, more):
    kernel = compiled(40, 72, 320, a, chip, layout, f" vector=8{more}" if layout != "nt" else more)
    x, y, c = matrices(kernel.problem)
    first, second, _ = operands(kernel.problem)
    expected = -2 * (x @ y) + 3 * c
    report = tw.simulate(kernel, first, second, c, alpha=-2, beta=3)
    assert report.result is c
    np.testing.assert_array_equal(c, expected)
    assert report.of("c", "load").elements == c.size
    assert report.occupancy == kernel.resources
    assert f"occupancy: {kernel.resources}" in str(report)
    wide = np.zeros((40, 96), c.dtype)
    tw.simulate(kernel, first, second, wide[:, :72])            # rows further apart
    np.testing.assert_array_equal(wide[:, :72], x @ y)
    assert not wide[:, 72:].any()


def test_an_empty_product():
    kernel = compiled(3, 4, 0, "f16")
    out = np.ones((3, 4), np.float32)
    report = tw.simulate(kernel, np.ones((3, 0), np.float16), np.ones((0, 4), np.float16), out, beta=0.5)
    assert (out == 0.5).all()
    assert report.occupancy is None


def test_scalars_of_integer_products_are_whole():
    """As on a GPU, where an i32 is handed over."""
    kernel, ones = compiled(32, 32, 32, "i8"), np.ones((32, 32), np.int8)
    assert (tw.simulate(kernel, ones, ones, alpha=3.0).result == 96).all()
    for scalars in ({"alpha": 0.5}, {"beta": 1.5, "out": np.ones((32, 32), np.int32)}):
        with pytest.raises(TypeError, match=rf"{next(iter(scalars))} must be a whole number where integers are mul"):
            tw.simulate(kernel, ones, ones, **scalars)


def test_operands_are_checked():
    kernel = compiled(64, 64, 128, "mxfp4")
    a, b, c = operands(kernel.problem)
    with pytest.raises(TypeError, match=r"a must be Quantized \(mxfp4\), not ndarray"):
        tw.simulate(kernel, c, b)
    with pytest.raises(ValueError, match=r"b must be mxfp4 of shape \(128, 64\) with blocks along k"):
        tw.simulate(kernel, a, a)
    with pytest.raises(TypeError, match="out must be a NumPy array, not list"):
        tw.simulate(kernel, a, b, c.tolist())
    with pytest.raises(TypeError, match="out must have dtype float32, as the problem requires, not float64"):
        tw.simulate(kernel, a, b, c.astype(np.float64))
    with pytest.raises(ValueError, match="out must be given if beta is not 0, and beta is 2"):
        tw.simulate(kernel, a, b, beta=2)


# ---- planted bugs


def plant(monkeypatch, mistake):
    """What is stored goes by mistake(out), an epilogue.Out."""
    store = Out.store
    monkeypatch.setattr(Out, "store", lambda self, runs: store(mistake(self), runs))


@pytest.mark.parametrize("a", ["f16", "mxfp4"])
def test_elements_of_c_that_nobody_writes_are_found(monkeypatch, a):
    """The last column is taken for one outside of C."""
    plant(monkeypatch, lambda result: replace(result, n=result.n - 1))
    kernel = compiled(33, 35, 128, a, more=" vector_c=1")
    with pytest.raises(Fault, match=r"element \(0, 34\) of c has not been written") as caught:
        tw.simulate(kernel, *operands(kernel.problem)[:2])
    assert caught.value.kind == "unwritten"


def test_old_elements_that_are_read_though_beta_is_0_are_found(monkeypatch):
    plant(monkeypatch, lambda result: replace(result, beta=result.beta + 1))
    kernel = compiled(64, 64, 64, "f16")
    with pytest.raises(Fault, match=r"load of c\[0\]") as caught:
        tw.simulate(kernel, *operands(kernel.problem)[:2])
    assert caught.value.kind == "uninitialised"


def test_counters_that_are_not_0_again_are_found():
    kernel = compiled(64, 64, 256, "f16", more=" split_k=2")
    a, b, _ = operands(kernel.problem)
    tw.simulate(kernel, a, b)
    (launch,) = kernel.launches
    x, y, z = launch.grid
    early = SimpleNamespace(**{name: getattr(launch, name) for name in ("function", "workspace", "counters")},
                            grid=(x, y, z - 1), more=(), at=(), zero=(0, 0))
    others = {name: getattr(kernel, name) for name in ("problem", "target", "resources", "shape")}
    mistaken = SimpleNamespace(launches=(early,), **others)
    mistaken.inner = mistaken
    with pytest.raises(Fault, match="has not been written") as caught:
        tw.simulate(mistaken, a, b)
    assert caught.value.kind == "unwritten"
    with pytest.raises(Fault, match="the counters are not 0 again") as caught:
        tw.simulate(mistaken, a, b, np.zeros((64, 64), np.float32), beta=1)
    assert caught.value.kind == "counters"
