"""Keeping the rest of this process still while one peer is timed, and where to run it.

What other processes do meanwhile is measure/disturbance.py's part.

A BLAS keeps its idle threads spinning in case the next call comes soon: OpenBLAS for about 0.1 s, MKL's OpenMP for
0.2 s (both seen in /proc here).  Whoever is timed next shares the cores with them; at 2 threads on 2 cores that halves
the result.  `settle` watches for those threads to fall asleep and waits no longer than that.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tilewright.targets.machine import cpus

TASKS = Path("/proc/self/task")


def running_threads(tasks: Path = TASKS) -> int | None:
    """How many other threads of this process want a CPU now; None where /proc does not say."""
    me, count = str(threading.get_native_id()), 0
    try:
        entries = os.listdir(tasks)
    except OSError:
        return None
    for entry in entries:
        if entry == me:
            continue
        try:
            stat = (tasks / entry / "stat").read_text()
        except OSError:
            continue  # it ended meanwhile
        # The name in parentheses may hold anything, so the state is found from the right.
        count += stat[stat.rindex(")") + 2] == "R"
    return count


def settle(
    limit_s: float = 0.5,
    *,
    running: Callable[[], int | None] = running_threads,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Wait until no other thread of this process runs (twice in a row); returns the seconds waited.

    Without /proc it sleeps 0.25 s, longer than any peer seen here spins.  A thread that never sleeps costs `limit_s`.
    """
    start = clock()
    calm = 0
    while clock() - start < limit_s:
        count = running()
        if count is None:
            sleep(0.25)
            break
        calm = calm + 1 if count == 0 else 0
        if calm == 2:
            break
        sleep(0.0002 if calm else 0.002)
    return clock() - start


def fastest_cpu() -> int:
    """Where to pin a one-thread run: a CPU of the highest clock; of those the last, as CPU 0 serves interrupts."""
    return fastest_cpus(1)[0]


def fastest_cpus(count: int) -> list[int]:
    """Where to pin a run of `count` threads, the best CPU first; all of them, if there are not so many.

    A core has one of the threads before any has two.
    """
    system = Path("/sys/devices/system/cpu")

    def order(cpu: int) -> tuple[int, int, int]:
        khz, place = 0, 0
        with suppress(OSError, ValueError):
            khz = int((system / f"cpu{cpu}/cpufreq/cpuinfo_max_freq").read_text())
        with suppress(OSError, ValueError):
            siblings = (system / f"cpu{cpu}/topology/thread_siblings_list").read_text()
            place = [int(n) for n in siblings.replace("-", ",").split(",")].index(cpu)
        return khz, -place, cpu

    return sorted(cpus().allowed, key=order, reverse=True)[:count]


@contextmanager
def pinned(cpu: int | None = None) -> Iterator[int]:
    """The calling thread on one CPU, and back afterwards.  Threads started inside would inherit it: start none."""
    cpu = fastest_cpu() if cpu is None else cpu
    if not hasattr(os, "sched_setaffinity"):
        yield cpu
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield cpu
    finally:
        os.sched_setaffinity(0, before)
