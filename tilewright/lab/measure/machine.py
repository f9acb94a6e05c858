"""The machine, the software and the moment a result belongs to: without them a figure means nothing."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.targets import cpu
from tilewright.targets.machine import CPUINFO, caches, cpus, processor

# Flags worth a word in a report, of the hundred or so that /proc/cpuinfo lists.
TELLING = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_vnni", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "sve2", "bf16", "i8mm"),
)
RESULTS = "bench/results"
MEASURED = ("tilewright", "bench", "pyproject.toml", f":(exclude){RESULTS}")  # of the checkout
DIRTY = "-dirty"
PACKAGES = ("numpy", "llvmlite", "scipy-openblas64", "mkl", "blis", "torch")


@cache
def cpu_flags() -> frozenset[str]:
    return processor().flags


@cache
def _cpuinfo() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo."""
    try:
        block = CPUINFO.read_text(errors="replace").split("\n\n", 1)[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def cpu_model() -> str:
    """The name the processor gives itself, and its numbers, since a virtual one may say no more than "AMD EPYC"."""
    info = _cpuinfo()
    numbers = [f"{word} {info[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in info]
    return f"{processor().model} ({', '.join(numbers)})" if numbers else processor().model


def _caches() -> dict[str, int]:
    """{"l1d": bytes, "l2": bytes, "l3": bytes} as the first CPU we may use sees them."""
    levels = caches(cpus().allowed[0], cpu.ISAS[0].caches)
    return {name: level.size for name, level in levels.items()}


def last_level_bytes() -> int:
    """The size of the largest cache."""
    return max(_caches().values())


def memory_bytes() -> int:
    """The physical memory; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def describe() -> dict[str, Any]:
    """CPU, caches, cores, memory, kernel and versions, as JSON has them."""
    flags, here = cpu_flags(), cpus()
    return {
        "cpu": cpu_model(),
        "isa": [flag for flag in TELLING if flag in flags],
        "virtual": "hypervisor" in flags,
        "cpus": here.online,
        "cpus_allowed": here.count,
        "smt": here.smt,
        "caches": _caches(),
        "memory": memory_bytes(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": versions(*PACKAGES),
    }


def versions(*packages: str) -> dict[str, str]:
    """Versions of the packages that are installed."""
    numbers = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            numbers[package] = importlib.metadata.version(package)
    return numbers


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _git(*words: str, given: str | None = None) -> str:
    """What git says in the checkout that tilewright runs from. OSError or SubprocessError where there is none."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        raise FileNotFoundError(f"{root} is no checkout")
    return subprocess.run(["git", "-C", str(root), *words], input=given, capture_output=True, text=True, timeout=10,
                          check=True).stdout.strip()


def commit() -> str | None:
    """The commit of the checkout tilewright runs from, "-dirty" if the package or the scripts that measure have
    changes; None outside a checkout."""
    try:
        changed = _git("status", "--porcelain", "--", *MEASURED)
        return f"{_git('rev-parse', '--short=12', 'HEAD')}{DIRTY * bool(changed)}"
    except (OSError, subprocess.SubprocessError):
        return None


def sources(commit: str = "") -> str | None:
    """A digest of the package and the scripts that measure, names and content, as they are in the checkout or in a
    commit; None outside a checkout. A copy of a checkout may be at another commit, and still have the sources of one.
    """
    try:
        if commit:
            entries = [line.split("\t") for line in _git("ls-tree", "-r", commit, "--", *MEASURED[:-1]).splitlines()]
            blobs = {path: entry.split()[2] for entry, path in entries if not path.startswith(f"{RESULTS}/")}
        else:
            listed = _git("ls-files", "--cached", "--others", "--exclude-standard", "--full-name", "--", *MEASURED)
            gone = _git("ls-files", "--deleted", "--", *MEASURED)
            paths = sorted({*listed.splitlines()} - {*gone.splitlines()})
            blobs = dict(zip(paths, _git("hash-object", "--stdin-paths", given="\n".join(paths)).splitlines()))
    except (OSError, subprocess.SubprocessError):
        return None
    return hashlib.sha256("".join(f"{path} {blobs[path]}\n" for path in sorted(blobs)).encode()).hexdigest()


def commit_of(digest: str) -> str | None:
    """The latest commit up to HEAD that has these sources; None if there is none, and outside a checkout."""
    try:
        commits = _git("rev-list", "--abbrev-commit", "--abbrev=12", "HEAD", "--", *MEASURED).splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    return next((commit for commit in commits if sources(commit) == digest), None)
