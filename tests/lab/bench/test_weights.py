"""`tilewright bench weights`: its contenders are checked against float64, and its table has a column for each."""
from __future__ import annotations

import numpy as np
import pytest

from tilewright.lab.bench import study
from tilewright.lab.bench.suites import weights


def test_contenders_are_right_and_in_the_table(monkeypatch):
    monkeypatch.setattr(study, "seconds", lambda sides, *_: dict.fromkeys(sides, (2.0, 1.0)))
    monkeypatch.setattr(weights, "CASES", weights.CASES[:2])
    for record in study.records(weights, [(name, 256) for name in weights.CASES]):
        formats = {*weights.FORMATS} - ({"mxfp4"} if "[k, n]" in record["case"] else set())
        assert {"bf16", "f32", "numpy f32", *formats} <= set(record["seconds"])
        head, (row,) = study.table(weights, [record])
        assert len(head) == len(row)
        assert row[4].startswith("1.00")
    monkeypatch.setattr(weights.tw, "matmul", lambda a, b, **_: np.zeros((1, 512), np.float32))
    with pytest.raises(RuntimeError, match=r"1 row, \[n, k\] of 256 by bf16: its result is wrong"):
        next(study.records(weights, [(name, 256) for name in weights.CASES]))
