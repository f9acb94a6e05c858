"""What a semiring (expressions/semiring.py) asks of a plan: exchanged roles, registers and its cost."""
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.expressions.semiring import Semiring

TERM = 3                # registers for a term, beside the operands, at most


def read(text: str) -> Semiring:
    from tilewright.expressions import semiring  # of which most processes have none
    return semiring.read(text)


@lru_cache(maxsize=256)
def swapped(text: str) -> str:
    """That of C^T = B^T A^T."""
    return read(text).swapped.text if text else ""


def state(text: str) -> int:
    """Fields of a state that is kept until an epilogue makes results of it, beside C; 0: there is none."""
    return read(text).state if text else 0


def fields(text: str) -> int:
    """Registers of an element of a tile."""
    return len(read(text).fold.fields) if text else 1


def registers(text: str) -> int:
    """That its terms take, and constants."""
    return min(len(read(text).step.lines), TERM) if text else 0


def operations(text: str) -> int:
    """Of a term, in multiply-adds."""
    return read(text).operations if text else 1
