"""Targets: names, detection on faked machines, what is refused before LLVM sees it, and what it costs."""

from __future__ import annotations

import dataclasses
import os

import pytest

import tilewright as tw
from tests.helpers.processes import printed
from tilewright import targets
from tilewright.compiler import gate
from tilewright.compiler.artefact import load
from tilewright.compiler.llvm import assembly
from tilewright.ir import Kernel, f16, f32, f64, i64, ptr, vec
from tilewright.targets import amd, cpu, machine, nvidia

AVX512_FLAGS = " ".join(cpu.AVX512.needs)
AVX2_FLAGS = " ".join(cpu.AVX2.needs)


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """A machine with this /proc/cpuinfo; the records of the real one come back afterwards."""

    def become(text: str, machine_name: str = "x86_64", forced: str | None = None) -> None:
        (tmp_path / "cpuinfo").write_text(text)
        real = os.uname()
        monkeypatch.setattr(machine.processor, "__defaults__", (tmp_path / "cpuinfo",))
        monkeypatch.setattr(os, "uname", lambda: os.uname_result((*real[:4], machine_name)))
        if forced is None:
            monkeypatch.delenv("TILEWRIGHT_TARGET", raising=False)
        else:
            monkeypatch.setenv("TILEWRIGHT_TARGET", forced)
        forget()

    yield become
    monkeypatch.undo()
    forget()


def forget() -> None:
    targets.detect.cache_clear()
    cpu.record.cache_clear()


# ---- names


def test_every_name_and_alias():
    for row in cpu.ISAS:
        assert {targets.target(name) for name in (row.name, *row.aliases)} == {targets.target(row.name)}
    assert targets.names("cpu") == ["x86-avx512", "x86-avx2", "neon"]
    assert targets.names("gpu") == ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a"]
    assert targets.names("amd") == ["gfx942", "gfx950"]
    assert targets.names() == targets.names("cpu") + targets.names("gpu") + targets.names("amd")
    for alias, name in nvidia.ALIASES.items():
        assert targets.target(alias) is targets.target(name)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"no target 'sse2'; there are: x86-avx512 \(or avx512.*neon"):
        targets.target("sse2")


@pytest.mark.parametrize("name", [*targets.names("cpu"), *cpu.CHIPS])
def test_a_record_is_complete(name):
    t = targets.target(name)
    assert t.l1d >= 16 << 10
    assert t.l2 > t.l1d
    assert t.l3 == 0 or t.l3 > t.l2 / 2
    assert t.line in (64, 128)
    assert 1 <= t.l1d_ways <= 64
    assert t.vector_bytes * 8 == {"x86-avx512": 512, "x86-avx2": 256, "neon": 128}[t.name]
    assert t.lanes(4) == t.vector_bytes // 4
    assert 1 <= t.cores <= (os.cpu_count() or 1)
    for field in ("vector_bytes", "registers", "masked", "arithmetic", "l1d", "l2", "l3", "cores"):
        assert t.source(field) != "given by the caller"
    assert dataclasses.replace(t, model="another", sources=()) == t
    assert hash(t) == hash(dataclasses.replace(t))


@pytest.mark.parametrize("name", targets.names("gpu"))
def test_a_record_of_a_gpu_is_complete(name):
    t = targets.target(name)
    assert name == f"sm_{t.capability[0]}{t.capability[1]}" + "a" * name.endswith("a")
    assert t.smem_cta + t.smem_reserved == t.smem_sm
    assert 0 < t.sms <= 132
    assert t.l2 > 0
    assert t.flops("f32") / 2 == t.fma_f32 * t.sms * t.clock
    assert not t.runnable
    for field in ("sms", "clock", "l2", "bandwidth", "smem_sm", "smem_cta", "threads_sm", "ctas_sm", "registers_sm",
                  "fma_f32", "fma_f64", "instructions", "arithmetic"):
        assert t.source(field).startswith(("https://", "default: https://")), field
    assert dataclasses.replace(t, model="another", sources=(), missing=()) == t
    with pytest.raises(RuntimeError, match=f"{name} code cannot run on this machine: it lacks an NVIDIA GPU"):
        t.require_runnable()


