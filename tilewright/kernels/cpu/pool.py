"""The worker pool: threads that wait in emitted code, and the two ways of giving them work.

A *team* (`run_team`): fn(job, tid) for tid 0 … team-1, all at once, so that members may meet at an `emit_barrier`.
*Parts* (`run_parts`): fn(job, part) for part 0 … parts-1, each by the thread that claims it first. The caller claims
too and waits only for what others have claimed, never for a worker that sleeps: waking one costs more than a small
problem.

The pool is one block of memory, zero when new. A caller that uses it holds its lock; a caller that finds it taken
(another Python thread, or a worker whose job asks for workers) does the work alone: the lock is never waited for.

    LOCK      1 while the pool is in use; beside it LAST, the last value rung
    CLAIM     bell << 32 | parts << 16 | next part: one word, so that a claim is valid only for the run it belongs to
    DONE      how many members or parts have finished
    SETTINGS  WORKERS that exist, LIMIT and THREADS (see runtime/cpu/pool.py), SPIN_NS
    SLOTS     one per worker: its bell, whether it sleeps, and what to run

A worker watches the bell in its own slot, so that a team leaves the other workers asleep. A bell is a sequence number
in steps of 4 plus what is wanted: TEAM, PARTS or STOP. The worker reads it once. After TEAM the caller waits for this
worker, so its slot cannot change. After PARTS it may come too late, and then its claim fails.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Function, Kernel, Type, Value, i8, i32, i64, ptr
from tilewright.kernels.cpu.jobs import offsets
from tilewright.targets.cpu import CpuTarget

LINE = 128                                      # two cache lines: the hardware fetches them in pairs
LOCK, LAST, CLAIM, DONE, SETTINGS = 0, 4, LINE, 2 * LINE, 3 * LINE
WORKERS, LIMIT, SPIN_NS, THREADS = range(SETTINGS, SETTINGS + 32, 8)
SLOTS, SLOT = 4 * LINE, LINE                    # slot t belongs to thread t; slot 0 is the caller's and unused
BELL, ASLEEP, FN, JOB, POOL, TID = 0, 4, 8, 16, 24, 32      # inside a slot
MOST_WORKERS = 1023
SIZE = SLOTS + (MOST_WORKERS + 1) * SLOT
MOST_PARTS = (1 << 16) - 1

TEAM, PARTS, STOP = 1, 2, 3
PATIENCE = 512                                  # pauses, about 10 us, before a waiting thread starts to yield its core
GLANCES = 64                                    # looks at the bell between two looks at the clock
CLOCK_MONOTONIC, FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE = 1, 128, 129


def _field(base: Value, offset: int, type: Any) -> Value: return (base.as_(i8) + offset).as_(type)
def _slot(pool: Value, thread: Any) -> Value: return pool.as_(i8) + (thread * SLOT + SLOTS)


def _futex(k: Kernel, target: CpuTarget, word: Value, operation: int, value: Any) -> None:
    number = 98 if target.triple.startswith("aarch64") else 202
    null, value = k.constant(ptr(i8), 0), k.cast(value, i64) if isinstance(value, Value) else k.constant(i64, value)
    k.call_external("syscall", i64, k.constant(i64, number), word, k.constant(i64, operation), value, null, null,
                    k.constant(i64, 0), fixed=1)


def emit_wait(k: Kernel, pending: Callable[[], Value]) -> None:
    """Record: spin while `pending()`, politely. After about 10 us the core is offered to others, which matters when
    there are more threads than cores: the one waited for may need this very core."""
    tries = k.variable(i64, 0)
    with k.while_(pending):
        k.pause()
        tries.set(tries.get() + 1)
        with k.when(tries.get() >= PATIENCE):
            k.call_external("sched_yield", i32)
            tries.set(PATIENCE - 32)


def emit_barrier(k: Kernel, barrier: Value, team: Value) -> None:
    """Record: no member goes on before all `team` members (i64) of a run_team have come here.

    `barrier` points to 16 bytes (in a pair of cache lines of its own), zero when first used: how many have come, and
    how often all have. Every use leaves it ready for the next, by whatever team. What members wrote before is visible
    to all afterwards.
    """
    come, times = _field(barrier, 0, i64), _field(barrier, 8, i64)
    with k.when(team > 1):
        before = k.atomic_load(times)
        with k.when(k.atomic_add(come, 1) + 1 == team):
            k.atomic_store(come, 0, "monotonic")
            k.atomic_store(times, before + 1)
        with k.otherwise():
            emit_wait(k, lambda: k.atomic_load(times) == before)


@cache
def run_team(target: CpuTarget) -> Function:
    """pool_run_team(pool, fn, job, team) → 1: done; 0: the pool is in use or too small, and nothing has been run."""
    k = Kernel("pool_run_team", pool=ptr(i8), fn=ptr(i8), job=ptr(i8), team=i64, result=i64, noalias=False)
    pool, fn, job, team = k.args
    lock, done = _field(pool, LOCK, i32), _field(pool, DONE, i64)
    with k.when(team <= 1):
        k.call(fn, job, 0)
        k.ret(1)
    with k.when(k.atomic_load(_field(pool, WORKERS, i64)) < team - 1):
        k.ret(0)
    with k.when(k.atomic_replace(lock, 0, 1) == 0):
        k.ret(0)
    k.atomic_store(done, 0, "monotonic")
    _ring(k, pool, fn, job, team, _next_bell(k, pool, TEAM))
    _wake(k, target, pool, team)
    k.call(fn, job, 0)
    emit_wait(k, lambda: k.atomic_load(done) != team - 1)
    k.atomic_store(lock, 0)
    k.ret(1)
    return k.function


@cache
def run_parts(target: CpuTarget) -> Function:
    """pool_run_parts(pool, fn, job, parts, team, wake) → 1, or 0 when the caller had to do all parts itself.

    At most `team` threads work. Of those asleep at most `wake` are woken. One costs the caller microseconds: one for
    each of many small runs has them all awake in the end, as long as the runs follow each other closely.
    """
    k = Kernel("pool_run_parts", pool=ptr(i8), fn=ptr(i8), job=ptr(i8), parts=i64, team=i64, wake=i64, result=i64,
               noalias=False)
    pool, fn, job, parts, team, wake = k.args
    lock, done = _field(pool, LOCK, i32), _field(pool, DONE, i64)
    team = k.min(k.min(team, parts), k.atomic_load(_field(pool, WORKERS, i64)) + 1)
    alone = (team <= 1) | (parts > MOST_PARTS)
    with k.when(alone):
        _all_parts(k, fn, job, parts)
        k.ret(0)
    with k.when(k.atomic_replace(lock, 0, 1) == 0):
        _all_parts(k, fn, job, parts)
        k.ret(0)
    k.atomic_store(done, 0, "monotonic")
    bell = _next_bell(k, pool, PARTS)
    k.atomic_store(_field(pool, CLAIM, i64), (k.cast(bell, i64) << 32) | (parts << 16))
    _ring(k, pool, fn, job, team, bell)
    with k.when(wake != 0):
        _wake(k, target, pool, team, wake)
    k.call(_work_on_parts(), pool, fn.as_(i8), job, bell)
    emit_wait(k, lambda: k.atomic_load(done) != parts)
    k.atomic_store(lock, 0)
    k.ret(1)
    return k.function


def _all_parts(k: Kernel, fn: Value, job: Value, parts: Value) -> None:
    with k.loop(parts) as part:
        k.call(fn, job, part)


def _next_bell(k: Kernel, pool: Value, mode: int) -> Value:
    last = _field(pool, LAST, i32)
    k.store(last, k.load(last) + 4)
    return k.load(last) | mode


def _ring(k: Kernel, pool: Value, fn: Value, job: Value, team: Value, bell: Value) -> None:
    with k.loop(team, start=1) as thread:
        slot = _slot(pool, thread)
        k.store(_field(slot, FN, i64), k.address(fn))
        k.store(_field(slot, JOB, i64), k.address(job))
        k.atomic_store(_field(slot, BELL, i32), bell)


def _wake(k: Kernel, target: CpuTarget, pool: Value, team: Value, most: Value | None = None) -> None:
    """Wake the members that sleep, or so many of them. The fence, with the seq_cst store in `_next_call`, excludes that
    the caller sees a worker awake while that worker sees the old bell and goes to sleep."""
    k.fence()
    left = k.variable(i64, team if most is None else most)
    with k.loop(team, start=1) as thread:
        slot = _slot(pool, thread)
        with k.when((left.get() > 0) & (k.atomic_load(_field(slot, ASLEEP, i32), "monotonic") != 0)):
            _futex(k, target, _field(slot, BELL, i32), FUTEX_WAKE_PRIVATE, 1)
            left.set(left.get() - 1)


@cache
def _work_on_parts() -> Function:
    """Claim parts of the run that rang `bell` and do them, until none is left."""
    k = Kernel("pool_work_on_parts", pool=ptr(i8), fn=ptr(i8), job=ptr(i8), bell=i32, noalias=False)
    pool, fn, job, bell = k.args
    claim = _field(pool, CLAIM, i64)
    run = k.cast(bell, i64) << 32
    word = k.variable(i64, k.atomic_load(claim))

    def open_() -> Value:
        """It is this run (the upper half agrees) and its next part exists."""
        w = word.get()
        return ((w ^ run) < (1 << 32)) & ((w ^ run) >= 0) & ((w & 0xffff) < ((w // (1 << 16)) & 0xffff))

    with k.while_(open_):
        with k.when(k.atomic_replace(claim, word.get(), word.get() + 1, "acq_rel")):
            k.call(fn, job, word.get() & 0xffff)
            k.atomic_add(_field(pool, DONE, i64), 1, "release")
        word.set(k.atomic_load(claim))
    k.ret()
    return k.function


@cache
def _now() -> Function:
    """Nanoseconds of a clock that never goes back."""
    k = Kernel("pool_now", result=i64)
    time = k.local("time", (2,), i64)
    k.call_external("clock_gettime", i32, k.constant(i32, CLOCK_MONOTONIC), time)
    k.ret(time[0] * 1_000_000_000 + time[1])
    return k.function


@cache
def _next_call(target: CpuTarget) -> Function:
    """Wait until the slot's bell is no longer what was seen last: spin for SPIN_NS, then sleep. The new bell."""
    k = Kernel("pool_next_call", slot=ptr(i8), seen=i32, result=i32, noalias=False)
    slot, seen = k.args
    bell, asleep = _field(slot, BELL, i32), _field(slot, ASLEEP, i32)
    spin_ns = k.load(_field(k.load(_field(slot, POOL, i64), ptr(i8)), SPIN_NS, i64))
    start = k.variable(i64, k.call(_now()))
    with k.while_(lambda: k.constant(i64, 1) == 1):
        with k.loop(k.constant(i64, GLANCES)):
            rung = k.atomic_load(bell)
            with k.when(rung != seen):
                k.ret(rung)
            k.pause()
        with k.when(k.call(_now()) - start.get() > spin_ns):
            k.atomic_store(asleep, 1, "seq_cst")
            _futex(k, target, bell, FUTEX_WAIT_PRIVATE, seen)       # returns at once if the bell has changed
            k.atomic_store(asleep, 0, "monotonic")
            start.set(k.call(_now()))
    return k.function


