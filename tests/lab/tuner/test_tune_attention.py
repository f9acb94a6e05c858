"""Plans of attention are measured by the tuner's process, and what it stores is used by calls and explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.lab.tuner import child
from tilewright.lab.tuner.contenders import REFERENCE, Job
from tilewright.lab.tuner.running import provenance
from tilewright.lab.tuner.space import space_of
from tilewright.plans.measured import choice, store
from tilewright.plans.measured.row import Row
from tilewright.runtime.cpu import engine

PROBLEM = tw.Attention.parse("1x2x20x16 f32 keys=90 causal")


def test_the_process_times_the_plans() -> None:
    """Contenders are called, compared with float64, and take turns; a plan that cannot run is left out."""
    there = space_of(PROBLEM, tw.detect(), 1)
    plans = (str(there.model), "attention_strips 7x7 strips=1", *(str(plan) for plan in there.promising(3)))
    events: list[dict[str, Any]] = []

    def emit(event: str, **more: Any) -> None:
        events.append({"event": event, **more})
    child.run(Job(PROBLEM, tw.detect(), 1, tuple(dict.fromkeys(plans)), 0.5), emit)
    out = {each["name"]: each["reason"] for each in events if each["event"] == "out"}
    assert "queries is 7" in out["attention_strips 7x7 strips=1"]
    assert not any("wrong" in reason for reason in out.values())
    assert {each["name"] for each in events if each["event"] == "turn"} >= {REFERENCE, plans[0]}


def test_a_stored_plan_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", str(tmp_path / "tuning.jsonl"))
    there = space_of(PROBLEM, tw.detect(), 1)
    plan = next(each for each in there.ranked() if each != there.model)
    t = there.target
    row = Row(t.name, choice.chip(t), t.l1d, t.l2, t.l3, *there.shape.key, str(plan), "best", *[1e-3]*3, *[1.5]*3, 9,
              **provenance())
    assert Row.from_json(row.to_json()) == row
    assert row.gflops == pytest.approx(2 * 20 * 90 * 32 * 2 / 1e-3 / 1e9)
    store.save([row])
    engine.forget()
    assert tw.plan(PROBLEM, threads=1) == plan
    assert "measured to be the fastest" in tw.explain(PROBLEM, threads=1).origin
    q, k, v = (np.ones((1, 2, n, 16), np.float32) for n in (20, 90, 90))
    np.testing.assert_allclose(tw.attention(q, k, v, causal=True, threads=1), 1, atol=1e-6)
