"""Kernels from which one line has been taken away: the simulator says so, and which threads and lines are concerned."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright as tw
from tests.simulator.test_simulated_pipelines import SIZE, TILES, pipeline
from tests.simulator.test_simulated_tma import multicast
from tilewright import simulator
from tilewright.ir import Kernel, f32, ptr
from tilewright.lab.ladder.gpu04_shared import emit_shared
from tilewright.simulator import Fault


def name(node):
    return getattr(getattr(node, "operation", None), "name", "")


def without(function, wanted, which=0):
    """The function, changed: one operation of this name is gone."""
    bodies, found = [function.body], []
    for body in bodies:                                         # which grows
        found += [(body, node) for node in body if name(node) == wanted]
        bodies += [part for node in body for key in ("head", "then", "otherwise", "body")
                   if isinstance(part := getattr(node, key, None), list)]
    body, node = found[which]
    body.remove(node)
    return function


def by_all(function):
    """The function, changed: mbarriers are initialised by every thread."""
    for at, node in enumerate(function.body):
        if any(name(inner) == "mbarrier.init" for inner in getattr(node, "then", ())):
            function.body[at:at + 1] = node.then
            return function
    raise AssertionError("there are none")


def run_pipeline(function):
    x, y = np.arange(TILES * SIZE, dtype=np.float32), np.zeros(TILES * SIZE, np.float32)
    simulator.run(function, x, simulator.uninitialised(y), TILES)


def run_multicast(function):
    simulator.run(function, np.zeros((3, 32), np.float32), simulator.uninitialised(np.zeros(192, np.float32)),
                  grid=(2, 1))


@pytest.mark.parametrize(("run", "make"), [(run_pipeline, lambda: pipeline(copies="bulk")), (run_multicast, multicast)])
def test_how_mbarriers_are_initialised(run, make):
    run(make())
    with pytest.raises(Fault, match=r"race .*brings, and no fence\.mbarrier_init follows its initialisation at .*py:"):
        run(without(make(), "fence.mbarrier_init"))
    with pytest.raises(Fault, match=r"race .*init of .*also written by .* thread"):
        run(by_all(make()))


@pytest.mark.parametrize("copies", ["registers", "bulk"])
def test_a_lane_that_arrives_for_others_must_have_met_them(copies):
    with pytest.raises(Fault, match=r"race .*store of s\[0\] .*: read at .*py:58 by .*thread \(33, 0\), and nothing"):
        run_pipeline(pipeline(copies=copies, meet=False))


@pytest.mark.parametrize("meets", [True, False])
def test_a_fence_of_one_lane_is_one_of_what_it_knows(meets):
    """The last CTA adds up what the others have stored; one lane of each says that it has. Of its own store it may."""
    k = Kernel("total", threads=32, x=ptr(f32), count=ptr(f32), y=ptr(f32))
    x, count, y = k.args
    t, s = k.thread[0], k.smem("last", (1,), f32)
    x[k.block[0] * 32 + t] = 1.0
    if meets:
        k.warp_barrier()
    with k.when(t == 0):
        k.fence_device()
        s[0] = k.atomic_add(count, 1.0)
        k.fence_device()
    k.barrier()
    with k.when(s[0] == 1.0):
        y[t] = x[t] + x[32 + t]
    args = simulator.uninitialised(np.zeros(64, np.float32)), np.zeros(1, np.float32), np.zeros(32, np.float32)
    if meets:
        simulator.run(k.function, *args, grid=(2, 1))
        assert (args[2] == 2).all()
    else:
        with pytest.raises(Fault, match=r"race .*load of x\[1\] by block \(1, 0\) .*: written at .* by block \(0, 0\)"):
            simulator.run(k.function, *args, grid=(2, 1))


def test_a_direct_load_that_outlives_the_workgroup():
    kernel = tw.compile(tw.Gemm(64, 64, 96, "f16", layout="nt", out="f32"), "gfx950",
                        "mfma 64x64x32 wave=32x32 mfma=32 copy=lds stages=3")
    a, b = np.ones((64, 96), np.float16), np.ones((64, 96), np.float16).T
    kernel.simulate(a, b)
    without(kernel.functions[0], "lds_wait0", -1)
    with pytest.raises(Fault, match=r"in flight .*the kernel ends while this copy to tiles is in flight"):
        kernel.simulate(a, b)


def test_a_race_names_two_threads_and_two_lines():
    """V3 without its first barrier: lanes read what thread (0, 0) stores again."""
    L, S, V = 16, 8, 4
    function = without(emit_shared(L=L, S=S, V=V), "barrier")
    n = 2 * L
    a, b, c = np.ones((3, n, n), np.float32)
    with pytest.raises(Fault) as caught:
        simulator.run(function, n, n, n, 1.0, a, n, b, n, 0.0, c, n, grid=(2, 2))
    first, second = re.findall(r"thread (\(\d+, \d+\))", str(caught.value))
    stored, read = re.findall(r"gpu04_shared\.py:(\d+)", str(caught.value))
    assert "store of a_smem[" in str(caught.value)
    assert first != second
    assert stored != read
