"""Processes that send JSON lines: what they leave when they are interrupted, or die before they read their job."""

from __future__ import annotations

import signal

import pytest

from tilewright.lab.measure.process import Child

START = "tilewright.lab.measure.process.START"


def test_an_exception_ends_the_process(monkeypatch):
    monkeypatch.setattr(START, "import time\nprint('{\"event\": \"here\"}', flush=True)\ntime.sleep(600)")

    def interrupted(child):
        assert next(child.events()) == {"event": "here"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Child("nothing", None) as child:
        interrupted(child)
    assert child.process.returncode == -signal.SIGTERM
    assert child.errors.closed


def test_a_process_that_never_reads_its_job(monkeypatch):
    monkeypatch.setattr(START, "raise SystemExit('not today')")
    with Child("nothing", b"more than a pipe holds" * 100_000) as child:
        assert list(child.events(60.0)) == []
        assert child.why(60.0) == "not today"


def test_how_long_is_waited(monkeypatch):
    monkeypatch.setattr(START, "import time\ntime.sleep(600)")
    with Child("nothing", None) as child, pytest.raises(TimeoutError, match="it sent no result for 0 s"):
        list(child.events(0.01))
    with Child("nothing", None) as child, pytest.raises(TimeoutError, match="the time limit was reached"):
        list(child.events(60.0, latest=0.0))