@cache
def worker(target: CpuTarget) -> Function:
    """pool_worker(slot): what a thread of the pool runs all its life; the signature is pthread_create's."""
    k = Kernel("pool_worker", slot=ptr(i8), result=ptr(i8), noalias=False)
    slot, = k.args
    pool, tid = k.load(_field(slot, POOL, i64), ptr(i8)), k.load(_field(slot, TID, i64))
    bell = k.variable(i32, 0)
    with k.while_(lambda: k.constant(i64, 1) == 1):
        bell.set(k.call(_next_call(target), slot, bell.get()))
        mode = bell.get() & 3
        fn, job = (k.load(_field(slot, offset, i64), ptr(i8)) for offset in (FN, JOB))
        with k.when(mode == TEAM):
            k.call(fn, job, tid)
            k.atomic_add(_field(pool, DONE, i64), 1, "release")
        with k.when(mode == PARTS):
            k.call(_work_on_parts(), pool, fn, job, bell.get())
        with k.when(mode == STOP):
            k.ret(k.constant(ptr(i8), 0))
    return k.function


@cache
def _stop(target: CpuTarget) -> Function:
    """pool_stop(pool) → 1: every worker has been asked to end; 0: the pool is in use. It stays locked."""
    k = Kernel("pool_stop", pool=ptr(i8), result=i64, noalias=False)
    pool, = k.args
    with k.when(k.atomic_replace(_field(pool, LOCK, i32), 0, 1) == 0):
        k.ret(0)
    nothing = k.constant(ptr(i8), 0)
    team = k.atomic_load(_field(pool, WORKERS, i64)) + 1
    _ring(k, pool, nothing, nothing, team, _next_bell(k, pool, STOP))
    _wake(k, target, pool, team)
    k.ret(1)
    return k.function


