"""Teams of CPU threads in the simulator: what a thread may touch when, and that the five loops keep to it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.helpers.drivers import HERE, Packed
from tilewright import simulator
from tilewright.ir import Kernel, f32, i8, i64, ptr, vec
from tilewright.kernels.cpu import gemm
from tilewright.kernels.cpu.jobs import SHARED
from tilewright.kernels.cpu.pool import emit_barrier
from tilewright.simulator import Fault
from tilewright.targets import detect

TEAM = 3


def team(body):
    """A function of x (f32), a flag (i64, zero), a barrier and its number t, written by body(k, x, flag, wait, t)."""
    k = Kernel("team", noalias=False, x=ptr(f32), flag=ptr(i64), barrier=ptr(i64), t=i64)
    x, flag, barrier, t = k.args
    body(k, x, flag, lambda: emit_barrier(k, barrier.as_(i8), k.constant(i64, TEAM)), t)
    return k.function


def run(body, size=8, threads=TEAM):
    x = np.zeros(size, np.float32)
    simulator.run_team(team(body), x, np.zeros(1, np.int64), np.zeros(2, np.int64), threads=threads)
    return x


def races(message, body):
    with pytest.raises(Fault, match=rf"race at test_simulated_teams.py:\d+ in team: .*{message}"):
        run(body)


def test_threads_that_keep_apart():
    def body(k, x, flag, wait, t):
        x[t] = k.cast(t + 1, f32)
        x[t] = x[t] * x[t]
    np.testing.assert_array_equal(run(body), [1, 4, 9, 0, 0, 0, 0, 0])


def test_two_writers():
    def body(k, x, flag, wait, t):
        x[4] = 1.0
    races(r"store of x\[4\] by thread 1: written at test_.*:\d+ by thread 0, and nothing orders the two", body)


def test_a_reader_and_a_writer_whichever_comes_first():
    def read_first(k, x, flag, wait, t):
        with k.when(t == 0):
            x[1] = x[0]
        with k.otherwise():
            x[0] = 1.0
    races(r"store of x\[0\] by thread 1: read at .* by thread 0", read_first)

    def written_first(k, x, flag, wait, t):
        with k.when(t == 0):
            x[0] = 1.0
        with k.otherwise(), k.when(t == 1):
            x[1] = x[0]
    races(r"load of x\[0\] by thread 1: written at .* by thread 0", written_first)


def test_vectors_that_overlap_by_one_element():
    def body(k, x, flag, wait, t):
        with k.when(t < 2):
            k.store(x + t * 3, k.constant(vec(f32, 4), 1.0), align=4)
    races(r"store of x\[3\] by thread 1: written at .* by thread 0", body)


def test_bytes_of_one_word_are_not_one_thing():
    def body(k, x, flag, wait, t):
        k.store(x.as_(i8) + t, k.constant(i8, 1))
    run(body)


def test_a_barrier_orders():
    def body(k, x, flag, wait, t):
        with k.loop(4) as i:
            x[t] = k.cast(t + i, f32)
            wait()
            x[t + 4] = x[(t + 1) % TEAM]
            wait()
    np.testing.assert_array_equal(run(body)[4:], [4, 5, 3, 0])

    def without_the_second(k, x, flag, wait, t):
        with k.loop(4) as i:
            x[t] = k.cast(t + i, f32)
            wait()
            x[t + 4] = x[(t + 1) % TEAM]
    races(r"x\[\d\] by thread", without_the_second)


def test_release_and_acquire_order_and_relaxed_accesses_do_not():
    def hand_over(release, acquire):
        def body(k, x, flag, wait, t):
            with k.when(t == 2):
                x[0] = 5.0
                k.atomic_store(flag, 1, release)
            with k.when(t == 0):
                with k.while_(lambda: k.atomic_load(flag, acquire) != 1):
                    k.pause()
                x[1] = x[0]
        return body
    assert run(hand_over("release", "acquire"))[1] == 5
    races(r"load of x\[0\] by thread 0: written at .* by thread 2", hand_over("monotonic", "acquire"))
    races(r"load of x\[0\] by thread 0: written at .* by thread 2", hand_over("release", "monotonic"))


def test_a_lock():
    def body(k, x, flag, wait, t):
        with k.while_(lambda: k.atomic_replace(flag, 0, 1) == 0):
            k.pause()
        x[0] = x[0] + 1
        k.atomic_store(flag, 0)
    assert run(body)[0] == TEAM


def test_a_thread_that_waits_for_ever():
    def body(k, x, flag, wait, t):
        with k.when(t != 1):
            wait()
    with pytest.raises(Fault, match=r"deadlock at .*thread 0 waits at .*; thread 2 waits at .* for a store by another"):
        run(body)


# ---- the five loops

WAYS = [(1, 2, 1), (2, 1, 1), (1, 1, 3), (1, 2, 2), (2, 2, 2), (1, 3, 1), (2, 3, 1)]     # the last two claim


def product(ways, mc_panels=2, nc_panels=3):
    return Packed(HERE[0], "f32", 4, 2, 20, 6 * detect().lanes(4) - 3, 13, mc_panels=mc_panels, nc_panels=nc_panels,
                  ways=ways)


@cache
def alone(make, *how):
    """A product by one thread, and what the simulator reports of it."""
    found = make((1, 1, 1), *how)
    return found, found.simulate()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("blocks", [(1, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("ways", WAYS, ids=str)
def test_the_five_loops_share_their_work_without_a_race(ways, blocks):
    (single, one), together = alone(product, *blocks), product(ways, *blocks)
    all_ = together.simulate()
    np.testing.assert_array_equal(together.c, single.c)  # bit for bit
    assert all_.instructions["fma"] == one.instructions["fma"]
    assert all_.of("b", "load").elements == one.of("b", "load").elements  # packed once for all


def claimed(ways):
    return Packed(HERE[0], "f32", 4, 2, 44, 6 * detect().lanes(4) - 3, 21, mc_panels=1, nc_panels=2, ways=ways)


@pytest.mark.parametrize("ways", [(1, 3, 1), (1, 4, 1), (2, 3, 1)], ids=str)
def test_claims_of_whole_and_of_shared_blocks_do_not_race(ways):
    """Eleven blocks of A: more than are shared among three threads, so that some are packed by the thread that claims
    them and the last ones for all; three blocks of B and of k, so that each space is used again."""
    assert 11 > SHARED * 3
    together = claimed(ways)
    together.simulate()
    np.testing.assert_array_equal(together.c, alone(claimed)[0].c)  # bit for bit


@pytest.mark.parametrize("ways", [(1, 2, 1), (1, 3, 1), (2, 4, 1)], ids=str)
def test_threads_that_pack_b_for_themselves_share_nothing(ways):
    """Three blocks of B and of k, one thread with no rows of its own at (2, 4, 1): no race, and no thread waits."""
    def product(ways, **more):
        return Packed(HERE[0], "f32", 4, 2, 11, 6 * detect().lanes(4) - 3, 21, nc_panels=2, ways=ways, **more)
    alone, apart = product((1, 1, 1)), product(ways, own_b=True)
    one, all_ = alone.simulate(), apart.simulate()
    np.testing.assert_array_equal(apart.c, alone.c)  # bit for bit
    assert all_.of("b", "load").elements == ways[1] * one.of("b", "load").elements  # packed by each for itself
    assert all_.of("barriers", "load").elements == all_.of("barriers", "store").elements == 0


@pytest.mark.parametrize(("ways", "own_b", "mc_panels", "kept"), [
    ((1, 1, 1), False, 3, 1), ((1, 2, 1), True, 2, 1), ((1, 1, 1), False, 2, 3), ((1, 2, 1), False, 2, 3)], ids=str)
def test_panels_of_b_that_are_needed_once_are_packed_in_one_place(ways, own_b, mc_panels, kept):
    """Three panels of B, and of A. Counts bytes that each thread with a space for B has written there."""
    lanes = detect().lanes(4)
    product = Packed(HERE[0], "f32", 4, 2, 11, 6*lanes, 8, mc_panels=mc_panels, nc_panels=3, ways=ways, own_b=own_b)
    report = product.simulate()
    spaces = ways[1] if own_b else 1
    assert report.of("b_space", "store").distinct == spaces * kept * 8 * 2*lanes * 4
    np.testing.assert_allclose(product.c, product.a @ product.b, rtol=1e-5, atol=1e-5)


def test_every_barrier_of_the_five_loops_is_needed(monkeypatch):
    """Leave one out, and for some split of the work there is a race."""
    count, left_out = 0, 0

    def barrier(*args):
        nonlocal count
        if count != left_out:
            emit_barrier(*args)
        count += 1
    monkeypatch.setattr(gemm, "emit_barrier", barrier)
    barriers = 1
    while left_out < barriers:
        found = []
        for ways in WAYS:
            count = 0
            p = product(ways)
            barriers = count
            try:
                p.simulate()
            except Fault as fault:
                found.append(fault.kind)
        assert set(found) == {"race"}, f"barrier {left_out} of {barriers}"
        left_out += 1
    assert barriers > 3
