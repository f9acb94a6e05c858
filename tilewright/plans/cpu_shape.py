"""What the choice of a CPU plan depends on: a product as the loops around the micro-kernel meet it."""
from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Literal, NamedTuple

from tilewright.expressions.numerics import PLAIN, HasNumerics, Numerics
from tilewright.forks import cached_property
from tilewright.plans import invariant as invariants, prologues, semirings
from tilewright.plans.words import BY_NAME, TILE_WORDS

MOST_COMPLEX = 32       # rows or columns of C up to which complex operands are read in place
# What is contiguous in an operand; "scattered": its rows or columns have no one stride, and it is packed by tables;
# "scattered rows": so is an A that is contiguous along an axis of k, and transposed in packing
Order = Literal["rows", "columns", "any", "scattered", "scattered rows"]
# Bytes of what panels may consist of: elements, or words
ITEMSIZE = {"f32": 4, "f64": 8, "i32": 4, "i64": 8, **dict.fromkeys((*BY_NAME, *TILE_WORDS), 4)}
COMPLEX = {"c64": "f32", "c128": "f64"}         # and the format of their parts
_KIND = re.compile(r"(?P<dtype>\w+)(?:\((\w*),(\w*)\))?(?:>(\w+))?")


def steps(dtype: str, k: int) -> int:
    """How many steps k elements take: of words, or of elements as many."""
    if dtype in TILE_WORDS:
        return TILE_WORDS[dtype].depth(k)
    return -(-k // BY_NAME[dtype].steps) if dtype in BY_NAME else k


def few_complex(m: int, n: int, k: int) -> bool:
    """Whether complex matrices with so few rows or columns of C are multiplied in place. Of small ones, which batches
    have code of their own for, sums are those of packed plans."""
    return 1 < min(m, n) <= MOST_COMPLEX and max(m, n, k) > MOST_COMPLEX


class Strides(NamedTuple):
    """In elements: of A, B and C, by row and by column."""
    rsa: int
    csa: int
    rsb: int
    csb: int
    rsc: int
    csc: int

    @property
    def swapped(self) -> Strides:
        return Strides(self.csb, self.rsb, self.csa, self.rsa, self.csc, self.rsc)


def order(row_stride: int, col_stride: int) -> Order:
    """What is contiguous in an operand of these strides in elements."""
    return "rows" if col_stride == 1 else "columns" if row_stride == 1 else "any"


class _Fields(NamedTuple):
    """What the choice of a plan depends on: a product as the loops around the micro-kernel meet it.

    plans/lowering.py makes it from operands, or from a problem. Complex operands have become one real product, of twice
    as many columns and steps of k.
    """
    dtype: str          # what is multiplied: a number format, or a word of plans/words.py
    m: int
    n: int
    k: int              # steps: of elements, or of words; for AMX, rows of B's panels
    a: Order            # what is contiguous
    b: Order
    threads: int = 1
    source_a: str = ""  # formats of operands that packing converts; "" for operands that consist of `dtype`
    source_b: str = ""
    out: str = ""       # C's format, if sums are rounded as they are stored; "" for that of the sums
    depth: int = 0      # elements of k, if words are multiplied
    c: Order = "rows"   # or "scattered": stored by tables
    numerics: Numerics = PLAIN


class Shape(HasNumerics, _Fields):
    """A product for which a plan is chosen."""
    attention = False

    @property
    def planner(self) -> Any:
        """The module that chooses among plans and predicts their cost."""
        return import_module("tilewright.plans.choose")

    def __str__(self) -> str:
        """For people: a 64x128x512 product of f32 packed from c64 by c64."""
        sources = " by ".join(x or self.dtype for x in (self.source_a, self.source_b))
        packed = f" packed from {sources}" if self.source_a or self.source_b else ""
        packed += f", with a prologue of {' and '.join(self.prologues.upper())}" if self.prologues else ""
        return (f"a {self.m}x{self.n}x{self.depth or self.k} product of {self.dtype}{packed}"
                + f", stored as {self.out}"*bool(self.out) + ", with an epilogue"*bool(self.epilogue)
                + f", in the semiring {self.semiring}"*bool(self.semiring)
                + f", with A by {self.a} and B by {self.b}" + ", C scattered"*(self.c == "scattered"))

    @property
    def key(self) -> tuple[str, int, int, int, str, str, int]:
        """What tuning results are kept by: formats as text, "f32", "f32(f16,f16)" or "i8x4(u8,i8)>i8"; m, n, elements
        of k, and the rest. A semiring and prologues are named by digests of their texts. An epilogue, which takes the
        same time in every plan, does not count."""
        sources = f"({self.source_a},{self.source_b})" if self.source_a or self.source_b else ""
        kind = f"{self.dtype}{sources}{'>' * bool(self.out)}{self.out}"
        if self.semiring or self.prologue_a or self.prologue_b:
            kind += f" semiring={semirings.read(self.semiring).digest}" if self.semiring else ""
            kind += "".join(f" {name}={prologues.read(text).cache_key}" for name, text in (
                ("prologue_a", self.prologue_a), ("prologue_b", self.prologue_b)) if text)
        return kind, self.m, self.n, self.depth or self.k, self.a, self.b, self.threads

    @classmethod
    def of_key(cls, kind: str, m: int, n: int, k: int, a: Order, b: Order, threads: int) -> Shape:
        """The shape with this key. ValueError for formats that are not known here, and for functions, of which a key
        has digests alone."""
        match = _KIND.fullmatch(kind)
        if match is None or match["dtype"] not in ITEMSIZE:
            raise ValueError(f"no formats that are multiplied: {kind!r}")
        dtype, source_a, source_b, out = (x or "" for x in match.groups())
        depth = k if dtype in TILE_WORDS or dtype in BY_NAME else 0
        return cls(dtype, m, n, steps(dtype, k), a, b, threads, source_a, source_b, out, depth)

    @property
    def swapped(self) -> Shape:
        """The shape of C^T = B^T @ A^T."""
        exchanged: dict[Order, Order] = {"rows": "columns", "columns": "rows", "any": "any",
                                           "scattered": "scattered", "scattered rows": "scattered"}
        return self._replace(m=self.n, n=self.m, a=exchanged[self.b], b=exchanged[self.a],
                             source_a=self.source_b, source_b=self.source_a, numerics=self.numerics.swapped)

    @cached_property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @cached_property
    def tiles(self) -> bool:
        """Whether AMX multiplies."""
        return self.dtype.startswith("amx")

    @cached_property
    def words(self) -> bool:
        """Whether vectors of words are multiplied."""
        return self.dtype in BY_NAME and not self.tiles

    @cached_property
    def complex(self) -> bool:
        return self.source_a in COMPLEX

    @property
    def complex_row(self) -> bool:
        """Whether C is one row of complex numbers, whose operands are read where they are."""
        return (self.complex and self.m == 1 and self.invariant not in invariants.ROWS
                and not (self.out or self.epilogue or self.prologues or self.semiring or self.scattered))

    @property
    def converts(self) -> bool:
        """Whether packing, or storing, converts: then both operands have to be packed."""
        return bool(self.source_a or self.source_b or self.out)

    @property
    def scattered(self) -> bool:
        """Whether packing, or storing, goes by tables: likewise."""
        return self.a.startswith("scattered") or "scattered" in (self.b, self.c)

    @property
    def sums(self) -> str:
        """The format in which products are added up."""
        if self.tiles:
            return TILE_WORDS[self.dtype].sums
        return BY_NAME[self.dtype].sums if self.dtype in BY_NAME else self.dtype

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each element of k of each element of C."""
        return 2 * self.m * self.n * (self.depth or self.k)