@pytest.mark.parametrize(
    ("name", "chip", "tflops_f32", "tflops_f64", "tflops_bf16"),
    # as data sheets give them; of bf16 on a B200 by mma.sync, an assumption, where tcgen05 has 2,250
    [("rtx5090", "sm_120", 104.8, 1.64, 209.5), ("b200", "sm_100", 75, 37.5, 600.1)])
def test_chips_that_run_the_code_of_an_older_one(name, chip, tflops_f32, tflops_f64, tflops_bf16):
    t = targets.target(name)
    assert t is targets.target(chip.upper())
    assert (t.name, t.chip, t.code_key) == ("sm_89", chip, targets.target("sm_89").code_key)
    found = [rate / 1e12 for rate in (t.flops("f32"), t.flops("f64"), t.matrix_rates["bf16"] * t.sms * t.clock)]
    assert found == pytest.approx([tflops_f32, tflops_f64, tflops_bf16], rel=1e-2)
    assert 2 * t.matrix_f64 * t.sms * t.clock / 1e12 == pytest.approx(37.5 if name == "b200" else 3.27, rel=1e-2)
    words = str(tw.explain(tw.Gemm(256, 256, 256, "bf16"), target=name))
    assert f"{chip} runs code for sm_89" in words


@pytest.mark.parametrize(
    ("name", "threads", "registers", "shared", "ctas"),
    # by NVIDIA's occupancy calculator: registers, shared memory, threads and CTAs each limit somewhere
    [("sm_90a", 256, 128, 0, 2), ("sm_90a", 256, 255, 0, 1), ("sm_90a", 256, 32, 0, 8), ("sm_90a", 32, 32, 0, 32),
     ("sm_90a", 128, 64, 99 << 10, 2), ("sm_90a", 384, 168, 227 << 10, 1), ("sm_80", 256, 128, 64 << 10, 2),
     ("sm_80", 256, 128, 163 << 10, 1), ("sm_86", 256, 40, 0, 6), ("sm_86", 1024, 64, 0, 1), ("sm_75", 1024, 64, 0, 1),
     ("sm_75", 256, 64, 32 << 10, 2), ("sm_90a", 1024, 65, 0, 0), ("sm_90a", 128, 16, 228 << 10, 0)],
)
def test_occupancy(name, threads, registers, shared, ctas):
    assert targets.target(name).occupancy(threads, registers, shared) == ctas


# ---- AMD's


@pytest.mark.parametrize("name", [*targets.names("amd"), *amd.CHIPS])
def test_a_record_of_an_amd_gpu_is_complete(name):
    t = targets.target(name)
    assert t is targets.target(name.upper())
    assert t.name in targets.names("amd")
    assert not t.runnable
    given = {"name", "model", "driver", "missing", "sources", "triple", "features"}
    for field in {f.name for f in dataclasses.fields(t)} - given:
        assert t.source(field).startswith(("https://", "default: https://")), field
    # two chips of one architecture get the same machine code
    assert t.code_key == targets.target(t.name).code_key
    assert dataclasses.replace(t, model="another", sources=(), missing=()) == t
    with pytest.raises(RuntimeError, match=f"{t.name} code cannot run on this machine: it lacks an AMD GPU"):
        t.require_runnable()


@pytest.mark.parametrize(
    ("name", "tflops_f32", "tflops_f64"),
    # vector peaks as AMD's data sheets give them
    [("mi300x", 163.4, 81.7), ("mi300a", 122.6, 61.3), ("mi325x", 163.4, 81.7), ("mi350x", 144.2, 72.1),
     ("mi355x", 157.3, 78.6)],
)
def test_vector_peaks_of_amd_chips(name, tflops_f32, tflops_f64):
    t = targets.target(name)
    assert round(t.flops("f32") / 1e12, 1) == tflops_f32
    assert abs(t.flops("f64") / 1e12 - tflops_f64) <= 0.1


