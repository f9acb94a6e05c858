"""The GPU ladder on tensor cores: exact products of every shape in the simulator, bytes, banks, registers, and what the
simulator finds where a step forgets to wait."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.helpers.assembled import assembled
from tests.helpers.command_line import call, refused
from tilewright import simulator, targets
from tilewright.formats import get
from tilewright.ir import Kernel
from tilewright.ir.ops.pipelines import Mbarriers
from tilewright.lab.bench import results
from tilewright.lab.bench.cases import Case
from tilewright.lab.bench.suites import ladders
from tilewright.lab.ladder import gpu_tensor
from tilewright.lab.ladder.steps import TENSOR_STEPS
from tilewright.lab.measure import measure
from tilewright.problem import Gemm

pytestmark = pytest.mark.sampled

BF16 = get("bf16").dtype
SMS = 2  # of the simulated device, so that CTAs which stay take several tiles of C


def integers(rows, columns, gap, seed):
    """[rows, columns] small whole numbers; the elements between two rows are NaN."""
    whole = np.full((rows, columns + gap), np.nan, BF16)
    whole[:, :columns] = np.random.default_rng(seed).integers(-2, 3, (rows, columns))
    return whole[:, :columns]


def run(name, m, n, k, alpha=1.0, beta=0.0, gap=0, function=None):
    """Simulate a step; C must come out exact, and untouched between its rows. The report."""
    step = TENSOR_STEPS[name]
    a, b, c = integers(m, k, gap, 0), integers(n, k, gap, 1), integers(m, n, gap, 2)
    wanted = alpha * (a.astype("d") @ b.T.astype("d")) + (beta * c.astype("d") if beta else 0)
    if not beta:
        c[:] = np.nan
    lda, ldb, ldc = (x.strides[0] // x.itemsize for x in (a, b, c))
    report = simulator.run(function or step.emit(), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc,
                           grid=step.grid(m, n, SMS))
    np.testing.assert_array_equal(c.astype("f4"), wanted.astype(BF16).astype("f4"), f"{name} {m} x {n} x {k}")
    if gap:
        assert np.isnan(c.base[:, n:].astype("f4")).all()
    return report


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TENSOR_STEPS)
def test_every_shape_is_exact(name):
    """Less than one stage of k; then edges in all directions, more of k than the ring has stages, rows apart."""
    function = TENSOR_STEPS[name].emit()
    run(name, 1, 2, 8, function=function)
    run(name, 130, 138, 264, alpha=-2.0, beta=3.0, gap=8, function=function)


@cache
def square(name):
    return run(name, 256, 256, 128)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TENSOR_STEPS)
def test_what_a_step_moves(name):
    """Loads by the tile of C, in whole sectors, and not one pass over the banks too many."""
    report = square(name)
    loads = report.of(space="global", verb="load")
    assert loads.bytes == 2 * TENSOR_STEPS[name].moves(256, 256, 128)[0]
    assert loads.efficiency == 1
    assert report.of(space="shared").conflicts == 0


def test_what_each_idea_saves():
    """Instructions that read operands, copies, bytes from L2."""
    kinds = {name: square(name).instructions for name in TENSOR_STEPS}
    assert kinds["mma"]["load shared"] == 4 * kinds["ldmatrix"]["ldmatrix"]
    assert kinds["ldmatrix"]["mma"] == kinds["ring"]["mma"] == 16 * kinds["wgmma"]["wgmma"]
    assert kinds["ring"]["load"] == kinds["wgmma"]["ldmatrix"] == kinds["tma"]["cp.async"] == 0
    assert kinds["tma"]["TMA"] == 2 * 4 * 2  # of A and B, for four tiles of C, two of k
    loads = {name: square(name).of(space="global", verb="load").moved for name in ("tma", "roles", "multicast")}
    assert loads["tma"] * 3 == loads["roles"] * 4 == loads["multicast"] * 6


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TENSOR_STEPS)
def test_no_step_spills(name):
    """Nor are there waits that the assembler adds to products (C7510 and others)."""
    said = assembled(TENSOR_STEPS[name].emit(), TENSOR_STEPS[name].targets[0])[1]
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
    assert "warning" not in said
    assert "C75" not in said


# ---- what is left out is found

MISTAKES = {
    ("ldmatrix", "barrier"): r"race|uninitialised",
    ("ring", "cp_async_wait"): "race",
    ("wgmma", "fence_async"): "async proxy",
    ("wgmma", "wgmma_wait"): r"flight|race",
    ("tma", "barrier"): "race",
}


@pytest.mark.parametrize(("name", "method"), MISTAKES)
def test_a_wait_left_out_is_found(name, method, monkeypatch):
    monkeypatch.setattr(Kernel, method, lambda *args, **more: None)
    with pytest.raises(simulator.Fault, match=MISTAKES[name, method]):
        run(name, 128, 128, 384)


@pytest.mark.parametrize("name", ["tma", "roles", "pingpong"])
def test_bytes_not_waited_for_are_found(name, monkeypatch):
    wait = Mbarriers.wait
    monkeypatch.setattr(Mbarriers, "wait",
                        lambda self, *args, **more: None if self.name == "full" else wait(self, *args, **more))
    with pytest.raises(simulator.Fault, match=r"race|uninitialised"):
        run(name, 128, 128, 384)


def test_a_stage_given_back_to_one_cta_alone_is_found(monkeypatch):
    arrive = Mbarriers.arrive
    monkeypatch.setattr(Mbarriers, "arrive", lambda self, *args, everywhere=False, **more: arrive(self, *args, **more))
    with pytest.raises(simulator.Fault, match="race"):
        run("multicast", 256, 128, 512)


# ---- the command line, and launches


def test_steps_on_the_command_line():
    done = call("simulate", 64, 256, 128, "-t", "sm_90a", "--step", "multicast")
    assert "gemm_bf16_nt_64x256x128 on sm_90a" in done.output
    assert "the product is exact" in done.output
    assert "wgmma.mma_async" in call("emit", "-t", "sm_90a", "--step", "wgmma").output
    assert "is for --dtype bf16-bf16-bf16 --layout nt" in refused("simulate", 8, 8, 8, "-t", "sm_90a", "--step", "mma",
                                                                 "-d", "f32")
    assert "sm_80 lacks the instruction of step 18 tma" in refused("emit", "-t", "sm_80", "--step", "tma")
    said = refused("simulate", 8, 8, 7, "-t", "sm_80", "--step", "ring")
    assert "step 16 ring: A and B move in pieces of 16 bytes" in said
    assert "k = 7" in said


def test_what_is_refused():
    fits = {"m": 1, "n": 2, "k": 8, "a": 16, "lda": 8, "b": 0, "ldb": 16, "c": 4, "ldc": 2}
    assert gpu_tensor.refused(**fits) == ""
    for change in ({"m": 0}, {"n": 3}, {"k": 12}, {"lda": 12}, {"ldb": 4}, {"a": 8}, {"b": 2}, {"c": 2}, {"ldc": 3}):
        assert " m = " in gpu_tensor.refused(**{**fits, **change}), change


def test_targets_and_grids():
    assert TENSOR_STEPS["mma"].targets == ("sm_80", "sm_86", "sm_89", "sm_90a")
    assert TENSOR_STEPS["roles"].targets == ("sm_90a",)
    sms = targets.target("sm_90a").sms
    assert TENSOR_STEPS["multicast"].grid(129, 257, sms) == (2, 2)
    assert TENSOR_STEPS["multicast"].grid(257, 256, sms) == (1, 4)
    assert TENSOR_STEPS["pingpong"].grid(4096, 4096, sms) == (132, 1)
    assert TENSOR_STEPS["pingpong"].grid(64, 256, sms) == (2, 1)


# ---- measured


def test_gains_and_shares():
    """Of made-up seconds: rates, shares of cuBLAS's, gains over the step before, shares of the instruction's rate."""
    measured = []
    for n, seconds in ((1000, (1e-5, 4e-5, 2e-5)), (2000, (8e-5, 32e-5, 10e-5))):
        rows = tuple(results.Row(title, measure.Sample((s,), 1))
                     for title, s in zip((results.CUBLAS, "16 ring", "17 wgmma"), seconds))
        measured.append(results.Result(Case("ladder", Gemm(n, n, n, "bf16", "bf16", "bf16", "nt")), 1, "sm_90a", rows))
    assert ladders.table(measured) == [
        ["TFLOP/s at m = n = k =", "1000", "2000", "expected gain", "measured", "of the instruction's rate"],
        ["cuBLAS", "200.0", "200.0", "", "", ""],
        ["16 ring", "50.0 (0.250)", "50.0 (0.250)", "2.00", "", "8%"],
        ["17 wgmma", "100.0 (0.500)", "160.0 (0.800)", "1.15", "2.00, 3.20", "19%"]]


def test_formats_of_the_ladder_on_a_device():
    assert "the steps of the GPU ladder multiply f32 or bf16, not f64" in refused("bench", "ladder", "--device", "cuda",
                                                                                 "--dtype", "f64")
