"""CTAs in the simulator: shared memory, barriers, warps that part and meet, and the races if a barrier is missing."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import simulator
from tilewright.ir import Kernel, Value, f32, i32, ptr, vec
from tilewright.ir.ops.core import Operation
from tilewright.ir.program import Line, Op
from tilewright.simulator import Fault


def kernel(body, threads=64, warp=32, **smem):
    """A kernel on an array x; body(k, x, t, *shared arrays of these shapes)."""
    k = Kernel("test", threads=threads, warp=warp, x=ptr(f32))
    shared = [k.smem(name, shape, f32) for name, shape in smem.items()]
    body(k, k.args[0], k.thread[0], *shared)
    return k.function


def matmul(T=16, barriers=2):
    """C = A @ B with T x T tiles of both in shared memory: the classic, with its two barriers."""
    k = Kernel("tiled", threads=(T, T), n=i32, a=ptr(f32), b=ptr(f32), c=ptr(f32))
    n, a, b, c = k.args
    a, b, c = (x.view(n, 1) for x in (a, b, c))
    a_smem, b_smem = k.smem("a_smem", (T, T), f32), k.smem("b_smem", (T, T), f32)
    (x, y), (bx, by) = k.thread, k.block
    i, j = by * T + y, bx * T + x
    acc = k.variable(f32, 0.0)
    with k.loop(n, step=T) as p:
        a_smem[y, x] = a[i, p + x]
        b_smem[y, x] = b[p + y, j]
        if barriers > 0:
            k.barrier()
        for q in range(T):
            acc.set(k.fma(a_smem[y, q], b_smem[q, x], acc.get()))
        if barriers > 1:
            k.barrier()
    c[i, j] = acc.get()
    return k.function


def run_matmul(n=64, **options):
    T = options.get("T", 16)
    a, b = np.random.default_rng(0).integers(-3, 4, (2, n, n)).astype(np.float32)
    c = np.full((n, n), np.nan, np.float32)
    report = simulator.run(matmul(**options), n, a, b, c, grid=(n // T, n // T))
    np.testing.assert_array_equal(c, a @ b)
    return report


@pytest.mark.parametrize("T", [8, 16, 32])
def test_tiles_in_shared_memory(T):
    """Every element of A and B is read n / T times from global memory and n times from shared memory."""
    n = 64
    report = run_matmul(n, T=T)
    assert report.of(space="global", verb="load").elements == 2 * n**3 // T
    assert report.of(space="shared", verb="store").elements == 2 * n**3 // T
    assert report.of(space="shared", verb="load").elements == 2 * n**3
    assert report.of("c", "store").elements == n**2
    assert report.flops == 2 * n**3
    assert report.instructions["barrier"] == 2 * (n // T) ** 3 * T * T // 32


def test_the_first_barrier_missing():
    with pytest.raises(Fault, match=r"(race|uninitialised) at .*load of [ab]_smem.*by block"):
        run_matmul(barriers=0)


def test_the_second_barrier_missing():
    with pytest.raises(Fault, match=r"race at .*store of [ab]_smem\[\d+\] by block .*: read at .* by block"):
        run_matmul(barriers=1)


@pytest.mark.parametrize(("stride", "passes"), [(1, 1), (2, 2), (3, 1), (8, 8), (32, 32), (33, 1)])
def test_bank_conflicts(stride, passes):
    def body(k, x, t, s):
        s[t * stride] = x[t]
        x[t] = s[t * stride]
    report = simulator.run(kernel(body, threads=32, s=(32 * 33,)), np.zeros(32, np.float32))
    for verb in ("load", "store"):
        assert (report.of("s", verb).moved, report.of("s", verb).ideal) == (passes, 1)


def test_wide_accesses_go_by_quarter_warps():
    """32 lanes of 16 bytes side by side are 512 bytes: four passes, and no conflict."""
    def body(k, x, t, s):
        k.store(s + t * 4, k.load(x + t * 4, vec(f32, 4)), align=16)
    report = simulator.run(kernel(body, threads=32, s=(128,)), np.zeros(128, np.float32))
    assert (report.of("s").moved, report.of("s").ideal) == (4, 4)
    assert report.of("x").moved == 16


def test_uninitialised_shared_memory():
    def body(k, x, t, s):
        s[t] = x[t]
        k.barrier()
        x[t] = s[t + 1]
    with pytest.raises(Fault, match=r"uninitialised .*load of s\[64\] by block \(0, 0\) thread \(63, 0\)"):
        simulator.run(kernel(body, s=(65,)), np.zeros(64, np.float32))


def test_shared_arrays_end():
    def body(k, x, t, s):
        s[t + 1] = x[t]
    with pytest.raises(Fault, match=r"out of bounds .*store of s\[64\] by block \(1, 0\) thread \(63, 0\)"):
        simulator.run(kernel(lambda k, x, t, s: s.__setitem__(t + k.block[0], 1.0), s=(64,)), np.zeros(1, np.float32),
                      grid=(2, 1))
    with pytest.raises(Fault, match=r"out of bounds .*store of s\[64\]"):
        simulator.run(kernel(body, s=(64,)), np.zeros(64, np.float32))


def test_each_cta_has_its_own():
    def body(k, x, t, s):
        s[t] = k.cast(k.block[0] * 100 + t, f32)
        k.barrier()
        x[k.block[0] * 64 + t] = s[63 - t]
    x = np.zeros(192, np.float32)
    simulator.run(kernel(body, s=(64,)), x, grid=(3, 1))
    np.testing.assert_array_equal(x.reshape(3, 64), np.arange(3)[:, None] * 100 + np.arange(63, -1, -1))


def test_two_threads_that_write_one_element():
    def body(k, x, t, s):
        s[t // 2] = x[t]
    with pytest.raises(Fault, match=r"race .*store of s\[0\] .*thread .0, 0.: also written by .*thread .1, 0."):
        simulator.run(kernel(body, threads=32, s=(16,)), np.zeros(32, np.float32))


def test_lanes_of_one_warp_race_too():
    def body(k, x, t, s):
        s[t] = x[t]
        x[t] = s[31 - t]
    with pytest.raises(Fault, match=r"race .*load of s"):
        simulator.run(kernel(body, threads=32, s=(32,)), np.zeros(32, np.float32))


def test_lanes_of_one_warp_meet():
    def body(k, x, t, s):
        s[t] = x[t]
        k.warp_barrier()
        x[t] = s[t // 32 * 32 + 31 - t % 32]
    x = np.arange(64, dtype=np.float32)
    simulator.run(kernel(body, s=(64,)), x)
    np.testing.assert_array_equal(x.reshape(2, 32), np.arange(64).reshape(2, 32)[:, ::-1])


def test_a_warp_barrier_orders_no_other_warp():
    def body(k, x, t, s):
        s[t] = x[t]
        k.warp_barrier()
        x[t] = s[63 - t]
    with pytest.raises(Fault, match=r"race .*load of s"):
        simulator.run(kernel(body, s=(64,)), np.zeros(64, np.float32))


def test_a_warp_barrier_that_some_lanes_skip():
    def body(k, x, t):
        with k.when(t < 5):
            k.warp_barrier()
    with pytest.raises(Fault, match=r"divergent .*some lanes of a warp skip by block \(0, 0\) thread \(5, 0\)"):
        simulator.run(kernel(body), np.zeros(1, np.float32))


def test_warps_with_different_roles_meet_at_barriers():
    """A producer and a consumer warp, each with its own barriers in its own loop."""
    def body(k, x, t, s):
        with k.when(t < 32):
            with k.loop(4) as i:
                s[t] = k.cast(t + i * 32, f32)
                k.barrier()
                k.barrier()
        with k.otherwise(), k.loop(4) as i:
            k.barrier()
            x[i * 32 + t - 32] = s[t - 32]
            k.barrier()
    x = np.zeros(128, np.float32)
    simulator.run(kernel(body, s=(32,)), x)
    np.testing.assert_array_equal(x, np.arange(128))


def test_warps_that_loop_different_numbers_of_times():
    """Four warps add up in turn; each leaves when it is done, and the barrier counts on all until the last round."""
    def body(k, x, t, s):
        warp = t // 32
        with k.when(t == 0):
            s[0] = 0.0
        k.barrier()
        with k.loop(4) as i:
            with k.when(t == i * 32):
                s[0] = s[0] + k.cast(i + 1, f32)
            k.barrier()
        with k.loop(warp) as i:
            x[t] = x[t] + s[0] + k.cast(i, f32)
    x = np.zeros(128, np.float32)
    simulator.run(kernel(body, threads=128, s=(1,)), x)
    np.testing.assert_array_equal(x, [10 * w + sum(range(w)) for w in np.arange(128) // 32])


def test_barriers_in_a_called_function():
    rotate = Kernel("rotate", threads=64, s=ptr(f32, "shared"), t=i32, value=f32, result=f32)
    s, t, value = rotate.args
    s[t] = value
    rotate.barrier()
    out = s[(t + 1) % 64]
    rotate.barrier()
    rotate.ret(out)

    def body(k, x, t, s):
        v = k.variable(f32, k.cast(t, f32))
        with k.loop(3):
            v.set(k.call(rotate.function, s, t, v.get()))
        x[t] = v.get()
    x = np.zeros(64, np.float32)
    simulator.run(kernel(body, s=(64,)), x)
    np.testing.assert_array_equal(x, (np.arange(64) + 3) % 64)


def test_a_barrier_that_some_warps_skip():
    def body(k, x, t):
        with k.when(t < 32):
            k.barrier()
    with pytest.raises(Fault, match=r"deadlock .*block \(0, 0\) warps \[0\] wait at .* 32 of 64 threads have arrived"):
        simulator.run(kernel(body), np.zeros(1, np.float32))


def test_a_barrier_that_some_lanes_skip():
    def body(k, x, t):
        with k.when(t < 5):
            k.barrier()
    with pytest.raises(Fault, match=r"divergent .*some lanes of a warp skip by block \(0, 0\) thread \(5, 0\)"):
        simulator.run(kernel(body), np.zeros(1, np.float32))


def test_operations_of_several_threads_together():
    """Two results, each of which takes a lane's value from another lane of its group."""
    def meaning(t, x):
        return x[..., ::-1], x.sum(-1, keepdims=True) + 0 * x
    together = Operation("mirror_and_sum", lambda low, t, x: None, meaning, "mma", "group", scope=32)

    def apply(k, value):
        results = (Value(k, f32), Value(k, f32))
        k._record(Op(together, (value,), results, Line(__file__, 1)))
        return results

    def body(k, x, t):
        mirrored, total = apply(k, x[t])
        x[t] = mirrored + total
    x = np.arange(64, dtype=np.float32)
    report = simulator.run(kernel(body), x)
    groups = np.arange(64, dtype=np.float32).reshape(2, 32)
    np.testing.assert_array_equal(x.reshape(2, 32), groups[:, ::-1] + groups.sum(1, keepdims=True))
    assert report.instructions["mma"] == 2

    def some(k, x, t):
        with k.when(t != 7):
            apply(k, x[t])
    with pytest.raises(Fault, match=r"divergent .*mirror_and_sum needs 32 threads side by side by .*thread \(7, 0\)"):
        simulator.run(kernel(some), x)


