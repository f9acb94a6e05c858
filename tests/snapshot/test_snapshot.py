"""A few lines of the snapshot, and the Python calls of its walks, in processes of their own: see tests/snapshot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("words", "meaning"), [
    (["sample"], "plans, code or launches differ from tests/snapshot/lines: if that is meant, say which and why in the "
                 "commit, and write them anew by `python -m tests.snapshot --write`"),
    (["calls", "sample"], "a call enters more of the package's functions than tests/snapshot/calls.json allows; where "
                          "it enters fewer, `python -m tests.snapshot calls --write` takes the new counts"),
], ids=["lines", "calls"])
def test_nothing_was_lost(words, meaning):
    found = subprocess.run([sys.executable, "-m", "tests.snapshot", *words], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, f"{meaning}\n{found.stdout}{found.stderr}"
