"""The rows of the articles on NVIDIA's GPUs and on AMD's Matrix Cores."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.helpers.command_line import call
from tilewright.lab.bench.cases import Case
from tilewright.lab.bench.results import Report, Result, Row
from tilewright.lab.drawing.catalogue import FIGURES
from tilewright.lab.measure.measure import Sample
from tilewright.lab.reproduce import cdna, nvidia, nvidia_sweep, run
from tilewright.lab.reproduce.row import Setting, source
from tilewright.problem import Gemm

# What the sources have: counted in them, not here
ITEMS = {"nvidia": {"figure": 27, "listing": 25, "formula": 13, "number": 14},
         "cdna": {"figure": 10, "listing": 11, "table": 4, "formula": 8, "number": 5}}
# rows that take half a second and more: one of them is made in an ordinary run
DEAR = {"nvidia": ("alpha and beta", "loads of a thread", "switch of B", "tex1Dfetch", "rounds over k", "smem_a_ld",
                   "switching buffers", "passes of a request", "accumulators", "cp.async", "SGEMM", "cublasSgemm",
                   "transposed product", "elements per thread", "bytes of the buffers of A"),
        "cdna": ("kernel f32", "kernel f16", "kernel mxfp8", "g81.png", "syntax with scales")}
QUICK, SWEEP = Setting(quick=True), nvidia_sweep.sweep


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    SWEEP.cache_clear()
    yield
    SWEEP.cache_clear()


def made(name, items):
    found = run.reproduce(name, QUICK, items)
    assert [(done.row.item.name, done.why) for done in found.failed] == []
    return {done.row.item.name: done for done in found.rows}


@pytest.mark.parametrize("name", ITEMS)
def test_the_inventory(name):
    """Every item is there, and has a cell or a reason; what differs is said."""
    items = source(name).items
    assert Counter(item.kind for item in items) == ITEMS[name]
    assert all(item.left_out or item.differs for item in items)
    assert all(row.ours or row.item.left_out for row in run.rows_of(name))
    drawn = {key for key, figure in FIGURES.items() if figure.draw}
    others = {"nvidia": {x for x in nvidia.rows._made if x.endswith(".png")}, "cdna": set()}[name]
    for item in items:
        if item.kind == "figure" and not item.left_out and item.name not in others:
            assert f"{name}/{item.name.removesuffix('.png')}" in drawn


@pytest.mark.parametrize("name", ITEMS)
def test_rows_that_are_quick(name):
    drawn = [item.name for item in source(name).items if item.kind == "figure"]
    found = made(name, [row.item.name for row in run.rows_of(name) if row.item.name not in (*DEAR[name], *drawn)])
    assert all(done.cell or done.row.item.left_out for done in found.values())
    assert all(len(done.cell.short) <= 19 for done in found.values() if done.cell)
    if name == "cdna":
        assert found["MFMA instructions"].cell.short == "12 of 13 alike"    # all but f64 on CDNA3
        assert found["formats"].cell.short == "10 of 10 alike"
        assert found["peak of 32x32x8 FP16"].cell.short == "1307.4 TFLOP/s"
        assert "A 2,048 of 2,048, of B 2,048 of 2,048, of C 1,024 of 1,024" in found["kernel mxfp4"].cell.text
    else:
        assert found["replays"].cell.short == "371 at 4096"
        assert [row[1] for row in found["banks"].cell.table[1:]] == ["1", "2", "4", "8", "16", "1", "32", "1"]
        assert "ld.global" in found["global load in PTX"].cell.code


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "item"), [(name, item) for name in DEAR for item in DEAR[name]])
def test_a_dear_row(name, item):
    (done,) = made(name, [item]).values()
    assert done.cell.short


def test_the_command():
    said = call("reproduce", "cdna", "--only", "table")
    assert said.exit_code == 0
    assert "1307.4" in said.stdout


# ---- measured rows

def sample(name, tflops, n, watts, clock):
    return Row(name, Sample((2 * n**3 / tflops / 1e12,), 10), gpu={"watts": watts, "sm_mhz": clock})


@pytest.fixture
def swept(monkeypatch):
    report = replace(Report.start("gpu"), commit="0123456789ab")
    report.machine["gpu"] = {"name": "a GPU", "sms": 100}
    report.extra["clocks"] = "free (1400 to 1900 MHz under load, 1980 at most)"
    for n in (2048, 4096):
        rows = [sample("tilewright", 24.0, n, 600.0, 1500.0), sample("10 stored", 22.0, n, 672.0, 1250.0),
                sample("11 texture", 23.0, n, 600.0, 1500.0), sample("12 async 128", 11.0, n, 700.0, 1400.0),
                    sample("12 async", 25.0, n, 600.0, 1500.0),
                sample("cuBLAS", 20.0, n, 600.0, 1500.0)]
        report.results.append(Result(Case("sweep", Gemm(n, n, n)), 1, "sm_90a", tuple(rows)))
    monkeypatch.setattr(nvidia_sweep, "sweep", lambda quick: (report, "measured"))
    return report


def test_rates_watts_and_clocks_of_a_sweep(swept):
    cell = nvidia_sweep.free(("10 stored",), QUICK)
    assert cell.short == "1.100 x cuBLAS"
    assert "a GPU" in cell.text
    assert "free (1400 to 1900 MHz" in cell.text
    assert cell.table[0] == ("n", "10 stored, TFLOP/s", "cuBLAS, TFLOP/s", "10 stored, W", "cuBLAS, W",
                             "10 stored, MHz", "cuBLAS, MHz")
    assert cell.table[1] == ("2048", "22", "20", "672", "600", "1250", "1500")
    assert nvidia_sweep.faster_with_more_power(QUICK).short == "+10.0%, +12.0% W"
    copies = nvidia_sweep.copies(QUICK)
    assert copies.short == "0.50x, 1.14x"
    assert copies.table[1] == ("2048", "22", "11", "25", "672", "700", "600")


def test_rates_per_clock(swept):
    """22 TFLOP/s by 100 multiprocessors of 128 multiply-adds at 1250 MHz are 68.75 % of what they could start."""
    cell = nvidia_sweep.locked(("10 stored",), QUICK)
    assert cell.table[1][1] == "68.75"
    assert cell.short == "1.320 x cuBLAS"


def test_the_choice_among_kernels_has_the_rate_of_the_chosen(swept):
    assert [rate for _, rate in nvidia_sweep.points(swept, "13 dispatch", "")] == pytest.approx([23.0, 25.0])
    assert nvidia_sweep.locked(("13 dispatch",), QUICK).short == f"{(23 * 25) ** 0.5 / 20:.3f} x cuBLAS"


def test_a_gpu_that_is_here_is_measured(swept, monkeypatch):
    monkeypatch.undo()
    asked = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvidia_sweep.gpu_device, "why_not", lambda: "")
    monkeypatch.setattr(nvidia_sweep.session, "run", lambda kind, jobs, listen, **options: asked.extend(jobs) or swept)
    cell = nvidia_sweep.free(("10 stored",), QUICK)
    assert cell.how == "measured"
    assert [case.problem.n for case in asked[0].cases] == [2048, 4096]
    assert asked[0].steps == ["stored", "texture", "async128", "async"]


# ---- kernels

def test_what_a_wrong_step_does_to_a_row(monkeypatch):
    monkeypatch.setattr(nvidia.np, "array_equal", lambda *given: False)
    with pytest.raises(RuntimeError, match="gives a wrong product"):
        nvidia.simulated.__wrapped__("naive", (16, 16, 4))


def test_addresses_of_the_article_are_those_of_the_atoms():
    for step, found in cdna.AMD_STEPS.items():
        assert all(said.split(" of ")[0] == said.split(" of ")[1] for said in cdna.alike(step, found.atom("gfx950")))
