"""Grids in the simulator: three coordinates, textures, atomics of many threads, and CTAs that touch the same memory."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import simulator
from tilewright.ir import Kernel, Texture, f32, f64, i32, i64, ptr
from tilewright.simulator import Fault, machine


def test_three_coordinates():
    k = Kernel("where", threads=32, x=ptr(i32))
    (bx, by), bz, (gx, gy) = k.block, k.block_z, k.grid
    cta = (bz * gy + by) * gx + bx
    with k.when(k.thread[0] == 0):
        k.args[0][cta] = bx + by * 10 + bz * 100
    x = np.zeros(24, np.int32)
    simulator.run(k.function, simulator.uninitialised(x), grid=(2, 3, 4))
    np.testing.assert_array_equal(x.reshape(4, 3, 2), np.arange(2) + np.arange(3)[:, None] * 10
                                  + np.arange(4)[:, None, None] * 100)
    with pytest.raises(Fault, match=r"out of bounds .*by block \(1, 2, 3\) thread \(0, 0\)"):
        simulator.run(k.function, x[:23], grid=(2, 3, 4))


# ---- textures

def fetch(index, element=f32, length=4):
    k = Kernel("fetching", threads=32, source=Texture(element, length), y=ptr(element))
    source, y = k.args
    t = k.thread[0]
    texel = k.fetch(source, index(t))
    for e in range(length):
        y[t * length + e] = texel[e]
    return k.function


@pytest.mark.parametrize(("element", "dtype", "n"), [(f32, np.float32, 4), (f64, np.float64, 2)])
def test_texels_and_zeros_outside(element, dtype, n):
    x, y = np.arange(1, 16 * n + 1, dtype=dtype), np.full(32 * n, np.nan, dtype)
    report = simulator.run(fetch(lambda t: t * 2 - 20, element, n), x, y)
    texels = {i: x[n * i : n * i + n] for i in range(16)}
    np.testing.assert_array_equal(y.reshape(32, n), [texels.get(2 * t - 20, np.zeros(n)) for t in range(32)])
    loads = report.of("source", "load")
    assert (loads.elements, loads.requests, report.instructions["texture"]) == (8 * n, 1, 1)
    assert loads.moved == 8     # every other texel, each half a sector


def test_what_a_texture_takes():
    function = fetch(lambda t: t)
    y = np.zeros(128, np.float32)
    for wrong in (np.zeros((8, 8), np.float32), np.zeros(64), np.zeros(128, np.float32)[::2], np.zeros(63, np.float32)):
        with pytest.raises(TypeError, match="source is a texture of v4f32: it must be"):
            simulator.run(function, wrong, y)
    with pytest.raises(Fault, match=r"uninitialised .*load of source\[0\]"):
        simulator.run(function, simulator.uninitialised(np.zeros(64, np.float32)), y)


# ---- atomics

def adding(element, body, threads=64):
    k = Kernel("adding", threads=threads, total=ptr(element), before=ptr(element), noalias=False)
    body(k, *k.args, k.block[0] * threads + k.thread[0])
    return k.function


@pytest.mark.parametrize(("element", "dtype"), [(f32, np.float32), (f64, np.float64), (i32, np.int32), (i64, np.int64)])
def test_every_lane_adds_in_its_turn(element, dtype):
    def body(k, total, before, i):
        before[i] = k.atomic_add(total + i % 3, k.cast(i, element), "monotonic")
    total, before = np.zeros(3, dtype), np.zeros(256, dtype)
    report = simulator.run(adding(element, body), total, simulator.uninitialised(before), grid=(4, 1))
    np.testing.assert_array_equal(total, [sum(range(r, 256, 3)) for r in range(3)])
    np.testing.assert_array_equal(before, [sum(range(i % 3, i, 3)) for i in range(256)])
    assert report.instructions["atomic"] == 8
    assert report.of("total").elements == 256


def test_sums_of_floats_are_rounded_in_the_order_of_the_lanes():
    def body(k, total, before, i):
        k.atomic_add(total, k.load(before + i), "monotonic")
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    total, expected = np.zeros(1, np.float32), np.float32(0)
    simulator.run(adding(f32, body), total, x)
    for number in x:
        expected += number
    assert total[0] == expected


def test_atomics_are_checked():
    def body(k, total, before, i):
        k.atomic_add(total + i, 1, "monotonic")
    total = np.zeros(63, np.int32)
    with pytest.raises(Fault, match=r"out of bounds .*atomic of total\[63\] by block \(0, 0\) thread \(63, 0\)"):
        simulator.run(adding(i32, body), total, total)
    total = np.zeros(64, np.int32)
    with pytest.raises(Fault, match=r"uninitialised .*atomic of total\[0\]"):
        simulator.run(adding(i32, body), simulator.uninitialised(total), total)


# ---- CTAs and one another

def writing(target, threads=32):
    k = Kernel("writing", threads=threads, x=ptr(f32))
    x, = k.args
    target(k, x, k.block[0], k.thread[0])
    return k.function


@pytest.fixture(params=[True, False], ids=["at once", "one after another"])
def together(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(machine, "TOGETHER", 1)
    return request.param


def test_two_ctas_write_one_element(together):
    function = writing(lambda k, x, b, t: x.__setitem__(t + b * 31, 1.0))
    with pytest.raises(Fault, match=r"race .*x\[31\] .*block \(., 0\) thread .*written .*by block \(., 0\) thread"):
        simulator.run(function, np.zeros(64, np.float32), grid=(2, 1))
    simulator.run(function, np.zeros(64, np.float32))
    simulator.run(writing(lambda k, x, b, t: x.__setitem__(t + b * 32, 1.0)), np.zeros(64, np.float32), grid=(2, 1))


def test_one_cta_reads_what_another_writes(together):
    """Whichever comes first."""
    for reader in (0, 1):
        def body(k, x, b, t, reader=reader):
            with k.when(b == reader):
                x[t + 64] = x[t]
            with k.otherwise():
                x[t] = 1.0
        with pytest.raises(Fault, match=r"race .* of x\[0\] by block \(., 0\) .*(read|written) .*by (a )?block"):
            simulator.run(writing(body), np.zeros(128, np.float32), grid=(2, 1))


def test_warps_of_one_cta_meet_at_a_barrier_in_global_memory():
    def body(k, x, b, t, barrier):
        x[t] = k.cast(t, f32)
        if barrier:
            k.barrier()
        x[t + 64] = x[63 - t]
    x = np.zeros(128, np.float32)
    simulator.run(writing(lambda *args: body(*args, True), 64), simulator.uninitialised(x))
    np.testing.assert_array_equal(x[64:], np.arange(63, -1, -1))
    with pytest.raises(Fault, match=r"race .*load of x\[63\] .*thread \(0, 0\): written .*thread \(63, 0\)"):
        simulator.run(writing(lambda *args: body(*args, False), 64), x)


def split_sum(splits, fence_before=True, fence_after=True, barrier=True, order="monotonic"):
    """Every CTA writes a part of a sum; the one that finds all others gone adds them up."""
    k = Kernel("split_sum", threads=64, out=ptr(f32), parts=ptr(f32), counter=ptr(i32))
    out, parts, counter = k.args
    t, part = k.thread[0], k.block_z
    ticket = k.smem("ticket", (1,), i32)
    parts[part * 64 + t] = k.cast(part * 64 + t, f32)
    if barrier:
        k.barrier()
    with k.when(t == 0):
        if fence_before:
            k.fence_device()
        ticket[0] = k.atomic_add(counter, 1, order)
    k.barrier()
    with k.when(ticket[0] == splits - 1):
        if fence_after:
            k.fence_device()
        acc = k.variable(f32, 0.0)
        with k.loop(splits) as other:
            acc.set(acc.get() + parts[other * 64 + t])
        out[t] = acc.get()
    return k.function


def run_split_sum(splits=5, **options):
    out, parts = np.zeros(64, np.float32), np.zeros(64 * splits, np.float32)
    simulator.run(split_sum(splits, **options), simulator.uninitialised(out), simulator.uninitialised(parts),
                  np.zeros(1, np.int32), grid=(1, 1, splits))
    np.testing.assert_array_equal(out, np.arange(64 * splits).reshape(splits, 64).sum(0))


def test_the_last_cta_may_read_what_the_others_wrote(together):
    run_split_sum()
    run_split_sum(fence_before=False, fence_after=True, order="release")
    run_split_sum(fence_before=False, fence_after=False, order="acq_rel")


@pytest.mark.parametrize("missing", ["fence_before", "fence_after", "barrier"])
def test_each_of_fence_counter_fence_is_needed(together, missing):
    with pytest.raises(Fault, match=r"race .*load of parts\[\d+\] by .*written at .* by block \(0, 0, \d\)"):
        run_split_sum(**{missing: False})


def test_a_fence_by_each_thread_and_then_a_barrier_will_do(together):
    """As in CUDA's own example: every thread fences what it wrote, and thread 0 counts for all after the barrier."""
    k = Kernel("fenced", threads=64, out=ptr(f32), parts=ptr(f32), counter=ptr(i32))
    out, parts, counter = k.args
    t, part, ticket = k.thread[0], k.block[0], k.smem("ticket", (1,), i32)
    parts[part * 64 + t] = 1.0
    k.fence_device()
    k.barrier()
    with k.when(t == 0):
        ticket[0] = k.atomic_add(counter, 1, "monotonic")
    k.barrier()
    k.fence_device()
    with k.when(ticket[0] == 2):
        out[t] = parts[t] + parts[t + 64] + parts[t + 128]
    out = np.zeros(64, np.float32)
    simulator.run(k.function, out, np.zeros(192, np.float32), np.zeros(1, np.int32), grid=(3, 1))
    assert (out == 3).all()