def test_waves_of_64_lanes():
    """AMD: 64 lanes make one request."""
    def body(k, x, t):
        x[t] = x[t] + 1
    for threads, warp, requests in ((128, 32, 4), (128, 64, 2), (96, 64, 2)):
        report = simulator.run(kernel(body, threads=threads, warp=warp), np.zeros(128, np.float32))
        assert report.of("x", "load").requests == requests


@pytest.mark.parametrize("ctas", [1, 2, 3, 40])
@pytest.mark.parametrize("away", [2, 16, 32, 64, -1, -16, -48])
@pytest.mark.parametrize("space", ["shared", "local"])
def test_an_access_far_outside_does_not_land_in_another_copy(space, away, ctas):
    """Copies of a small array lie close together; each CTA, or thread, has one."""
    k = Kernel("far", threads=32, z=ptr(f32))
    t = k.thread[0]
    small = k.smem("small", (2,), f32) if space == "shared" else k.local("small", (2,), f32)
    with k.when(t == 3):
        small[away] = 1.0
    with pytest.raises(Fault, match=rf"out of bounds .* store of small\[{away}\] by block .* thread \(3, 0\): it has"):
        simulator.run(k.function, np.zeros(1, np.float32), grid=ctas)
    k = Kernel("far", threads=32, z=ptr(f32))
    small = k.smem("small", (2,), f32) if space == "shared" else k.local("small", (2,), f32)
    with k.when((k.thread[0] == 3) & (k.block[0] == ctas - 1)):
        small[1] = 1.0
        k.args[0][0] = small[1]
    z = np.zeros(1, np.float32)
    simulator.run(k.function, z, grid=ctas)
    assert z[0] == 1
