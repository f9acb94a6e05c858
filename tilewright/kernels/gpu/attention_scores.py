"""Attention's scores in registers, for kernels of both makers: a user's function of them (attention_problem.Score), and
masks."""
from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tilewright.attention_problem import SCORE, score_of
from tilewright.expressions.function import Aux
from tilewright.ir import Kernel, Tile, Value, f32, i1, i32, i64, ptr
from tilewright.kernels.expression import recorded
from tilewright.kernels.narrow import memory_type, number

if TYPE_CHECKING:
    from tilewright.kernels.gpu.attention_work import Sized, Work

KINDS = {"float": f32, "int": i32, "bool": i1}
Columns = Sequence[tuple[tuple[int, int], int]]      # registers of a tile, and their keys
AXES = "sequence", "head", "row", "column"


def name(x: Aux) -> str:
    """The parameter that has its address."""
    return f"of_{x.name}"


def parameters(SCORE: str) -> dict[str, Any]:
    """The kernel's parameters for a score function: the scale, arrays, and their distances along all axes."""
    if not SCORE:
        return {}
    fields: dict[str, Any] = {"scale": f32}
    for x in score_of(SCORE).reads:
        fields |= {name(x): ptr(memory_type(x.format), strided=True)} | {f"{name(x)}_{axis}": i64 for axis in AXES}
    return fields


class Scores:
    """What becomes of scores once products have given them, by rows of a tile that a lane has.

    i, head     of the row's query: its index in its sequence
    j0          the lane's first key; columns: each register's key, from j0 on
    """

    def __init__(self, k: Kernel, g: SimpleNamespace, s: Sized) -> None:
        self.k, self.g, self.band = k, g, s.shape.band
        self.score = score_of(s.shape.score) if s.shape.score else None
        self.kinds = dict(self.score.expression.parameters) if self.score else {}

    def change(self, scores: Tile, scale: Value, work: Work, i: Value, head: Value, j0: Value, columns: Columns
               ) -> None:
        """Scores of a row become what the function makes of them, times `scale`."""
        k = self.k
        assert work.shift is not None
        assert self.score is not None
        position, row = i + work.shift, k.min(i, work.queries - 1)
        bases = {x: self._base(x, work, head, row) for x in self.score.reads}
        for ij, column in columns:
            j = j0 + column
            given = dict(zip(SCORE, (scores[ij]*scale, position, j, head)))
            given |= {x.name: self._number(x, bases[x], k.min(j, work.keys - 1)) for x in self.score.reads}
            (scores[ij],) = recorded(k, self.score.expression, given, f32, instead={"tanh": tanh})

    def mask(self, scores: Tile, work: Work, i: Value, j0: Value, columns: Columns) -> None:
        """-inf for keys that the query does not see."""
        k, g = self.k, self.g
        last, first = work.keys - 1 - j0, None
        if self.band:
            assert work.shift is not None
            last = k.min(work.keys - 1, i + work.shift + g.after) - j0
            first = i + work.shift - g.before - j0 if self.band == "window" else None
        for ij, column in columns:
            there = last >= column
            if first is not None:
                there = there & (first <= column)
            scores[ij] = k.select(there, scores[ij], -math.inf)

    def _base(self, x: Aux, work: Work, head: Value, row: Value) -> Value:
        at = getattr(self.g, name(x))
        for axis, index in zip(AXES, (work.sequence, head, row)):
            at = at + self.k.cast(index, i64)*getattr(self.g, f"{name(x)}_{axis}")
        return at

    def _number(self, x: Aux, base: Value, column: Value) -> Value:
        at = base + self.k.cast(column, i64)*getattr(self.g, f"{name(x)}_column")
        return number(self.k, self.k.load(at), x.format, KINDS[self.kinds[x.name]])


def tanh(k: Kernel, x: Value) -> Value:
    """Within 2^-22, which is little beside the rounding of products that a score comes from, by two instructions of the
    chip: near 0 the error is not small beside the result."""
    power = k.exp2_approximate(x*(2*math.log2(math.e)))
    return k.fma(k.reciprocal_approximate(power + 1.0), -2.0, 1.0)
