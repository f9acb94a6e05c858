from __future__ import annotations

import pytest

from tests.helpers.gpus import machine


@pytest.fixture
def on(monkeypatch):
    """A Hopper on its fake driver."""
    return machine(monkeypatch, "sm_90a")
