"""The examples run, and what they show is so."""

from __future__ import annotations

import importlib
import runpy
from pathlib import Path

import numpy as np
import pytest

from tilewright import mpi
from tilewright.ir import bf16

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_all_are_tested_and_listed():
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {"integers.py", "quantized_layer.py", "own_kernel.py", "own_arithmetic.py", "nearest_neighbours.py",
                     "shortest_paths.py", "larger_than_memory.py", "transformer_block.py", "own_loops.py",
                     "mpi_product.py", "linear_attention.py", "xlstm.py"}
    assert all(f"({name})" in (EXAMPLES / "README.md").read_text() for name in names)


def test_integers(capsys):
    runpy.run_path(str(EXAMPLES / "integers.py"))["main"](96)
    assert "int32 96x96x96: exact" in capsys.readouterr().out


def test_quantized_layer():
    errors = runpy.run_path(str(EXAMPLES / "quantized_layer.py"))["main"]()
    assert errors["f32"] < 1e-6 < errors["i8"] < 0.01 < errors["mxfp4"] < 0.2


def test_transformer_block():
    """Errors of formats beside float64; of f32 no more than NumPy's and an order of sums."""
    errors = runpy.run_path(str(EXAMPLES / "transformer_block.py"))["main"](128, 352, 4, 20, 1)
    assert errors["f32"] < 4 * errors["numpy f32"] < 1e-5
    assert errors["f32"] < errors["bf16"] < 0.01
    assert errors["f32"] < errors["int8"] < 0.02 < errors["mxfp4"] < 0.3


def test_own_kernel(capsys):
    runpy.run_path(str(EXAMPLES / "own_kernel.py"))["main"]()
    assert "shared memory" not in capsys.readouterr().out


def test_linear_attention():
    """Beside the recurrence in float64, with a last chunk that is not full; on tensor cores, in the simulator."""
    example = runpy.run_path(str(EXAMPLES / "linear_attention.py"))
    assert example["main"](2, 75, 32, 48 + 16) < 2e-6
    for target in "sm_90a", "gfx942":
        error, report = example["simulated"](target, bf16, tokens=20, size=16, values=16)
        assert error < 0.02
        assert report.instructions["mma"]


def test_xlstm():
    """As linear attention; gates that are large both ways leave no inf."""
    example = runpy.run_path(str(EXAMPLES / "xlstm.py"))
    assert max(example["main"](2, 75, 32, 3)) < 2e-5
    q, k, v, i, f = example["mlstm_numbers"](1, 40, 32, 32)
    given = q, k, v, i * 30, f * 20 - 60
    exact = example["mlstm_recurrence"](*given)
    np.testing.assert_allclose(example["mlstm"](*given), exact, atol=1e-4 * np.abs(exact).max())
    for name, target in ("mlstm", "sm_90a"), ("mlstm", "gfx942"), ("slstm", "sm_90a"), ("slstm", "gfx942"):
        error, report = example["simulated"](name, target, bf16, tokens=20, size=16)
        assert error < 0.02
        assert report.instructions["mma"]


def test_mpi_product(capsys):
    """On threads; tests/mpi starts processes."""
    mpi.run_threads(4, runpy.run_path(str(EXAMPLES / "mpi_product.py"))["main"])
    assert "right: True" in capsys.readouterr().out


def test_own_loops(capsys):
    """It compares what is optimized with the loops as they are written."""
    runpy.run_path(str(EXAMPLES / "own_loops.py"))["main"](48)
    assert "an epilogue" in capsys.readouterr().out


def test_products_with_their_own_arithmetic(capsys):
    """Each compares its results with NumPy's, or with another algorithm's."""
    runpy.run_path(str(EXAMPLES / "own_arithmetic.py"))["main"]()
    runpy.run_path(str(EXAMPLES / "nearest_neighbours.py"))["main"](1300, 40, 6)
    runpy.run_path(str(EXAMPLES / "shortest_paths.py"))["main"](60)
    assert capsys.readouterr().out.count("as by") == 2


def test_larger_than_memory(capsys):
    """Operands of twice the limit, in less than it."""
    pytest.importorskip("dask.array")
    assert runpy.run_path(str(EXAMPLES / "larger_than_memory.py"))["main"](1600, 200) < 1
    assert "20 MB of operands" in capsys.readouterr().out


def test_comparison_with_other_systems(monkeypatch, tmp_path):
    """tilewright's loops are right on small arrays; lines of all systems' scripts are counted, and tables written."""
    monkeypatch.syspath_prepend(EXAMPLES / "comparison")
    measure, ours = (importlib.import_module(name) for name in ("measure", "with_tilewright"))
    rng = np.random.default_rng(1)
    shapes = {"matmul": ((5, 7), (7, 6), (5, 6)), "distances": ((5, 7), (6, 7), (5, 6)),
              "convolution_nhwc": ((2, 7, 8, 3), (3, 3, 3, 4), (2, 5, 6, 4)),
              "mttkrp": ((4, 5, 6), (5, 3), (6, 3), (4, 3)),
              "convolution_nchw": ((2, 3, 7, 8), (4, 3, 3, 3), (2, 4, 5, 6))}
    for name, of in shapes.items():
        *arrays, out = (rng.integers(-3, 4, x).astype(np.float32) for x in of)
        ours.CASES[name](*arrays, out)
        np.testing.assert_allclose(out, measure.reference(name, arrays), rtol=1e-6)
    assert {*ours.CASES} == {case.function for case in measure.cases().values()} == {
        *shapes, "stencil", "stencil_in_blocks"}
    for shape in (40, 60), (3, 3), (270, 35):
        a, b = rng.standard_normal(shape, np.float32), np.empty(shape, np.float32)
        ours.stencil_in_blocks(a, b)
        np.testing.assert_allclose(b, measure.reference("stencil", [a]), atol=1e-6)
    lines = {name: measure.lines_of(name) for name in measure.SYSTEMS}
    assert all(count["matmul"] > 1 for count in lines.values())
    results = {"tilewright": {"rate": 100.0, "compile": 0.5}, "torch": {"rate": 80.0, "compile": 2.0},
               "exo": {"error": "x"}}
    report = {"systems": list(lines), "versions": {"numpy": "2"}, "processor": "zen4", "date": "today",
              "python": "3.11", "measured": {"1": {"matmul 512": results}}, "import": {}, "lines": lines}
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- comparison -->\nold\n<!-- /comparison -->\nb\n")
    measure.written(page, measure.tables(report))
    assert "| matmul 512 | 100.0 | - | fails | - | 80.0 | 1.25 |" in page.read_text()
    assert "old" not in page.read_text()
