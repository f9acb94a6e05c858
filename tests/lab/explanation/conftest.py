from __future__ import annotations

import pytest

from tilewright.plans.measured import store


@pytest.fixture(autouse=True)
def no_results(monkeypatch):
    """Nothing that the tuner has measured here."""
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", store.OFF)
