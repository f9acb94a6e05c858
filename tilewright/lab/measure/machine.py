"""The machine, the software and the moment a result belongs to: without them a figure means nothing."""

from __future__ import annotations

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
MEASURED = ("tilewright", "bench", "pyproject.toml", ":(exclude)bench/results")  # of the checkout
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
    found = caches(cpus().allowed[0], cpu.ISAS[0].caches)
    return {name: level.size for name, level in found.items()}


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
    """Of those that are installed."""
    found = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of the checkout tilewright runs from, "-dirty" if the package or the scripts that measure have
    changes; None outside a checkout."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10,
                              check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", *MEASURED)
        return f"{git('rev-parse', '--short=12', 'HEAD')}{DIRTY * bool(changed)}"
    except (OSError, subprocess.SubprocessError):
        return None
