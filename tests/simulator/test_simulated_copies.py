"""Asynchronous copies in the simulator: what arrives, and every way to touch it too early."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import simulator
from tilewright.ir import Kernel, f16, f32, f64, i32, ptr, vec
from tilewright.simulator import Fault

THREADS = 64


def kernel(body, threads=THREADS, element=f32, size=256):
    """A kernel on arrays x and y and a shared one; body(k, x, y, s, t)."""
    k = Kernel("copying", threads=threads, x=ptr(element), y=ptr(element), n=i32)
    x, y, n = k.args
    k.n = n
    body(k, x, y, k.smem("s", (size,), element), k.thread[0])
    return k.function


def run(body, n=0, dtype=np.float32, **options):
    x, y = np.arange(1, 257, dtype=dtype), np.zeros(256, dtype)
    report = simulator.run(kernel(body, **options), x, simulator.uninitialised(y), n)
    return y, report


def races(message, body, **options):
    with pytest.raises(Fault, match=rf"race at test_simulated_copies.py:\d+ in copying: .*{message}"):
        run(body, **options)


def whole(k):
    """Commit, wait for everything, meet."""
    k.cp_async_commit()
    k.cp_async_wait(0)
    k.barrier()


@pytest.mark.parametrize("bytes", [4, 8, 16])
def test_bytes_arrive(bytes):
    n = bytes // 4

    def body(k, x, y, s, t):
        k.cp_async(s + t * n, x + t * n, bytes)
        whole(k)
        for e in range(n):
            y[t + e * THREADS] = s[THREADS * n - 1 - (t + e * THREADS)]
    y, report = run(body)
    np.testing.assert_array_equal(y[:THREADS * n], np.arange(THREADS * n, 0, -1))
    assert report.instructions["cp.async"] == 2
    loads, stores = report.of("x", "load"), report.of("s", "store")
    assert (loads.requests, loads.bytes, loads.moved) == (2, THREADS * bytes, THREADS * bytes // 32)
    assert (stores.requests, stores.bytes, stores.moved) == (2, THREADS * bytes, 2 * n)


@pytest.mark.parametrize("valid", [0, 4, 8, 12, 16])
def test_the_rest_is_zeros(valid):
    """The last vector hangs over the edge of x, by bytes that nobody reads."""
    def body(k, x, y, s, t):
        bytes = k.select(t == THREADS - 1, k.constant(i32, valid), 16)
        k.cp_async(s + t * 4, x + t * 4, 16, valid=bytes)
        whole(k)
        for e in range(4):
            y[t * 4 + e] = s[t * 4 + e]
    n = 4 - valid // 4
    x, y = np.arange(1, 257 - n, dtype=np.float32), np.zeros(256, np.float32)
    simulator.run(kernel(body), x, simulator.uninitialised(y), 0)
    np.testing.assert_array_equal(y, np.r_[x, np.zeros(n)])


def test_valid_bytes_of_half_a_word():
    def body(k, x, y, s, t):
        k.cp_async(s + t * 2, x + t * 2, 4, valid=2)
        whole(k)
        y[t * 2] = s[t * 2]
        y[t * 2 + 1] = s[t * 2 + 1]
    y, _ = run(body, dtype=np.float16, element=f16)
    np.testing.assert_array_equal(y[:128].reshape(-1, 2), [(i, 0) for i in range(1, 128, 2)])


def test_one_past_the_end():
    def body(k, x, y, s, t):
        k.cp_async(s + t * 4, x + t * 4 + k.n * 4, 16)
    with pytest.raises(Fault, match=r"out of bounds .*load of x\[256\] by block \(0, 0\) thread \(63, 0\)"):
        run(body, n=1)
    with pytest.raises(Fault, match=r"out of bounds .*store of s\[255\] by .*thread \(63, 0\)"):
        run(body, size=255)


def test_misaligned():
    with pytest.raises(Fault, match=r"misaligned .*load of x\[1\] .*must be 8-byte aligned"):
        run(lambda k, x, y, s, t: k.cp_async(s + t * 2, x + t * 2 + k.n, 8), n=1)
    with pytest.raises(Fault, match=r"misaligned .*store of s\[1\] .*must be 16-byte aligned"):
        run(lambda k, x, y, s, t: k.cp_async(s + t * 4 + k.n, x + t * 4, 16), n=1, size=260)


def test_impossible_valid_bytes():
    with pytest.raises(Fault, match=r"arithmetic .*a copy of 4 bytes cannot have 5 valid ones"):
        run(lambda k, x, y, s, t: k.cp_async(s + t, x + t, 4, valid=k.n), n=5)


# ---- too early

def test_nobody_has_waited():
    def body(k, x, y, s, t):
        k.cp_async(s + t, x + t, 4)
        k.cp_async_commit()
        k.barrier()
        y[t] = s[t]
    races(r"load of s\[0\] by .*thread \(0, 0\): a copy at .* by .*thread \(0, 0\) is in flight", body)


def test_not_even_the_own_thread_may_look():
    def body(k, x, y, s, t):
        k.cp_async(s + t, x + t, 4)
        y[t] = s[t]
    races("load of s.*is in flight", body)


def test_waiting_for_too_few_groups():
    """The newest group may still be in flight after a wait for all but one."""
    def body(k, x, y, s, t, pending):
        for stage in range(2):
            k.cp_async(s + t + stage * THREADS, x + t, 4)
            k.cp_async_commit()
        k.cp_async_wait(pending)
        k.barrier()
        y[t] = s[t]
        y[t + THREADS] = s[t + THREADS]
    run(lambda *args: body(*args, 0))
    races(r"load of s\[64\].*is in flight", lambda *args: body(*args, 1))
    races(r"load of s\[0\].*is in flight", lambda *args: body(*args, 2))


def test_waiting_without_closing_the_group():
    def body(k, x, y, s, t):
        k.cp_async(s + t, x + t, 4)
        k.cp_async_wait(0)
        k.barrier()
        y[t] = s[t]
    races("load of s.*is in flight", body)


def test_no_barrier_after_the_wait():
    """Each thread has waited for its own copies; that tells it nothing of others', even in its warp."""
    def body(k, x, y, s, t, shift):
        k.cp_async(s + t, x + t, 4)
        k.cp_async_commit()
        k.cp_async_wait(0)
        y[t] = s[(t + shift) % THREADS]
    np.testing.assert_array_equal(run(lambda *args: body(*args, 0))[0][:THREADS], np.arange(1, THREADS + 1))
    for shift in (1, 32):
        races(r"load of s\[.*written at", lambda *args, shift=shift: body(*args, shift))


