"""A @ A^T: half of it is multiplied, and the result is symmetric to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.cpu import symmetric

RNG = np.random.default_rng(9)
SHAPES = [(407, 200), (161, 1001)]


def random(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    x = RNG.standard_normal(shape)
    return (x + 1j*RNG.standard_normal(shape) if dtype[0] == "c" else x).astype(dtype)


@pytest.fixture
def halves(monkeypatch):
    """The products of which half was multiplied."""
    found, original = [], symmetric.multiply
    monkeypatch.setattr(symmetric, "multiply", lambda *args: [found.append(args), original(*args)])
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_symmetry(halves, shape, dtype):
    wide = random((shape[0] + 1, shape[1] + 3), dtype)
    a = wide[:-1, 2:-1]
    for x in a, np.asfortranarray(a)[::-1]:
        for threads in 1, 3:
            c = tw.matmul(x, x.T, threads=threads)
            np.testing.assert_array_equal(c, c.T)
            np.testing.assert_allclose(c, x @ x.T, rtol=1e-3 if c.real.dtype == "f4" else 1e-10, atol=1e-3)
        one, three = (tw.matmul(x, x.T, threads=threads, deterministic=True) for threads in (1, 3))
        np.testing.assert_array_equal(one, three)
        inside = np.full((len(c) + 2, len(c) + 3), 7, dtype)
        assert tw.matmul(x, x.T, out=inside[1:-1, 2:-1]) is not None
        np.testing.assert_array_equal(inside[1:-1, 2:-1], inside[1:-1, 2:-1].T)
        assert (inside[[0, -1]] == 7).all()
        assert (inside[:, [0, 1, -1]] == 7).all()
        np.testing.assert_allclose(tw.gemm(2, x, x.T, 0, np.empty_like(c)), 2 * c, rtol=1e-3, atol=1e-3)
    assert len(halves) >= 4


def test_real_bits_are_those_of_other_products(halves):
    a = random((400, 260), "f4")
    b = a.copy()
    other = tw.matmul(a, b.T)                   # has a record, which the product with itself may not take
    for _ in range(2):
        half = tw.matmul(a, a.T)
        np.testing.assert_array_equal(half, other)
        np.testing.assert_array_equal(tw.matmul(a, b.T), other)
    assert len(halves) == 2
    square = random((300, 300), "f4")
    for x, y in (square, square), (square, square.T.conj()), (a, (a + 1).T):
        np.testing.assert_allclose(tw.matmul(x, y), x @ y, rtol=1e-3, atol=1e-3)
    c = random((400, 400), "f4")
    np.testing.assert_allclose(tw.matmul(a, a.T, beta=1, c=c), a @ a.T + c, rtol=1e-3, atol=1e-3)
