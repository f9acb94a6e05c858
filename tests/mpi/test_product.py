"""Distributed products on threads: right on every grid, the same bits in reproducible order, all or none on errors."""

from __future__ import annotations

import os
import time

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import mpi
from tilewright.mpi import Grid, Layout, Matrix, RankError, product

SHAPES = int(os.environ.get("TESTS_MPI_SHAPES", "1"))     # random ones on each grid
DEAR = SHAPES > 1          # formats too, each of which takes kernels of its own
SCALED = [("mxfp8", {}), ("mxfp4", {}), ("i8", {}), ("i4", {"group": 32})]
GRIDS = [(1, 1), (1, 4), (2, 2), (3, 1), (1, 1, 4), (2, 1, 2)]
FORMATS = [np.float32, np.float64, np.complex64, np.int8, np.uint16, ml_dtypes.bfloat16, np.float16,
           ml_dtypes.float8_e4m3fn, ml_dtypes.int4]


def layouts(rng, shape, ranks):
    """A layout of this shape that somebody might have."""
    rows = int(rng.choice([x for x in range(1, ranks + 1) if ranks % x == 0]))
    grid = rows, ranks // rows
    if rng.integers(2):
        return Layout.blocks(shape, grid)
    return Layout.cyclic(shape, rng.integers(1, 40, 2), grid, rng.integers(0, grid), rng.permutation(ranks))


def on(grid, function, **options):
    return mpi.run_threads(Grid(*grid).size, function, timeout=20, **options)


def whole(rng, shape, dtype):
    x = rng.integers(0 if np.dtype(dtype).kind == "u" else -3, 4, shape)
    return (x + 1j * rng.integers(-3, 4, shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def wide(x):
    return x.astype(np.complex128)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_random_shapes_layouts_and_formats_are_exact_on_integers(grid):
    rng = np.random.default_rng(sum(grid))
    shapes = [(0, 3, 4), (4, 0, 3), (3, 4, 0), (1, 1, 1), *rng.integers(1, 200, (SHAPES, 3)).tolist()]
    for i, (m, n, k) in enumerate(shapes):
        dtype = FORMATS[(i + sum(grid)) % len(FORMATS)] if i > 3 and (DEAR or grid == (2, 2)) else np.float32
        a, b = whole(rng, (m, k), dtype), whole(rng, (k, n), dtype)
        ranks = Grid(*grid).size
        la, lb, lc = layouts(rng, (k, m), ranks), layouts(rng, (k, n), ranks), layouts(rng, (m, n), ranks)
        out_dtype = "i32" if a.dtype.kind in "iu" or dtype is ml_dtypes.int4 else None
        where = None if i % 2 else Grid(*grid)

        def one(team, a=a, b=b, la=la, lb=lb, lc=lc, out_dtype=out_dtype, where=where):
            left = Matrix.scatter(team, a.T, la).T
            right = Matrix.scatter(team, b, lb, root=team.size - 1)
            c = mpi.matmul(left, right, grid=where, layout=lc, out_dtype=out_dtype, panel=64)
            assert c.layout == lc
            return c.gather(None)
        for c in on(grid, one):
            np.testing.assert_array_equal(wide(c), wide(a) @ wide(b))
            assert c.dtype == tw.matmul(a, b, out_dtype=out_dtype).dtype


@pytest.mark.parametrize("grid", [(1, 3, 2)], ids=str)
def test_floats_beside_float64(grid):
    rng = np.random.default_rng(11)
    a, b = rng.standard_normal((130, 517)), rng.standard_normal((517, 70))
    for dtype, most in ((np.float32, 3e-5), (np.float64, 1e-13)):
        x, y = a.astype(dtype), b.astype(dtype)

        def one(team, x=x, y=y):
            lx = Layout.blocks(x.shape, (team.size, 1))
            ly = Layout.blocks(y.shape, (1, team.size))
            return mpi.matmul(Matrix.scatter(team, x, lx), Matrix.scatter(team, y, ly)).gather()
        assert np.abs(on(grid, one)[0] - x.astype(np.float64) @ y.astype(np.float64)).max() < most


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.complex64][:3 if DEAR else 1])
def test_reproducible_order_has_the_same_bits_on_any_grid(dtype):
    rng = np.random.default_rng(12)
    for m, n, k in ((37, 41, 4500),):
        a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
        found = []
        for grid in (*GRIDS, (2, 3)):
            if len(grid) > 2 and k < 4096:
                continue
            ranks = Grid(*grid).size
            la, lb = layouts(rng, a.shape, ranks), layouts(rng, b.shape, ranks)

            def one(team, a=a, b=b, la=la, lb=lb, grid=grid):
                x, y = Matrix.scatter(team, a, la), Matrix.scatter(team, b, lb)
                if len(grid) > 2 and grid[2] > 2:       # 4500 steps of k are two segments
                    with pytest.raises(ValueError, match="grid must have 1 or 2 layers for k = 4500 in reproducible"):
                        mpi.matmul(x, y, grid=grid, reproducible=True)
                    return None
                return mpi.matmul(x, y, grid=grid, reproducible=True, alpha=2).gather()
            found.append(on(grid, one)[0])
        found = [x for x in found if x is not None]
        assert all(np.array_equal(found[0].view(np.uint8), x.view(np.uint8)) for x in found)
        np.testing.assert_allclose(wide(found[0]), 2 * wide(a) @ wide(b), atol=5e-4)


