"""Random operations on loops of many kinds: what is legal keeps every number, what is not says so.

    python -m tests.nests.random_schedules SEED COUNT
"""
from __future__ import annotations

import random
import sys

import numpy as np

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
from tilewright.nests.schedules.schedule import schedule
from tilewright.nests.schedules.scheduled import Illegal
from tilewright.nests.tree import For, walk


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


def operation(r, s):
    """A random one, legal or not."""
    loops = list(dict.fromkeys(x.index for x in s.now.loops))
    one = r.choice(loops)
    kind = r.choice(["split", "split", "reorder", "reorder", "reorder", "fission", "stage", "stage", "vectorize",
                     "unroll", "bind", "fuse"])
    if kind == "split":
        n = len(s.steps)
        return lambda: s.split(one, r.randint(1, 5), f"{one}{n}", f"{one}_{n}", tail=r.choice(
            ["divide", "cut", "predicate", "predicate"]))
    if kind == "reorder":
        top = s.now.loop(one) if len(s.now.named(one)) == 1 else s.now.loops[0]
        chain = [top]
        while len(chain[-1].body) == 1 and isinstance(chain[-1].body[0], For):
            chain.append(chain[-1].body[0])
        names = [x.index for x in chain[:r.randint(2, 6)]]
        return lambda: s.reorder(*r.sample(names, len(names)))
    if kind == "fission":
        return lambda: s.fission(one, r.randint(1, 2))
    if kind == "stage":
        array = r.choice([*s.now.arrays, *s.now.buffers])
        inner = [x.index for x, _ in walk((s.now.named(one)[0],)) if isinstance(x, For)]
        axes = tuple(r.sample(inner, r.randint(0, len(inner))))
        inside = r.random() < 0.3
        where = {"inside": one} if inside else {"around": one}
        return lambda: s.stage(array, axes=axes, space=r.choice(["memory", "registers"]), **where)
    if kind == "fuse":
        return lambda: s.fuse(*r.sample(loops, 2)) if len(loops) > 1 else s.unroll(one)
    if kind == "bind":
        return lambda: s.bind({one: r.choice(["block.x", "thread.x", "worker"])})
    return lambda: getattr(s, kind)(one)


def numbers(s):
    return {name: integers(*x.shape, seed=n) for n, (name, x) in enumerate(s.now.arrays.items())}


def run(seed, most=8):
    """How many of the operations were legal."""
    r = random.Random(seed)
    f, shapes = r.choice(KINDS)
    s = schedule(f, *[np.zeros(x, np.float32) for x in shapes(r.randint(1, 7), r.randint(1, 7), r.randint(1, 5))])
    if not s.now.loops:
        return 0
    want = interpret(s.now, numbers(s))
    done = 0
    for _ in range(most):
        try:
            s = operation(r, s)()
        except Illegal:
            continue
        done += 1
        have = interpret(s.now, numbers(s))
        for name in want:
            assert np.array_equal(want[name], have[name]), f"seed {seed}: {name}\n" + "\n".join(s.history) + f"\n{s}"
    return done


def run_compiled(seed):
    """The last schedule, in the simulator and compiled."""
    r = random.Random(seed)
    f, shapes = r.choice(KINDS)
    s = schedule(f, *[np.zeros(x, np.float32) for x in shapes(r.randint(1, 7), r.randint(1, 7), r.randint(1, 5))])
    for _ in range(8 if s.now.loops else 0):
        try:
            s = operation(r, s)()
        except Illegal:
            continue
    try:
        checked = s.check()
    except Exception as error:
        raise AssertionError(f"seed {seed}\n" + "\n".join(s.history) + f"\n{s}") from error
    return checked


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:3])
    legal = 0
    for seed in range(first, first + count):
        legal += run(seed)
        if seed % 10 == 0:
            run_compiled(seed)
    print(f"{count} schedules, {legal} legal operations")
