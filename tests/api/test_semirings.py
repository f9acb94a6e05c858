"""contract: products with their own arithmetic, against NumPy in float64 and Python's integers."""
import numpy as np
import pytest

import tilewright as tw
from tilewright.expressions.semiring import Semiring, semiring
from tilewright.expressions.tracing import TracingError
from tilewright.plans.semirings import swapped

RNG = np.random.default_rng(5)
ARITHMETIC = {
    "squares": (lambda x, y: (x - y)**2, "sum"),
    "absolute": (lambda x, y: abs(x - y), "max"),
    "paths": (lambda x, y: x + y + 40, "min"),          # above 0, and the last below: no sum may begin with 0
    "times": (lambda x, y: x * y, "max"),
    "some": (lambda x, y: (x > 2) & (y > 2), "any"),
    "product": (lambda x, y: x * y, "sum"),
    "uneven": (lambda x, y: x - 2*y - 60, "max"),
}


def numbers(dtype, *shape):
    return RNG.integers(-9, 10, shape).astype(dtype)


def reference(f, reduce, a, b):
    return semiring(f, reduce, "int" if a.dtype.kind in "iu" else "float").evaluate(a, b)


@pytest.mark.parametrize("dtype", ["f4", "i1"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_small_integers_are_exact(name, dtype):
    """k in several blocks, edges of tiles, A and B by rows and by columns, C by columns."""
    f, reduce = ARITHMETIC[name]
    a, b = numbers(dtype, 13, 1100), numbers(dtype, 1100, 37)
    wanted = reference(f, reduce, a, b)
    found = tw.contract(f, a, b, reduce=reduce)
    assert found.dtype == (bool if reduce == "any" else np.int32 if dtype == "i1" else np.float32)
    np.testing.assert_array_equal(found, wanted)
    out = np.empty((37, 13), found.dtype).T
    assert tw.contract(f, np.asfortranarray(a), np.asfortranarray(b), reduce=reduce, out=out, threads=2) is out
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("dtype", ["f8", "f2", "i8", "u1"])
def test_formats(dtype):
    f, reduce = ARITHMETIC["squares"]
    a, b = numbers(dtype, 5, 40) if dtype != "u1" else numbers("i1", 5, 40).astype("u1"), numbers(dtype, 40, 9)
    found = tw.contract(f, a, b, reduce=reduce)
    assert found.dtype == {"f8": np.float64, "f2": np.float32, "i8": np.int64, "u1": np.int32}[dtype]
    np.testing.assert_array_equal(found, reference(f, reduce, a, b))


def test_bits():
    """Of binary networks: how many signs differ, 32 of them in a number."""
    a, b = (RNG.integers(-2**31, 2**31, shape, np.int32) for shape in ((6, 33), (33, 10)))

    def differ(x, y):
        return tw.popcount(x ^ y)
    wanted = [[sum(bin((int(x) ^ int(y)) & 0xFFFFFFFF).count("1") for x, y in zip(row, column)) for column in b.T]
              for row in a]
    np.testing.assert_array_equal(tw.contract(differ, a, b), wanted)
    np.testing.assert_array_equal(reference(differ, "sum", a, b), wanted)


def test_batches_vectors_and_epilogues():
    f, reduce = ARITHMETIC["squares"]
    a, b = numbers("f4", 3, 6, 20), numbers("f4", 20, 7)
    wanted = reference(f, reduce, a, b)
    np.testing.assert_array_equal(tw.contract(f, a, b), wanted)
    np.testing.assert_array_equal(tw.contract(f, a[0, 0], b), wanted[0, 0])
    np.testing.assert_allclose(tw.contract(f, a, b, epilogue=lambda acc: tw.sqrt(acc)), np.sqrt(wanted), rtol=1e-6)
    nearest = tw.contract(f, a[0], b, epilogue=lambda acc: tw.row_min(acc))
    np.testing.assert_array_equal(nearest, wanted[0].min(-1))


def test_elementary_functions():
    a, b = RNG.normal(size=(9, 30)).astype("f4"), RNG.normal(size=(30, 11)).astype("f4")

    def kernel(x, y):
        return tw.exp(-0.5 * (x - y)**2)
    np.testing.assert_allclose(tw.contract(kernel, a, b), reference(kernel, "sum", a, b), rtol=1e-5)


def test_nans_are_left_out_of_min_and_max():
    a = np.array([[np.nan, 3, 1], [np.nan] * 3], np.float32)
    b = np.ones((3, 1), np.float32)
    assert tw.contract(lambda x, y: x * y, a, b, reduce="max").tolist() == [[3.0], [-np.inf]]
    assert tw.contract(lambda x, y: x * y, a, b, reduce="min").tolist() == [[1.0], [np.inf]]


def test_no_values():
    a, b = np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)
    np.testing.assert_array_equal(tw.contract(lambda x, y: x + y, a, b), np.zeros((2, 3)))
    with pytest.raises(ValueError, match="the min of no values: k must be 1 or more"):
        tw.contract(lambda x, y: x + y, a, b, reduce="min")
    assert tw.contract(lambda x, y: x + y, a[:0], b).shape == (0, 3)


def test_texts():
    made = semiring(lambda x, y: x - 2*y, "max")
    assert Semiring.read(made.text) == made
    assert Semiring.read(swapped(made.text)).swapped == made
    assert made.swapped.step != made.step
    for text in ("", "best | a:float b:float; add a b; -> %0", "sum | a:float; -> a", "sum | a:float b:int; -> a"):
        with pytest.raises(ValueError, match="is not the text of a semiring"):
            Semiring.read(text)


X = np.ones((3, 3), np.float32)


@pytest.mark.parametrize(("call", "error", "sentence"), [
    (lambda: tw.contract(lambda x: x, X, X), TypeError, "f must take two numbers"),
    (lambda: tw.contract(3, X, X), TypeError, "f must be a function of two numbers, not 3"),
    (lambda: tw.contract(lambda x, y: (x, y), X, X), TypeError, "f must return one number"),
    (lambda: tw.contract(lambda x, y: x if x > y else y, X, X), TracingError, "test_semirings.py"),
    (lambda: tw.contract(lambda x, y: x * y, X, X, reduce="mean"), ValueError, "reduce must be one of sum, min"),
    (lambda: tw.contract(lambda x, y: x * y, X, X, over="j"), ValueError, 'over must be "k", not \'j\''),
    (lambda: tw.contract(lambda x, y: x * y, X, X * 1j), TypeError, "must be of real floating-point"),
    (lambda: tw.contract(lambda x, y: x * y, X, X[:2]), ValueError, "a and b must agree in k"),
    (lambda: tw.contract(lambda x, y: x & 1, X, X), TracingError, "and of a float"),
    (lambda: tw.contract(semiring(lambda x, y: x, "sum", "int"), X, X), TypeError, "f was made for numbers of k"),
    (lambda: tw.contract(lambda x, y: x * y, X, X, plan="in_place 4x16"), ValueError, "only packed plans take"),
])
def test_errors(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()
