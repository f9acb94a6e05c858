"""Sums in several parts are the sums."""
from __future__ import annotations

import numpy as np
import pytest

from tests.nests.test_operations import dots, exact, integers, three
from tilewright.nests.schedules.schedule import schedule
from tilewright.nests.schedules.scheduled import Illegal


def largest(A, r):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            r[i] = max(r[i], A[i, j])


def test_a_scalar_s_sum_in_parts():
    s = schedule(dots, integers(6, 16), integers(16), integers(6))
    parts = s.split("j", 4, "jo", "ji").partial("s", "jo", ("ji",))
    exact(s, parts, parts.vectorize("ji", "s.ji"))
    assert parts.history[-1] == "partial s around jo as s_sum, 4 parts of each: sums are added up in another order"
    parts.vectorize("ji", "s.ji").check()


@pytest.mark.parametrize("f", [three, largest])
def test_rows_of_parts(f):
    arrays = [integers(6, 8), integers(8, 4), integers(6, 4)] if f is three else [integers(6, 8), integers(6)]
    s = schedule(f, *arrays)
    inner, target = ("p", "C") if f is three else ("j", "r")
    if f is three:
        s = s.reorder("j", "i", "p")
    s = s.split("i", 3, "io", "ii").split(inner, 4, "so", "si").reorder("so", "ii", "si")
    parts = s.partial(target, "so", ("ii", "si")).unroll("ii")
    exact(s, parts)
    parts.check()


def test_the_least_and_the_greatest_begin_with_what_changes_nothing():
    for element in (np.float32, np.int32, np.int8):
        a, r = np.arange(-12, 0).reshape(2, 6).astype(element), np.full(2, -100, element)
        parts = schedule(largest, a, r).split("j", 3, "jo", "ji").partial("r", "jo", ("ji",))
        parts(a, r)
        assert r.tolist() == [-7, -1]


def test_what_has_no_parts():
    s = schedule(dots, integers(6, 16), integers(16), integers(6)).split("j", 4, "jo", "ji")
    with pytest.raises(Illegal, match="i does more with s than to add to it in one statement"):
        s.partial("s", "i", ("ji",))
    with pytest.raises(Illegal, match="axes are loops in jo"):
        s.partial("s", "jo", ("i",))
    with pytest.raises(Illegal, match="B is not used in jo"):
        s.partial("B", "jo", ("ji",))
    with pytest.raises(Illegal, match="does more with A than"):
        s.partial("A", "jo", ("ji",))
    halves = [integers(8, 8).astype(np.float16) for _ in "ABC"]
    with pytest.raises(Illegal, match="of type f16"):
        schedule(three, *halves).split("p", 4, "po", "pi").partial("C", "po", ("pi",))
