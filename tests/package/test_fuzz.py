"""The fuzzers themselves: a short run of each finds nothing, and faults that are planted are found.

`python -m tests.fuzz` runs them for longer, with other seeds.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.doubles import planted_fuzzer
from tests.fuzz import device, driver, fences, sanitized
from tests.fuzz.memory import Placed
from tests.helpers.processes import run
from tilewright.api import dispatch, products
from tilewright.expressions import remembered
from tilewright.lab.cli import npy
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.nvidia import NvidiaPlan
from tilewright.rules import arguments, fusing, weights
from tilewright.runtime.cpu import fusion, grouped_jobs, preparation, ways
from tilewright.simulator import product

ROOT = Path(__file__).resolve().parents[2]
SEED = 1
SHORT = {"products": 15, "beside": 4, "isa": 1, "forks": 1, "caches": 2, "plans": 50, "kernels": 3, "cli": 10,
         "environments": 10, "promises": 6, "nests": 10, "online": 2, "attention": 1, "mpi": 2}


@pytest.mark.parametrize("name", driver.NAMES)
def test_a_short_run(name: str) -> None:
    outcome = driver.run(name, SEED, cases=SHORT[name])
    assert not outcome.failures, "\n".join(map(str, outcome.failures))
    assert outcome.cases == SHORT[name]


def test_a_case_of_each_kind_of_call_on_a_gpu_in_the_simulator() -> None:
    pytest.importorskip("cuda.bindings.driver")
    done = subprocess.run([sys.executable, "-m", "tests.fuzz.device", "--simulate"], cwd=ROOT, capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "19 kinds, 0 failures" in done.stdout


@pytest.mark.parametrize("name", ["attention", "convolutions"])
def test_small_cases_for_the_sanitizer(name: str) -> None:
    pytest.importorskip("cuda.bindings.driver")
    cases = [device.small(name, seed) for seed in range(sanitized.CASES)]
    assert len({str(case) for case in cases}) == sanitized.CASES


# ---- the driver


@pytest.mark.parametrize("name", driver.NAMES)
def test_a_case_follows_from_the_seed_and_can_be_written_down(name: str) -> None:
    fuzzer = driver.find(name)
    drawn = [driver.draw(fuzzer, 3, number) for number in range(20)]
    assert drawn == [driver.draw(fuzzer, 3, number) for number in range(20)]
    assert drawn == [ast.literal_eval(str(case)) for case in drawn]
    assert len(set(map(str, drawn))) > 15
    assert drawn[0] != driver.draw(fuzzer, 4, 0)


def test_crashes_hangs_and_exceptions_are_failures_of_their_cases() -> None:
    """Workers go on behind each."""
    fuzzer, cases = planted_fuzzer.FUZZER, 0
    drawn = []
    while not {3, 5, 7, 9} <= set(drawn):
        drawn.append(driver.draw(fuzzer, 0, cases)["n"])
        cases += 1
    told: list[driver.Failure] = []
    outcome = driver.run("tests.doubles.planted_fuzzer", 0, cases, most=100, tell=told.append)
    assert outcome.cases == cases
    assert [failure.case["n"] for failure in outcome.failures] == [n for n in drawn if n in (3, 5, 7, 9)]
    assert told == outcome.failures
    found = {failure.case["n"]: failure for failure in outcome.failures}
    assert "status -6" in found[3].what
    assert "no answer in 3 s" in found[5].what
    assert "in check" in found[5].what  # where it was
    assert found[7].case == {"n": 7, "bystander": 1}  # which fails because of it,
    assert found[9].case == {"n": 9, "bystander": 0}  # and this without it
    first = next(number for number, n in enumerate(drawn) if n in (3, 5, 7, 9))
    assert driver.run("tests.doubles.planted_fuzzer", 0, cases, most=1).cases == first + 1


def test_the_command_says_how_to_check_a_failure_again_and_ends_with_status_1(tmp_path: Path) -> None:
    case = driver.draw(driver.find("plans"), 0, 0) | {"kind": "nothing"}
    done = subprocess.run([sys.executable, "-m", "tests.fuzz", "--only", "plans", "--case", str(case)], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 1
    assert "KeyError: 'nothing'" in done.stdout
    assert f'python -m tests.fuzz --only plans --case "{case}"' in done.stdout
    assert done.stdout.splitlines()[-1].split()[:5] == ["plans", "1", "cases", "1", "failures"]


# ---- planted faults


def found(name: str, cases: int, plant: Callable[[pytest.MonkeyPatch], None], **given: Any) -> str:
    """What is wrong with the first case of a fuzzer that fails once a fault is planted, and does not before."""
    fuzzer = driver.find(name)
    for number in range(cases):
        case = driver.draw(fuzzer, SEED, number) | given
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            what = driver.failure(fuzzer, case)
        dispatch.cpu().forget()                     # records of the fault
        if what is not None:
            assert driver.failure(fuzzer, case) is None
            return what
    return ""


def planting(where: Any, name: str, fault: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(where, name, fault)


def truncated(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Rounded to zero, to bf16 and f16."""
    if x.dtype == np.float32 and dtype.name in ("bfloat16", "float16"):
        x = (x.view(np.int32) & (-1 << (16 if dtype.name == "bfloat16" else 13))).view(np.float32)
    with np.errstate(all="ignore"):
        return x.astype(dtype, copy=False)


