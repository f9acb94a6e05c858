"""Recorded kernels of real sizes by tw.optimize: the lecture's versions and the ladder's, as one product each."""

import numpy as np
import pytest

import tilewright as tw
from tests.nests import test_recorded as kernels
from tilewright.expressions.operations import OPERATIONS
from tilewright.ir import Kernel, f16, f32, i32, ptr
from tilewright.lab.ladder import cpu1_naive, gpu04_shared, gpu05_coalesced
from tilewright.lab.ladder.gpu01_naive import emit_naive
from tilewright.lab.ladder.gpu02_tiled import emit_tiled
from tilewright.lab.ladder.gpu03_registers import emit_registers


@pytest.mark.parametrize(("function", "grid"), [
    (kernels.lecture_v1(16, 16), (20, 20)), (kernels.lecture_v15(16, 4), (5, 5)),
    (kernels.lecture_v2(16, 4), (5, 5)), (kernels.lecture_v3(64, 8, 4), (5, 5)),
    (kernels.lecture_v3(64, 8, 4, runtime=True), (5, 5))])
def test_the_lecture_s_versions(function, grid):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (320, 320)).astype(np.float32) for _ in range(2))
    c = np.zeros_like(a)
    fast = tw.optimize(function, 320, a, b, c, grid=grid)
    assert "matmul of 320 x 320 x 320" in str(fast)
    fast(320, a, b, c)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize(("kernel", "grid"), [
    (tw.kernel(lambda: kernels.lecture_v1(16, 16)), (4, 4)),
    (tw.kernel(V=(2, 4), grid=lambda V, N: (N // (8 * V), N // (8 * V)))(lambda V=4: kernels.lecture_v2(8, V)), None)])
def test_kernels_that_users_hold(kernel, grid):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (64, 64)).astype(np.float32) for _ in range(2))
    c = np.zeros_like(a)
    fast = tw.optimize(kernel, 64, a, b, c, grid=grid)
    assert "matmul of 64 x 64 x 64" in str(fast)
    fast(64, a, b, c)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize(("m", "n", "k"), [(96, 96, 96), (70, 75, 45), (1, 90, 3)])
@pytest.mark.parametrize(("function", "grid"), [
    (emit_naive(16), (6, 6)), (emit_tiled(4, 8), (3, 3)), (emit_registers(4, 8), (3, 3)),
    (gpu04_shared.emit_shared(32, 8, 4), (3, 3)), (gpu05_coalesced.emit_coalesced(32, 8, 4), (3, 3))])
def test_ladder(function, grid, m, n, k):
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    expected = 2 * (a @ b) - c
    fast = tw.optimize(function, m, n, k, 2.0, a, k, b, n, -1.0, c, n, grid=grid)
    fast(m, n, k, 2.0, a, k, b, n, -1.0, c, n)
    np.testing.assert_array_equal(c, expected)
    assert f"of {m} x {n} x {k}" in str(fast)


def test_a_cpu_s_three_loops():
    rng = np.random.default_rng(2)
    a, b = rng.integers(-3, 4, (300, 130)).astype(np.float32), rng.integers(-3, 4, (130, 210)).astype(np.float32)
    c = np.zeros((300, 210), np.float32)
    fast = tw.optimize(cpu1_naive.emit_naive(None, "f32"), 300, 210, 130, a, b, c)
    fast(300, 210, 130, a, b, c)
    np.testing.assert_array_equal(c, a @ b)
    assert "matmul of 300 x 210 x 130" in str(fast)


def test_bias_and_gelu():
    """Of matrices in f16, for any N: one product with an epilogue."""
    k = Kernel("fused", threads=(16, 16), N=i32, A=ptr(f16), B=ptr(f16), bias=ptr(f32), C=ptr(f32))
    N, A, B, bias, C = k.args
    A, B, C = A.view(N, 1), B.view(N, 1), C.view(N, 1)
    x, y = k.block[0] * 16 + k.thread[0], k.block[1] * 16 + k.thread[1]
    total = k.variable(f32, 0)
    with k.when((x < N) & (y < N)):
        with k.loop(N) as p:
            total.set(k.fma(k.cast(A[x, p], f32), k.cast(B[p, y], f32), total.get()))
        C[x, y] = k.gelu(total.get() + bias[y])
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-1, 2, (100, 100)).astype(np.float16) for _ in range(2))
    row, c = rng.standard_normal(100).astype(np.float32), np.zeros((100, 100), np.float32)
    fast = tw.optimize(k.function, 100, a, b, row, c, grid=(7, 7))
    assert "gelu(acc + bias" in str(fast)
    fast(100, a, b, row, c)
    np.testing.assert_allclose(c, OPERATIONS["gelu"].numpy(a.astype(np.float64) @ b + row), rtol=1e-5, atol=1e-5)
