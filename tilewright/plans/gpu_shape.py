"""The shape that a plan for a GPU, of any maker, is chosen for.

It is made from operands: sizes, formats, layout, and how much of a row one access may have, which follows from
addresses and strides. A Gemm alone stands for contiguous operands whose addresses are multiples of 16 bytes.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from math import gcd
from typing import Any, NamedTuple

from tilewright import formats
from tilewright.expressions.numerics import PLAIN, HasNumerics, Numerics
from tilewright.forks import cached_property
from tilewright.formats.table import BLOCK_FORMATS
from tilewright.plans import epilogues, prologues, semirings
from tilewright.plans.gpu_formats import RESULTS
from tilewright.plans.words import TERMS
from tilewright.problem import Gemm, numerics

WIDEST = 16             # bytes that a thread moves at once
LINE, SECTOR = 128, 32  # bytes of a cache line, and that memory moves of it at least
BLOCK = 32              # elements that share a scale
REACH = 1 << 31         # bytes that an offset of 32 bits reaches
MAPPED = 1 << 40        # distances in a tensor map are less
MOST_ROWS = 1024        # of an operand in a tile, of any plan
# The format in which products of a format are added up, if it is not f32.
SUMS = {"f64": "f64", "i8": "i32", "u8": "i32", "i32": "i32", "i64": "i64", "c64": "c64", "c128": "c128"}
MOST_BATCH = 1 << 20    # products of a launch: kernels count tiles in 32 bits

Place = tuple[int, ...]         # a matrix's address, bytes from row to row, and in a batch from matrix to matrix


class _Fields(NamedTuple):
    """What the choice of a plan depends on. Formats are those of elements as they are multiplied.

    layout      "n" or "t" for A and for B: rows or columns are contiguous. C has contiguous rows
    vector_a    elements along A's contiguous rows (or columns) that one aligned access may have, up to 16 bytes: the
                address, the distance of rows and their length are multiples of so many. vector_b, vector_c: of B and C
    near_a      rows of A (columns, if these are contiguous) that follow each other within 2^31 bytes, at most 1024
    batch       products of such operands in one launch
    scaled      elements come in blocks along k, each with a scale: the formats' names, as in "mxfp8 mxfp4"
    align_a     bytes, a power of two up to 16, of which A's address and the distances of its rows (or columns) and
                matrices are multiples, whatever their length is, as a tensor map needs it; 1 also of what no map can
                describe: distances of 2^40 bytes, or less than a row. align_b, align_c: of B and C
    scales      what multiplies sums: see problem.SCALES
    terms       a key of words.TERMS: f32 are multiplied as sums of these, which a pass makes of them (passes.py); of
                one, tf32, kernels make them as they read. Or f16: sums of f16 are f16, too
    pitch_a     the largest power of two up to 128 that divides the bytes from one row of A (or column) to the next;
                below 128 a bulk copy brings two lines for some rows of a tile. pitch_b: of B
    numerics    functions, and what must not change an element's bits
    """
    a: str
    b: str
    out: str
    m: int
    n: int
    k: int
    layout: str
    vector_a: int
    vector_b: int
    vector_c: int
    near_a: int = MOST_ROWS
    near_b: int = MOST_ROWS
    batch: int = 1
    scaled: str = ""
    align_a: int = WIDEST
    align_b: int = WIDEST
    align_c: int = WIDEST
    scales: str = ""
    terms: str = ""
    pitch_a: int = LINE
    pitch_b: int = LINE
    numerics: Numerics = PLAIN


class GpuShape(HasNumerics, _Fields):
    """A product for which a plan is chosen; what follows from its fields is computed once."""
    attention = False

    @property
    def planner(self) -> Any:
        """The module that chooses among plans and predicts their cost."""
        return import_module("tilewright.plans.gpu")

    def __str__(self) -> str:
        """For people: a 4096x4096x4096 product of f16 by f16 into f32, layout nt."""
        return (f"a {self.m}x{self.n}x{self.k} product of {self.a} by {self.b} into {self.out}, layout {self.layout}"
                + (f", with scales of {self.scaled or self.scales}" if self.scaled or self.scales else "")
                + f", with the epilogue {self.epilogue}"*(self.epilogue != "")
                + f", in the semiring {self.semiring}"*(self.semiring != "")
                + f", with the prologue {self.prologue_a} of A"*(self.prologue_a != "")
                + f", with the prologue {self.prologue_b} of B"*(self.prologue_b != "")
                + f", by terms {self.terms}"*(self.terms != "")
                + f", {self.batch} times"*(self.batch != 1))

    @property
    def key(self) -> tuple[str, int, int, int, str, str, int]:
        """What tuning results are kept by, as plans.cpu_shape.Shape.key: formats, and what else is not usual; m, n, k;
        the order of A and of B; no threads."""
        kind = self.a if self.a == self.b == self.out else f"{self.a}-{self.b}-{self.out}"
        usual = shape(*self[:7], batch=self.batch, scaled=self.scaled, scales=self.scales,
                      numerics=self.numerics._replace(invariant=""))
        if self._replace(terms="", numerics=usual.numerics) != usual:     # in wider or unaligned matrices
            kind += f" vector={'x'.join(map(str, self[7:10]))} near={self.near_a}x{self.near_b}"
            bits, aligned = (*self.bits, bits_of(self.out)), (self.align_a, self.align_b, self.align_c)
            if any(8*align != vector*size for align, vector, size in zip(aligned, self[7:10], bits)):
                kind += f" align={'x'.join(map(str, aligned))}"
            kind += f" pitch={self.pitch_a}x{self.pitch_b}"*(self[-3:-1] != usual[-3:-1])
        if self.scaled:                                         # elements say which format with blocks of 32 it is
            mx = all(BLOCK_FORMATS[name].mx for name in self.scaled.split())
            kind += " scaled" if mx else f" scaled={self.scaled.replace(' ', '-')}"
        if self.epilogue and not epilogues.read(self.epilogue).nothing:
            kind += f" epilogue={epilogues.read(self.epilogue).cache_key}"
        kind += f" semiring={semirings.read(self.semiring).digest}" if self.semiring else ""
        for role in self.prologues:
            kind += f" prologue_{role}={prologues.read(self.prologue_of(role)).cache_key}"
        kind += f" scales={self.scales}"*bool(self.scales) + f" {self.terms}"*(self.terms != "")
        kind += f" batch={self.batch}"*(self.batch != 1)
        a, b = ("rows" if letter == "n" else "columns" for letter in self.layout)
        return kind, self.m, self.n, self.k, a, b, 1

    @cached_property
    def prologues(self) -> str:             # type: ignore[override]    # asked of every candidate
        """Which operands have a prologue: "", "a", "b" or "ab"."""
        return self.numerics.prologues

    @cached_property
    def least(self) -> GpuShape:
        """The shape, or, if it is empty, one that is not: nothing will run, but there is a plan."""
        return self._replace(m=self.m or 1, n=self.n or 1, k=self.k or BLOCK, batch=self.batch or 1)

    @property
    def padded(self) -> GpuShape:
        """The shape in matrices whose rows are padded to multiples of 16 bytes."""
        return self._replace(align_a=WIDEST, align_b=WIDEST, align_c=WIDEST)

    @cached_property
    def sums(self) -> str:
        """The format in which products are added up."""
        return SUMS.get(self.a, "f32")

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The formats in which kernels store sums."""
        return results(epilogues.kind(self.epilogue, self.sums), self.scales)

    @cached_property
    def itemsize(self) -> int:
        """Bytes of a sum."""
        return bits_of(self.sums) // 8

    @cached_property
    def bits(self) -> tuple[int, int]:
        """Bits of an element of A and of B in memory, with all its terms."""
        a, b = self.tile_bits
        return _in_memory(a, self.prologue_a), _in_memory(b, self.prologue_b)

    @cached_property
    def tile_bits(self) -> tuple[int, int]:
        """Bits of an element of A and of B in tiles, as they are multiplied."""
        count = TERMS[self.terms].count if self.terms and self.a == TERMS[self.terms].format else 1
        return count*bits_of(self.a), count*bits_of(self.b)

    @cached_property
    def bytes(self) -> int:
        """Bytes of A, B and C, and of what an epilogue and prologues read and write, each once."""
        (a, b), c, m, n, k = self.bits, bits_of(self.out), self.m, self.n, self.k
        moved = self.batch * (m*k*a + k*n*b + m*n*c) // 8
        return moved + epilogues.bytes_moved(self) + prologues.bytes_moved(self)

    @property
    def vector(self) -> int:
        """Elements that every access to A, B and C may have."""
        return min(self.vector_a, self.vector_b, self.vector_c)


