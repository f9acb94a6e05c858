"""Whether this process may use AMX.

The kernel saves eight kilobytes more for every thread that uses tiles, and wants to be asked before: once for the whole
process, its later threads and its children (Linux, Documentation/arch/x86/xstate.rst).
"""
from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from functools import cache

from tilewright.targets.cpu import CpuTarget

ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA = 158, 0x1023, 18


@cache
def refusal() -> str:
    """Why this process may not use tiles, or ""."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if libc.syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0:
        return ""
    return f"Linux refuses it: {os.strerror(ctypes.get_errno())}"


def permitted(target: CpuTarget) -> CpuTarget:
    """The target, without AMX if it runs here and this process may not use it."""
    return without(target) if "amx-tile" in target.extensions and target.runnable and refusal() else target


def without(target: CpuTarget) -> CpuTarget:
    """The target without AMX."""
    if "amx-tile" not in target.extensions:
        return target
    return replace(target, extensions=tuple(name for name in target.extensions if not name.startswith("amx")))
