"""The pool and the counts: teams, parts, several users at once, forks, other people's pools, the end of the process."""

from __future__ import annotations

import concurrent.futures
import ctypes
import errno
import itertools
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.emitted import emit_jobs
from tilewright.compiler.artefact import load
from tilewright.kernels.cpu import pool as layout
from tilewright.plans.choose import choose
from tilewright.plans.cpu_shape import Shape
from tilewright.runtime.cpu import engine, pool
from tilewright.runtime.cpu.pool import Pool
from tilewright.targets import detect, machine

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in pool.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    tw.set_num_threads(None)
    yield
    monkeypatch.undo()
    tw.set_num_threads(None)


def job(*values: int, size: int = 128) -> np.ndarray:
    """int64 memory that starts a cache line."""
    block = np.zeros(size + 8, np.int64)
    aligned = block[-block.ctypes.data % 64 // 8 :][:size]
    aligned[: len(values)] = values
    return aligned


def function(name: str) -> int:
    return load(emit_jobs, detect()).address(name)


def meet(p: Pool, team: int, rounds: int) -> bool | None:
    """Barriers among a team; whether all was right, None if the team was not to be had."""
    memory = job()
    memory[8], memory[9] = team, rounds
    if not p.run_team(function("meet"), memory.ctypes.data, team):
        return None
    barriers = 2 * rounds if team > 1 else 0
    right = memory[0] == 0 and memory[1] == barriers and memory[10] == 0
    return bool(right and (memory[16 : 16 + 8 * team : 8] == rounds).all())


def mark(p: Pool, parts: int, team: int, pauses: int = 0, wake: int = 0) -> tuple[bool, bool]:
    """(every part was done once, whether others might help)"""
    memory = job(size=parts + 17)
    memory[7] = pauses
    shared = p.run_parts(function("mark"), memory[8:].ctypes.data, parts, team, wake)
    return bool((memory[8 : 8 + parts] == 1).all() and (memory[8 + parts :] == 0).all()), shared


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if k not in pool.VARIABLES}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"} | variables
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, cwd=ROOT, timeout=120,
                          capture_output=True, text=True)


# ---- the pool


def test_emitter_and_runtime_agree() -> None:
    for name in ("SIZE", "WORKERS", "LIMIT", "SPIN_NS", "THREADS", "SLOTS", "SLOT", "POOL", "TID"):
        assert getattr(pool, name) == getattr(layout, name), name
    assert pool.MOST == layout.MOST_WORKERS + 1


@pytest.mark.parametrize("team", range(1, 9))
def test_team_with_barriers(team: int) -> None:
    p = pool.pool()
    assert p.reserve(team) == team
    assert meet(p, team, 200 if team > 2 else 2000)


@pytest.mark.parametrize("team", [1, 2, 5])
@pytest.mark.parametrize("parts", [0, 1, 2, 7, 64, 1000, layout.MOST_PARTS, layout.MOST_PARTS + 1])
def test_parts(parts: int, team: int) -> None:
    p = pool.pool()
    p.reserve(team)
    for wake in (0, 1, team):
        right, shared = mark(p, parts, team, wake=wake)
        assert right
        assert shared == (1 < parts <= layout.MOST_PARTS and team > 1)


def test_parts_and_teams_in_turn() -> None:
    """Workers that come late to one kind of work must not take it for the next."""
    p = pool.pool()
    p.reserve(4)
    rng = np.random.default_rng(1)
    for _ in range(1500):
        kind, team = rng.integers(4), int(rng.integers(1, 5))
        if kind:
            assert mark(p, int(rng.integers(1, 20)), team, int(rng.integers(30)), int(kind))[0]
        else:
            assert meet(p, team, 2)


def test_team_needs_its_workers() -> None:
    p = Pool()
    assert meet(p, 2, 1) is None
    assert meet(p, 1, 1)
    assert mark(p, 10, 2) == (True, False)
    assert p.reserve(2) == 2
    assert meet(p, 2, 1)
    assert meet(p, 3, 1) is None
    p.stop()
    assert p.workers == 0
    assert meet(p, 2, 1) is None
    assert mark(p, 10, 2)[0]