def wrapped(change: Callable[..., Any]) -> Callable[..., Any]:
    right = dispatch.cpu().gemm

    def gemm(a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0, **options: Any) -> Any:
        return change(right, a, b, c, alpha, beta, options)

    return gemm


def beyond(right: Any, a: Any, b: Any, c: Any, alpha: float, beta: float, options: Any) -> Any:
    """An element between two rows of C is written."""
    done = right(a, b, c, alpha, beta, **options)
    if c.ndim == 2 and c.shape[0] > 1 and c.strides[0] > c.shape[1] * c.itemsize and c.strides[1] == c.itemsize:
        np.lib.stride_tricks.as_strided(c, (c.shape[0] - 1, c.shape[1] + 1), c.strides)[:, -1] = 5
    return done


def last_step(right: Any, a: Any, b: Any, c: Any, alpha: float, beta: float, options: Any) -> Any:
    k = a.shape[1] - (a.shape[1] > 32)
    return right(a[:, :k], b[:k], c, alpha, beta, **options)


def operand(right: Any, a: Any, b: Any, c: Any, alpha: float, beta: float, options: Any) -> Any:
    done = right(a, b, c, alpha, beta, **options)
    if a.flags.writeable and a.size and not np.shares_memory(a, c):
        a[-1, -1] = a[-1, -1] + 1
    return done


def scaled_late(right: Any, a: Any, b: Any, c: Any, alpha: float, beta: float, options: Any) -> Any:
    return right(a, b, c, 1.0 if alpha == 2 else alpha, beta, **options)


@pytest.mark.parametrize("fault", [beyond, last_step, operand, scaled_late], ids=lambda fault: fault.__name__)
def test_a_wrong_engine_is_found(fault: Any) -> None:
    given: dict[str, Any] = {"call": "matmul", "c": None, "beta": 0, "out_dtype": None, "out": "result", "plan": None}
    more = {"beyond": {"in_out": {"pad": 2}}, "scaled_late": {"alpha": 2}}.get(fault.__name__, {})
    what = found("products", 100, planting(dispatch.cpu(), "gemm", wrapped(fault)), **given, **more)
    assert {"beyond": "surroundings", "operand": "bytes of "}.get(fault.__name__, "elements") in what


BESIDE: dict[str, Any] = {
    "fence": "heap", "threads": 1, "eager": False, "m": 5, "n": 70, "k": 33, "a": "f32", "b": "f32", "epilogue": None,
    "prologue_a": None, "prologue_b": None, "plan": "", "packed": False, "nibbles": True, "zeros": False,
    "out": False, "alpha": 1, "out_dtype": None, "sizes": [3, 5], "how": {}, "spread": "", "lie": [{"end": True}]}