def test_complex_products_in_reproducible_order_are_made_of_real_ones():
    """At once their bits would depend on the tile's size: seen on grids of 2 x 1 and 2 x 3."""
    rng = np.random.default_rng(18)
    a, b = (rng.standard_normal((2, *s)).astype(np.float32) for s in ((65, 127), (127, 3)))
    a, b = a[0] + 1j * a[1], b[0] + 1j * b[1]
    found = []
    for grid in ((2, 1), (2, 3)):
        def one(team, grid=grid):
            x, y = (Matrix.scatter(team, v, Layout.blocks(v.shape, grid)) for v in (a, b))
            real = Matrix.scatter(team, a.real, Layout.blocks(a.shape, grid))
            mixed = mpi.matmul(real, y, grid=grid, reproducible=True)
            return mpi.matmul(x, y, grid=grid, reproducible=True, alpha=2j).gather(None), mixed.gather(None)
        found += on(grid, one)
    assert all(np.array_equal(found[0][i].view(np.uint8), x[i].view(np.uint8)) for x in found for i in (0, 1))
    np.testing.assert_allclose(found[0][0], 2j * wide(a) @ wide(b), atol=1e-4)
    np.testing.assert_allclose(found[0][1], a.real @ wide(b), atol=1e-4)


@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (2, 1, 2)], ids=str)
def test_epilogues_with_operands_c_and_several_results(grid):
    rng = np.random.default_rng(13)
    m, n, k = 50, 66, 300
    a, b, c = (rng.integers(-4, 5, s).astype(np.float32) for s in ((m, k), (k, n), (m, n)))
    row, column, full = (rng.integers(-4, 5, s).astype(np.float32) for s in ((n,), (m, 1), (m, n)))

    def one(team):
        lc = Layout.cyclic((m, n), (7, 9), (team.size, 1))
        x, y, z = (Matrix.scatter(team, v, Layout.blocks(v.shape, (1, team.size))) for v in (a, b, c))
        plain = mpi.matmul(x, y, grid=grid, alpha=2, beta=3, c=z)
        fused = mpi.matmul(x, y, grid=grid, layout=lc, out_dtype=("bf16", None),
                           epilogue=lambda s, row, column, full, f: (tw.relu(s * column + row), s + f * full),
                           operands={"row": row, "column": column, "f": 2.0, "full": Matrix.scatter(team, full, lc)})
        out = Matrix.scatter(team, np.zeros((m, n)), lc)
        assert mpi.matmul(x, y, out, grid=grid, epilogue=lambda s, full: s - full, operands={"full": full}) is out
        return plain.gather(None), [v.gather(None) for v in fused], out.gather(None)
    for plain, (first, second), out in on(grid, one):
        np.testing.assert_array_equal(plain, 2 * (a @ b) + 3 * c)
        np.testing.assert_array_equal(first, np.maximum(a @ b * column + row, 0).astype(ml_dtypes.bfloat16))
        np.testing.assert_array_equal(second, a @ b + 2 * full)
        np.testing.assert_array_equal(out, (a @ b - full).astype(np.float64))


