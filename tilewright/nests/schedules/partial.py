"""`partial`: sums of a loop in several parts, each a register, which are added up after the loop.

    for j: s += x[j]        split j, 16, then partial s around j_o, axes j_i:

    for j_i: s_sum[j_i] = -0
    for j_o:
      for j_i: s_sum[j_i] += x[16*j_o + j_i]        whose rounds are independent now: a vector
    for j_i: s += s_sum[j_i]
"""
from __future__ import annotations

from math import inf, prod
from typing import Any

import numpy as np

from tilewright.ir import Type
from tilewright.nests.nest import COMMUTE, Access, arithmetic, leaves
from tilewright.nests.polynomial import polynomial
from tilewright.nests.schedules.operations import Done
from tilewright.nests.schedules.scheduled import Scheduled, illegal, widest
from tilewright.nests.tree import Buffer, Do, For, Node, rewritten, walk

REDUCTIONS = (*COMMUTE, "fmin", "fmax")


def partial(s: Scheduled, array: str, around: str, axes: tuple[str, ...]) -> Done:
    """A buffer in registers with these loops as axes, to which loop `around` adds what it added to an element of the
    array; then its elements are added to the array's."""
    loop = s.loop(around)
    uses = [d for d, _ in walk((loop,)) if isinstance(d, Do) and any(a.array == array for a, _ in d.accesses())]
    if not uses:
        illegal(loop.line, f"{array} is not used in {around}")
    do = uses[0]
    if len(uses) > 1 or do.reduce not in REDUCTIONS or any(a.array == array for a in leaves(do.value)):
        illegal(do.line, f"{around} does more with {array} than to add to it in one statement: its sums have no parts")
    inner = {x.index for x, _ in walk((loop,)) if isinstance(x, For)}
    depends = {x for p in do.target.subscripts for x in p.names} & inner
    if not depends <= {*axes} or not {*axes} <= inner or len({*axes}) != len(axes):
        illegal(do.line, f"axes are loops in {around}, those that {do.target} depends on among them: "
                f"{' '.join(sorted(depends)) or 'none'}")
    box = widest(s.nodes, {})
    shape = tuple([box[x][1] + 1 for x in axes])
    name, n = f"{array.split('_')[0]}_sum", 2
    while name in s.buffers or name in s.arrays:
        name, n = f"{array.split('_')[0]}_sum{n}", n + 1
    element = in_parts(s, do)
    new = Access(name, tuple(map(polynomial, axes)))

    def every(d: Do, ending: str, order: tuple[str, ...]) -> Node:
        names = {x: f"{array}.{x}{ending}" for x in axes}
        node: Node = Do(d.target.replaced(names), d.reduce, _renamed(d.value, names), loop.line)
        for x in reversed(order):
            node = For(names[x], polynomial(0), polynomial(box[x][1] + 1), 1, (node,), loop.line)
        return node
    sums = tuple([x for x in axes if x not in depends])
    first = every(Do(new, "", ("number", identity(do.reduce, element)), do.line), "", axes)
    back = every(Do(do.target, do.reduce, ("load", new), do.line), ".sum", (*sums, *[x for x in axes if x in depends]))
    here = rewritten((loop,), lambda x: (
        Do(new, x.reduce, x.value, x.line) if isinstance(x, Do) and x == do else x,))
    s = s.changed(lambda x: (first, *here, back) if isinstance(x, For) and x.index == around else (x,),
                  {name: Buffer(shape, "registers", element)})
    parts = prod(box[x][1] + 1 for x in sums)
    return s, (f"partial {array} around {around} as {name}, {parts} parts of each: sums are added up in another order")


def in_parts(s: Scheduled, do: Do) -> Type:
    """The format of a statement's sums in parts. Illegal where these would differ from one sum by more than
    rounding."""
    array, element = do.target.array, s.element(do.target.array)
    if do.reduce in ("add", "mul"):
        narrow = element.is_float and element.bits < 32
        exact = not element.is_float and arithmetic(do.value, [s.element(a.array) for a in leaves(do.value)]).is_float
        if narrow or exact:
            illegal(do.line, f"{array} is of type {element}, in which sums of several parts would differ from one by "
                    "more than rounding" + ": each sum of floats is cut to a whole number" * exact)
    return element


def _renamed(value: Any, names: dict[str, str]) -> Any:
    return ("load", value[1].replaced(names)) if value[0] == "load" else value


def identity(reduce: str, element: Type) -> float | int:
    """What changes nothing; of sums of floats it is -0, which keeps the sign of zero."""
    if reduce in ("add", "mul"):
        return (-0.0 if element.is_float else 0) if reduce == "add" else 1
    least = reduce in ("min", "fmin")
    if element.is_float:
        return inf if least else -inf
    info = np.iinfo(element.numpy)
    return int(info.max if least else info.min)