@pytest.mark.parametrize(
    ("name", "threads", "registers", "lds", "groups"),
    # registers, LDS, waves and barriers each limit somewhere; LLVM's note of waves per SIMD says the same
    [("gfx942", 256, 512, 0, 1), ("gfx942", 256, 256, 0, 2), ("gfx942", 256, 128, 0, 4), ("gfx942", 256, 129, 0, 3),
     ("gfx942", 256, 64, 0, 8), ("gfx942", 256, 16, 0, 8), ("gfx942", 64, 16, 0, 32), ("gfx942", 128, 16, 0, 16),
     ("gfx942", 256, 64, 64 << 10, 1), ("gfx942", 256, 64, 32 << 10, 2), ("gfx942", 256, 64, (32 << 10) + 1, 1),
     ("gfx950", 256, 64, 80 << 10, 2), ("gfx950", 256, 64, 160 << 10, 1), ("gfx950", 256, 64, (160 << 10) + 4, 0),
     ("gfx950", 512, 256, 0, 1), ("gfx950", 512, 512, 0, 0), ("gfx950", 256, 513, 0, 0), ("gfx950", 2048, 8, 0, 0)],
)
def test_occupancy_of_amd_chips(name, threads, registers, lds, groups):
    assert targets.target(name).occupancy(threads, registers, lds) == groups


# ---- detection


def test_avx512_needs_all_of_its_flags(pretend):
    pretend(f"processor: 0\nmodel name: Fake 9000\nflags: {AVX512_FLAGS}\n\nprocessor: 1\nflags: none\n")
    assert targets.detect().name == "x86-avx512"
    assert targets.detect().model == "Fake 9000"
    pretend(f"model name: Phi\nflags: {AVX512_FLAGS.replace('avx512bw', '').replace('avx512vl', '')}\n")
    assert targets.detect().name == "x86-avx2"
    assert targets.target("avx512").missing == ("avx512bw", "avx512vl")


def test_too_old_an_x86_is_told_what_is_missing(pretend):
    pretend(f"model name: Sandy\nflags: {AVX2_FLAGS.replace('avx2', '').replace('fma', '')}\n")
    with pytest.raises(RuntimeError, match=r"needs at least x86-avx2, and this processor \(Sandy\) lacks avx2, fma\."):
        targets.detect()


def test_arm(pretend):
    pretend("processor: 0\nFeatures: fp asimd evtstrm\nCPU part: 0xd0c\n", "aarch64")
    assert targets.detect().name == "neon"
    assert targets.detect().runnable
    assert targets.target("x86-avx2").missing == ("an x86-64 processor",)


def test_an_unknown_family(pretend):
    pretend("isa: rv64imafdc\n", "riscv64")
    with pytest.raises(RuntimeError, match="no instruction set for riscv64 processors; it has: x86-avx512, x86-avx2"):
        targets.detect()


def test_the_environment_forces_a_target(pretend):
    pretend(f"flags: {AVX512_FLAGS}\n", forced="avx2")
    assert targets.detect() is targets.target("x86-avx2")
    pretend(f"flags: {AVX2_FLAGS}\n", forced="neon")
    assert not targets.detect().runnable
    pretend(f"flags: {AVX2_FLAGS}\n", forced="pentium")
    with pytest.raises(ValueError, match="TILEWRIGHT_TARGET: there is no target 'pentium'"):
        targets.detect()
    pretend(f"flags: {AVX2_FLAGS}\n", forced="sm_90a")
    with pytest.raises(ValueError, match=r"must be a CPU target, and sm_90a is a GPU's; CPU targets are: x86"):
        targets.detect()
    pretend(f"flags: {AVX2_FLAGS}\n", forced="gfx942")
    with pytest.raises(ValueError, match=r"must be a CPU target, and gfx942 is a GPU's; CPU targets are: x86"):
        targets.detect()


def test_without_proc_llvm_is_asked(monkeypatch, tmp_path):
    found = machine.processor(tmp_path / "nothing")
    assert found.family == machine.processor().family
    here = {row.name for row in cpu.ISAS if set(row.needs) <= machine.processor().flags}
    assert here == {row.name for row in cpu.ISAS if set(row.needs) <= found.flags}


