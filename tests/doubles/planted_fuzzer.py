"""A fuzzer whose cases crash, hang and fail by design: for tests of the fuzzers' driver."""

from __future__ import annotations

import os
import time

from tests.fuzz.driver import Case, Fuzzer


def check(case: Case) -> None:
    if case["n"] == 3:
        os.abort()
    if case["n"] == 5:
        time.sleep(1000)
    assert case["n"] != 7 or not case["bystander"], "seven"
    assert case["n"] != 9, "nine"


FUZZER = Fuzzer("planted", lambda rng: {"n": rng.randrange(12), "bystander": 1}, check, {"bystander": 0}, limit_s=3)
