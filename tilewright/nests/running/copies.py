"""What the threads of a CTA, or of a warp, do together: copies (`together`) and matrix instructions (`multiply`) of a
tree's nodes."""
from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from tilewright.ir import Value, i64
from tilewright.nests.nest import Access
from tilewright.nests.polynomial import polynomial
from tilewright.nests.tree import Do, For, Mma, Node, walk

if TYPE_CHECKING:
    from tilewright.nests.running.lower import _Lowering

TURNS = 16                      # up to which they are unrolled


def together(own: _Lowering, node: For) -> None:
    """Each thread of the CTA takes every so manieth element of the rounds of this loop and of those directly in it."""
    loops = [node]
    while len(body := loops[-1].body) == 1 and isinstance(body[0], For) and body[0].mark in ("", "together"):
        loops.append(body[0])
    k, (across, down) = own.k, own.threads
    extents = [own.extent(x) for x in loops]
    total, threads = math.prod(extents), across * down
    thread = own.number("thread.x") + own.number("thread.y") * across if down > 1 else own.number("thread.x")
    turns, whole = -(-total // threads), total % threads == 0
    own.at.asynchronous = own.at.copies and node.mark == "together.async" and _moves(own, loops[-1].body)

    def turn(place: Value, whole: bool) -> None:
        with own.guarded(None if whole else place < total), own.at.block():
            left = place
            for x, extent in zip(reversed(loops), reversed(extents)):
                round = left % extent if x is not node else left
                left = left // extent if x is not node else left
                own.at.depth[x.index] = len(own.at.known)
                own.at.numbers[x.index] = round * x.step + own.at.whole(own.bounds(x)[0])
            own.emit(loops[-1].body, False)
    if turns > TURNS and node.turns is None:
        with k.loop(k.constant(i64, total), start=thread, step=threads) as place:
            turn(place, True)
    else:
        for n in range(turns):
            env = own.at.env
            if node.turns is not None:
                own.at.env = {**env, node.turns[0]: polynomial(n)}
            turn(thread + n * threads, whole or n < turns - 1)
            own.at.env = env
    own.at.asynchronous = False


def _moves(own: _Lowering, body: Sequence[Node]) -> bool:
    """Whether these copies are of parts that asynchronous ones can have, 4 bytes or more."""
    at = own.at
    for d, around in walk(tuple(body)):
        if isinstance(d, Do):
            lanes = math.prod(x.extent or 1 for x in around if isinstance(x, For) and x.mark == "vector")
            element = at.element(d.target.array)
            if element.bytes not in (4, 8, 16) and element.bytes * lanes not in (4, 8, 16):
                return False
            if d.value[0] != "number" and not (d.value[0] == "load" and at.element(d.value[1].array) == element):
                return False
    return True


def multiply(own: _Lowering, node: Mma) -> None:
    """c += a @ b: this lane's elements are those of registers, in the order of the atom's."""
    held = [_elements(own, x) for x in node.operands]
    c, a, b = ([own.at.load(x) for x in elements] for elements in held)
    atom = node.atom
    sums = own.k.mma(atom, _packed(own, a, atom.a), _packed(own, b, atom.b), _packed(own, c, atom.c))
    for place, x in zip(held[0], sums):
        own.at.store(place, x)


def _elements(own: _Lowering, x: Access) -> list[Access]:
    axes = own.buffers[x.array].shape[len(x.subscripts):]
    return [x._replace(subscripts=(*x.subscripts, *map(polynomial, digits))) for digits in product(*map(range, axes))]


def _packed(own: _Lowering, elements: list[Value], fragment: Any) -> list[Value]:
    """The registers of a lane: several narrow elements in each, the lowest bits first."""
    k, register = own.k, fragment.type.scalar
    n = register.bits // elements[0].type.bits
    if n == 1:
        return [x if x.type == register else k.bits_as(x, register) for x in elements]
    return [k.reinterpret(k.pack(*elements[e:e + n]), register) for e in range(0, len(elements), n)]
