"""mbarriers, roles and typed views: pipelines of warps with different work, and every mistake one can make in them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.layouts import Swizzle
from tilewright import simulator
from tilewright.compiler import llvm, ptxas
from tilewright.ir import Kernel, f32, i32, ptr, vec
from tilewright.ir.ops import pipelines as raw
from tilewright.ir.ops.pipelines import Role
from tilewright.simulator import Fault
from tilewright.targets import target

TILES, SIZE = 7, 32         # tiles of x, and elements of each


def pipeline(stages=3, consumers=2, wait_empty=True, wait_full=True, flip=True, copies="registers", late=False,
             arrivals=None, meet=True):
    """y = sums of pairs of x, tile by tile: warp 0 brings tiles, the others add. The keywords plant mistakes.

    `copies`: how tiles travel: through registers, by cp.async that the thread waits for or that an mbarrier hears of,
    or in bulk.
    """
    k = Kernel("pipeline", threads=32 * (1 + consumers), x=ptr(f32), y=ptr(f32), tiles=i32)
    x, y, tiles = k.args
    t, x, y = k.thread[0], x + k.block[0] * tiles * SIZE, y + k.block[0] * tiles * SIZE
    s = k.smem("s", (stages, SIZE), f32, align=128).view(SIZE, 1)
    full, empty = k.mbarriers("full", stages), k.mbarriers("empty", stages)
    k.init_mbarriers()
    with k.role("producer", warps=1), k.loop(tiles) as tile:
        stage, round = tile % stages, tile // stages
        if wait_empty:
            empty.wait(stage, round % 2 ^ 1)
        if copies == "registers":
            s[stage, t] = x[tile * SIZE + t]
            full.arrive(stage)
        elif copies == "waited":
            k.cp_async(s.at(stage, t), x + tile * SIZE + t, 4)
            k.cp_async_commit()
            if not late:
                k.cp_async_wait(0)
            full.arrive(stage)
        else:
            full.arrive(stage, by="role", expect=4 * SIZE if not late else 2 * SIZE)
            with k.when(t == 0):
                full.copy(s.at(stage, 0), x + tile * SIZE, 4 * SIZE, stage)
    with k.role("consumer", warps=consumers), k.loop(tiles) as tile:
        stage, round = tile % stages, tile // stages
        me = t - 32
        if wait_full:
            full.wait(stage, round % 2 if flip else 0)
        with k.when(me < SIZE):
            y[tile * SIZE + me] = s[stage, me] + s[stage, me ^ 1]
        if meet:
            k.warp_barrier()                    # the lane that arrives answers for the others
        empty.arrive(stage, by="warp")
    if arrivals is not None:
        empty.arrivals.constant = arrivals
    return k.function


def run(tiles=TILES, ctas=1, **options):
    x, y = np.arange(ctas * tiles * SIZE, dtype=np.float32), np.zeros(ctas * tiles * SIZE, np.float32)
    report = simulator.run(pipeline(**options), x, simulator.uninitialised(y), tiles, grid=(ctas, 1))
    np.testing.assert_array_equal(y.reshape(-1, 2), np.repeat(x.reshape(-1, 2).sum(1), 2).reshape(-1, 2))
    return report


WAYS = ["registers", "waited", "bulk"]


@pytest.mark.parametrize("copies", WAYS)
@pytest.mark.parametrize(("stages", "consumers"), [(1, 1), (2, 1), (3, 2), (4, 3)])
def test_producer_and_consumers(stages, consumers, copies):
    report = run(ctas=3, stages=stages, consumers=consumers, copies=copies)
    assert report.of("x", "load").elements == 3 * TILES * SIZE
    assert report.instructions["mbarrier"] > 2 * TILES


@pytest.mark.parametrize("copies", WAYS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_ptx_of_pipelines(copies, arch):
    if copies == "bulk" and arch == "sm_80":
        return
    ptx = llvm.assembly(pipeline(copies=copies), target(arch))
    assert "mbarrier.test_wait.parity" in ptx
    assert ptxas.assemble(ptx, arch)[1]["pipeline"].spill_stores == 0


def test_arrivals_are_counted_from_the_roles():
    counts = {}
    for node in pipeline(consumers=3).walk():
        if getattr(node, "operation", None) is raw.INIT:
            pointer, count = node.operands
            counts.setdefault(pointer.array.name, []).append(count.constant)
    assert counts == {"full": [32] * 3, "empty": [3] * 3}
    assert [(r.name, r.first, r.warps) for r in pipeline().walk() if isinstance(r, Role)] == [
        ("producer", 0, 1), ("consumer", 1, 2)]


def meeting(barrier=True, skip=False):
    """Two roles, each of which turns 64 numbers around by shared memory."""
    k = Kernel("meeting", threads=128, x=ptr(f32))
    x, = k.args
    s, t = k.smem("s", (128,), f32), k.thread[0]
    for name in ("one", "two"):
        with k.role(name, warps=2) as role, k.loop(3):
            at = t - role.first * 32
            s[t] = x[t]
            if barrier:
                with k.when(t < 32 * (role.first + 1 if skip else 4)):
                    k.role_barrier()
            x[t] = s[role.first * 32 + 63 - at] + 1
            if barrier:
                k.role_barrier()
    return k.function


def test_a_barrier_of_a_role():
    x = np.arange(128, dtype=np.float32)
    simulator.run(meeting(), x)
    np.testing.assert_array_equal(x, np.arange(128).reshape(2, 64)[:, ::-1].ravel() + 3)
    with pytest.raises(Fault, match=r"(race|uninitialised) at .*load of s"):
        simulator.run(meeting(barrier=False), x)
    with pytest.raises(Fault, match=r"(race|deadlock|uninitialised) at "):
        simulator.run(meeting(skip=True), x)
    for arch in ("sm_75", "sm_90a"):
        assert re.findall(r"bar\.sync\s+(\d+), (\d+)", llvm.assembly(meeting(), target(arch))) == [
            ("1", "64"), ("1", "64"), ("2", "64"), ("2", "64")]
    with pytest.raises(NotImplementedError, match="gfx942 has no role_barrier"):
        llvm.assembly(meeting_on_amd(), target("gfx942"))
    with pytest.raises(SyntaxError, match="is called inside of a role"):
        Kernel("outside", threads=32).role_barrier()


def meeting_on_amd():
    k = Kernel("meeting", threads=128, warp=64)
    with k.role("one", warps=1):
        k.role_barrier()
    return k.function


# ---- mistakes that show when the kernel runs

def faults(message, **options):
    with pytest.raises(Fault, match=message):
        run(**options)


@pytest.mark.parametrize("copies", WAYS)
def test_not_waiting_for_an_empty_stage(copies):
    """The producer overwrites what a consumer may still read; with fewer tiles than stages nothing is wrong."""
    faults(r"race at test_simulated_pipelines.py:\d+ .* of s\[", wait_empty=False, copies=copies)
    run(tiles=3, wait_empty=False, copies=copies)


@pytest.mark.parametrize("copies", WAYS)
def test_not_waiting_for_a_full_stage(copies):
    faults(r"(uninitialised|race) at .*load of s\[", wait_full=False, copies=copies)


def test_a_parity_that_does_not_flip():
    """In the second round the consumer passes at once, on the strength of the first."""
    run(tiles=3, flip=False)
    faults(r"race at .* of s\[0\]", flip=False)


def test_arriving_before_the_copy_has_come():
    faults(r"race at .*load of s\[0\].*a copy at .* is in flight", copies="waited", late=True)


@pytest.mark.parametrize(("arrivals", "message"), [
    (3, r"deadlock .*empty\[0\] of block \(0, 0\): 2 of 3 threads have arrived"),
    (1, r"arrivals at .*empty\[0\] of block \(0, 0\) expects 1 arrivals in a phase, and these are 2 by .*"),
    (0, r"arrivals at .*empty\[0\] of block \(0, 0\) would be complete after 0 arrivals"),
])
def test_wrong_numbers_of_arrivals(arrivals, message):
    faults(message, arrivals=arrivals)


def test_fewer_bytes_announced_than_come():
    faults(r"deadlock .*full\[0\] of .*: 1 of 1 threads have arrived, 64 bytes more than announced", copies="bulk",
           late=True)


def test_mbarriers_that_nobody_made():
    k = Kernel("raw", threads=32, x=ptr(f32))
    barriers = k.mbarriers("bar", 2)
    barriers.ready = True
    barriers.arrive(1)
    with pytest.raises(Fault, match=r"uninitialised .*arrival of bar\[1\]"):
        simulator.run(k.function, np.zeros(1, np.float32))


def test_mbarriers_made_and_used_without_a_barrier_between():
    k = Kernel("raw", threads=64, x=ptr(f32))
    barriers = k.mbarriers("bar")
    barriers.ready = True
    with k.when(k.thread[0] == 0):
        k._effect(raw.INIT, barriers.pointer, k.constant(i32, 64))
    barriers.arrive()
    with pytest.raises(Fault, match=r"race .*arrival of bar\[0\] .*thread \(31, 0\): written .*by .*thread \(0, 0\)"):
        simulator.run(k.function, np.zeros(1, np.float32))


def test_warps_of_a_gang_that_wait_for_one_another():
    """Each warp waits for the one before it: they stand at one line and cannot go on together."""
    k = Kernel("chain", threads=128, x=ptr(f32))
    x, = k.args
    t = k.thread[0]
    turn = k.mbarriers("turn", 5)
    k.init_mbarriers()
    with k.when(t < 32):
        k._effect(raw.ARRIVE, turn.pointer)
    turn.wait(t // 32, 0)
    x[t // 32 * 32 + 32 + t % 32] = x[t] + 1
    k._effect(raw.ARRIVE, turn.pointer + (t // 32 + 1))
    turn.arrivals.constant = 32
    x = np.zeros(160, np.float32)
    simulator.run(k.function, x)
    np.testing.assert_array_equal(x.reshape(5, 32)[:, 0], range(5))


# ---- mistakes that show when the kernel is recorded

def mistake(error, message, body, threads=96):
    k = Kernel("mistaken", threads=threads, x=ptr(f32))
    full = k.mbarriers("full", 2)
    with pytest.raises(error, match=message):
        body(k, full)


def test_mistakes_in_roles():
    def nested(k, full):
        with k.role("one", warps=1), k.role("two", warps=1):
            pass
    mistake(SyntaxError, "role two begins inside role one", nested)

    def crowded(k, full):
        with k.role("one", warps=2):
            pass
        with k.role("two", warps=2):
            pass
    mistake(ValueError, "role two would be warps 2 to 3 of a CTA that has 3", crowded)

    def changed(k, full):
        with k.role("one", warps=2):
            pass
        with k.role("one", warps=1):
            pass
    mistake(ValueError, "role one has 2 warps, not 1", changed)
    mistake(ValueError, "role one is new", lambda k, full: k.role("one").__enter__())

    def meeting(k, full):
        with k.role("one", warps=2):
            k.barrier()
    mistake(SyntaxError, "a barrier waits for all warps of the CTA, and role one has only 2 of 3", meeting)


def test_mistakes_at_mbarriers():
    mistake(SyntaxError, r"mbarriers full are used before k.init_mbarriers\(\)", lambda k, full: full.arrive(0))

    def conditional(k, full):
        k.init_mbarriers()
        with k.role("one", warps=1), k.when(k.thread[0] == 0):
            full.arrive(0)
    mistake(SyntaxError, r"full.arrive\(\) must not be under a condition", conditional)

    def differently(k, full):
        k.init_mbarriers()
        with k.role("one", warps=2):
            full.arrive(0)
            full.arrive(1, by="warp")
    mistake(ValueError, "one arrives at full with 2 threads here, and with 64 elsewhere", differently)

    def in_turn(k, full):
        k.init_mbarriers()
        with k.role("one", warps=2):
            full.arrive(0, by="warp", turns=3)
    mistake(ValueError, "2 arrivals of one at full are not 3 equal parts", in_turn)

    def everybody_and_one(k, full):
        k.init_mbarriers()
        full.arrive(0)
        with k.role("one", warps=2):
            full.arrive(0)
    mistake(ValueError, "cannot both arrive at full: the CTA and one do", everybody_and_one)

    def beyond(k, full):
        k.init_mbarriers()
        full.wait(2)
    mistake(IndexError, "there is no stage 2 of full: it has 2", beyond)
    mistake(ValueError, "there are no mbarriers", lambda k, full: [k.init_mbarriers(), k.init_mbarriers()])


# ---- bytes, types and layouts

def test_bytes_of_shared_memory_are_reused():
    """Numbers of f32 first and of i32 afterwards in the same bytes, with a barrier between and without."""
    def kernel(barrier):
        k = Kernel("bytes", threads=64, x=ptr(f32), y=ptr(i32))
        x, y = k.args
        t = k.thread[0]
        space = k.smem_bytes("space", 512)
        floats, integers = space.as_(f32).view(8, 1), (space + 64).as_(i32)
        floats[t // 8, t % 8] = x[t]
        k.barrier()
        x[t] = floats[t % 8, t // 8]
        if barrier:
            k.barrier()
        integers[t] = t
        k.barrier()
        y[t] = integers[63 - t]
        return k.function
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.int32)
    simulator.run(kernel(True), x, y)
    np.testing.assert_array_equal(x.reshape(8, 8), np.arange(64).reshape(8, 8).T)
    np.testing.assert_array_equal(y, np.arange(63, -1, -1))
    with pytest.raises(Fault, match=r"race .*store of space\[\d+\] .*read at .* by"):
        simulator.run(kernel(False), x, y)


@pytest.mark.parametrize(("width", "vector"), [(32, 4), (64, 8), (32, 1), (8, 8)])
def test_swizzles_are_permutations(width, vector):
    swizzle = Swizzle(width, vector)
    i, j = np.divmod(np.arange(64 * width), width)
    assert sorted(swizzle(i, j)) == list(range(64 * width))
    for row in range(8):                    # vectors stay whole, rows stay rows
        for v in range(0, width, vector):
            start = swizzle(row, v)
            assert start // width == row
            assert [swizzle(row, v + e) - start for e in range(vector)] == list(range(vector))


def test_a_swizzle_takes_bank_conflicts_away():
    """Rows of 128 bytes are written by rows, and columns of 16 bytes are read."""
    def kernel(layout):
        k = Kernel("columns", threads=32, x=ptr(f32), y=ptr(f32))
        x, y = k.args
        t = k.thread[0]
        s = k.smem_bytes("s", 32 * 128).as_(f32).view(layout=layout)
        for i in range(0, 32, 4):
            k.store(s.at(i + t // 8, t % 8 * 4), k.load(x + i * 32 + t * 4, vec(f32, 4)))
        k.barrier()
        for j in range(0, 32, 4):
            k.store(y + t * 32 + j, k.load(s.at(t, j), vec(f32, 4)))
        return k.function
    for layout, passes in ((Swizzle(32, 4), 4), (lambda i, j: i * 32 + j, 32)):
        x, y = np.arange(1024, dtype=np.float32), np.zeros(1024, np.float32)
        report = simulator.run(kernel(layout), x, y)
        np.testing.assert_array_equal(x, y)
        assert report.of("s", "store").moved == 8 * 4
        assert report.of("s", "load").moved == 8 * passes


def test_a_view_has_strides_or_a_layout():
    k = Kernel("views", threads=32, x=ptr(f32))
    with pytest.raises(TypeError, match="strides or a layout"):
        k.args[0].view(4, 1, layout=Swizzle(4, 4))
    with pytest.raises(ValueError, match="power of two"):
        Swizzle(12, 4)
    with pytest.raises(ValueError, match="no vectors of 8"):
        Swizzle(4, 8)