def too_few_partials(patch: pytest.MonkeyPatch) -> None:
    """One for a row, where the kernel leaves one for each tile of a row."""
    patch.setattr(grouped_jobs, "partials", lambda word, result, rows, panels, columns, wide, *more: ways.partials(
        word, result, rows, panels, columns, columns, *more))


def longer_groups(patch: pytest.MonkeyPatch) -> None:
    right = preparation.recorded

    def recorded(role: str, prologue: Any) -> Any:
        found = right(role, prologue)
        return found and found._replace(READ=tuple(word.replace(":16", ":32") for word in found.READ))
    patch.setattr(preparation, "recorded", recorded)


def by_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fusion.ways, "strides_of", lambda x: (x.shape[1], 1))


def legible(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(weights.Weights, "legible", True)


def no_alpha(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fusing, "with_factors", lambda epilogue, operands, *_: (epilogue, operands))


@pytest.mark.parametrize(("plant", "given", "words"), [
    (too_few_partials, {"call": "groups", "packed": True, "epilogue": "row sums of groups"}, "bytes beside a block"),
    (longer_groups, {"call": "weights", "b": "i8", "group": 16, "trans_b": True}, "elements "),
    (by_rows, {"call": "fused", "prologue_b": "double", "alpha": 2, "m": 3, "out": True,
               "lie": [{}] * 4 + [{"steps": [1, 1, 2]}]}, "out"),
    (legible, {"call": "weights", "b": "i4", "k": 2, "group": 0, "trans_b": True}, "elements "),
    (no_alpha, {"call": "fused", "epilogue": "relu", "alpha": -3}, "elements "),
], ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_wrong_beside_a_product_is_found(plant: Any, given: dict[str, Any], words: str) -> None:
    assert words in found("beside", 3, plant, **BESIDE | given)


@pytest.mark.parametrize("at", [-1, 40])
def test_a_write_beside_a_block_is_found(at: int) -> None:
    held = fences.Fences("heap")
    block = held.scratch((10,), np.dtype("f4")).view(np.uint8)
    held.check()
    np.lib.stride_tricks.as_strided(block[max(at - 1, 0):], (2,), (1 if at > 0 else -1,))[1] = 7
    with pytest.raises(AssertionError, match=f"1 bytes beside a block of 40 were written, the first at {at}"):
        held.check()


NARROW = {"call": "matmul", "a": "f32", "b": "f32", "c": None, "beta": 0, "out": None, "out_dtype": "bf16",
          "packed": False, "algorithm": None, "plan": None, "kind": "normal"}


def test_a_wrong_rounding_is_found() -> None:
    assert "elements" in found("products", 20, planting(arguments, "rounded", truncated), **NARROW)


def test_a_wrong_dtype_is_found() -> None:
    assert "dtype" in found("products", 20, planting(arguments, "rounded", lambda x, dtype: x), **NARROW)


def test_an_engine_that_reads_too_far_is_found() -> None:
    """A page further than the last element."""
    code = ("import numpy as np\nfrom tests.fuzz.memory import Placed\n"
            "p = Placed.of(np.ones((3, 4)), end={end})\n"
            "np.lib.stride_tricks.as_strided(p.array[{at}:], (1, 5), (0, {step})).sum()")
    for end, at, step in (True, 2, 8), (False, 0, -8):
        assert run(code.format(end=end, at=at, step=step)).returncode == -11


@pytest.mark.parametrize("how", [
    {}, {"end": False}, {"order": [1, 0]}, {"steps": [-1, 2], "pad": 3}, {"steps": [0, 1]},
    {"shift": 1, "swapped": True},
    {"order": [1, 0], "steps": [3, -2], "pad": 8, "shift": 4, "end": False, "swapped": True}, {"noise": 3, "pad": 1},
])
def test_placed_arrays_hold_their_values_and_nothing_else(how: dict[str, Any]) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    placed = Placed.of(values, **how)
    want = values if 0 not in how.get("steps", [1]) else np.broadcast_to(values[:1], (3, 4))
    assert np.array_equal(placed.array, want)
    before = placed.raw.copy()
    placed.array[...] = -7
    assert np.array_equal(placed.raw == before, ~placed.own | (placed.raw == before))
    placed.untouched("it", elements=False)
    with pytest.raises(AssertionError, match="bytes of it were written"):
        placed.untouched("it")
    if not placed.own.all():
        placed.raw[np.flatnonzero(~placed.own)[0]] ^= 1
        with pytest.raises(AssertionError, match="1 bytes of it were written"):
            placed.untouched("it", elements=False)


@pytest.mark.parametrize(("where", "fault"), [
    (CpuPlan, lambda *_: [][0]), (NvidiaPlan, lambda *_: {}["x"]), (CpuPlan, lambda *_: ["no sentence"]),
])
def test_violations_that_raise_are_found(where: Any, fault: Any) -> None:
    assert "Error" in found("plans", 60, planting(where, "violations", fault))


def test_a_text_that_means_another_plan_is_found() -> None:
    assert "is printed as" in found("plans", 60, planting(CpuPlan, "__str__", lambda plan: "in_place 1x8"))


def test_a_wrong_kernel_of_a_gpu_is_found() -> None:
    right = product.Launches.__init__
    fault = planting(product.Launches, "__init__", lambda self, kernel, alpha, *more: right(self, kernel, 1.0, *more))
    assert "elements are wrong" in found("kernels", 12, fault)


def test_an_exception_that_escapes_from_a_command_is_found() -> None:
    given = {"words": ["run", "a.npy", "b.npy", "-o", "c.npy"], "files": ["good", "good"]}
    assert "an exception escapes" in found("cli", 1, planting(npy, "open_matrix", lambda *_: {}["x"]), **given)


def test_a_function_that_is_not_looked_at_again_is_found() -> None:
    """Neither its names, nor the values that it was made with."""
    given = {"entry": "batch", "values": [1.0, 2.0, 3.0, 1.0], "times": 2}
    for where, fault in (("module", planting(remembered, "is_", lambda *_: True)),
                         ("helper", planting(remembered, "constant", lambda _: True)),
                         ("getattr", planting(remembered, "_STATELESS", dict.fromkeys([id(getattr)])))):
        assert "and not" in found("environments", 1, fault, where=where, **given)


def any_order(right: Any, a: Any, b: Any, c: Any, alpha: float, beta: float, options: Any) -> Any:
    return right(a, b, c, alpha, beta, **options | {"invariant": ""})


def test_a_broken_promise_is_found() -> None:
    given = {"entry": "matmul", "promise": "batch_invariant", "a": "f32", "b": "f32", "m": 65, "n": 64, "k": 1100,
             "begin": 0, "rows": 1, "epilogue": None, "scales": False, "outs": ["", ""], "vector": False}
    assert "have other bits" in found("promises", 1, planting(dispatch.cpu(), "gemm", wrapped(any_order)), **given)


def test_wrong_children_are_found() -> None:
    right, me = products.matmul, os.getpid()
    fault = planting(tw, "matmul", lambda *args, **options: right(*args, **options) * (os.getpid() == me))
    assert "is wrong" in found("forks", 1, fault, cold=False)


CACHE = """
from random import Random
from tests.fuzz import caches, driver
from tilewright.compiler import cache

def fetch(address, build):
    path = cache.directory() / (address + cache.SUFFIX)
    if not path.exists():
        path.write_bytes(bytes(32) + build())
    return path.read_bytes()[32:]

cache.fetch, caches.PRODUCTS = fetch, caches.PRODUCTS[:1]
case = caches.draw(Random(0)) | {"entries": ["random"], "every": True, "folder": None, "tuning": None}
print(driver.failure(caches.FUZZER, case))
"""


def test_a_cache_that_is_believed_is_found() -> None:
    """In a process that has loaded nothing."""
    done = run(CACHE)
    assert "AssertionError: a child ended" in done.stdout, done.stdout + done.stderr
