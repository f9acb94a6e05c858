"""The probes of GPUs do the work that they are timed for; what they reach is remembered, and predictions use it."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import tilewright as tw
from tests.doubles import fake_cuda
from tilewright import simulator
from tilewright.lab.measure import gpu_probe_kernels as emitted, gpu_probes, nvidia_probe_kernels as matrix
from tilewright.plans import gpu, gpu_lowering
from tilewright.runtime.gpu.engine import NVIDIA
from tilewright.targets import target

H200 = target("sm_90a")
MEASURED = gpu_probes.GpuMeasured(
    "sm_90a", H200.model, "13.0", "2026-11-23T00:00:00+00:00",
    {name: 0.5 * rate for name, rate in gpu_probes.data_sheet(H200).items()}, {"memory": 1.0e12, "l2": 5e12}, 4.5e-6)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_multiply_adds_are_done_and_counted(dtype):
    count, T = emitted.THREADS, np.dtype({"f32": "f4", "f64": "f8"}[dtype])
    x, y = np.ones(count + emitted.FACTORS, T), np.zeros(2 * count, T)
    report = simulator.run(emitted.emit_fma_probe(dtype), 3, x, y, grid=(2,))
    np.testing.assert_array_equal(y, 3.0 * emitted.CHAINS)
    added = 2 * count * (emitted.CHAINS - 1)                # of the sums in the end
    assert report.flops == 2.0 * 2 * count * emitted.CHAINS * 3 + added


def test_every_byte_is_read_as_often_as_it_counts():
    pieces, grid = 2, 2
    size = pieces * emitted.LOADS * emitted.THREADS * grid * 4
    x, y = np.random.default_rng(0).integers(0, 1 << 30, size, np.int32), np.zeros(grid * emitted.THREADS, np.int32)
    report = simulator.run(emitted.emit_read_probe(), 1, pieces, grid, x, y, grid=(grid,))
    each = x.reshape(pieces * emitted.LOADS, -1, 4)
    np.testing.assert_array_equal(y, np.bitwise_xor.reduce(each, 0).sum(1, dtype=np.int32))
    loaded = sum(t.bytes for (_, array, _, verb), t in report.traffic.items() if (array, verb) == ("x", "load"))
    assert loaded == x.nbytes


@pytest.mark.parametrize(("kind", "format"), [
    ("mma", "bf16"), ("mma", "f64"), ("mma", "i8"), ("wgmma", "bf16"), ("wgmma", "e4m3fn"), ("wgmma", "i8")])
def test_matrix_instructions_do_the_work_that_counts(kind, format):
    """All operands are ones, so that sums tell how many products were added up."""
    sums = {"i8": np.int32, "f64": np.float64}.get(format, np.float32)
    ones = np.ones(4 * matrix.WORDS // gpu_probes._bytes(format), tw.formats.get(format).dtype).view(np.int32)
    threads = matrix.WGMMA_THREADS
    if kind == "wgmma":
        function, work = matrix.emit_wgmma_probe(format), matrix.wgmma_operations(format)
    else:
        threads, function = matrix.MMA_THREADS, matrix.emit_mma_probe(format, matrix.largest(H200, format))
        work = matrix.mma_operations(H200, format)
    y = np.zeros(threads, sums)
    simulator.run(function, 2, ones, y, grid=(1,), target=H200)
    assert y.sum(dtype=np.float64) == 2 * work / 2


def test_predictions_follow_what_was_measured(monkeypatch, tmp_path):
    """Half of the rates of the data sheet are half of what the model's chip reaches: products take twice as long."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    for name, share in gpu_probes.REACHED.items():
        assert 0.2 < share <= 1.2, name
    before = gpu_probes.basis(H200)
    assert before.ceilings is None
    assert "data sheet" in before.source
    gpu_probes._path(H200).write_text(json.dumps(dataclasses.asdict(MEASURED)))
    gpu_probes._path(H200).chmod(0o600)
    after = gpu_probes.basis(H200)
    assert "2026-11-23" in after.source
    for formats in (("f32",), ("f64",), ("bf16", "bf16", "bf16")):
        shape = gpu_lowering.multiplied_shape(tw.Gemm(4096, 4096, 4096, *formats), H200)
        plan = gpu.choose(shape, H200)
        slower = after.cost(shape, plan, H200).seconds / before.cost(shape, plan, H200).seconds
        kind = {"f64": "mma f64", "bf16": "wgmma bf16"}.get(formats[0], "f32")
        assert slower == pytest.approx(2 * gpu_probes.REACHED[kind], rel=0.1), plan
    shape = gpu_lowering.multiplied_shape(tw.Gemm(1, 8192, 8192, "bf16", "bf16", "bf16"), H200)
    plan = gpu.choose(shape, H200)
    slower = after.cost(shape, plan, H200).seconds / before.cost(shape, plan, H200).seconds
    assert slower == pytest.approx(gpu_probes.REACHED["memory"] * H200.bandwidth / 1e12, rel=0.15)
    gpu_probes._path(H200).write_text("{}")
    assert gpu_probes.basis(H200).ceilings is None


def test_a_device_is_measured(monkeypatch):
    """By the fake driver, whose clock says how long a launch takes."""
    fake = fake_cuda.install(monkeypatch)
    fake.takes = lambda function: 50.0
    monkeypatch.setattr(gpu_probes.Probes, "prepared", lambda self, emitter, arguments, grid, *args: args)
    monkeypatch.setattr(gpu_probes.Probes, "seconds", lambda self, launch, count, before=None: 0.001 * count * (
        launch[0] if isinstance(launch[0], int) else 1))
    monkeypatch.setitem(gpu_probes.LEVELS, "memory", 1)
    on = NVIDIA.driver.device(0)
    found = gpu_probes.measure(on, NVIDIA)
    assert found.flops.keys() == gpu_probes.data_sheet(on.target).keys()
    assert found.launch == pytest.approx(0.001)
    assert found.flops["wgmma bf16"] == pytest.approx(on.target.sms * matrix.wgmma_operations("bf16") / 0.001)