def test_caches_fall_back_to_glibc_and_then_to_the_default(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CPUS", str(tmp_path))
    monkeypatch.setattr(machine, "_caches_from_glibc", lambda: {"l1d": (48 << 10, 12), "l2": (0, 0), "l3": (0, 0)})
    found = machine.caches(0, cpu.AVX512.caches)
    assert (found["l1d"].size, found["l1d"].ways) == (48 << 10, 12)
    assert (found["l2"].size, found["l2"].ways) == (1 << 20, 16)
    assert "cpuid" in found["l1d"].source
    assert "wikichip" in found["l2"].source
    assert "l3" not in found


def test_caches_from_sysfs(monkeypatch, tmp_path):
    def index(n: int, **files: str) -> None:
        folder = tmp_path / "cpu3" / "cache" / f"index{n}"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n")

    index(0, type="Data", level="1", size="48K", ways_of_associativity="12", shared_cpu_list="3,35")
    index(1, type="Instruction", level="1", size="32K")
    index(2, type="Unified", level="2", size="2048K", ways_of_associativity="", coherency_line_size="64")
    index(3, type="Unified", level="3", size="36M", ways_of_associativity="0", shared_cpu_list="0-15,32-47")
    monkeypatch.setattr(machine, "CPUS", str(tmp_path))
    found = machine.caches(3, cpu.AVX2.caches)
    assert (found["l1d"].size, found["l1d"].ways, found["l1d"].cpus) == (48 << 10, 12, 2)
    assert (found["l2"].size, found["l2"].ways, found["l2"].cpus, found["l2"].line) == (2 << 20, 8, 1, 64)
    assert (found["l3"].size, found["l3"].cpus) == (36 << 20, 32)


def test_glibc_agrees_with_sysfs_on_this_machine():
    """The numbers of sysconf are glibc's ABI; a machine that shows both must show the same."""
    sysfs, glibc = machine._caches_from_sysfs(machine.cpus().allowed[0]), machine._caches_from_glibc()
    if "l1d" not in sysfs or not glibc or not glibc["l1d"][0]:
        pytest.skip("this machine shows its caches in one way only")
    assert (sysfs["l1d"].size, sysfs["l1d"].ways) == glibc["l1d"]


# ---- how many CPUs


def test_affinity_is_respected():
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no CPU affinity on this system")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert machine.cpus().count == 1
        assert machine.cpus().allowed == (min(before),)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("share", "cpus"), [("max 100000", None), ("150000 100000", 1.5), ("400000 100000", 4)])
def test_quota_of_a_v2_group_and_its_parents(tmp_path, share, cpus):
    (tmp_path / "membership").write_text("0::/jobs/mine\n")
    (tmp_path / "root/jobs/mine").mkdir(parents=True)
    (tmp_path / "root/jobs/cpu.max").write_text(share)
    (tmp_path / "root/jobs/mine/cpu.max").write_text("max 100000")
    assert machine.quota(tmp_path / "membership", tmp_path / "root") == cpus


def test_quota_of_a_v1_group_in_a_container(tmp_path):
    (tmp_path / "membership").write_text("4:memory:/x\n3:cpu,cpuacct:/docker/abc\n0::/system.slice\n")
    (tmp_path / "root/cpu,cpuacct").mkdir(parents=True)      # the host's path is not visible from inside
    (tmp_path / "root/cpu,cpuacct/cpu.cfs_quota_us").write_text("250000")
    (tmp_path / "root/cpu,cpuacct/cpu.cfs_period_us").write_text("100000")
    assert machine.quota(tmp_path / "membership", tmp_path / "root") == 2.5
    assert machine.quota(tmp_path / "nothing", tmp_path / "root") is None


def test_the_count_and_its_reason():
    few = machine.Cpus(tuple(range(8)), 64, 1.5, 2)
    assert few.count == 2
    assert few.why == "the affinity mask allows 8 of 64 CPUs, the control group's quota is 1.5; 2 of them share a core"
    assert machine.Cpus((0, 1), 2, 0.2, 1).count == 1
    assert machine.Cpus((0, 1), 2, None, 1).count == 2


# ---- what is refused


