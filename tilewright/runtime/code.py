"""Machine code for the engine, by what it is for: micro-kernels, packing, drivers. Compiled when first asked for."""
from __future__ import annotations

from functools import cache

import numpy as np

from tilewright.compiler.load import load
from tilewright.kernels.cpu import jobs
from tilewright.plans.cpu import ITEMSIZE
from tilewright.targets.base import CpuTarget

_CPU = "tilewright.kernels.cpu."


class Microkernels:
    """The micro-kernels of one register tile as a table of addresses, filled as problems need them.

    `a` says how they read A. "packed" kernels stand at (height - 1)*NV + vectors - 1. The others read B in place and
    stand at twice that: first the kernel for a full row of B, then the one that masks what is past the last column. An
    edge of at most half a vector has vectors half as wide, of which Zen 4 multiplies two in the time of one: it stands
    where a full row of one vector would, which no tile of several vectors meets.
    """

    def __init__(self, target: CpuTarget, dtype: str, mr: int, nr: int, a: str) -> None:
        self.target, self.dtype, self.a = target, dtype, a
        self.mr, self.nr, self.lanes = mr, nr, target.lanes(ITEMSIZE[dtype])
        self.vectors = nr // self.lanes
        self.table = np.zeros(mr * self.vectors * (1 if a == "packed" else 2), np.int64)
        self.address = self.table.ctypes.data

    def need(self, m: int, n: int) -> None:
        """Compile what an m x n matrix C meets: two heights of row panels, whole column panels and the last one."""
        panels = -(-m // self.mr)
        heights = {m // panels, -(-m // panels)}
        last = -(-(n % self.nr) // self.lanes)
        for height in heights:
            if n >= self.nr:
                self._need(height, self.vectors, False)
            if last:
                half = self.a != "packed" and self.vectors > 1 and n % self.nr <= self.lanes // 2
                self._need(height, last, True, half)

    def _need(self, height: int, vectors: int, edge: bool, half: bool = False) -> None:
        index = (height - 1)*self.vectors + vectors - 1
        b = "packed"
        if self.a != "packed":
            index, b = 2*index + (edge and not half), "masked" if edge else "rows"
        if not self.table[index]:
            lanes = self.lanes // 2 if half else self.lanes
            code = load(_CPU + "microkernel:emit_microkernel", self.target, self.dtype, height, vectors, self.a, b,
                        lanes)
            name = jobs.microkernel_name(self.dtype, height, vectors * lanes, self.a, b)
            self.table[index] = code.address(name)


@cache
def microkernels(target: CpuTarget, dtype: str, mr: int, nr: int, a: str) -> Microkernels:
    return Microkernels(target, dtype, mr, nr, a)


@cache
def packing(target: CpuTarget, dtype: str, width: int, kind: str) -> int:
    """Address of the function that packs panels of up to `width` lines: kernels/cpu/packing.py."""
    return load(_CPU + "packing:emit_pack", target, dtype, width, kind).address(jobs.packing_name(dtype, width, kind))


@cache
def driver(target: CpuTarget, algorithm: str, dtype: str, mr: int, nr: int) -> int:
    """Address of the loops around the kernels."""
    if algorithm in ("dots", "stream"):
        found = load(f"{_CPU}{algorithm}:emit_{algorithm}", target, dtype, mr, nr)
        return found.address(f"{algorithm}_{dtype}_{mr}x{nr}")
    vectors = nr // target.lanes(ITEMSIZE[dtype])
    if algorithm == "packed":
        return load(_CPU + "gemm:emit_gemm", target, dtype, mr, vectors).address(f"gemm_{dtype}_{mr}x{nr}")
    return load(_CPU + "in_place:emit_in_place", target, dtype, mr, vectors).address(f"in_place_{dtype}_{mr}x{nr}")
