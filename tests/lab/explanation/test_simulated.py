"""Simulated bytes beside predicted ones, and measured ones: counters of CPUs, and ncu's of NVIDIA's GPUs."""

from __future__ import annotations

import errno
import os

import pytest

import tilewright as tw
from tests.doubles import fake_cuda
from tests.lab.tuner.test_tuner_on_gpus import in_this_process
from tilewright.lab.explanation import measured
from tilewright.lab.measure import counters, ncu
from tilewright.lab.tuner import on_gpu

SIMULATED = [
    ("f32", "nn", "sm_90a", (2039, 2039, 2039), "simt 64x64x8 warp=32x32 thread=8x4 stages=2 copy=registers"),
    ("f32", "nt", "sm_90a", (640, 640, 640), "simt 32x64x8 warp=32x32 thread=8x4 stages=2 copy=registers tail"),
    ("f32", "tn", "sm_75", (8, 640, 640), "simt 16x64x16 warp=16x32 thread=4x4 stages=2 copy=registers split_k=2"),
    ("f32", "nn", "sm_90a", (1, 4096, 4096), "gemv 1x32x32 stages=2 copy=registers vector=4"),
    ("f32", "nt", "sm_80", (3, 4096, 4096), "gemv 4x8x8 stages=2 copy=registers vector=4"),
    ("bf16", "nt", "sm_90a", (1000, 304, 304), "wgmma 64x64x64 stages=3 warpgroups=1 vector_c=1"),
    ("bf16", "nn", "sm_90a", (8, 4096, 4096), "wgmma 16x64x64 stages=3 warpgroups=1 swap cluster_k=2 vector_c=1"),
    ("f16", "nt", "sm_90a", (512, 512, 512), "wgmma 64x64x64 stages=3 warpgroups=1 cluster=2x1 vector_c=2 store=tma"),
    ("bf16", "nn", "sm_90a", (101, 103, 107), "wgmma 64x64x64 stages=3 warpgroups=1 vector_c=1 copied=ab"),
    ("i8", "nt", "sm_80", (300, 300, 300), "mma 16x16x128 warp=16x16 stages=3 vector=4"),
    ("f16", "nt", "gfx942", (512, 512, 512), "mfma 64x64x32 wave=32x32 mfma=32"),
    ("f32", "nt", "gfx942", (9, 512, 512), "mfma 32x32x32 wave=32x32 mfma=32 split_k=2"),
]


@pytest.mark.parametrize(("a", "layout", "chip", "sizes", "plan"), SIMULATED)
def test_predicted_bytes_are_the_simulated_ones(a, layout, chip, sizes, plan):
    """Through L2 and of memory exactly, shared within 2 %: what barriers, flags and the last one of a tile add."""
    found = tw.explain(tw.Gemm(*sizes, a, out="i32" if a == "i8" else "f32", layout=layout), chip, plan, simulate=True)
    assert not found.violations
    for level in found.levels:
        assert level.simulated == pytest.approx(level.predicted, rel=0.02 if level.name in ("shared", "LDS") else 0), (
            level.name, level.notes)
        assert "scaled from" in level.notes["simulated"]
    through = found.level("L2")
    assert through.moved >= through.simulated or "gemv" in plan         # whose lanes ask for the same elements
    assert f"{through.moved:,} bytes, in whole sectors" in str(found)
    assert [tile for tile in found.tiles if tile.bytes > tile.room > 0] == []


BIASED = tw.epilogue(lambda acc, bias, more: tw.relu(acc + bias) + more, bias="row", more="full")