def emit_scale(target, T, length):
    k = Kernel("scale", n=i64, x=ptr(T))
    n, x = k.args
    with k.loop(n) as i:
        v = k.load(x + i * length, vec(T, length), T.bytes)
        k.store(x + i * length, v * v, T.bytes)
    return k.function


def test_too_wide_a_vector_is_refused_in_a_sentence():
    t = targets.target("avx2")
    with pytest.raises(NotImplementedError, match=r"scale, test_targets.py:\d+: v16f32 is a vector of 512 bits, and "
                                                  r"x86-avx2 has registers of 256"):
        assembly(emit_scale(t, f32, 16), t)
    assert "zmm" in assembly(emit_scale(None, f32, 16), targets.target("avx512"))


def test_arithmetic_that_is_not_there_is_refused():
    t = targets.target("avx512")
    with pytest.raises(NotImplementedError, match="x86-avx512 has no f16 arithmetic, so no mul: cast to f32 first"):
        assembly(emit_scale(t, f16, 16), t)


def test_a_gpu_kernel_is_refused():
    k = Kernel("grid", threads=32, x=ptr(f32))
    k.smem("tile", (4, 4), f32)
    found = list(gate.refusals(k.function, targets.target("neon")))
    assert found == ["grid is written for a grid of threads, and neon is a CPU: it runs one thread",
                     "grid: tile is in shared memory, and neon has none"]


def emit_everything(target):
    """Every operation that the gate lets through and whose spelling depends on the target."""
    functions = []
    for T in (f32, f64):
        V = target.lanes(T.bytes)
        k = Kernel(f"everything_{T}", n=i64, x=ptr(T), s=T)
        n, x, s = k.args
        mask = k.lanes_below(n, V)
        v = k.load(x, vec(T, V), T.bytes, mask)
        w = k.fma(v, k.broadcast(s, V), k.load(x + V, vec(T, V), T.bytes))
        w = k.shuffle(v, w, [*range(1, V + 1)]) + k.max(v, w) * k.min(v, w) - v
        k.prefetch(x + n)
        k.store(x, w, T.bytes, mask)
        k.store(x + 2 * V, w, V * T.bytes, streaming=True)
        x[n] = k.sum(w)
        functions.append(k.function)
    k = Kernel("half", x=ptr(f16), y=ptr(f32))
    x, y = k.args
    wide = k.cast(k.load(x, vec(f16, target.lanes(4)), 2), vec(f32, target.lanes(4)))
    k.store(y, wide, 4)
    k.store(x, k.cast(wide * wide, vec(f16, target.lanes(4))), 2)
    functions.append(k.function)
    return functions


@pytest.mark.parametrize("name", targets.names("cpu"))
def test_llvm_takes_what_the_gate_lets_through(name):
    """In a child process: LLVM ends the process on an operation that it cannot select."""
    printed(f"""
from tests.targets.test_targets import emit_everything
from tilewright.compiler import llvm; from tilewright.targets import target
t = target({name!r}); text = llvm.assembly(emit_everything(t), t)
calls = [line for line in text.splitlines() if line.split()[:1] in (['callq'], ['bl'])]
assert not calls, calls         # of functions that no one links
assert len(llvm.object_code(emit_everything(t), t)) > 1000
""")


def test_code_of_another_machine_is_emitted_but_not_run():
    foreign = next(t for t in map(targets.target, targets.names("cpu")) if not t.runnable)
    assert "scale:" in assembly(emit_scale(foreign, f32, 4), foreign)
    with pytest.raises(RuntimeError, match=f"{foreign.name} code cannot run on this machine: it lacks "):
        load(emit_scale, foreign, f32, 4)


# ---- cost


def test_detection_is_cheap_and_imports_nothing_heavy():
    code = """
        import sys, tilewright.targets as t
        opened = []
        sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
        t.detect()
        first = len(opened)
        t.detect()
        print(first, len(opened) - first, *sys.modules)
        """
    first, again, *modules = printed(code).split()
    assert not {"llvmlite", "subprocess", "typer", "rich"} & set(modules)
    assert int(first) <= 100 + 4 * (os.cpu_count() or 1)    # small files of /proc and /sys: the work that there is
    assert int(again) == 0
