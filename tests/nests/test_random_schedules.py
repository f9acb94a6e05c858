"""Random operations on loops: see random_schedules.py, which takes any seeds."""
from __future__ import annotations

import pytest

from tests.nests import random_schedules


@pytest.mark.parametrize("seed", range(300))
def test_legal_operations_keep_every_number(seed):
    random_schedules.run(seed)


@pytest.mark.parametrize("seed", range(1000, 1040))
def test_in_the_simulator(seed):
    random_schedules.run_compiled(seed)
