"""Softmax of a product times values, written as loops, becomes one reduction; what is not that remains loops."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import tilewright as tw


def three_passes(Q, K, V, S, O):
    for i in range(Q.shape[0]):
        for j in range(K.shape[0]):
            S[i, j] = 0.0
            for d in range(Q.shape[1]):
                S[i, j] += Q[i, d] * K[j, d]
    for i in range(Q.shape[0]):
        top = -np.inf
        for j in range(K.shape[0]):
            top = max(top, S[i, j] * 0.25)
        total = 0.0
        for j in range(K.shape[0]):
            S[i, j] = np.exp(S[i, j] * 0.25 - top)
            total += S[i, j]
        for j in range(K.shape[0]):
            S[i, j] = S[i, j] / total
    for i in range(Q.shape[0]):
        for c in range(V.shape[1]):
            O[i, c] = 0.0
            for j in range(K.shape[0]):
                O[i, c] += S[i, j] * V[j, c]


def divided_last(Q, K, V, B, S, O):
    for i in range(Q.shape[0]):
        top = -np.inf
        total = 0.0
        for j in range(K.shape[1]):
            S[i, j] = 0.0
            for d in range(Q.shape[1]):
                S[i, j] += K[d, j] * Q[i, d]
            S[i, j] = np.tanh(S[i, j] / 3.0) * 3.0 + B[j]
            top = max(top, S[i, j])
        for j in range(K.shape[1]):
            total += np.exp(S[i, j] - top)
        for c in range(V.shape[1]):
            O[i, c] = 0.0
            for j in range(K.shape[1]):
                O[i, c] += np.exp(S[i, j] - top) * V[j, c]
            O[i, c] = O[i, c] / total


def logsumexp(X, W, S, R):
    for i in range(X.shape[0]):
        for j in range(W.shape[0]):
            S[i, j] = 0.0
            for d in range(X.shape[1]):
                S[i, j] += X[i, d] * W[j, d]
        top = -np.inf
        for j in range(W.shape[0]):
            top = max(top, S[i, j])
        total = 0.0
        for j in range(W.shape[0]):
            total += np.exp(S[i, j] - top)
        R[i] = top + np.log(total)


def other_terms(Q, K, V, S, O):
    for i in range(Q.shape[0]):
        for j in range(K.shape[0]):
            S[i, j] = 0.0
            for d in range(Q.shape[1]):
                S[i, j] += Q[i, d] * K[j, d]
    for i in range(Q.shape[0]):
        top = -np.inf
        for j in range(K.shape[0]):
            top = max(top, S[i, j])
        total = 0.0
        for j in range(K.shape[0]):
            total += np.exp(S[i, j] - top)
            S[i, j] = np.exp(np.minimum(S[i, j] - top, 1.0))
        for c in range(V.shape[1]):
            O[i, c] = 0.0
            for j in range(K.shape[0]):
                O[i, c] += S[i, j] * V[j, c]
            O[i, c] = O[i, c] / total


def numbers(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


CASES = {three_passes: [(40, 16), (50, 16), (50, 24), (40, 50), (40, 24)],
         divided_last: [(20, 16), (16, 30), (30, 8), (30,), (20, 30), (20, 8)],
         logsumexp: [(12, 16), (90, 16), (12, 90), (12,)]}


def causal(Q, K, V, S, O):
    for i in range(Q.shape[0]):
        for j in range(i + 1):
            S[i, j] = 0.0
            for d in range(Q.shape[1]):
                S[i, j] += Q[i, d] * K[j, d]
        top = -np.inf
        for j in range(i + 1):
            top = max(top, S[i, j] * 0.25)
        total = 0.0
        for j in range(i + 1):
            S[i, j] = np.exp(S[i, j] * 0.25 - top)
            total += S[i, j]
        for c in range(V.shape[1]):
            O[i, c] = 0.0
            for j in range(i + 1):
                O[i, c] += S[i, j] / total * V[j, c]


def windowed(Q, K, V, S, P, O):
    """Positions end at the last key; one side by conditions, the other by -inf; powers in an array of their own."""
    for i in range(Q.shape[0]):
        top = -np.inf
        total = 0.0
        for j in range(K.shape[0]):
            S[i, j] = 0.0
            for d in range(Q.shape[1]):
                S[i, j] += Q[i, d] * K[j, d]
            if j > i + K.shape[0] - Q.shape[0]:
                S[i, j] = -np.inf
        for j in range(K.shape[0]):
            if j >= i + K.shape[0] - Q.shape[0] - 7:
                top = max(top, S[i, j])
        for j in range(K.shape[0]):
            if j >= i + K.shape[0] - Q.shape[0] - 7:
                P[i, j] = np.exp(S[i, j] - top)
                total += P[i, j]
        for c in range(V.shape[1]):
            O[i, c] = 0.0
            for j in range(K.shape[0]):
                if j >= i + K.shape[0] - Q.shape[0] - 7:
                    O[i, c] += P[i, j] * V[j, c]
            O[i, c] /= total


def nearest(X, W, b, R, A):
    """The largest score and its column; scores are a variable."""
    for i in range(X.shape[0]):
        best = -np.inf
        at = 0
        for j in range(W.shape[0]):
            s = b[j]
            for d in range(X.shape[1]):
                s += X[i, d] * W[j, d]
            if s > best:
                best = s
                at = j
        A[i] = at
        R[i] = best


def cross_entropy(X, W, label, S, G, loss):
    """And its gradient by X."""
    for i in range(X.shape[0]):
        top = -np.inf
        for j in range(W.shape[0]):
            S[i, j] = 0.0
            for d in range(X.shape[1]):
                S[i, j] += X[i, d] * W[j, d]
            top = max(top, S[i, j])
        total = 0.0
        own = 0.0
        for j in range(W.shape[0]):
            total += np.exp(S[i, j] - top)
            if j == label[i]:
                own += S[i, j]
        loss[i] = top + np.log(total) - own
        for c in range(W.shape[1]):
            G[i, c] = 0.0
            for j in range(W.shape[0]):
                G[i, c] += np.exp(S[i, j] - top) / total * W[j, c]
            for j in range(W.shape[0]):
                if j == label[i]:
                    G[i, c] -= W[j, c]


def entropy(X, W, S, H):
    for i in range(X.shape[0]):
        top = -np.inf
        total = 0.0
        h = 0.0
        for j in range(W.shape[0]):
            S[i, j] = 0.0
            for d in range(X.shape[1]):
                S[i, j] += X[i, d] * W[j, d]
            top = max(top, S[i, j])
        for j in range(W.shape[0]):
            S[i, j] = np.exp(S[i, j] - top)
            total += S[i, j]
        for j in range(W.shape[0]):
            h -= S[i, j] / total * np.log(S[i, j] / total)
        H[i] = h


CASES |= {causal: [(30, 16), (30, 16), (30, 8), (30, 30), (30, 8)],
          windowed: [(20, 16), (30, 16), (30, 8), (20, 30), (20, 30), (20, 8)],
          nearest: [(12, 16), (90, 16), (90,), (12,), (12,)],
          cross_entropy: [(12, 16), (90, 16), (12,), (12, 90), (12, 16), (12,)],
          entropy: [(12, 16), (90, 16), (12, 90), (12,)]}
SAID = {causal: "softmax of x over j where i - j >= 0, times V[j, c]",
        windowed: "over j where - i + j - 3 >= 0 and i - j + 10 >= 0", nearest: "A[i] = the first j of the largest x",
        cross_entropy: "attention, then products of rows of 12 queries by 90 keys", entropy: "H[i] = "}


@pytest.mark.parametrize("f", CASES)
def test_reductions_that_wait_for_each_other_become_one(f):
    args = numbers(*CASES[f])
    if f is cross_entropy:
        args[2] = np.arange(12, dtype=np.int32) * 8 % 91        # 0 ... 90, which is none
    names = [*inspect.signature(f).parameters]
    inner = [name for name in names if name in "SP"]
    fast = tw.optimize(f, *args, temporary=inner, search=False)
    assert SAID.get(f, "softmax of x over j, times" if "O" in names else "R[i] = log of the sum of exp(x)") in str(fast)
    if f is nearest:
        assert "an extreme and its index are one reduction" in str(fast)
    else:
        assert f"exp(x - t) = exp(x - m) exp(m - t); {' and '.join(sorted(inner))} " in str(fast)
    plain = [x.copy() for x in args]
    fast(*args)
    f(*plain)
    for name, x, y, first in zip(names, args, plain, numbers(*CASES[f])):
        if name in inner:
            assert (x == first).all()           # scores are nowhere
        else:
            np.testing.assert_allclose(x, y, rtol=4e-5, atol=4e-6)


def test_bytes_before_and_after():
    n, d = 1000, 64
    fast = tw.optimize(three_passes, (n, d), (n, d), (n, d), (n, n), (n, d), temporary=["S"], search=False)
    before, after = fast.steps[0].products[0].bytes
    assert after == 4 * 4 * n * d
    assert before == after + 9 * 4 * n * n
    assert f"{before:,} bytes become {after:,}" in str(fast)


def test_what_is_stored_or_is_no_softmax_remains_loops():
    shapes = CASES[three_passes]
    kept = tw.optimize(three_passes, *numbers(*shapes), search=False)
    assert "S[i, j] = sum over d" in str(kept)
    refused = tw.optimize(other_terms, *numbers(*shapes), temporary=["S"], search=False)
    assert "a power depends on a reduction in another way than by a difference" in str(refused)


def partial(Q, K, S, R):
    for i in range(Q.shape[0]):
        top = -np.inf
        total = 0.0
        for j in range(K.shape[0]):
            S[i, j] = 0.0
            for d in range(Q.shape[1]):
                S[i, j] += Q[i, d] * K[j, d]
            top = max(top, S[i, j])
            total += np.exp(S[i, j] - top)
        R[i] = total


def empty(Q, K, S, R):
    for i in range(Q.shape[0]):
        total = 0.0
        for j in range(i):
            S[i, j] = 0.0
            for d in range(Q.shape[1]):
                S[i, j] += Q[i, d] * K[j, d]
            total += np.exp(S[i, j])
        R[i] = np.log(total)


def negative(Q, K, V, S, O):
    for i in range(Q.shape[0]):
        for j in range(K.shape[0]):
            S[i, j] = 0.0
            for d in range(Q.shape[1]):
                S[i, j] += Q[i, d] * K[j, d]
            S[i, j] = np.tanh(S[i, j])
        for c in range(V.shape[1]):
            O[i, c] = 0.0
            for j in range(K.shape[0]):
                O[i, c] += S[i, j] * V[j, c]


def unset(Q, K, S, R):
    for i in range(Q.shape[0]):
        top = -np.inf
        for j in range(K.shape[0] - 1):
            S[i, j] = 0.0
            for d in range(Q.shape[1]):
                S[i, j] += Q[i, d] * K[j, d]
        for j in range(K.shape[0]):
            top = max(top, S[i, j])
        R[i] = top


def last_of_equals(Q, K, S, R):
    for i in range(Q.shape[0]):
        top = -np.inf
        at = 0
        for j in range(K.shape[0]):
            S[i, j] = 0.0
            for d in range(Q.shape[1]):
                S[i, j] += Q[i, d] * K[j, d]
            if S[i, j] >= top:
                top = S[i, j]
                at = j
        R[i] = at


@pytest.mark.parametrize(("f", "why"), [
    (partial, "top is read in the loop that reduces it, after it has changed"), (empty, "row 0 has no scores"),
    (unset, "elements are reduced that no statement before it has set"),
    (last_of_equals, "is kept by another choice than of the first extreme")])
def test_the_reason_is_said_where_loops_remain(f, why):
    assert why in str(tw.optimize(f, (9, 16), (9, 16), (9, 9), (9,), temporary=["S"], search=False))


def test_weights_that_may_be_negative_are_two_products():
    found = tw.optimize(negative, (9, 16), (9, 16), (9, 8), (9, 9), (9, 8), temporary=["S"], search=False)
    assert "then tanh(acc): matmul of 9 x 9 x 16" in str(found)
