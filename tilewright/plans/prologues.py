"""What prologues (expressions/prologue.py) ask of a plan: the formats that are multiplied, and their cost."""
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from tilewright.formats import FORMATS
from tilewright.plans.epilogues import SLOTS

if TYPE_CHECKING:
    from tilewright.expressions.prologue import Prologue


@lru_cache(maxsize=256)
def read(text: str) -> Prologue:
    from tilewright.expressions.prologue import Prologue  # of which most processes have none
    return Prologue.read(text)


def multiplied(format: str, text: str) -> str:
    """The format in which an operand of this one is multiplied."""
    return read(text).result if text else format


ONCE = 4                # rows of C, or columns, that B, or A, with a prologue is read once for, in place


def read_once(a: str, b: str, m: int, n: int, sums: str) -> str:
    """Which operand, "a" or "b", few rows or columns of C read once, by the prologues' texts; "": neither. The other
    one is converted to f32 before."""
    role, text, few = ("b", b, m) if b else ("a", a, n)
    return role if bool(a) != bool(b) and sums == "f32" and few <= ONCE and _by_vectors(text) else ""


@lru_cache(maxsize=256)
def _by_vectors(text: str) -> bool:
    """Whether vectors of f32 hold everything that the function computes with."""
    prologue = read(text)
    beside = (x.format for x in prologue.beside if (x.place, x.format) != ("scalar", "f64"))
    return prologue.result in ("f32", "bf16", "f16") and all(
        format in ("f32", "i32") or FORMATS[format].bits <= 16 for format in (prologue.source, *beside))


def operations(text: str) -> float:
    """Of an element, in instructions: its conversion, those of the function, and the rounding."""
    if not text:
        return 0.0
    prologue = read(text)
    return 2.0 + sum(SLOTS.get(line.operation, 1) for line in prologue.expression.lines) + 6*(prologue.result == "bf16")
