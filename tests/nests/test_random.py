"""Random loop nests: what is taken is equal to Python, as a record, compiled and in the simulator, for CPUs and GPUs.
`python -m tests.fuzz --only nests` draws more."""

from __future__ import annotations

import pytest

from tests.fuzz import driver, nests

CASES = 300
ONE_IN = 5          # of these by one more way in turn
WAYS = "loops", "simulated cpu", "simulated sm_80", "simulated gfx942"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_nests_equal_python() -> None:
    before = nests.counts.copy()
    for number in range(CASES):
        case = driver.draw(nests.FUZZER, 11, number)
        case["ways"] = ["record", *[WAYS[number // ONE_IN % 4]] * (number % ONE_IN == 0)]
        assert (what := driver.failure(nests.FUZZER, case)) is None, f"{what}\n{case}"
    taken = nests.counts - before
    assert taken["record: taken"] > CASES // 2
    assert min(taken[f"{way}: taken"] for way in WAYS) > CASES // ONE_IN // 8
