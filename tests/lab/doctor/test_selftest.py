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
from typer.testing import CliRunner

import tilewright as tw
from tests.doubles.fake_hip import install
from tests.doubles.impatient import Impatient
from tilewright.compiled import amd
from tilewright.compiled.base import Launch
from tilewright.compiler import lld
from tilewright.ir import Kernel, f32, i64, ptr
from tilewright.kernels.elementwise import each
from tilewright.lab.cli import app
from tilewright.lab.doctor import amd_cases, amd_kernels, doctor, selftest, selftest_peer, selftest_steps
from tilewright.lab.ladder.steps import AMD_STEPS
from tilewright.plans.amd import AmdPlan, choose, shape_of
from tilewright.runtime.hip import module
from tilewright.targets.amd import MATRIX_RATES as RATES

CDNA3, CDNA4 = (
    replace(kernel, large=(3000,)) for kernel in amd_kernels.KERNELS if kernel.name == "axpy_f32"
)  # one for each target


@pytest.fixture
def linked():
    """What runs on hardware has been linked."""
    try:
        lld.find()
    except lld.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def fake(monkeypatch, linked):
    monkeypatch.setitem(sys.modules, "torch", None)
    return install(monkeypatch)


def examined(monkeypatch, *kernels):
    """What a child says about these kernels."""
    monkeypatch.setattr(selftest_steps, "KERNELS", kernels)
    said = []
    selftest_steps.run(range(len(kernels)), lambda event, **details: said.append((event, details)))
    assert [event for event, _ in said] == ["trying", "found"] * len(kernels)
    found = [details["found"] for event, details in said if event == "found"]
    json.dumps(found, allow_nan=False)
    return found


def test_on_hardware(fake, monkeypatch):
    (found, other) = examined(monkeypatch, CDNA3, CDNA4)
    assert (found["ran"], found["right"]) == ("on hardware", True)
    assert [(case["shape"], case["data"], case["right"]) for case in found["cases"]] == [
        (shape, data, True) for shape in ([1], [1000], [3000]) for data in ("integers", "random")
    ]
    assert [case["exact"] for case in found["cases"][::2]] == [True] * 3
    assert 0 < found["cases"][5]["of_bound"] <= 1
    assert [code["shape"] for code in found["code"]] == [[1], [1000], [3000]]
    for code in found["code"]:
        assert code["linked"]["bytes"] > 1000
        assert code["loaded"]["registers"] > 1
    time = found["time"]
    assert time["seconds"] == pytest.approx(1e-3)  # the fake's clock
    assert len(time["seconds_of_turns"]) == selftest_steps.RULES.max_rounds
    assert time["operations_per_second"] == pytest.approx(6000 / 1e-3)
    assert time["torch"].startswith("ModuleNotFoundError")
    assert not fake.blocks  # all memory was given back
    assert (other["ran"], other["right"]) == ("simulated, not run on hardware", True)
    assert "time" not in other
    lines = [selftest.line(record) for record in (found, other)]
    exact = sum(case["exact"] for case in found["cases"])
    assert f"on hardware: 6 cases right, {exact} exact" in lines[0]
    assert "1000.0 us at 3000: 0.0 TFLOP/s, 0.00 TB/s; torch: ModuleNotFoundError" in lines[0]
    assert "simulated, not run on hardware: 4 cases right" in lines[1]
    assert selftest.summary({"kernels": [found, other]}) == "2 of 2 kernels right; 1 ran on hardware, 1 did not."


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_the_ladder_on_hardware(monkeypatch, linked, arch):
    monkeypatch.setitem(sys.modules, "torch", None)
    install(monkeypatch, arch)
    steps = [k for k in amd_kernels.KERNELS if k.name.startswith("amd_ladder") and k.target == arch]
    assert len(steps) == {"gfx942": 3, "gfx950": 5}[arch]
    for found in examined(monkeypatch, *steps):
        assert (found["ran"], found["right"], "time" in found) == ("on hardware", True, False), found
        assert found["cases"][0]["exact"]


