"""Long double and Python objects: matmul's rules around NumPy's own product."""

from __future__ import annotations

import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.processes import printed
from tilewright.formats import FORMATS
from tilewright.rules import numpy_products

LONG = [np.longdouble, np.clongdouble]


@pytest.mark.parametrize("dtype", LONG)
def test_long_double_has_numpys_bits(dtype):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((4, 5, 6)).astype(dtype) / 3, rng.standard_normal((6, 7)).astype(dtype) / 3
    for x, y in ((a, b), (a.real.astype(np.float32), b), (a[0, 0], b), (a, b[:, 0]), (a[0, 0], b[:, 0])):
        found, wanted = tw.matmul(x, y), np.matmul(x, y)
        assert (found.dtype, type(found)) == (wanted.dtype, type(wanted))
        np.testing.assert_array_equal(found, wanted)
    out = np.zeros((2, 4, 5, 7), dtype)
    assert tw.matmul(a, b, out) is out
    np.testing.assert_array_equal(out[1], a @ b)
    np.testing.assert_array_equal(tw.matmul(a, b.T, trans_b="c"), a @ b.conj())
    assert tw.matmul(a, b, out_dtype="c64").dtype == np.complex64
    single = np.float32(1) / np.ones((2, 2), np.float32)
    assert tw.matmul(single, single, out_dtype=dtype).dtype == dtype
    assert tw.matmul(single, single, np.zeros((2, 2), dtype)).dtype == dtype


def test_alpha_beta_and_c_keep_their_digits():
    third, x = np.longdouble(1) / 3, np.ones((2, 2), np.longdouble)
    np.testing.assert_array_equal(tw.matmul(x, x, alpha=third, beta=third, c=x), third * 2 + third)
    c = x.copy()
    assert tw.gemm(third, np.ones((2, 2), np.float32), x, 2, c) is c
    np.testing.assert_array_equal(c, third * 2 + 2)
    np.testing.assert_array_equal(tw.matmul(x, x, beta=0, c=np.full((2, 2), np.nan)), x @ x)
    np.testing.assert_array_equal(tw.matmul(x * np.nan, x, alpha=0, beta=1, c=x), x)


def test_python_objects():
    a, b = np.array([[2**70, 1], [3, Fraction(1, 3)]], object), np.array([[1, 2], [3, 4]], object)
    np.testing.assert_array_equal(tw.matmul(a, b), a @ b)
    np.testing.assert_array_equal(tw.matmul(a, b, alpha=Fraction(1, 7), beta=2, c=a), Fraction(1, 7) * (a @ b) + 2 * a)
    assert tw.matmul([Decimal(2)], [Decimal("1.5")]) == Decimal(3)
    np.testing.assert_array_equal(tw.matmul([[2**70]], np.eye(1, dtype=int)), [[2**70]])  # as np.matmul takes it
    out = a.copy()
    assert tw.matmul(out, b, out) is out
    np.testing.assert_array_equal(out, a @ b)
    with pytest.raises(TypeError, match="unsupported operand"):  # the elements' own word
        tw.matmul([[Fraction(1)]], [[None]])


@pytest.mark.parametrize("f", FORMATS.values(), ids=str)
def test_every_format_has_kernels_here(f):
    """float8_e4m3fnuz has the one-letter code of NumPy's complex long double."""
    assert not numpy_products.takes(f.dtype)
    assert not numpy_products.takes(np.empty(1, f.dtype), f.dtype.type)


@pytest.mark.parametrize("kind", [np.longdouble, np.clongdouble, object])
def test_what_only_numpy_multiplies(kind):
    for x in (kind, np.dtype(kind), np.empty(1, kind)):
        assert numpy_products.takes(np.empty(1), x)


def test_what_numpy_has_no_word_for_is_refused():
    x = np.ones((2, 2), np.longdouble)
    said = r"plan= is not supported with operands of .*, which NumPy multiplies: it must be None, not .in"
    with pytest.raises(ValueError, match=said):
        tw.matmul(x, x, plan=tw.plan(tw.Gemm(2, 2, 2)))
    with pytest.raises(ValueError, match="algorithm= is not supported with operands of object"):
        tw.matmul(x.astype(object), x, algorithm="fastest")
    with pytest.raises(ValueError, match=r"a must be one of f64, .*; long double has no vector instructions"):
        tw.matmul(x, x, scale_a=2.0)
    with pytest.raises(TypeError, match=r"out has dtype int64, to which a result of dtype .* cannot be cast"):
        tw.matmul(x, x, np.zeros((2, 2), int))
    with pytest.raises(TypeError, match="alpha = 1j is complex"):
        tw.matmul(x, x, alpha=1j)
    with pytest.raises(ValueError, match="a and b must agree in k"):
        tw.matmul(x, x[:1])
    with pytest.raises(ValueError, match=r"out must have the result's shape \(2, 2\)"):
        tw.matmul(x, x, np.zeros((1, 2), np.longdouble))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(tw.matmul(x * np.finfo(np.longdouble).max, x)).all()


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble, object])
def test_results_can_be_written_to(dtype):
    x = np.ones((3, 3), dtype)
    for result in tw.matmul(x, x), tw.matmul(x, x, c=np.ones(3), beta=1), tw.matmul(x, x, alpha=2):
        result += 1


@pytest.mark.parametrize("dtypes", [("q", "q"), ("Q", "Q"), ("q", "l"), ("l", "q"), ("q", "i"), ("l", "l")])
def test_integers_of_one_size_keep_numpys_type(dtypes):
    """np.longlong and np.int64 are equal, and two types; calls are repeated for each."""
    x, y = (np.arange(3).astype(dtype) for dtype in dtypes)
    for a, b in (x, y), (x[None], y[:, None]):
        for _ in range(3):
            assert np.asarray(tw.matmul(a, b)).dtype.num == np.asarray(np.matmul(a, b)).dtype.num
    for _ in range(3):
        assert type(tw.einsum("i,i->", x, y)) is type(np.einsum("i,i->", x, y))


def test_tilewrights_functions_in_place_of_numpys():
    """What NumPy multiplies is its own function's, whatever stands in its place."""
    printed("""
import numpy as np, tilewright as tw
right = np.matmul, np.einsum, np.tensordot
x, y = np.ones((2, 3)), np.arange(6, dtype=object).reshape(3, 2)
np.matmul, np.einsum, np.tensordot = tw.matmul, tw.einsum, tw.tensordot
tw.matmul(x.astype("i1"), x.T.astype("f2"))
assert (np.matmul(x, x.T) == 3).all() and (np.matmul(x, y)[0] == [6, 9]).all()
assert (np.einsum("ij,jk->ik", x, y)[0] == [6, 9]).all() and (np.tensordot(x, x.T, 1) == 3).all()
class Own:
    def __array_ufunc__(self, ufunc, method, *inputs, **more): return ufunc is right[0]
assert np.matmul(Own(), x) is True
tw.plan(tw.Gemm(5, 6, 7, "i8", "bf16", "f32"), "x86-avx2")
""")
