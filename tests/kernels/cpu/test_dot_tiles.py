"""Tiles of dot products, as machine code and in the simulator: exact on integers, in bounds, C as alpha and beta say;
and the planner's choice of them."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.drivers import DTYPES, HERE, in_a_wider
from tests.helpers.readings import both, native
from tilewright.compiler.llvm import assembly
from tilewright.inspect.resources import hot_loop
from tilewright.kernels.cpu.dot_tiles import emit_dot_tile
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_tiles import DOT_TILES, tiles_of
from tilewright.targets import names, target

pytestmark = pytest.mark.sampled

TILES = [(name, dtype, *tile) for name in names("cpu") for dtype in DTYPES
         for tile in tiles_of(target(name), DOT_TILES)]


def whole(rng, *shape, dtype="f32"):
    """Numbers whose products and sums are exact."""
    return rng.integers(-4, 5, shape).astype(DTYPES[dtype])


@pytest.mark.parametrize(("name", "dtype", "mr", "nr"), TILES)
def test_the_hot_loop_loads_each_vector_once_and_spills_none(name, dtype, mr, nr):
    for tile in (mr, nr), (nr, mr):                 # of C, and of a C by columns
        loop = hot_loop(assembly(emit_dot_tile(target(name), dtype, *tile), target(name)))
        assert (loop.fma, loop.loads, loop.stores, loop.spills) == (mr * nr, mr + nr, 0, 0), loop.text


@cache
def kernel(name, dtype, mr, nr):
    function = emit_dot_tile(target(name), dtype, mr, nr)
    return function, native([function])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HERE)
def test_tiles_of_every_size(name, dtype):
    """An operand ends where its last row ends, and so does C."""
    rng, lanes = np.random.default_rng(1), target(name).lanes(np.dtype(DTYPES[dtype]).itemsize)
    most = max(max(tile) for tile in tiles_of(target(name), DOT_TILES))
    depths = itertools.cycle((0, 1, lanes - 1, lanes, lanes + 1, 3 * lanes + 2))
    for mr, nr in itertools.product(range(1, most + 1), repeat=2):
        if CpuPlan("dots", mr, nr, kc=1).violations(tw.Gemm(9, 9, 9, dtype, layout="nt"), target(name)):
            continue
        kc = next(depths)
        a, b = whole(rng, mr, kc, dtype=dtype), whole(rng, nr, kc, dtype=dtype)
        for alpha, beta in (1, 0), (2, 1), (-1, 0.5):
            c = in_a_wider(2 * whole(rng, mr, nr, dtype=dtype), 3)
            if beta == 0:
                c[...] = np.nan
            wanted = alpha * (a @ b.T) + (beta * c if beta else 0)
            function, code = kernel(name, dtype, mr, nr)
            report, after = both(function, kc, in_a_wider(a, 1), kc + 1, in_a_wider(b, 2), kc + 2, c, nr + 3, alpha,
                                 beta, 0, 0, code=code)
            np.testing.assert_array_equal(after["c"], wanted)
            assert report.of("c", "store").elements == mr * nr
            assert report.of("a", "load").elements == mr * kc


@pytest.mark.parametrize("name", [name for name in names("cpu") if name not in HERE])
def test_a_tile_of_a_chip_that_is_not_here(name):
    rng, c = np.random.default_rng(2), np.zeros((5, 3), np.float32)
    a, b = whole(rng, 5, 22), whole(rng, 3, 22)
    tw.simulator.run(emit_dot_tile(target(name), "f32", 5, 3), 22, a, 22, b, 22, c, 3, 1.0, 0.0, 0, 0)
    np.testing.assert_array_equal(c, a @ b.T)


SIZES = [(2, 2, 2), (5, 4, 16), (6, 7, 15), (13, 31, 33), (25, 24, 64), (7, 26, 131)]


@pytest.mark.parametrize("text", ["dots 3x4 kc=16", "dots 3x4 kc=200 ways=2x2x1", "dots 4x3 kc=40 swap"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_every_size_and_c(text, dtype):
    """C by rows, by columns, and with gaps; several blocks of k; rows of operands longer than k."""
    rng = np.random.default_rng(3)
    for m, n, k in SIZES:
        a, b = in_a_wider(whole(rng, m, k, dtype=dtype), 3), in_a_wider(whole(rng, n, k, dtype=dtype), 1).T
        old = 2 * whole(rng, m, n, dtype=dtype)
        for c in old.copy(), old.copy("F"), np.repeat(old, 2, 1)[:, ::2]:
            tw.gemm(2, a, b, 0.5, c, plan=text)
            np.testing.assert_array_equal(c, 2 * (a @ b) + old / 2)
            c[...] = np.nan
            tw.matmul(a, b, c, plan=text)
            np.testing.assert_array_equal(c, a @ b)


def test_nan_and_inf_stay_in_their_row_and_column():
    a, b = np.ones((9, 50), np.float32), np.ones((10, 50), np.float32).T
    a[3, 40], b[49, 7] = np.nan, np.inf
    c = tw.matmul(a, b, plan="dots 3x4 kc=32")
    wanted = np.full((9, 10), 50.0, np.float32)
    wanted[:, 7], wanted[3] = np.inf, np.nan
    np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("chip", ["zen4", "zen3"])      # "x86-avx2" would have the caches of the machine
def test_few_rows_or_columns_with_k_contiguous_go_by_tiles_of_dot_products(chip):
    """Packing or copying an operand costs other plans the most there; not of large matrices, nor where k is short. On
    Xeons tiles of dot products took longer, so that some of these are packed there."""
    def chosen(m, n, k, layout="nt", a="f32", **options):
        return tw.plan(tw.Gemm(m, n, k, a, layout=layout), tw.target(chip), threads=1, **options)
    for m, n, k in (102, 46, 3233), (40, 65, 1054), (35, 2192, 1874), (48, 880, 3186), (59, 237, 3142), (232, 27, 372):
        for a in DTYPES:
            found = chosen(m, n, k, a=a)
            assert (found.dot_tiles, found.swap) == (True, m < n), (m, n, k, a)
            assert not chosen(m, n, k, "nn", a).dot_tiles
    assert not chosen(3000, 3000, 3000).dot_tiles
    assert not chosen(3000, 1000, 40).dot_tiles
