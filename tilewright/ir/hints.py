"""Hints to LLVM's scheduler and to the hardware's: in which order instructions are issued, whose wave goes first.

They change no result. Source: AMDGPUUsage, "llvm.amdgcn.sched.group.barrier", "llvm.amdgcn.sched.barrier"; MI300 ISA
guide, S_SETPRIO.
"""
from __future__ import annotations

from functools import cache

from tilewright.ir.operations import Operation

# Instructions that the scheduler's groups are made of.
GROUPS = {"alu": 0x1, "valu": 0x2, "salu": 0x4, "mfma": 0x8, "global": 0x10, "global read": 0x20, "global write": 0x40,
          "lds": 0x80, "lds read": 0x100, "lds write": 0x200}


def _hint(name: str, intrinsic: str, *numbers: tuple[int, int]) -> Operation:
    """`numbers`: value and bits of each."""
    return Operation(name, lambda low, t: low.call(intrinsic, None, *(low.integer(bits)(n) for n, bits in numbers)),
                     None, "hint", "effect", needs="amd")


@cache
def group(kind: str, count: int, pipeline: int) -> Operation:
    """The next `count` instructions of this kind come here, of those between the last barrier to the scheduler and the
    next one."""
    return _hint(f"sched_group {count} {kind}", "llvm.amdgcn.sched.group.barrier", (GROUPS[kind], 32), (count, 32),
                 (pipeline, 32))


@cache
def fence(kinds: tuple[str, ...]) -> Operation:
    """The scheduler moves no instructions across, but those of these kinds."""
    return _hint("sched_fence", "llvm.amdgcn.sched.barrier", (sum(GROUPS[kind] for kind in kinds), 32))


@cache
def priority(level: int) -> Operation:
    return _hint(f"priority {level}", "llvm.amdgcn.s.setprio", (level, 16))
