"""Words: several steps of k in 32 bits, for the instructions that multiply and add two or four numbers at a time.

plans/lowering.py takes the first row of the table for the formats of A and B, that of the sums, and what the chip has.
Without one, packing brings each number into the format of the sums. A word counts as an element of 32 bits in plans,
panels and register tiles, and the k of such a shape counts words.
"""
from __future__ import annotations

from typing import NamedTuple

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
        """Whether AMX multiplies it: plans.amx says how."""
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
)
BY_NAME = {word.name: word for word in WORDS}
