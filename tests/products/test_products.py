"""Every product case on its devices by its ways, against one oracle.

A short run takes a first and a later call of rows in which two words meet for the first time, on one of the devices
that a row names, of all in turn, and on those whose kind (CPU, NVIDIA, AMD) has not had a word of the row. `--all-ways`
takes every way on every device, and compiles the kernels of GPUs, of which a short run simulates what was recorded.

How later calls are kept at least is a table of its own, kept.json: `--update-golden` writes it anew (with -n0), so that
what is gained stays.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from tests.products.case import Case
from tests.products.cases import contractions, einsums, epilogues, groups, operands, plain
from tests.products.compiled import ways
from tests.products.devices import DEVICES, running
from tests.products.ways import Call, again, first, kept, several
from tilewright.api.products import matmul

FEATURES = {"epilogue": epilogues.CASES, "contract": contractions.CASES, "groups": groups.CASES,
            "plain": plain.CASES, "einsum": einsums.CASES, "operands": operands.CASES}
KEPT = Path(__file__).parent / "kept.json"
HOW = ["emitted", "short", "table", "rules"]        # the best first
SEEN: dict[str, str] = {}       # how later calls of "row, device" went


def read_kept() -> dict[str, str]:
    """By "row, device"; what is not there is kept by nothing, and goes by the rules."""
    table = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return {name: how for how, names in table.items() for name in names}


READ = read_kept()


ROWS = [(feature, case) for feature, cases in FEATURES.items() for case in cases]


def words(feature: str, case: Case, device: str) -> set[tuple[str, str, str]]:
    """The ways of a row on a kind of device, of which all share a compiler and a driver."""
    return {(feature, kind_of(device), word) for word in case.words}


def kind_of(device: str) -> str:
    return device[:2] if DEVICES[device].gpu else "torch" if device == "torch" else "cpu"


def short() -> Iterator[tuple[str, Case, str]]:
    """The rows of a short run that have two words (a function, plan, keyword, format, layout, number of axes; a class
    of sizes) which no row before has had together, each on one of its devices, in turn; and whatever row and device has
    a word that the kind of device has not had."""
    seen: set[tuple[str, str, str]] = set()
    together: set[tuple[str, str, str, str]] = set()
    for turn, (feature, case) in enumerate(ROWS):
        first = turn % len(case.on)
        for i, device in enumerate(case.on[first:] + case.on[:first]):
            found = words(feature, case, device)
            pairs = {(feature, kind_of(device), *x) for x in combinations(sorted(case.words | case.classes), 2)
                     } if case.short and i == 0 else set()
            if not (pairs <= together and found <= seen):
                seen |= found
                together |= pairs
                yield feature, case, device


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        full = metafunc.config.getoption("--all-ways")
        metafunc.parametrize(("case", "device"), [
            pytest.param(case, device, id=f"{feature}: {case.name}, {device}")
            for feature, case, device in ([(*row, device) for row in ROWS for device in row[1].everywhere] if full
                                          else short())])


def test_a_row_is_known_by_its_name() -> None:
    names = Counter((case.name, device) for _, case in ROWS for device in case.on)
    assert not [name for name, count in names.items() if count > 1]


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    """The first call of a process is kept by nothing."""
    matmul(np.ones((3, 3), np.float32), np.ones((3, 3), np.float32))
    yield
    if request.config.getoption("--update-golden"):
        found = {name: how for name, how in (read_kept() | SEEN).items() if how != "rules"}
        KEPT.write_text(json.dumps({how: sorted(x for x in found if found[x] == how) for how in HOW[:-1]},
                                   indent=1, ensure_ascii=False) + "\n")


def test_product(case: Case, device: str, request: pytest.FixtureRequest) -> None:
    full = request.config.getoption("--all-ways")
    with running(device, code=full) as memory:
        for plan in case.plans or ("",):
            call = Call(case, 7, plan)
            way = "first"
            try:
                results = first(call, memory)
                call.check(results)
                launched = memory.launched()
                kernels = [name for name in launched if not name.startswith("copy")]
                assert case.launches in (None, len(kernels)) or not memory.gpu, launched
                assert not memory.gpu or any(case.kernel in x for x in launched) or not case.kernel, launched
                way = "again"
                if not (plan and memory.gpu):
                    again(call, memory)
                    assert memory.launched() == launched
                if full:
                    for way, found in ways(call, memory, results):      # noqa: B007    # named if it fails
                        call.check([memory.back(x) for x in several(found)])
            except Exception as error:
                raise AssertionError(f"{case.name} on {device} by {way}" + f", {plan}" * bool(plan)) from error
            if not plan and device in case.on:
                is_kept(f"{case.name}, {device}", call.python, request.config.getoption("--update-golden"))


def is_kept(name: str, python: int, update: bool) -> None:
    """Are later calls kept at least as the table says?"""
    SEEN[name], wanted = kept(python), READ.get(name, "rules")
    assert update or HOW.index(kept(python, 20)) <= HOW.index(wanted), (
        f"a later call took {python} Python functions of the package: kept by {SEEN[name]}, where {KEPT.name} says "
        f"{wanted}")
