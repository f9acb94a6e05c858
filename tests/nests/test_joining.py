"""Loops that follow each other become one, the second as far behind as it needs what the first one leaves."""
from __future__ import annotations

import pytest

from tests.nests.test_operations import exact, integers
from tilewright.nests.schedules.schedule import schedule
from tilewright.nests.schedules.scheduled import Illegal


def sweeps(A, B):
    for _ in range(3):
        for i in range(1, A.shape[0] - 1):
            for j in range(1, A.shape[1] - 1):
                B[i, j] = A[i, j] + A[i - 1, j] - A[i + 1, j] + A[i, j + 1]
        for i in range(1, A.shape[0] - 1):
            for j in range(1, A.shape[1] - 1):
                A[i, j] = B[i, j] - B[i - 1, j] + B[i + 1, j] + B[i, j - 1]


def ahead(A, B, C):
    for i in range(10):
        B[i + 4] = A[i] * 2
    for i in range(10):
        C[i] = B[i] + B[i + 2]


def backwards(A, B):
    for i in range(10):
        B[9 - i] = A[i]
    for i in range(10):
        A[i] = B[i] * 2


def apart(A, B, C):
    for i in range(6):
        A[i] = B[i] * 2
    for i in range(6):
        C[i] = A[i + 6]


@pytest.mark.parametrize("behind", [None, 1, 2, 5])
def test_sweeps(behind):
    s = schedule(sweeps, integers(11, 7), integers(11, 7))
    joined = s.join("i", "i.2", behind=behind)
    assert f"join i and i.2, {behind or 1} rounds behind" in joined.history[-1]
    exact(s, joined)
    joined.check()


def test_tiles_of_rows():
    s = schedule(sweeps, integers(14, 7), integers(14, 7))
    joined = s.split("i", 4, "io", "ii").split("i.2", 4, "ko", "ki").join("io", "ko")
    assert [x.index for x in joined.now.loops] == [
        "_", "io.begin", "ii.begin", "j.begin", "io", "ii", "j", "ki", "j.2", "ko.end", "ki.end", "j.2.end"]
    exact(s, joined)
    joined.check()


def test_no_round_is_behind_where_none_is_needed():
    s = schedule(ahead, integers(20), integers(20), integers(20))
    exact(s, s.join("i", "i.2"))
    assert len(s.join("i", "i.2").now.nodes) == 1
    s = schedule(apart, integers(12), integers(12), integers(12))
    exact(s, s.join("i", "i.2"))


def test_what_cannot_be_joined():
    s = schedule(backwards, integers(10), integers(10))
    exact(s, s.join("i", "i.2"))            # 9 rounds behind: one is left together
    with pytest.raises(Illegal, match="needs what i does up to 9 rounds later"):
        s.join("i", "i.2", behind=8)
    s = schedule(sweeps, integers(11, 7), integers(11, 7))
    with pytest.raises(Illegal, match="needs what i does up to 1 rounds later"):
        s.join("i", "i.2", behind=0)
    with pytest.raises(Illegal, match=r"j does not follow i\.2 directly"):
        s.join("i.2", "j")
    with pytest.raises(Illegal, match="joined loops have equally many"):
        s.split("i", 3, "io", "ii").join("io", "i.2")
