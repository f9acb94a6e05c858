"""Calls in the host's memory of one kind: the first is prepared, the others take its steps again with other arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
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
from tilewright.runtime.cpu import engine, pool, program

BF16 = ml_dtypes.bfloat16
PACKAGE = tw.__path__[0]
MOST = 20       # Python functions of the package that a call with one step enters on the way, and what follows it may:
STEP = 12       # each more of a step, with what finds memory and threads for it
Made = tuple[tuple[Any, ...], dict[str, Any]]


def ints(rng: Any, *shape: int, dtype: Any = "f4") -> np.ndarray:
    x = rng.integers(-3, 4, shape)
    return (x + 1j*rng.integers(-3, 4, shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def pair(rng: Any, dtype: Any = "f4", other: Any = None, m: int = 9, k: int = 12, n: int = 8) -> tuple[np.ndarray, ...]:
    return ints(rng, m, k, dtype=dtype), ints(rng, k, n, dtype=other or dtype)


def add(acc: Any, bias: Any) -> Any:
    return acc + bias


def double(x: Any) -> Any:
    return 2 * x


def reduced(acc: Any) -> Any:
    return tw.row_sum(acc), tw.column_max(acc), acc


def distance(x: Any, y: Any) -> Any:
    return (x - y)**2


# name: arguments of a call from random numbers, the function, and how many steps its program has
CALLS: dict[str, tuple[Callable[[Any], Made], Callable[..., Any], int]] = {
    "c and beta": (lambda r: (pair(r), {"c": ints(r, 9, 8), "beta": 0.5, "alpha": 2.0}), matmul, 2),
    "a number for c": (lambda r: (pair(r), {"c": 3.0, "beta": 0.5}), matmul, 2),
    "a row for c": (lambda r: (pair(r), {"c": ints(r, 8, dtype="i4"), "beta": 2}), matmul, 2),
    "alpha": (lambda r: (pair(r), {"alpha": 0.3}), matmul, 1),
    "alpha of 0": (lambda r: (pair(r), {"alpha": 0}), matmul, 1),
    "out in f64": (lambda r: (pair(r), {"out": np.empty((9, 8))}), matmul, 2),
    "integers into i64": (lambda r: (pair(r, "i1"), {"out_dtype": "i64", "alpha": 3}), matmul, 2),
    "algorithm": (lambda r: (pair(r, m=70, k=90, n=80), {"algorithm": "bf16_bf16_f32_x3", "out": np.empty((70, 80))}),
                  matmul, 3),
    "algorithm and beta": (lambda r: (pair(r, m=70, k=90, n=80), {
        "algorithm": "fastest", "c": ints(r, 70, 80), "beta": 1}), matmul, 4),
    "mixed": (lambda r: (pair(r, "f4", BF16), {}), matmul, 2),
    "complex": (lambda r: (pair(r, "c8"), {"alpha": 2, "c": ints(r, 9, 8, dtype="c8"), "beta": 1}), matmul, 2),
    "conjugated": (lambda r: ((ints(r, 12, 9, dtype="c8"), ints(r, 12, 8, dtype="c8")), {
        "trans_a": "c", "out": np.empty((9, 8), "c16")}), matmul, 2),
    "out with gaps": (lambda r: (pair(r), {"out": np.empty((8, 20), "f4").T[::2][:9]}), matmul, 2),
    "four axes": (lambda r: ((ints(r, 2, 3, 9, 24)[..., ::2], ints(r, 2, 1, 12, 8)), {}), matmul, 3),
    "vectors": (lambda r: ((ints(r, 12), ints(r, 12)), {"deterministic": True}), matmul, 1),
    "no rows": (lambda r: ((ints(r, 0, 12), ints(r, 12, 8)), {"deterministic": True}), matmul, 0),
    "no steps": (lambda r: ((ints(r, 9, 0), ints(r, 0, 8)), {"c": ints(r, 9, 8), "beta": 2}), matmul, 2),
    "scales": (lambda r: (pair(r, "i1"), {"scale_a": 2.0**ints(r, 9, 1), "scale_b": 2.0**ints(r, 1, 8)}), matmul, 2),
    "scales and c": (lambda r: (pair(r, "i1"), {"scale_a": 2.0**ints(r, 9, 1), "scale_b": 2.5, "c": ints(r, 8),
                                                "beta": 0.5, "alpha": 3.0}), matmul, 3),
    "scales and a bias": (lambda r: (pair(r, "i1"), {"scale_a": 2.0**ints(r, 9, 1), "epilogue": add, "alpha": 2.0,
                                                     "operands": {"bias": ints(r, 8)}}), matmul, 2),
    "weights": (lambda r: ((ints(r, 300, 64), tw.quantize(ints(r, 40, 64) + 0.25, "i8", axis=-1)), {"trans_b": True}),
                matmul, 3),
    "an epilogue and c": (lambda r: (pair(r), {"epilogue": add, "operands": {"bias": ints(r, 8)}, "alpha": 2.0,
                                               "beta": 0.5, "c": ints(r, 9, 8)}), matmul, 1),
    "an epilogue by an algorithm": (lambda r: (pair(r, m=70, k=90, n=80), {
        "epilogue": add, "operands": {"bias": ints(r, 80)}, "algorithm": "bf16_bf16_f32_x3"}), matmul, 3),
    "an operand in another order of bytes": (lambda r: (pair(r), {
        "epilogue": add, "operands": {"bias": ints(r, 8, dtype=">f4")}}), matmul, 2),
    "a number": (lambda r: (pair(r), {"epilogue": add, "operands": {"bias": float(r.integers(9))}}), matmul, 1),
    "a prologue": (lambda r: (pair(r), {"prologue_a": double}), matmul, 5),
    "a prologue and an epilogue": (lambda r: (pair(r), {"prologue_b": double, "epilogue": add,
                                                        "operands": {"bias": ints(r, 8)}}), matmul, 5),
    "reductions": (lambda r: (pair(r), {"epilogue": reduced}), matmul, 7),
    "reductions into out": (lambda r: (pair(r), {
        "epilogue": reduced, "out": (np.empty(9), None, np.empty((9, 8), BF16))}), matmul, 8),
    "argmin": (lambda r: ((distance, *pair(r)), {"reduce": "argmin"}), tw.contract, 3),
    "the smallest and where": (lambda r: ((distance, *pair(r)), {"reduce": "min_argmin"}), tw.contract, 7),
    "argmax of a vector": (lambda r: ((distance, ints(r, 12), ints(r, 12, 8)), {"reduce": "argmax"}), tw.contract, 3),
    "contract into f64": (lambda r: ((distance, *pair(r)), {"out": np.empty((9, 8))}), tw.contract, 4),
    "einsum by tables": (lambda r: (("xkyl,lnk->nxy", ints(r, 13, 14, 8, 9), ints(r, 9, 5, 14)), {}), tw.einsum, 2),
    "a chain": (lambda r: (("ij,jk,kl->il", ints(r, 5, 6), ints(r, 6, 7), ints(r, 7, 8)), {}), tw.einsum, 2),
    "a chain into f64": (lambda r: (("ij,jk,kl->il", ints(r, 5, 6), ints(r, 6, 7), ints(r, 7, 8)),
                                    {"out": np.empty((5, 8))}), tw.einsum, 3),
    "a sum before": (lambda r: (("ij,jk->i", ints(r, 5, 6), ints(r, 6, 7)), {}), tw.einsum, 2),
    "element by element": (lambda r: (("ij,ij->ij", ints(r, 5, 6), ints(r, 5, 6)), {}), tw.einsum, 1),
    "columns first": (lambda r: (("ij,jk->ik", ints(r, 5, 6), ints(r, 6, 7)), {"order": "F"}), tw.einsum, 1),
}
# calls that have no record, and why
COLD: dict[str, tuple[Callable[[Any], Made], Callable[..., Any]]] = {
    "multiplied by NumPy": (lambda r: (pair(r, "g"), {"out": np.empty((9, 8), "g")}), matmul),
    "a scale that is read": (lambda r: (pair(r), {"scale_a": np.array(float(r.integers(1, 9)))}), matmul),
    "complex by real": (lambda r: (pair(r, "c8", "f4"), {"alpha": 2}), matmul),
    "a complex factor": (lambda r: (pair(r, "c8"), {"alpha": 2j, "c": ints(r, 9, 8, dtype="c8"), "beta": 1j}), matmul),
    "decoded": (lambda r: ((ints(r, 300, 64), tw.quantize(ints(r, 8, 64), "mxfp8").T), {"alpha": 2.0}), matmul),
}


def entered(call: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, list[str]]:
    """The result, and the package's functions that the call entered."""
    names: list[str] = []

    def profile(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_name
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE) and not name.startswith("<"):
            names.append(name)
    sys.setprofile(profile)
    try:
        return call(*args, **options), names
    finally:
        sys.setprofile(None)


