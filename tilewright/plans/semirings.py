"""What a semiring (expressions/semiring.py) asks of a plan: exchanged roles, registers and its cost."""
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.expressions.semiring import Semiring

# Registers for terms, beside the operands: of most at most TERM, of those that count bits without an instruction for it
# COUNTING; elementary functions have CONSTANTS and, since LLVM mixes the terms of a tile, LIVE for each of them.
TERM, COUNTING, CONSTANTS, LIVE = 3, 5, 8, 5


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
    """Registers of a vector of a tile."""
    return len(read(text).fold.fields) if text else 1


def registers(text: str, mr: int, vectors: int) -> int:
    """Of a tile of so many rows and vectors: its states, a row of B, an element of A, and what its terms take."""
    return fields(text)*mr*vectors + vectors + 1 + (_of_terms(text, mr*vectors) if text else 0)


@lru_cache(maxsize=256)
def _of_terms(text: str, vectors: int) -> int:
    from tilewright.expressions.program import ELEMENTARY
    operations = [line.operation for line in read(text).step.lines]
    if any(name in ELEMENTARY for name in operations):
        return CONSTANTS + (LIVE + fields(text) - 1)*vectors
    return COUNTING if counts_bits(text) else min(len(operations), TERM)


def counts_bits(text: str) -> bool:
    return any(line.operation == "popcount" for line in read(text).step.lines)


def operations(text: str) -> int:
    """Of a term, in multiply-adds."""
    return read(text).operations if text else 1
