"""x86-64 instruction sets and what this machine has of them."""
from __future__ import annotations

from functools import cache

from tilewright.targets.base import CpuTarget

_TRIPLE = "x86_64-unknown-linux-gnu"


@cache
def target(name: str) -> CpuTarget:
    if name == "x86-avx512":
        return CpuTarget(name, _TRIPLE, "x86-64-v4", "-prefer-256-bit", 64, 32, True, 32 << 10, 1 << 20, 32 << 20, 2)
    if name == "x86-avx2":
        return CpuTarget(name, _TRIPLE, "x86-64-v3", "", 32, 16, False, 32 << 10, 1 << 20, 32 << 20, 2)
    raise ValueError(name)


@cache
def detect() -> CpuTarget:
    return target("x86-avx512")
