"""The switch: Dask's functions multiply with tilewright, give what they gave, and are Dask's again afterwards."""

from __future__ import annotations

import numpy as np
import pytest

da = pytest.importorskip("dask.array")
import dask  # noqa: E402

import tilewright.dask as twd  # noqa: E402


def ours(x):
    return any(str(key[0]).startswith("tilewright-") for key in x.dask)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "i4", "i8", "f2", "f4", "f8"])
def test_results_have_the_same_numbers_and_dtypes(dtype, request):
    if dtype != "i1" and not request.config.getoption("--all-ways"):
        pytest.skip("--all-ways takes all formats")
    rng = np.random.default_rng(1)
    a, b = (da.from_array(rng.integers(0, 9, shape).astype(dtype), chunks=3) for shape in ((7, 6), (6, 5)))
    calls = [lambda: a @ b, lambda: da.matmul(a, b), lambda: np.matmul(a, b), lambda: da.dot(a, b), lambda: a.dot(b),
             lambda: da.tensordot(a, b, axes=1), lambda: np.tensordot(a, b, axes=((1,), (0,))),
             lambda: da.einsum("ij,jk->ki", a, b)]
    theirs = [call() for call in calls]
    with twd.install():
        found = [call() for call in calls]
    assert not any(map(ours, theirs))
    assert all(map(ours, found))
    with dask.config.set(scheduler="sync"):
        for x, y in zip(found, theirs):
            assert x.dtype == y.dtype
            assert x.chunks == y.chunks
            np.testing.assert_array_equal(x.compute(), y.compute())


def test_sums_of_bytes_over_several_axes_are_exact():
    """32 bits hold the sums over one axis of 1000, and not those over two."""
    x = da.full((1000, 1000), -128, dtype=np.int8, chunks=500)
    with twd.install(), dask.config.set(scheduler="sync"):
        for found in (da.tensordot(x, x, axes=2), da.einsum("ij,ij->", x, x)):
            assert ours(found)
            assert found.compute() == 1000 * 1000 * 128**2


def test_what_is_not_taken_is_dasks():
    x, y = da.ones((4, 4), chunks=2, dtype="f4"), da.ones((4, 4), chunks=2, dtype="c8")
    with twd.install():
        for product in (y @ y, x @ y, x.astype(bool) @ x.astype(bool), da.einsum("ij,jk,kl->il", x, x, x),
                        da.ma.masked_array(x) @ x, da.einsum("ij,jk->ik", x, x, dtype="f8")):
            assert not ours(product)
        with pytest.raises(ValueError, match=r"[Cc]hunks"):
            x @ da.ones((5, 4), chunks=2, dtype="f4")
    with twd.install(lambda dtype: dtype.kind == "i"):
        assert not ours(x @ x)
        assert ours(x.astype("i1") @ x.astype("i1"))


def test_it_can_be_undone():
    before = da.matmul, da.tensordot, da.einsum
    outer = twd.install()
    inner = twd.install()
    with pytest.raises(RuntimeError, match="has been replaced since"):
        outer.disable()
    inner.disable()
    outer.disable()
    outer.disable()
    assert (da.matmul, da.tensordot, da.einsum) == before
