"""The examples run, and what they show is so."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_all_are_tested_and_listed():
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {"integers.py", "quantized_layer.py", "own_kernel.py", "own_arithmetic.py", "nearest_neighbours.py",
                     "shortest_paths.py", "transformer_block.py", "own_loops.py"}
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
