"""What this machine says about itself: processor, flags, caches, and the CPUs that this process may use.

Read from /proc and /sys, in well under a millisecond and without importing anything; a virtual machine or another
system may hide any of it, so that every reader has something to fall back on.
"""
from __future__ import annotations

import operator
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CPUS = "/sys/devices/system/cpu"
MOST_THREADS = 1024             # of the pool, of a plan, and of what a caller may ask for
CPUINFO = Path("/proc/cpuinfo")


def thread_count(what: Any) -> int:
    """A number of threads: 1 to MOST_THREADS. TypeError or ValueError for anything else."""
    try:
        number = operator.index(what)
    except TypeError:
        raise TypeError(f"the number of threads must be an integer, not {type(what).__name__}") from None
    if not 1 <= number <= MOST_THREADS:
        raise ValueError(f"the number of threads must be 1 to {MOST_THREADS}, not {number}")
    return number


@dataclass(frozen=True)
class Processor:
    family: str                 # "x86-64", "aarch64", or what the system calls it
    model: str
    flags: frozenset[str]


def processor(cpuinfo: Path = CPUINFO) -> Processor:
    """The first block of /proc/cpuinfo, whose flags already leave out what the operating system does not support."""
    machine = os.uname().machine
    family = {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}.get(machine.lower(), machine)
    try:
        with open(cpuinfo, "rb") as f:      # one block only: a big server has hundreds, each slow to produce
            block = f.read(8192).decode(errors="replace").split("\n\n", 1)[0]
    except OSError:
        return Processor(family, machine, _flags_from_llvm())
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
    model = fields.get("model name") or fields.get("Model") or fields.get("CPU part", machine)
    flags = (fields.get("flags", "") + " " + fields.get("Features", "")).split()
    if family == "aarch64":
        flags.append("asimd")       # part of the calling convention; an emulator may show the cpuinfo of its host
    return Processor(family, model, frozenset(flags))


def _flags_from_llvm() -> frozenset[str]:
    """Without /proc: LLVM runs cpuid itself. Slow to import, so only here."""
    import llvmlite.binding as llvm
    here = {name for name, on in llvm.get_host_cpu_features().items() if on}
    spelled = {"lzcnt": "abm", "bmi": "bmi1", "neon": "asimd"}
    return frozenset(spelled.get(name, name) for name in here)


# ---- caches

@dataclass(frozen=True)
class Cache:
    size: int
    ways: int
    cpus: int                   # that share it
    line: int
    source: str


def caches(cpu: int, default: dict[str, Cache]) -> dict[str, Cache]:
    """"l1d", "l2" and "l3" as this CPU sees them: from sysfs, else from glibc, which asks cpuid, else the default."""
    levels = _caches_from_sysfs(cpu)
    for level, (size, ways) in _caches_from_glibc().items():
        if level not in levels and size > 0:
            levels[level] = Cache(size, max(ways, 1), 1, 64, "cpuid, through glibc's sysconf")
    return {**{level: default[level] for level in ("l1d", "l2")}, **levels}     # every chip of these families has both


def _caches_from_sysfs(cpu: int) -> dict[str, Cache]:
    levels: dict[str, Cache] = {}
    for index in range(10):
        folder = f"{CPUS}/cpu{cpu}/cache/index{index}/"
        kind = _read(folder + "type")
        if not kind:
            break
        level = {"1": "l1d", "2": "l2", "3": "l3"}.get(_read(folder + "level"))
        size = _bytes(_read(folder + "size"))
        if kind != "Instruction" and level and size:
            # some kernels leave one of these out or empty; that must not lose the cache
            ways, line = (_bytes(_read(folder + name)) for name in ("ways_of_associativity", "coherency_line_size"))
            shared = len(cpu_list(_read(folder + "shared_cpu_list")))
            levels[level] = Cache(size, ways or 8, shared or 1, line or 64, f"sysfs {folder[:-1]}")
    return levels


def _caches_from_glibc() -> dict[str, tuple[int, int]]:
    """(size, ways) by sysconf number: Python has no names for them. Other C libraries number them differently."""
    try:
        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return {}
        return {level: (os.sysconf(n), os.sysconf(n + 1)) for level, n in (("l1d", 188), ("l2", 191), ("l3", 194))}
    except (OSError, ValueError, AttributeError):
        return {}


def _read(path: str) -> str:
    """The text of a small file, "" where there is none."""
    try:
        with open(path) as f:
            return f.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _bytes(text: str) -> int:
    """"48K" → 49152; 0 for what is no number"""
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper(), 0)
    digits = text[:-1] if unit else text
    return int(digits) << unit if digits.isdecimal() else 0


def cpu_list(text: str) -> list[int]:
    """"0-2,8" → [0, 1, 2, 8]"""
    cpus: list[int] = []
    for part in text.split(","):
        if part.strip():
            first, _, last = part.partition("-")
            cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


# ---- how many CPUs

@dataclass(frozen=True)
class Cpus:
    """CPUs that this process may use, and what limits them."""
    allowed: tuple[int, ...]    # by affinity
    online: int                 # of the machine
    quota: float | None         # CPUs' worth of time that the control group grants; None: no limit
    smt: int                    # of the allowed CPUs, how many are one core

    @property
    def count(self) -> int:
        # a quota of 1.5 lets two threads run three quarters of the time, which is more than one thread can do
        limit = len(self.allowed) if self.quota is None else max(1, -int(-self.quota // 1))
        return min(len(self.allowed), limit)

    @property
    def why(self) -> str:
        text = f"the affinity mask allows {len(self.allowed)} of {self.online} CPUs"
        if self.quota is not None:
            text += f", the control group's quota is {self.quota:g}"
        return text + (f"; {self.smt} of them share a core" if self.smt > 1 else "")


def cpus() -> Cpus:
    """Looked up anew at every call: affinity and quota can change while a process runs."""
    online = os.cpu_count() or 1
    allowed = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else tuple(range(online))
    return Cpus(allowed, max(online, len(allowed)), quota(), _smt(allowed))


def _smt(allowed: tuple[int, ...]) -> int:
    """The first CPU speaks for all: reading every one of a large server would take milliseconds."""
    siblings = cpu_list(_read(f"{CPUS}/cpu{allowed[0]}/topology/thread_siblings_list"))
    return max(1, len(set(siblings) & set(allowed)))


def quota(membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """The tightest CPU limit of this control group and those above it, in CPUs; both versions of the interface."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts, files = (root, root / "unified"), ["cpu.max"]
        elif "cpu" in controllers.split(","):
            mounts, files = (root / controllers, root / "cpu"), ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        for mount in mounts:
            # in a container the path may be the host's, and not exist below the mount: then only the root answers
            group = mount / path.strip("/")
            limits += [_share(folder, files) for folder in (group, *group.parents) if folder.is_relative_to(mount)]
    return min((limit for limit in limits if limit), default=None)


def _share(folder: Path, files: list[str]) -> float | None:
    """The CPU time of a period over its length, which these files hold; None for no limit."""
    try:
        share, period = " ".join((folder / name).read_text() for name in files).split()
        return None if share == "max" or int(share) <= 0 else int(share) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
