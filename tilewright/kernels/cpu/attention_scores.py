"""What becomes of products of queries and keys before they are powers, on CPUs: a score function with the arrays that
it reads, and masks. Scores are vectors, of queries or of keys; what they have in common is a number or a vector.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tilewright.attention_problem import SCORE, score_of, sloped
from tilewright.ir import Kernel, Type, Value, i32, i64, vec
from tilewright.kernels.cpu import attention_parts as parts, jobs
from tilewright.kernels.cpu.attention_parts import Stages, Strip
from tilewright.kernels.expression import recorded
from tilewright.kernels.narrow import memory_type


class Scores:
    """The score function with this text, "" for none, on numbers of type T. slope: with its derivative by the score."""

    def __init__(self, stages: Stages, TEXT: str, T: Type, slope: bool = False) -> None:
        score = score_of(TEXT) if TEXT else None
        self.T = T
        own = score.expression if score else None
        self.expression = sloped(own) if own and slope else own
        self.kinds = dict(score.expression.parameters) if score else {}
        self.reads = score.reads if score else ()
        self.staged = [stages(x.format, str(self.type(x))) for x in self.reads]

    def type(self, read: Any) -> Type:
        """What an operand's numbers are staged as: bools as i32."""
        return self.T if self.kinds[read.name] == "float" else i32

    def address(self, g: SimpleNamespace, number: int, sequence: Value, head: Value, query: Value) -> Value:
        """Where a query's row of an operand begins, by the job's fields."""
        at = g.reads + number*len(jobs.READ)
        return at[0] + memory_type(self.reads[number].format).bytes * (sequence*at[1] + head*at[2] + query*at[3])

    def changed(self, k: Kernel, y: Value, i: Value, j: Value, head: Value, beside: Sequence[Value] = ()
                ) -> list[Value]:
        """The score of a scaled product, and its slope if there is one. beside: the operands' numbers."""
        if self.expression is None:
            return [y]
        given = dict(zip(SCORE, (y, i, j, head)))
        for read, z in zip(self.reads, beside):
            given[read.name] = z != k.constant(z.type, 0) if self.kinds[read.name] == "bool" else z
        return recorded(k, self.expression, given, self.T)

    def numbers(self, k: Kernel, s: Strip, tiles: Sequence[Value], row: Value, v: int) -> list[Value]:
        """The operands' numbers of a row of `operands` for vector v."""
        return [k.load(tile + (row*s.LANES + v*s.V), vec(tile.type.element, s.V)) for tile in tiles]

    def operands(self, k: Kernel, s: Strip, rows: Value, steps: Callable[[int], Value], first: Value, n: Value,
                 shared: Callable[[str, Any], Value], pitch: int) -> list[Value]:
        """The operands of n keys from `first` on, [keys, lanes]. rows: of each operand the addresses of the lanes'
        rows; steps: from one key of an operand to the next; lines in between are `pitch` numbers apart."""
        found = []
        for number, (read, stage) in enumerate(zip(self.reads, self.staged)):
            E, M, step = self.type(read), memory_type(read.format), steps(number)
            lines, tile = shared("lines", E), shared(f"read{number}", E)
            with k.loop(k.constant(i64, s.LANES)) as lane:
                line = k.pointer(rows[lane + number*s.LANES], M)
                k.call(stage, line + first*step, step, n, lines + lane*pitch)
            parts.transposed(k, s, lines, pitch, (n + (s.V - 1)) // s.V * s.V, tile, E)
            found.append(tile)
        return found


def seen(k: Kernel, y: Value, j: Value, low: Value | None, high: Value) -> Value:
    """Scores, -inf of keys j outside of low to high; low None: without that end."""
    y = k.select(j <= high, y, -math.inf)
    return y if low is None else k.select(low <= j, y, -math.inf)
