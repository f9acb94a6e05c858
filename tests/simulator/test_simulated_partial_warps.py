"""CTAs whose threads are not whole warps: lanes that are not there do nothing, and nobody waits for them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir import Kernel, f32, i32, i64, ptr
from tilewright.simulator import Fault, run, uninitialised

SHAPES = [4, 1, 33, 48, (3, 5), (7, 5), (31, 33)]


def size_of(threads) -> int:
    return int(np.prod(threads))


def linear(k):
    width = k.function.threads[0]
    return k.thread[1] * width + k.thread[0]


def emit_reversed(threads, warp=32, BARRIER=True):
    """Each CTA turns its elements round, through shared memory."""
    k = Kernel("reversed", threads=threads, warp=warp, x=ptr(f32), z=ptr(f32))
    x, z = k.args
    size = size_of(threads)
    t, first = linear(k), k.block[0] * size
    smem = k.smem("smem", (size,), f32)
    smem[t] = x[first + t]
    if BARRIER:
        k.barrier()
    z[first + t] = smem[size - 1 - t]
    return k.function


@pytest.mark.parametrize("threads", SHAPES, ids=str)
@pytest.mark.parametrize("warp", [32, 64])
def test_shared_memory_and_barriers(threads, warp):
    size, ctas = size_of(threads), 3
    x, z = np.arange(ctas * size, dtype=np.float32), np.zeros(ctas * size, np.float32)
    report = run(emit_reversed(threads, warp), x, uninitialised(z), grid=ctas)
    np.testing.assert_array_equal(z.reshape(ctas, size), x.reshape(ctas, size)[:, ::-1])
    warps = ctas * -(-size // warp)
    assert report.of("x", "load").requests == warps
    assert report.of("x", "load").elements == ctas * size
    assert report.instructions["barrier"] == warps


def test_the_lectures_four_threads():
    """z = x + y, blocks of four threads: a request of 16 bytes for each block."""
    k = Kernel("add", threads=4, n=i32, x=ptr(f32), y=ptr(f32), z=ptr(f32))
    n, x, y, z = k.args
    i = k.block[0] * 4 + k.thread[0]
    with k.when(i < n):
        z[i] = x[i] + y[i]
    x, y, z = np.arange(10, dtype=np.float32), np.ones(10, np.float32), np.zeros(10, np.float32)
    report = run(k.function, 10, x, y, z, grid=3)
    np.testing.assert_array_equal(z, x + y)
    loads = report.of("x", "load")
    assert (loads.requests, loads.elements, loads.moved) == (3, 10, 3)
    assert report.flops == 10


def test_a_race_of_threads_that_there_are():
    x = np.zeros(35, np.float32)
    with pytest.raises(Fault, match=r"race .* load of smem\[34\] by block \(0, 0\) thread \(0, 0\)") as fault:
        run(emit_reversed((7, 5), BARRIER=False), x, x.copy(), grid=1)
    assert "thread (6, 4), and nothing orders the two" in str(fault.value)
    k = Kernel("same", threads=6, z=ptr(i32))
    k.args[0][k.thread[0] // 2] = k.thread[0]
    with pytest.raises(Fault, match=r"race .*thread \(1, 0\)"):
        run(k.function, np.zeros(3, np.int32))


@pytest.mark.parametrize("threads", [40, (5, 9)], ids=str)
def test_a_barrier_that_threads_of_the_last_warp_skip(threads):
    k = Kernel("skipping", threads=threads)
    t = linear(k)
    with k.when(t < 38):
        k.barrier()
    place = r"\(38, 0\)" if threads == 40 else r"\(3, 7\)"
    with pytest.raises(Fault, match=f"divergent .*a barrier that some lanes of a warp skip by block .* thread {place}"):
        run(k.function)
    k = Kernel("waiting", threads=threads)
    with k.when(linear(k) < 32):
        k.barrier()
    with pytest.raises(Fault, match=f"deadlock .*32 of {size_of(threads)} threads have arrived"):
        run(k.function)


def test_lanes_that_are_not_there_cannot_exchange():
    k = Kernel("exchanging", threads=4, z=ptr(f32))
    k.args[0][k.thread[0]] = k.warp_sum(k.cast(k.thread[0], f32))
    sentence = r"divergent .*lane_xor16 needs 32 threads side by side: block \(0, 0\) has 4 threads, which are not"
    with pytest.raises(Fault, match=sentence):
        run(k.function, np.zeros(4, np.float32))


def test_a_warp_barrier_is_for_the_lanes_that_there_are():
    k = Kernel("turning", threads=5, z=ptr(i32))
    smem = k.smem("smem", (5,), i32)
    t = k.thread[0]
    smem[t] = t
    k.warp_barrier()
    k.args[0][t] = smem[4 - t]
    z = np.zeros(5, np.int32)
    run(k.function, z)
    np.testing.assert_array_equal(z, [4, 3, 2, 1, 0])


@pytest.mark.parametrize("by", ["thread", "warp", "role"])
def test_mbarriers_expect_the_threads_that_there_are(by):
    k = Kernel("arriving", threads=48, z=ptr(i32))
    smem, t = k.smem("smem", (48,), i32), k.thread[0]
    full = k.mbarriers("full")
    k.init_mbarriers()
    smem[t] = t
    k.warp_barrier()
    if by == "role":
        k.barrier()
    full.arrive(by=by)
    full.wait()
    k.args[0][t] = smem[47 - t]
    z = np.zeros(48, np.int32)
    run(k.function, z)
    np.testing.assert_array_equal(z, np.arange(48)[::-1])


def test_roles_are_whole_warps_and_leave_the_rest_alone():
    k = Kernel("roles", threads=80, z=ptr(i32))
    (z,), t = k.args, k.thread[0]
    with k.role("first", warps=1):
        z[t] = 1
    with k.role("second", warps=1):
        z[t] = 2
    z = np.zeros(80, np.int32)
    run(k.function, z)
    np.testing.assert_array_equal(z, np.repeat([1, 2, 0], [32, 32, 16]))


def test_clusters_of_partial_warps():
    k = Kernel("neighbours", threads=20, cluster=(2, 1, 1), z=ptr(i32))
    smem, t, rank = k.smem("smem", (20,), i32), k.thread[0], k.cluster_rank
    smem[t] = rank * 100 + t
    k.cluster_barrier()
    k.args[0][rank * 20 + t] = k.load(k.of_cta(smem, rank ^ 1) + t)
    k.cluster_barrier()
    z = np.zeros(40, np.int32)
    run(k.function, z, grid=2)
    np.testing.assert_array_equal(z, [*range(100, 120), *range(20)])


def test_loops_calls_and_early_returns():
    inner = Kernel("inner", warp=32, n=i64, result=i64)
    total = inner.variable(i64, 0)
    with inner.loop(inner.args[0]) as i:
        total.set(total.get() + i)
    inner.ret(total.get())
    k = Kernel("early", threads=(3, 5), z=ptr(i64))
    t = linear(k)
    with k.when(t == 13):
        k.ret()
    k.args[0][t] = k.call(inner.function, k.cast(t, i64))
    z = np.full(15, -1, np.int64)
    run(k.function, z)
    expected = np.array([t * (t - 1) // 2 for t in range(15)])
    expected[13] = -1
    np.testing.assert_array_equal(z, expected)


def test_where_an_access_goes_wrong():
    k = Kernel("outside", threads=(3, 5), z=ptr(i32))
    k.args[0][linear(k)] = 1
    with pytest.raises(Fault, match=r"store of z\[14\] by block \(0, 0\) thread \(2, 4\): it has 14 elements"):
        run(k.function, np.zeros(14, np.int32))
