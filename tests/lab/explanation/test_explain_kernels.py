"""tilewright.explain of kernels: counts are those of a person who counts, arrays stay as they are."""

from __future__ import annotations

import dataclasses
import json
import pickle

import numpy as np
import pytest

import tilewright as tw
from tilewright.blocks import Program
from tilewright.ir import Kernel, f32, i32, i64, ptr
from tilewright.kernels.elementwise import each
from tilewright.lab.explanation import measured, picture
from tilewright.lab.tuner import child
from tilewright.lab.tuner.running import Run


def emit_axpy(threads=None, warp=32):
    k = Kernel("axpy", threads=threads, warp=warp, n=i64, a=f32, x=ptr(f32), y=ptr(f32))
    n, a, x, y = k.args
    with each(k, n) as i:
        y[i] = a * x[i] + y[i]
    return k.function


def emit_columns(V=1, threads=64):
    """y[i] = x[i*V], through shared memory; the lanes of a warp meet in banks if V is even."""
    k = Kernel("columns", threads=threads, x=ptr(f32), y=ptr(f32), n=i32)
    x, y, _ = k.args
    i = k.block[0] * threads + k.thread[0]
    smem = k.smem("tile", (threads * V,), f32)
    smem[k.thread[0] * V] = x[i]
    k.barrier()
    y[i] = smem[k.thread[0] * V]
    return k.function


def whole(found):
    """It is drawn, and comes back."""
    assert picture.draw(found)
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    assert tw.Explanation.of_record(record).record() == record
    assert found.time.limit in str(found)
    return found


@pytest.mark.parametrize("chip", ["sm_80", "gfx942"])
def test_axpy_by_hand(chip):
    n, x, y = 4096, np.ones(4096, np.float32), np.zeros(4096, np.float32)
    found = whole(tw.explain(tw.kernel(emit_axpy), n, 2.0, x, y, target=chip))
    lanes = tw.target(chip).warp
    assert not y.any()
    assert found.flops == 2 * n
    assert found.level("L2").simulated == found.level("L2").moved == found.level("memory").simulated == 3 * 4 * n
    assert found.instructions["load"] == 2 * n / (4 * lanes)                # 16 bytes a lane
    assert found.instructions["store"] == n / (4 * lanes)
    assert found.tiles[0].plane[1] == found.tiles[1].plane[1] * found.tiles[1].count
    assert found.intensity(found.level("memory")) == pytest.approx(2 / 12)
    if found.resources:                                                     # ptxas may be missing
        assert found.resources["ctas"] >= 1
        assert found.resources["spills"] == 0


def test_on_this_cpu():
    x, y = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    found = whole(tw.explain(tw.kernel(emit_axpy), 1000, 2.0, x, y))
    assert found.level("L1").simulated == found.level("memory").simulated == 12_000
    assert found.flops == 2000
    assert found.tiles == ()


@pytest.mark.parametrize("target", [None, "sm_80"])
def test_what_fusing_saves(target):
    def emit(threads=None):
        k = Kernel("polynomial", threads=threads, n=i64, x=ptr(f32), y=ptr(f32))
        n, x, y = k.args
        with each(k, n) as i:
            total = x[i] * 2.0 - 1.0
            with k.exact():
                total = total * x[i] + 3.0
            y[i] = k.exp(total * x[i] + 4.0)
        return k.function
    x, y = np.ones(100, np.float32), np.zeros(100, np.float32)
    said = " ".join(str(whole(tw.explain(tw.kernel(emit), 100, x, y, target=target))).split())
    assert "a*b + c: 2 products fused with a sum (FMA, rounded once): 4 operations on floats instead of 6" in said
    assert "kept apart by k.exact(): 1 product, in test_explain_kernels.py:" in said


def test_shared_memory_and_its_banks():
    """Two warps store and load 4 bytes a lane: 512 bytes; every second bank takes two passes each."""
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    for V, passes in ((1, 4), (2, 8), (32, 128)):
        found = whole(tw.explain(emit_columns(V), x, y, 64, target="sm_80", grid=1))
        assert (found.level("shared").simulated, found.level("shared").moved) == (512, passes * 128)
        assert found.resources.get("shared", 64*V*4) == 64 * V * 4
    assert found.instructions["barrier"] == 2
    assert found.instructions["load shared"] == 2


