"""alpha multiplies sums over all of k, by every plan: inf, nan and overflow are where the definition has them.

Rows of A and columns of B are such that their sums over blocks of k overflow when they are scaled, or are zero when
alpha is inf, and the sums over all of k do not and are not.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.every_plan import PLANS, kernel_of

pytestmark = pytest.mark.sampled

DTYPES = {"f32": np.float32, "f64": np.float64}
MORE = [
    ("nn", 5, 70, 19, "in_place 3x{2v} kc=5 ways=2x2x1"), ("nn", 1, 5000, 9, "stream 1x4 ways=2x1x1"),
    ("tn", 70, 5, 19, "packed 4x{2v} mc=8 kc=8 nc={2v} ways=1x3x1"), ("tt", 83, 2, 21, "stream 2x4 swap"),
]


def operands(problem, dtype):
    """A @ B is 0 in the first row, 2^-10 in the second and 4 in others; each block of steps of k has a part of it."""
    p, big = problem, dtype(2.0 ** (80 if dtype is np.float32 else 600))
    a, b = np.zeros((p.m, p.k), dtype), np.ones((p.k, p.n), dtype)
    a[:, -1] = 4
    a[0] = 0
    a[0, 0], a[0, -1] = big, -big
    if p.m > 1:
        a[1] = 0
        a[1, -1] = 2.0**-10
    stored = [x.T.copy().T if letter == "t" else x for x, letter in zip((a, b), p.layout)]
    return *stored, big


def definition(a, b, alpha, beta, c):
    with np.errstate(all="ignore"):
        sums = a[:, [0]] + a[:, 1:].sum(axis=1, keepdims=True) + 0 * b[:1]
        return alpha * sums.astype(np.longdouble) + (beta * c.astype(np.longdouble) if beta else 0)


@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, "f32") for case in (*PLANS, *MORE)), (PLANS[0], "f64"), (PLANS[-1], "f64")],
    ids=lambda x: x if isinstance(x, str) else f"{x[0]}-{x[4]}",
)
def test_every_plan(case, dtype):
    kernel = kernel_of(*case, dtype)
    p, T = kernel.problem, DTYPES[dtype]
    a, b, big = operands(p, T)
    c = np.full((p.m, p.n), 3, T)
    for alpha, beta in ((np.inf, 0), (-np.inf, 2), (float(big), 0), (float(big), -1), (0.5, 1), (np.nan, 0), (3, 0.25),
                        (1, np.inf)):
        out = c.copy()
        kernel(a, b, out, alpha=alpha, beta=beta)
        np.testing.assert_array_equal(out, definition(a, b, alpha, beta, c).astype(T), f"alpha {alpha}, beta {beta}")
    if case in PLANS[::3]:
        simulated = tw.simulate(kernel, a, b, c.copy(), alpha=0.75, beta=-0.5).result
        np.testing.assert_array_equal(simulated, kernel(a, b, c, alpha=0.75, beta=-0.5))


@pytest.mark.parametrize("k", [2, 2100])
@pytest.mark.parametrize("shape", [(1, 600), (2, 600), (4, 600), (600, 2), (40, 70), (3, 5)], ids=str)
def test_matmul_in_every_layout(k, shape):
    """What users see, of shapes that differ in plan; and so scale_a, which is a factor of alpha."""
    m, n = shape
    for T in (np.float32, np.complex64)[:1 + (k > 2)]:
        a, b = np.zeros((m, k), T), np.full((k, n), 1e-20, T)
        a[:, 1] = 1e20
        for x in (a, np.asfortranarray(a), np.repeat(a, 2, 1)[:, ::2]):
            for y in (b, np.asfortranarray(b)):
                np.testing.assert_allclose(tw.matmul(x, y, alpha=1e25), np.full(shape, 1e25), rtol=1e-6)
                np.testing.assert_array_equal(tw.matmul(x, y, alpha=np.inf).real, np.full(shape, np.inf))
                if T is np.float32:
                    np.testing.assert_allclose(tw.matmul(x, y, scale_a=1e25), np.full(shape, 1e25), rtol=1e-6)
                # beta * C overflows and the result does not, wherever C lies
                for out in (np.full(shape, 3e38, T), np.full((n, m), 3e38, T).T, np.full((m, 2 * n), 3e38, T)[:, ::2]):
                    tw.gemm(-3e38, x, y, 2, out)
                    np.testing.assert_allclose(out, np.full(shape, 3e38), rtol=1e-6)
    batch = tw.matmul(np.stack([a.real, a.real]), np.stack([b.real, b.real]), alpha=np.inf)
    assert np.isposinf(batch).all()


@pytest.mark.parametrize("name", ["f16", "bf16", "e5m2"])
def test_sums_that_are_rounded_as_they_are_stored(name):
    """The first blocks of k are zeros, and the others do not overflow before they are scaled."""
    dtype = tw.formats.get(name).dtype
    a, b = np.zeros((70, 3000), dtype), np.ones((3000, 80), dtype)
    a[:, -1] = 2
    for alpha, wanted in ((np.inf, np.inf), (0.25, 0.5)):
        found = tw.matmul(a, b, alpha=alpha, out_dtype=name).astype(np.float32)
        np.testing.assert_array_equal(found, np.full((70, 80), wanted))
    packed = tw.matmul(a, tw.pack(b), alpha=np.inf, out_dtype="f32")
    assert np.isposinf(packed).all()
