"""Calls like earlier ones, which the builtin repeats without Python: which they are, their bits, and what is kept."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.counted import Counted
from tilewright import forks
from tilewright.api import builtin_repeats as repeats
from tilewright.api.builtin_repeats import Called, Repeats, key_of, slot_of
from tilewright.api.products import matmul as by_python
from tilewright.kernels.cpu import abi
from tilewright.plans import lowering
from tilewright.runtime import repeats as programs
from tilewright.runtime.cpu import pool, workspace
from tilewright.targets import target

RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def engine_is_loaded() -> None:
    by_python(np.ones((3, 3), np.float32), np.ones((3, 3), np.float32))


@pytest.fixture
def counted(engine_is_loaded: None) -> Counted:
    programs.forget()       # programs, and keys of calls that have none, of tests before
    return Counted()


def random(dtype: Any, *shape: int) -> np.ndarray:
    x = RNG.integers(-4, 5, shape)
    return (x + 1j*RNG.integers(-4, 5, shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


BF16 = ml_dtypes.bfloat16
CALLS: dict[str, tuple[np.ndarray, np.ndarray, dict[str, Any]]] = {
    "f64, packed": (random("f8", 520, 320), random("f8", 320, 530), {}),
    "i8 into i32": (random("i1", 16, 17), random("i1", 17, 18), {"out_dtype": "i32"}),
    "bf16": (random(BF16, 33, 20), random(BF16, 20, 18), {}),
    "batch": (random("f4", 9, 12, 13), random("f4", 9, 13, 14), {}),
}


def test_a_name_that_was_composed(counted):
    a = random("i1", 20, 30)
    for name in "i32", "".join(("i", "32")), "".join(("i", "32")):
        calls = counted.python_calls(a, a.T, out_dtype=name)
    assert calls == 0
    np.testing.assert_array_equal(counted.matmul(a, a.T, out_dtype="".join(("f", "32"))), (a.astype("f4") @ a.T))


def calls_of_size(n: int) -> list[tuple[tuple[np.ndarray, ...], dict[str, Any]]]:
    """No two are alike, but for the first and the third: its operands have the strides of the first's."""
    wide = random("f4", 60, 60)
    a, b, out = wide[:n, :n], wide[:n, n:2*n], np.empty((n, n), np.float32)
    return [((a, b), {}), ((a, wide[:n, n:2*n + 1]), {}), ((a, wide[n:2*n, :n]), {}), ((a.T, b), {}),
            ((a, b), {"deterministic": True}), ((a, b), {"trans_a": True}), ((a.copy(), b), {}), ((a, b.copy()), {}),
            ((a.astype("f8"), b.astype("f8")), {}), ((a, b, out), {}), ((a, b), {"threads": 1})]


def slots(calls: list[tuple[tuple[np.ndarray, ...], dict[str, Any]]]) -> set[int]:
    without = Called.described(None)
    return {slot_of(key_of(*args[:2], args[2] if len(args) == 3 else None, options, without, pool.get_num_threads()))
            for args, options in calls}


def test_only_equal_calls_are_alike(counted: Counted) -> None:
    """Other sizes, strides, formats, keywords and numbers of threads are other calls, each with its own result."""
    # a slot depends on the addresses of objects: once in a hundred processes two calls have one, and replace each other
    calls = next(calls for calls in map(calls_of_size, range(20, 30)) if len(slots(calls)) == len(calls) - 1)
    for args, options in calls * 3:
        np.testing.assert_array_equal(counted.matmul(*args, **options), by_python(*args, **options))
    assert counted.calls == len(calls) - 1          # the third has the strides of the first
    with tw.threads(1):
        assert counted.python_calls(*calls[0][0]) == 1
    before = pool.get_num_threads()
    pool.set_num_threads(before + 1)
    try:
        assert [counted.python_calls(*calls[0][0]) for _ in range(2)] == [1, 0]
    finally:
        pool.set_num_threads(before)


class Subclass(np.ndarray):
    pass


