"""einsum and tensordot of arrays on a GPU, on the fake drivers of both makers."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.arrays import small_integers
from tests.helpers.gpus import machine
from tests.runtime.gpu.test_plans_of_operands import aligned, compiled

SIZES = {"a": 3, "b": 4, "c": 5, "d": 2, "e": 6, "f": 3, "g": 1}
# subscripts → how many launches of products
CASES = {
    "ae,eb->ab": 1,
    "cea,ecb->ba": 1,               # k is c and e: one operand is copied
    "abe,eb->ba": 1,                # a batch of vectors
    "dab,dbc->dac": 1,
    "aeb,ec->abc": 1,               # rows a and b do not merge: a stack
    "aefb,fc->abce": 3,
    "a,b->ba": 1,
    "aab,b->a": 1,                  # a diagonal
    "ga,ab->gb": 1,
    "ab,bc,ce->ae": 2,
}


@pytest.fixture(params=["sm_90a", "gfx942"])
def on(request, monkeypatch):
    """A GPU."""
    found = machine(monkeypatch, request.param)
    found.made = compiled(monkeypatch, found.engine)
    return found


def arrays(subscripts, dtype=np.float32):
    terms = subscripts.split("->")[0].split(",")
    return [aligned(small_integers(i, [SIZES[x] for x in term], dtype)) for i, term in enumerate(terms)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("subscripts", CASES)
def test_products_are_made_there(on, subscripts):
    xs = arrays(subscripts)
    got = tw.einsum(subscripts, *map(on.array, xs))
    on.finish()
    np.testing.assert_array_equal(got.host, np.einsum(subscripts, *xs))
    assert got.host.flags.c_contiguous
    assert len([name for name, *_ in on.machine.launches if not name.startswith("copy")]) == CASES[subscripts]


def test_into_an_array(on):
    xs, out = arrays("aeb,ec->cab"), on.array(aligned(np.zeros((5, 3, 4), np.float32)))
    assert tw.einsum("aeb,ec->cab", *map(on.array, xs), out=out) is out
    on.finish()
    np.testing.assert_array_equal(out.host, np.einsum("aeb,ec->cab", *xs))


def test_into_another_format(on):
    xs, out = arrays("ae,eb->ab"), on.array(aligned(np.zeros((3, 4), np.float64)))
    tw.einsum("ae,eb->ab", *map(on.array, xs), out=out)
    on.finish()
    np.testing.assert_array_equal(out.host, xs[0] @ xs[1])


def test_tensordot(on):
    a, b = arrays("cea,ecb->ab")
    got = tw.tensordot(on.array(a), on.array(b), axes=([0, 1], [1, 0]))
    on.finish()
    np.testing.assert_array_equal(got.host, np.tensordot(a, b, axes=([0, 1], [1, 0])))


def test_sums_of_one_operand_are_refused(on):
    a, b = map(on.array, arrays("ab,bc"))
    with pytest.raises(ValueError, match="label 'a' is summed over in one operand alone, which is no product: on "):
        tw.einsum("ab,bc->c", a, b)
    with pytest.raises(ValueError, match="label 'b' is summed over"):
        tw.einsum("ab->a", a)
    with pytest.raises(TypeError, match=r"and operand 1 is numpy\.ndarray"):
        tw.einsum("ab,bc->ac", a, np.ones((4, 5), np.float32))


def test_a_permuted_copy(on):
    (a,) = arrays("abc")
    got = tw.einsum("abc->cab", on.array(a))
    on.finish()
    np.testing.assert_array_equal(got.host, a.transpose(2, 0, 1))
