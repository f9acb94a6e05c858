"""Functions that a kernel records as many operations, k.exp and others, as one: `function(function, nodes, n)`.

What each records of one number is recorded here again, and compared with the operations that begin at a node.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from tilewright.ir import Function, Kernel, Type
from tilewright.ir.program import Op
from tilewright.ir.types import f32, f64

NAMES = ("exp", "log", "tanh", "sigmoid", "erf", "gelu", "gelu_tanh")


class Spelling(NamedTuple):
    """The operations of a function of x, the last of which makes its result."""
    name: str
    x: int
    nodes: tuple[Op, ...]


class Call(NamedTuple):
    """One of NAMES, of a value."""
    name: str
    x: Any
    result: Any
    length: int         # operations


def called(function: Function, nodes: Sequence[Any], n: int) -> Call | None:
    """The function whose operations begin at a node, the longest one; None if none does."""
    operands = nodes[n].operands
    t = operands[0].type if operands else None
    if not isinstance(t, Type) or t.scalar not in (f32, f64):
        return None
    for s in _spellings(t, function.threads is not None, function.warp):
        if s.nodes[0].operation is nodes[n].operation and len(s.nodes) <= len(nodes) - n:
            values = _same(s, nodes[n:n + len(s.nodes)])
            if values is not None:
                return Call(s.name, values[s.x], nodes[n + len(s.nodes) - 1].results[0], len(s.nodes))
    return None


def _same(s: Spelling, nodes: Sequence[Any]) -> dict[int, Any] | None:
    """The kernel's values for the spelling's, if these are its operations."""
    values: dict[int, Any] = {}
    for mine, other in zip(s.nodes, nodes):
        if not isinstance(other, Op) or other.operation is not mine.operation or (
                len(other.operands) != len(mine.operands)):
            return None
        for x, y in zip(mine.operands, other.operands):
            if x.type != y.type or repr(x.constant) != repr(y.constant):       # of which one may be a NaN
                return None
            if x.constant is None and values.setdefault(x.id, y).id != y.id:
                return None
        values |= {x.id: y for x, y in zip(mine.results, other.results)}
    return values


@cache
def _spellings(t: Type, gpu: bool, warp: int) -> tuple[Spelling, ...]:
    spellings = []
    for name in NAMES:
        k = Kernel("spelling", threads=warp if gpu else None, warp=warp if gpu else 32, x=t)
        x, = k.args
        try:
            result = getattr(k, name)(x)
        except TypeError:               # not in this format
            continue
        nodes = tuple(k.function.body)
        if len(nodes) > 1 and all(isinstance(node, Op) for node in nodes) and nodes[-1].results[0].id == result.id:
            spellings.append(Spelling(name, x.id, nodes))
    return tuple(sorted(spellings, key=lambda s: -len(s.nodes)))
