"""The smoke test: a handful of shapes through the public functions, in a few seconds, with no device."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.processes import printed
from tests.oracles import reference

SHAPES = [
    (1, 1, 1),
    (4, 4, 4),
    (17, 33, 65),
    (1, 70, 40),
    (70, 1, 40),
    (40, 70, 1),
    (130, 110, 90),
    (5, 0, 3),
    (5, 3, 0),
]  # m n k


def operands(m, n, k, dtype, layout, seed=0):
    """Random A [m, k] and B [k, n], each stored transposed if the layout's letter is t."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, k) if layout[0] == "n" else (k, m)).astype(dtype)
    b = rng.standard_normal((k, n) if layout[1] == "n" else (n, k)).astype(dtype)
    return (a if layout[0] == "n" else a.T), (b if layout[1] == "n" else b.T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_matmul(shape, layout, dtype):
    a, b = operands(*shape, dtype, layout)
    c = tw.matmul(a, b)
    assert c.dtype == dtype
    assert c.shape == shape[:2]
    assert np.all(np.abs(c - reference.product(a, b)) <= reference.error_bound(a, b, dtype=dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gemm(dtype):
    a, b = operands(20, 30, 40, dtype, "nt")
    c = np.arange(600, dtype=dtype).reshape(20, 30)
    before = c.copy()
    assert tw.gemm(2, a, b, -0.5, c) is c
    options = {"alpha": 2.0, "beta": -0.5}
    bound = reference.error_bound(a, b, before, dtype=dtype, **options)
    assert np.all(np.abs(c - reference.product(a, b, before, **options)) <= bound)


def test_the_problem_is_data():
    assert str(tw.Gemm(128, 256, 64)) == "gemm_f32_nn_128x256x64"


def test_import_is_light():
    """Neither NumPy, a compiler nor the command line's libraries come with `import tilewright`."""
    heavy = "numpy llvmlite typer rich sqlite3 ml_dtypes matplotlib".split()
    loaded = printed(f"import sys, tilewright; print([name for name in {heavy} if name in sys.modules])")
    assert loaded.strip() == "[]"


def test_the_example_of_the_package():
    failed, tried = doctest.testmod(tw)
    assert tried
    assert not failed


def test_public_names():
    assert set(tw.__all__) <= set(dir(tw))
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        tw.matmull  # noqa: B018
