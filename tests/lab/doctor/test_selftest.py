"""`tilewright doctor --selftest`: what it does with a GPU, on the HIP of tests/doubles/fake_hip.py, and without one."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.doubles.fake_hip import install
from tests.doubles.impatient import Impatient
from tests.helpers.command_line import call
from tilewright.compiled import amd
from tilewright.compiler import lld
from tilewright.ir import Kernel, f32, i64, ptr
from tilewright.kernels.elementwise import each
from tilewright.lab.doctor import amd_kernels, doctor, selftest
from tilewright.lab.doctor.amd_kernels import Launched, Product
from tilewright.lab.ladder.steps import AMD_STEPS
from tilewright.lab.measure import gpu_rules
from tilewright.lab.tuner import on_gpu
from tilewright.plans.amd import AmdPlan, choose, shape_of
from tilewright.runtime.hip import module
from tilewright.targets.amd import MATRIX_RATES as RATES

CDNA3, CDNA4 = (kernel for kernel in amd_kernels.KERNELS if kernel.name == "axpy_f32")  # one for each target
LARGE = Product(tw.Gemm(100, 72, 128, "f32", layout="nt"))
PLAIN = amd_kernels.Entry("plain", "gfx942", (), LARGE)


@pytest.fixture
def linked(monkeypatch):
    """What runs on hardware has been linked."""
    try:
        lld.find()
    except lld.Missing as missing:
        pytest.skip(str(missing))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(gpu_rules, "MOST_SETS", 2)
    monkeypatch.setattr(on_gpu, "Busy", lambda on, driver: None)  # which a simulator would take minutes for
    monkeypatch.setattr(selftest, "RULES", replace(selftest.RULES, min_rounds=1, max_rounds=1))


def installed(monkeypatch, arch="gfx942"):
    fake = install(monkeypatch, arch)
    fake.takes = lambda function: 200.0  # milliseconds: a turn of its own
    return fake


@pytest.fixture
def fake(monkeypatch, linked):
    return installed(monkeypatch)


def examined(monkeypatch, *kernels):
    """What a child says about these kernels."""
    monkeypatch.setattr(selftest, "KERNELS", kernels)
    said = []
    selftest.run(range(len(kernels)), lambda event, **details: said.append((event, details)))
    assert [event for event, _ in said] == ["trying", "found"] * len(kernels)
    records = [details["found"] for event, details in said if event == "found"]
    json.dumps(records, allow_nan=False)
    return records


def kernel(name, target):
    (entry,) = (k for k in amd_kernels.KERNELS if (k.name, k.target) == (name, target))
    return entry


def test_on_hardware(fake, monkeypatch):
    mine, plain, other = examined(monkeypatch, CDNA3, PLAIN, CDNA4)
    assert (mine["ran"], mine["right"], "time" in mine) == ("on hardware", True, False)
    assert (other["ran"], other["right"]) == ("simulated, not run on hardware", True)
    (case,) = mine["cases"]
    assert case["linked_bytes"] > 1000
    assert case["uses"]["registers"] > 1
    time = plain["time"]
    assert time["seconds"] == pytest.approx(0.2)  # the fake's clock
    assert time["operations_per_second"] == pytest.approx(2 * 100 * 72 * 128 / 0.2)
    assert "torch" not in time
    assert not fake.blocks  # all memory was given back
    lines = [selftest.line(record) for record in (mine, plain, other)]
    assert "on hardware: 1 case right" in lines[0]
    assert f"200000.0 us for {LARGE}: 0.0 TFLOP/s, 0.00 TB/s" in lines[1]
    assert "simulated, not run on hardware: 1 case right" in lines[2]
    assert selftest.summary({"kernels": [mine, other]}) == "2 of 2 kernels right; 1 ran on hardware, 1 did not."


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_the_ladder_on_hardware(monkeypatch, linked, arch):
    installed(monkeypatch, arch)
    steps = [k for k in amd_kernels.KERNELS if k.name.startswith("amd_ladder") and k.target == arch]
    assert len(steps) == {"gfx942": 3, "gfx950": 5}[arch]
    for found in examined(monkeypatch, *steps):
        assert (found["ran"], found["right"], len(found["cases"])) == ("on hardware", True, 2), found


@pytest.mark.parametrize(("name", "arch"), [
    ("mfma_gemm_f16_nt_split", "gfx950"), ("mfma_gemm_i8_i8_nt", "gfx942"), ("scaled_mfma_gemm_e2m1_e3m2", "gfx950"),
    ("decoded_mx_gemm_e2m1_e2m1_bf16", "gfx942"), ("mfma_gemm_f32_nt_xf32", "gfx942"),
])
def test_products_on_hardware(monkeypatch, linked, name, arch):
    installed(monkeypatch, arch)
    entry = kernel(name, arch)
    small = entry.large._replace(problem=replace(entry.large.problem, m=100, n=72, k=128))
    (found,) = examined(monkeypatch, replace(entry, large=small))
    assert (found["ran"], found["right"]) == ("on hardware", True), found
    launches = 3 if name.startswith("decoded") else 1
    assert found["time"]["operations_per_second"] == pytest.approx(2 * 100 * 72 * 128 / 0.2 / launches)
    for case in found["cases"]:
        assert case["uses"]["vgpr_spills"] == 0
        assert AmdPlan.parse(case["plan"])


def test_reciprocals_are_compared_to_the_last_bit(fake, monkeypatch):
    """Of numbers whose mantissa bits are all set: a chip that errs by a unit in the last place is found."""
    entry = kernel("reciprocal_f32", "gfx942")
    (found,) = examined(monkeypatch, entry)
    assert (found["ran"], found["right"]) == ("on hardware", True), found
    (case,) = entry.small
    x = case.args[1]
    assert np.nextafter(np.float32(2), np.float32(0)) in x
    right = (1 / x.astype(np.float64)).astype(np.float32)
    assert not case.judge(right)
    assert "1000 of 1000 elements differ" in case.judge(np.nextafter(right, np.float32(9)))


# ---- the list


def entries(target):
    return {k.name: k for k in amd_kernels.KERNELS if k.target == target}


def plan_of(entry, case):
    return case.kernel(tw.target(entry.target)).plan


def test_every_kernel_has_a_name_of_its_own():
    names = [(k.name, k.target) for k in amd_kernels.KERNELS]
    assert len(set(names)) == len(names) == 107


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_every_kernel_is_in_the_list(target):
    """Each step of the ladder, each format that plans know a rate of, each layout, each pair of block-scaled ones."""
    there = entries(target)
    assert {f"amd_ladder_{name}" for name, step in AMD_STEPS.items() if target in step.targets} <= set(there)
    products = [k for name, k in there.items() if name.startswith("mfma_gemm")]
    algorithms = {"mfma", "xf32"} if target == "gfx942" else {"mfma"}
    assert {plan_of(k, k.small[0]).algorithm for k in products} == algorithms
    rates = set(RATES[target]) - {"e2m3", "e3m2", "e2m1"}
    assert {k.large.problem.a for k in products} | ({"xf32"} if "xf32" in algorithms else set()) == rates
    assert {k.large.problem.layout for k in products} == {"nt", "nn", "tn", "tt"}
    scaled = [k.large.problem for name, k in there.items() if name.startswith(("scaled", "decoded"))]
    assert {(p.a, p.b) for p in scaled} == {(a, b) for a in amd_kernels.MX.values() for b in amd_kernels.MX.values()}
    assert len(amd_kernels.MX) == 5
    assert {p.out for p in scaled} == {"f32", "bf16"}
    ways = {"gfx942": "mfma", "gfx950": "scaled"}
    assert {plan_of(k, k.small[0]).algorithm for k in there.values() if k.large and k.large.problem in scaled} == {
        ways[target]}
    quick = {name for name, k in there.items() if k.quick}
    assert {name for name in there if name.startswith(("amd_ladder", "axpy", "reciprocal"))} <= quick
    assert {f"mfma_gemm_{name}_nt" for name in rates - {"xf32"}} <= quick
    assert 10 < len(quick) < len(there) / 2


def test_every_emitter_of_kernels_amd_is_tried():
    """A new kernel of products has to be put into the list."""
    folder = Path(amd.__file__).parents[1] / "kernels" / "amd"
    emitters = {f"tilewright.kernels.amd.{path.stem}:{name}" for path in folder.glob("*.py")
                for name in re.findall(r"^def (emit_\w+)", path.read_text(), re.M)
                if not path.stem.startswith("attention")}
    assert emitters == set(amd.AmdKernel.emitters.values())


def test_shapes_make_the_planner_choose_what_they_are_for():
    for target in ("gfx942", "gfx950"):
        split = kernel("mfma_gemm_f16_nt_split", target)
        for case in (*split.small, split.large):
            assert plan_of(split, case).split_k > 1
    straight = kernel("mfma_gemm_f16_nt", "gfx950")
    assert [plan_of(straight, case).copy for case in straight.small] == ["registers", "lds"]
    assert plan_of(straight, straight.large) == choose(shape_of(straight.large.problem), tw.target("gfx950"))


def test_torch_takes_turns(fake, monkeypatch):
    class External:
        def __init__(self, handle):
            self.handle = handle

    def product(a, b, out):
        fake.queue(streams[-1]).append(lambda: setattr(fake, "clock", fake.clock + 600.0))

    streams, copies = [], types.SimpleNamespace(cuda=lambda: None)

    def enter(stream):
        streams.append(stream.handle)
        return contextlib.nullcontext()
    cuda = types.SimpleNamespace(ExternalStream=External, stream=enter)
    torch = types.SimpleNamespace(cuda=cuda, mm=product, from_numpy=lambda x: copies, __version__="2.13")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(on_gpu, "find_spec", lambda name: torch)
    (found,) = examined(monkeypatch, PLAIN)
    assert found["time"]["torch_over_ours"] == pytest.approx(3.0)
    assert "3.00 x torch 2.13" in selftest.line(found)
    torch.mm = None
    (found,) = examined(monkeypatch, PLAIN)
    assert found["right"]
    assert found["time"]["torch"] == "TypeError: 'NoneType' object is not callable"


def test_wrong_results_are_found(fake, monkeypatch):
    def emit(chip):
        k = Kernel("broken", threads=256, warp=64, n=i64, alpha=f32, x=ptr(f32), y=ptr(f32))
        n, alpha, x, y = k.args
        with each(k, n) as i:
            y[i] = alpha * x[i]
        return k.function

    (case,) = CDNA3.small
    for target in ("gfx942", "gfx950"):  # on hardware, and simulated
        (found,) = examined(monkeypatch, replace(CDNA3, target=target, small=(case._replace(emit=emit),)))
        assert found["right"] is False
        assert re.search(r"WRONG in 1 of 1 case: axpy_f32: \d+ of 1000 elements differ", selftest.line(found))


def test_an_exception_is_a_record(fake, monkeypatch):
    fake.fail["hipModuleLaunchKernel"] = 719
    found, other = examined(monkeypatch, CDNA3, CDNA4)
    assert found["failed"].startswith("HipError: hipErrorLaunchFailure (719)")
    assert "examine" in found["traceback"]
    assert found["right"] is False
    assert other["right"]
    assert "FAILED: HipError" in selftest.line(found)


def test_a_case_of_the_ladder_tells_right_from_wrong():
    for case in kernel("amd_ladder_f16", "gfx942").small:
        a, b, c = case.args
        exact = a.astype(float) @ b.astype(float)
        assert not case.judge(exact.astype(np.float32))
        assert case.judge((exact + 1).astype(np.float32))
        assert case.judge(c)  # nan
    assert isinstance(case, Launched)


# ---- the process that starts others


def reported(monkeypatch, start):
    begin = "import json, os, pickle, sys, time\nnumbers, timed = pickle.load(sys.stdin.buffer)\n"
    monkeypatch.setattr("tilewright.lab.measure.process.START", begin + start)
    monkeypatch.setattr(selftest, "Child", Impatient)
    found = selftest.begun()
    assert [x for x in selftest.tries(found, patience=60.0) if not isinstance(x, str)] == found["kernels"]
    json.dumps(found, allow_nan=False)
    return found["kernels"]


SAY = "say = lambda event, **details: print(json.dumps({'event': event, **details}), flush=True)\n"


def test_a_process_that_dies_takes_one_kernel_with_it(monkeypatch):
    monkeypatch.setattr(selftest, "KERNELS", (CDNA3, CDNA4, CDNA3))
    found = reported(monkeypatch, SAY + """