@pytest.mark.parametrize(("name", "arch"), [
    ("mfma_gemm_f16_nt_split", "gfx950"), ("mfma_gemm_i8_i8_nt", "gfx942"), ("scaled_mfma_gemm_e2m1_e3m2", "gfx950"),
    ("emulated_mx_gemm_e2m1_e2m1_bf16", "gfx942"),
])
def test_products_on_hardware(monkeypatch, linked, name, arch):
    monkeypatch.setitem(sys.modules, "torch", None)
    fake = install(monkeypatch, arch)
    fake.takes = lambda function: 200.0  # milliseconds: a turn of its own
    monkeypatch.setattr(selftest_steps, "RULES", replace(selftest_steps.RULES, min_rounds=1, max_rounds=1))
    monkeypatch.setattr(amd_cases, "MOST_ROWS", 80)
    (kernel,) = (k for k in amd_kernels.KERNELS if k.name == name and k.target == arch)
    (found,) = examined(monkeypatch, replace(kernel, large=(100, 72, 128)))
    assert (found["ran"], found["right"]) == ("on hardware", True), found
    assert [case.get("rows") for case in found["cases"]] == [None, None, 64, 64]  # of many rows a sample is compared
    assert found["time"]["operations_per_second"] == pytest.approx(2 * 100 * 72 * 128 / 0.2)
    for code in found["code"]:
        assert code["compiled"]["vgpr_spills"] == 0
        assert AmdPlan.parse(code["plan"])


def test_reciprocals_are_compared_to_the_last_bit(monkeypatch, linked):
    """Of numbers whose mantissa bits are all set: a chip that errs by a unit in the last place is found."""
    install(monkeypatch, "gfx942")
    (kernel,) = (k for k in amd_kernels.KERNELS if (k.name, k.target) == ("reciprocal_f32", "gfx942"))
    (found,) = examined(monkeypatch, kernel)
    assert (found["ran"], found["right"]) == ("on hardware", True), found
    assert {case["data"]: case["exact"] for case in found["cases"]} == {"integers": True, "random": True}
    case = kernel.case(kernel.launch(tw.target("gfx942"), (252,)), (252,), "integers", np.random.default_rng(0))
    assert np.nextafter(np.float32(2), np.float32(0)) in case.args[1]
    wrong = selftest_steps._compared(case, np.nextafter(case.expected.astype(np.float32), np.float32(9)))
    assert not wrong["right"]


# ---- the list


def entries(target):
    return {k.name: k for k in amd_kernels.KERNELS if k.target == target}


def plan_of(entry, shape):
    return entry.launch(tw.target(entry.target), shape).kernel.plan