def test_a_barrier_before_the_wait_is_none_after_it():
    def body(k, x, y, s, t):
        k.cp_async(s + t, x + t, 4)
        k.cp_async_commit()
        k.barrier()
        k.cp_async_wait(0)
        y[t] = s[(t + 32) % THREADS]
    races(r"load of s\[32\].*written at", body)


def test_overwritten_while_in_flight():
    def body(k, x, y, s, t):
        k.cp_async(s + t, x + t, 4)
        k.cp_async_commit()
        s[t] = 0.0
    races(r"store of s\[0\].*is in flight", body)
    races(r"store of s\[0\].*is in flight", lambda k, x, y, s, t: [k.cp_async(s + t, x + t, 4) for _ in range(2)])


def test_overwriting_what_others_still_read():
    def body(k, x, y, s, t, barrier):
        k.cp_async(s + t, x + t, 4)
        whole(k)
        y[t] = s[(t + 32) % THREADS]
        if barrier:
            k.barrier()
        k.cp_async(s + t, x + t, 4)
        whole(k)
        y[t] = s[t]
    run(lambda *args: body(*args, True))
    races(r"store of s\[0\].*read at .* by block \(0, 0\) thread \(32, 0\)", lambda *args: body(*args, False))


def test_the_source_is_not_to_be_written():
    def body(k, x, y, s, t, wait):
        k.cp_async(s + t, x + t, 4)
        k.cp_async_commit()
        if wait:
            k.cp_async_wait(0)
        x[t] = 0.0
    run(lambda *args: body(*args, True))
    races(r"store of x\[0\].*a copy from there, started at .*, is in flight", lambda *args: body(*args, False))


def test_elements_are_those_of_the_array():
    """f64 travels in copies of 8 and 16 bytes; a store of half of one that is on its way is found, too."""
    def body(k, x, y, s, t, late=False):
        k.cp_async(s + t * 2, x + t * 2, 16)
        if late:
            (x + t * 2).as_(i32)[3] = 0
        whole(k)
        y[t] = s[127 - t]
    y, report = run(body, dtype=np.float64, element=f64)
    np.testing.assert_array_equal(y[:64], np.arange(128, 64, -1))
    assert report.of("x", "load").elements == report.of("s", "store").elements == 128
    with pytest.raises(Fault, match=r"race .*store of x\[3\].*is in flight"):
        run(lambda *args: body(*args, late=True), dtype=np.float64, element=f64)


def test_lanes_that_copy_for_others():
    """Half the lanes copy, all commit and wait: groups are counted for each thread."""
    def body(k, x, y, s, t):
        with k.when(t % 2 == 0):
            k.cp_async(s + t * 4, x + t * 4, 16)
            k.cp_async(s + t * 4 + 4, x + t * 4 + 4, 16)
            k.cp_async_commit()
        k.cp_async_wait(0)
        k.barrier()
        k.store(y + t * 4, k.load(s + t * 4, vec(f32, 4)))
    np.testing.assert_array_equal(run(body)[0], np.arange(1, 257))


def test_a_pipeline_of_three_stages():
    """While one tile is added up two are on their way; the last barrier keeps the fastest warp from overwriting."""
    STAGES = 3

    def body(k, x, y, s, t, barrier=True, pending=STAGES - 2):
        for stage in range(STAGES - 1):
            k.cp_async(s + t + stage * THREADS, x + t + stage * THREADS, 4)
            k.cp_async_commit()
        acc = k.variable(f32, 0.0)
        with k.loop(4) as tile:
            k.cp_async_wait(pending)
            if barrier:
                k.barrier()
            acc.set(acc.get() + s[tile % STAGES * THREADS + (t + 32) % THREADS])
            ahead = tile + (STAGES - 1)
            with k.when(ahead < 4):
                k.cp_async(s + ahead % STAGES * THREADS + t, x + ahead * THREADS + t, 4)
            k.cp_async_commit()
        y[t] = acc.get()
    x = np.arange(1, 257, dtype=np.float32).reshape(4, THREADS)
    np.testing.assert_array_equal(run(body)[0][:THREADS], np.roll(x.sum(0), 32))
    races("in flight|written at|read by", lambda *args: body(*args, barrier=False))
    races("in flight", lambda *args: body(*args, pending=STAGES - 1))
