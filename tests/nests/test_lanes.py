"""Threads that share the rounds of the loops of a row: `Schedule.lanes`."""
from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gpus import machine
from tilewright.nests.schedules.schedule import schedule
from tilewright.nests.schedules.scheduled import Illegal
from tilewright.nests.search import search


def rowsums(X, Y):
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            Y[i] += X[i, j]


def softmax(X, Y):
    for i in range(X.shape[0]):
        m = -1e30
        for j in range(X.shape[1]):
            m = max(m, X[i, j])
        s = 0.0
        for j in range(X.shape[1]):
            s += tw.exp(X[i, j] - m)
        for j in range(X.shape[1]):
            Y[i, j] = tw.exp(X[i, j] - m) / s


def twice(X, Y, Z):
    """Two sums in one loop, a loop in a shared one, and an element that others read behind a barrier."""
    for b in range(X.shape[0]):
        for i in range(X.shape[1]):
            least = 1e30
            for j in range(X.shape[2]):
                least = min(least, X[b, i, j])
                for p in range(3):
                    Y[b, i] += X[b, i, j] * p
            for j in range(X.shape[2]):
                Z[b, i, j] = Y[b, i] - least


def steps(X):
    """Rounds that follow each other, each with rounds that do not."""
    for i in range(X.shape[0]):
        for _ in range(3):
            s = 0
            for j in range(X.shape[1]):
                s += X[i, j]
            for j in range(X.shape[1]):
                X[i, j] = X[i, j] - s


def diagonal(X, Y):
    """The element that a row stores is one that its loop has read."""
    for i in range(X.shape[0]):
        s = 0
        for j in range(X.shape[1]):
            s += X[i, j]
        X[i, i] = s
        Y[i] = s


def halves(X, Y):
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            Y[i] += 0.5 * X[i, j]


def prefix(X, Y):
    for i in range(X.shape[0]):
        for j in range(1, X.shape[1]):
            Y[i, j] = Y[i, j - 1] + X[i, j]


def fading(X, Y):
    for i in range(X.shape[0]):
        for j in range(1, X.shape[1]):
            Y[i, j] = 0.5 * Y[i, j - 1] + X[i, j]


def doubled(X, Y):
    for i in range(X.shape[0]):
        for j in range(1, X.shape[1]):
            Y[i, j] = Y[i, j - 1] + Y[i, j - 1]


def running(X, Y):
    """Of several elements, in place and elsewhere, and what the sum is in the end."""
    for i in range(X.shape[0]):
        s = X[i, 0]
        for j in range(X.shape[1]):
            s += X[i, j]
            X[i, j] = s
            if j > 3:
                Y[i, j] = s * j
        Y[i, 0] = s


def records(X, Y):
    """The largest number so far, where a sum of whole numbers is kept between rounds that follow each other."""
    for i in range(X.shape[0]):
        for p in range(2):
            Y[i, 0] = X[i, p]
            for j in range(1, X.shape[1]):
                Y[i, j] = max(X[i, j] - p, Y[i, j - 1])


def last_least(X, Y, Z):
    """With numbers beside the index, in a branch; of equal ones the last."""
    for i in range(X.shape[0]):
        best = 2.0
        at = 0
        other = 7
        for j in range(X.shape[1]):
            if X[i, j] <= best:
                best = X[i, j]
                at = j
                other = 2 * X[i, j] + j
        Y[i] = at
        Z[i] = other - best


def first_nearest(X, Y, Z):
    """Behind a sum of its own, by a function."""
    for i in range(X.shape[0]):
        best = 1e30
        at = 0
        for j in range(Y.shape[0]):
            d = 0.0
            for p in range(2):
                d += (X[i, p] - Y[j, p])**2
            at = np.where(d < best, j, at)
            best = min(best, d)
        Z[i] = at


def borrowed(X, Y):
    """The index changes where another number is larger than the one that is kept."""
    for i in range(X.shape[0]):
        best = X[i, 0]
        at = 0
        for j in range(X.shape[1]):
            if X[i, j] > best:
                best = X[i, j] - 1
                at = j
        Y[i] = at


def weighted(X, W, Y):
    """Loops with other first rounds; one row is read by two loops, the other by all rows of a CTA."""
    for i in range(X.shape[0]):
        m = X[i, 0] + W[0]
        for j in range(1, X.shape[1]):
            m = max(m, X[i, j] + W[j])
        s = 0
        for j in range(X.shape[1]):
            s += abs(X[i, j] * W[j] - m)
        for j in range(2, X.shape[1]):
            Y[i, j - 2] += s * W[j]


def cornered(X, Y):
    """Rows outside of X are none that its loops read."""
    for i in range(Y.shape[0]):
        s = 0
        for j in range(X.shape[1]):
            if i + j < X.shape[0]:
                s += X[i, j]
        for j in range(X.shape[1]):
            if i + j < X.shape[0]:
                Y[i] += s * X[i, j]


