"""Threads that do something together in the simulator: lanes that exchange, groups of up to 128, vectors, flags."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import simulator
from tilewright.ir import Kernel, Value, f16, f32, f64, i32, i64, ptr, vec
from tilewright.ir.ops.core import Operation
from tilewright.ir.program import Line, Op
from tilewright.simulator import Fault


def run(body, dtype=np.float32, element=f32, threads=128, warp=32, size=128):
    k = Kernel("together", threads=threads, warp=warp, x=ptr(element))
    x, t = k.args[0], k.thread[0]
    body(k, x, t)
    x = np.arange(size).astype(dtype)
    return x, simulator.run(k.function, x)


# ---- exchanging lanes

@pytest.mark.parametrize(("element", "dtype"), [
    (f16, np.float16), (f32, np.float32), (f64, np.float64), (i64, np.int64)])
@pytest.mark.parametrize("warp", [32, 64])
def test_lanes_exchange(element, dtype, warp):
    for mask in (1, 5, warp // 2, warp - 1):
        x, report = run(lambda k, x, t, m=mask: x.__setitem__(t, k.lane_xor(x[t], m)), dtype, element, warp=warp)
        np.testing.assert_array_equal(x, np.arange(128) ^ mask)
        assert report.instructions["exchange"] == 128 // warp


@pytest.mark.parametrize("warp", [32, 64])
def test_sums_over_a_warp(warp):
    """In every lane the same, and always in the same order: of numbers that do not add up exactly, too."""
    x, _ = run(lambda k, x, t: x.__setitem__(t, k.warp_sum(x[t])), warp=warp)
    np.testing.assert_array_equal(x, np.repeat(np.arange(128).reshape(-1, warp).sum(1), warp))
    x, _ = run(lambda k, x, t: x.__setitem__(t, k.warp_sum(k.constant(f32, 1.0) * 0.1 * x[t])), warp=warp)
    assert (x.reshape(-1, warp) == x[::warp, None]).all()


def test_a_uniform_value_is_exchanged_too():
    x, _ = run(lambda k, x, t: x.__setitem__(t, k.warp_sum(k.cast(k.block[0] + 1, f32))))
    assert (x == 32).all()


def test_lanes_that_are_not_there():
    def body(k, x, t):
        with k.when(t < 40):
            x[t] = k.lane_xor(x[t], 1)
    with pytest.raises(Fault, match=r"divergent .*lane_xor1 needs 32 threads side by side by .*thread \(40, 0\)"):
        run(body)

    def whole_warps(k, x, t):
        with k.when(t >= 64):
            x[t] = k.lane_xor(x[t], 1)
    x, _ = run(whole_warps)
    np.testing.assert_array_equal(x, np.r_[np.arange(64), np.arange(64, 128) ^ 1])


# ---- groups with several results

@pytest.mark.parametrize(("scope", "warp"), [(32, 32), (64, 32), (128, 32), (64, 64), (128, 64)])
def test_groups_of_threads_with_several_results(scope, warp):
    """Sorted downwards, and how far each thread is from the middle of its group, as a vector."""
    def meaning(t, x):
        far = np.abs(np.arange(scope) - scope / 2).astype(np.float32)
        return np.sort(x, axis=-1)[..., ::-1], np.stack([far + 0 * x, x])
    together = Operation("sort", lambda low, t, x: None, meaning, "mma", "group", scope=scope)

    def body(k, x, t):
        results = Value(k, f32), Value(k, vec(f32, 2))
        k._record(Op(together, (x[t],), results, Line(__file__, 1)))
        x[t] = results[0] + results[1][0] * 1000 - results[1][1]
    x, report = run(body, threads=256, warp=warp, size=256)
    groups = np.arange(256, dtype=np.float32).reshape(-1, scope)
    far = np.abs(np.arange(scope) - scope // 2)
    np.testing.assert_array_equal(x.reshape(-1, scope), groups[:, ::-1] + 1000 * far - groups)
    assert report.instructions["mma"] == 256 // warp


def test_a_warpgroup_beside_a_producer():
    """Of 8 warps the second four; with as many in each of three CTAs, that run at once."""
    together = Operation("reverse", lambda low, t, x: None, lambda t, x: x[..., ::-1], "mma", "group", scope=128)

    def body(k, x, t):
        with k.role("producer", warps=4):
            x[k.block[0] * 256 + t] = 0.0
        with k.role("consumer", warps=4):
            at = x + k.block[0] * 256 + t
            result = Value(k, f32)
            k._record(Op(together, (at[0],), (result,), Line(__file__, 1)))
            at[0] = result
    k = Kernel("together", threads=256, x=ptr(f32))
    body(k, k.args[0], k.thread[0])
    x = np.arange(768, dtype=np.float32)
    simulator.run(k.function, x, grid=(3, 1))
    halves = np.arange(768).reshape(3, 2, 128)
    np.testing.assert_array_equal(x.reshape(3, 2, 128), np.stack([0 * halves[:, 0], halves[:, 1, ::-1]], axis=1))


def test_a_warpgroup_of_which_a_warp_is_elsewhere():
    together = Operation("four_warps", lambda low, t, x: None, lambda t, x: x, "mma", "group", scope=128)

    def body(k, x, t):
        with k.role("three", warps=3):
            result = Value(k, f32)
            k._record(Op(together, (x[t],), (result,), Line(__file__, 1)))
    with pytest.raises(Fault, match=r"divergent .*four_warps needs 128 threads side by side"):
        run(body)


# ---- vectors

@pytest.mark.parametrize(("shift", "message"), [
    (1, r"misaligned .*load of x\[1\] by block \(0, 0\) thread \(0, 0\): it must be 16-byte aligned"),
    (4, r"out of bounds .*load of x\[128\] by block \(0, 0\) thread \(31, 0\): it has 128 elements"),
])
def test_vectors_in_the_wrong_place(shift, message):
    with pytest.raises(Fault, match=message):
        run(lambda k, x, t: k.load(x + t * 4 + shift, vec(f32, 4)), threads=32, size=128 if shift == 4 else 132)


def test_masked_vectors_and_masked_lanes():
    """Elements, lanes, and both under a branch; what is masked may lie anywhere."""
    def body(k, x, t):
        with k.when(t < 20):
            inside = k.load(x + t * 8, vec(f32, 4), 4, mask=k.lanes_below(k.min(k.max(128 - t * 8, 0), 4), 4))
            k.store(x + t * 8 + 4, inside, 4, mask=(t < 16) & (t >= 1))
    x, report = run(body, threads=32)
    expected = np.arange(128, dtype=np.float32).reshape(16, 8)
    expected[1:, 4:] = expected[1:, :4]
    np.testing.assert_array_equal(x, expected.ravel())
    assert (report.of("x", "load").elements, report.of("x", "store").elements) == (64, 60)


# ---- atomics of other kinds

def test_flags_in_global_memory():
    """One CTA writes, fences and sets a flag; the next one looks and, if it sees it, reads."""
    def kernel(release, acquire):
        k = Kernel("flags", threads=32, x=ptr(f32), flag=ptr(i32))
        (x, flag), t, b = k.args, k.thread[0], k.block[0]
        with k.when(b == 0):
            x[t] = 5.0
            k.atomic_store(flag + t, 1, release)
        with k.when(b == 1), k.when(k.atomic_load(flag + t, acquire) == 1):
            x[t + 32] = x[t]
        return k.function
    for release, acquire, right in (("release", "acquire", True), ("monotonic", "acquire", False),
                                    ("release", "monotonic", False)):
        x, flag = np.zeros(64, np.float32), np.zeros(32, np.int32)
        if right:
            simulator.run(kernel(release, acquire), x, flag, grid=(2, 1))
            assert (x == 5).all()
        else:
            with pytest.raises(Fault, match=r"race .*load of x\[0\] by block \(1, 0\)"):
                simulator.run(kernel(release, acquire), x, flag, grid=(2, 1))


def test_one_lane_wins():
    k = Kernel("winner", threads=64, x=ptr(i32), won=ptr(i32))
    x, won = k.args
    t = k.thread[0]
    won[t] = k.select(k.atomic_replace(x + t % 2, 0, t + 1), k.constant(i32, 1), 0)
    k.fence()
    x, won = np.zeros(2, np.int32), np.zeros(64, np.int32)
    simulator.run(k.function, x, won)
    assert x.tolist() == [1, 2]
    assert np.flatnonzero(won).tolist() == [0, 1]
