"""The tuner on GPUs, by the fake drivers: their clocks say how long a kernel takes, and nothing else does."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tests.doubles import fake_cuda, fake_hip, uncompiled
from tests.doubles.fake_arrays import CuPyArray, cupy
from tests.helpers.arrays import small_integers
from tests.helpers.command_line import call, refused, said
from tilewright.compiler import lld, sources
from tilewright.lab.measure import gpu_rules, gpu_state
from tilewright.lab.tuner import candidates, child, on_gpu, running, search
from tilewright.plans import gpu, gpu_lowering, gpu_shape
from tilewright.plans.measured import choice, store
from tilewright.plans.measured.row import Row

SLOW, FAST = 200.0, 100.0  # milliseconds: calls that long are turns of their own
PROBLEM = tw.Gemm(20, 24, 16)


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", str(tmp_path / "tuning.jsonl"))


@pytest.fixture
def fake(monkeypatch):
    found = fake_cuda.install(monkeypatch)
    monkeypatch.setitem(sys.modules, "cupy", cupy(found))
    return in_this_process(monkeypatch, found)


def in_this_process(monkeypatch, fake, code=False):
    """The tuner's process is this one, and two sets of operands are as good as many."""

    class InThisProcess:
        """What the parent meets: an exception ends the process, and a new one finds the GPU as it should be."""

        def __init__(self, module, job, *, cpus=(), environment=None):
            assert (module, list(cpus), environment["TILEWRIGHT_TUNE_DB"]) == (running.CHILD, [], store.OFF)
            self.job, self.last = job, ""

        def __enter__(self):
            fake.fail.clear()
            return self

        def __exit__(self, *_):
            fake.fail.clear()

        def events(self, patience, latest):
            said = []
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TILEWRIGHT_TUNE_DB", store.OFF)
                try:
                    child.run(self.job, lambda event, **more: said.append({"event": event, **more}),
                              lambda: fake.clock / 1e3)
                except Exception as error:
                    self.last = f"{type(error).__name__}: {error}"
            yield from said

        def why(self, patience):
            return self.last

    if not code:            # users' kernels are assembled before they are timed
        uncompiled.install(monkeypatch)
    monkeypatch.setattr(running, "Child", InThisProcess)
    monkeypatch.setattr(search, "compile_all", lambda *_, **__: None)    # the fake knows what was recorded here
    monkeypatch.setattr(gpu_rules, "MOST_SETS", 2)
    monkeypatch.setattr(on_gpu, "Busy", lambda on, driver: None)    # which a simulator would take minutes for
    fake.takes = lambda function: SLOW
    return fake


def fastest(fake, words):
    """Kernels whose names have these words take half the time of others."""
    fake.takes = lambda function: FAST if words in function.name else SLOW


def multiplied(fake):
    """The product of PROBLEM's size by matmul, and the kernel that was launched for it."""
    a, b = small_integers(0, (20, 16), np.float32), small_integers(1, (16, 24), np.float32)
    c = CuPyArray(np.zeros((20, 24), np.float32))
    tw.matmul(CuPyArray(a), CuPyArray(b), c)
    fake.run(1)
    np.testing.assert_array_equal(c.host, a @ b)
    return fake.launches[-1][0]


def test_a_measured_plan_is_used(fake):
    target = tw.detect("nvidia")
    before, first = tw.plan(PROBLEM, target), multiplied(fake)  # by a recipe that is kept
    assert "32x32x16" not in first
    fastest(fake, "32x32x16")
    result = tw.tune(PROBLEM, target, time_limit=2.0, candidates=3)
    assert (result.model, result.threads, result.failed, result.disturbed) == (str(before), 1, {}, False)
    assert result.improved
    assert result.best.plan.startswith("simt 32x32x16")
    assert (result.best.ratio, result.best.seconds) == (pytest.approx(2.0), pytest.approx(0.1))
    assert str(result).startswith("gemm_f32_nn_20x24x16 on sm_90a\n")
    assert set(store.rows()) == set(result.rows)
    assert {(r.target, r.dtype, r.a, r.b, r.threads) for r in result.rows} == {("sm_90a", "f32", "rows", "rows", 1)}
    assert all(r.model.startswith("NVIDIA fake H200, driver 13.0, kernels ") for r in result.rows)
    chosen = result.best.plan
    assert str(tw.plan(PROBLEM, target)) == str(tw.compile(PROBLEM, target).plan) == chosen
    explained = tw.explain(PROBLEM, target)
    assert (str(explained.plan), explained.origin) == (chosen, "measured to be the fastest (tilewright tune show)")
    assert "32x32x16" in multiplied(fake)
    assert tw.plan(PROBLEM, "sm_90a") == before  # of another chip nothing is known


