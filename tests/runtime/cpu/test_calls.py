"""Functions of `each` as Python calls them: the builtin and what it leaves to Python, several threads, errors."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import simulator
from tilewright.ir import Kernel, f32, f64, i8, i32, i64, ptr, vectors
from tilewright.kernels.cpu import emitted as calls
from tilewright.kernels.elementwise import each, each_row, fold, once
from tilewright.runtime.run import run


def emit_scaled(threads=None):
    k = Kernel("scaled", threads=threads, n=i64, a=f32, b=f64, c=i32, d=i8, x=ptr(f32), q=ptr(i8), z=ptr(f64))
    n, a, b, c, d, x, q, z = k.args
    with each(k, n) as i:
        z[i] = k.cast(x[i] * a, f64) + b * k.cast(q[i], f64) + k.cast(c + k.cast(d, i32), f64)
    return k.function


def emit_sums(threads=None):
    k = Kernel("sums", threads=threads, rows=i64, cols=i64, x=ptr(f64), sums=ptr(f64))
    rows, cols, x, sums = k.args
    with each_row(k, rows) as row:
        total = fold(k, cols, lambda a, b: a + b, 0.0, lambda j: x.view(cols, 1)[row, j])
        with once(k):
            sums[row] = total
    return k.function


scaled, sums = tw.kernel(emit_scaled), tw.kernel(emit_sums)
rng = np.random.default_rng(3)


def arguments(n):
    x, q = rng.integers(-9, 9, n).astype(np.float32), rng.integers(-9, 9, n).astype(np.int8)
    return x, q, np.full(n, 7.0)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("n", [0, 1, 1000, calls.ALONE + 1, calls.HELD + 77])
def test_elements_on_several_threads(threads, n):
    x, q, z = arguments(n)
    before = tw.get_num_threads()
    tw.set_num_threads(threads)
    try:
        for call in (scaled, scaled, lambda *args: run(scaled.function(), *args)):
            z[:] = 7
            assert call(n, 2.0, 0.5, -3, 4, x, q, z) is None
            assert (z == x * 2.0 + q * 0.5 + 1).all()
        with tw.threads(2):
            z[:] = 7
            scaled(n, 2.0, 0.5, -3, 4, x, q, z)
            assert (z == x * 2.0 + q * 0.5 + 1).all()
        rows = n // 100
        X, found = rng.integers(-9, 9, (rows, 100)).astype(np.float64), np.empty(rows)
        sums(rows, 100, X, found)
        assert (found == X.sum(1)).all()
    finally:
        tw.set_num_threads(before)
    assert type(scaled._here).__name__ == "builtin_function_or_method"


def test_what_the_builtin_leaves_to_python():
    class Array(np.ndarray):
        pass
    x, q, z = arguments(10)
    for changed in ({0: np.int64(10)}, {1: 2}, {1: np.float32(2)}, {2: 1}, {5: x.view(Array)}, {6: q.view(np.uint8)},
                    {6: q > 0}, {7: z.view(Array)}):
        args = [10, 2.0, 0.5, -3, 4, x, q, z]
        for place, other in changed.items():
            args[place] = other
        z[:] = 7
        scaled(*args)
        _n, a, b, c, d, *_ = args
        assert (z == x * a + args[6].view(np.int8) * b + (c + d)).all()


@pytest.mark.parametrize(("place", "value", "error", "why"), [
    (0, 2.5, TypeError, "n is of type i64: it must be a whole number"),
    (0, 1 << 70, OverflowError, "n is of type i64"),
    (3, 1 << 31, OverflowError, "c is of type i32"),
    (4, -129, OverflowError, "d is of type i8"),
    (1, 1e39, OverflowError, "a is of type f32, which cannot hold 1e"),
    (1, "2", TypeError, "a must be a number"),
    (5, np.ones(10), TypeError, "x points to f32: it must be an array of float32, not of float64"),
    (5, np.ones(20, np.float32)[::2], ValueError, "x is not contiguous"),
    (5, [1.0] * 10, TypeError, "x must be a NumPy array of float32, not list"),
    (7, np.broadcast_to(np.ones(10), (10,)), ValueError, "z is read-only, and scaled writes it"),
])
def test_mistakes(place, value, error, why):
    x, q, z = arguments(10)
    args = [10, 2.0, 0.5, -3, 4, x, q, z]
    scaled(*args)
    args[place] = value
    with pytest.raises(error, match=why):
        scaled(*args)
    with pytest.raises(TypeError, match=r"scaled takes 8 arguments \(n, a, b, c, d, x, q, z\), not 7"):
        scaled(*args[:-1])
    with pytest.raises(ValueError, match="scaled is a CPU function: it has no grid"):
        scaled(*args, grid=2)
    with pytest.raises(TypeError, match="an emitter is a function that records a kernel and returns it, not 3"):
        tw.kernel(3)
    with pytest.raises(TypeError, match=r"tilewright.kernel\(emit\) takes threads=, not L"):
        tw.kernel(emit_sums, L=(1, 2))


@pytest.mark.parametrize("parts", [1, 3])
def test_shares_of_the_pool_are_all_elements_once(parts):
    n, rows = 1000, 7
    x, q, z = arguments(n)
    z[:] = np.nan
    X, found = rng.integers(-9, 9, (rows, 100)).astype(np.float64), np.full(rows, np.nan)
    for part in range(parts):
        simulator.run(calls.emit_range(scaled.function(), vectors.Width()), n, 2.0, 0.5, -3, 4, x, q, z, part, parts)
        simulator.run(calls.emit_range(sums.function(), vectors.Width()), rows, 100, X, found, part, parts)
    assert (z == x * 2.0 + q * 0.5 + 1).all()
    assert (found == X.sum(1)).all()


def test_what_is_not_divided():
    def twice(k, n, x):
        for _ in range(2):
            with each(k, n) as i:
                x[i] = x[i] + 1.0

    def before(k, n, x):
        x[0] = 2.0
        with each(k, n) as i:
            x[i] = x[i] + 1.0

    def carried(k, n, x):
        total = k.variable(f32, 0)
        with each_row(k, n) as row:
            total.set(total.get() + 1.0)
            with each(k, n) as i:
                x[i] = total.get()
            x[row] = total.get()
    for body in twice, before, carried:
        k = Kernel("whole", n=i64, x=ptr(f32))
        body(k, *k.args)
        assert calls.shared_loop(k.function, vectors.Width()) is None
        x = np.zeros(9, np.float32)
        run(k.function, 9, x)
    assert (x == 9).all()


def test_the_code_of_a_function_is_kept_by_what_it_records(monkeypatch):
    """Recorded again, also with other Python lines, it is out of the cache; with another constant it is compiled."""
    from tilewright.compiler import llvm

    def emit(constant):
        def emit_shifted(threads=None, warp=32):
            k = Kernel("shifted", threads=threads, warp=warp, n=i64, x=ptr(f32), z=ptr(f32))
            n, x, z = k.args
            with each(k, n) as i:
                z[i] = x[i] + constant
            return k.function
        return emit_shifted

    def compiles(*_, **__):
        raise AssertionError("it is compiled")
    x, z = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    tw.kernel(emit(2.0))(5, x, z)
    monkeypatch.setattr(llvm, "object_code", compiles)
    z[:] = 0
    again = tw.kernel(emit(2.0))
    again(5, x, z)
    assert (z == x + 2).all()
    with pytest.raises(AssertionError, match="it is compiled"):
        tw.kernel(emit(2.5))(5, x, z)


def test_an_emitter_with_sizes_gets_threads_and_warp():
    """As one without: None and its default on a CPU, a CTA's and the chip's on a GPU. A call like one before is not
    looked up again."""
    seen = []

    @tw.kernel(U=(1, 2))
    def emit_copy(threads=None, warp=32, U=1):
        seen.append((threads, warp, U))
        k = Kernel("copy", threads=threads, warp=warp, n=i64, x=ptr(f32), z=ptr(f32))
        n, x, z = k.args
        with each(k, n) as i:
            z[i] = x[i]
        return k.function

    x, z = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    for n in (5, 3, 5):
        z[:] = 0
        emit_copy(n, x, z)
        assert (z[:n] == x[:n]).all()
        assert not z[n:].any()
    emit_copy.function("gfx942", U=2)
    assert seen == [(None, 32, 1), (256, 64, 2)]