def test_team_inside_a_team_is_refused() -> None:
    p = pool.pool()
    p.reserve(3)
    for inner, got in ((2, 0), (1, 3)):
        memory = job(p.team_address, p.address, function("nothing"), 0, 0, inner)
        assert p.run_team(function("nested"), memory.ctypes.data, 3)
        assert memory[4] == got


def test_several_python_threads_at_once() -> None:
    p = pool.pool()
    p.reserve(3)
    outcomes: list[bool | None] = []

    def work() -> None:
        for _ in range(200):
            outcomes.append(meet(p, 3, 3))
            outcomes.append(mark(p, 10, 3, 20)[0])

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 2000
    assert True in outcomes
    assert False not in outcomes  # None, when another thread had the pool, is right


def test_sleeping_workers() -> None:
    """A run of parts wakes at most `wake` sleeping workers; a team wakes its members, and no others."""
    p = Pool()
    p.reserve(5)

    def asleep() -> list[int]:
        slots = (p.address + layout.SLOTS + t * layout.SLOT for t in range(1, 5))
        return [ctypes.c_int32.from_address(slot + layout.ASLEEP).value for slot in slots]

    def until(state: list[int]) -> bool:
        end = time.monotonic() + 60
        while asleep() != state and time.monotonic() < end:
            time.sleep(0.001)
        return asleep() == state

    assert until([1, 1, 1, 1])
    assert mark(p, 50, 5) == (True, True)
    assert asleep() == [1, 1, 1, 1]
    p._number(pool.SPIN_NS).value = 30 * 10**9  # so that who wakes stays awake
    assert meet(p, 2, 10)
    assert asleep() == [0, 1, 1, 1]
    assert mark(p, 50, 3, wake=3) == (True, True)
    assert until([0, 0, 1, 1])
    assert mark(p, 50, 5, wake=1) == (True, True)
    assert until([0, 0, 0, 1])
    p.stop()


def test_system_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Pool()
    create = p._create
    monkeypatch.setattr(p, "_create", lambda *args: errno.EAGAIN if p.workers >= 2 else create(*args))
    with pytest.warns(RuntimeWarning, match="could start only 2 of 4"):
        assert p.reserve(5) == 3
    assert p.reserve(5) == 3  # without a second warning
    assert meet(p, 3, 5)
    p.stop()


# ---- how many


def test_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tw.get_num_threads() == machine.cpus().count
    for quota, threads in ((0.5, 1), (1.0, 1), (1.5, 2), (7.2, 4), (None, 4)):
        monkeypatch.setattr(machine, "quota", lambda quota=quota: quota)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4, 5})
        tw.set_num_threads(None)
        assert tw.get_num_threads() == threads


def test_affinity() -> None:
    code = "import os, tilewright; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(tilewright.{})"
    assert run_python(code.replace("{}", "get_num_threads()")).stdout == "1\n"


@pytest.mark.parametrize(
    ("ours", "openmp", "threads"),
    [("3", None, 3), (" 5 ", "2", 5), (None, "6", 6), (None, "7,2", 7), ("", "4", 4), ("2000", None, pool.MOST)],
)
def test_variables(monkeypatch: pytest.MonkeyPatch, ours: str | None, openmp: str | None, threads: int) -> None:
    for name, value in zip(pool.VARIABLES, (ours, openmp)):
        if value is not None:
            monkeypatch.setenv(name, value)
    tw.set_num_threads(None)
    assert tw.get_num_threads() == threads


