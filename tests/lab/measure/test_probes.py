"""The probes do what they are timed for, their figures are possible, and they are remembered."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import os
import threading

import numpy as np
import pytest

from tilewright.compiler.artefact import load
from tilewright.compiler.llvm import assembly
from tilewright.inspect.resources import hot_loop
from tilewright.lab.doctor import doctor
from tilewright.lab.measure import probe_kernels as emitted, probes, quiet, timing
from tilewright.lab.measure.probes import Measured
from tilewright.targets import CpuTarget, names, target
from tilewright.text import size

RUNNABLE = [name for name in names("cpu") if target(name).runnable]
INT, POINTER = ctypes.c_int64, ctypes.c_void_p
SHORT = timing.Effort(0.0005, 2)


@pytest.fixture(scope="module")
def measured() -> Measured:
    return probes.measure(quick=True, attempts=1)


# ---- what the probes do


@pytest.mark.parametrize("name", names("cpu"))
def test_the_loops_are_limited_by_what_they_measure(name):
    t = target(name)
    for dtype in ("f32", "f64"):
        loop = hot_loop(assembly(emitted.emit_fma_probe(t, dtype), t))
        assert (loop.fma, loop.loads, loop.stores, loop.spills) == (emitted.chains(t), 0, 0, 0)
    for kind, loads, stores in (("read", 16, 0), ("copy", 16, 16), ("write", 0, 16)):
        asm = assembly(emitted.emit_memory_probe(t, kind), t)
        loop = hot_loop(asm)
        assert (loop.loads, loop.stores, loop.spills) == (loads, stores, 0)
        assert "memcpy" not in asm
        assert "memset" not in asm
    streaming = hot_loop(assembly(emitted.emit_memory_probe(t, "stream"), t)).text
    assert streaming.count("vmovnt") == 16 or streaming.count("stnp") == 16
    adds = hot_loop(assembly(emitted.emit_clock_probe(t), t)).text
    assert adds.count("add") in (32, 33)            # 33: AArch64 counts its rounds by an addition too


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", RUNNABLE)
def test_multiply_adds_are_done(name, dtype):
    t = target(name)
    T = np.dtype(f"f{probes.DTYPES[dtype]}")
    lanes, count = t.lanes(T.itemsize), emitted.chains(t)
    raw = np.zeros((t.registers + 1) * lanes, T)
    x = raw[-raw.ctypes.data % t.vector_bytes // T.itemsize:][:t.registers * lanes].reshape(t.registers, lanes)
    x[:] = np.random.default_rng(0).integers(-4, 5, x.shape)
    before = x.copy()
    load(emitted.emit_fma_probe, t, dtype).function("fma_probe", None, INT, POINTER)(7, x.ctypes.data)
    factor = before[count:]
    for i in range(count):
        np.testing.assert_array_equal(x[i], before[i] + 7 * factor[i % 4] * factor[(i + 1) % 4])


@pytest.mark.parametrize("kind", ["read", "copy", "write", "stream"])
@pytest.mark.parametrize("name", RUNNABLE)
def test_memory_is_gone_through(name, kind):
    t = target(name)
    size = 3 * emitted.UNROLL * t.vector_bytes
    x, y = timing.random_memory(size), timing.random_memory(size)
    before = y.copy()
    function = load(emitted.emit_memory_probe, t, kind).function(f"{kind}_probe", None, INT, INT, POINTER, POINTER)
    function(1, size // t.vector_bytes, x.ctypes.data, y.ctypes.data)
    sums = x.reshape(-1, emitted.UNROLL // 2, t.vector_bytes)
    if kind == "copy":
        np.testing.assert_array_equal(y, x)
    elif kind == "read":            # the first sums start with what they then add
        np.testing.assert_array_equal(y[:sums[0].size], (np.bitwise_xor.reduce(sums) ^ sums[0]).ravel())
        np.testing.assert_array_equal(y[sums[0].size:], before[sums[0].size:])
    else:
        np.testing.assert_array_equal(y.reshape(sums.shape), np.broadcast_to(sums[0], sums.shape))


def test_a_chain_of_loads_and_a_chain_of_additions():
    t = target(RUNNABLE[0])
    follow = load(emitted.emit_latency_probe, t).function("latency_probe", INT, INT, POINTER, INT)
    ring = np.array([3, 0, 1, 2])
    assert [follow(steps, ring.ctypes.data, 0) for steps in (0, 1, 2, 5)] == [0, 3, 2, 3]
    add = load(emitted.emit_clock_probe, t).function("clock_probe", INT, INT, INT)
    assert add(5, 3) == 3 + 3 * 5 * emitted.CHAIN


def test_the_random_cycle_has_every_line():
    call, work = timing.latency(target(RUNNABLE[0]), 64 << 10, 64)
    assert work == 100
    call(1)
    memory = next(cell.cell_contents for cell in call.__closure__ if isinstance(cell.cell_contents, np.ndarray))
    at, seen = 0, set()
    while at not in seen:
        seen.add(at)
        at = int(memory[at])
    assert len(seen) == 1024


def test_threads_run_at_once_and_their_rates_add_up(monkeypatch):
    together = threading.Barrier(2, timeout=60)
    monkeypatch.setattr(timing, "_seconds", lambda call, rounds: rounds * 1e-3)

    def prepare() -> timing.Probe:
        together.wait()                     # hangs unless both threads are there
        return (lambda rounds: None), 1.0

    assert timing.best_rate(prepare, [0, 0], timing.Effort(0.02, 2)) == pytest.approx(2000)


def test_a_probe_that_fails_says_why():
    def prepare() -> timing.Probe:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        timing.best_rate(prepare, [0, 0], SHORT)


# ---- the figures


def test_the_figures_are_possible(measured):
    """Of most of them only the upper bound, as other processes may have the CPUs: four multiply-adds a cycle."""
    assert 0 < measured.clock < 10e9
    assert 1e-8 < measured.call < math.inf
    assert set(measured.flops) == set(RUNNABLE)
    for name, row in measured.flops.items():
        t = target(name)
        for dtype, (one, everyone) in row.items():
            for threads, rate in (1, one), (measured.threads, everyone):
                assert 0 < rate / (2 * t.lanes(probes.DTYPES[dtype])) < 4.5 * 10e9 * threads, (name, dtype)
    assert min(measured.peak_bandwidth(level) for level in measured.sizes) > 0
    assert {"L1", "memory"} <= set(measured.sizes) <= {"L1", "L2", "L3", "memory"}
    assert measured.quick
    assert measured.latency == {}


def test_they_are_remembered_and_measured_again_when_the_file_is_damaged(measured, monkeypatch):
    def fail(*options):
        raise AssertionError("measured again")

    measured = clean(measured)
    probes.remember(probes._path(), measured)
    with monkeypatch.context() as patch:
        patch.setattr(probes, "measure", fail)
        assert probes.ceilings() == measured
        assert probes.remembered() == measured
        with pytest.raises(AssertionError, match="measured again"):
            probes.renew(quick=True)
        path = probes._path()
        whole = path.read_text()
        fields = json.loads(whole)
        older = {name: value for name, value in fields.items() if name != "others"}
        for damaged in (whole[:100], "[]", '{"model": 1}', json.dumps({**fields, "flops": 3}), json.dumps(older)):
            path.write_text(damaged)
            assert probes.remembered() is None
        path.unlink()
        assert probes.remembered() is None
    probes.remember(path, measured)
    assert probes.remembered() == measured


def test_a_target_that_cannot_run_has_no_ceiling():
    foreign = next(t for t in map(target, names("cpu")) if not t.runnable)
    with pytest.raises(RuntimeError, match=f"{foreign.name} code cannot run on this machine"):
        probes.ceilings(foreign)


def clean(measured: Measured) -> Measured:
    """The same with figures that nothing has disturbed, whatever runs beside the tests."""
    wanted = {name: {"f32": (100e9, 90e9 * measured.threads), "f64": (50e9, 45e9 * measured.threads)}
              for name in RUNNABLE}
    return dataclasses.replace(measured, flops=wanted, others=0.0)


def figures(threads: int = 4) -> Measured:
    flops = {"wide": {"f32": (100e9, 400e9), "f64": (50e9, 200e9)},
             "narrow": {"f32": (110e9, 340e9), "f64": (50e9, 170e9)}}
    bandwidth = {"L1": {"read": (200e9, 800e9)}, "L2": {"read": (90e9, 360e9)}, "memory": {"read": (20e9, 50e9)}}
    return Measured("m", "2026", True, threads, 3e9, 1e-7, flops, bandwidth, {}, {})


def test_between_one_thread_and_all_the_figures_grow_evenly():
    f = figures()
    assert f.peak_flops("f32", isa="wide") == 100e9
    assert f.peak_flops("f32") == 110e9
    assert f.peak_flops("f32", 2, "wide") == 200e9
    assert f.peak_flops("f32", 64, "wide") == 400e9
    assert f.peak_bandwidth("memory", 2) == 30e9
    assert f.peak_bandwidth("L3") is None
    assert f.peak_bandwidth("L2", kind="copy") is None
    assert figures(1).peak_flops("f64", 8) == 50e9
    with pytest.raises(ValueError, match="no ceiling was measured for neon; there are: wide, narrow"):
        f.peak_flops("f32", 1, "neon")


def test_the_cost_model_gets_them_in_its_units():
    wide = dataclasses.replace(target("x86-avx512"), name="wide")
    model = figures().model_ceilings(wide, "f64")
    assert (model.vectors, model.l2, model.l3, model.memory) == (50e9 / 16, 90e9, 90e9, 20e9)
    found = figures()
    both = found.model_ceilings(wide, "f32", 2)                 # what each of two has
    assert both.vectors == found.peak_flops("f32", 2, "wide") / 2 / 32
    assert (both.l2, both.memory) == (found.peak_bandwidth("L2", 2) / 2, 20e9)


def cpu(**sizes: int) -> CpuTarget:
    return dataclasses.replace(target("x86-avx2"), **{"l1d": 32 << 10, "l2": 1 << 20, "l3": 32 << 20, "l2_cpus": 1,
                                                      "l3_cpus": 16, **sizes})


def test_working_sets():
    sizes, notes = probes.working_sets(cpu(), 1)
    assert (sizes["L1"], sizes["L2"], sizes["L3"]) == (16 << 10, 512 << 10, 4 << 20)
    assert sizes["memory"] >= 64 << 20
    assert notes == []
    sizes, _ = probes.working_sets(cpu(), 8)
    assert sizes["L3"] == 2 << 20                   # each its share of one half
    sizes, notes = probes.working_sets(cpu(l3=20 << 20), 16)
    assert "L3" not in sizes
    assert notes == ["L3 is too small beside L2 to be measured by itself with 16 threads"]
    assert "L3" not in probes.working_sets(cpu(l3=0), 4)[0]
    assert "L2" not in probes.working_sets(cpu(l2=512 << 10, l2_cpus=8), 8)[0]
    sizes, notes = probes.working_sets(cpu(l3=512 << 20), 1, quick=True)
    assert sizes["memory"] <= 256 << 20
    assert "caches of 512 MiB may hold a part" in notes[-1]


# ---- doctor


def test_the_report_is_json_and_readable(measured, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(probes, "remembered", lambda: measured)         # another process may have measured since
    found = doctor.report(measured=False)
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(found, default=str))
    assert found["ceilings"]["clock"] == measured.clock
    text = "\n".join(doctor.lines(found))
    for part in ("x86-avx512", "emitted only: this machine lacks", "L1d", "affinity mask", "OMP_NUM_THREADS=3",
                 "llvm", "peer        NumPy", "GFLOP/s", "memory streamed write", "GB/s"):
        assert part in text, part
    assert "\n".join(doctor.lines({**found, "ceilings": None})).endswith("Ceilings: not measured yet.")


def test_sizes():
    assert [size(n) for n in (0, 1023, 32 << 10, 1 << 20, 3 << 29)] == [
        "0 bytes", "1023 bytes", "32 KiB", "1 MiB", "1.5 GiB"]


def test_a_cache_directory_that_cannot_be_written_is_seen(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(blocked / "inside"))
    found = doctor.report(measured=False)
    assert found["cache"]["writable"] is False
    assert "NOT WRITABLE" in "\n".join(doctor.lines(found))
    assert found["ceilings"] is None


def test_quick_does_a_fraction_of_the_work(monkeypatch):
    """What a measurement takes is turns: `quick` has fewer, shorter ones, of the same rates and no latencies."""
    asked = []
    monkeypatch.setattr(timing, "best_rate", lambda prepare, cpus, effort: asked.append(effort) or 1.0)
    work = {}
    for quick in (True, False):
        asked.clear()
        probes.measure(quick, attempts=1)
        work[quick] = sum(effort.turns * effort.turn_s for effort in asked), len(asked)
    assert work[True][0] < work[False][0] / 10
    assert work[True][0] < 1
    assert work[True][1] < work[False][1]


# ---- a busy machine


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Ceilings remembered in a directory of the test's own; measurements and the load meanwhile are what it says."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    plans = []

    def measures(*found: tuple[Measured, float]):
        plans[:] = found

    monkeypatch.setattr(probes, "_measure", lambda quick, progress: plans[0][0])
    monkeypatch.setattr(quiet.Watch, "taken", lambda self: plans.pop(0)[1] if len(plans) > 1 else plans[0][1])
    return measures


def scaled(measured: Measured, by: float) -> Measured:
    flops = {isa: {dtype: tuple(by * rate for rate in pair) for dtype, pair in row.items()}
             for isa, row in measured.flops.items()}
    return dataclasses.replace(measured, flops=flops)


def test_what_others_disturbed_never_replaces_what_they_did_not(measured, machine):
    good = clean(measured)
    machine((good, 0.0))
    assert probes.renew() == (good, good)
    machine((scaled(good, 0.5), 1.3))
    kept, new = probes.renew()
    assert kept == good == probes.remembered()
    assert (new.others, new.disturbed) == (1.3, True)
    machine((scaled(good, 0.9), 0.1))                       # undisturbed: the larger of old and new
    assert probes.renew()[0].flops == good.flops
    machine((scaled(good, 1.1), 0.0))
    assert probes.renew()[0].flops == scaled(good, 1.1).flops
    machine((scaled(good, 0.7), 0.0))
    assert probes.renew(forget=True)[0].flops == scaled(good, 0.7).flops


def test_a_disturbed_measurement_is_repeated_and_kept_apart(measured, machine):
    good = clean(measured)
    machine((scaled(good, 0.5), 1.3), (good, 0.0))
    assert probes.renew() == (good, good)
    machine((scaled(good, 0.5), 1.3))
    kept, _ = probes.renew(forget=True)
    assert kept.disturbed
    assert probes.basis(target(RUNNABLE[0])).ceilings is None
    machine((good, 0.0))
    assert probes.ceilings() == good                        # measured again, though something was remembered


@pytest.mark.parametrize(("rates", "words"), [
    ({"f32": (104e9, 416e9), "f64": (111e9, 400e9)}, "f32 is 0.94 times as fast as f64, which should be 2"),
    ({"f32": (100e9, 1720e9), "f64": (50e9, 860e9)}, "4 threads are 17.20 times as fast as one"),
    ({"f32": (100e9, 60e9), "f64": (50e9, 30e9)}, "4 threads are 0.60 times as fast as one"),
])
def test_figures_that_contradict_each_other_are_disturbed(rates, words):
    assert not figures().disturbed
    found = dataclasses.replace(figures(), flops={"wide": rates})
    assert found.disturbed
    assert any(words in doubt for doubt in found.doubts())


def test_doctor_warns_and_says_what_is_kept(measured, machine):
    good = clean(measured)
    machine((good, 0.0))
    assert doctor.report(quick=True)["warnings"] == []
    machine((scaled(good, 0.5), 1.3))
    said = "\n".join(doctor.lines(doctor.report(quick=True)))
    assert "WARNING: other processes used 1.3 of" in said
    assert "is kept. Repeat on an idle machine" in " ".join(said.split())
    for found in doctor.report(quick=True, forget=True), doctor.report(measured=False):
        assert "WARNING: these are not this machine's ceilings" in "\n".join(doctor.lines(found))


STAT = """cpu  {user} 0 10 1000 5 0 5 {stolen} 0 0
cpu0 {user} 0 10 500 5 0 5 {stolen} 0 0
cpu1 0 0 0 500 0 0 0 0 0 0
intr 1
"""


def test_only_the_cpus_of_this_process_are_looked_at(monkeypatch, tmp_path):
    stat = tmp_path / "stat"
    tick = os.sysconf("SC_CLK_TCK")
    loads = {}
    for cpus in ((0,), (1,), (0, 1), (0, 7)):
        monkeypatch.setattr(quiet, "_allowed", lambda cpus=cpus: list(cpus))
        for user, stolen in ((0, 0), (3 * tick, tick)):
            stat.write_text(STAT.format(user=user, stolen=stolen))
            loads[cpus, user] = dataclasses.replace(quiet.Load.now(stat), own=0.0, at=user / tick)
    taken = {cpus: loads[cpus, 3 * tick].taken_since(loads[cpus, 0]) for cpus, _ in loads}
    assert taken == pytest.approx({(0,): 4 / 3, (1,): 0.0, (0, 1): 4 / 3, (0, 7): 0.0})
    assert loads[(0,), 3 * tick].others_since(loads[(0,), 0]) == pytest.approx(1.0)
    assert quiet.Load.now(tmp_path / "nowhere").taken is None


def test_a_watch_judges_no_shorter_interval_than_the_clock_of_the_kernel_can():
    looks = iter([(0.0, 0.0), (0.01, 0.01), (0.1, 0.05), (0.1, 0.05), (1.1, 0.1), (1.1, 0.1)])

    def look() -> quiet.Load:
        at, used = next(looks)
        return quiet.Load(None, total=1, busy=1, stolen=0, own=0, at=at, taken=used)

    watch = quiet.Watch(look)
    assert not watch.disturbed()            # 1 CPU, but for 10 ms only
    assert watch.disturbed()                # half a CPU
    assert not watch.disturbed()
