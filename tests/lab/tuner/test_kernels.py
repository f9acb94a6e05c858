"""Configurations of users' kernels: refused with reasons, counted, verified, ranked, timed, stored, used again."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

import tilewright as tw
from tests.doubles import fake_cuda
from tests.doubles.fake_arrays import CuPyArray, cupy
from tests.helpers.command_line import call
from tests.lab.tuner.test_tuner_on_gpus import in_this_process
from tilewright import simulator
from tilewright.ir import Kernel, f32, i64, ptr
from tilewright.ir.digest import digest
from tilewright.kernels.elementwise import each
from tilewright.lab.ladder import tunable
from tilewright.lab.ladder.gpu04_shared import emit_shared
from tilewright.lab.measure import launch_counts as counts
from tilewright.lab.tuner import bound, kernels, trial
from tilewright.lab.tuner.child import REFERENCE, Phase
from tilewright.lab.tuner.running import Run
from tilewright.plans.measured import store
from tilewright.runtime.parametric import Parametric
from tilewright.targets import target

SM = target("sm_86")
N = 100


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", str(tmp_path / "tuning.jsonl"))
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


def blocks(BLOCK, n):
    return -(-n // BLOCK)


def emit_double(BLOCK=64, warp=32, wrong=""):
    """y = 2 x by CTAs of BLOCK threads; `wrong` plants a fault."""
    registers = 300 if wrong == "registers" else None
    k = Kernel("double", threads=BLOCK, warp=warp, max_registers=registers, n=i64, x=ptr(f32), y=ptr(f32))
    n, x, y = k.args
    i = k.cast(k.block[0], i64) * BLOCK + k.thread[0]
    if wrong == "bounds":
        y[i] = 2.0 * x[i]
        return k.function
    with k.when(i < n):
        y[i if wrong != "race" else 0] = x[i] * (3.0 if wrong == "result" else 2.0)
    return k.function


def double(**more):
    options = {"BLOCK": (32, 64, 128), "grid": blocks, "tile": lambda BLOCK: {"n": BLOCK}}
    return tw.kernel(**options | more)(emit_double)


def arguments(n=N):
    return n, np.arange(n, dtype=np.float32), np.zeros(n, np.float32)


def tuned(kernel, *args, on=SM, **options):
    """In this process: a pool takes longer to start than these take."""
    return kernels.tune(kernel, args, on, jobs=1, **options)


# ---- ranked


def small_product(**more):
    options = {"L": (8, 16), "S": (4,), "V": (2,), "check": tunable.too_much, "arrays": tunable._shapes,
               "grid": lambda L, m, n: (-(-n // L), -(-m // L)), "reference": tunable._product,
               "tile": lambda L, S: {"m": L, "n": L, "k": S}}
    return tw.kernel(**options | more)(emit_shared)


@pytest.mark.parametrize("name", ["sm_75", "sm_86", "sm_90a", "gfx942"])
def test_without_a_device_it_ranks_and_says_so(name):
    chip = target(name)
    found = tuned(small_product(), *tunable.arguments(chip, 96, 64, 40), on=chip)
    assert [each.cost.seconds for each in found.contenders] == sorted(each.cost.seconds for each in found.contenders)
    assert len(found.contenders) == 2
    assert not found.refused
    assert not found.timed
    assert all(each.trial.registers and each.trial.launch.resident for each in found.contenders)
    assert found.best["L"] == int(found.contenders[0].configuration.split()[0][2:])
    assert "Nothing was timed, and nothing is stored" in str(found)
    assert not store.rows(store.KERNELS)


def test_counts_of_a_large_launch_follow_from_small_ones():
    kernel, (m, n, k) = small_product(), (128, 96, 64)
    args = tunable.arguments(SM, m, n, k)
    found = tuned(kernel, *args)
    for each_one in found.contenders:
        configuration = kernel.parse(each_one.configuration)
        function = kernel.function(SM, **configuration)
        L = configuration["L"]
        whole = counts.run(function, list(args), (n // L, m // L), "sm_86")
        for kind in ("fma", "load", "load shared", "barrier", "passes", "sectors loaded", "sectors stored", "waits"):
            assert each_one.trial.launch.counts[kind] == pytest.approx(whole[kind]), kind
        assert each_one.trial.launch.counts["flops"] == 2*m*n*k + m*n           # and alpha's
        assert each_one.trial.launch.counts["integer"] < whole["integer"]       # compiled code has less


def test_what_a_size_has_beyond_whole_tiles_counts():
    """A rim that slower code multiplies, and the bytes that rounds of loops touch."""
    chip, (m, n, k) = target("x86-avx2"), (20, 40, 10)
    kernel, args = tunable.step("registers", chip), tunable.arguments(chip, m, n, k)
    task = trial.Task(kernel, chip, kernel._names(chip, args))
    made, _ = trial.trial_of(task, "MR=4 NV=2")
    whole = counts.run(kernel.function(chip, MR=4, NV=2), list(args), None, chip.name)
    for kind in ("fma", "load", "store", "bytes", "footprint", "flops"):
        assert made.launch.counts[kind] == pytest.approx(whole[kind]), kind
    rounds = [each_one.rounds for each_one in made.launch.nest]
    assert rounds == [1, 5, 5 * 3, 5 * 3 * 3]
    assert made.launch.nest[0].one == 4 * (m*k + k*n + m*n)
    assert made.launch.nest[1].two - made.launch.nest[1].one == 4 * 4 * (k + n)     # four more rows of A and of C
    assert kernels.priced(task, made).seconds < kernels.priced(task, trial.trial_of(task, "MR=4 NV=3")[0]).seconds


def test_what_a_cache_has_to_get_again():
    """Three loops over 8 tiles: rows of A of 1 KB, columns of B of 4 KB, and single steps of both."""
    nest = [counts.Round(1, 8*1024 + 8*4096, 8*1024 + 8*4096), counts.Round(8, 1024 + 8*4096, 2*1024 + 8*4096),
            counts.Round(64, 1024 + 4096, 1024 + 2*4096), counts.Round(512, 640, 1280)]
    asked = 512 * 640

    def beyond(kilobytes):
        return bound.from_beyond(nest, int(kilobytes * 1024 / bound.ROOM), asked)
    assert beyond(41) == 0                                  # all of it stays
    assert beyond(35) == 8*1024 + 8*4096                    # B stays for the next rows of A
    assert beyond(10) == 8 * (1024 + 8*4096)                 # rows of A stay for the next columns
    assert beyond(2) == 64 * (1024 + 4096)
    assert beyond(1) == asked


def test_neighbouring_accesses_count_as_the_compiler_joins_them():
    def emit(count, stride):
        k = Kernel("sums", threads=32, y=ptr(f32))
        shared, t = k.smem("tile", (32 * stride,), f32), k.thread[0]
        for e in range(stride):
            shared[t * stride + e] = 1.0
        k.barrier()
        total = shared[t * stride]
        for e in range(1, count):
            total = total + shared[t * stride + e]
        k.args[0][t] = total
        return k.function

    def loads(count, stride):
        found = counts.run(emit(count, stride), [np.zeros(32, np.float32)], 1, "sm_86")
        return found["load shared"], found["store shared"], found[counts.PASSES]

    assert loads(4, 4) == (1, 1, 4 + 4)         # 16 bytes a thread: 4 passes there and back
    assert loads(2, 4) == (1, 1, 4 + 4)         # 8 bytes, 16 apart: two halves of the warp, two words in each bank
    assert loads(3, 4)[0] == 2                  # 8 bytes and 4
    assert loads(1, 1) == (1, 1, 2)
    assert loads(3, 3)[:2] == (3, 3)            # 12 bytes apart: nothing is aligned


def test_a_kernel_that_moves_data_is_bound_by_memory():
    n = 1 << 20
    found = tuned(double(BLOCK=(128, 256)), n, np.zeros(n, np.float32), np.zeros(n, np.float32))
    cost = found.contenders[0].cost
    assert cost.bound == "memory"
    least = n * 4 * 3 / SM.bandwidth            # x is read, y written and, as far as one knows, read
    assert least < cost.seconds < 1.5 * least + 1e-5


def test_a_launch_takes_whole_rounds():
    counted = {"fma": 1e6 * 82, "flops": 2e6}

    def seconds(ctas):
        return bound.bound(bound.Launch({kind: n * ctas / 82 for kind, n in counted.items()}, ctas, 8, 1), SM).seconds
    assert seconds(164) == pytest.approx(seconds(83), rel=1e-6)
    assert seconds(165) > 1.4 * seconds(164)


# ---- refused


def test_every_refusal_has_a_stage_and_a_reason():
    def emit(BLOCK=64, KIND="good", warp=32):
        if KIND == "picky":
            raise ValueError(f"{BLOCK} threads are not to its taste")
        return emit_double(BLOCK, warp, KIND)

    kernel = tw.kernel(
        BLOCK=(32, 64), KIND=("good", "picky", "registers", "checked", "bounds", "race", "result"), grid=blocks,
        check=lambda KIND: "checks refuse it" if KIND == "checked" else None, tile=lambda BLOCK: {"n": BLOCK},
        arrays=lambda n: {"x": (n,), "y": (n,)}, reference=lambda x: {"y": 2 * x})(emit)
    found = tuned(kernel, *arguments(), candidates=20)
    assert {each.configuration for each in found.contenders} == {"BLOCK=32 KIND=good", "BLOCK=64 KIND=good"}
    said = {text.split("=")[-1]: why for text, why in found.refused.items()}
    assert said["picky"][0] == "emitter"
    assert "not to its taste" in said["picky"][1]
    assert said["registers"][0] == "gate"
    assert "asks for 300 registers a thread" in said["registers"][1]
    assert said["checked"] == ("check", "checks refuse it")
    assert said["bounds"][0] == "simulator"
    assert "out of bounds at test_kernels.py" in said["bounds"][1]
    assert said["race"][0] == "simulator"
    assert "race at test_kernels.py" in said["race"][1]
    assert said["result"][0] == "result"
    assert "the reference has" in said["result"][1]
    assert "2 refused by the check: checks refuse it" in str(found)


def test_without_a_reference_the_first_configuration_is_one():
    def emit(BLOCK=64, FACTOR=2):
        return emit_double(BLOCK, 32, "result" if FACTOR == 3 else "")
    kernel = tw.kernel(BLOCK=(64,), FACTOR=(2, 3), grid=blocks)(emit)
    found = tuned(kernel, *arguments())
    assert len(found.contenders) == 1
    assert [stage for stage, _ in found.refused.values()] == ["result"]


def test_a_tolerance_is_what_a_result_may_be_wrong_by():
    kernel = double(reference=lambda x: {"y": 2.001 * x})
    with pytest.raises(RuntimeError, match=r"no configuration can run of emit_double on sm_86: BLOCK=.*result: y\["):
        tuned(kernel, *arguments())
    assert tuned(double(reference=lambda x: {"y": 2.001 * x}, tolerance=0.001), *arguments()).contenders


def test_shared_memory_is_known_before_recording():
    kernel = double(shared=lambda BLOCK: 1600 * BLOCK)
    found = tuned(kernel, *arguments())
    assert found.refused["BLOCK=128"][1] == f"204800 bytes of shared memory, and sm_86 gives a CTA {SM.smem_cta}"


def test_a_pool_of_processes_finds_the_same():
    """With the emitter of a closure, which no other process could import."""
    kernel = double(reference=lambda x: {"y": 2 * x})
    alone, together = (kernels.tune(kernel, arguments(), SM, jobs=jobs) for jobs in (1, 2))
    assert [(x.trial, x.cost) for x in alone.contenders] == [(x.trial, x.cost) for x in together.contenders]
    assert len(alone.contenders) == 3


def test_a_process_that_ends_is_reported():
    def emit(BLOCK=64):
        return os._exit(3) if os.getpid() != here and BLOCK == 32 else emit_double(BLOCK)
    here = os.getpid()
    with pytest.raises(RuntimeError, match="a process that prepared configurations of emit ended"):
        kernels.tune(tw.kernel(BLOCK=(32, 64), grid=blocks)(emit), arguments(), SM, jobs=2)


# ---- timed, stored, used again


def times(**ms):
    """What the measuring process would say: milliseconds by configuration, in three rounds."""
    def measured(job, listen):
        names = (REFERENCE, *job.plans)
        phase = Phase(names)
        for name in names:
            phase.seconds[name] += [ms[(job.in_use if name == REFERENCE else name).replace("BLOCK=", "b")] / 1e3] * 3
        run = Run()
        run.phases.append(phase)
        return run
    return measured


def emit_each(BLOCK=64):
    """y = 2 x by one thread of a CPU; BLOCK changes the name."""
    k = Kernel(f"double{BLOCK}", n=i64, x=ptr(f32), y=ptr(f32))
    n, x, y = k.args
    with each(k, n) as i:
        y[i] = 2.0 * x[i] + 0.0 * BLOCK
    return k.function


def test_what_was_found_is_what_the_next_call_uses(monkeypatch):
    monkeypatch.setattr(kernels, "measured", times(b32=3, b64=2, b128=1))
    kernel = tw.kernel(BLOCK=(32, 64, 128))(emit_each)
    n, x, y = arguments()
    assert kernel.configuration(None, n, x, y) == {"BLOCK": 64}
    found = tuned(kernel, n, x, y, on=None)
    assert found.best == {"BLOCK": 128}
    assert found.timed
    assert "uses BLOCK=128 from now on" in found.verdict
    assert kernel.configuration(None, n, x, y) == {"BLOCK": 128}
    again = tw.kernel(BLOCK=(32, 64, 128))(emit_each)           # another process would find it, too
    assert again.configuration(None, 95, x[:95], y[:95]) == {"BLOCK": 128}      # of the class n=128
    assert again.configuration(None, 30, x[:30], y[:30]) == {"BLOCK": 64}       # another class
    assert tw.kernel(BLOCK=(64, 128))(emit_each).configuration(None, n, x, y) == {"BLOCK": 64}  # another space
    kernel(n, x, y)
    assert np.array_equal(y, 2 * x)

    def emit_each_again(BLOCK=64):                              # another kernel by the same name
        return emit_each(BLOCK + 1)
    emit_each_again.__name__ = "emit_each"
    assert tw.kernel(BLOCK=(32, 64, 128))(emit_each_again).configuration(None, n, x, y) == {"BLOCK": 64}
    rows = store.rows(store.KERNELS)
    assert [(r.configuration, r.role, r.problem) for r in rows if r.role == "best"] == [("BLOCK=128", "best", "n=128")]
    lines = [row.to_json() for row in rows]
    assert store.clear() == 3
    assert kernel.configuration(None, n, x, y) == {"BLOCK": 64}
    assert store.merge(lines) == 3
    assert kernel.configuration(None, n, x, y) == {"BLOCK": 128}
    with pytest.raises(ValueError, match="line 1: role must be one of"):
        store.merge([lines[0].replace('"role": "best"', '"role": "first"')])


def test_sizes_between_classes_take_the_nearest(monkeypatch):
    """By the times that were measured there and the whole tiles that these sizes take."""
    monkeypatch.setattr(kernels, "measured", times(b32=1.05, b64=1.02, b128=1))
    space = {"BLOCK": (32, 64, 128), "tile": lambda BLOCK: {"n": BLOCK}}
    kernel = tw.kernel(**space)(emit_each)
    tuned(kernel, *arguments(128), on=None)

    def chosen(n, **more):
        return tw.kernel(**space | more)(emit_each).configuration(None, *arguments(n))["BLOCK"]
    assert [chosen(n) for n in (100, 256, 200, 250)] == [128, 128, 32, 128]
    assert chosen(256, check=lambda BLOCK: "too many" if BLOCK > 64 else None) == 64
    assert [chosen(n) for n in (40, 500)] == [64, 64]       # too far: the default
    explained = tw.explain(kernel, *arguments(200))
    assert (explained.plan, explained.origin) == ("BLOCK=32", "measured for sizes nearby (tilewright.tune)")


def test_the_best_is_one_of_the_last_phase(monkeypatch):
    """In the first phase the one in use was slow: ratios of that phase are not those of the next."""
    def measured(job, listen):
        run = times(b32=6, b64=9, b128=5)(job, listen)
        last = Phase((REFERENCE, "BLOCK=64", "BLOCK=128"))
        for name, ms in ((REFERENCE, 4.5), ("BLOCK=64", 4.5), ("BLOCK=128", 4)):
            last.seconds[name] += [ms / 1e3] * 3
        run.phases.append(last)
        return run
    monkeypatch.setattr(kernels, "measured", measured)
    found = tuned(tw.kernel(BLOCK=(32, 64, 128))(emit_each), *arguments(), on=None)
    assert found.best == {"BLOCK": 128}
    regrets = {each_one.configuration: each_one.regret for each_one in found.contenders}
    assert regrets == pytest.approx({"BLOCK=32": 0.2, "BLOCK=64": 0.125, "BLOCK=128": 0})


def test_what_was_disturbed_is_not_stored(monkeypatch):
    def measured(job, listen):
        run = times(b32=3, b64=2, b128=1)(job, listen)
        run.disturbed = True
        return run
    monkeypatch.setattr(kernels, "measured", measured)
    found = tuned(tw.kernel(BLOCK=(32, 64, 128))(emit_each), *arguments(), on=None)
    assert "nothing is stored" in found.verdict
    assert not store.rows(store.KERNELS)


@pytest.fixture
def fake(monkeypatch):
    found = fake_cuda.install(monkeypatch)
    monkeypatch.setitem(sys.modules, "cupy", cupy(found))
    return in_this_process(monkeypatch, found, code=True)


def emit_named(BLOCK=64, warp=32):
    k = Kernel(f"double{BLOCK}", threads=BLOCK, warp=warp, n=i64, x=ptr(f32), y=ptr(f32))
    n, x, y = k.args
    with each(k, n) as i:
        y[i] = 2.0 * x[i]
    return k.function


def test_on_a_device_the_fastest_launch_is_found(fake):
    ran = []

    def takes(function):
        ran.append(function.name)
        return 100.0 if function.name == "double128" else 200.0
    fake.takes = takes
    kernel = tw.kernel(BLOCK=(32, 64, 128), grid=blocks)(emit_named)
    chip = tw.detect("nvidia")
    found = tuned(kernel, *arguments(), on=chip)
    assert found.best == {"BLOCK": 128}
    assert len([each for each in found.contenders if each.row]) == 3
    assert {each.configuration: round(each.row.ratio, 2) for each in found.contenders}["BLOCK=128"] == 2
    n, x, y = arguments()
    there = [CuPyArray(value) for value in (x, y)]
    kernel(n, *there)
    fake.cuCtxSynchronize()
    assert np.array_equal(there[1].host, 2 * x)
    assert ran[-1] == "double128"


# ---- errors


@pytest.mark.parametrize(("given", "words"), [
    ({}, "needs a parameter that may vary, such as L="),
    ({"BLOCK": ()}, "BLOCK must have a tuple of different values"),
    ({"BLOCK": 64}, r"such as \(32, 64, 128\), not 64"),
    ({"BLOCK": (64, 64)}, "tuple of different values"),
    ({"ROWS": (1, 2)}, "emit_double has no parameter ROWS; it has BLOCK, warp, wrong"),
    ({"BLOCK": (64,), "grid": 4}, "grid must be a function of parameters and arguments, not 4"),
    ({"BLOCK": (64,), "tiles": None}, "tilewright.kernel has no option 'tiles'; there are grid, check, shared, tile"),
    ({"BLOCK": range(1, 20_001)}, "20,000 configurations, and at most 10,000"),
])
def test_a_decorator_that_is_wrong_says_what_is_right(given, words):
    with pytest.raises((TypeError, ValueError), match=words):
        tw.kernel(**given)(emit_double)


@pytest.mark.parametrize(("more", "words"), [
    ({"grid": lambda BLOCK, rows: rows}, "emit_double: grid asks for rows, and there are target, BLOCK, n, x, y"),
    ({"tile": lambda: {"m": 4}}, "tile names m, which is no whole number among the arguments n, x, y"),
    ({"tile": lambda: {"n": 0}}, "the tile of n must be a whole number from 1 on, not 0"),
    ({"reference": lambda x: x}, r"reference must return arrays by the names of arguments, such as .*, not ndarray"),
])
def test_a_function_of_the_decorator_that_is_wrong_says_what_is_right(more, words):
    with pytest.raises(ValueError, match=words):
        tuned(double(**more), *arguments())


def test_arguments_of_tune_are_checked():
    kernel = double()
    with pytest.raises(TypeError, match=r"double takes 3 arguments \(n, x, y\), not 1"):
        tw.tune(kernel, 4, target="sm_86")
    with pytest.raises(ValueError, match="threads is for products, and emit_double is a kernel"):
        tw.tune(kernel, *arguments(), target="sm_86", threads=2)
    with pytest.raises(TypeError, match="takes its target and no other arguments"):
        tw.tune(tw.Gemm(2, 2, 2), "x86-avx2", 3)
    with pytest.raises(ValueError, match="time_limit must be a positive number"):
        tuned(kernel, *arguments(), time_limit=0)
    with pytest.raises(TypeError, match="must return the recorded kernel"):
        tw.kernel(BLOCK=(1, 2))(lambda BLOCK: 5).function("sm_86")
    with pytest.raises(TypeError, match="needs rows, which is no UPPER parameter"):
        tw.kernel(BLOCK=(1, 2))(lambda rows, BLOCK=1: None)


def test_a_configuration_reads_back_what_it_writes():
    kernel = small_product()
    assert isinstance(kernel, Parametric)
    assert kernel.parse("L=16 S=4 V=2") == {"L": 16, "S": 4, "V": 2}
    for wrong in ("L=16 S=4", "L=64 S=4 V=4", "simt"):
        with pytest.raises(ValueError, match="emit_shared"):
            kernel.parse(wrong)


def test_a_digest_names_what_was_recorded():
    assert digest(emit_double(64)) == digest(emit_double(64))
    assert len({digest(emit_double(*each_one)) for each_one in ((64,), (32,), (64, 64), (64, 32, "result"))}) == 4


# ---- the command line


def run(*words):
    return call("tune", *words)


def test_the_command_shows_one_screen(monkeypatch):
    monkeypatch.setattr(tunable, "GPU", {"shared": small_product(L=(32, 64), V=(1, 4))})
    monkeypatch.setattr(kernels, "every", lambda task, work, texts, jobs, listen: [work(task, each) for each in texts])
    found = run("--step", "shared", "-t", "sm_86", "64", "64", "32")
    assert found.exit_code == 0, found.output
    assert "2 configurations of 4 can run" in found.output
    assert "bound ms" in found.output
    assert "1 refused by the check: a CTA would have 4096 threads, and GPUs allow 1024" in found.output
    assert "sm_86 code cannot run on this machine" in found.output
    assert len(found.output.splitlines()) < 25
    assert '"best": {' in run("--step", "shared", "-t", "sm_86", "64", "64", "32", "--json").output
    wrong = run("--step", "naive", "-t", "sm_86")
    assert wrong.exit_code == 2
    assert "no step 'naive' with parameters for sm_86; the steps are shared" in wrong.output
    assert "give M, N and K" in run("-t", "sm_86").output


def test_the_ladders_steps_multiply_on_a_cpu():
    kernel, chip = tunable.CPU["registers"], target("x86-avx2")
    a, b, c = (np.arange(x * y, dtype=np.float32).reshape(x, y) % 7 for x, y in ((9, 5), (5, 19), (9, 19)))
    for configuration in ({"MR": 2, "NV": 1}, {"MR": 4, "NV": 2}):
        simulator.run(kernel.function(chip, **configuration), 9, 19, 5, a, b, c)
        assert np.array_equal(c, a @ b)
