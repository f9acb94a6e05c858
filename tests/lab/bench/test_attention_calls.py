"""`tilewright bench attention`: the same shapes for the same seed, wrong rows are noticed, and means of the ratios."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tilewright.attention_problem import Attention
from tilewright.lab.bench import study
from tilewright.lab.bench.suites import attention_calls as suite
from tilewright.lab.cli import app


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_shapes(device: str) -> None:
    drawn = suite.problems(7, 30, ["bf16"], device)
    assert drawn == suite.problems(7, 30, ["bf16"], device) != suite.problems(8, 30, ["bf16"], device)
    assert all(Attention.parse(str(x)) == x and x.keys >= x.queries for x in drawn)
    assert {x.band for x in drawn} == {"", "causal"}
    assert len(suite.problems(None, 0, ["bf16"], device)) == (14 if device == "gpu" else 4)


@pytest.mark.parametrize("text", ["1x4x33x64 f32 kv_heads=2 causal upper", *(
    f"1x4x1x64 bf16-{kind}-bf16 keys=40 kv_heads=2" for kind in ("e4m3fn", "i8"))])
def test_rows_are_compared(text: str) -> None:
    torch = pytest.importorskip("torch")
    case = suite.make(f"{text} factors" if "i8" in text else text, 1, 1)
    for side, ((call, tensors),) in case.sides.items():
        result = call(*tensors)
        assert case.wrong(side, result) == ""
        assert "from float64's" in case.wrong(side, torch.roll(result, 1, -1))
    assert set(case.sides) == {study.OURS, "torch"}


def test_means() -> None:
    rows = [{"case": "1x1x9x64 f32", "threads": 1, "seconds": {study.OURS: [1.0, 1.0], "torch": [x, x]}}
            for x in (1.0, 4.0)]
    assert suite.means(rows) == ["f32, 1 threads, beside torch: geometric mean 2.00, least 1.00 of 2"]


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(study, "seconds", lambda sides, *how: {side: [1e-3, 1e-3] for side in sides})
    printed = CliRunner().invoke(app, "bench attention --format f32 --seed 3 --count 1 --quick --threads 1".split())
    assert printed.exit_code == 0, printed.output
    assert "beside torch: geometric mean 1.00, least 1.00 of 1" in printed.output