@pytest.mark.parametrize("name", pool.VARIABLES)
@pytest.mark.parametrize("value", ["zero", "0", "-1", "2.5", "1e3", "²"])
def test_bad_variables(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.warns(RuntimeWarning, match=f"{name}='{value}'"):
        tw.set_num_threads(None) or tw.get_num_threads()
    assert tw.get_num_threads() == machine.cpus().count


def test_set_num_threads() -> None:
    tw.set_num_threads(5)
    assert tw.get_num_threads() == 5
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        assert executor.submit(tw.get_num_threads).result() == 5
    tw.set_num_threads(np.int64(2))
    assert tw.get_num_threads() == 2
    for wrong in (0, -3, pool.MOST + 1, 1.5, "2"):
        error = ValueError if isinstance(wrong, int) else TypeError
        with pytest.raises(error, match="number of threads must be"):
            tw.set_num_threads(wrong)  # type: ignore[arg-type]
        with pytest.raises(error), tw.threads(wrong):  # type: ignore[arg-type]
            pass
    assert tw.get_num_threads() == 2


def test_threads_is_for_the_calling_thread() -> None:
    tw.set_num_threads(4)
    with concurrent.futures.ThreadPoolExecutor(1) as executor, tw.threads(2):
        assert tw.get_num_threads() == 2
        assert executor.submit(tw.get_num_threads).result() == 4
        with tw.threads(7):
            assert tw.get_num_threads() == 7
        tw.set_num_threads(3)
        assert tw.get_num_threads() == 2
        assert executor.submit(tw.get_num_threads).result() == 3
    assert tw.get_num_threads() == 3
    with pytest.raises(ZeroDivisionError), tw.threads(1):
        raise ZeroDivisionError
    assert tw.get_num_threads() == 3


def test_limit_for_emitted_code() -> None:
    """It is 0 when Python must be asked: while any thread has its own number, and before the workers exist."""
    p = pool.pool()
    limit = p._number(pool.LIMIT)
    tw.set_num_threads(3)
    p.reserve()
    assert limit.value == 3
    with tw.threads(2):
        assert limit.value == 0
        p.reserve()
        assert limit.value == 0
    assert limit.value == 3
    tw.set_num_threads(p.workers + 2)
    assert limit.value == 0
    p.reserve()
    assert limit.value == p.workers + 1
    tw.set_num_threads(1)
    assert limit.value == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("chosen", [None, 1])
def test_limit_after_a_fork(chosen: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child has no workers; once it knows that one thread is what it may use, emitted code may go ahead."""
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "1")
    p = pool.pool()
    p.reserve(2)
    tw.set_num_threads(chosen)
    child = os.fork()
    if child == 0:
        known = tw.get_num_threads() == 1
        os._exit(0 if known and p.workers == 0 and p._number(pool.LIMIT).value == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- other people's pools and tools


def _in_worker(variables: dict[str, str]) -> tuple[int, bool]:
    os.environ.update(variables)
    tw.set_num_threads(None)
    threads = tw.get_num_threads()
    pool.pool().reserve(2)
    return threads, bool(meet(pool.pool(), 2, 10))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_concurrent_futures(method: str) -> None:
    pool.pool().reserve(2)
    assert not pool.in_worker_process()
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        assert executor.submit(_in_worker, {}).result(60) == (1, True)
        assert executor.submit(_in_worker, {"TILEWRIGHT_NUM_THREADS": "3"}).result(60) == (3, True)
    assert meet(pool.pool(), 2, 10)


@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_joblib(backend: str) -> None:
    joblib = pytest.importorskip("joblib")
    cpus = machine.cpus().count
    got = joblib.Parallel(n_jobs=2, backend=backend)(joblib.delayed(_threads_and_product)() for _ in range(4))
    # loky sets OMP_NUM_THREADS in its workers to their share of the machine
    share = {"loky": max(cpus // 2, 1), "multiprocessing": 1, "threading": cpus}[backend]
    assert got == [(share, True)] * 4


def _threads_and_product() -> tuple[int, bool]:
    a = np.arange(40_000, dtype=np.float32).reshape(200, 200) % 7
    return tw.get_num_threads(), bool((tw.matmul(a, a) == a @ a).all())


def test_threadpoolctl() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    pool.pool()
    tw.set_num_threads(4)

    def info() -> list[dict]:
        return [x for x in threadpoolctl.threadpool_info() if x["internal_api"] == "tilewright"]

    assert [(x["num_threads"], x["user_api"], x["version"]) for x in info()] == [(4, "blas", tw.__version__)]
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        assert tw.get_num_threads() == 2
        assert info()[0]["num_threads"] == 2
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            assert executor.submit(tw.get_num_threads).result() == 4
    assert tw.get_num_threads() == 4
    assert pool._local_limits == 0
    with tw.threads(3):
        with threadpoolctl.threadpool_limits(1):
            assert tw.get_num_threads() == 1
        assert tw.get_num_threads() == 3
    assert tw.get_num_threads() == 4


@pytest.mark.parametrize("first", ["threadpoolctl", "tilewright"])
def test_threadpoolctl_in_any_order(first: str) -> None:
    pytest.importorskip("threadpoolctl")
    second = "tilewright" if first == "threadpoolctl" else "threadpoolctl"
    done = run_python(f"""
        import {first}, {second}, tilewright as tw
        assert not [x for x in threadpoolctl.threadpool_info() if x["internal_api"] == "tilewright"]
        from tilewright.runtime.cpu import pool
        pool.pool().reserve(2)
        print([x["internal_api"] for x in threadpoolctl.threadpool_info()].count("tilewright"))
    """)
    assert done.stdout == "1\n", done.stderr


# ---- fork and exit


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_fork_while_others_work() -> None:
    """The child has none of the parent's workers, and perhaps its locks as another thread held them."""
    p = pool.pool()
    p.reserve(3)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            meet(p, 3, 5)

    busy = [threading.Thread(target=work) for _ in range(2)]
    for thread in busy:
        thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                right = p.workers == 0 and meet(p, 3, 5) is None and p.reserve(3) == 3 and meet(p, 3, 50)
                os._exit(0 if right else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in busy:
            thread.join()
    assert meet(p, 3, 5)


EXITS = {
    "idle workers": "",
    "sleeping workers": "import time; time.sleep(0.05)",
    "a daemon thread at work": """
        import threading, time
        from tests.helpers.emitted import emit_jobs
        from tilewright.compiler.artefact import load
        from tilewright.targets import detect
        nothing = load(emit_jobs, detect()).address("nothing")
        def work():
            while True:
                p.run_team(nothing, 0, 2)
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.05)
    """,
    "a fork": """
        import os, warnings
        warnings.simplefilter("ignore")
        child = os.fork()
        p.reserve(2)
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """,
    "an exception": "raise SystemExit(0)",
    "a product from a destructor": """
        import numpy as np, tilewright as tw
        tw.matmul(np.ones((4, 4)), np.ones((4, 4)))
        class Late:
            def __init__(self): self.a, self.matmul = np.ones((4, 4)), tw.matmul
            def __del__(self): self.matmul(self.a, self.a)
        late = Late()
        late.cycle = late
    """,
}


@pytest.mark.parametrize("case", EXITS)
def test_exit(case: str) -> None:
    prelude = "from tilewright.runtime.cpu import pool\np = pool.pool()\np.reserve(2)\n"
    done = run_python(prelude + textwrap.dedent(EXITS[case]))         # which ends what hangs
    assert (done.returncode, done.stderr) == (0, "")


# ---- the engine


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("algorithm", ["packed", "in_place", "dots", "stream"])
def test_same_bits_from_any_number_of_threads(algorithm: str, dtype: type) -> None:
    """One plan, from 1 to 8 threads, however they are split over its loops."""
    rng = np.random.default_rng(3)
    shapes = ((513, 700, 129), (500, 450, 700), (300, 290, 310), (37, 41, 43), (4, 2000, 500), (1000, 3, 800))
    found = False
    for m, n, k in shapes:
        shape = Shape({4: "f32", 8: "f64"}[np.dtype(dtype).itemsize], m, n, k, "rows", "rows", 1)
        plan = choose(shape, detect())
        if plan.algorithm != algorithm:
            continue
        found = True
        a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
        results = {}
        for threads in range(1, 9):
            for jc, ic in itertools.product(range(1, threads + 1), repeat=2):
                jr, rest = divmod(threads, jc * ic)
                for own_b in (False, True):
                    split = replace(plan, jc_ways=jc, ic_ways=ic, jr_ways=jr, own_b=own_b)
                    if rest or split.violations(shape, detect()):
                        continue
                    c = np.full((m, n), np.nan, dtype)
                    engine.gemm(a, b, c, threads=threads, plan=split)
                    results[jc, ic, jr, own_b] = c.tobytes()
        assert {jc * ic * jr for jc, ic, jr, _ in results} >= {1, 2, 4, 8}
        assert len(set(results.values())) == 1, (m, n, k, plan)
        np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-3, atol=1e-3)
    if not found:
        pytest.skip(f"no shape here is for {algorithm!r}")


def test_products_from_several_python_threads() -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-4, 5, (400, 400)).astype(np.float32) for _ in range(2))
    want = a @ b

    def work(_: int) -> bool:
        return all((tw.matmul(a, b) == want).all() for _ in range(10))

    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        assert all(executor.map(work, range(4)))