def test_a_block_program():
    def emit_double(target=None, N=256):
        k = Program("double", target, z=ptr(f32), x=ptr(f32))
        z, x = k.args
        at = k.program_id(0) * N + k.arange(0, N)
        k.store(z + at, k.load(x + at) * 2.0)
        return k.function

    x, z = np.ones(512, np.float32), np.zeros(512, np.float32)
    for target in ("sm_90a", None):
        found = whole(tw.explain(emit_double(target), z, x, target=target, grid=2))
        assert found.flops == 512
        assert found.level("memory").simulated == 2 * 4 * 512
        assert not z.any()


def test_one_with_parameters_is_compared_with_its_other_configurations():
    kernel = tw.kernel(V=(1, 2, 32, 1024), check=lambda V: "a thousand" if V > 999 else None,
                       grid=lambda n: -(-n // 64), tile=lambda: {"n": 64})(lambda V=32: emit_columns(V))
    n = 1 << 20
    x, y = np.ones(n, np.float32), np.zeros(n, np.float32)
    found = whole(tw.explain(kernel, x, y, n, target="sm_80"))
    assert (str(found.plan), found.origin, found.considered) == ("V=32", "the emitter's defaults", 2)
    assert found.level("shared").moved == n // 64 * 128 * 128               # 128 passes in each of n / 64 CTAs
    assert found.level("memory").simulated == 3 * 4 * n                     # y counts twice: it might be read
    assert [other.plan for other in found.alternatives] in (["V=1", "V=2"], ["V=2", "V=1"])
    assert all(other.slower < 0 and other.cause == "shared memory" for other in found.alternatives)
    assert found.refused == {"check: a thousand": 1}
    assert "less" in str(found)


def test_a_kernel_is_timed_where_the_chip_is(monkeypatch):
    """In the process that measures configurations, which is this one here."""
    def in_this_process(job, listen):
        run, events = Run(), []
        given = pickle.loads(pickle.dumps(dataclasses.replace(job, time_limit=0.05)))     # as a process gets it
        child.run(given, lambda event, **more: events.append({"event": event, **more}))
        for event in events:
            run.heard(event)
        return run

    monkeypatch.setattr(measured, "measured", in_this_process)
    x, y = np.ones(256, np.float32), np.zeros(256, np.float32)
    found = tw.explain(tw.kernel(emit_axpy), 256, 2.0, x, y, measure=True)
    assert found.time.measured.median > 0
    assert not y.any()                                          # a copy is written
    assert "measured" in str(found)
    assert found.record()["time"]["measured"][0] == found.time.measured.median
    with pytest.raises(RuntimeError, match="sm_75 code cannot run on this machine"):
        tw.explain(tw.kernel(emit_axpy), 256, 1.0, x, y, target="sm_75", measure=True)


def test_what_is_refused():
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    function = emit_columns()
    with pytest.raises(TypeError, match="columns is recorded for the CTAs of a GPU: say which"):
        tw.explain(function, x, y, 64)
    with pytest.raises(ValueError, match="columns is recorded for a GPU, and target is x86-avx2"):
        tw.explain(function, x, y, 64, target="x86-avx2")
    for option in ({"plan": "x"}, {"threads": 2}, {"simulate": True}, {"algorithm": "fastest"}):
        with pytest.raises(TypeError, match=f"{next(iter(option))} says nothing about columns: it is for problems"):
            tw.explain(function, x, y, 64, target="sm_80", **option)
    with pytest.raises(TypeError, match="grid says nothing about gemm_f32_nn_4x4x4: it is for kernels"):
        tw.explain(tw.Gemm(4, 4, 4), grid=1)
    with pytest.raises(TypeError, match="takes two arguments after the problem, not 3"):
        tw.explain(tw.Gemm(4, 4, 4), "sm_80", None, 3)
    with pytest.raises(TypeError, match=r"problem must be a tilewright\.Gemm"):
        tw.explain("4 4 4")


def test_a_compiled_kernel_is_explained_by_its_plan():
    kernel = tw.compile(tw.Gemm(64, 64, 64), "sm_80")
    assert tw.explain(kernel).plan == kernel.plan
    with pytest.raises(TypeError, match="target says nothing about"):
        tw.explain(kernel, target="sm_80")
