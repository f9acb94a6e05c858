"""Conditions, those that partial tiles leave, where they cost least.

    relaxed(s)          statements on buffers lose what of a condition only says which lanes and unrolled rounds count,
                        where more of them add zeros or change what nobody reads
    hoisted(nodes)      for a kernel: what all statements of a loop share stands around the loop, or ends it
    versioned(nodes)    for a GPU's: rounds that are code have a version without conditions, where all of them hold
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.nests.nest import Access, leaves
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.schedules.dependences import Range, span
from tilewright.nests.schedules.scheduled import Scheduled, simplified, widest
from tilewright.nests.tree import Do, For, Mma, Node, Sync, When, rewritten, walk


def relaxed(s: Scheduled) -> tuple[Scheduled, list[str]]:
    """With weaker conditions, and sentences about them."""
    said: list[str] = []
    private, zeros, box, tiles = s.privates(), _zeros(s), widest(s.nodes, {}), s.unrolled()
    weaker: dict[int, dict[Polynomial, Polynomial]] = {}
    for node, around in s.statements:
        arrays = {a.array for a, _ in node.accesses()}
        if not node.reduce or not arrays <= s.buffers.keys():
            continue
        for c in [c for x in around if isinstance(x, When) for c in x.conditions]:
            factors = c.linear().factors
            most = {x: box[x][factors[x] > 0] for x in factors if x in tiles}
            if not most:
                continue
            if _unread(s, node, c, private, box):
                said.append(f"what {node.target.array} has where {c} < 0 is never read")
            elif node.reduce == "add" and _adds_zero(node, c, zeros, box):
                said.append(f"where {c} < 0 zeros are added")
            else:
                continue
            weaker.setdefault(id(node), {})[c] = c.replaced(most)

    def rewrite(n: Any) -> tuple[Node, ...]:
        if isinstance(n, When) and id(n.body[0]) in weaker:
            by = weaker[id(n.body[0])]
            return (replace(n, conditions=tuple([by.get(c, c) for c in n.conditions])),)
        return (n,)
    return replace(s, nodes=simplified(rewritten(s.nodes, rewrite))) if weaker else s, [*dict.fromkeys(said)]


def _implied(c: Polynomial, by: list[Polynomial], box: dict[str, Range]) -> bool:
    """Whether one of these is never greater, so that it fails where c does."""
    return any(span(c - x, box)[0] >= 0 for x in by)


def _unread(s: Scheduled, node: Do, c: Polynomial, private: dict[str, frozenset[str]], box: dict[str, Range]) -> bool:
    """Whether every other statement that reads the target's element does so under this condition."""
    target = node.target
    axes = [p.linear() for p in target.subscripts]
    names = [next(iter(x.factors)) for x in axes if x.constant == 0 and [*x.factors.values()] == [1]]
    if len(names) != len(axes) or not c.names <= {*names} | private.get(target.array, frozenset()):
        return False
    for other, around in s.statements:
        if other is node:
            continue
        for a in [*leaves(other.value), *([other.target] if other.reduce else [])]:
            asked = [x for w in around if isinstance(w, When) for x in w.conditions]
            if a.array == target.array and not _implied(c.replaced(dict(zip(names, a.subscripts))), asked, box):
                return False
    return True


def _zeros(s: Scheduled) -> dict[str, tuple[Access, tuple[Polynomial, ...]]]:
    """Buffers that are zeroed, and then set by one statement in the same loops under conditions: its target, and the
    conditions."""
    writes: dict[str, list[tuple[Do, tuple[Any, ...]]]] = {}
    for node, around in s.statements:
        writes.setdefault(node.target.array, []).append((node, around))
    zeros = {}
    for name, every in writes.items():
        if name in s.buffers and len(every) == 2 and every[0][0].value == ("number", 0) and not every[1][0].reduce:
            (zero, before), (move, around) = every
            loops = [[x.index for x in places if isinstance(x, For)] for places in (before, around)]
            if zero.target == move.target and loops[0] == loops[1]:
                zeros[name] = move.target, tuple([c for x in around if isinstance(x, When) for c in x.conditions])
    return zeros


