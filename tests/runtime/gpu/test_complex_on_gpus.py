"""Complex arrays in GPUs' memory: batches of small matrices by a kernel of their own on NVIDIA's, everything else by
one real product, on the fake drivers of both makers."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.arrays import small_integers
from tests.helpers.gpus import machine
from tests.runtime.gpu.test_plans_of_operands import aligned


@pytest.fixture(params=["sm_90a", "gfx942"])
def on(request, monkeypatch):
    return machine(monkeypatch, request.param)


def numbers(seed, *shape, dtype=np.complex64):
    """Whole ones, of which sums are exact."""
    x = small_integers(seed, shape, np.float32)
    return aligned((x + 1j * small_integers(seed + 50, shape, np.float32) if np.dtype(dtype).kind == "c" else x)
                   .astype(dtype))


def gaps(x):
    wide = np.zeros((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), x.dtype)[..., ::2, ::3]
    wide[...] = x
    return wide


def columns(x):
    return x.swapaxes(-1, -2).copy().swapaxes(-1, -2)


def backwards(x):
    return x[..., ::-1, :].copy()[..., ::-1, :]


# shapes of A and B, and how many launches on NVIDIA's
SHAPES = {"matrices": ((17, 9), (9, 21), 2), "small": ((5, 7, 6), (5, 6, 3), 1), "large": ((2, 70, 9), (2, 9, 66), 2),
          "one B": ((3, 4, 8, 4), (1, 4, 4, 5), 3), "one A": ((4, 4), (9, 4, 4), 1), "vector": ((9,), (9, 4), 2)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", SHAPES)
def test_products(on, shape):
    of_a, of_b, launches = SHAPES[shape]
    dtype = np.complex128 if shape in ("small", "one B") else np.complex64
    if on.name != "sm_90a" and shape not in ("matrices", "small"):
        pytest.skip("the same as the others there")
    a, b = numbers(1, *of_a, dtype=dtype), numbers(2, *of_b, dtype=dtype)
    got = tw.matmul(on.array(a), on.array(b))
    on.finish()
    np.testing.assert_array_equal(got.host, a @ b)
    assert got.host.dtype == dtype
    if on.name == "sm_90a":
        assert len(on.machine.launches) == launches


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch", [(), (4,)])
@pytest.mark.parametrize("lie", [columns, gaps, backwards])
def test_gemm_of_any_layout(on, lie, batch):
    """alpha and beta are complex, operands conjugated; C lies so, too."""
    a, b, c = numbers(1, *batch, 6, 5), numbers(2, *batch, 7, 6), numbers(3, *batch, 5, 7)
    if on.name != "sm_90a" and (lie is not columns or batch):
        pytest.skip("the same kernels")
    for alpha, beta in ((2, -1), (1 - 2j, 3j), (0, 1j)):
        wanted = alpha * (a.swapaxes(-1, -2).conj() @ b.swapaxes(-1, -2)) + beta * c
        got = lie(c.copy())
        tw.gemm(alpha, on.array(lie(a)), on.array(lie(b)), beta, on.array(got), trans_a="c", trans_b="t")
        on.finish()
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("kinds", [("f4", "c8"), ("c8", "c16"), ("c16", "f8"), ("c8", "f8")], ids="-".join)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_operands_of_several_formats(on, kinds, batch):
    if on.name != "sm_90a" and kinds != ("f4", "c8"):
        pytest.skip("the same copies")
    a, b = (numbers(i, *batch, 4, 4, dtype=kind) for i, kind in enumerate(kinds))
    got = tw.matmul(on.array(a), on.array(b))
    on.finish()
    wanted = a @ b
    np.testing.assert_array_equal(got.host, wanted)
    assert got.host.dtype == wanted.dtype


def test_nothing_to_add_up(on):
    got = tw.matmul(on.array(numbers(1, 3, 4, 0)), on.array(numbers(1, 3, 0, 6)))
    on.finish()
    np.testing.assert_array_equal(got.host, np.zeros((3, 4, 6)))


def test_an_infinite_sum_times_a_real_factor_has_no_nan(on):
    a, b = np.array([[[np.inf + 0j]]]*2, np.complex64), np.array([[[1 + 0j]]]*2, np.complex64)
    got = tw.matmul(on.array(aligned(a)), on.array(aligned(b.real.astype(np.float32))), alpha=2)
    on.finish()
    assert np.isinf(got.host.real).all()


def test_rows_that_may_not_change_bits(on):
    """A row has the same bits in any number of rows, by real products."""
    if on.name != "sm_90a":
        return
    rng = np.random.default_rng(0)
    a, b = (aligned((rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype(np.complex64))
            for s in ((3, 12, 20), (3, 20, 8)))
    found = []
    for x in (a, aligned(a[:, 5:6])):
        found.append(tw.matmul(on.array(x), on.array(b), batch_invariant=True))
    on.finish()
    np.testing.assert_array_equal(found[0].host[:, 5:6], found[1].host)
