"""Scales of rows of A and columns of B in global memory, and the sums that they multiply.

A kernel with them has further parameters (`parameters`), of which all strides are in elements, and 0 where the same
scale holds for all:

    scale_a[i*ld_scale_a]       of row i of A
    scale_b[j*ld_scale_b]       of column j of B

They multiply finished sums (gpu/epilogue.py), first that of A.
"""
from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Kernel, Type, Value, i64, ptr

POINTERS = "scale_a", "scale_b"     # which nothing writes to while the kernel runs


def parameters(T: Type, BATCH: bool = False) -> dict[str, Any]:
    """Of scales of type T. BATCH: from those of one product to those of the next stride_scale_a, stride_scale_b."""
    found: dict[str, Any] = {}
    for name in POINTERS:
        found |= {name: ptr(T, strided=True), f"ld_{name}": i64, **({f"stride_{name}": i64} if BATCH else {})}
    return found


@dataclass(frozen=True)
class Scales:
    """Of an m x n product. Beyond its edges, where nothing is stored, the last scale is read."""
    k: Kernel
    rows: Value
    ld_rows: Value
    m: Value
    columns: Value
    ld_columns: Value
    n: Value

    @classmethod
    def of(cls, k: Kernel, g: SimpleNamespace) -> Scales:
        """Those of a kernel with the arguments g, by name; of a batch those of the workgroup's matrix."""
        a, b = (getattr(g, name) if g.matrix is None else
                getattr(g, name) + k.cast(g.matrix, i64)*getattr(g, f"stride_{name}") for name in POINTERS)
        return cls(k, a, g.ld_scale_a, g.m, b, g.ld_scale_b, g.n)

    @property
    def T(self) -> Type:
        """Of scales, and of sums that are scaled."""
        found: Type = self.rows.type.element
        return found

    def row(self, i: Value) -> Value:
        return self.k.load(self.rows + self.k.cast(self.k.min(i, self.m - 1), i64)*self.ld_rows)

    def column(self, j: Value) -> Value:
        return self.k.load(self.columns + self.k.cast(self.k.min(j, self.n - 1), i64)*self.ld_columns)

    def applied(self, sums: list[Value], row: Value, column: Value) -> list[Value]:
        """Sums of elements next to each other in a row of C, the first of them in this column, times their scales."""
        by_row = self.row(row)
        return [self.k.cast(x, self.T)*by_row*self.column(column + e) for e, x in enumerate(sums)]
