"""A loop nest as a tree: loops with bodies, conditions, statements, and the buffers that a schedule adds.

    tree(nest)      the nodes of an unscheduled nest: statements that share loops share them

Schedules rewrite such trees (schedule.py), lower.py makes kernels of them. A loop's `mark` says how its rounds run:
"" one after the other; "unroll"; "vector", all at once by vector instructions; "block.x" to "block.z" and "thread.x",
"thread.y", a CTA or a thread of a launch for each; "grid.x" to "grid.z", shared by all of them; "worker", by the
threads of a CPU; "together", a copy that all threads of the CTA share, in turns; "together.async", one by
asynchronous instructions where the target has them.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir import Type
from tilewright.ir.program import Line
from tilewright.nests.nest import Access, Loop, LoopNest, Statement, Term, accesses_mapped, leaves
from tilewright.nests.polynomial import Polynomial


@dataclass(frozen=True)
class For:
    """Rounds of `index` = start, start + step ... below stop."""
    index: str
    start: Polynomial
    stop: Polynomial
    step: int
    body: tuple[Node, ...]
    line: Line
    mark: str = ""
    below: tuple[Polynomial, ...] = ()              # other bounds, which may be lower than `stop`
    rings: tuple[tuple[str, int, int, int], ...] = ()   # (name, shift, d, n): it is (index // d + shift) % n
    turns: tuple[str, int] | None = None            # of a copy: the name of a thread's turn, and how many there are

    @property
    def extent(self) -> int | None:
        """Rounds, if neither bound depends on another index or on a size."""
        rounds = (self.stop - self.start).constant
        return None if rounds is None else max(-(-rounds // self.step), 0)


@dataclass(frozen=True)
class When:
    """The body, where all conditions are >= 0."""
    conditions: tuple[Polynomial, ...]
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Do:
    """target = value, or reduce(target, value)."""
    target: Access
    reduce: str
    value: Term
    line: Line

    def accesses(self) -> Iterator[tuple[Access, bool]]:
        """Each element that is accessed, and whether it is written, in the order of accesses."""
        for access in leaves(self.value):
            yield access, False
        if self.reduce:
            yield self.target, False
        yield self.target, True

    def mapped(self, access: Callable[[Access], Access], index: Callable[[Polynomial], Polynomial]) -> Do:
        return replace(self, target=access(self.target), value=accesses_mapped(self.value, access, index))


@dataclass(frozen=True)
class Sync:
    """A barrier of the CTA, or of the warp: operations of a schedule add them, users never. "commit" closes a group of
    asynchronous copies, "wait" waits until at most `pending` groups of this thread are in flight."""
    scope: str = "cta"
    pending: int = 0


@dataclass(frozen=True)
class Buffer:
    """Memory that a schedule adds. `space`: "registers", "shared" or "memory". `pad`: (axis, elements between the end
    of one of its rows and the next one)."""
    shape: tuple[int, ...]
    space: str
    element: Type
    pad: tuple[int, int] = (0, 0)

    @property
    def strides(self) -> tuple[int, ...]:
        result, size = list[int](), 1
        for axis, n in reversed([*enumerate(self.shape)]):
            size += self.pad[1] if axis == self.pad[0] else 0
            result.insert(0, size)
            size *= n
        return tuple(result)

    @property
    def size(self) -> int:
        """Elements, those between rows too."""
        return self.shape[0] * self.strides[0] if self.shape else 1


@dataclass(frozen=True)
class Mma:
    """c += a @ b by a matrix instruction of a warp (`atoms`): buffers in registers, by the subscripts of all axes but
    those that a lane's elements have."""
    atom: Any
    c: Access
    a: Access
    b: Access
    line: Line

    @property
    def operands(self) -> tuple[Access, Access, Access]:
        return self.c, self.a, self.b


Node = For | When | Do | Sync | Mma


def walk(nodes: tuple[Node, ...], around: tuple[For | When, ...] = ()) -> Iterator[tuple[Node, tuple[For | When, ...]]]:
    """Every node, in the order of execution, with the loops and conditions around it, outermost first."""
    for node in nodes:
        yield node, around
        if isinstance(node, (For, When)):
            yield from walk(node.body, (*around, node))


def polynomials(nodes: tuple[Node, ...]) -> Iterator[Polynomial]:
    """All that is computed in whole numbers: bounds, conditions, subscripts and indices."""
    for node, _ in walk(nodes):
        if isinstance(node, For):
            yield from (node.start, node.stop, *node.below)
        elif isinstance(node, When):
            yield from node.conditions
        elif isinstance(node, Do):
            yield from leaves(node.value, "index")
            for a, _ in node.accesses():
                yield from a.subscripts
        elif isinstance(node, Mma):
            yield from (p for a in node.operands for p in a.subscripts)


def rewritten(nodes: tuple[Node, ...], rewrite: Callable[[Any], tuple[Node, ...]]) -> tuple[Node, ...]:
    """rewrite(node) in place of every node, innermost ones first."""
    return tuple([x for node in nodes for x in rewrite(
        replace(node, body=rewritten(node.body, rewrite)) if isinstance(node, (For, When)) else node)])


def replaced(nodes: tuple[Node, ...], by: dict[str, Any]) -> tuple[Node, ...]:
    """Polynomials, names or numbers in place of indices and sizes in all that the nodes compute with."""
    def rewrite(node: Node) -> tuple[Node, ...]:
        if isinstance(node, For):
            return (replace(node, start=node.start.replaced(by), stop=node.stop.replaced(by),
                            below=tuple([x.replaced(by) for x in node.below])),)
        if isinstance(node, When):
            return (replace(node, conditions=tuple([c.replaced(by) for c in node.conditions])),)
        if isinstance(node, Do):
            return (node.mapped(lambda a: a.replaced(by), lambda p: p.replaced(by)),)
        if isinstance(node, Mma):
            return (replace(node, c=node.c.replaced(by), a=node.a.replaced(by), b=node.b.replaced(by)),)
        return (node,)
    return rewritten(nodes, rewrite)


def tree(nest: LoopNest, sizes: dict[str, int] | None = None) -> tuple[Node, ...]:
    """The nest's statements in their loops; with `sizes`, numbers in place of them."""
    nodes = _nested([(s, s.loops) for s in nest.statements])
    return replaced(nodes, dict(sizes)) if sizes else nodes


def _nested(statements: list[tuple[Statement, tuple[Loop, ...]]]) -> tuple[Node, ...]:
    """The nodes of statements with the loops that are left of theirs."""
    nodes: list[Node] = []
    n = 0
    while n < len(statements):
        statement, loops = statements[n]
        if not loops:
            do = Do(statement.target, statement.reduce, statement.value, statement.line)
            nodes.append(When(statement.conditions, (do,)) if statement.conditions else do)
            n += 1
            continue
        first, end = loops[0], n
        while end < len(statements) and statements[end][1] and statements[end][1][0].index == first.index:
            end += 1
        body = _nested([(s, rest[1:]) for s, rest in statements[n:end]])
        mark = "" if first.kind == "loop" else first.index
        nodes.append(For(first.index, first.start, first.stop, first.step, body, first.line, mark))
        n = end
    return tuple(nodes)
