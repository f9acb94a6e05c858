"""Arrays beside A, B and C in kernels for GPUs (expressions/function.Aux): scales, further results, and what epilogues
and prologues read.

Scales of rows of A and columns of B, for all of k or blocks of it, have strides of 0 where the same holds for all:

    scale_a[i*ld_scale_a]       of row i of A
    scale_b[j*ld_scale_b]       of column j of B

They multiply finished sums (gpu/epilogue.py), first that of A. Scales of blocks of 128 of k are k_scale_a and k_scale_b
apart, those of B may hold for 128 columns each: main loops multiply the sums of a block by them as they add these up.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from tilewright.expressions import texts
from tilewright.expressions.function import Aux
from tilewright.ir import Kernel, Type, Value, i64, ptr
from tilewright.kernels.narrow import memory_type

SCALES = "scale_a", "scale_b"
BLOCK = 128             # steps of k, and columns, that share a scale of blocks


def parameters(arrays: Iterable[Aux], BATCH: bool = False, CONTIGUOUS: str = "") -> dict[str, Any]:
    """A kernel's parameters for these arrays. BATCH: of many matrices. CONTIGUOUS: beside these operands, "a", "b" or
    "ab", numbers for rows of A, or columns of B, lie next to each other."""
    types: dict[str, Any] = {}
    for x in arrays:
        types[x.parameter] = ptr(memory_type(x.format), strided=True)
        types |= {f"ld_{x.parameter}": i64} if x.across_k and x.role not in CONTIGUOUS else {}
        types |= {f"k_{x.parameter}": i64} if x.along_k else {}
        types |= {f"stride_{x.parameter}": i64} if BATCH else {}
    return types


def scales(T: Type | None, BLOCKS: int) -> tuple[Aux, ...]:
    """Scales of this type, or none, of blocks of k or, with BLOCKS of 0, of all of k."""
    return texts.auxiliary(scales=str(T), group=BLOCK if BLOCKS else 1) if T else ()


def pointers(EPILOGUE: str = "", *PROLOGUES: str) -> tuple[str, ...]:
    """Parameters that are addresses of what a kernel reads beside A, B and C, and nothing else in it reaches."""
    return SCALES + tuple(x.parameter for x in texts.auxiliary(EPILOGUE, *PROLOGUES) if not x.written)


def begin(k: Kernel, g: SimpleNamespace, name: str) -> Value:
    """Where an array begins, of a batch for the workgroup's matrix; `name`: of the parameter."""
    address: Value = getattr(g, name)
    return address if g.matrix is None else address + k.cast(g.matrix, i64)*getattr(g, f"stride_{name}")


@dataclass(frozen=True)
class Scales:
    """The scales of an m x n product. Beyond its edges, where nothing is stored, the last scale is read.

    SHARED      columns that have the same scale
    k_rows      from those of a block of k to the next one's, and k_columns
    """
    k: Kernel
    rows: Value
    ld_rows: Value
    m: Value
    columns: Value
    ld_columns: Value
    n: Value
    SHARED: int = 1
    k_rows: Value | None = None
    k_columns: Value | None = None

    @classmethod
    def from_arguments(cls, k: Kernel, g: SimpleNamespace, SHARED: int = 1) -> Scales:
        """Scales of a kernel with the arguments g, by name; of a batch those of the workgroup's matrix."""
        a, b = (begin(k, g, name) for name in SCALES)
        blocks = (getattr(g, f"k_{name}", None) for name in SCALES)
        return cls(k, a, g.ld_scale_a, g.m, b, g.ld_scale_b, g.n, SHARED, *blocks)

    def block(self, step: Value) -> Scales:
        """Scales of the block that has this step of k."""
        number = self.k.cast(step // BLOCK, i64)
        return replace(self, rows=self.rows + number*self.k_rows, columns=self.columns + number*self.k_columns)

    @property
    def T(self) -> Type:
        """The type of scales, and of sums that are scaled."""
        return self.rows.type.element

    def row(self, i: Value) -> Value:
        return self.k.load(self.rows + self.k.cast(self.k.min(i, self.m - 1), i64)*self.ld_rows)

    def column(self, j: Value) -> Value:
        return self.k.load(self.columns + self.k.cast(self.k.min(j, self.n - 1) // self.SHARED, i64)*self.ld_columns)

    def applied(self, sums: list[Value], row: Value, column: Value) -> list[Value]:
        """Sums of elements next to each other in a row of C, the first of them in this column, times their scales."""
        return self.times(sums, self.row(row), [self.column(column + e) for e in range(len(sums))])

    def times(self, sums: list[Value], by_row: Value, by_columns: list[Value]) -> list[Value]:
        """Sums multiplied by scales that have been read."""
        return [self.k.cast(x, self.T)*by_row*by_column for x, by_column in zip(sums, by_columns)]