SHAPES = {rowsums: [(5, 70), (5,)], softmax: [(3, 256), (3, 256)], twice: [(2, 3, 130), (2, 3), (2, 3, 130)],
          prefix: [(5, 513), (5, 513)], running: [(3, 256), (3, 256)], records: [(3, 70), (3, 70)],
          last_least: [(5, 70), (5,), (5,)], first_nearest: [(5, 2), (130, 2), (5,)],
          steps: [(4, 128)], diagonal: [(5, 70), (5,)]}


@pytest.mark.parametrize("threads", [32, 128])
@pytest.mark.parametrize("f", SHAPES)
def test_the_simulator_finds_the_numbers_of_the_loops(f, threads):
    s = schedule(f, *[np.ones(shape, np.float32) for shape in SHAPES[f]])
    places = {"b": "block.y"} if f is twice else {}
    if threads == 32:
        s = s.split("i", 2, "ib", "it", tail="predicate")
        places |= {"ib": "block.x", "it": "thread.y"}
    else:
        places |= {"i": "block.x"}
    s = s.bind(places).lanes(threads)
    s.check()
    assert f"{threads} threads share the rounds of j" in s.history[-1]
    assert "shfl.sync" in s.compile("sm_90a").asm
    with pytest.raises(Illegal, match="lanes is the last operation"):
        s.unroll("j.o")


@pytest.mark.parametrize(("columns", "threads", "dtype", "vectors"), [
    (256, 32, np.float32, 4), (131, 32, np.float32, 1), (1030, 128, np.float32, 2), (520, 64, np.float16, 8)])
def test_rows_are_held_in_registers(columns, threads, dtype, vectors):
    """Read once, by vectors; with rows and elements that a CTA has too many threads for."""
    for f, shapes in ((softmax, [(3, columns)] * 2), (weighted, [(3, columns), (columns,), (3, columns)])):
        s = schedule(f, *[np.ones(shape, dtype) for shape in shapes])
        s = s.split("i", 2, "ib", "it", tail="predicate").bind(ib="block.x", it="thread.y") if threads == 32 else (
            s.bind(i="block.x"))
        held, plain = s.lanes(threads, hold=True), s.lanes(threads)
        assert held.now.buffers["X_row"].shape[1] == vectors
        assert held.counts()["X"].loads < plain.counts()["X"].loads
        held.check()
        assert ("ld.global.nc.v" in held.compile("sm_90a").asm) == (vectors > 1)


def test_rows_that_cannot_be_held():
    for f, shapes in ((rowsums, [(5, 70), (5,)]), (steps, [(4, 128)]), (softmax, [(2, 4096)] * 2),
                      (cornered, [(40, 70), (90,)])):
        with pytest.raises(Illegal, match="no array has a row that several loops read, and that registers can hold"):
            schedule(f, *[np.ones(x, np.float32) for x in shapes]).bind(i="block.x").lanes(32, hold=True)


def test_refused():
    rows = schedule(rowsums, np.ones((5, 70), np.float32), np.ones(5, np.float32))
    with pytest.raises(Illegal, match=r"bind loops to block\.x and thread\.y before, not to nothing"):
        rows.lanes()
    with pytest.raises(Illegal, match="X_buf is a buffer of the CTA, to which lanes would write for several rounds"):
        rows.stage("X", "j", ("j",), "memory").bind(i="block.x").lanes()
    with pytest.raises(Illegal, match="a multiple of 32 threads up to 1024, not 48"):
        rows.bind(i="block.x").lanes(48)
    with pytest.raises(Illegal, match=r"nothing may be bound to thread\.y"):
        rows.bind(i="thread.y").lanes(64)
    for f, shape in ((fading, (5, 70)), (doubled, (5, 70)), (borrowed, 5)):
        with pytest.raises(Illegal, match="no loop has rounds that threads could share"):
            schedule(f, np.ones((5, 70), np.float32), np.ones(shape, np.float32)).bind(i="block.x").lanes()
    with pytest.raises(Illegal, match="each sum of floats is cut to a whole number"):
        schedule(halves, np.ones((5, 70), np.int32), np.ones(5, np.int32)).bind(i="block.x").lanes()
    half = schedule(rowsums, np.ones((5, 70), np.float16), np.ones(5, np.float16))
    with pytest.raises(Illegal, match="Y is of type f16, in which sums of several parts would differ"):
        half.bind(i="block.x").lanes()


@pytest.mark.parametrize("chip", ["sm_90a", "gfx942"])
def test_the_search_takes_them_for_rows_that_carry_a_sum(monkeypatch, chip):
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", "off")
    monkeypatch.setattr(search, "_found", {})
    on = machine(monkeypatch, chip)
    x, y = np.random.default_rng(0).standard_normal((2, 6, 300), np.float32)
    given = on.array(x), on.array(y)
    fast = tw.optimize(softmax, *given, timed=False)
    assert "threads for each row" in str(fast)
    fast(*given)
    on.finish()
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, powers / powers.sum(1, keepdims=True), rtol=1e-5)