def test_what_was_measured_of_other_kernels_or_by_another_driver_is_not_used(fake, monkeypatch):
    target = tw.detect("nvidia")
    fastest(fake, "32x32x16")
    model, chosen = tw.plan(PROBLEM, target), tw.tune(PROBLEM, target, time_limit=2.0, candidates=3).best.plan
    digest = sources.digest
    monkeypatch.setattr(sources, "digest", lambda *emitters: f"other {digest(*emitters)}")
    assert tw.plan(PROBLEM, target) == model
    monkeypatch.setattr(sources, "digest", digest)
    assert str(tw.plan(PROBLEM, target)) == chosen
    object.__setattr__(target, "driver", "13.1")
    assert tw.plan(PROBLEM, target) == model


def test_a_kernel_s_source_is_in_the_name_of_the_chip():
    every = sources.files(*sources.modules("tilewright.kernels.nvidia"))
    assert {"tilewright.kernels.nvidia.simt_gemm", "tilewright.kernels.gpu.epilogue"} <= every.keys()
    assert not [name for name in every if name.startswith(("tilewright.kernels.cpu", "tilewright.kernels.amd"))]
    assert choice.chip(tw.target("sm_90a")) != choice.chip(tw.target("gfx942"))


def test_rows_say_at_which_clock(fake, monkeypatch):
    asked = []
    source = SimpleNamespace(read=lambda: gpu_state.Reading(0.0, sm_mhz=1500.0))
    monkeypatch.setattr(gpu_state, "find", lambda bus_id: asked.append(bus_id) or (source, ""))
    result = tw.tune(PROBLEM, tw.detect("nvidia"), time_limit=2.0, candidates=1)
    assert {row.clock for row in result.rows} == {1.5e9}
    assert asked == ["0000:00:00.0"]
    assert not result.notes


def test_nothing_better_is_remembered(fake):
    target = tw.detect("nvidia")
    result = tw.tune(PROBLEM, target, time_limit=2.0, candidates=2)
    assert not result.improved
    assert "Nothing beats the model's choice" in result.verdict
    assert tw.plan(PROBLEM, target) == gpu.choose(gpu_lowering.multiplied_shape(PROBLEM, target), target)
    assert [row.role for row in store.rows()].count("model") == 1


