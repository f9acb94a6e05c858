"""Whether others disturbed a measurement: the CPU time that other processes and virtual machines took meanwhile.

The rule for every measurement of this package: one that was disturbed is repeated, kept apart or refused; it is never
averaged with others. `tilewright doctor`, `bench`, `tune` and `explain --measure` all judge by `BUSY`.

Source: /proc/stat (proc(5)), whose counts are in ticks of 10 ms.
"""
from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
BUSY = 0.3              # CPUs that others keep busy from which on a measurement is disturbed
BLOCK_S = 0.2           # of an interval worth judging: 20 ticks, so that one more or less is 0.05 CPUs
SHORTEST_S = 0.05       # of one that can be judged at all


@dataclass(frozen=True)
class Load:
    """How busy the machine is: the load average, and the CPU time used so far, in seconds."""
    average: float | None
    total: float                # CPU time there was, of all CPUs
    busy: float                 # of it, used by any process
    stolen: float               # of it, given to other virtual machines by the hypervisor
    own: float                  # CPU time this process has used
    at: float                   # by the monotonic clock
    cpus: int = 1               # that the process may run on
    taken: float | None = None  # of those CPUs' time: used by any process, or stolen. None: not known

    @classmethod
    def now(cls, stat: Path | None = None) -> Load:
        try:
            average: float | None = os.getloadavg()[0]
        except OSError:
            average = None
        times = _times(stat or STAT)
        busy, idle, stolen = times.pop("cpu", (0.0, 0.0, 0.0))
        here = [f"cpu{n}" for n in _allowed()]
        taken = sum(times[name][0] + times[name][2] for name in here) if times.keys() >= set(here) else None
        return cls(average, busy + idle + stolen, busy, stolen, time.process_time(), time.monotonic(),
                   len(here), taken)

    def stolen_since(self, earlier: Load) -> float:
        """The share of CPU time that the hypervisor gave to others between two looks, 0 to 1."""
        total = self.total - earlier.total
        return (self.stolen - earlier.stolen) / total if total > 0 else 0.0

    def others_since(self, earlier: Load) -> float:
        """How many CPUs of the machine other processes have kept busy between two looks."""
        used = (self.busy - earlier.busy) - (self.own - earlier.own)
        return max(0.0, used) / max(self.at - earlier.at, 1e-9) if self.total else 0.0

    def taken_since(self, earlier: Load) -> float:
        """How many of the CPUs that this process may run on others had between two looks: other processes, and other
        machines by way of the hypervisor. Of a process bound to one CPU, what runs on the others does not count."""
        if self.taken is None or earlier.taken is None:
            return 0.0
        used = (self.taken - earlier.taken) - (self.own - earlier.own)
        return max(0.0, used) / max(self.at - earlier.at, 1e-9)


def _allowed() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _times(stat: Path) -> dict[str, tuple[float, float, float]]:
    """{"cpu" or "cpu0", ...: seconds busy, idle, stolen}; nothing where there is no /proc/stat."""
    found = {}
    try:
        tick = 1 / os.sysconf("SC_CLK_TCK")
        for line in stat.read_text().splitlines():
            name, *counts = line.split()
            if not name.startswith("cpu"):
                break
            user, nice, system, idle, waiting, hard, soft, stolen = (int(count) * tick for count in counts[:8])
            found[name] = user + nice + system + hard + soft, idle + waiting, stolen
    except (OSError, ValueError):
        return {}
    return found


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
        if self.look().at - self.last.at < SHORTEST_S:
            return False
        return self.taken() > BUSY


def words(others: float, cpus: int) -> str:
    """What every report says of a disturbed measurement."""
    return f"other processes used {others:.1f} of {cpus} CPU{'s' * (cpus != 1)} while this was measured"
