"""Small products that the builtin runs without Python: values, what is written, and which calls it leaves to Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright.api.builtin import Entry
from tilewright.api.products import matmul as by_python
from tilewright.plans.builtin import LONG_LINES, PANEL_DEPTH, stays_in_cache
from tilewright.plans.choose import choose
from tilewright.plans.cpu_shape import Shape
from tilewright.runtime.cpu import engine, pool, small
from tilewright.targets import names, target

RNG = np.random.default_rng(11)
SIZES = [(1, 2, 1), (5, 7, 3), (6, 16, 8), (7, 17, 9), (13, 33, 37), (4, 30, LONG_LINES), (28, 30, PANEL_DEPTH),
         (40, 1, 20)]           # m, n, k


@pytest.fixture
def builtin(monkeypatch):
    """matmul(a, b, out) by the emitted code alone, whose kernels are compiled: AssertionError for calls to Python."""
    def python(*_):
        raise AssertionError("the builtin left the call to Python")

    # a context of its own, which the first product in place makes: other tests exchange the tables of kernels
    monkeypatch.setattr(small, "_contexts", {})
    monkeypatch.setattr(small, "_entry", None)
    engine.forget()
    entry = Entry(python)
    entry.limit(10**9)
    for dtype, name in (np.float32, "f32"), (np.float64, "f64"):
        by_python(np.ones((9, 9), dtype), np.ones((9, 9), dtype))
        address, context, _ = small._contexts[name]
        entry.enable(name, address, context.buffer_info()[0])

    def matmul(a, b, out):
        by_python(a, b, None if out is None else np.empty_like(out), threads=1)
        return entry.matmul(a, b) if out is None else entry.matmul(a, b, out)

    return matmul


def operands(m, n, k, layout, dtype):
    shapes = (m, k), (k, n)
    return [RNG.integers(-5, 6, shape if letter == "n" else shape[::-1]).astype(dtype).T[:] if letter == "t"
            else RNG.integers(-5, 6, shape).astype(dtype) for shape, letter in zip(shapes, layout)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_layout_is_exact(builtin, sizes, layout, dtype):
    """Into rows of a wider matrix, of which nothing else is written."""
    a, b = operands(*sizes, layout, dtype)
    m, n, _ = sizes
    wide = np.full((m + 2, n + 5), 77, dtype)
    wanted = wide.copy()
    wanted[1:-1, 2:-3] = a @ b
    assert builtin(a, b, wide[1:-1, 2:-3]) is not None
    np.testing.assert_array_equal(wide, wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 2, 31, 130])
def test_vectors(builtin, k, dtype):
    x, y, m = (RNG.integers(-5, 6, shape).astype(dtype) for shape in (k, 2*k, (37, k)))
    for a, b in (x, x), (x, y[::2]), (y[::-2], x), (m, x), (m, y[::-2]), (m[::2], x), (x, m.T), (x, m[:k]):
        if a.shape[-1] != b.shape[0]:
            continue
        wanted = a @ b
        if wanted.ndim:
            inside = np.zeros(len(wanted) + 2, dtype)
            assert builtin(a, b, inside[1:-1]) is not None
            np.testing.assert_array_equal(inside, [0, *wanted, 0])
        for _ in range(2):
            found = builtin(a, b, None)
            assert (type(found), found.dtype, found.shape) == (type(wanted), wanted.dtype, wanted.shape)
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("threads", [2, 7, 16])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_any_number_of_threads_has_the_same_bits(builtin, layout, threads):
    before = pool.get_num_threads()
    pool.set_num_threads(threads)
    pool.pool().reserve(threads)
    try:
        for m, n, k in (70, 70, 70), (97, 100, 60), (20, 110, 96), (110, 33, 100), (1, 110, 100):
            for dtype in np.float32, np.float64:
                a, b = operands(m, n, k, layout, np.float64)
                a, b = (x.astype(dtype, order="K") / 7 for x in (a, b))
                wide = np.zeros((m + 2, n + 5), dtype)
                alone = by_python(a, b, threads=1)
                for _ in range(3):
                    wide[...] = 0
                    builtin(a, b, wide[1:-1, 2:-3])
                    np.testing.assert_array_equal(wide[1:-1, 2:-3], alone)
                    assert not wide[[0, -1]].any()
                    assert not wide[:, [0, 1, -3, -2, -1]].any()
    finally:
        pool.set_num_threads(before)


def test_what_is_left_to_python(builtin):
    """Columns of B that are deeper than a panel on the stack, and a B without contiguous rows or columns."""
    a, b = operands(4, 20, LONG_LINES + 1, "nt", np.float32)
    with pytest.raises(AssertionError, match="left the call to Python"):
        builtin(a, b, np.empty((4, 20), np.float32))
    a, b = operands(4, 20, 60, "nn", np.float32)
    with pytest.raises(AssertionError, match="left the call to Python"):
        builtin(a[:, ::2], b[::2][:, ::2], np.empty((4, 10), np.float32))


@pytest.mark.parametrize("isa", names("cpu"))
def test_the_plan_of_what_the_builtin_takes(isa):
    """There is one decision, which the planner and the builtin share."""
    chip, taken = target(isa), 0
    for m, n, k in itertools.product((1, 7, 64, 128, 180), (1, 16, 100, 128), (1, 8, 128, 180, 256)):
        for dtype, a, b in itertools.product(("f32", "f64"), ("rows", "columns"), ("rows", "columns")):
            shape = Shape(dtype, m, n, k, a, b)
            if stays_in_cache(shape, chip):
                plan, taken = choose(shape, chip), taken + 1
                if m == n == 1:
                    assert (plan.algorithm, plan.swap) == ("dots", False)
                elif 1 in (m, n):                   # rows of the matrix by the vector, or numbers of it by rows
                    along = a == "rows" if n == 1 else b == "columns"
                    assert (plan.algorithm, plan.swap) == ("dots" if along else "stream", (n > 1) == along)
                else:
                    wanted = ("in_place", 0, False, b == "columns")
                    assert (plan.algorithm, plan.kc, plan.swap, plan.copy) == wanted
    assert taken > 500
