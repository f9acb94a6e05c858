"""Passes before a product on a GPU: operands that are written anew, into the workspace, and then multiplied there.

A plan declares them: `copied` for operands that its kernel cannot read where they are, or not fast, `terms` for f32
that are multiplied as sums of narrower numbers (words.TERMS), and `decoded` for block-scaled ones. What a pass writes
(kernels/gpu/rewrite.py) has k contiguous, rows at multiples of 128 bytes, zeros after the last step of k.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from math import gcd
from typing import Any

from tilewright.formats.records import Float
from tilewright.formats.table import BLOCK_FORMATS, FORMATS
from tilewright.plans.gpu_shape import LINE, MOST_ROWS, REACH, WIDEST, GpuShape, bits_of, vector_of
from tilewright.plans.words import TERMS

BLOCK = 256             # and matrices in the workspace
MOST = 16 << 30         # bytes that the passes of a product write: all matrices of a batch have a copy of their own
SIDE = 64               # rows, and steps of k, of a CTA of a pass
DECODED = 8             # bytes of block-scaled elements that a thread loads at once, at most


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
    blocks: str = ""                # a block-scaled format, of which elements times their scales are written
    align: int = WIDEST             # bytes of which blocks' address and distances are multiples
    wide: bool = False              # they are written as f32, since bf16 lacks one

    @property
    def count(self) -> int:
        """Matrices that become of one."""
        return TERMS[self.split].count if self.split else 1

    @property
    def written(self) -> str:
        """The format of what is written."""
        if self.blocks:
            return "f32" if self.wide else "bf16"
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
        bits = BLOCK_FORMATS[self.blocks].bits if self.blocks else bits_of(self.format)
        return int(self.batch * self.rows * self.depth * bits) // 8

    @property
    def side_bytes(self) -> int:
        """Bytes that its CTAs have in shared memory, together; decoded operands do not go through it."""
        return self.batch * self.rows * self.ld * bits_of(self.format) // 8

    @property
    def ctas(self) -> int:
        return self.batch * -(-self.rows // SIDE) * -(-self.ld // SIDE)

    def __str__(self) -> str:
        """For people."""
        if self.blocks:
            return (f"{self.operand.upper()} is decoded before, a declared emulation: elements of {self.blocks} times "
                    f"their scales as {self.written}, {self.size:,} bytes of workspace"
                    + "; the product is in f32 if bf16 lacks digits of one" * (lacking(self.blocks) > 0))
        made = f"split into {self.count} terms of {self.written}" if self.split else "copied"
        return f"{self.operand.upper()} is {made} before, k contiguous: {self.size:,} bytes of workspace"


def passes(shape: GpuShape, copied: str, terms: str) -> tuple[Pass, ...]:
    """The passes of a product with these operands; `copied` and `terms` as in a plan."""
    s, of = shape, "ab" if terms else copied.replace("none", "")
    if s.scaled:
        return _decoding(s)
    if not of:
        return ()
    every = Pass("a", s.a, terms, s.layout[0] == "n", s.m, s.k, s.batch), Pass(
        "b", s.b, terms, s.layout[1] == "t", s.n, s.k, s.batch)
    return tuple(one for one in every if one.operand in of)


@lru_cache(maxsize=64)
def moved(shape: GpuShape, copied: str, terms: str) -> tuple[tuple[int, int], ...]:
    """Bytes that each of these passes reads, and writes."""
    return tuple((one.read, one.size) for one in passes(shape, copied, terms))


@lru_cache(maxsize=64)
def written(shape: GpuShape, copied: str, terms: str) -> int:
    """Bytes that all of them write."""
    return sum(size for _, size in moved(shape, copied, terms))


def _decoding(s: GpuShape, wide: bool = False) -> tuple[Pass, ...]:
    of_a, of_b = s.scaled.split()
    return (Pass("a", s.a, "", True, s.m, s.k, s.batch, of_a, s.align_a, wide),
            Pass("b", s.b, "", True, s.n, s.k, s.batch, of_b, s.align_b, wide))


@cache
def lacking(format: str) -> int:
    """The pattern of the smallest scale of a block-scaled format with which bf16 has all digits of every element; 0 if
    it has them with all. Numbers beyond its range, which is f32's, are inf."""
    f, bf16 = BLOCK_FORMATS[format], FORMATS["bf16"]
    assert isinstance(bf16, Float)
    return next(x for x in range(2**f.scale.bits) if f.scale.decode(x) * f.element.smallest_subnormal
                >= bf16.smallest_subnormal or x in f.scale.zeros)


def in_f32(shape: GpuShape) -> tuple[tuple[Pass, ...], GpuShape] | None:
    """The passes and the product for numbers of block-scaled operands that bf16 lacks; None if it has them all."""
    if not shape.scaled or not any(map(lacking, shape.scaled.split())):
        return None
    made = _decoding(shape, wide=True)
    return made, _found(shape, made)


def prepared(shape: GpuShape, role: str) -> GpuShape:
    """What is left for the kernel of operand "a" or "b" if a pass of its own evaluates its prologue, and leaves the
    numbers contiguous, in the same order (runtime/gpu/prologues.py)."""
    inner = {"a": (shape.k, shape.m), "b": (shape.n, shape.k)}[role][shape.layout["ab".index(role)] == "t"]
    bits = bits_of(getattr(shape, role))
    new: dict[str, Any] = {f"vector_{role}": vector_of(bits, inner, 0),
                           f"align_{role}": gcd(WIDEST, inner*bits // 8), f"near_{role}": MOST_ROWS,
                           f"pitch_{role}": gcd(LINE, inner*bits // 8)}
    return shape.with_numerics(**{f"prologue_{role}": ""})._replace(**new)


@lru_cache(maxsize=64)        # candidates differ in little else
def after(shape: GpuShape, copied: str, terms: str) -> GpuShape:
    """What the kernel multiplies, then; of operands that are there already the same shape."""
    if terms and shape.a == TERMS[terms].format:
        return shape
    return _found(shape, passes(shape, copied, terms))._replace(terms=terms)


def _found(shape: GpuShape, made: tuple[Pass, ...]) -> GpuShape:
    """What the kernel finds after these passes."""
    lowered = shape._replace(scaled="")
    if len(made) == 2:                                      # zeros fill up rows to whole vectors
        unit = max(WIDEST*8 // bits_of(one.written) for one in made)
        lowered = lowered._replace(k=-(-shape.k // unit) * unit)
    layout = [*shape.layout]
    for one in made:
        x, bits = one.operand, bits_of(one.written)
        vector = WIDEST*8 // bits
        while lowered.k % vector:
            vector //= 2
        layout["ab".index(x)] = {"a": "n", "b": "t"}[x]
        new: dict[str, Any] = {x: one.written, f"vector_{x}": vector, f"align_{x}": WIDEST,
                               f"near_{x}": min(REACH*8 // (one.ld*bits), MOST_ROWS),
                               f"pitch_{x}": LINE}
        lowered = lowered._replace(**new)
    return lowered._replace(layout="".join(layout))


def copies(shape: GpuShape, wanted: Callable[[GpuShape], bool]) -> tuple[str, GpuShape] | None:
    """The fewest operands that have to be copied so that the shape is as wanted, and the shape then; None if it is so
    without, or never."""
    if not wanted(shape):
        for copied in "a", "b", "ab":
            shape_after = after(shape, copied, "")
            if wanted(shape_after):
                return copied, shape_after
    return None
