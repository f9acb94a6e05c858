"""Hardware counters of this CPU, by Linux's perf_event_open: bytes by level of memory of some calls.

Every thread of the process is counted, so that the work of the pool's workers is. Caches count lines that loads did not
find; what was fetched ahead of its load is no miss of it, so that these are lower bounds.
"""
from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SYSCALL = {"x86_64": 298, "aarch64": 241}       # perf_event_open, by machine
HARDWARE, CACHE = 0, 3                          # kinds of events, as linux/perf_event.h numbers them
ATTRIBUTES = 128                                # bytes of struct perf_event_attr that are used here
ENABLED, RUNNING = 1, 2                         # formats of what is read: for how long an event was counted
FLAGS = 1 | 1 << 5 | 1 << 6                     # disabled at first; neither the kernel nor a hypervisor
ENABLE, DISABLE = 0x2400, 0x2401
SECONDS = 0.3                                   # of calls that are counted
L1D, LAST, READ, WRITE, MISS = 0, 2, 0, 1, 1
NOTHING = "there is no counter for this level"
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


class Event(NamedTuple):
    """Lines that come from a level."""
    level: str
    kind: int
    config: int
    what: str


def _cache(level: str, cache: int, operation: int, what: str) -> Event:
    return Event(level, CACHE, cache | operation << 8 | MISS << 16, what)


EVENTS = (_cache("L2", L1D, READ, "lines that loads did not find in L1, without those that were fetched ahead"),
          _cache("memory", LAST, READ, "lines that loads did not find in the last cache, without those fetched ahead"),
          _cache("memory", LAST, WRITE, "and those that stores did not find there"))


class Unavailable(OSError):
    """No counter can be read here; the message says why."""


def count(call: Callable[[], object], seconds: float, line: int) -> tuple[dict[str, int], dict[str, str]]:
    """(bytes of one call by level, by level what was counted or why nothing was). `seconds`: what a call takes."""
    counts: dict[str, int] = {}
    notes: dict[str, str] = {}
    repeats = max(round(SECONDS / max(seconds, 1e-9)), 1) if seconds < SECONDS else 1
    for event in EVENTS:
        try:
            lines = _counted(event, call, min(repeats, 10_000))
        except Unavailable as why:
            if event.level not in counts:
                notes[event.level] = f"not counted: {why}"
            continue
        words = event.what if event.level not in counts else f"{notes[event.level]}, {event.what}"
        counts[event.level] = counts.get(event.level, 0) + round(lines * line)
        notes[event.level] = words
    return counts, notes


def _counted(event: Event, call: Callable[[], object], repeats: int) -> float:
    """The event's count in one call, by all threads of this process."""
    files = [_open(event, int(thread)) for thread in os.listdir("/proc/self/task")] if Path("/proc/self").exists() \
        else [_open(event, 0)]
    try:
        for file in files:
            fcntl.ioctl(file, ENABLE, 0)
        for _ in range(repeats):
            call()
        for file in files:
            fcntl.ioctl(file, DISABLE, 0)
        return sum(map(_read, files)) / repeats
    finally:
        for file in files:
            os.close(file)


def _read(file: int) -> float:
    """An event that took turns with others on a counter is scaled to the whole time."""
    value, enabled, running = struct.unpack("QQQ", os.read(file, 24))
    return float(value * enabled / running) if running else 0.0


def _open(event: Event, thread: int) -> int:
    """A file descriptor. Unavailable, with a reason, if there is no such counter."""
    number = SYSCALL.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        raise Unavailable("counters are read by Linux's perf_event_open, on x86-64 and AArch64")
    attributes = bytearray(ATTRIBUTES)
    struct.pack_into("IIQ", attributes, 0, event.kind, ATTRIBUTES, event.config)
    struct.pack_into("QQ", attributes, 32, ENABLED | RUNNING, FLAGS)
    libc = ctypes.CDLL(None, use_errno=True)
    given = (ctypes.c_char * ATTRIBUTES).from_buffer(attributes)
    file = int(libc.syscall(number, given, thread, -1, -1, 0))
    if file < 0:
        raise Unavailable(_reason(ctypes.get_errno()))
    return file


def _reason(code: int) -> str:
    if code in (errno.EACCES, errno.EPERM):
        level = PARANOID.read_text().strip() if PARANOID.exists() else "unknown"
        return (f"this user may not read counters ({PARANOID} is {level}; up to 2 allows it, or the capability "
                "CAP_PERFMON)")
    if code in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
        return "this processor shows no such counter, as in most virtual machines"
    if code == errno.ENOSYS:
        return "this kernel has no perf_event_open, or a sandbox forbids it"
    return os.strerror(code)