def test_descriptors_in_and_out():
    """Local arrays by columns with gaps between them, transposed and conjugated, updated in place."""
    rng = np.random.default_rng(14)
    m, n, k = 13, 9, 22
    a, b, c = (whole(rng, s, np.complex64) for s in ((k, m), (n, k), (m, n)))

    def one(team):
        parts, descriptors = [], []
        for x, blocks in ((a, (3, 4)), (b, (2, 5)), (c, (4, 2))):
            layout = Layout.of_descriptor((1, 0, *x.shape, *blocks, 1, 0, 1), (2, 2), "column")
            rows, cols = layout.local_shape(team.rank)
            lld = rows + 2
            flat = np.full(lld * cols, -7, x.dtype)
            flat.reshape(cols, lld)[:, :rows] = x[np.ix_(*layout.local_indices(team.rank))].T
            parts.append(flat)
            descriptors.append((*layout.descriptor(team.rank)[:8], lld))
        (x, y, z), (dx, dy, dz) = parts, descriptors
        given = z.copy()
        assert mpi.pgemm(team, (2, 2), 2, x, dx, y, dy, 3, z, dz, trans_a="c", trans_b=True, order="column") is z
        layout = Layout.of_descriptor(dz, (2, 2), "column")
        rows, cols = layout.local_shape(team.rank)
        found, before = z.reshape(cols, rows + 2), given.reshape(cols, rows + 2)
        np.testing.assert_array_equal(found[:, rows:], before[:, rows:])
        right = 2 * a.conj().T @ b.T + 3 * c
        np.testing.assert_array_equal(found[:, :rows].T, right[np.ix_(*layout.local_indices(team.rank))])
        with pytest.raises(ValueError, match=r"a must have [0-9]+ columns of [0-9]+ numbers, .* with lld = 1"):
            mpi.pgemm(team, (2, 2), 2, x, (*dx[:8], 1), y, dy, 3, z, dz, order="column")
        with pytest.raises(ValueError, match=r"desc_b: descriptor must begin with 1, .* not 2"):
            mpi.pgemm(team, (2, 2), 2, x, dx, y, (2, *dy[1:]), 3, z, dz)
    on((2, 2), one)


@pytest.mark.parametrize("progress", ["thread", "blocks"])
def test_a_slow_network_and_every_way_to_make_progress(progress):
    a = np.arange(96 * 200, dtype=np.float32).reshape(96, 200) % 7

    def one(team):
        x = Matrix.scatter(team, a, Layout.cyclic(a.shape, (13, 20), (2, 2)))
        report = mpi.Report()
        c = mpi.matmul(x, x.T, grid=(2, 2), panel=64, report=report, ahead=team.rank * 0 + 1)
        return c.gather(None), report
    found = on((2, 2), one, progress=progress, network=mpi.Network(20e6, 1e-5))
    for c, _ in found:
        np.testing.assert_array_equal(c, a @ a.T)
    reports = [report for _, report in found]
    assert all(0 <= mpi.hidden(reports, rank) <= 1 for rank in range(4))
    assert all(r.seconds("product") > 0 for r in reports)
    assert [r.grid for r in (mpi.Report.of_json(r.to_json()) for r in reports)] == [(2, 2, 1)] * 4


# ---- errors


def said(function, ranks=4, timeout=20.0):
    """What each rank raises."""
    def one(team):
        try:
            function(team)
        except Exception as error:
            return type(error), str(error)
        return None
    return mpi.run_threads(ranks, one, timeout=timeout)


