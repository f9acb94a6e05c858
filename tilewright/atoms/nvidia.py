"""Matrix instructions of NVIDIA's warps (`mma.sync`): spelling, meaning and register layouts.

Layouts are functions of lane and register, (row, column), that work on numbers, on arrays and on values of a kernel:
the meaning gathers matrices with them, kernels address memory with them, tests prove that they cover each element once.
Source: PTX ISA, "Matrix fragments for mma".
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.forks import cached_property
from tilewright.ir.ops.core import Operation
from tilewright.ir.types import Type, f64

LANES = 32
Layout = Callable[[Any, Any], tuple[Any, Any]]         # (lane, register) → (row, column)


@dataclass(frozen=True)
class Atom:
    """D[m, n] = A[m, k] @ B[k, n] + C[m, n] by one warp."""
    name: str                   # as PTX spells it
    m: int
    n: int
    k: int
    a_type: Type
    b_type: Type
    c_type: Type
    a: Layout
    b: Layout
    c: Layout
    registers: tuple[int, int, int]     # of A, B and C in each lane
    needs: str                          # what a target must have

    def __post_init__(self) -> None:
        """Proof: every element of each matrix is in exactly one register of one lane."""
        for layout, count, (rows, cols) in zip((self.a, self.b, self.c), self.registers,
                                               ((self.m, self.k), (self.k, self.n), (self.m, self.n))):
            held = sorted(layout(lane, r) for lane in range(LANES) for r in range(count))
            if held != [(i, j) for i in range(rows) for j in range(cols)]:
                raise ValueError(f"{self.name}: a layout does not cover {rows} x {cols} elements once")

    @cached_property
    def operation(self) -> Operation:
        return Operation(self.name, self._llvm, self._meaning, "mma", "group", LANES, needs=self.needs,
                         flops=2*self.m*self.n*self.k // LANES)

    def _llvm(self, low: Any, t: Any, *operands: Any) -> list[Any]:
        """Inline assembly, because LLVM has no intrinsic for every shape."""
        a, b, c = self.registers
        letter = {("f", 64): "d", ("f", 32): "f"}
        constraint = {name: letter.get((x.kind, x.bits), "r") for name, x in
                      (("a", self.a_type), ("b", self.b_type), ("c", self.c_type))}
        constraints = [f"={constraint['c']}"]*c + [constraint["a"]]*a + [constraint["b"]]*b + [constraint["c"]]*c
        numbers = iter(range(2*c + a + b))
        lists = ["{" + ",".join(f"${next(numbers)}" for _ in range(count)) + "}" for count in (c, a, b, c)]
        result = low.struct([self.c_type]*c)
        d = low.asm(f"{self.name} {', '.join(lists)};", result, ",".join(constraints), *operands, together=True)
        return [low.b.extract_value(d, e) for e in range(c)]

    def _meaning(self, t: Any, *operands: Any) -> list[Any]:
        """Operands are [groups, lanes]."""
        count_a, count_b, _ = self.registers
        a = self._matrix(operands[:count_a], self.a, (self.m, self.k))
        b = self._matrix(operands[count_a:count_a + count_b], self.b, (self.k, self.n))
        c = self._matrix(operands[count_a + count_b:], self.c, (self.m, self.n))
        d = np.matmul(a, b, dtype=c.dtype) + c
        lanes = np.arange(LANES)
        return [d[(slice(None), *self.c(lanes, r))] for r in range(self.registers[2])]

    @staticmethod
    def _matrix(registers: Any, layout: Layout, shape: tuple[int, int]) -> Any:
        lanes = np.arange(LANES)
        found = np.empty((len(registers[0]), *shape), registers[0].dtype)
        for r, x in enumerate(registers):
            rows, cols = layout(lanes, r)
            found[:, rows, cols] = x
        return found


def _m16n8(k: int) -> tuple[Layout, Layout, Layout]:
    """f64, 16 x 8 x k: a group of four lanes holds a row of A, and of B a column."""
    def a(lane: Any, r: Any) -> tuple[Any, Any]: return lane // 4 + r % 2 * 8, lane % 4 + r // 2 * 4
    def b(lane: Any, r: Any) -> tuple[Any, Any]: return lane % 4 + r * 4, lane // 4
    def c(lane: Any, r: Any) -> tuple[Any, Any]: return lane // 4 + r // 2 * 8, lane % 4 * 2 + r % 2
    return a, b, c


def _m8n8k4() -> tuple[Layout, Layout, Layout]:
    def a(lane: Any, r: Any) -> tuple[Any, Any]: return lane // 4, lane % 4
    def b(lane: Any, r: Any) -> tuple[Any, Any]: return lane % 4, lane // 4
    def c(lane: Any, r: Any) -> tuple[Any, Any]: return lane // 4, lane % 4 * 2 + r
    return a, b, c


def _f64(m: int, n: int, k: int, layouts: tuple[Layout, Layout, Layout], needs: str) -> Atom:
    registers = m*k // LANES, k*n // LANES, m*n // LANES
    return Atom(f"mma.sync.aligned.m{m}n{n}k{k}.row.col.f64.f64.f64.f64", m, n, k, f64, f64, f64, *layouts, registers,
                needs)


MMA_F64_8X8X4 = _f64(8, 8, 4, _m8n8k4(), "mma.f64")                     # Ampere's
MMA_F64_16X8X4, MMA_F64_16X8X8, MMA_F64_16X8X16 = (                     # Hopper's
    _f64(16, 8, k, _m16n8(k), "mma.f64.k16") for k in (4, 8, 16))
