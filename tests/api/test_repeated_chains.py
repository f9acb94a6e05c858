"""Calls of einsum with several products that are like an earlier one: repeated, with the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.api import contraction
from tilewright.runtime import repeats

RNG = np.random.default_rng(2)
SIZES = dict(zip("abijklmz", (3, 40, 5, 6, 7, 8, 9, 2)))


@pytest.fixture
def long_ways(monkeypatch):
    """The calls that were read and planned as if they were the first."""
    calls, original = [], contraction._einsum

    def einsum(*args):
        calls.append(args)
        return original(*args)
    monkeypatch.setattr(contraction, "_einsum", einsum)
    tw.matmul(np.ones((3, 3), np.float32), np.ones((3, 3), np.float32))
    repeats.forget()
    return calls


def numbers(labels: str, dtype: str = "f4") -> np.ndarray:
    return RNG.integers(-3, 4, [SIZES[x] for x in labels]).astype(dtype)


@pytest.mark.parametrize(("subscripts", "dtype"), [
    ("ij,jk,kl->il", "f4"), ("ij,jk,kl", "f8"), ("aij,ajk,akl->ail", "f4"), ("ij,ik,il->jkl", "f4"),
    ("ij,jk,kl,lm->im", "f4"), ("bi,ij,jk->kb", "f4")])
def test_the_second_call_takes_no_rules(subscripts, dtype, long_ways):
    inputs = subscripts.partition("->")[0].split(",")
    for given in False, True:
        for again in range(3):
            operands = [numbers(x, dtype) for x in inputs]
            wanted = np.einsum(subscripts, *operands)
            out = np.empty(wanted.shape, dtype) if given else None
            del long_ways[:]
            found = tw.einsum(subscripts, *operands, out=out)
            np.testing.assert_array_equal(found, wanted)
            assert (type(found), found.dtype) == (np.ndarray, wanted.dtype)
            assert out is None or found is out
            assert len(long_ways) == (again == 0)


# sums within an operand, elementwise products and scalars take NumPy's help between products, and so do some integers
@pytest.mark.parametrize(("subscripts", "dtype"), [
    ("ijz,jk,kl->il", "f4"), ("ij,jk,ki->", "f4"), ("ij,j,jk->ik", "f4"), ("ij,jk,kl->il", "i4")])
def test_what_is_more_than_products(subscripts, dtype, long_ways):
    for _ in range(3):
        operands = [numbers(x, dtype) for x in subscripts.partition("->")[0].split(",")]
        found, wanted = tw.einsum(subscripts, *operands), np.einsum(subscripts, *operands)
        np.testing.assert_array_equal(found, wanted)
        assert np.ndim(found) == np.ndim(wanted)


def test_operands_that_are_one_array(long_ways):
    """Which of two addresses is which cannot be seen from it."""
    a, b, c = (RNG.integers(-3, 4, (6, 6)).astype("f4") for _ in range(3))
    for x, y, z in ((a, b, a), (a, b, a), (a, b, c), (c, b, a), (b, b, b), (a, b, c)):
        np.testing.assert_array_equal(tw.einsum("ij,jk,kl->il", x, y, z), x @ y @ z)
    for x in a, b, c:                               # the result lies where an operand does
        for _ in range(2):
            right, out = x @ b @ c, x.copy()
            np.testing.assert_array_equal(tw.einsum("ij,jk,kl->il", out, b, c, out=out), right)


def test_labels_as_lists(long_ways):
    for again in range(2):
        a, b, c = numbers("ij"), numbers("jk"), numbers("kl")
        del long_ways[:]
        np.testing.assert_array_equal(tw.einsum(a, [0, 1], b, [1, 2], c, [2, 3], [0, 3]), a @ b @ c)
        np.testing.assert_array_equal(tw.einsum(a, [0, 1], b, [1, 2], c, [2, 3], [3, 0]), (a @ b @ c).T)
        np.testing.assert_array_equal(tw.einsum(a, [0, 1], b, [1, 2], c, [2, 3]), a @ b @ c)
        assert len(long_ways) == 3*(again == 0)


def test_calls_with_an_order_of_their_own_have_records(long_ways):
    """Which differ by the order."""
    xs = [numbers(labels) for labels in ("ij", "jk", "kl")]
    wanted = np.einsum("ij,jk,kl->il", *xs)
    for optimize in (["einsum_path", (0, 1), (0, 1)], ["einsum_path", (1, 2), (0, 1)], False, "greedy", True):
        before = len(long_ways)
        for _ in range(3):
            assert np.array_equal(tw.einsum("ij,jk,kl->il", *xs, optimize=optimize), wanted)
        assert len(long_ways) == before + 1, optimize