@pytest.mark.parametrize(("problem", "chip", "beside"), [
    (tw.Gemm(32, 32, 256, "mxfp4"), "gfx950", (32 + 32)*256 // 32),                     # a byte for 32 elements
    (tw.Gemm(32, 32, 256, "e4m3fn", out="f32", layout="nt", scales="1x128"), "sm_90a", 4*(32 + 32)*2),
    (tw.Gemm(32, 32, 64, scales="rows"), "sm_80", 4*(32 + 32)),
    (tw.Gemm(32, 32, 64, epilogue=BIASED), "sm_80", 4*(32 + 32*32)),
])
def test_what_is_read_beside_operands_is_predicted_and_simulated(problem, chip, beside):
    """Scales, and operands of an epilogue. How often threads ask for them the model leaves out, and that is seen."""
    found = tw.explain(problem, chip, simulate=True)
    level, through = found.level("memory"), found.level("L2")
    assert level.simulated == level.predicted
    assert level.terms[-1].bytes == beside
    assert through.simulated != through.predicted
    assert f"{through.simulated / through.predicted:.4g} of the prediction" in str(found)


def test_what_is_simulated_of_cpus():
    for plan in ("packed 6x16 mc=60 kc=100 nc=160", "in_place 6x16 kc=64", "packed 6x16 mc=60 kc=100 nc=160 swap"):
        found = tw.explain(tw.Gemm(100, 200, 300), "x86-avx2", plan, simulate=True)
        level = found.level("L1")
        assert level.simulated == level.predicted, level.notes
        assert "caches are not simulated" in found.level("memory").notes["simulated"]
    found = tw.explain(tw.Gemm(2, 500, 300), "x86-avx2", "stream 2x4", simulate=True)
    assert found.level("L1").simulated is None
    assert "not simulated: no small product of this kind" in str(found)
    fused = tw.explain(tw.Gemm(64, 64, 64, epilogue=BIASED), "x86-avx2", "packed 6x16 mc=60 kc=32 nc=64", simulate=True)
    assert fused.level("L1").simulated == fused.level("L1").predicted


def test_a_semiring_is_simulated_and_not_timed():
    problem = tw.Gemm(30, 48, 20, semiring=tw.semiring(lambda a, b: (a - b)*(a - b)))
    found = tw.explain(problem, "x86-avx2", "packed 3x24 mc=30 kc=20 nc=48", simulate=True)
    assert found.level("L1").simulated == found.level("L1").predicted
    found = tw.explain(problem, measure=True, threads=1)
    assert found.time.measured is None
    assert "not measured: of products with semiring nothing is timed here" in str(found)


# ---- measured on CPUs

def test_counters_of_this_machine_or_a_sentence():
    """Whatever this machine has: bytes that are no negative number, or a reason."""
    found, notes = counters.count(lambda: sum(range(1000)), 1e-5, 64)
    assert notes.keys() >= {"L2", "memory"}
    assert all(count >= 0 for count in found.values())
    assert all(notes[level].startswith("not counted: ") for level in {"L2", "memory"} - found.keys())


@pytest.mark.parametrize(("code", "words"), [
    (errno.EACCES, "this user may not read counters"), (errno.ENOENT, "this processor shows no such counter"),
    (errno.ENOSYS, "this kernel has no perf_event_open"), (errno.EMFILE, os.strerror(errno.EMFILE))])
def test_why_counters_are_refused(code, words):
    assert words in counters._reason(code)


def test_counted_lines_are_bytes(monkeypatch):
    calls = []
    lines = {"L2": 10.0, "memory": 2.0}
    monkeypatch.setattr(counters, "_counted", lambda event, call, repeats: calls.append(repeats) or lines[event.level])
    found, notes = counters.count(lambda: None, 0.01, 64)
    assert found == {"L2": 640, "memory": 256}                      # loads and stores
    assert calls == [30, 30, 30]
    assert "and those that stores did not find there" in notes["memory"]


def test_an_event_that_shares_a_counter_is_scaled(tmp_path):
    path = tmp_path / "counter"
    path.write_bytes(b"".join(x.to_bytes(8, "little") for x in (100, 40, 10)))
    file = os.open(path, os.O_RDONLY)
    assert counters._read(file) == 400.0
    os.close(file)


# ---- measured on NVIDIA's GPUs

LOG = '''==PROF== Connected to process 7
"ID","Process ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum",{names}
"","","","byte","byte",{units}
"0","7","first","1,000","24",{first}
"1","7","second","6","0",{second}
'''


def log(shared: str = "3") -> str:
    names = '"lts__t_sectors_srcunit_tex.sum","l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"'
    return LOG.format(names=names, units='"sector",""', first=f'"10","{shared}"', second='"1","0"')


def test_what_ncu_writes():
    chip = tw.target("sm_80")
    found, kernels = ncu.read(log(), ncu.counters_of(chip))
    assert found == {"memory": 1030, "L2": 11*32, "shared": 3*128}
    assert kernels == ["first", "second"]
    assert ncu.read(log("n/a"), ncu.counters_of(chip))[0].keys() == {"memory", "L2"}     # a counter that a chip lacks
    assert "shared" not in ncu.read(log(), ncu.counters_of(tw.target("sm_90a")))[0]     # whose bulk copies count, too
    with pytest.raises(ncu.Missing, match="lets only administrators"):
        ncu.read("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", ncu.counters_of(chip))
    with pytest.raises(ncu.Missing, match="ncu has counted no kernel: Failed to find metric"):
        ncu.read("==ERROR== Failed to find metric x\n", ncu.counters_of(chip))


def test_a_launch_is_timed_and_counted(monkeypatch):
    """Child processes run in this one, on a fake GPU; a fake ncu writes a given log."""
    in_this_process(monkeypatch, fake_cuda.install(monkeypatch))
    commands = []

    class Launched:
        """A process under ncu."""

        def __init__(self, module, job, *, under):
            assert module == measured.__name__
            self.job = job
            commands.append(under)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def events(self, patience, latest):
            said = []
            monkeypatch.setattr(measured.signal, "alarm", lambda seconds: None)
            measured._launch(self.job, said.append)
            open(commands[0][-1], "w").write(log())
            return said

    monkeypatch.setattr(measured, "Child", Launched)
    monkeypatch.setattr(ncu, "find", lambda: "/opt/ncu")
    monkeypatch.setattr(ncu, "BULK", {})
    problem, target = tw.Gemm(2, 3, 4), tw.detect("nvidia")
    found = tw.explain(problem, target, measure=True)
    assert found.time.measured.median == pytest.approx(0.2)
    assert [level.measured for level in found.levels] == [352, 1030]
    assert "nothing here has been measured" not in str(found)
    assert "sectors that reached L2" in str(found)
    (command,) = commands
    assert command[:2] == ["/opt/ncu", "--csv"]

    def missing():
        raise ncu.Missing("ncu (NVIDIA Nsight Compute) is not installed")

    monkeypatch.setattr(ncu, "find", missing)
    found = tw.explain(problem, target, measure=True)
    assert (found.time.measured.median, found.level("memory").measured) == (pytest.approx(0.2), None)
    assert found.level("memory").notes["measured"] == "not counted: ncu (NVIDIA Nsight Compute) is not installed"
    monkeypatch.setattr(on_gpu.OnGpu, "wrong", lambda by: "c[0, 0] is 7")
    with pytest.raises(RuntimeError, match=r"nothing could be measured for .*2x3x4: .*wrong result: c\[0, 0\] is 7"):
        tw.explain(problem, target, measure=True)
