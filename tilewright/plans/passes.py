"""Passes before a product on a GPU: operands that are written anew, into the workspace, and then multiplied there.

A plan declares them: `copied` for operands that its kernel cannot read where they are, or not fast, and `terms` for f32
that are multiplied as sums of narrower numbers (words.TERMS). What a pass writes (kernels/gpu/rewrite.py) has k
contiguous, rows at multiples of 128 bytes, and zeros after the last step of k.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.plans.gpu import MOST_ROWS, REACH, WIDEST, GpuShape, bits_of
from tilewright.plans.words import TERMS

LINE = 128              # bytes of which rows begin at a multiple
BLOCK = 256             # and matrices in the workspace
MOST = 16 << 30         # bytes that the passes of a product write: all matrices of a batch have a copy of their own
SIDE = 64               # rows, and steps of k, of a CTA of a pass


@dataclass(frozen=True)
class Pass:
    """A matrix, or a batch, that is written anew."""
    operand: str                    # "a" or "b"
    format: str                     # where it is
    split: str                      # a key of words.TERMS, "" for a copy
    along_k: bool                   # it has k contiguous
    rows: int                       # of A; columns of B
    depth: int                      # steps of k
    batch: int

    @property
    def count(self) -> int:
        """Matrices that become of one."""
        return TERMS[self.split].count if self.split else 1

    @property
    def written(self) -> str:
        """The format of what is written."""
        return TERMS[self.split].format if self.split else self.format

    @property
    def ld(self) -> int:
        """Elements from row to row of what is written."""
        unit = LINE*8 // bits_of(self.written)
        return -(-self.depth // unit) * unit

    @property
    def plane(self) -> int:
        """Elements from one term to the next."""
        return self.rows * self.ld

    @property
    def size(self) -> int:
        """Bytes that it writes."""
        return self.batch * self.count * self.plane * bits_of(self.written) // 8

    @property
    def read(self) -> int:
        """Bytes of the operand."""
        return self.batch * self.rows * self.depth * bits_of(self.format) // 8

    @property
    def ctas(self) -> int:
        return self.batch * -(-self.rows // SIDE) * -(-self.ld // SIDE)

    def __str__(self) -> str:
        """For people."""
        made = f"split into {self.count} terms of {self.written}" if self.split else "copied"
        return f"{self.operand.upper()} is {made} before, k contiguous: {self.size:,} bytes of workspace"


def passes(shape: GpuShape, copied: str, terms: str) -> tuple[Pass, ...]:
    """Those of a product with these operands; `copied` and `terms` as in a plan."""
    s, of = shape, "ab" if terms else copied.replace("none", "")
    every = Pass("a", s.a, terms, s.layout[0] == "n", s.m, s.k, s.batch), Pass(
        "b", s.b, terms, s.layout[1] == "t", s.n, s.k, s.batch)
    return tuple(each for each in every if each.operand in of)


def after(shape: GpuShape, copied: str, terms: str) -> GpuShape:
    """What the kernel multiplies, then; of operands that are there already the same shape."""
    if terms and shape.a == TERMS[terms].format:
        return shape
    found, made = shape, passes(shape, copied, terms)
    if len(made) == 2:                                      # zeros fill up rows to whole vectors
        unit = max(WIDEST*8 // bits_of(each.written) for each in made)
        found = found._replace(k=-(-shape.k // unit) * unit)
    layout = [*shape.layout]
    for each in made:
        x, bits = each.operand, bits_of(each.written)
        vector = WIDEST*8 // bits
        while found.k % vector:
            vector //= 2
        layout["ab".index(x)] = {"a": "n", "b": "t"}[x]
        new: dict[str, Any] = {x: each.written, f"vector_{x}": vector, f"align_{x}": WIDEST,
                               f"near_{x}": min(REACH*8 // (each.ld*bits), MOST_ROWS),
                               "crossing": found.crossing.replace(x, "")}
        found = found._replace(**new)
    return found._replace(layout="".join(layout), terms=terms)


def copies(shape: GpuShape, wanted: Callable[[GpuShape], bool]) -> tuple[str, GpuShape] | None:
    """The fewest operands that have to be copied so that the shape is as wanted, and the shape then; None if it is so
    without, or never."""
    if not wanted(shape):
        for copied in "a", "b", "ab":
            found = after(shape, copied, "")
            if wanted(found):
                return copied, found
    return None
