"""A quiet machine: did other processes disturb a measurement, are this process's own threads asleep, where to run.

The rule for every measurement of this package: one that was disturbed is repeated, kept apart or refused; it is never
averaged with others. `tilewright doctor`, `bench`, `tune` and `explain --measure` all judge by `BUSY`. CPU times come
from /proc/stat (proc(5)), in ticks of 10 ms.

A BLAS keeps its idle threads spinning in case the next call comes soon: OpenBLAS for about 0.1 s, MKL's OpenMP for
0.2 s (both seen in /proc). The peer that is timed next shares the cores with them; at 2 threads on 2 cores that halves
the result. `settle` waits until those threads sleep, and no longer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tilewright.targets.machine import cpus

STAT, TASKS = Path("/proc/stat"), Path("/proc/self/task")
BUSY = 0.3  # CPUs that others keep busy from which on a measurement is disturbed
BLOCK_S = 0.2  # of an interval worth judging: 20 ticks, so that one more or less is 0.05 CPUs
SHORTEST_S = 0.05  # of one that can be judged at all

# ---- other processes


@dataclass(frozen=True)
class Load:
    """How busy the machine is: the load average, and the CPU time used so far, in seconds."""

    average: float | None
    total: float  # CPU time there was, of all CPUs
    busy: float  # of it, used by any process
    stolen: float  # of it, given to other virtual machines by the hypervisor
    own: float  # CPU time this process has used
    at: float  # by the monotonic clock
    taken: float | None = None  # of the CPUs that the process may run on: used by any process, or stolen; None: unknown

    @classmethod
    def now(cls, stat: Path | None = None) -> Load:
        average: float | None = None
        with suppress(OSError):
            average = os.getloadavg()[0]
        times = _times(stat or STAT)
        busy, idle, stolen = times.pop("cpu", (0.0, 0.0, 0.0))
        here = [f"cpu{n}" for n in _allowed()]
        taken = sum(times[name][0] + times[name][2] for name in here) if times.keys() >= set(here) else None
        return cls(average, busy + idle + stolen, busy, stolen, time.process_time(), time.monotonic(), taken)

    def stolen_since(self, earlier: Load) -> float:
        """The share of CPU time that the hypervisor gave to others between two looks, 0 to 1."""
        total = self.total - earlier.total
        return (self.stolen - earlier.stolen) / total if total > 0 else 0.0

    def others_since(self, earlier: Load) -> float:
        """How many CPUs of the machine other processes have kept busy between two looks."""
        return self._others(earlier, self.busy - earlier.busy) if self.total else 0.0

    def taken_since(self, earlier: Load) -> float:
        """How many of the CPUs that this process may run on others had between two looks: other processes, and other
        machines by way of the hypervisor."""
        if self.taken is None or earlier.taken is None:
            return 0.0
        return self._others(earlier, self.taken - earlier.taken)

    def beside(self, earlier: Load) -> dict[str, float | None]:
        """What a report says of the time between two looks (bench.results.Session)."""
        return {"load_before": earlier.average, "load_after": self.average, "stolen": self.stolen_since(earlier),
                "others": self.others_since(earlier)}

    def _others(self, earlier: Load, used: float) -> float:
        return max(0.0, used - (self.own - earlier.own)) / max(self.at - earlier.at, 1e-9)


def _allowed() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _times(stat: Path) -> dict[str, tuple[float, float, float]]:
    """{"cpu" or "cpu0", ...: seconds busy, idle, stolen}; nothing where there is no /proc/stat."""
    times = {}
    try:
        tick = 1 / os.sysconf("SC_CLK_TCK")
        for line in stat.read_text().splitlines():
            name, *counts = line.split()
            if not name.startswith("cpu"):
                break
            user, nice, system, idle, waiting, hard, soft, stolen = (int(count) * tick for count in counts[:8])
            times[name] = user + nice + system + hard + soft, idle + waiting, stolen
    except (OSError, ValueError):
        return {}
    return times


class Watch:
    """Says from time to time how many CPUs others had since it was asked last."""

    def __init__(self, look: Callable[[], Load] = Load.now) -> None:
        self.look = look
        self.last = look()

    def taken(self) -> float:
        """CPUs that others had since the last question, of those that this process may run on."""
        before, self.last = self.last, self.look()
        return self.last.taken_since(before)

    def disturbed(self) -> bool:
        """Whether others disturbed what was measured since the last question. Too short an interval is judged together
        with the next one."""
        return self.look().at - self.last.at >= SHORTEST_S and self.taken() > BUSY


def words(others: float, cpus: int) -> str:
    """What every report says of a disturbed measurement."""
    return f"other processes used {others:.1f} of {cpus} CPU{'s' * (cpus != 1)} while this was measured"


# ---- this process's own threads


def running_threads(tasks: Path = TASKS) -> int | None:
    """How many other threads of this process want a CPU now; None where /proc does not say."""
    me, count = str(threading.get_native_id()), 0
    try:
        entries = os.listdir(tasks)
    except OSError:
        return None
    for entry in entries:
        if entry != me:
            with suppress(OSError):  # it ended meanwhile
                stat = (tasks / entry / "stat").read_text()
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


# ---- where to run


def fastest_cpus(count: int) -> list[int]:
    """Where to pin a run of `count` threads, the best CPU first; all of them, if there are not so many.

    The highest clock first; a core has one of the threads before any has two; CPU 0 is the last choice, as it serves
    interrupts.
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
def pinned() -> Iterator[int]:
    """The calling thread on the fastest CPU, and back afterwards.  Threads started inside would inherit it: start
    none."""
    (cpu,) = fastest_cpus(1)
    if not hasattr(os, "sched_setaffinity"):
        yield cpu
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield cpu
    finally:
        os.sched_setaffinity(0, before)