def test_the_next_launch_comes_after_this_one():
    one = writing(lambda k, x, b, t: x.__setitem__(t, x[t] + 1))
    x, memory = np.zeros(32, np.float32), simulator.AddressSpace()
    for _ in range(3):
        simulator.run(one, x, memory=memory)
    assert (x == 3).all()


# ---- indices

def indexed(expression, stop=64):
    k = Kernel("indexed", threads=64, x=ptr(i64), n=i32)
    x, n = k.args
    t = k.thread[0]
    with k.when(t < stop):
        x[t] = k.cast(expression(k, t, n), i64)
    return k.function


@pytest.mark.parametrize(("expression", "n", "wrong"), [
    (lambda k, t, n: t + n, 2**31 - 10, 2**31),
    (lambda k, t, n: t - n, 2**31 - 10, None),
    (lambda k, t, n: k.constant(i32, -20) - n - t, 2**31 - 28, -(2**31) - 1),
    (lambda k, t, n: t * n, 2**26, 2**31),
    (lambda k, t, n: n * n, 46340, None),
    (lambda k, t, n: n * n, 46341, 46341**2),
])
def test_indices_that_do_not_fit(expression, n, wrong):
    x = np.zeros(64, np.int64)
    if wrong is None:
        simulator.run(indexed(expression), x, n)
        return
    with pytest.raises(Fault, match=rf"arithmetic at test_simulated_grids.py:\d+ .*: {wrong} does not fit into an i32"):
        simulator.run(indexed(expression), x, n)


