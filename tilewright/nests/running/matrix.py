"""Matrix instructions of a warp in a kernel: `multiply(lowering, node)` records one of a tree's."""
from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from tilewright.ir import Value
from tilewright.nests.nest import Access
from tilewright.nests.polynomial import polynomial
from tilewright.nests.tree import Mma

if TYPE_CHECKING:
    from tilewright.nests.running.lower import _Lowering


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