def copies(results: Any) -> list[np.ndarray]:
    return [np.array(x) for x in (results if isinstance(results, tuple) else (results,))]


def long_way(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    before, cold = dict(repeats.records), dict(program.cold)
    repeats.records.clear()
    try:
        return function(*args, **options)
    finally:
        repeats.records.clear()
        repeats.records.update(before)
        program.cold.clear()
        program.cold.update(cold)


def check(function: Callable[..., Any], make: Callable[[Any], Made], first: int = 0) -> list[str]:
    """Calls with other arrays have the bits of the long way. The functions that the last one entered."""
    names: list[str] = []
    for seed in range(first, first + 3):
        args, options = make(np.random.default_rng(seed))
        wanted = long_way(function, args, options)
        kind, wanted = type(wanted), copies(wanted)
        result, names = entered(function, *args, **options)
        assert type(result) is kind
        if isinstance(out := options.get("out"), np.ndarray):
            assert result is out
        for x, y in zip(copies(result), wanted, strict=True):
            np.testing.assert_array_equal(x, y, strict=True)
    return names


@pytest.mark.parametrize("name", CALLS)
def test_the_steps_of_the_first_call_are_taken_again(name: str) -> None:
    make, function, steps = CALLS[name]
    check(function, make)
    before = len(repeats.records)
    names = check(function, make, 3)
    assert len(repeats.records) == before
    most = MOST + STEP * max(steps - 1, 0)
    assert len(names) <= most + (STEP if function is not matmul else 0), (len(names), " ".join(names))


@pytest.mark.parametrize("name", COLD)
def test_what_is_not_noted_has_no_record(name: str) -> None:
    make, function = COLD[name]
    before = len(repeats.records)
    check(function, make)
    assert len(repeats.records) == before


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
    assert not program.cold
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


@pytest.mark.parametrize("name", ["c and beta", "algorithm", "reductions", "scales"])
def test_tensors(name: str) -> None:
    torch = pytest.importorskip("torch")

    def moved(x: Any) -> Any:
        return torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    make, function, _ = CALLS[name]
    names: list[str] = []
    for seed in range(3):
        args, options = make(np.random.default_rng(seed))
        wanted = copies(function(*args, **options))
        result, names = entered(function, *map(moved, args), **{name: moved(x) for name, x in options.items()})
        for x, y in zip(result if isinstance(result, tuple) else (result,), wanted, strict=True):
            np.testing.assert_array_equal(x.numpy(), y)
    assert "checked" not in names


def test_numbers_that_are_equal_are_not_the_same() -> None:
    """Zeros have signs, which results show, and nan is like itself."""
    a = b = np.zeros((3, 3), "f4")
    plus, minus, nan = ([*signature(a, b, c=x)[1]] for x in (0.0, -0.0, float("nan")))
    assert plus != minus
    assert nan == signature(a, b, c=float("nan"))[1]
    matmul(a, b, scale_a=float("nan"), scale_b=np.ones((1, 3), "f4"))
    before = len(repeats.records), len(program.cold)
    for _ in range(3):
        matmul(a, b, scale_a=float("nan"), scale_b=np.ones((1, 3), "f4"))
    assert (len(repeats.records), len(program.cold)) == before
