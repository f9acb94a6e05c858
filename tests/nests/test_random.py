"""Random loop nests: what is taken is equal to Python. `python -m tests.fuzz --only nests` draws more."""

from __future__ import annotations

import pytest

from tests.fuzz import driver, nests

CASES = 300


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_nests_equal_python() -> None:
    before = nests.counts["record: taken"]
    for number in range(CASES):
        case = driver.draw(nests.FUZZER, 11, number) | {"ways": ["record"]}
        assert (what := driver.failure(nests.FUZZER, case)) is None, f"{what}\n{case}"
    assert nests.counts["record: taken"] - before > CASES // 2
