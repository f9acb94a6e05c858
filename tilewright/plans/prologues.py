"""What prologues (expressions/prologue.py) ask of a plan: the formats that are multiplied, and their cost."""
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

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


def operations(text: str) -> float:
    """Of an element, in instructions: its conversion, those of the function, and the rounding."""
    if not text:
        return 0.0
    prologue = read(text)
    return 2.0 + sum(SLOTS.get(line.operation, 1) for line in prologue.expression.lines) + 6*(prologue.result == "bf16")
