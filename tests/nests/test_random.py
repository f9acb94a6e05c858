"""Random loop nests: what is taken is equal to Python. `python -m tests.fuzz --only nests` draws more."""

from __future__ import annotations

import pytest

from tests.fuzz import driver, nests

CASES = 300


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_nests_equal_python() -> None:
    before = nests.counts["record: taken"]
    failures = driver.here(nests.FUZZER, 11, CASES)
    assert not failures, "\n".join(map(str, failures))
    assert nests.counts["record: taken"] - before > CASES // 2
