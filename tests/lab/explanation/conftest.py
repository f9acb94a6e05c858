from __future__ import annotations

import pytest

from tests.helpers.ceilings import FAST
from tilewright.lab.measure import probes
from tilewright.plans.measured import store


@pytest.fixture(autouse=True)
def no_results(monkeypatch):
    """Nothing that the tuner has measured here, and ceilings that cost nothing."""
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", store.OFF)
    monkeypatch.setattr(probes, "ceilings", lambda at=None, **options: FAST)
    monkeypatch.setattr(probes, "remembered", lambda: FAST)
