from __future__ import annotations

import pytest

from tests.doubles import uncompiled
from tests.helpers.gpus import machine


@pytest.fixture(autouse=True)
def code(request, monkeypatch):
    """Of tests marked as code kernels are compiled; the fake drivers simulate what was recorded in any case."""
    if not request.node.get_closest_marker("code"):
        uncompiled.install(monkeypatch)


@pytest.fixture
def on(monkeypatch):
    """A Hopper on its fake driver."""
    return machine(monkeypatch, "sm_90a")