def test_a_plan_that_is_wrong_or_faults_is_left_out(fake):
    """After a fault the driver gives its error at every call, so that the others go on in another process."""
    simulate, target = fake.simulate, tw.detect("nvidia")
    fake.simulate = lambda f, args, grid: None if "16x16x32" in f.name else simulate(f, args, grid)

    def takes(function):
        if "32x32x16" in function.name:
            fake.fail |= dict.fromkeys(("cuStreamSynchronize", "cuLaunchKernelEx", "cuMemcpyDtoHAsync"), 700)
        return 100 * (FAST if "32x16x64" in function.name else SLOW)

    fake.takes = takes
    result = tw.tune(PROBLEM, target, time_limit=300.0, candidates=5)  # of which real time is nothing
    wrong, faulty = (next(why for plan, why in result.failed.items() if words in plan)
                     for words in ("16x16x32", "32x32x16"))
    assert wrong.startswith("wrong result: C[0, 0] is nan, the reference is")
    assert faulty.startswith("CudaError: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
    assert len(result.failed) == 2
    assert "32x16x64" in result.best.plan
    assert result.improved


@pytest.mark.parametrize(("arch", "kind"), [("gfx942", "f16"), ("gfx950", "mxfp8")])
def test_on_amd(monkeypatch, arch, kind):
    """Block-scaled operands too. The model's own tile is declared to be the slow one."""
    lld.find()
    fake = in_this_process(monkeypatch, fake_hip.install(monkeypatch, arch))
    problem, target = tw.Gemm(32, 32, 128, kind, layout="nt"), tw.detect("amd")
    model = tw.plan(problem, target)
    slow = f"{model.cta_m}x{model.cta_n}x{model.cta_k}"
    fake.takes = lambda function: SLOW if slow in function.name else FAST
    result = tw.tune(problem, target, time_limit=2.0, candidates=3)
    assert result.failed == {}
    assert result.improved
    assert slow not in result.best.plan
    assert str(tw.plan(problem, target)) == result.best.plan
    assert result.best.model.startswith("AMD Instinct MI300X, driver 70226015, kernels ")


def test_block_scaled_operands_on_nvidia(fake):
    """With the scale that nvfp4 has for a whole array."""
    result = tw.tune(tw.Gemm(16, 16, 32, "nvfp4"), tw.detect("nvidia"), time_limit=0.5, candidates=1)
    assert result.failed == {}
    assert "decoded=bf16" in result.best.plan


def test_batches_are_compared_at_both_ends(fake):
    problem = tw.Gemm(9, 16, 8, batch=3)
    result = tw.tune(problem, tw.detect("nvidia"), time_limit=2.0, candidates=1)
    (row,) = result.rows
    assert (row.dtype, row.gflops) == ("f32 batch=3", pytest.approx(problem.flops / row.seconds / 1e9))


def biased(acc, bias):
    return tw.relu(acc + bias)


@pytest.mark.parametrize("kind", ["semiring and epilogue", "prologue"])
def test_products_with_functions(fake, kind):
    """What is found for a Gemm is what calls with such functions take."""
    target, (m, n, k) = tw.detect("nvidia"), (20, 24, 16)
    a, b = (CuPyArray(small_integers(i, shape, np.float32)) for i, shape in enumerate(((m, k), (k, n))))
    call, problem = {
        "semiring and epilogue": (
            lambda: tw.contract(lambda x, y: x + y, a, b, reduce="min", epilogue=biased,
                                operands={"bias": CuPyArray(np.ones(n, np.float32))}),
            tw.Gemm(m, n, k, semiring=tw.semiring(lambda x, y: x + y, "min"),
                    epilogue=tw.epilogue(biased, bias="row"))),
        "prologue": (lambda: tw.matmul(a, b, prologue_a=tw.relu),
                     tw.Gemm(m, n, k, prologue_a=tw.prologue(lambda x: tw.relu(x), "f32"))),
    }[kind]
    fastest(fake, "32x32x16")
    result = tw.tune(problem, target, time_limit=2.0, candidates=3)
    assert result.failed == {}
    assert result.improved
    assert "32x32x16" in result.best.plan
    call()
    fake.run(1)
    assert "32x32x16" in fake.launches[-1][0]


STARTED = """
import os, sys
cpus, root, module = sys.argv[1:]
sys.path.append(root)
import pytest
from tests.doubles import fake_cuda
fake = fake_cuda.install(pytest.MonkeyPatch())
fake.attributes["L2_CACHE_SIZE"] = 1 << 10  # so that two sets of operands are enough
fake.takes = lambda function: os.abort() if "32x32x16" in function.name else 20_000.0
from functools import partial
from tilewright.lab.tuner import child, on_gpu
on_gpu.Busy = lambda on, driver: None
child.run = partial(child.run, clock=lambda: fake.clock / 1e3)
child.main()
"""


def test_a_real_process_that_a_plan_ends(monkeypatch):
    fake_cuda.install(monkeypatch)
    monkeypatch.setattr("tilewright.lab.measure.process.START", STARTED)
    result = tw.tune(PROBLEM, tw.detect("nvidia"), time_limit=150.0, candidates=3)
    ((plan, why),) = result.failed.items()
    assert plan.startswith("simt 32x32x16")
    assert why.startswith("SIGABRT")
    assert len(result.rows) == 2
    assert store.rows()


# ---- what can be tuned


def test_without_the_device(monkeypatch, fake):
    with pytest.raises(RuntimeError, match=r"sm_80 code cannot run on this machine: NVIDIA fake H200 is sm_90a\. Such "
                       r"code can be planned, .*`tilewright plan M N K --target sm_80 --top 12` lists plans"):
        tw.tune(PROBLEM, "sm_80")
    monkeypatch.setitem(sys.modules, "hip", None)
    monkeypatch.setattr("tilewright.runtime.hip.driver.library.loaded", None)
    with pytest.raises(RuntimeError, match="gfx942 code cannot run on this machine: AMD GPUs need the package hip-py"):
        tw.tune(tw.Gemm(32, 32, 32, "f16"), "gfx942")


def test_what_cannot_be_tuned(fake):
    with pytest.raises(ValueError, match="threads is for CPUs, and sm_90a is a GPU: it must be None, not 2"):
        tw.tune(PROBLEM, "sm_90a", threads=2)
    with pytest.raises(ValueError, match="empty product"):
        tw.tune(tw.Gemm(0, 3, 3), "sm_90a")
    with pytest.raises(ValueError, match=r"no plan for .* c64 by c64 into c64"):
        tw.tune(tw.Gemm(8, 8, 8, "c64"), "sm_90a")


@pytest.mark.parametrize("name", ["sm_90a", "sm_80", "gfx942", "gfx950"])
def test_candidates_are_legal_and_differ(name):
    target, problem = tw.target(name), tw.Gemm(512, 256, 1024, "f32")
    shape = gpu_lowering.multiplied_shape(problem, target)
    for count in (1, 12):
        found = candidates.promising(shape, target, count)
        assert found[0] == gpu.choose(shape, target)
        assert len(set(found)) == len(found) == count
        assert [plan.violations(shape, target) for plan in found] == [[]] * count
    assert len({(plan.cta_m, plan.cta_n) for plan in found}) >= 3


def test_candidates_are_in_turn_the_first_of_another_kind_and_the_next_in_rank():
    """Where the model ranks one tile high in every split, others are among the candidates, too."""
    target = tw.target("sm_90a")
    shape = gpu_lowering.multiplied_shape(tw.Gemm(64, 128, 10496), target)
    by_rank, found = gpu.ranked(shape, target), candidates.promising(shape, target, 32)
    kinds = [candidates._kind(plan) for plan in found]
    assert len({candidates._kind(plan) for plan in by_rank[:12]}) < len(set(kinds[:12])) >= 6
    assert found[1] == by_rank[1] or candidates._kind(found[1]) != kinds[0]
    assert {*by_rank[:12]} <= {*found}
    assert candidates._in_turn([1, 4, 7], [1, 2, 3, 4, 5]) == [1, 4, 2, 7, 3, 5]


# ---- rows


def test_keys_tell_shapes_apart():
    one = gpu_shape.shape("f32", "f32", "f32", 64, 64, 64, "nt")
    others = [
        one._replace(m=65), one._replace(layout="nn"), one._replace(vector_a=1), one._replace(near_b=7),
        one._replace(batch=2), gpu_shape.shape("f16", "f16", "f32", 64, 64, 64, "nt"),
        gpu_shape.shape("e4m3fn", "e4m3fn", "f32", 64, 64, 64, "nt"),
        gpu_shape.shape("e4m3fn", "e4m3fn", "f32", 64, 64, 64, "nt", scaled="mxfp8 mxfp8"),
    ]
    assert one.key == ("f32", 64, 64, 64, "rows", "columns", 1)
    assert len({each.key for each in (one, *others)}) == 9


def row(**fields):
    values = {
        "target": "sm_90a", "model": "a chip, driver 1, kernels 2", "l1d": 0, "l2": 1, "l3": 0, "dtype": "f32 batch=4",
        "m": 2, "n": 3, "k": 4, "a": "rows", "b": "columns", "threads": 1,
        "plan": "simt 128x128x8 warp=32x64 thread=8x8 stages=2 copy=registers vector=4", "role": "best",
        "seconds": 1e-9, "q1": 1e-9, "q3": 1e-9, "ratio": 1.5, "ratio_q1": 1.4, "ratio_q3": 1.6, "rounds": 9,
        "date": "2026-01-02", "machine": "a test", "tilewright": "0", "llvmlite": "0",
    }
    return Row(**{**values, **fields})


def test_rows_go_to_other_machines_and_are_shown():
    other = row(target="gfx942", plan="mfma 64x64x32 wave=32x32 mfma=32 copy=lds stages=2", dtype="f16-f16-f32")
    every = [row(), other]
    assert store.merge(each.to_json() for each in every) == 2
    shown = call("tune", "show", COLUMNS="250").output
    assert "f32 batch=4 nt 2x3x4" in shown
    assert row().gflops == 2 * 2 * 3 * 4 * 4
    with pytest.raises(ValueError, match=r"line 1: plan packed 6x16.* is for a CPU, and sm_90a is an NVIDIA GPU"):
        store.merge([row(plan="packed 6x16 mc=96 kc=256 nc=4080").to_json()])


def test_a_harmful_plan_is_not_used(fake):
    target = tw.detect("nvidia")
    key = dict(zip(("dtype", "m", "n", "k", "a", "b", "threads"), gpu_lowering.multiplied_shape(PROBLEM, target).key))
    for plan in ("simt 128x128x99999999999999 warp=32x64 stages=2", "simt 128x128x8 warp=0x64 stages=2", "future 1x1x1",
                 "packed 6x16 mc=96 kc=256 nc=4080"):
        store.clear()
        store.save([row(model=choice.chip(target), plan=plan, **key)])
        assert tw.plan(PROBLEM, target) == gpu.choose(gpu_lowering.multiplied_shape(PROBLEM, target), target)


def test_the_command(fake, monkeypatch):
    fastest(fake, "32x32x16")
    words = ["tune", "20", "24", "16", "--target", "nvidia", "--time-limit", "2", "--candidates", "3"]
    printed = said(*words, COLUMNS="250")
    assert "gemm_f32_nn_20x24x16 on sm_90a\n" in printed
    assert "matmul uses simt 32x32x16" in printed
    plan = said("plan", 20, 24, 16, "--target", "nvidia", COLUMNS="250")
    assert "measured to be best by the tuner\nsimt 32x32x16" in plan
    assert "threads is for CPUs" in refused(*words, "--threads", 2)
