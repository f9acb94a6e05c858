"""`pipeline`: copies to shared memory some rounds before they are needed, into a ring of buffers.

    for po < 128                        copy tile 0; barrier
      barrier                           for po < 128, po.slot = po % 2, po.fill = (po + 1) % 2
      copy tile po                        start to copy tile po + 1 into po.fill
      barrier                             compute with po.slot
      compute                             barrier
"""
from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from tilewright.nests.nest import Access
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.schedules.operations import Done
from tilewright.nests.schedules.scheduled import Illegal, Scheduled, illegal, simplified
from tilewright.nests.tree import Buffer, Do, For, Node, Sync, When, replaced, rewritten, walk


def pipeline(s: Scheduled, name: str, stages: int, by: str) -> Done:
    if by not in ("async", "registers"):
        raise Illegal(f'copies are in flight by "async" or in "registers", not by {by!r}')
    loop = s.loop(name)
    rounds = loop.extent
    if rounds is None or not 2 <= stages <= max(rounds, 2) or (by == "registers" and stages != 2):
        illegal(loop.line, f"{name} has {loop.stop} rounds, and copies are 1 or more of them early, 1 in registers")
    if loop.mark or loop.rings:
        illegal(loop.line, f"{name} is {loop.mark or 'pipelined'} already")
    copies, rest = _parts(loop)
    arrays = _filled(s, copies, rest, loop)
    slot, fill = f"{name}.slot", f"{name}.fill"
    buffers = {x: _ring(s.buffers[x], stages) for x in arrays}

    def early(round: Any, place: Any, inside: bool) -> tuple[Node, ...]:
        """The copies of another round, to this place of the ring."""
        moved = _placed(replaced(copies, {name: polynomial(round)}), arrays, place)
        if not inside:
            return moved
        within = loop.stop - 1 - round
        return rewritten(moved, lambda n: (When((within,), (n,)),) if isinstance(n, Do) else (n,))
    used = _placed(rest, arrays, slot)
    again = any(isinstance(x, For) and x.mark in ("", "unroll") for x in s.around(loop))
    before: list[Node] = [Sync()] if again else []
    if by == "async":
        for n in range(stages - 1):
            before += [*_flying(early(n, n, False)), Sync("commit")]
        body = (Sync("wait", stages - 2), Sync(), *_flying(early(polynomial(name) + (stages - 1), fill, True)),
                Sync("commit"), *used)
    else:
        before += [*early(0, 0, False), Sync()]
        within = loop.stop - 2 - polynomial(name)
        loads, stores, held = _halves(s, early(polynomial(name) + 1, fill, True), within)
        buffers |= held
        body = (*loads, *used, *stores, Sync())
    ringed = replace(loop, body=body, rings=((slot, 0, 1, stages), (fill, stages - 1, 1, stages)))
    after = (Sync("wait"),) if by == "async" else ()
    nodes = rewritten(s.nodes, lambda n: (*before, ringed, *after) if isinstance(n, For) and n.index == name else (n,))
    s = replace(s, nodes=simplified(nodes), buffers={**s.buffers, **buffers})
    how = "asynchronously" if by == "async" else "by way of registers"
    early_by = f"{stages - 1} round{'s' * (stages > 2)} early"
    return s, (f"pipeline {name}: {' and '.join(arrays)} are filled {early_by}, {how}, in a ring of {stages}: "
               f"copies read only what {name} does not write")


def _parts(loop: For) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The copies that a round begins with, and what comes after them."""
    body = loop.body
    at = next((n for n, x in enumerate(body) if not isinstance(x, Sync) and not (
        isinstance(x, For) and x.mark == "together")), len(body))
    copies, rest = tuple([x for x in body[:at] if isinstance(x, For)]), tuple(body[at:])
    if not copies or not isinstance(body[at - 1], Sync) or any(isinstance(n, Sync) for n, _ in walk(rest)):
        illegal(loop.line, f"the rounds of {loop.index} do not begin with copies to shared memory, after which there "
                "is no other barrier")
    return copies, rest


def _filled(s: Scheduled, copies: tuple[Node, ...], rest: tuple[Node, ...], loop: For) -> list[str]:
    """The buffers that are copied to."""
    arrays = list(dict.fromkeys(n.target.array for n, _ in walk(copies) if isinstance(n, Do)))
    written = {n.target.array: n.line for n, _ in walk(rest) if isinstance(n, Do)}
    for n, _ in walk(copies):
        for a, writes in n.accesses() if isinstance(n, Do) else ():
            if a.array in written and not writes:
                illegal(written[a.array], f"{a.array} is written in a round of {loop.index}, and later rounds copy it")
    for n, around in s.statements:
        if any(a.array in arrays for a, _ in n.accesses()) and loop not in around:
            illegal(n.line, f"{n.target.array} is used outside of {loop.index}, too")
    return arrays


def _ring(b: Buffer, stages: int) -> Buffer:
    return replace(b, shape=(stages, *b.shape), pad=(b.pad[0] + 1, b.pad[1]))


def _placed(nodes: tuple[Node, ...], arrays: list[str], place: Any) -> tuple[Node, ...]:
    """With a place of the ring as the first subscript of these arrays."""
    def access(a: Access) -> Access:
        return a._replace(subscripts=(polynomial(place), *a.subscripts)) if a.array in arrays else a
    return rewritten(nodes, lambda n: (n.mapped(access, lambda p: p),) if isinstance(n, Do) else (n,))


def _flying(copies: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple([replace(n, mark="together.async") if isinstance(n, For) and n.mark == "together" else n
                  for n in copies])


def _halves(s: Scheduled, copies: tuple[Node, ...], within: Polynomial
            ) -> tuple[tuple[Node, ...], tuple[Node, ...], dict[str, Buffer]]:
    """Copies to registers, copies from there, and the registers: an element for each turn of a thread and each round of
    the loops inside it."""
    threads = prod(x.extent or 1 for x in s.loops if x.mark.startswith("thread"))
    loads, stores, held = list[Node](), list[Node](), dict[str, Buffer]()
    for top in copies:
        assert isinstance(top, For)
        every = [x for x, _ in walk((top,)) if isinstance(x, For)]
        inner = [x for x in every if x.mark in ("vector", "unroll")]
        turns = -(-prod(x.extent or 1 for x in every if x not in inner) // threads)
        target = next(n.target.array for n, _ in walk((top,)) if isinstance(n, Do))
        name, turn = f"{target}_next", f"{target}.turn"
        at = Access(name, tuple(map(polynomial, (turn, *[x.index for x in inner]))))
        held[name] = Buffer((turns, *[x.extent or 1 for x in inner]), "registers", s.element(target))
        top = replace(top, turns=(turn, turns))
        loads += _held((top,), at)
        stores += rewritten((top,), partial(_stored, at, within))
    return tuple(loads), tuple(stores), held


def _held(nodes: tuple[Node, ...], at: Access) -> tuple[Node, ...]:
    return rewritten(nodes, lambda n: (replace(n, target=at),) if isinstance(n, Do) else (n,))


def _stored(at: Access, within: Polynomial, n: Any) -> tuple[Node, ...]:
    """A copy's statement from registers, where the zeros are that others have."""
    if isinstance(n, When):
        return n.body
    if not isinstance(n, Do):
        return (n,)
    return () if n.value[0] == "number" else (When((within,), (replace(n, value=("load", at)),)),)