for number in numbers:
    say("trying", kernel=number)
    if number == 1:
        print("Memory access fault by GPU node-1", file=sys.stderr)
        os.abort()
    say("found", found={"name": "fine", "right": True})
""")
    assert [kernel["right"] for kernel in found] == [True, False, True]
    assert found[1]["failed"] == "its process ended: SIGABRT (Memory access fault by GPU node-1)"
    assert found[1]["target"] == "gfx950"


def test_a_process_that_hangs_or_never_begins(monkeypatch):
    monkeypatch.setattr(selftest, "KERNELS", (CDNA3,))
    (found,) = reported(monkeypatch, SAY + "say('trying', kernel=0); print('hangs', flush=True); time.sleep(600)")
    assert found["failed"] == "its process ended: it sent no result for 60 s"
    (found,) = reported(monkeypatch, "raise ImportError('no such thing')")
    assert found["failed"] == "its process ended: ImportError: no such thing"


def test_the_command(monkeypatch, tmp_path):
    """In this process instead of another, with one kernel of those for GPUs that are not here."""
    monkeypatch.setattr(module, "why_not", lambda: "none here")
    monkeypatch.setattr(selftest, "KERNELS", (CDNA4,))

    def events(numbers, patience, timed):
        said = []
        selftest.run(numbers, lambda event, **details: said.append({"event": event, **details}), timed)
        return said

    monkeypatch.setattr(selftest, "_events", events)
    path = tmp_path / "out.json"
    done = call("doctor", "--selftest", "-o", path)
    assert done.exit_code == 0, done.output
    assert "No AMD GPU: none here." in done.output
    assert "simulated, not run on hardware: 1 case right" in done.output
    assert "1 of 1 kernel right; 0 ran on hardware, 1 did not." in done.output
    found = json.loads(path.read_text())
    assert found["kernels"][0]["target"] == "gfx950"
    assert "tilewright" in found["versions"]
    monkeypatch.setattr(selftest, "examine", lambda kernel, on: selftest.failed(kernel, "it broke"))
    done = call("doctor", "--selftest", "-o", path)
    assert (done.exit_code, "FAILED: it broke" in done.output) == (1, True)


@pytest.fixture
def canned(monkeypatch):
    """Three kernels whose records come at once, from no process."""
    monkeypatch.setattr(module, "why_not", lambda: "none here")
    monkeypatch.setattr(selftest, "KERNELS", (CDNA3, CDNA4, CDNA3))
    asked = []

    def events(numbers, patience, timed):
        asked.append((tuple(numbers), timed))
        for number in list(numbers):
            yield {"event": "trying", "kernel": number}
            yield {"event": "found", "found": selftest.failed(CDNA4, "it broke")}

    monkeypatch.setattr(selftest, "_events", events)
    return asked


def doctored(*words):
    return call("doctor", "--selftest", *words)


def test_a_file_that_cannot_be_written_is_refused_at_once(canned, tmp_path):
    for path, why in ((tmp_path / "no" / "x.json", "there is no directory"), (tmp_path, "it is a directory")):
        done = doctored("-o", path)
        assert (done.exit_code, why in done.stderr, canned) == (2, True, []), done.output


def test_the_file_is_complete_after_every_kernel(canned, monkeypatch, tmp_path):
    """Also after Ctrl-C, which is said in a line."""
    path, seen = tmp_path / "out.json", []
    line = selftest.line

    def interrupt(kernel):
        seen.append(json.loads(path.read_text()))
        if len(seen) == 2:
            raise KeyboardInterrupt
        return line(kernel)

    monkeypatch.setattr(selftest, "line", interrupt)
    done = doctored("-o", path)
    assert [(len(each["kernels"]), len(each["missing"])) for each in seen] == [(1, 2), (2, 1)]
    assert done.exit_code == 130
    assert done.stderr.splitlines()[-1] == f"tilewright: interrupted; 2 kernels of 3 are in {path}"
    kept = json.loads(path.read_text())
    assert (len(kept["kernels"]), kept["missing"]) == (2, ["axpy_f32 gfx942"])
    assert [x.name for x in tmp_path.iterdir()] == ["out.json"]


def test_progress_is_told(canned, tmp_path):
    done = doctored("-o", tmp_path / "out.json")
    assert "3 kernels: 0:03 minutes on an idle machine" in done.stdout
    assert "1 of 3  axpy_f32 gfx942, 0:03 left" in done.stderr
    assert "3 of 3  axpy_f32 gfx942, " in done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["missing"] == []


def test_options_mean_something_with_the_selftest_or_are_refused(canned, tmp_path):
    path = tmp_path / "out.json"
    assert doctored("--no-measure", "-o", path).exit_code == 1
    assert canned[-1][1] is False
    printed = doctored("--json", "-o", path)
    assert json.loads(printed.stdout) == json.loads(path.read_text())
    assert "FAILED: it broke" in printed.stderr
    assert "named by --output" in doctored("--json", tmp_path / "other.json", "-o", path).stderr
    for words, why in ((("-o", path), "the selftest's file"), (("--quick", "--no-measure"), "not both")):
        done = call("doctor", *words)
        assert (done.exit_code, why in done.stderr) == (2, True)


def test_nothing_is_timed_if_nothing_is_to_be(fake, monkeypatch):
    entry = kernel("mfma_gemm_f32_nt", "gfx942")
    monkeypatch.setattr(selftest, "KERNELS", (replace(entry, large=LARGE),))
    said = []
    selftest.run([0], lambda event, **details: said.append(details), timed=False)
    assert "time" not in said[-1]["found"]
    assert said[-1]["found"]["ran"] == "on hardware"


def test_real_processes():
    """One kernel, for real."""
    events = list(selftest._events([0], 60.0))
    assert [event["event"] for event in events] == ["trying", "found", "ended"]
    assert events[1]["found"]["name"] == amd_kernels.KERNELS[0].name


def test_the_gpu_of_the_report(fake):
    found = doctor.amd()
    (gpu,) = found["devices"]
    assert (gpu["name"], gpu["arch"], gpu["cus"]) == ("AMD Instinct MI300X", "gfx942", 304)
    assert (found["hip"], found["without"]) == (70226015, "")
    said = "304 compute units at up to 2.10 GHz, 192 GiB at 5300 GB/s"
    assert list(selftest.heading(found | {"missing": []}))[:-1] == [f"AMD Instinct MI300X (gfx942): {said}"]
    assert f"gfx942, {said}" in "\n".join(doctor._amd_lines(found))
    fake.arch = "gfx1100"
    module.device.found.clear()
    (gpu,) = doctor.amd()["devices"]
    assert "tilewright has kernels for" in gpu["why_not"]
    fake.devices = 0
    assert "emitted and simulated only: hipErrorNoDevice" in "\n".join(doctor._amd_lines(doctor.amd()))
