"""Small products that the builtin runs without Python: values, what is written, and which calls it leaves to Python."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.api.builtin import Entry
from tilewright.plans.model import PANEL_DEPTH
from tilewright.runtime.cpu import small

RNG = np.random.default_rng(11)
SIZES = [(1, 2, 1), (5, 7, 3), (6, 16, 8), (7, 17, 9), (13, 33, 37), (4, 30, PANEL_DEPTH), (40, 1, 20)]     # m, n, k


@pytest.fixture
def builtin():
    """matmul(a, b, out) by the emitted code alone, whose kernels are compiled: AssertionError for calls to Python."""
    def python(*_):
        raise AssertionError("the builtin left the call to Python")

    entry = Entry(python)

    def matmul(a, b, out):
        tw.matmul(a, b, np.empty_like(out), threads=1)
        address, context, _ = small._contexts[{4: "f32", 8: "f64"}[a.itemsize]]
        entry.limit(10**9)
        entry.enable({4: "f32", 8: "f64"}[a.itemsize], address, context.buffer_info()[0])
        return entry.matmul(a, b, out)

    for dtype in (np.float32, np.float64):      # the first product in place makes the context
        tw.matmul(np.ones((9, 9), dtype), np.ones((9, 9), dtype))
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


def test_what_is_left_to_python(builtin):
    """Columns of B that are deeper than a panel on the stack, and a B without contiguous rows or columns."""
    a, b = operands(4, 20, PANEL_DEPTH + 1, "nt", np.float32)
    with pytest.raises(AssertionError, match="left the call to Python"):
        builtin(a, b, np.empty((4, 20), np.float32))
    a, b = operands(4, 20, 60, "nn", np.float32)
    with pytest.raises(AssertionError, match="left the call to Python"):
        builtin(a[:, ::2], b[::2][:, ::2], np.empty((4, 10), np.float32))
