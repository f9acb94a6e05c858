"""Groups of unequal size, of Dask arrays: exact on whole numbers, however rows, columns and groups are cut."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tilewright as tw

da = pytest.importorskip("dask.array")
import dask  # noqa: E402

import tilewright.dask as twd  # noqa: E402


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


RNG = np.random.default_rng(1)
OFFSETS = np.array([3, 3, 11, 12, 20])
A, B = RNG.integers(-4, 5, (23, 8)).astype(np.float32), RNG.integers(-4, 5, (5, 8, 6)).astype(np.float32)


@pytest.mark.parametrize("rows", [(23,), (4, 0, 7, 12), (10, 10, 3)])
def test_groups_of_rows(rows):
    wanted = tw.grouped_matmul(A, B, OFFSETS)
    a = da.from_array(A, chunks=(rows, 8))
    for cut in (-1, (2, 8, 4), (1, 8, 3)):
        for offsets in (OFFSETS, da.from_array(OFFSETS, chunks=-1)):
            found = twd.grouped_matmul(a, da.from_array(B, chunks=cut), offsets)
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found.compute(), wanted)
    np.testing.assert_array_equal(twd.grouped_matmul(a, da.from_array(B.swapaxes(1, 2), chunks=(2, 3, 8)), OFFSETS,
                                                     trans_b=True, alpha=2).compute(), 2 * wanted)


def test_blocks_read_the_matrices_of_their_groups():
    found = twd.grouped_matmul(da.from_array(A, chunks=(4, 8)), da.from_array(B, chunks=(1, 8, 6)), OFFSETS)
    reads = [sum(key[0].startswith("array") and len(key) == 4 for key in found.dask[found.name, i, 0].dependencies)
             for i in range(6)]
    assert reads == [2, 1, 2, 1, 1, 1]


def test_operands_of_an_epilogue():
    operands = {"bias": RNG.integers(0, 3, (5, 1, 6)).astype(np.float32), "gate": RNG.integers(0, 3, (23, 1)).astype(
        np.float32), "scale": np.arange(6, dtype=np.float32), "s": 2.0}
    how = {"epilogue": lambda acc, bias, gate, scale, s: (acc + bias) * gate * scale * s, "operands": operands}
    wanted = tw.grouped_matmul(A, B, OFFSETS, **how)
    for cut in (-1, (2, 8, 4)):
        found = twd.grouped_matmul(da.from_array(A, chunks=(9, 8)), da.from_array(B, chunks=cut), OFFSETS, **how)
        np.testing.assert_array_equal(found.compute(), wanted)


def test_weights_of_few_bits_and_packed_ones(request):
    w = RNG.standard_normal((5, 6, 32), np.float32)
    a = RNG.standard_normal((23, 32), np.float32)
    q = tw.quantize(w, "i8")
    every = request.config.getoption("--all-ways")
    for b, how in [(q, {"trans_b": True}), (tw.pack(q, trans_b=True, a="f32"), {}), (tw.pack(w, trans_b=True), {})
                   ][:None if every else 1]:
        found = twd.grouped_matmul(da.from_array(a, chunks=(9, 32)), b, OFFSETS, **how)
        np.testing.assert_allclose(found.compute(), tw.grouped_matmul(a, b, OFFSETS, **how), rtol=1e-4, atol=1e-4)


def test_groups_of_k():
    x, y = A.T.copy(), RNG.integers(-4, 5, (23, 6)).astype(np.float32)
    wanted = tw.grouped_matmul(x, y, OFFSETS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = twd.grouped_matmul(da.from_array(x, chunks=(3, 9)), da.from_array(y, chunks=(5, 4)), OFFSETS)
    np.testing.assert_array_equal(found.compute(), wanted)


@pytest.mark.parametrize(("ends", "error", "text"), [
    ([3, 2, 11, 12, 20], ValueError, "must not descend"), ([3, 3, 11, 12, 24], ValueError, "must not exceed rows of a"),
    ([-1, 3, 11, 12, 20], ValueError, "must not descend"), ([3.0, 3, 11, 12, 20], TypeError, "must be integers"),
])
def test_offsets_are_checked(ends, error, text):
    """NumPy's before anything is computed, Dask's by the tasks."""
    a, b = da.from_array(A, chunks=(10, 8)), da.from_array(B, chunks=(2, 8, 4))
    with pytest.raises(error, match=text):
        twd.grouped_matmul(a, b, ends)
    with pytest.raises(error, match=text):
        twd.grouped_matmul(a, b, da.from_array(np.array(ends), chunks=-1)).compute()
    with pytest.raises(ValueError, match="must agree in k"):
        twd.grouped_matmul(a[:, :7], b, OFFSETS)
    assert twd.grouped_matmul(a, b[:0], []).compute().tolist() == np.zeros((23, 6)).tolist()


def test_errors():
    a, b = da.from_array(A, chunks=(9, 8)), da.from_array(B, chunks=-1)
    with pytest.raises(ValueError, match="offsets must have 5 numbers"):
        twd.grouped_matmul(a, b, [3, 4])
    with pytest.raises(TypeError, match="one number for each element"):
        twd.grouped_matmul(a, b, OFFSETS, epilogue=lambda acc: (acc, tw.row_sum(acc)))
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        twd.grouped_matmul(a[a[:, 0] > 0], b, OFFSETS)