def test_every_kernel_has_a_name_of_its_own():
    names = [(k.name, k.target) for k in amd_kernels.KERNELS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_every_kernel_is_in_the_list(target):
    """Each step of the ladder, each format that plans know a rate of, each layout, each pair of block-scaled ones."""
    there = entries(target)
    assert {f"amd_ladder_{name}" for name, step in AMD_STEPS.items() if target in step.targets} <= set(there)
    products = [k for name, k in there.items() if name.startswith("mfma_gemm")]
    algorithms = {"mfma", "xf32"} if target == "gfx942" else {"mfma"}
    assert {plan_of(k, k.small[0]).algorithm for k in products} == algorithms
    rates = set(RATES[target]) - {"e2m3", "e3m2", "e2m1"}
    assert {k.formats[0] for k in products} | ({"xf32"} if "xf32" in algorithms else set()) == rates
    assert {layout for k in products for layout in k.name.split("_")} >= {"nt", "nn", "tn", "tt"}
    scaled = [k for name, k in there.items() if name.startswith(("scaled", "emulated"))]
    assert {k.formats[:2] for k in scaled} == {(a, b) for a in amd_kernels.MX for b in amd_kernels.MX}
    assert len(amd_kernels.MX) == 5
    assert {k.formats[2] for k in scaled} == {"f32", "bf16"}
    assert all(k.large is not None for k in (*products, *scaled))
    ways = {"gfx942": "bf16_emulated", "gfx950": "scaled"}
    assert {plan_of(k, k.small[0]).algorithm for k in scaled} == {ways[target]}


def test_every_emitter_of_kernels_amd_is_tried():
    """A new kernel has to be put into the list."""
    folder = Path(amd.__file__).parents[1] / "kernels" / "amd"
    emitters = {f"tilewright.kernels.amd.{path.stem}:{name}" for path in folder.glob("*.py")
                for name in re.findall(r"^def (emit_\w+)", path.read_text(), re.M)}
    assert emitters == set(amd.AmdKernel.emitters.values())


def test_shapes_make_the_planner_choose_what_they_are_for():
    for target in ("gfx942", "gfx950"):
        split = entries(target)["mfma_gemm_f16_nt_split"]
        for shape in (*split.small, split.large):
            assert plan_of(split, shape).split_k > 1
    straight = entries("gfx950")["mfma_gemm_f16_nt"]
    assert [plan_of(straight, shape).copy for shape in straight.small] == ["registers", "lds"]
    problem = tw.Gemm(*straight.large, "f16", out="f32", layout="nt")
    assert plan_of(straight, straight.large) == choose(shape_of(problem), tw.target("gfx950"))


@pytest.mark.parametrize("wrong", ["result", "scale"])
def test_a_case_tells_right_from_wrong(wrong):
    """What the selftest compares with, in case it should be right about everything."""
    (entry,) = (k for k in amd_kernels.KERNELS if k.name == "scaled_mfma_gemm_e2m1_e5m2")
    launch = entry.launch(tw.target("gfx950"), (4, 4, 64))
    case = entry.case(launch, (4, 4, 64), "random", np.random.default_rng(0))
    if wrong == "result":
        off = case.expected + 4 * case.bound * np.eye(4)
    else:  # one of the scales of A, by a factor of two
        args = list(case.args)
        more = args[8].copy()
        more[2, 1] += 1
        a, b = (amd_cases.formats.unpack(args[i], f).astype(np.float64) for i, f in ((4, "e2m1"), (6, "e5m2")))
        off = amd_cases.applied(a, more) @ amd_cases.applied(b, args[10]).T
        exact = amd_cases.applied(a, args[8]) @ amd_cases.applied(b, args[10]).T
        np.testing.assert_allclose(exact, case.expected, rtol=1e-12)
    assert selftest_steps._compared(case, case.expected.astype(np.float32))["right"]
    assert not selftest_steps._compared(case, off)["right"]


def test_torch_takes_turns(fake, monkeypatch):
    streams = []

    class External:
        def __init__(self, handle, device):
            streams.append(handle)
            self.synchronize = lambda: fake.run(handle)

    nothing = lambda _: contextlib.nullcontext()  # noqa: E731
    cuda = types.SimpleNamespace(ExternalStream=External, device=nothing, stream=nothing)
    torch = types.SimpleNamespace(cuda=cuda, version=types.SimpleNamespace(hip="7.2"), device=lambda *where: where)

    def case(*args):
        def peer(torch):
            def call():
                fake.queue(streams[-1]).append(lambda: setattr(fake, "clock", fake.clock + 3.0))
                return np.empty(0, np.float16)

            return call

        return replace(amd_cases.axpy(*args), peer=peer)

    monkeypatch.setitem(sys.modules, "torch", torch)
    (found,) = examined(monkeypatch, replace(CDNA3, case=case))
    assert found["time"]["torch_over_ours"] == pytest.approx(3.0)
    assert found["time"]["torch_result"] == "float16"
    assert "3.00 x torch" in selftest.line(found)
    torch.version.hip = None
    torch.__version__ = "2.13"
    (found,) = examined(monkeypatch, replace(CDNA3, case=case))
    assert found["time"]["torch"] == "RuntimeError: torch 2.13 is not a build for ROCm"


def broken(wrong):
    """axpy with a mistake."""

    def emit(target, shape):
        k = Kernel(f"broken_{wrong}", threads=256, warp=64, n=i64, alpha=f32, x=ptr(f32), y=ptr(f32))
        n, alpha, x, y = k.args
        with each(k, n) as i:
            y[i] = alpha * x[i] + y[i] if wrong != "value" else alpha * x[i]
            if wrong == "input":
                x[i] = 0.0
            if wrong == "behind":
                with k.when(i < 1):
                    y[n] = 1.0
        return Launch(amd.AmdCode(k.function, target), (-(-shape[0] // 256), 1, 1))

    return replace(CDNA3, launch=emit, small=((1000,),), large=(100,))


def test_wrong_results_are_found(fake, monkeypatch):
    (found,) = examined(monkeypatch, broken("value"))
    assert found["right"] is False
    wrong = found["cases"][1]["wrong"]
    assert wrong["of"] == 1000
    assert 900 < wrong["elements"] <= 1000
    assert wrong["got"] != wrong["expected"]
    assert "WRONG in 4 of 4 cases" in selftest.line(found)


def test_what_a_kernel_must_not_touch(fake, monkeypatch):
    inputs, behind = examined(monkeypatch, broken("input"), broken("behind"))
    assert [case["changed"] for case in inputs["cases"]] == [["x"]] * 4
    assert [case["outside"] for case in behind["cases"]] == [["y"]] * 4
    assert not inputs["right"]
    assert not behind["right"]
    scratch = replace(broken("input"), case=lambda *args: replace(amd_cases.axpy(*args), scratch=(2,)))
    (found,) = examined(monkeypatch, scratch)
    assert found["right"]


def test_a_nan_is_wrong():
    launch = CDNA3.launch(tw.target("gfx942"), (2,))
    case = amd_cases.axpy(launch, (2,), "random", np.random.default_rng(0))
    found = selftest_steps._compared(case, np.array([np.nan, case.expected[1]]))
    assert (found["right"], found["worst"], found["wrong"]["got"]) == (False, None, "nan")


def test_an_exception_is_a_record(fake, monkeypatch):
    fake.fail["hipModuleLaunchKernel"] = 719
    found, other = examined(monkeypatch, CDNA3, CDNA4)
    assert found["failed"].startswith("HipError: hipErrorLaunchFailure (719)")
    assert "examine" in found["traceback"]
    assert found["right"] is False
    assert other["right"]
    assert "FAILED: HipError" in selftest.line(found)


# ---- the process that starts others


def reported(monkeypatch, start):
    seen = []
    begin = "import json, os, pickle, sys, time\nnumbers, timed = pickle.load(sys.stdin.buffer)\n"
    monkeypatch.setattr("tilewright.lab.measure.process.START", begin + start)
    monkeypatch.setattr(selftest, "Child", Impatient)
    found = selftest.report(seen.append, patience=60.0)
    assert seen == found["kernels"]
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
    say("found", kernel=number, found={"name": "fine", "right": True})
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
    monkeypatch.setattr(selftest_steps, "KERNELS", (CDNA4,))

    def events(numbers, patience, timed):
        said = []
        selftest_steps.run(numbers, lambda event, **details: said.append({"event": event, **details}), timed)
        return said

    monkeypatch.setattr(selftest, "_events", events)
    path = tmp_path / "out.json"
    done = CliRunner().invoke(app, ["doctor", "--selftest", "-o", str(path)])
    assert done.exit_code == 0, done.output
    assert "No AMD GPU: none here." in done.output
    assert "simulated, not run on hardware: 4 cases right" in done.output
    assert "1 of 1 kernel right; 0 ran on hardware, 1 did not." in done.output
    found = json.loads(path.read_text())
    assert found["kernels"][0]["target"] == "gfx950"
    assert "tilewright" in found["versions"]
    monkeypatch.setattr(selftest_steps, "examine", lambda kernel, on: selftest_steps.failed(kernel, "it broke"))
    done = CliRunner().invoke(app, ["doctor", "--selftest", "-o", str(path)])
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
            yield {"event": "found", "kernel": number, "found": selftest_steps.failed(CDNA4, "it broke")}

    monkeypatch.setattr(selftest, "_events", events)
    return asked


def doctored(*words):
    return CliRunner().invoke(app, ["doctor", "--selftest", *map(str, words)])


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
    assert "kernel 1 of 3, axpy_f32 gfx942: 0:00 so far, 0:03 left" in done.stderr
    assert "kernel 3 of 3, axpy_f32 gfx942: " in done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["missing"] == []
    progress = selftest.Progress(10, 4, "x")
    progress.began -= 80.0
    assert progress.left == pytest.approx(120, rel=0.01)


def test_options_mean_something_with_the_selftest_or_are_refused(canned, tmp_path):
    path = tmp_path / "out.json"
    assert doctored("--no-measure", "-o", path).exit_code == 1
    assert canned[-1][1] is False
    printed = doctored("--json", "-o", path)
    assert json.loads(printed.stdout) == json.loads(path.read_text())
    assert "FAILED: it broke" in printed.stderr
    assert "named by --output" in doctored("--json", tmp_path / "other.json", "-o", path).stderr
    for words, why in ((("-o", path), "the selftest's file"), (("--quick", "--no-measure"), "not both")):
        done = CliRunner().invoke(app, ["doctor", *map(str, words)])
        assert (done.exit_code, why in done.stderr) == (2, True)


def test_quick_is_a_part_of_every_kind():
    chosen = [amd_kernels.KERNELS[number] for number in selftest.quick()]
    assert 20 < len(chosen) < len(amd_kernels.KERNELS) / 2
    every = {(k.target, k.name) for k in chosen}
    own = ("amd_ladder", "axpy", "reciprocal")
    assert {(k.target, k.name) for k in amd_kernels.KERNELS if k.name.startswith(own)} <= every
    for target, rates in RATES.items():
        formats = {k.formats[0] for k in chosen if k.target == target}
        assert set(rates) - {"xf32"} <= formats


def test_nothing_is_timed_if_nothing_is_to_be(fake, monkeypatch):
    monkeypatch.setattr(selftest_steps, "KERNELS", (CDNA3,))
    said = []
    selftest_steps.run([0], lambda event, **details: said.append(details), timed=False)
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
    assert list(selftest.heading(found)) == [f"AMD Instinct MI300X (gfx942): {said}"]
    assert f"gfx942, {said}" in "\n".join(doctor._amd_lines(found))
    fake.arch = "gfx1100"
    module.device.found.clear()
    (gpu,) = doctor.amd()["devices"]
    assert "tilewright has kernels for" in gpu["why_not"]
    fake.devices = 0
    assert "emitted and simulated only: hipErrorNoDevice" in "\n".join(doctor._amd_lines(doctor.amd()))


# ---- torch's side, on torch without a GPU


@pytest.fixture
def torch(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    return torch


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64", "int8"])
def test_the_product_of_torch(torch, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((32, 64), (64, 48)))
    got = selftest_peer.product(a, b)(torch)().to(torch.float64).numpy()
    np.testing.assert_array_equal(got, a.astype(float) @ b.astype(float))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
                                  "float8_e8m0fnu"])
def test_formats_of_8_bits_as_torch_has_them(torch, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name)).reshape(16, 16)
    got = selftest_peer.tensor(torch, codes.T).to(torch.float64).numpy()
    np.testing.assert_array_equal(got, codes.T.astype(float))


def test_fp4_is_packed_for_torch(torch):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes = np.arange(16, dtype=np.uint8).reshape(2, 8)
    got = selftest_peer.tensor(torch, codes.view(ml_dtypes.float4_e2m1fn))
    assert got.view(torch.uint8).tolist() == [[0x10, 0x32, 0x54, 0x76], [0x98, 0xBA, 0xDC, 0xFE]]
