"""Softmax of a product times values, written as loops, becomes one reduction; what is not that remains loops."""

from __future__ import annotations

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
            S[i, j] = np.exp(S[i, j] * 0.5 - top)
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


@pytest.mark.parametrize("f", CASES)
def test_reductions_that_wait_for_each_other_become_one(f):
    args = numbers(*CASES[f])
    fast = tw.optimize(f, *args, temporary=["S"], search=False)
    assert "exp(x - t) = exp(x - m) exp(m - t); S is not stored" in str(fast)
    plain = [x.copy() for x in args]
    fast(*args)
    f(*plain)
    np.testing.assert_allclose(args[-1], plain[-1], rtol=2e-5, atol=2e-6)
    assert (args[-2] == numbers(*CASES[f])[-2]).all()      # scores are nowhere


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
    assert "weights are not exp(x - max(x)) / sum(exp(x - max(x)))" in str(refused)