A, B = random("f4", 20, 30), random("f4", 30, 25)
READ_ONLY = np.empty((20, 25), np.float32)
READ_ONLY.flags.writeable = False
PYTHONS: dict[str, tuple[tuple, dict[str, Any]]] = {
    "alpha": ((A, B), {"alpha": 2}),
    "c": ((A, B), {"c": np.ones(25, np.float32), "beta": 1}),
    "a plan": ((A, B), {"plan": str(tw.plan(tw.Gemm(20, 25, 30)))}),
    "a subclass": ((A.view(Subclass), B), {}),
    "a list": ((A.tolist(), B), {}),
    "real by complex": ((A, B.astype("c8")), {}),
    "converted": ((A, B.astype("f8")), {}),
    "rounded": ((A, B), {"out_dtype": "f64"}),
    "nothing": ((A[:, :0], B[:0]), {}),
    "a tuple": ((A, B, (np.empty((20, 25), np.float32),)), {}),
    "out in another format": ((A, B, np.empty((20, 25))), {}),
    "a dtype of its own": ((pickle.loads(pickle.dumps(A)), B), {}),
    "big-endian": ((A.astype(">f4"), B), {}),
    "four axes": ((A[None, None], B), {}),
}


@pytest.mark.parametrize("case", PYTHONS)
def test_what_is_left_to_python(counted: Counted, case: str) -> None:
    args, options = PYTHONS[case]
    for _ in range(2):
        assert counted.python_calls(*args, **options) == 1
    np.testing.assert_array_equal(counted.matmul(*args, **options), by_python(*args, **options))


@pytest.mark.parametrize("options", [{"algorithm": "fast"}, {"algorithm": "bf16_bf16_f32_x4"}, {"threads": 0},
                                     {"out_dtype": "f33"}, {"out": READ_ONLY}, {"nonsense": 1}, {"out_dtype": "i8"}])
def test_errors_are_pythons(counted: Counted, options: dict[str, Any]) -> None:
    for _ in range(2):
        counted.matmul(A, B)
        counted.matmul(A, B, np.empty((20, 25), np.float32))
        with pytest.raises((TypeError, ValueError)) as wanted:
            by_python(A, B, **options)
        with pytest.raises(wanted.type) as found:
            counted.matmul(A, B, **options)
        assert str(found.value) == str(wanted.value)


def test_an_out_that_overlaps_is_left_to_python(counted: Counted) -> None:
    block = random("f4", 60, 20)
    a, b, apart = block[:20], block[20:40], block[40:]
    counted.matmul(a, b, apart)
    assert counted.python_calls(a, b, apart) == 0
    wanted = by_python(a, b)
    out = block[19:39]
    assert counted.python_calls(a, b, out) == 1
    np.testing.assert_array_equal(out, wanted)


def test_what_the_tuner_learns_counts(counted: Counted) -> None:
    assert [counted.python_calls(A, B) for _ in range(2)] == [1, 0]
    counted.entry.forget()
    assert [counted.python_calls(A, B) for _ in range(2)] == [1, 0]