def _adds_zero(node: Do, c: Polynomial, zeros: dict[str, tuple[Access, tuple[Polynomial, ...]]],
               box: dict[str, Range]) -> bool:
    """Whether all factors of a product are 0 where the condition fails."""
    factors = [node.value] if node.value[0] == "load" else node.value[1:] if node.value[0] == "mul" else []
    if not factors or any(x[0] != "load" or x[1].array not in zeros for x in factors):
        return False
    for _, a in factors:
        target, conditions = zeros[a.array]
        by = {next(iter(p.names)): x for p, x in zip(target.subscripts, a.subscripts) if len(p.names) == 1}
        if not _implied(c, [x.replaced(by) for x in conditions], box):
            return False
    return True


# ---- in a kernel

def narrowed(s: Scheduled) -> Scheduled:
    """Without the zeros in buffers that nobody reads: only the last vectors and unrolled rounds that are read have
    some."""
    box, tiles = widest(s.nodes, {}), s.unrolled()
    reads: dict[str, list[tuple[Access, list[Polynomial]]]] = {}
    for node, around in s.statements:
        for a in [*leaves(node.value), *([node.target] if node.reduce else [])]:
            asked = [c for x in around if isinstance(x, When) for c in x.conditions]
            reads.setdefault(a.array, []).append((a, asked))
    for n, _ in walk(s.nodes):
        for a in n.operands if isinstance(n, Mma) else ():
            reads.setdefault(a.array, []).append((a, []))
    needed: dict[int, tuple[Polynomial, ...]] = {}
    for name, (target, conditions) in _zeros(s).items():
        zero = next(d for d, _ in s.statements if d.target == target and d.value == ("number", 0))
        for c in conditions:
            factors = c.linear().factors
            c = c.replaced({x: box[x][factors[x] > 0] for x in factors if x in tiles})
            axes = [*zip(target.subscripts, range(len(target.subscripts)))]
            names = {next(iter(p.names)): n for p, n in axes if len(p.names) == 1}
            if span(c, box)[0] < 0 and all(
                    asked and _implied(c.replaced({x: a.subscripts[n] for x, n in names.items()}), asked, box)
                    for a, asked in reads.get(name, ())):
                needed[id(zero)] = (*needed.get(id(zero), ()), c)
    return s.changed(lambda n: (When(needed[id(n)], (n,)),) if id(n) in needed else (n,)) if needed else s


def hoisted(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    result: list[Node] = []
    for n in nodes:
        if isinstance(n, For) and not n.mark.startswith("together"):     # whose rounds threads share, loop by loop
            body = hoisted(n.body)
            shared = [c for c in body[0].conditions if all(isinstance(x, When) and c in x.conditions for x in body)
                      ] if isinstance(body[0], When) else []
            ends = [c for c in shared if n.mark == "" and n.extent not in (None, 1) and n.step == 1
                    and c.linear().factors.get(n.index) == -1]
            outer = [c for c in shared if n.index not in c.names and n.mark in ("", "unroll", "vector")]
            body = tuple([y for x in body for y in _without(x, (*ends, *outer))])
            loop = replace(n, body=body, below=(*n.below, *[c + n.index + 1 for c in ends]))
            result.append(When(tuple(outer), (loop,)) if outer else loop)
        else:
            result.append(n)
    return tuple(result)


def versioned(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """A thread whose unrolled rounds are all there then loads for all of them before it computes."""
    found: list[Node] = []
    for n in nodes:
        if isinstance(n, For) and n.mark == "unroll" and n.extent not in (None, 1) and not any(
                isinstance(x, (Sync, Mma)) for x, _ in walk(n.body)):
            last = [c for c in n.body[0].conditions if n.index in c.names] if isinstance(n.body[0], When) else []
            if len(last) == 1 and last[0].linear().factors[n.index] < 0 and len(n.body) == 1:
                last_round = last[0].replaced({n.index: n.stop - 1})
                plain = replace(n, body=versioned(_without(n.body[0], (last[0],))))
                found += [When((last_round,), (plain,)), When((polynomial(-1) - last_round,), (n,))]
                continue
        if isinstance(n, (For, When)):
            n = replace(n, body=versioned(n.body))
        found.append(n)
    return tuple(found)


def _without(n: Node, conditions: tuple[Polynomial, ...]) -> tuple[Node, ...]:
    if not isinstance(n, When):
        return (n,)
    left = tuple([c for c in n.conditions if c not in conditions])
    return (replace(n, conditions=left),) if left else n.body
