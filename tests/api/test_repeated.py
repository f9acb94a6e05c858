"""Calls of einsum like earlier ones: other arrays, exact results, and whatever differs is noticed."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import tilewright as tw
from tests.api.test_einsum import RNG, whole
from tilewright.api import as_matmul, contraction
from tilewright.runtime import repeats
from tilewright.runtime.cpu import engine


def exact(subscripts, *xs):
    return np.einsum(subscripts, *(x.astype(np.int64) for x in xs))


@pytest.mark.parametrize("dtype", [np.float32])
@pytest.mark.parametrize("batch", ["", "b", "bh"])
def test_products_of_matrices_are_matmuls(batch, dtype):
    rng, sizes = RNG(1), dict(zip("bhijk", (2, 3, 4, 5, 6)))
    for a, b, c in [(a, b, c) for a in permutations("ik") for b in permutations("kj") for c in permutations("ij")]:
        for x, y in ((a, b), (b, a)):
            terms = [batch + "".join(term) for term in (x, y, c)]
            subscripts = f"{terms[0]},{terms[1]}->{terms[2]}"
            assert as_matmul.as_matmul(subscripts) is not None
            xs = [whole(rng, [sizes[label] for label in term], dtype) for term in terms]
            for arrays in (xs[:2], [np.ascontiguousarray(x) for x in xs[:2]]):
                assert np.array_equal(tw.einsum(subscripts, *arrays), exact(subscripts, *arrays)), subscripts
                assert np.array_equal(tw.einsum(subscripts, *arrays, out=xs[2]), exact(subscripts, *arrays))


@pytest.mark.parametrize("subscripts", ["ii,ij->ij", "ij,jk->i", "ij,kl->ik", "ij,jk,kl->il", "ij,ij->ij", "ij->ji",
                                        "...ij,jk->ik", "i1,1k->ik", "bij,cjk->bik", "ij,jk->ii", "ij,j->i"])
def test_other_subscripts_are_not(subscripts):
    assert as_matmul.as_matmul(subscripts) is None


@pytest.mark.parametrize("subscripts", ["i,i->", "ij,ij->", "abc,abc->", "ij,j->i", "ji,j->i", "j,ij->i", "j, ji -> i",
                                        "ij,j->j", "ii,i->i", "i,j->", "ij,ji->", "i,i", "ij,i->"])
def test_products_with_vectors_and_sums_of_all_products(subscripts):
    rng = RNG(5)
    terms = subscripts.replace(" ", "").partition("->")[0].split(",")
    for dtype in np.float32, np.int32:
        xs = [rng.integers(-3, 4, [5] * len(term)).astype(dtype) for term in terms]
        for arrays in (xs, [x.T for x in xs], [x[::-1] for x in xs]):
            wanted = np.einsum(subscripts, *arrays)
            for _ in range(2):
                found = tw.einsum(subscripts, *arrays)
                assert (type(found), found.dtype, found.shape) == (type(wanted), wanted.dtype, wanted.shape)
                assert np.array_equal(found, wanted)
    short = ("j,ij->i", "i,i->", "ij,j->i", "ij,ij->", "ji,j->i", "abc,abc->")
    assert (as_matmul.with_vector(subscripts) is not None or as_matmul.sums_all(subscripts) > 0) == (
        subscripts in (*short, "j, ji -> i"))


def test_implied_results():
    a, b = RNG(0).integers(-3, 4, (2, 5, 5)).astype(np.float32)
    for subscripts in ("ij,jk", "ij,ik", "ji,kj", "zj,ja", " i j , j k -> i k "):
        assert as_matmul.as_matmul(subscripts) is not None
        assert np.array_equal(tw.einsum(subscripts, a, b), np.einsum(subscripts, a, b))


def test_what_a_record_may_not_be_used_for():
    rng = RNG(3)
    x, y = rng.integers(-3, 4, (2, 4, 5, 6)).astype(np.float32)
    forms = "abc,abd->dc"
    y = np.ascontiguousarray(y)
    for each in (forms, "abc,abd->cd"):                                     # of one array nothing is recorded
        for arrays in ((x, x), (x, y)):
            assert np.array_equal(tw.einsum(each, *arrays), exact(each, *arrays))
    out = np.empty((6, 6), np.float32)
    for _ in range(2):
        assert np.array_equal(tw.einsum(forms, x, y, out=out), exact(forms, x, y))
    inside = x.reshape(-1)[6:42].reshape(6, 6)                              # overlaps
    options = None, "K", None, ""
    for where, used in ((inside, False), (out, True)):
        asked = contraction.asked((forms, x, y), (where,), (), *options)
        assert asked is not None
        assert (repeats.again(*asked, (where,)) is not None) == used
    expected = exact(forms, x, y)
    assert np.array_equal(tw.einsum(forms, x, y, out=inside), expected)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        tw.einsum(forms, x, y, out=out)
    raw = np.zeros(4 * x.size + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    raw[...] = y
    assert not raw.flags.aligned
    assert np.array_equal(tw.einsum(forms, raw, y), exact(forms, raw, y))
    with pytest.raises(TypeError, match="unexpected keyword"):
        tw.einsum(forms, x, y, foo=1)
    with pytest.raises(ValueError, match="order must be"):
        tw.einsum(forms, x, y, order="X")
    with pytest.raises(ValueError, match="label 'b' has size 5 before"):
        tw.einsum(forms, x, y[:, :4])


def test_lists_threads_and_new_plans():
    x, y = RNG(4).integers(-3, 4, (2, 4, 5, 6)).astype(np.float64)
    y = y.copy()
    expected = exact("abc,abd->cd", x, y)
    for threads in (1, 2, None):
        for _ in range(2):
            assert np.array_equal(tw.einsum(x, [0, 1, 2], y, [0, 1, 3], [2, 3], threads=threads), expected)
            assert np.array_equal(tw.tensordot(x, y, ([0, 1], [0, 1]), threads=threads), expected)
    with pytest.raises(TypeError, match="must be integers"):
        tw.einsum(x, [False, True, 2], y, [0, 1, 3], [2, 3])
    engine.forget()
    assert not repeats.records
    assert np.array_equal(tw.tensordot(x, y, ([0, 1], [0, 1]), threads=1), expected)
    assert len(repeats.records) == 1


# ---- chains of several products


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


def test_operands_that_are_one_array(long_ways):
    """Which of two addresses is which cannot be seen from it."""
    a, b, c = RNG(2).integers(-3, 4, (3, 6, 6)).astype("f4")
    for x, y, z in ((a, b, a), (a, b, a), (a, b, c), (c, b, a), (b, b, b), (a, b, c)):
        np.testing.assert_array_equal(tw.einsum("ij,jk,kl->il", x, y, z), x @ y @ z)
    for x in a, b, c:                               # the result lies where an operand does
        for _ in range(2):
            right, out = x @ b @ c, x.copy()
            np.testing.assert_array_equal(tw.einsum("ij,jk,kl->il", out, b, c, out=out), right)


def test_labels_as_lists(long_ways):
    for again in range(2):
        a, b, c = (RNG(again + s[0]).integers(-3, 4, s).astype("f4") for s in ((5, 6), (6, 7), (7, 8)))
        del long_ways[:]
        np.testing.assert_array_equal(tw.einsum(a, [0, 1], b, [1, 2], c, [2, 3], [0, 3]), a @ b @ c)
        np.testing.assert_array_equal(tw.einsum(a, [0, 1], b, [1, 2], c, [2, 3], [3, 0]), (a @ b @ c).T)
        np.testing.assert_array_equal(tw.einsum(a, [0, 1], b, [1, 2], c, [2, 3]), a @ b @ c)
        assert len(long_ways) == 3*(again == 0)
