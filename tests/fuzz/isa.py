"""The same products, and those with much beside them, by the narrower instruction sets that this machine can run, with
fewer extensions than it has.

A worker takes one set: the case's number decides, so that each case is checked in a child of its own kind. What is
chosen is put where TILEWRIGHT_TARGET and /proc/cpuinfo are read from, before the first product.
"""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

from tests.fuzz import beside, products
from tests.fuzz.children import in_child
from tests.fuzz.driver import Case, Fuzzer
from tilewright import targets
from tilewright.targets import cpu

EACH = 12  # products of a case: a child compiles, or reads, its kernels anew


def runnable() -> list[str]:
    return [row.name for row in cpu.ISAS if targets.target(row.name).runnable]


def draw(rng: Random) -> Case:
    name = rng.choice(runnable())
    extensions = targets.target(name).extensions
    return {"target": name, "without": [x for x in extensions if rng.random() < 0.5], "seed": rng.randrange(2**31)}


def check(case: Case) -> None:
    in_child(lambda: _products(case), 600)


def _products(case: Case) -> None:
    os.environ["TILEWRIGHT_TARGET"] = case["target"]
    cpu.ISAS = tuple(replace(row, extensions=tuple(x for x in row.extensions if x not in case["without"]))
                     for row in cpu.ISAS)
    targets.detect.cache_clear()
    cpu.record.cache_clear()
    assert targets.detect().name == case["target"]
    for number in range(EACH):
        rng = Random(f"{case['seed']} {number}")
        fuzzer = products if number % 3 else beside
        product = fuzzer.draw(rng)
        try:
            fuzzer.check(product)
        except Exception as error:
            raise AssertionError(f"product {number}: {product}") from error


FUZZER = Fuzzer("isa", draw, check, limit_s=700)
