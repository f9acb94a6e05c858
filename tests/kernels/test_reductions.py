"""reduce: every order gives the sum of whole numbers, and the maximum with its index; mistakes are refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.assembled import assembled
from tilewright import simulator, targets
from tilewright.compiler import llvm
from tilewright.ir import Kernel, f32, f64, i32, i64, ptr, vec
from tilewright.kernels.reductions import reduce
from tilewright.runtime.run import run

V = 4


def later(k):
    """The larger number, and of equal ones the one with the smaller index."""
    def combine(x, y):
        better = (y[0] > x[0]) | ((y[0] == x[0]) & (y[1] < x[1]))
        return tuple(k.select(better, b, a) for a, b in zip(x, y))
    return combine


def emit(T, across, threads=None, warp=32, rounds=2):
    """Each thread's V numbers of x: for each round their sum, their largest, and its index, of all of them."""
    k = Kernel(f"reduced_{T}", threads=threads, warp=warp, x=ptr(T), sums=ptr(T), most=ptr(T), at=ptr(i32))
    x, sums, most, at = k.args
    shape = threads if isinstance(threads, tuple) else (threads or 1, 1)
    t = k.thread[0] + k.thread[1] * shape[0] if threads else k.constant(i32, 0)
    every = shape[0] * shape[1]
    with k.loop(k.constant(i32, rounds)) as r:
        xs = k.load(x + (r * (every * V) + t * V), vec(T, V), T.bytes)
        places = k.pack(*(t * V + e for e in range(V)))
        here = r * every + t
        sums[here] = reduce(k, lambda a, b: a + b, xs, across)
        most[here], at[here] = reduce(k, later(k), (xs, places), across)
    return k.function


@pytest.mark.parametrize(("across", "threads", "warp"), [
    ("vector", None, 32), ("cta", None, 32), ("vector", 32, 32), ("warp", 64, 32), ("warp", 128, 64), ("cta", 32, 32),
    ("cta", 96, 32), ("cta", 256, 32), ("cta", (16, 16), 64), ("cta", 320, 64),
])
@pytest.mark.parametrize("T", [f32, f64, i32], ids=str)
def test_every_thread_gets_what_all_of_them_hold(T, across, threads, warp):
    function = emit(T, across, threads, warp)
    every = np.prod(threads or 1)
    x = np.random.default_rng(3).integers(-9, 9, (2, every, V)).astype(T.numpy)
    sums, most = np.empty((2, 2, every), T.numpy)
    at = np.empty((2, every), np.int32)
    (run if threads is None else simulator.run)(function, x, sums, most, at)
    group = {"vector": 1, "warp": min(warp, every), "cta": every}[across]
    sets = x.reshape(2, every // group, group * V)
    assert (sums.reshape(2, -1, group) == sets.sum(2, keepdims=True)).all()
    assert (most.reshape(2, -1, group) == sets.max(2, keepdims=True)).all()
    first = np.arange(every // group) * group * V + sets.argmax(2)
    assert (at.reshape(2, -1, group) == first[:, :, None]).all()


def test_the_gpus_assemblers_take_it():
    assert "0 bytes spill" in assembled(emit(f32, "cta", 256), "sm_75")[1]
    assert llvm.assembly(emit(f32, "cta", 256, 64), targets.target("gfx942")).count("s_barrier") >= 4


def test_mistakes():
    k = Kernel("mistakes", threads=48, x=ptr(f32), n=i64)
    with pytest.raises(ValueError, match="across must be one of vector, warp, cta, not 'grid'"):
        reduce(k, k.max, k.args[0][0], "grid")
    with pytest.raises(TypeError, match=r"vectors of 1, 2, 4, 8 \.\.\. numbers, .* are combined, not v3f32"):
        reduce(k, k.max, k.load(k.args[0], vec(f32, 3)))
    with pytest.raises(ValueError, match="mistakes: a CTA of 48 threads is no whole number of warps of 32"):
        reduce(k, k.max, k.args[0][0], "cta")