def emitted(s: GpuShape, sizes: tuple[int, int, int]) -> GpuShape:
    """What emitters read of a shape, with these sizes in place of its own: nothing of where operands lie."""
    epilogue = epilogues.stored(s.epilogue, s.out) if s.epilogue else ""
    return GpuShape(s.a, s.b, s.out, *sizes, s.layout, 1, 1, 1, batch=1 + (s.batch != 1), scaled=s.scaled,
                    scales=s.scales, terms=s.terms, numerics=s.numerics._replace(epilogue=epilogue, invariant=""))


@cache
def bits_of(format: str) -> int:
    """Bits of an element in memory."""
    return 32 if format in ("xf32", "tf32") else formats.FORMATS[format].bits


def _in_memory(bits: int, prologue: str) -> int:
    """Bits of an element in memory, if the prologue makes one of so many of it: of i4 8, unless two share a byte."""
    return int(8*prologues.bytes_of(prologues.read(prologue).source)) if prologue else bits


def shape(a: str, b: str, out: str, m: int, n: int, k: int, layout: str = "nt", at: Sequence[Place] | None = None,
          batch: int = 1, scaled: str = "", scales: str = "", numerics: Numerics = PLAIN) -> GpuShape:
    """The shape of operands that are multiplied in these formats, which lie `at` these places (A, B and C), or are
    contiguous and aligned to 16 bytes. The distance of rows does not count of a matrix that has one row; it is 0 then.
    """
    bits = _in_memory(bits_of(a), numerics.prologue_a), _in_memory(bits_of(b), numerics.prologue_b), bits_of(out)
    sums_format = epilogues.sums_of_result(numerics.epilogue)
    inner = k if layout[0] == "n" else m, n if layout[1] == "n" else k, n // sums_format
    outer = m if layout[0] == "n" else k, k if layout[1] == "n" else n, m
    places = at or [(0, x*size // 8 if rows > 1 else 0, x*size*rows // 8 if batch > 1 else 0)
                    for x, rows, size in zip(inner, outer, bits)]
    vector_a, vector_b, vector_c = (vector_of(size, extent, *place) for size, extent, place in zip(bits, inner, places))
    near_a, near_b = (0 if apart < 0 else min(REACH // apart, MOST_ROWS) if apart else MOST_ROWS
                      for _, apart, *_ in places[:2])
    align_a, align_b, align_c = (_align(x*size // 8, rows, *place)
                                 for x, rows, size, place in zip(inner, outer, bits, places))
    pitch_a, pitch_b = (gcd(LINE, apart) if rows > 1 else LINE for rows, (_, apart, *_) in zip(outer, places[:2]))
    return GpuShape(a, b, out, m, n, k, layout, vector_a, vector_b, vector_c*sums_format, near_a, near_b,
                    min(batch, MOST_BATCH), scaled, align_a, align_b, align_c, scales, "", pitch_a, pitch_b, numerics)


def vector_of(bits: int, extent: int, address: int, *apart: int) -> int:
    """Elements of so many bits of a contiguous row of `extent` that one aligned access may have."""
    vector = 1 << ((8*WIDEST // bits).bit_length() - 1)
    while vector > 1 and (extent % vector or any(8*x % (vector*bits) for x in (address, *apart))):
        vector //= 2
    return vector


def _align(row: int, rows: int, address: int, apart: int = 0, matrices: int = 0) -> int:
    """The alignment of matrices with so many rows of so many bytes. Matrices of a batch may be one and the same."""
    if (rows > 1 and not row <= apart < MAPPED) or not (matrices == 0 or row <= matrices < MAPPED):
        return 1
    return gcd(WIDEST, address, apart, matrices)


def shape_of(problem: Gemm, at: Sequence[Place] | None = None) -> GpuShape:
    """The shape of a problem whose operands lie `at` these places, or are contiguous. Block-scaled ones have whole
    blocks along k, the last filled up with zeros; ValueError unless k is contiguous in both."""
    p = problem
    if p.a not in BLOCK_FORMATS:
        return shape(*p.multiplied, p.out, p.m, p.n, p.k, p.layout, at, p.batch, scales=p.scales,
                     numerics=numerics(p))
    if p.layout != "nt":
        raise ValueError(f"{p}: block-scaled operands have k along their rows, which is layout nt, not {p.layout}")
    a, b = (BLOCK_FORMATS[x].element.name for x in (p.a, p.b))
    return shape(a, b, p.out, p.m, p.n, -(-p.k // BLOCK)*BLOCK, p.layout, at, p.batch, scaled=f"{p.a} {p.b}",
                 numerics=numerics(p))


def results(sums: str, scales: str) -> tuple[str, ...]:
    """What kernels store sums as. Sums of integers that scales multiply are f32 then."""
    return RESULTS["f32" if scales and sums == "i32" else sums]
