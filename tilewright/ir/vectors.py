"""Loops whose rounds are independent (`kernels.elementwise.each`) become vector code, in both readings.

On a CPU: rounds of whole vectors, several at a time; rounds of one vector; one under a mask for what is left. Above the
size of the last cache, stores that pass the caches by. On a GPU: each thread handles as many elements as 16 bytes hold,
if arrays begin where such accesses may, and one at a time otherwise, and at the end: the kernel decides when it runs.
A vector holds as many elements as fit of the widest format that is read or written; on a GPU, from global memory.

A body that cannot be vectors stays a loop, round by round; `reasons` says why.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tilewright.ir.fma import fused
from tilewright.ir.program import Function, If, Loop, Op, While
from tilewright.ir.rounds import OnCpu, OnGpu, begin
from tilewright.ir.types import Type
from tilewright.ir.values import Value
from tilewright.ir.widened import Scalar, Widened

MOST_CTAS = (1 << 31) - 1         # along x, of a grid
Bounds = Callable[[Widened, Value], tuple[Value, Value]]


@dataclass(frozen=True)
class Width:
    """The width of a CPU's vectors. `masked`: elements of any size can be accessed under a mask, else those of 4 and 8
    bytes. `cache`: bytes of the last level of cache; 0: nothing is known of it."""
    bytes: int = 32
    masked: bool = False
    cache: int = 0


def width(target: Any) -> Width:
    """The width of a target's vectors. A GPU has none and gets the default."""
    return Width(target.vector_bytes, target.masked, target.l3) if hasattr(target, "vector_bytes") else Width()


DEFAULT = Width()


def vectorised(function: Function, width: Width = DEFAULT) -> Function:
    """The function with its products fused (`ir.fma`) and in vector code: what is lowered and simulated.
    The function itself if a user's code has neither floats nor independent loops in it."""
    return _vectorised(function, width) if function.independent else fused(function)


@cache
def _vectorised(function: Function, width: Width) -> Function:
    return divided(function, width, None)


def reasons(function: Function, width: Width = DEFAULT) -> list[str]:
    """Which loops of `each` stay as they are, round by round: the line and the reason of each."""
    return list(vectorised(function, width).scalar)


def ctas(function: Function, args: Sequence[Any]) -> int | None:
    """How many CTAs have one round of each loop that CTAs share, or of its vectors, for each thread or row; None if
    there are no such loops, or numbers decide that are not known before the kernel runs."""
    vectorised(function)
    known = {value.id: value.type.numpy.type(x) for (_, value), x in zip(function.params, args)
             if isinstance(value.type, Type)}
    made = {x.id: node for node in function.walk() if isinstance(node, Op) for x in node.results}
    counts = []
    for node in function.walk():
        if isinstance(node, Loop) and node.rounds and node.rounds.threads:
            count = _evaluated(node.stop, known, made)
            if count is None:
                return None
            counts.append(-(-int(count) // (node.rounds.cta * node.rounds.elements)))
    return min(max(*counts, 1), MOST_CTAS) if counts else None


def _evaluated(x: Value, known: dict[int, Any], made: dict[int, Op]) -> Any:
    """A number of the host, of what is given to a kernel."""
    if x.constant is not None:
        return x.type.numpy.type(x.constant)
    if x.id in known or x.id not in made:
        return known.get(x.id)
    node = made[x.id]
    operands = [_evaluated(y, known, made) for y in node.operands]
    if node.operation.role != "thread" or node.operation.numpy is None or any(y is None for y in operands):
        return None
    return node.operation.numpy(x.type, *operands)


def divided(function: Function, width: Width, bounds: Bounds | None) -> Function:
    """`vectorised`, of which each loop that threads share has only the rounds within `bounds`."""
    function = fused(function)
    if not function.independent or not any(node.defines for node in function.walk()):       # nothing is computed
        return function
    return _Rewriting(function, width, bounds).function


class _Rewriting:
    def __init__(self, function: Function, width: Width, bounds: Bounds | None) -> None:
        self.original, self.width, self.bounds = function, width, bounds
        self.k: Any = next(x.k for node in function.walk() for x in node.defines)
        self.why: list[str] = []
        body = self.body(function.body)
        self.function = replace(function, body=body, independent=False, scalar=tuple(self.why))

    def body(self, nodes: list) -> list:
        widened: list = []
        for node in nodes:
            match node:
                case Loop() if node.rounds is not None:
                    self.rounds(node, widened)
                case Loop():
                    widened.append(replace(node, body=self.body(node.body)))
                case While():
                    widened.append(replace(node, head=self.body(node.head), body=self.body(node.body)))
                case If():
                    widened.append(replace(node, then=self.body(node.then), otherwise=self.body(node.otherwise)))
                case _:
                    widened.append(node)
        return widened

    def rounds(self, loop: Loop, out: list) -> None:
        assert loop.rounds is not None
        first, stop = loop.start, loop.stop
        if loop.rounds.threads and self.bounds is not None:
            first, stop = self.bounds(begin(self.k, out, loop), stop)
        scalar = replace(loop, start=first, stop=stop, rounds=None)
        if not loop.rounds.vectors:
            out.append(replace(scalar, body=self.body(loop.body)))
            return
        nodes: list = []
        try:
            gpu = self.original.threads is not None
            emitter = (OnGpu if gpu else OnCpu)(self.k, self.original, self.width, scalar, loop.rounds.folds, loop.stop)
            emitter.write(nodes)
            loop.rounds.elements = emitter.V
        except Scalar as reason:
            self.why.append(str(reason))
            nodes = [scalar]
        out.extend(nodes)
