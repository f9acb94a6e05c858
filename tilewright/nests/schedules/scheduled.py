"""`Scheduled`: a tree of loops with numbers for sizes, in the form that a schedule's operations expect and keep.

Loops count from 0 by 1, but where a triangle's step forbids it; conditions stand directly around statements, so that
loops stay one in the other, and only where they can fail.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

from tilewright.ir import Type
from tilewright.ir.program import Line
from tilewright.nests.nest import Access, LoopNest
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.schedules.dependences import Range, loop_range, privates, span
from tilewright.nests.tree import Buffer, Do, For, Node, Sync, When, replaced, rewritten, tree, walk


class Illegal(ValueError):
    """An operation that would change results. The message has the line of the user's loop, and what is in the way."""


def illegal(line: Line | None, reason: str) -> NoReturn:
    where = f"{line}: " if line else ""
    raise Illegal(f"{where}{reason}" + (f"\n    {line.text}" if line and line.text else ""))


class Layout(NamedTuple):
    """An array of the caller: strides in elements."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: Type


@dataclass(frozen=True)
class Scheduled:
    """`buffers`: those that a schedule has added, and the nest's scalars, registers without axes."""
    nodes: tuple[Node, ...]
    arrays: dict[str, Layout]
    buffers: dict[str, Buffer]

    @property
    def loops(self) -> list[For]:
        return [n for n, _ in walk(self.nodes) if isinstance(n, For)]

    @property
    def statements(self) -> Iterator[tuple[Do, tuple[For | When, ...]]]:
        return ((n, around) for n, around in walk(self.nodes) if isinstance(n, Do))

    def named(self, name: str) -> list[For]:
        """The loops of this name: several where copies have it."""
        matching = [x for x in self.loops if x.index == name]
        if not matching:
            names = " ".join(dict.fromkeys(x.index for x in self.loops))
            raise Illegal(f"there is no loop {name}; there are {names}")
        return matching

    def loop(self, name: str) -> For:
        matching = self.named(name)
        if len(matching) > 1:
            raise Illegal(f"there are {len(matching)} loops {name}, and one is meant here")
        return matching[0]

    def around(self, node: Node) -> tuple[For | When, ...]:
        return next(around for n, around in walk(self.nodes) if n is node)

    def privates(self) -> dict[str, frozenset[str]]:
        """The loops in each round of which a scalar or a buffer is its own."""
        return privates(self.nodes, [name for name, b in self.buffers.items() if b.shape])

    def element(self, array: str) -> Type:
        return self.buffers[array].element if array in self.buffers else self.arrays[array].element

    def shape(self, array: str) -> tuple[int, ...]:
        return self.buffers[array].shape if array in self.buffers else self.arrays[array].shape

    def strides(self, array: str) -> tuple[int, ...]:
        return self.arrays[array].strides if array in self.arrays else self.buffers[array].strides

    def stride(self, access: Access, index: str) -> int:
        """Elements from one round of a loop to the next."""
        return sum(c * x.linear().factors.get(index, 0) for c, x in zip(self.strides(access.array), access.subscripts))

    def space(self, array: str) -> str:
        return self.buffers[array].space if array in self.buffers else "global"

    def unrolled(self) -> set[str]:
        """Loops whose rounds are code or lanes: those that are axes of registers, which have no addresses, too."""
        names = {x.index for x in self.loops if x.mark in ("unroll", "vector")}
        return names | {name for d, _ in self.statements for a, _ in d.accesses() if self.space(a.array) == "registers"
                        for p in a.subscripts for name in p.names}

    def changed(self, rewrite: Callable[[Any], tuple[Node, ...]], buffers: Mapping[str, Buffer] | None = None
                ) -> Scheduled:
        """With rewrite(node) for every node, innermost ones first, and simplified."""
        return replace(self, nodes=simplified(rewritten(self.nodes, rewrite)),
                       buffers={**self.buffers, **(buffers or {})})

    def marked(self, name: str, mark: str) -> Scheduled:
        return self.changed(lambda n: (replace(n, mark=mark) if isinstance(n, For) and n.index == name else n,))


def scheduled(nest: LoopNest, arrays: dict[str, Layout], sizes: Mapping[str, int]) -> Scheduled:
    """The nest as written, for arrays of these layouts."""
    buffers = {name: Buffer((), "registers", element) for name, element in nest.scalars.items()}
    return Scheduled(simplified(_from_zero(tree(nest, dict(sizes)), {})), arrays, buffers)


def _from_zero(nodes: tuple[Node, ...], by: dict[str, Any]) -> tuple[Node, ...]:
    """Loops that count from 0 by 1."""
    result: list[Node] = []
    for node in replaced(nodes, by) if by else nodes:
        if isinstance(node, When):
            result.append(replace(node, body=_from_zero(node.body, {})))
        elif isinstance(node, For):
            start, stop = node.start, node.stop - node.start
            if node.step != 1 and stop.constant is None:
                result.append(replace(node, body=_from_zero(node.body, {})))
                continue
            if node.step != 1:
                stop = polynomial(node.extent or 0)
            index = polynomial(node.index)
            body = _from_zero(node.body, {} if start.constant == 0 and node.step == 1 else
                              {node.index: start + index * node.step})
            result.append(replace(node, start=polynomial(0), stop=stop, step=1, body=body))
        else:
            result.append(node)
    return tuple(result)


def simplified(nodes: tuple[Node, ...], around: Mapping[str, Range] | None = None,
               conditions: tuple[Polynomial, ...] = ()) -> tuple[Node, ...]:
    """Conditions directly around statements, and only those that can fail; without what never runs."""
    around = around or {}
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, For):
            inner = {**around, **loop_range(node, around)}
            body = simplified(node.body, inner, conditions) if node.extent != 0 else ()
            if body:
                result.append(replace(node, body=body))
        elif isinstance(node, When):
            result += simplified(node.body, around, (*conditions, *[c for c in node.conditions if c not in conditions]))
        elif isinstance(node, Sync):
            result.append(node)
        else:
            left = [c for c in conditions if span(c, around)[0] < 0]
            if all(span(c, around)[1] >= 0 for c in left):
                result.append(When(tuple(left), (node,)) if left else node)
    return tuple(result)


def widest(nodes: tuple[Node, ...], around: Mapping[str, Range]) -> dict[str, Range]:
    """The values of all indices, whatever those around them are."""
    known = dict(around)
    for node in nodes:
        if isinstance(node, For):
            for name, (first, last) in loop_range(node, known).items():
                old = known.get(name, (first, last))
                known[name] = min(first, old[0]), max(last, old[1])
            known |= widest(node.body, known)
        elif isinstance(node, When):
            known |= widest(node.body, known)
    return known