def test_idle_lanes_may_overflow_and_bits_may_do_as_they_like():
    x = np.zeros(64, np.int64)
    simulator.run(indexed(lambda k, t, n: t + n, stop=10), x, 2**31 - 10)
    assert x[9] == 2**31 - 1
    n, t = 0x5BD1E995, np.arange(64)
    simulator.run(indexed(lambda k, t, n: (t << 27) ^ n), x, n)
    np.testing.assert_array_equal(x, ((t << 27) ^ n).astype(np.int32))
    simulator.run(indexed(lambda k, t, n: k.cast(k.cast(t, i64) * k.cast(n, i64), i32)), x, n)
    np.testing.assert_array_equal(x, (t * n).astype(np.int32))


def test_a_loop_that_runs_past_the_largest_index():
    k = Kernel("endless", threads=32, n=i32)
    with k.loop(k.args[0], step=2**30):
        pass
    simulator.run(k.function, 2**30)
    with pytest.raises(Fault, match=r"arithmetic .*the loop's index passes the end of i32"):
        simulator.run(k.function, 2**31 - 1)


def test_a_last_batch_that_is_smaller(monkeypatch):
    """Three CTAs, two at once: what those of before have done is known of the third, too."""
    monkeypatch.setattr(machine, "TOGETHER", 64)
    simulator.run(writing(lambda k, x, b, t: x.__setitem__(t + b * 32, 1.0)), np.zeros(96, np.float32), grid=(3, 1))
    function = writing(lambda k, x, b, t: x.__setitem__(t + b % 2 * 32, 1.0))
    with pytest.raises(Fault, match=r"race .*x\[0\] by block \(2, 0\) thread \(0, 0\): written .*by block \(0, 0\)"):
        simulator.run(function, np.zeros(64, np.float32), grid=(3, 1))
