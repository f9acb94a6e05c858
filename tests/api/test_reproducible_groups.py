"""deterministic=True, batch_invariant=True of grouped_matmul, einsum, tensordot and contract: bits of the same rows in
other calls."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.api.test_reproducible import activated, bits, random

B = (3, 0, 40, 1)
HOW = {"batch_invariant": True}


def parts(x, sizes):
    return np.split(x, np.cumsum(sizes)[:-1])


@pytest.mark.parametrize("kind", ["f32", "bf16", "c64"])
@pytest.mark.parametrize(("n", "k"), [(40, 700), (5, 33)])
def test_rows_of_groups(kind, n, k):
    """In groups of other sizes, beside other groups, elsewhere, by columns, and by matmul of the group alone."""
    a, b = random(kind, 44, k), random(kind, 4, k, n)
    whole = tw.grouped_matmul(a, b, np.cumsum(B), **HOW, threads=2)
    wide = np.complex128 if kind == "c64" else np.float64
    for x, y, z in zip(parts(a, B), b, parts(whole, B)):
        np.testing.assert_allclose(z.astype(wide), x.astype(wide) @ y.astype(wide), rtol=0.1, atol=0.1*k**0.5)
    rows = a[3:43]                                      # of the third group
    for sizes, other in (((0, 40), 0), ((2, 7), 3), ((44, 1), 5), ((7, 3), 30)):
        at = sizes[0]
        x = random(kind, sum(sizes) + 2, k)
        x[at : at + sizes[1]] = rows[other : other + sizes[1]]
        for threads, given in ((1, x), (3, np.asfortranarray(x))):
            found = tw.grouped_matmul(given, b[[0, 2]], np.cumsum(sizes), **HOW, threads=threads)
            assert bits(found[at : at + sizes[1]]) == bits(whole[3 + other : 3 + other + sizes[1]])
    if kind != "c64":
        assert bits(tw.matmul(rows, b[2], **HOW)) == bits(whole[3:43])


def test_rows_with_an_epilogue_and_row_sums():
    a, b, bias = random("f32", 60, 500), random("f32", 3, 500, 150), random("f32", 3, 150)
    y, sums = tw.grouped_matmul(a, b, [10, 50, 60], epilogue=activated, operands={"bias": bias}, **HOW, threads=2)
    for lo, hi in ((10, 11), (12, 40)):
        found = tw.grouped_matmul(a[lo:hi], b[1:2], [hi - lo], epilogue=activated, operands={"bias": bias[1:2]}, **HOW)
        assert bits(found[0]) == bits(y[lo:hi])
        assert bits(found[1]) == bits(sums[lo:hi])


@pytest.mark.parametrize("kind", ["i4", "mxfp8"])
def test_rows_by_weights(kind):
    """Which few rows do not read in registers then."""
    w = tw.quantize(random("f32", 2, 60, 320), kind, **({"group": 32} if kind == "i4" else {}))
    a = random("bf16", 70, 320)
    whole = tw.grouped_matmul(a, w, [3, 70], trans_b=True, **HOW)
    found = tw.grouped_matmul(a[5:7], w, [0, 2], trans_b=True, **HOW)
    assert bits(found) == bits(whole[5:7])


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_steps_of_k(kind):
    """An element depends on its group's steps alone: on no other group and no other row of a."""
    a, b = random(kind, 30, 900), random(kind, 900, 40)
    whole = tw.grouped_matmul(a, b, [20, 700, 900], **HOW, threads=2)
    for found in (tw.grouped_matmul(a[4:5, 20:700], b[20:700], [680], **HOW),
                  tw.grouped_matmul(a[4:5, 15:], b[15:], [5, 685], **HOW)[1:]):
        assert bits(found) == bits(whole[1:2, 4:5])
    one = tw.grouped_matmul(a, b, [20, 700, 900], deterministic=True, threads=1)
    assert bits(tw.grouped_matmul(a, b, [20, 700, 900], deterministic=True, threads=3)) == bits(one)


@pytest.mark.parametrize("kind", ["f32", "bf16", "c64"])
def test_einsum(kind):
    """Of sizes that only the first operand has, of a batch, of its strides, and with the operands exchanged by the
    result's order."""
    x, w = random(kind, 6, 50, 5, 60), random(kind, 5, 60, 7, 8)
    for text in ("xyij,ijuv->xyuv", "xyij,ijuv->uvxy", "xyij,ijuv->uxvy"):
        at = [slice(None)] * 4
        y = text.partition("->")[2].index("y")
        at[y] = slice(20, 23)
        whole = tw.einsum(text, x, w, **HOW, threads=2)
        wide = np.complex128 if kind == "c64" else np.float64
        np.testing.assert_allclose(whole.astype(wide), np.einsum(text, x.astype(wide), w.astype(wide)), rtol=0.1,
                                   atol=1.0)
        for part in (x[:, 20:23], np.asfortranarray(x[:, 20:23]), x[:, 20:23].copy()):
            for threads in (1, 3):
                assert bits(tw.einsum(text, part, w, **HOW, threads=threads)) == bits(whole[tuple(at)])
        one = tw.einsum(text, x, w, deterministic=True, threads=1)
        assert bits(tw.einsum(text, x, w, deterministic=True, threads=3)) == bits(one)
    a, b = random(kind, 9, 33, 400), random(kind, 9, 400, 20)
    whole = tw.einsum("bik,bkj->bij", a, b, **HOW)
    assert bits(tw.einsum("bik,bkj->bij", a[3:5, 8:9], b[3:5], **HOW)) == bits(whole[3:5, 8:9])
    assert bits(tw.tensordot(a[0, 1:2], b[0], 1, **HOW)) == bits(whole[0, 1:2])


def test_contract():
    a, b = random("f32", 80, 700), random("f32", 700, 50)

    def f(x, y):
        return (x - y)**2
    whole = tw.contract(f, a, b, **HOW, threads=2)
    np.testing.assert_allclose(whole[:2], ((a[:2, :, None] - b)**2).sum(1), rtol=1e-4)
    for rows in (slice(0, 1), slice(30, 70)):
        assert bits(tw.contract(f, a[rows], b, **HOW, threads=1)) == bits(whole[rows])
    one = tw.contract(f, a, b, deterministic=True, threads=1)
    assert bits(tw.contract(f, a, b, deterministic=True, threads=3)) == bits(one)


@pytest.mark.parametrize(("call", "message"), [
    (lambda x: tw.einsum("ij,jk,kl->il", x, x, x, **HOW), "optimize must be False or a path with batch_invariant=True"),
    (lambda x: tw.einsum("ij,kl->il", x, x, **HOW), "label 'j' is summed over in one operand alone"),
    (lambda x: tw.einsum("ij,jk->ik", x, x, deterministic=1), "deterministic must be True or False"),
    (lambda x: tw.grouped_matmul(x, x[None], [3], plan="in_place 5x16", **HOW), "plan must be None"),
    (lambda x: tw.contract(lambda p, q: p + q, x, x, plan="in_place 5x16", **HOW), "plan must be None"),
])
def test_errors(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(np.ones((3, 3), np.float32))
    x = np.ones((3, 3), ml_dtypes.bfloat16)
    assert tw.einsum("ij,jk,kl->il", x, x, x, optimize=False, **HOW)[0, 0] == 9
