"""Calls in the host's memory of one kind: what makes them another one. Values are in tests/products."""

from __future__ import annotations

from threading import Thread
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.counted import Counted
from tilewright.api.products import matmul
from tilewright.rules.signature import signature
from tilewright.runtime import repeats
from tilewright.runtime.cpu import engine, fusion, pool, program

BF16 = ml_dtypes.bfloat16


def ints(rng: Any, *shape: int, dtype: Any = "f4") -> np.ndarray:
    x = rng.integers(-3, 4, shape)
    return (x + 1j*rng.integers(-3, 4, shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def pair(rng: Any, dtype: Any = "f4", other: Any = None, m: int = 9, k: int = 12, n: int = 8) -> tuple[np.ndarray, ...]:
    return ints(rng, m, k, dtype=dtype), ints(rng, k, n, dtype=other or dtype)


def add(acc: Any, bias: Any) -> Any:
    return acc + bias


def test_an_out_that_overlaps_an_operand() -> None:
    rng = np.random.default_rng(1)
    a, b = ints(rng, 9, 9), ints(rng, 9, 9)
    memory = np.zeros((9, 10), "f4")
    for _ in range(3):
        for out, c in ((a, b), (memory[:, 1:], memory[:, :9]), (np.empty((9, 9), "f4"), b), (b, b)):
            wanted = 2*(a @ b) + 3*c
            assert matmul(a, b, out=out, c=c, alpha=2, beta=3) is out
            np.testing.assert_array_equal(out, wanted)
            a[...], b[...] = ints(rng, 9, 9), ints(rng, 9, 9)


def test_arrays_of_one_memory_are_told_apart() -> None:
    """The first call has one array twice, or parts of one array: later ones have others."""
    rng = np.random.default_rng(2)
    both = ints(rng, 9, 18)
    x, y = both[:, :9], both[:, 9:]
    for a, b, c in ((x, x, x), (x, y, x), (y, x, y), (y, y, x)):
        np.testing.assert_array_equal(matmul(a, b, c=c, beta=2), a @ b + 2*c)


def test_a_value_that_no_algorithm_splits() -> None:
    """Steps that find it leave the call to the long way, whatever the first call had."""
    rng = np.random.default_rng(3)
    for special in (False, True, False, True):
        a, b = ints(rng, 130, 256), ints(rng, 256, 140)
        a[5, 7] = np.inf if special else 1
        c = ints(rng, 130, 140)
        with np.errstate(all="ignore"):
            wanted = a.astype("f8") @ b + c
        np.testing.assert_array_equal(matmul(a, b, c=c, beta=1, algorithm="bf16_bf16_f32_x9", threads=1),
                                      wanted.astype("f4"))


def test_a_new_plan_and_another_number_of_threads() -> None:
    rng = np.random.default_rng(4)
    options = {"c": ints(rng, 9, 8), "beta": 2, "out_dtype": "f64"}
    matmul(*pair(rng), **options)
    assert repeats.records
    engine.forget()
    assert not repeats.records
    matmul(*pair(rng), **options)
    before, threads = len(repeats.records), pool.get_num_threads()
    with tw.threads(1 + (threads == 1)):
        matmul(*pair(rng), **options)
    assert len(repeats.records) == before + 1


def test_an_error_leaves_nothing() -> None:
    rng = np.random.default_rng(5)
    a, b = pair(rng)
    before = len(repeats.records)
    for _ in range(2):
        with pytest.raises(ValueError, match="must broadcast"):
            matmul(a, b, c=ints(rng, 5), beta=1)
        with pytest.raises(ValueError, match="out_dtype"):
            matmul(a, b, out_dtype=["f4"], alpha=2)
    assert len(repeats.records) == before
    assert program.preparing.recorder is None


def test_none_for_an_operand() -> None:
    for _ in range(2):
        with pytest.raises((TypeError, ValueError)):
            matmul(None, np.ones((3, 3)), out=np.zeros((3, 3)))


@pytest.mark.parametrize("options", [{}, {"epilogue": add, "operands": {"bias": 0.5}}], ids=["plain", "epilogue"])
def test_the_builtin_takes_over_what_python_has_prepared(options: Any) -> None:
    counted, rng = Counted(), np.random.default_rng(6)
    a, b = ints(rng, 31, 22, dtype=BF16), ints(rng, 22, 33, dtype=BF16)
    wanted = matmul(a, b, **options)
    calls = [counted.python_calls(a, b, **options) for _ in range(3)]
    assert calls == [1, 0, 0]
    np.testing.assert_array_equal(counted.matmul(a, b, **options), wanted)


def test_several_threads_at_once() -> None:
    """Each with other arrays, and temporaries of its own."""
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            (a, b), c = pair(rng, m=40, k=50, n=60), ints(rng, 40, 60)
            for options in ({"out": np.empty((40, 60))}, {"epilogue": add, "operands": {"bias": c}, "alpha": 2.0}):
                found = matmul(a, b, **options) if "out" in options else matmul(a, b, **options) - (a @ b + c)
                if not np.array_equal(found, a @ b):
                    wrong.append(options)
    workers = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert not wrong


def test_numbers_that_are_equal_are_not_the_same() -> None:
    """Zeros have signs, which results show, and nan is like itself."""
    a = b = np.zeros((3, 3), "f4")
    plus, minus, nan = ([*signature(a, b, c=x)[1]] for x in (0.0, -0.0, float("nan")))
    assert plus != minus
    assert nan == signature(a, b, c=float("nan"))[1]
    matmul(a, b, scale_a=float("nan"), scale_b=np.ones((1, 3), "f4"))
    before = len(repeats.records)
    for _ in range(3):
        matmul(a, b, scale_a=float("nan"), scale_b=np.ones((1, 3), "f4"))
    assert len(repeats.records) == before


def centred(x: Any, mean: Any, scale: Any) -> Any:
    return (x - mean)*scale


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("which", ["weights", "a", "b", "both", "with an epilogue", "by columns"])
def test_prologues_of_large_products(monkeypatch: pytest.MonkeyPatch, which: str, threads: int) -> None:
    """Later calls fill in a job, with the addresses of what prologues read, and do not look for a way."""
    rng, ways = np.random.default_rng(8), []
    m, n, k = (90, 130, 70) if which == "by columns" else (130, 90, 70)

    def call() -> tuple[np.ndarray, np.ndarray]:
        a, b = ints(rng, m, k), ints(rng, k, n)
        if which == "weights":
            q = tw.quantize(ints(rng, n, 64), "i4", group=32)
            return matmul(a[:, :64], q, trans_b=True, threads=threads), a[:, :64].astype("f8") @ np.asarray(q, "f8").T
        options: dict[str, Any] = {"operands": {"mean": ints(rng, k, 1), "scale": ints(rng, 1, n)}, "threads": threads}
        wanted_a, wanted_b = a.astype("f8"), b.astype("f8")
        if which in ("a", "both"):
            options["operands"] = {"mean": ints(rng, m, 1), "scale": ints(rng, 1, k)}
            options["prologue_a"], wanted_a = centred, centred(wanted_a, **options["operands"])
        if which == "both":
            options["prologue_b"], options["operands"]["bias"] = add, ints(rng, 1, n)
            wanted_b = wanted_b + options["operands"]["bias"]
        elif which != "a":
            options["prologue_b"], wanted_b = centred, centred(wanted_b, **options["operands"])
        wanted = wanted_a @ wanted_b
        if which == "with an epilogue":
            options |= {"epilogue": add, "operands": options["operands"] | {"bias": ints(rng, m, 1)}}
            wanted = wanted + options["operands"]["bias"]
        out = np.zeros((n, m), "f4").T if which == "by columns" else np.zeros((m, n), "f4")
        return matmul(a, b, out, **options), wanted
    by_way = fusion._by_way
    monkeypatch.setattr(fusion, "_by_way", lambda *of, **how: ways.append(of) or by_way(*of, **how))
    for _ in range(3):
        found, wanted = call()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * abs(wanted).max())
    assert len(ways) == 1


@pytest.mark.parametrize("columns", [False, True])
def test_few_rows_with_an_epilogue_are_one_job(columns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    b, bias = ints(rng, 1024, 1024, dtype=BF16), ints(rng, 1024)
    b = b.T if columns else b
    for call in range(3):
        x = ints(rng, 3, 1024)
        np.testing.assert_array_equal(matmul(x, b, epilogue=add, operands={"bias": bias}), x @ b.astype("f4") + bias)
        if not call:
            monkeypatch.setattr(fusion, "_by_way", None)        # later calls go another way
