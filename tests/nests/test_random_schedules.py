"""Random operations on loops of many kinds: what is legal keeps every number, what is not says so. The loops of
`python -m tests.fuzz --only nests` are random, too."""
from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.fuzz.nest_schedules import step
from tests.nests.interpreter import interpret
from tests.nests.test_operations import (
    backwards,
    dots,
    down,
    integers,
    lower_half,
    product,
    three,
    transposed,
    two,
    wave,
)
from tilewright.nests.nest import Refused
from tilewright.nests.schedules.schedule import schedule
from tilewright.nests.schedules.scheduled import Illegal


def stencil(A, B):
    for _t in range(2):
        for i in range(1, A.shape[0] - 1):
            for j in range(1, A.shape[1] - 1):
                B[i, j] = A[i - 1, j] + A[i, j + 1]
        for i in range(1, A.shape[0] - 1):
            for j in range(1, A.shape[1] - 1):
                A[i, j] = B[i, j] - A[i, j - 1]


def convolution(X, W, Y):
    for h in range(Y.shape[0]):
        for w in range(Y.shape[1]):
            for r in range(W.shape[0]):
                for t in range(W.shape[1]):
                    Y[h, w] += X[h + r, w + t] * W[r, t]


def padded(X, Y):
    for i in range(Y.shape[0]):
        for r in range(3):
            if i + r >= 1 and i + r <= X.shape[0]:
                Y[i] += X[i + r - 1] * 2


def prefix(A, B):
    for j in range(A.shape[1]):
        s = 0.0
        for i in range(A.shape[0]):
            s += A[i, j]
            B[i, j] = s


def reversed_rows(A, B):
    for i in range(A.shape[0]):
        for j in range(0, A.shape[1], 2):
            B[i, j] = A[A.shape[0] - 1 - i, j] + B[i, j + 1]


KINDS = [
    (three, lambda m, n, k: ((m, k), (k, n), (m, n))), (product, lambda m, n, k: ((m, k), (k, n), (m, n), (n,))),
    (dots, lambda m, n, k: ((m, n), (n,), (m,))), (lower_half, lambda m, n, k: ((m, k), (m, k), (m, m))),
    (wave, lambda *_: ((8, 8),)), (down, lambda *_: ((8, 8),)), (transposed, lambda *_: ((8, 8), (8, 8))),
    (two, lambda *_: ((8,), (8,), (8,))), (backwards, lambda *_: ((8,), (8,))),
    (stencil, lambda m, n, k: ((m + 2, n + 2), (m + 2, n + 2))),
    (convolution, lambda m, n, k: ((m + 2, n + 2), (3, 3), (m, n))), (padded, lambda m, n, k: ((m,), (m,))),
    (prefix, lambda m, n, k: ((m, n), (m, n))), (reversed_rows, lambda m, n, k: ((m, 2 * n), (m, 2 * n))),
]


def numbers(s):
    return {name: integers(*x.shape, seed=n) for n, (name, x) in enumerate(s.now.arrays.items())}


def schedules(seed, most=8):
    """The loops as they are, and after each operation that was legal."""
    r = Random(seed)
    f, shapes = r.choice(KINDS)
    s = schedule(f, *[np.zeros(x, np.float32) for x in shapes(r.randint(1, 7), r.randint(1, 7), r.randint(1, 5))])
    yield s
    for _ in range(most if s.now.loops else 0):
        method, arguments, options = step(r, s)
        try:
            s = getattr(s, method)(*arguments, **options)
        except (Illegal, Refused):
            continue
        yield s


def test_legal_operations_keep_every_number():
    for seed in range(300):
        first, *others = schedules(seed)
        want = interpret(first.now, numbers(first))
        for s in others:
            have = interpret(s.now, numbers(s))
            for name in want:
                assert np.array_equal(want[name], have[name]), f"seed {seed}: {name}\n" + "\n".join(s.history)


@pytest.mark.parametrize("seed", range(1000, 1040))
def test_in_the_simulator(seed):
    *_, s = schedules(seed)
    s.check()
