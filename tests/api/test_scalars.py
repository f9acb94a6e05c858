"""alpha and beta of any size and kind: modulo 2^bits, inf beyond a format's range, complex; in every layout of C."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.numbers import modulo, numbers
from tilewright.formats import FORMATS, Integer

WIDE = np.frompyfunc(int, 1, 1)
INTEGERS = [f for f in FORMATS.values() if isinstance(f, Integer)]


def layouts(c):
    """The same matrix by rows, by columns, with gaps and backwards."""
    yield c.copy()
    yield c.copy("F")
    yield np.repeat(np.repeat(c, 2, 0), 3, 1)[::2, ::3]
    yield c[::-1, ::-1].copy()[::-1, ::-1]


@pytest.mark.parametrize("f", INTEGERS, ids=str)
@pytest.mark.parametrize("k", [0, 1, 9])
def test_integers_of_any_size_count_modulo_two_to_the_bits(f, k):
    a, b, c = numbers(f, 6, k), numbers(f, k, 5), numbers(f, 6, 5)
    exact = WIDE(a) @ WIDE(b) if k else np.zeros((6, 5), object)
    for alpha, beta in ((1, 2**31), (2**31, 2**63), (-(2**63), 2**64 - 1), (10**40 + 1, -(10**40) - 3), (1, 2.0**70),
                        (np.uint64(2**63), np.int8(-1)), (True, Fraction(6, 2))):
        wanted = modulo(int(alpha) * exact + int(beta) * WIDE(c), f.bits)
        for out in layouts(c):
            tw.gemm(alpha, a, b, beta, out)
            np.testing.assert_array_equal(modulo(out, f.bits), wanted, f"alpha {alpha}, beta {beta}")
        found = tw.matmul(a, b, alpha=alpha, beta=beta, c=c)
        np.testing.assert_array_equal(modulo(found, 8 * found.itemsize) % (1 << f.bits), wanted)
    found = tw.matmul(a, b, beta=1, c=2**70 + 3, out_dtype=f)
    np.testing.assert_array_equal(modulo(found, f.bits), modulo(exact + 3, f.bits))


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 300, 400), (300, 2, 400), (7, 0, 5), (70, 70, 70)], ids=str)
def test_beyond_the_range_of_f32(shape):
    m, k, n = shape
    a, b, c = (np.ones(s, np.float32) for s in ((m, k), (k, n), (m, n)))
    sums = np.inf if k else 0.0
    for large in (1e39, 3.4028235677973366e38, 10**400, Fraction(10**400), Decimal("1e999"), np.float64(1e300)):
        assert (tw.matmul(a, b, alpha=large) == sums).all()
        assert (tw.matmul(a, b, scale_a=large) == sums).all()
        for out in layouts(c):
            assert (tw.gemm(1, a, b, -large, out) == -np.inf).all()
    assert (tw.matmul(a, b, beta=1, c=10**400) == np.inf).all()
    half = np.ones((2, 2), np.float16)
    assert (tw.matmul(half, half, scale_a=1e39, scale_b=1e-39) == 2).all()  # factors of one alpha, which is 1
    assert np.isinf(tw.matmul(half.astype(np.float64), half, alpha=10**400)).all()


def test_no_imaginary_part_is_dropped():
    x, i = np.ones((2, 2), np.float32), np.ones((2, 2), np.int64)
    for one in (1j, np.complex64(1j), np.array(2 + 1j)):
        with pytest.raises(TypeError, match=r"alpha = .* is complex, and the products are added up in float32.*c64"):
            tw.matmul(x, x, alpha=one)
        with pytest.raises(TypeError, match=r"beta = .* is complex"):
            tw.gemm(1, x, x, one, x.copy())
        with pytest.raises(TypeError, match=r"alpha must be a whole number .*out_dtype='c128' multiplies"):
            tw.matmul(i, i, alpha=one)
        with pytest.raises(TypeError, match=r"scale_a must be a real number"):
            tw.matmul(x, x, scale_a=one)
        np.testing.assert_array_equal(tw.matmul(x, x, alpha=one, out_dtype="c64"), complex(one) * (x @ x))
    assert (tw.matmul(x, x, alpha=2 + 0j) == 4).all()  # whose imaginary part is 0
    nan = tw.matmul(x, x, alpha=complex(1, np.nan), out_dtype="c64")
    assert np.isnan(nan).all()
