"""`tensorize`: three loops as a matrix instruction of a warp, whose 32 lanes hold the tiles of A, B and C in registers.

    for ii < 16, jj < 8, pp < 8                      thread.x loops of 32 lanes, g = lane / 4, q = lane % 4
      C_reg[ii, jj] += A_reg[ii, pp] * B_reg[pp, jj]     C_reg[] += A_reg[] @ B_reg[] by mma.sync.m16n8k8

A lane has elements ii = 8 r0 + g and pp = 4 r1 + q of A, and likewise of B and C: the loops of copies become the few
rounds r0, r1 of a lane, and subscripts stay sums of indices.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from tilewright.atoms import nvidia
from tilewright.ir import bf16, f16, f32, f64
from tilewright.nests.nest import Access
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.schedules.operations import Done, perfect
from tilewright.nests.schedules.scheduled import Scheduled, illegal, simplified
from tilewright.nests.tree import Do, For, Mma, Node, When, replaced, rewritten, walk

FORMATS = {f32: "tf32", f16: "f16", bf16: "bf16", f64: "f64"}
LANES = 32


class Operand(NamedTuple):
    """A buffer of one of the matrices. `outer`: subscripts but the last two; `digits`: of a lane's elements, for its
    rows and its columns (extent, factor)."""
    access: Access
    outer: tuple[Polynomial, ...]
    rows: tuple[tuple[int, int], ...]
    columns: tuple[tuple[int, int], ...]
    lane: tuple[Polynomial, Polynomial]         # the row and the column of its first element
    order: tuple[tuple[int, int], ...]          # of axes: (0 of rows or 1 of columns, which)


def tensorize(s: Scheduled, names: tuple[str, ...], lane: str) -> Done:
    nest = perfect(s, names)
    body = nest[-1].body
    do: Any = body[0].body[0] if isinstance(body[0], When) else body[0]
    line: Any = nest[0].line
    if len(body) != 1 or not isinstance(do, Do) or do.reduce != "add" or do.value[0] != "mul" or any(
            x[0] != "load" for x in do.value[1:]):
        illegal(line, f"{' '.join(names)} are no product of two elements that is added to a third one")
    atom, operands = _matched(s, do, names, {x.index: x.extent for x in nest})
    arrays = {x.access.array: x for x in operands}
    s = _with_lanes(s, lane, line)
    _all_shared(s, arrays)
    c, a, b = (Access(x.access.array, x.outer) for x in operands)
    made = Mma(atom, c, a, b, do.line)
    inside: tuple[Node, ...] = (replace(body[0], body=(made,)),) if isinstance(body[0], When) else (made,)
    nodes = rewritten(s.nodes, lambda n: inside if isinstance(n, For) and n.index == nest[0].index else (n,))
    loops: dict[str, tuple[tuple[tuple[int, int], ...], Polynomial]] = {}
    for n, _ in walk(nodes):
        if isinstance(n, Do):
            for a in [a for a, _ in n.accesses() if a.array in arrays]:
                x = arrays[a.array]
                for p, digits, first in zip(a.subscripts[-2:], (x.rows, x.columns), x.lane):
                    if [*p.linear().factors.values()] != [1] or p.linear().constant:
                        illegal(n.line, f"{a} is not copied by loops over its rows and columns")
                    loops[next(iter(p.names))] = digits, first
    nodes = _by_lanes(nodes, loops, arrays)
    buffers = {}
    for x in operands:
        old = s.buffers[x.access.array]
        shape = (*old.shape[:-2], *[(x.rows, x.columns)[side][n][0] for side, n in x.order])
        buffers[x.access.array] = replace(old, shape=shape)
    s = replace(s, nodes=simplified(nodes), buffers={**s.buffers, **buffers})
    said = f"tensorize {' '.join(names)}: {atom.name} by 32 lanes; sums are added up in another order"
    return s, said + ("; factors lose their last 13 bits" if atom.a.format == "tf32" else "")


def _matched(s: Scheduled, do: Do, names: tuple[str, ...], extents: dict[str, int | None]) -> tuple[Any, list[Operand]]:
    """The instruction, and its operands C, A, B."""
    i, j, p = names
    factors = [x[1] for x in do.value[1:]]
    roles = []
    for access in (do.target, *factors):
        used = [n for n in names if any(n in q.names for q in access.subscripts)]
        b = s.buffers.get(access.array)
        if b is None or b.space != "registers":
            illegal(do.line, f"{access} is not in registers: stage it with the tile's rows and columns as last axes")
        roles.append((access, used))
    by = {tuple(used): access for access, used in roles}
    want = ((i, j), (i, p), (j, p))
    if sorted(by) != sorted(want):
        illegal(do.line, f"no product of matrices over {i}, {j} and {p}: " + ", ".join(
            f"{a} depends on {' '.join(u) or 'none'}" for a, u in roles))
    c, a, b = (by[x] for x in want)
    for access, last in ((c, (i, j)), (a, (i, p)), (b, (p, j))):
        if [str(x) for x in access.subscripts[-2:]] != [*last]:
            illegal(do.line, f"the last two axes of {access.array} are to be {' and '.join(last)}")
    kind, sums = s.element(a.array), s.element(c.array)
    if kind not in FORMATS or s.element(b.array) != kind or sums not in (f32, f64):
        illegal(do.line, "there are matrix instructions for factors of f16, bf16, f32 or f64 and sums in f32 or f64, "
                f"not for {kind}, {s.element(b.array)} and {sums}")
    try:
        atom = nvidia.mma(FORMATS[kind], FORMATS[kind], str(sums), *[extents[x] or 0 for x in names])
    except ValueError as error:
        illegal(do.line, str(error))
    return atom, _operands(atom, c, a, b)


def _operands(atom: Any, c: Access, a: Access, b: Access) -> list[Operand]:
    """Which elements a lane has: the formulas of atoms/nvidia.py, as digits."""
    g, q = polynomial("lane.g"), polynomial("lane.q")
    n, eights = max(32 // nvidia.BITS[atom.a.format], 1), atom.m // 8
    deep = atom.k // (4 * n)
    rows = ((eights, 8),)
    return [
        Operand(c, c.subscripts[:-2], rows, ((atom.n // 8, 8), (2, 1)), (g, q * 2), ((1, 0), (0, 0), (1, 1))),
        Operand(a, a.subscripts[:-2], rows, ((deep, 4 * n), (n, 1)), (g, q * n), ((1, 0), (0, 0), (1, 1))),
        Operand(b, b.subscripts[:-2], ((deep, 4 * n), (n, 1)), (), (q * n, g), ((0, 0), (0, 1)))]


def _with_lanes(s: Scheduled, lane: str, line: Any) -> Scheduled:
    """A loop of 32 lanes, with the loop that thread.x has outside of them."""
    across = [x for x in s.loops if x.mark == "thread.x"]
    warps = across[0].extent or 1 if across else 1
    rings = (("lane.g", 0, 4, 8), ("lane.q", 0, 1, 4))
    bound = [x for x in s.loops if x.mark.startswith(("block", "thread"))]
    if not bound or (bound[-1].mark.startswith("block") and across):
        illegal(line, "a warp's lanes are threads of a CTA: bind loops to its CTAs first, and to its warps")
    if across:
        rings = ((across[0].index, 0, LANES, warps), *rings)        # type: ignore[assignment]

        def widened(n: Any) -> tuple[Node, ...]:
            if not isinstance(n, For) or n.mark != "thread.x":
                return (n,)
            return (replace(n, index=lane, stop=polynomial(LANES * warps), rings=rings),)
        return replace(s, nodes=rewritten(s.nodes, widened))
    last = bound[-1].index
    return replace(s, nodes=rewritten(s.nodes, lambda n: (replace(n, body=(For(
        lane, polynomial(0), polynomial(LANES), 1, n.body, n.line, "thread.x", rings=rings),)),)
        if isinstance(n, For) and n.index == last else (n,)))


def _all_shared(s: Scheduled, arrays: dict[str, Operand]) -> None:
    for n, around in s.statements:
        together = any(isinstance(x, For) and x.mark.startswith("together") for x in around)
        if not together and not any(a.array in arrays for a, _ in n.accesses()):
            illegal(n.line, f"{n.target} is computed by every lane: what a warp does is copies and matrix instructions")


def _by_lanes(nodes: tuple[Node, ...], loops: dict[str, tuple[tuple[tuple[int, int], ...], Polynomial]],
              arrays: dict[str, Operand]) -> tuple[Node, ...]:
    """Loops over rows and columns as those over a lane's elements."""
    def access(a: Access) -> Access:
        if a.array not in arrays:
            return a
        sides = [[polynomial(f"{next(iter(p.names))}.{n}") for n in range(2)] for p in a.subscripts[-2:]]
        order = arrays[a.array].order
        return a._replace(subscripts=(*a.subscripts[:-2], *[sides[side][n] for side, n in order]))

    def rewrite(n: Any) -> tuple[Node, ...]:
        if isinstance(n, Do):
            return (n.mapped(access, lambda p: p),)
        if not isinstance(n, For) or n.index not in loops:
            return (n,)
        digits, value = loops[n.index]
        for at, (_, factor) in enumerate(digits):
            value = value + polynomial(f"{n.index}.{at}") * factor
        body = replaced(n.body, {n.index: value})
        for at, (extent, _) in reversed([*enumerate(digits)]):
            body = (For(f"{n.index}.{at}", polynomial(0), polynomial(extent), 1, body, n.line, "unroll"),)
        return body
    return rewritten(nodes, rewrite)
