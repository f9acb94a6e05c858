"""Words: several steps of k in 32 bits, for the instructions that multiply and add two or four numbers at a time.

plans/lowering.py takes the first row of WORDS for the formats of A and B, that of the sums, and what the chip has.
Without one, packing brings each number into the format of the sums. A word counts as an element of 32 bits in plans,
panels and register tiles, and the k of such a shape counts words.

AMX multiplies words in tiles (TILE_WORDS). An element is one term there, or the sum of several, each in tiles of its
own: three bf16 hold an f32, two an f16, four bytes an i32 modulo 2^32. A panel is packed group by group, a group being
16 words of k; in a group the terms follow each other, each as two tiles: 32 rows of 16 words of A, 16 rows of 32 words
of B. So k is counted in rows of B's panel, 16 for each term of a group.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from tilewright.formats.records import Float
from tilewright.formats.table import FORMATS, NARROW


class Word(NamedTuple):
    name: str                   # the compute format: what micro-kernels and loops are written for
    steps: int                  # of k in one word
    sums: str                   # the format in which products are added up, C's
    a: tuple[str, ...]          # formats of A and of B that packing makes such words of
    b: tuple[str, ...]
    needs: tuple[str, ...]      # instructions of which the chip must have one
    slow: str = ""              # whose processors multiply f32 faster

    @property
    def tiles(self) -> bool:
        """Whether AMX multiplies it: TILE_WORDS says how."""
        return self.name.startswith("amx")


_PAIRS = ("i16", "i8", "u8")
_BYTES = ("i8", "u8")
# Formats all numbers of which are bf16's.
_BF16 = (*(f.name for f in map(FORMATS.get, NARROW) if isinstance(f, Float) and f.mantissa <= 7 and f.exponent <= 8),
         *_BYTES)
WORDS = (
    Word("amx_bf16", 2, "f32", _BF16, _BF16, ("amx-bf16",)),
    *(Word(f"amx_{a}{b}", 4, "i32", (a,), (b,), ("amx-int8",)) for a in _BYTES for b in _BYTES),
    *(Word(f"amx_{f}", 4, f, (f,), (f,), ("amx-int8",)) for f in ("i32", "i64")),
    Word("i8x4", 4, "i32", ("i8", "u8"), ("i8",), ("avx512vnni", "avxvnni")),   # bytes of A without sign, of B with one
    Word("u8x4", 4, "i32", ("i8",), ("u8",), ("avx512vnni", "avxvnni")),        # the other way round
    Word("i16x2", 2, "i32", _PAIRS, _PAIRS, ("avx2",)),
    # 85 GFLOP/s on a Xeon with AMX, whose f32 runs at 155; on a Zen 5 twice f32's rate
    Word("bf16x2", 2, "f32", _BF16, _BF16, ("avx512bf16",), slow="Intel"),
    # Bytes as they are, for semirings that compute in bytes (plans/semirings.py), and for no products
    Word("bytes", 4, "i32", ("i8",), ("i8",), ()),
)
BY_NAME = {word.name: word for word in WORDS}
# kernels/cpu/byte_dots.py: words of bytes, the rows of A at a time, and the most columns of C in registers, by these
BYTES = "i8x4", "u8x4"
BYTE_ROWS = {32: 4, 16: 2}
DOT_COLUMNS = {32: 4, 16: 3}
# kernels/cpu/skinny.py: what its dot products take the places of, and formats that they widen and round
DOT_WORDS, DOT_FORMATS = (*BYTES, "i16x2", "bf16x2"), ("i8", "u8", "i16", "u16", *NARROW)
DOTS_MOST, DOTS_LARGE = 64, 1 << 20     # columns of C, and bytes of A, from which packing it costs more than reading it


# ---- AMX

GROUP = 16              # words of k that a tile holds
SIDE = 32               # rows and columns of C that four accumulators hold
Pairs = tuple[tuple[int, int], ...]             # (term of A, term of B)


@dataclass(frozen=True)
class TileWord:
    dot: str                        # as ir.ops.x86 spells it
    steps: int                      # elements of k in a word
    accumulates: str = "f32"
    terms: int = 1                  # the first one holds the most of an element
    passes: tuple[Pairs, ...] = (((0, 0),),)    # what each pass over the panels multiplies, the smallest products first
    shifts: tuple[int, ...] = (0,)  # by how many bits the sum of each pass is shifted when it is added to C
    wider: str = ""                 # C's format, if tiles add up in another: their sums are then whole and positive

    @property
    def sums(self) -> str:
        """The format of C."""
        return self.wider or self.accumulates

    @property
    def rows(self) -> int:
        """Rows of B's panel in one group, which is what k is counted in."""
        return GROUP * self.terms

    def source_step(self, p: Any) -> Any:   # numbers, or values inside a kernel
        """The element of k at which row p of B's panel begins, for whole groups."""
        return p * self.steps // self.terms

    def depth(self, k: int) -> int:
        """Rows of B's panel for k elements, the last group filled up with zeros."""
        return -(-k // (GROUP * self.steps)) * self.rows


def _smallest_first(terms: int, most: int) -> Pairs:
    """Pairs of terms whose numbers add up to at most `most`: the larger the sum, the smaller the product."""
    return tuple((total - b, b) for total in range(most, -1, -1) for b in range(terms) if 0 <= total - b < terms)


@dataclass(frozen=True)
class Terms:
    """An f32 as the sum of `count` numbers of a narrower format, each the rest of those before it, rounded to nearest;
    and which of their products make that of two f32: (term of A, term of B), the smallest ones first."""
    format: str
    mantissa: int                   # bits that the format stores of it; its exponent is f32's
    count: int
    pairs: Pairs


TERMS = {"tf32": Terms("tf32", 10, 1, ((0, 0),)),
         "bf16_x3": Terms("bf16", 7, 2, _smallest_first(2, 1)), "bf16_x6": Terms("bf16", 7, 3, _smallest_first(3, 2)),
         "bf16_x9": Terms("bf16", 7, 3, _smallest_first(3, 4)), "tf32_x3": Terms("tf32", 10, 2, _smallest_first(2, 1))}


def _bytes(size: int) -> TileWord:
    """Integers of `size` bytes modulo 2^(8*size), byte by byte without signs: products of bytes i and j weigh
    2^(8(i+j)), and those that weigh more than the result holds do not count."""
    passes = tuple(tuple((i, total - i) for i in range(total + 1)) for total in range(size))
    shifts = tuple(8 * total for total in range(size))
    return TileWord("uu", 4, "i32", size, passes, shifts, wider="i64" if size > 4 else "")


TILE_WORDS = {
    "amx_bf16": TileWord("bf16", 2),
    "amx_i8i8": TileWord("ss", 4, "i32"), "amx_i8u8": TileWord("su", 4, "i32"),
    "amx_u8i8": TileWord("us", 4, "i32"), "amx_u8u8": TileWord("uu", 4, "i32"),
    "amx_f16": TileWord("bf16", 2, "f32", 2, (_smallest_first(2, 2),)),
    **{f"amx_{name}": TileWord("bf16", 2, "f32", terms.count, (terms.pairs,)) for name, terms in TERMS.items()
       if terms.format == "bf16"},
    "amx_i32": _bytes(4),
    "amx_i64": _bytes(8),       # eight products of bytes, 512 steps of k: less than 2^32
}

# Multiply-adds per second of one core, with tiles from L2 and in f32; elements split into terms per second; seconds of
# a call. Their ratios matter. Measured on a Xeon with AMX (see bench/results/formats_xeon.json).
TILE_RATE, NATIVE_RATE, SPLITTING, TILE_CALL = 0.82e12, 0.078e12, 5e9, 20e-6
# Of the time of the native product over that of the split one, as predicted, from which on "fastest" splits: AMX on
# shared cores slumps to two thirds of its rate for minutes, f32 does not (a Xeon with 16 CPUs, bench/results).
SURE = 1.5


def faster(word: str, m: int, n: int, k: int, threads: int) -> bool:
    """Whether "fastest" splits: only where that is faster whatever state the machine is in. With several threads it is
    not: 16 of them split and multiply at 4.6 times the rate of one, where the native product reaches 9.2 times its."""
    return threads == 1 and pays(word, m, n, k, SURE)


def native_words(word: str, gain: float = 1.0) -> float:
    """The m*n*k up to which no product `pays`, whatever its shape."""
    products = sum(map(len, TILE_WORDS[word].passes))
    per_product = 1 / NATIVE_RATE - products * gain / TILE_RATE
    return TILE_CALL * gain / per_product if per_product > 0 else inf


def pays(word: str, m: int, n: int, k: int, gain: float = 1.0) -> bool:
    """Whether the products of a word with several terms take less time than one native product of f32 on one thread, by
    this factor."""
    tile = TILE_WORDS[word]
    products = sum(map(len, tile.passes))
    rows, cols, depth = (-(-x // side) * side for x, side in ((m, SIDE), (n, SIDE), (k, GROUP * tile.steps)))
    tiles = rows * cols * depth * products / TILE_RATE + (rows + cols) * depth * tile.terms / SPLITTING
    return (tiles + TILE_CALL) * gain < m * n * k / NATIVE_RATE