def square(team, n=8):
    return Matrix(team, Layout.blocks((n, n), (2, 2)), np.ones((n // 2, n // 2), np.float32))


@pytest.mark.parametrize(("wrong", "kind", "text"), [
    (lambda x, y, odd: mpi.matmul(x, y, ahead=-1 if odd else 2), ValueError,
     "on rank 2 of 4: ahead must be a whole number, 0 or more, not -1"),
    (lambda x, y, odd: mpi.matmul(x, y, panel=32 if odd else 64), ValueError,
     "panel must be the same on all ranks, and is 64 on rank 0 and 32 on rank 2"),
    (lambda x, y, odd: mpi.matmul(x, y, grid=(5, 1)), ValueError,
     "grid must have 1 to 4 processes, the ranks of the team, and 5 x 1 has 5"),
    (lambda x, y, odd: mpi.matmul(x, y, out_dtype="i8" if odd else "f32"), TypeError,
     "on rank 2 of 4: out_dtype must not be int8, to which products of float32 cannot be cast (rule 'same_kind')"),
    (lambda x, y, odd: mpi.matmul(x, y, epilogue=tw.row_sum), ValueError,
     "the epilogue's result 0 is a reduction or made of pairs of columns, for which a rank would need what other ranks "
     "have: return elements, and reduce the result"),
    (lambda x, y, odd: mpi.matmul(x, y, epilogue=lambda s, v: s + v, operands={"v": np.ones(9 if odd else 8, "f")}),
     ValueError, "on rank 2 of 4: operands['v'] must broadcast to the result's shape, (8, 8), and its shape is (9,)"),
    (lambda x, y, odd: x.gather(7 if odd else 0), ValueError,
     "on rank 2 of 4: root must be a rank of the team, 0 to 3, not 7"),
    (lambda x, y, odd: mpi.matmul(x, y) if odd else x.gather(), ValueError,
     "the call must be the same on all ranks, and is Matrix.gather on rank 0 and matmul on rank 2"),
    (lambda x, y, odd: Matrix(x.team, x.layout, x.local[:3] if odd else x.local), ValueError,
     "on rank 2 of 4: local must have the shape (4, 4), this rank's part of 8 x 8 on 2 x 2, rows by blocks of 4, "
     "columns by blocks of 4, not (3, 4)")])
def test_an_error_of_one_rank_is_everyones(wrong, kind, text):
    def one(team):
        x, y = square(team), square(team)
        try:
            wrong(x, y, team.rank == 2)
        finally:        # and the team goes on
            assert (mpi.matmul(x, y).local == 8).all()
    assert said(one) == [(kind, text)] * 4


def test_a_rank_that_fails_in_the_middle_ends_the_product_everywhere(monkeypatch):
    original = product.Multiplication.multiply

    def failing(self, s, *rest):
        if self.team.rank == 2 and s == 1:
            raise MemoryError("no room")
        return original(self, s, *rest)
    monkeypatch.setattr(product.Multiplication, "multiply", failing)

    def one(team):
        x = square(team, 256)
        with pytest.raises(MemoryError if team.rank == 2 else RankError, match="no room"):
            mpi.matmul(x, x, panel=64)
        mpi.matmul(x, x)
    found = said(one)
    assert {kind for kind, _ in found} == {RankError}
    assert all(text.startswith("this team has failed before") for _, text in found)


def test_a_rank_that_has_ended_is_missed():
    def one(team):
        x = square(team)
        if team.rank != 2:
            mpi.matmul(x, x)
    begin = time.perf_counter()
    found = said(one)
    assert found[2] is None
    assert {kind for kind, _ in found if kind} == {RankError} if (found := [x for x in found if x]) else False
    assert all("rank 2 of 4 is missing: its thread has returned" in text for _, text in found)
    assert time.perf_counter() - begin < 20        # it is not waited for until the timeout


def test_a_rank_that_hangs_is_named_after_the_timeout():
    def one(team):
        x = square(team)
        if team.rank == 2:
            time.sleep(1.5)
        mpi.matmul(x, x)
    found = said(one, timeout=0.4)
    assert {kind for kind, _ in found} == {RankError}
    assert all("has not heard from rank 2: hanging" in text for i, (_, text) in enumerate(found) if i != 2)


def test_a_matrix_of_the_other_byte_order_is_scattered():
    a = np.arange(42, dtype=">f4").reshape(6, 7)

    def work(team):
        x = mpi.Matrix.scatter(team, a if team.rank == 0 else None, mpi.Layout.blocks((6, 7), (2, 1)))
        with pytest.raises(TypeError, match="local is a masked array"):
            mpi.Matrix(team, x.layout, np.ma.masked_array(x.local))
        return mpi.matmul(x, x.T).gather()
    assert np.array_equal(mpi.run_threads(2, work)[0], a @ a.T)


def test_teams_and_matrices_refuse_what_they_cannot_be():
    with pytest.raises(ValueError, match='progress must be "thread", "blocks" or None, not 3'):
        mpi.Team(object(), progress=3)
    with pytest.raises(ValueError, match="timeout must be a number of seconds above 0, not -1"):
        mpi.Team(object(), timeout=-1)
    with pytest.raises(TypeError, match="comm must be a communicator of mpi4py or None, not object"):
        mpi.Team(object())
    with pytest.raises(TypeError, match=r"b must be a tilewright.mpi.Matrix, not ndarray: Matrix\(team"):
        mpi.run_threads(1, lambda team: mpi.matmul(Matrix(team, Layout.blocks((1, 1), (1, 1)), np.ones((1, 1))),
                                                   np.ones((1, 1))))


# ---- numbers with scales


@pytest.mark.parametrize(("format", "options"), SCALED[:4 if DEAR else 2])
def test_numbers_with_scales_are_multiplied_where_they_lie(format, options):
    """Each rank quantises its part; blocks of k with a scale are whole on every rank and in every panel."""
    rng = np.random.default_rng(15)
    m, n, k = 24, 40, 512
    a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
    whole_b = tw.quantize(b, format, axis=-2, **options)

    def one(team):
        lb = Layout.blocks(b.shape, (2, 2))
        rows, cols = lb.local_indices(team.rank)
        part = whole_b[int(rows[0]):int(rows[-1]) + 1, int(cols[0]):int(cols[-1]) + 1]
        y = Matrix(team, lb, part)
        x = Matrix.scatter(team, a, Layout.cyclic(a.shape, (5, 64), (2, 2)))
        report = mpi.Report()
        c = mpi.matmul(x, y, panel=96, report=report)
        left = Matrix(team, Layout(y.layout.T.rows, y.layout.T.cols, y.layout.T.ranks), part.T)
        with pytest.raises(TypeError, match=r"a Matrix of .* with scales cannot be gathered: np.asarray\(local\)"):
            y.gather()
        with pytest.raises(ValueError, match="a has scales, and must lie as its product needs it: 40 x 512 on 4 x 1"):
            mpi.matmul(left, x.T, grid=(4, 1))
        return c.gather(None), report.panels_sent
    for c, count in on((2, 2), one):
        np.testing.assert_allclose(c, a @ np.asarray(whole_b), atol=2e-4)
        assert count < m * k + 1.5 * k * n / 4      # of b less than half of its bytes in f32


def test_blocks_that_share_a_scale_are_not_divided():
    q = tw.quantize(np.ones((64, 8), np.float32), "mxfp8", axis=-2)

    def one(team):
        with pytest.raises(ValueError, match="layout must give each rank whole blocks of 32 rows, which share a scale"):
            Matrix(team, Layout.cyclic((64, 8), (16, 8), (2, 1)), q[:32])
        part = q[:32] if team.rank else np.ones((32, 8), np.float32)
        with pytest.raises(ValueError, match="format of local must be the same on all ranks, and is float32 on rank 0"):
            Matrix(team, Layout.cyclic((64, 8), (32, 8), (2, 1)), part)
    assert said(one, 2) == [None, None]
