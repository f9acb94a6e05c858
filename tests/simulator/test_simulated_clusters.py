"""Clusters in the simulator: CTAs that read one another's shared memory, and what is found if a barrier is missing."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import simulator
from tilewright.ir import Kernel, f32, ptr
from tilewright.simulator import Fault, machine


def kernel(body, cluster=(4, 1, 1), threads=64):
    """A kernel on an array x; body(k, x, t, a shared array with an element for each thread)."""
    k = Kernel("test", threads=threads, cluster=cluster, x=ptr(f32))
    body(k, k.args[0], k.thread[0], k.smem("s", (threads,), f32))
    return k.function


def rotated(first=True, last=True, by=1, **options):
    """Every CTA takes what the next one of its cluster has, each thread from the thread opposite."""
    def body(k, x, t, s):
        at = k.block[0] * 64 + t
        s[t] = x[at]
        if first:
            k.cluster_barrier()
        x[at] = k.of_cta(s, (k.cluster_rank + by) % 4 if by < 4 else by)[63 - t]
        if last:
            k.cluster_barrier()
    return kernel(body, **options)


@pytest.mark.parametrize("together", [True, False], ids=["at once", "cluster after cluster"])
def test_what_the_next_cta_has(together, monkeypatch):
    if not together:
        monkeypatch.setattr(machine, "TOGETHER", 1)
    x = np.arange(12 * 64, dtype=np.float32)
    expected = np.roll(x.reshape(3, 4, 64)[:, :, ::-1], -1, axis=1).ravel()
    report = simulator.run(rotated(), x, grid=(12, 1))
    np.testing.assert_array_equal(x, expected)
    assert report.instructions["load cluster"] == 24
    assert report.of("s", space="cluster").elements == report.of("s", "store", "shared").elements == 12 * 64
    assert report.of("s", space="cluster").conflicts == 0
    assert "cluster memory" in str(report)


def test_ranks():
    """Along x first, then y, then z; clusters cut the grid in boxes."""
    x = np.zeros(32, np.float32)
    k = Kernel("ranks", threads=32, cluster=(1, 2, 2), x=ptr(f32))
    (bx, by), bz = k.block, k.block_z
    with k.when(k.thread[0] == 0):
        k.args[0][(bz * 4 + by) * 2 + bx] = k.cast(k.cluster_rank, f32)
    simulator.run(k.function, simulator.uninitialised(x), grid=(2, 4, 4))
    z, y, _ = np.indices((4, 4, 2))
    np.testing.assert_array_equal(x.reshape(4, 4, 2), y % 2 + z % 2 * 2)


def test_a_grid_is_whole_clusters():
    with pytest.raises(ValueError, match=r"a grid of \(6, 1, 1\) CTAs is not whole clusters of \(4, 1, 1\)"):
        simulator.run(rotated(), np.zeros(384, np.float32), grid=(6, 1))


# ---- what is missing


def test_the_first_barrier_missing():
    with pytest.raises(Fault, match=r"race .*load of s\[63\] by block \(0, 0\) .*written .* by block \(1, 0\) thread"):
        simulator.run(rotated(first=False), np.zeros(256, np.float32), grid=(4, 1))


def test_the_last_barrier_missing():
    with pytest.raises(Fault, match=r"cluster .*load of s\[\d+\] by block \(., 0\) .*block \(., 0\) may have ended"):
        simulator.run(rotated(last=False), np.zeros(256, np.float32), grid=(4, 1))


def test_a_barrier_of_the_cta_is_not_enough():
    def body(k, x, t, s):
        s[t] = x[t]
        k.barrier()
        x[k.block[0] * 64 + t] = k.of_cta(s, 3 - k.cluster_rank)[t]
        k.cluster_barrier()
    with pytest.raises(Fault, match=r"race .*load of s\[0\] by block \(0, 0\)"):
        simulator.run(kernel(body), np.zeros(256, np.float32), grid=(4, 1))


def test_a_cta_that_may_not_have_begun():
    def body(k, x, t, s):
        with k.when(k.cluster_rank == 0):
            k.of_cta(s, 1)[t] = 1.0
        k.cluster_barrier()
    with pytest.raises(Fault, match=r"cluster .*store of s\[0\] by block \(0, 0\) .*block \(1, 0\) may not have begun"):
        simulator.run(kernel(body), np.zeros(1, np.float32), grid=(4, 1))


def test_a_rank_that_does_not_exist():
    with pytest.raises(Fault, match=r"cluster .*there is no CTA 4 in a cluster of 4 by block \(0, 0\) thread \(0, 0\)"):
        simulator.run(rotated(by=4), np.zeros(256, np.float32), grid=(4, 1))


def test_others_memory_ends_too():
    def body(k, x, t, s):
        s[t] = 0.0
        k.cluster_barrier()
        x[k.block[0] * 64 + t] = k.of_cta(s, 3 - k.cluster_rank)[t + 1]
        k.cluster_barrier()
    with pytest.raises(Fault, match=r"out of bounds .*load of s\[64\] by block \(0, 0\) thread \(63, 0\)"):
        simulator.run(kernel(body), np.zeros(256, np.float32), grid=(4, 1))


def test_what_the_other_has_not_written():
    def body(k, x, t, s):
        with k.when(k.cluster_rank != 2):
            s[t] = 0.0
        k.cluster_barrier()
        x[k.block[0] * 64 + t] = k.of_cta(s, 3 - k.cluster_rank)[t]
        k.cluster_barrier()
    with pytest.raises(Fault, match=r"uninitialised .*load of s\[0\] by block \(1, 0\) thread \(0, 0\)"):
        simulator.run(kernel(body), np.zeros(256, np.float32), grid=(4, 1))


def test_writing_what_others_still_read():
    def body(k, x, t, s, meet):
        s[t] = x[t]
        k.cluster_barrier()
        x[k.block[0] * 64 + t + 64] = k.of_cta(s, 3 - k.cluster_rank)[t]
        if meet:
            k.cluster_barrier()
        s[t] = 2.0
        k.cluster_barrier()
    simulator.run(kernel(lambda *args: body(*args, True)), np.zeros(320, np.float32), grid=(4, 1))
    with pytest.raises(Fault, match=r"race .*store of s\[0\] by block \(0, 0\) .*: read at .* by block \(3, 0\)"):
        simulator.run(kernel(lambda *args: body(*args, False)), np.zeros(320, np.float32), grid=(4, 1))


def test_what_others_write():
    """A barrier of the CTA carries no news of other CTAs, also after it all of its own threads know."""
    def body(k, x, t, s, meet):
        k.cluster_barrier()
        k.of_cta(s, 3 - k.cluster_rank)[t] = k.cast(k.cluster_rank, f32)
        if meet:
            k.cluster_barrier()
        k.barrier()
        x[k.block[0] * 64 + t] = s[t]
        k.cluster_barrier()
    x = np.zeros(256, np.float32)
    simulator.run(kernel(lambda *args: body(*args, True)), x, grid=(4, 1))
    np.testing.assert_array_equal(x.reshape(4, 64), np.arange(4)[::-1, None] + np.zeros(64))
    with pytest.raises(Fault, match=r"race .*load of s\[0\] by block \(0, 0\) .*written .*by block \(3, 0\)"):
        simulator.run(kernel(lambda *args: body(*args, False)), x, grid=(4, 1))


# ---- the barrier


def test_work_between_the_halves_of_the_barrier():
    """What is done after the arrival is not released by it."""
    def body(k, x, t, s, late):
        def write():
            s[t] = x[t]
        if not late:
            write()
        k.cluster_arrive()
        if late:
            write()
        k.cluster_wait()
        x[k.block[0] * 64 + t + 64] = k.of_cta(s, 3 - k.cluster_rank)[t]
        k.cluster_barrier()
    simulator.run(kernel(lambda *args: body(*args, False)), np.zeros(320, np.float32), grid=(4, 1))
    with pytest.raises(Fault, match=r"race .*load of s\[0\] by block \(0, 0\)"):
        simulator.run(kernel(lambda *args: body(*args, True)), np.zeros(320, np.float32), grid=(4, 1))


@pytest.mark.parametrize("twice", ["arrive", "wait"])
def test_halves_belong_together(twice):
    def body(k, x, t, s):
        for half in ("arrive", "wait"):
            for _ in range(1 + (half == twice)):
                getattr(k, f"cluster_{half}")()
    with pytest.raises(Fault, match=r"arrivals .*at the barrier of their cluster (twice )?without"):
        simulator.run(kernel(body), np.zeros(1, np.float32), grid=(4, 1))


def test_who_has_ended_is_not_waited_for():
    k = Kernel("test", threads=32, cluster=(4, 1, 1), x=ptr(f32))
    with k.when(k.cluster_rank > 0):
        k.cluster_barrier()
        k.args[0][k.block[0] * 32 + k.thread[0]] = 1.0
    x = np.zeros(256, np.float32)
    simulator.run(k.function, x, grid=(8, 1))
    np.testing.assert_array_equal(x.reshape(8, 32)[:, 0], [0, 1, 1, 1] * 2)


def test_a_barrier_that_some_lanes_skip():
    def body(k, x, t, s):
        with k.when(t < 5):
            k.cluster_barrier()
    with pytest.raises(Fault, match=r"divergent .*some lanes of a warp skip by block \(0, 0\) thread \(5, 0\)"):
        simulator.run(kernel(body), np.zeros(1, np.float32), grid=(4, 1))


def test_a_barrier_that_one_cta_waits_at_elsewhere():
    def body(k, x, t, s):
        with k.when(k.cluster_rank == 0):
            k.cluster_barrier()
            k.barrier()
        with k.otherwise():
            with k.when(t < 32):
                k.cluster_barrier()
            k.barrier()
    with pytest.raises(Fault, match=r"deadlock .*the barrier of the cluster of block \(0, 0\): 160 of 256 threads"):
        simulator.run(kernel(body), np.zeros(1, np.float32), grid=(4, 1))


# ---- what is no cluster


def test_kernels_without_clusters():
    k = Kernel("alone", threads=32, x=ptr(f32))
    s = k.smem("s", (32,), f32)
    for use in (k.cluster_barrier, lambda: k.cluster_rank, lambda: k.of_cta(s, 0)):
        with pytest.raises(SyntaxError, match=r"alone has none: Kernel\(cluster=\(x, y, z\)\)"):
            use()
    k = Kernel("pair", threads=32, cluster=(2, 1, 1), x=ptr(f32))
    with pytest.raises(TypeError, match="a place in this CTA's shared memory, not a global f32"):
        k.of_cta(k.args[0], 0)
    k = Kernel("roles", threads=64, cluster=(2, 1, 1), x=ptr(f32))
    with k.role("some", warps=1), pytest.raises(SyntaxError, match="a cluster barrier waits for all warps of the CTA"):
        k.cluster_barrier()
