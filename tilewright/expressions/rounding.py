"""Which operations of an expression may be short, because what comes of them is rounded to few bits.

A kernel stores results in formats; a gelu that is nothing but stored in bf16, or multiplied before, needs no more than
a little beyond bf16's bits (ir/elementary.py). It is decided here, by the expression and the formats of its
results: so kernels for every target compute the same.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tilewright.expressions.program import Expression, Line
from tilewright.formats import FORMATS, Float

NAMES, BITS = ("gelu", "gelu_tanh"), (8, 11)        # of ir.elementary.SHORT
WHOLE = 99
# Operations of whose result the relative error is that of an operand, or the sum of both.
PASSING = {"mul", "neg", "abs", "where", "div"}


def bits(format: str) -> int:
    """Significant bits of a format, its leading one included; WHOLE for what is no float of 16 bits or less."""
    known = FORMATS[format]
    return known.mantissa + 1 if isinstance(known, Float) and known.bits <= 16 else WHOLE


@lru_cache(maxsize=256)
def shortened(expression: Expression, formats: Sequence[str]) -> Expression:
    """With `name~bits` in place of operations that may be short, for results that are stored in these formats, one for
    each result ("f32" of what is reduced)."""
    need = [0] * len(expression.lines)
    for result, format in zip(expression.results, formats, strict=True):
        if isinstance(result.operand, int):
            need[result.operand] = max(need[result.operand], bits(format) if not result.reduced else WHOLE)
    for at, line in reversed([*enumerate(expression.lines)]):
        passed = need[at] if line.operation in PASSING else WHOLE
        for x in line.operands:
            if isinstance(x, int):
                need[x] = max(need[x], passed)
    lines = []
    for line, count in zip(expression.lines, need):
        enough = next((x for x in BITS if x >= count), None)
        short = line.operation in NAMES and enough is not None
        lines.append(Line(f"{line.operation}~{enough}", line.operands) if short else line)
    return Expression(expression.parameters, tuple(lines), expression.results)