def test_one_slot_for_two_calls(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one takes it, and the earlier one is another call from then on."""
    first, second = (A, B), (A[:10], B)
    found = counted.entry.repeats
    assert found is not None
    counted.matmul(*first)
    (slot,) = found._records
    record = found._slots[slot]
    counted.matmul(*second)
    other = next(x for x in found._records if x != slot)
    found._slots[other] = record                    # as if both had this slot
    assert counted.python_calls(*second) == 1
    np.testing.assert_array_equal(counted.matmul(*second), by_python(*second))


def test_nothing_leaks(counted: Counted) -> None:
    a, b, options = CALLS["i8 into i32"]
    out = by_python(a, b, **options)
    watched = a, b, out, np.dtype(np.int32), np.dtype(np.int8)
    for run in (lambda: counted.matmul(a, b, **options)), (lambda: counted.matmul(a, b, out, **options)):
        for _ in range(20):
            run()
        gc.collect()
        before, blocks = [sys.getrefcount(x) for x in watched], sys.getallocatedblocks()
        for _ in range(1000):
            run()
        gc.collect()
        assert [sys.getrefcount(x) for x in watched] == before
        assert sys.getallocatedblocks() - blocks < 100
    assert counted.calls == 2


def test_many_python_threads(counted: Counted) -> None:
    """Some wait without the GIL, and those that find the workspace taken go through Python."""
    cases = [CALLS[name] for name in ("f64, packed", "bf16", "batch")]
    wanted = [by_python(a, b, **options) for a, b, options in cases]
    wrong = []

    def work(seed: int) -> None:
        for i in range(30):
            a, b, options = cases[(seed + i) % len(cases)]
            if not np.array_equal(counted.matmul(a, b, **options), wanted[(seed + i) % len(cases)]):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert counted.entry._word(abi.RUNNING).value == counted.entry._word(abi.SPACE_TAKEN).value == 0


def test_threads_that_remember_at_once_share_one_workspace(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would be freed while a record has its address."""
    taken = []

    def slow(size: int) -> workspace.Workspace:
        taken.append(size)
        time.sleep(0.02)                    # the others come to the same place meanwhile
        return workspace.Workspace(size)

    a, b, options = CALLS["bf16"]
    wanted, wrong = by_python(a, b, **options), []
    monkeypatch.setattr(repeats, "workspace", SimpleNamespace(take=slow))

    def work() -> None:
        wrong.extend(i for i in range(10) if not np.array_equal(counted.matmul(a, b, **options), wanted))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1
    assert not wrong


def test_records_are_made_under_the_lock_of_building(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that chooses a plan holds that lock when it empties the table of records. Both locks are taken in one
    order, or two threads' first products could wait for each other for ever."""
    owned, remember = [], Repeats._remember

    def watched(self: Repeats, *args: Any) -> bool:
        owned.append(forks.building._lock._is_owned())
        return remember(self, *args)
    monkeypatch.setattr(Repeats, "_remember", watched)
    counted.matmul(*(random("f4", 23, 23) for _ in range(2)))
    assert owned == [True]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_the_workspace(counted: Counted) -> None:
    """Though a thread that it lacks had taken it. The child's first call finds out how many threads there are."""
    def child(right: Callable[[], bool]) -> bool:
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            os._exit(0 if right() else 1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    a, b, _ = CALLS["f64, packed"]
    counted.matmul(a, b)
    taken = counted.entry._word(abi.SPACE_TAKEN)
    taken.value = 1
    assert counted.python_calls(a, b) == 1
    assert child(lambda: [counted.python_calls(a, b) for _ in range(2)][1] == 0)
    taken.value = 0
    assert counted.python_calls(a, b) == 0


# ---- algorithm= of small products


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("algorithm", [None, "fastest", "bf16_bf16_f32_x3", "bf16_bf16_f32_x6", "bf16_bf16_f32_x9",
                                       "bf16_bf16_f32_x4", "tf32_tf32_f32_x3", "fast", 3])
def test_algorithms_of_small_products(algorithm: Any, dtype: Any) -> None:
    """What the builtin takes has the bits and the errors of the call through Python."""
    a, b = RNG.standard_normal((9, 8)).astype(dtype), RNG.standard_normal((8, 7)).astype(dtype)
    tw.matmul(a, b)

    def outcome(matmul: Any) -> Any:
        try:
            return matmul(a, b, algorithm=algorithm).tobytes()
        except (TypeError, ValueError) as error:
            return type(error), str(error)

    for _ in range(3):
        assert outcome(tw.matmul) == outcome(by_python)


def test_up_to_where_algorithms_are_native() -> None:
    """Nothing is split up to the limit, whatever its shape; without AMX, nothing at all."""
    xeon = replace(target("x86-avx512"), extensions=("amx-tile", "amx-bf16", "amx-int8"))
    algorithms = (None, lowering.FASTEST, *lowering.ALGORITHMS)
    limits = {(name, threads): lowering.native_up_to(name, "f32", threads, xeon)
              for name in algorithms for threads in (1, 16)}
    assert limits[None, 1] == limits["fastest", 16] == float("inf")
    assert limits["bf16_bf16_f32_x4", 1] == -1
    assert 100**3 < limits["bf16_bf16_f32_x3", 1] < limits["bf16_bf16_f32_x6", 16] < limits["fastest", 1]
    assert lowering.native_up_to("bf16_bf16_f32_x6", "f64", 1, xeon) == -1
    for (name, threads), limit in limits.items():
        for m, n, k in ((32, 32, 2048), (96, 96, 96), (128, 160, 128), (64, 500, 192), (224, 224, 224), (300,)*3):
            if name and name != "bf16_bf16_f32_x4" and m*n*k <= limit:
                assert not lowering.algorithm_word(name, "f32", "f32", m, n, k, threads, xeon)
    assert lowering.native_up_to("bf16_bf16_f32_x6", "f32", 1, target("x86-avx2")) == float("inf")