def emit_pool(target: CpuTarget) -> list[Function]:
    return [worker(target), run_team(target), run_parts(target), _stop(target)]


# ---- what the functions that a pool runs begin with

def job_fields(k: Kernel, job: Value, fields: tuple[str, ...], T: Type, C: Type | None = None,
               **others: Type) -> SimpleNamespace:
    """The fields of a job as values, by name; operands are pointers to T, but for `others`. C: what alpha and beta are,
    if not of type T."""
    types = dict.fromkeys(("a", "b", "c", "a_space", "b_space", "sums"), ptr(T)) | \
        dict.fromkeys(("pack_a", "pack_b", "barriers", "finish"), ptr(i8)) | \
        {"alpha": C or T, "beta": C or T, **dict.fromkeys(("table", "operands", "a_beside", "b_beside"), ptr(i64))} | \
        {name: ptr(S) for name, S in others.items()}
    where = offsets(fields)
    return SimpleNamespace(**{name: k.field(job, where[name], types.get(name, i64)) for name in fields})


def job_kernel(name: str, job: tuple[str, ...], T: Type, **others: Type) -> tuple[Kernel, SimpleNamespace, Value]:
    """A kernel name(job, part), the fields of its job as `job_fields` makes them, and the part."""
    k = Kernel(name, noalias=False, job=ptr(i8), part=i64)
    return k, job_fields(k, k.args[0], job, T, **others), k.args[1]


def split(total: Value, ways: Value, rank: Value) -> tuple[Value, Value]:
    """The share [lo, hi) of `rank` when `total` things are dealt out in `ways` nearly equal runs."""
    return total*rank // ways, total*(rank + 1) // ways
