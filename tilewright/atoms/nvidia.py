"""Matrix instructions of NVIDIA's warps (`mma.sync`): every dense one of sm_75 to sm_90, by a table of their shapes.

    k.mma(atom, a, b, c)    a lane's registers of A, B and C, and its registers of D

Elements of less than 64 bits are in registers of 32 bits, lowest bits first: i32 values of A and B, and of sums in f16;
sums in f32 and i32 are values of that type. Which element is where is a `Fragment` (atoms/fragment.py), a function of
lane and element: the meaning takes registers apart with it, kernels address memory with it.

The meaning: products exact, and their sum with C rounded once, to nearest. The hardware adds up products aligned to the
largest of them, and truncates what falls below some 24 bits of it (of fp8 on Hopper about 14), in an order that is not
published. That is not modelled bit for bit; where every partial sum is a whole number that fits, both give the same.
tf32 operands are f32 values whose lowest 13 bits do not count. Sums in i32 keep their lowest 32 bits, or with
`saturate` become the nearest i32.

Not here: m8n8k4 of f16, which only Volta has in hardware; 4-bit integers and single bits; sparse instructions.
Source: PTX ISA, "Matrix fragments for mma", https://docs.nvidia.com/cuda/parallel-thread-execution/
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tilewright.atoms.fragment import Fragment
from tilewright.forks import cached_property
from tilewright.ir.ops.core import Operation
from tilewright.ir.types import f32, f64, i32, vec
from tilewright.targets.nvidia import GpuTarget

LANES = 32
MANUAL = "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma"
SPELLED = {"i8": "s8", "u8": "u8", "e4m3fn": "e4m3", "i32": "s32"}             # where PTX has another name
# Formats of A and of B (any pair of a row's), of the sums, m n k, and what a target must have.
TABLE: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[int, int, int], ...], str], ...] = (
    (("f16",), ("f32", "f16"), ((16, 8, 8),), "mma"),
    (("f16",), ("f32", "f16"), ((16, 8, 16),), "mma.ampere"),
    (("bf16",), ("f32",), ((16, 8, 8), (16, 8, 16)), "bf16"),
    (("tf32",), ("f32",), ((16, 8, 4), (16, 8, 8)), "tf32"),
    (("f64",), ("f64",), ((8, 8, 4),), "mma.f64"),
    (("f64",), ("f64",), ((16, 8, 4), (16, 8, 8), (16, 8, 16)), "mma.f64.k16"),
    (("i8", "u8"), ("i32",), ((8, 8, 16),), "mma"),
    (("i8", "u8"), ("i32",), ((16, 8, 16), (16, 8, 32)), "mma.ampere"),
    (("e4m3fn", "e5m2"), ("f32", "f16"), ((16, 8, 16), (16, 8, 32)), "fp8"),
)
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "i8": 8, "u8": 8, "e4m3fn": 8, "e5m2": 8, "f32": 32, "i32": 32}


@dataclass(frozen=True, eq=False)
class Atom:
    """D[m, n] = A[m, k] @ B[k, n] + C[m, n] by one warp."""
    name: str                   # as PTX spells it
    m: int
    n: int
    k: int
    a: Fragment
    b: Fragment
    c: Fragment
    needs: str                  # what a target must have
    saturate: bool = False      # sums in i32
    manual: str = MANUAL

    def __post_init__(self) -> None:
        """Proof: every element of each matrix is in exactly one place (`Fragment.where` raises else)."""
        if not self.a.where or not self.b.where or not self.c.where:
            raise ValueError(f"{self.name} has a matrix without elements")

    @property
    def registers(self) -> tuple[int, int, int]:
        """Values of A, B and C in each lane."""
        return self.a.type.length, self.b.type.length, self.c.type.length

    @cached_property
    def operation(self) -> Operation:
        flops = 2*self.m*self.n*self.k // LANES if self.c.format != "i32" else 0
        return Operation(self.name, self._llvm, self._meaning, "mma", "group", LANES, needs=self.needs, flops=flops)

    def _llvm(self, low: Any, t: Any, *operands: Any) -> list[Any]:
        """Inline assembly, because LLVM has no intrinsic for every shape."""
        a, b, c = self.registers
        letters = [{"f64": "d", "f32": "f"}.get(str(x.type.scalar), "r") for x in (self.a, self.b, self.c)]
        constraints = [f"={letters[2]}"]*c + [letters[0]]*a + [letters[1]]*b + [letters[2]]*c
        numbers = iter(range(2*c + a + b))
        lists = ["{" + ",".join(f"${next(numbers)}" for _ in range(count)) + "}" for count in (c, a, b, c)]
        result = low.struct([self.c.type.scalar]*c)
        d = low.asm(f"{self.name} {', '.join(lists)};", result, ",".join(constraints), *operands, together=True)
        return [low.b.extract_value(d, e) for e in range(c)]

    def _meaning(self, t: Any, *operands: Any) -> list[Any]:
        """Operands are [groups, lanes]."""
        count_a, count_b, count_c = self.registers
        a, b, c = (x.matrix(np.stack(held) if x.type.length > 1 else held[0])[:, 0] for x, held in (
            (self.a, operands[:count_a]), (self.b, operands[count_a:count_a + count_b]),
            (self.c, operands[count_a + count_b:])))
        with np.errstate(all="ignore"):
            d = a @ b + c                       # in f64, which holds all products and sums of whole numbers exactly
            if self.c.format == "i32":
                d = np.clip(d, -2.0**31, 2.0**31 - 1) if self.saturate else d.astype(np.int64)
            registers = self.c.lanes(d[:, None])
        return [registers[r] for r in range(count_c)] if count_c > 1 else [registers]


# ---- layouts, one formula for all shapes and formats: four lanes share a row of A (a column of B), each with as many
# elements of it as fill a register, side by side; further registers of A go on 8 rows below, and then along k. Of D two
# elements are side by side, further pairs 8 rows below, and then 8 columns on.

@cache
def fragment(format: str, role: str, rows: int, columns: int) -> Fragment:
    elements = rows*columns // LANES
    E, EIGHTS = max(32 // BITS[format], 1), rows // 8

    def a(lane: Any, e: Any) -> tuple[Any, Any]:
        r = e // E
        return lane // 4 + r % EIGHTS * 8, lane % 4 * E + e % E + r // EIGHTS * (4*E)

    def b(lane: Any, e: Any) -> tuple[Any, Any]:
        return lane % 4 * E + e % E + e // E * (4*E), lane // 4

    def c(lane: Any, e: Any) -> tuple[Any, Any]:
        return lane // 4 + e // 2 % EIGHTS * 8, lane % 4 * 2 + e % 2 + e // (2*EIGHTS) * 8
    type = f64 if format == "f64" else f32 if (format, role) == ("f32", "c") else i32       # of a register
    return Fragment(format, rows, columns, 1, elements, vec(type, elements*BITS[format] // type.bits),
                    {"a": a, "b": b, "c": c}[role], lambda lane, e: 0*lane, LANES)


# ---- which there are

@cache
def mma(a: str, b: str, sums: str, m: int, n: int, k: int, saturate: bool = False) -> Atom:
    """The instruction of this shape for these formats. ValueError if there is none, with the shapes that there are."""
    for inputs, kinds, shapes, needs in TABLE:
        if {a, b} <= {*inputs} and sums in kinds and (m, n, k) in shapes and (sums == "i32" or not saturate):
            x, y, z = (SPELLED.get(format, format) for format in (a, b, sums))
            name = f"mma.sync.aligned.m{m}n{n}k{k}.row.col{'.satfinite'*saturate}.{z}.{x}.{y}.{z}"
            return Atom(name, m, n, k, fragment(a, "a", m, k), fragment(b, "b", k, n), fragment(sums, "c", m, n),
                        needs, saturate)
    there = ", ".join(f"{'x'.join(map(str, shape))}" for inputs, kinds, shapes, _ in TABLE
                      if {a, b} <= {*inputs} and sums in kinds for shape in shapes)
    raise ValueError(f"there is no mma.sync {m}x{n}x{k} of {a} by {b} with sums in {sums}{' saturated'*saturate}; "
                     f"of these formats there is {there or 'none'}")


def every() -> Iterator[Atom]:
    """All of them, without saturation."""
    for inputs, kinds, shapes, _ in TABLE:
        for shape in shapes:
            yield from (mma(a, b, sums, *shape) for sums in kinds for a in inputs for b in inputs)


def largest(target: GpuTarget, a: str, b: str, sums: str, most: int = 1 << 10) -> Atom:
    """The instruction of a target that multiplies most of these formats at once, with k up to `most`. ValueError if it
    has none."""
    shapes_by_size = [(m*n*k, (m, n, k)) for inputs, kinds, shapes, needs in TABLE for m, n, k in shapes
             if {a, b} <= {*inputs} and sums in kinds and needs in target.instructions and k <= most]
    if not shapes_by_size:
        raise ValueError(f"{target.name} has no mma.sync of {a} by {b} with sums in {sums}")
    return mma(a, b, sums, *max(shapes_by_size)[1])
