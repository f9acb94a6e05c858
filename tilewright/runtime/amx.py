"""Whether this process may use AMX, and for which operands it is used.

The kernel saves eight kilobytes more for every thread that uses tiles, and wants to be asked before: once for the whole
process, its later threads and its children (Linux, Documentation/arch/x86/xstate.rst).
"""
from __future__ import annotations

import ctypes
import os
from functools import cache

from tilewright.targets.base import CpuTarget

ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA = 158, 0x1023, 18
BF16 = ("bf16", "e5m2", "e4m3fn", "e4m3fnuz")       # formats of which every finite number is a bf16
BYTES = ("i8", "u8")


@cache
def refusal() -> str:
    """Why this process may not use tiles, or ""."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if libc.syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0:
        return ""
    return f"Linux refuses it: {os.strerror(ctypes.get_errno())}"


def usable(extension: str, target: CpuTarget) -> bool:
    """Whether this process may run code for the target that uses "amx-bf16" or "amx-int8"."""
    return extension in target.extensions and not refusal()


def word(a: str, b: str, accumulator: str, target: CpuTarget) -> str:
    """What of plans.amx multiplies operands of these formats, or ""."""
    if accumulator == "f32" and a in BF16 and b in BF16:
        return "amx_bf16" if usable("amx-bf16", target) else ""
    if accumulator == "i32" and ((a in BYTES and b in BYTES) or a == b == "i32"):
        return ("amx_i32" if a == "i32" else f"amx_{a}{b}") if usable("amx-int8", target) else ""
    return ""
