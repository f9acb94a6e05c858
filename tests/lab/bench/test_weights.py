"""`tilewright bench weights`: its contenders are checked against float64, and its table has a column for each."""
from __future__ import annotations

import numpy as np
import pytest

from tilewright.lab.bench.suites import weights


def test_contenders_are_right_and_in_the_table(monkeypatch):
    calls = weights._calls("1 row, [n, k]", 256)
    assert {"bf16", "f32", "numpy f32", *weights.FORMATS} <= set(calls)
    record = {"case": "1 row, [n, k]", "n": 256, "threads": 1, "seconds": {name: [2.0, 1.0] for name in calls}}
    head, (row,) = weights.table([record])
    assert len(head) == len(row)
    assert row[4].startswith("1.00")
    monkeypatch.setattr(weights.tw, "matmul", lambda a, b, **_: np.zeros((1, 512), np.float32))
    with pytest.raises(RuntimeError, match="wrong results with bf16"):
        weights._calls("1 row, [n, k]", 256)
