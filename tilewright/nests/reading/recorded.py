"""A recorded kernel's loops as a LoopNest: `nest(function, grid)`, of an `ir.Function` for a CPU or for CTAs of a GPU.

    pointers            arrays of one subscript, in elements; whole numbers are sizes, floats are numbers of the call
    blocks, threads     loops "block.x", "thread.x" ..., which run in any order: threads that meet no barrier do
    registers           scalars; an element of a vector, and of an array on the stack, is a scalar of its own. What
                        is set and used in the same round is put together (`inlined`): r = alpha * s; r += beta * C[i];
                        C[i] = r becomes C[i] = alpha * s + beta * C[i]
    vectors             a statement for each element
    shared memory       is gone: a load of it is the load that was stored there (forwarding.py)
    Python's loops      are loops again: statements that differ by multiples of a counter (rerolling.py)

A value that the kernel has in a Python variable is computed where it is used, and refused if an element that it was
made of has been written in between. k.min and k.max of floats are fmin and fmax, which differ where a number is a NaN.
k.exp, k.gelu and others are one operation again (spelled.py), rounds of `each` on a GPU one loop. The rest is refused
with the kernel's line: atomics, calls, while, elements at loaded addresses, exchanges between threads.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tilewright.ir import Function, Pointer, Type
from tilewright.ir.ops import gpu
from tilewright.ir.program import If, Line, Load, Loop as Recorded, Op, Read, Return, Store, Write, written
from tilewright.nests.nest import (
    LEAVES,
    Access,
    Loop,
    LoopNest,
    Parameter,
    Refused,
    Statement,
    Term,
    arithmetic,
    leaves,
    mapped,
    refuse,
    statement,
)
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.reading.forwarding import Barrier, Memory, checked, forwarded
from tilewright.nests.reading.known import NEVER, Address, Extreme, Number, order
from tilewright.nests.reading.rerolling import rerolled, unmasked
from tilewright.nests.reading.spelled import called
from tilewright.nests.reading.state import Around, State


def used(statements: Sequence[Statement], scalars: Mapping[str, Type]) -> list[Statement]:
    """Without statements that set scalars which nothing else reads."""
    left, count = list(statements), -1
    while len(left) != count:
        count = len(left)
        read = {a.array for s in left for a in leaves(s.value) if a.array != s.target.array}
        left = [s for s in left if s.target.array not in scalars or s.target.array in read]
    return left


def inlined(statements: Sequence[Statement], scalars: Mapping[str, Type], elements: Mapping[str, Type]
            ) -> list[Statement]:
    """With the values of scalars where they are used, if that is in the same loops and nothing that they are made of
    is written in between."""
    kept: list[Statement | None] = list(statements)
    users: dict[str, list[int]] = {}
    for n, s in enumerate(statements):
        for name in {s.target.array, *(a.array for a in leaves(s.value))} & scalars.keys():
            users.setdefault(name, []).append(n)
    for n in range(len(kept)):
        first = kept[n]
        name = first.target.array if first is not None else ""
        later = [x for x in users.get(name, ()) if x > n]
        if first is None or first.reduce or not later or any(a.array == name for a in leaves(first.value)):
            continue
        second, reads = kept[later[0]], {a.array for a in leaves(first.value)}
        between = {s.target.array for s in kept[n + 1:later[0]] if s is not None}
        if second is None or first.loops != second.loops or reads & between:
            continue
        alone = len(users[name]) == 2
        together = _together(first, second, alone)
        if together is not None and _same_format(first, second, together, scalars[name], elements):
            kept[n], kept[later[0]] = None, together
            users[name].remove(n)
            for other in reads & users.keys():
                users[other] = sorted({later[0], *users[other]} - {n})
    return [s for s in kept if s is not None]


def _together(first: Statement, second: Statement, alone: bool) -> Statement | None:
    """The second statement with the first one's value in it; None if that is not what they do."""
    target = first.target
    if second.target == target and second.reduce:
        if second.conditions != first.conditions:
            return None
        return second._replace(reduce="", value=(second.reduce, first.value, second.value))
    times = sum(a == target for a in leaves(second.value))
    within = second.conditions[:len(first.conditions)] == first.conditions
    if second.target == target or not alone or not within or (times > 1 and first.value[0] not in LEAVES):
        return None

    def leaf(x: Term) -> Term:
        return first.value if x == ("load", target) else x
    value = mapped(second.value, leaf)
    if second.reduce:
        own = any(a == second.target for a in leaves(value))
        return None if own else second._replace(value=value)
    return statement(second.loops, second.conditions, second.target, value, second.line)


def _same_format(first: Statement, second: Statement, together: Statement, t: Type, elements: Mapping[str, Type]
                 ) -> bool:
    """Whether they compute in the scalar's format, as the one that they become does."""
    def computed(s: Statement) -> Type | None:
        reads: list[Access] = [*leaves(s.value), *[s.target] * bool(s.reduce)]
        plain = s.value[0] in ("load", "number") and not s.reduce
        return None if plain else arithmetic(s.value, [elements[a.array] for a in reads])
    kinds = {elements[a.array] for a in leaves(first.value)}
    if first.value[0] == "load" and kinds != {t}:
        return False
    return {computed(first), computed(second), computed(together)} <= {t, None}


SILENT = ("print", "prefetch")          # effects on no element


def nest(function: Function, grid: int | Sequence[int] = 1) -> LoopNest:
    """The loops of a recorded function; of one for a GPU, launched with so many CTAs along x, y, z."""
    first = _Kernel(function, whole_grid(grid))
    try:
        return first.nest()
    except Refused as refused:
        digits = first.digits()
        if not digits:
            raise
        try:
            return _Kernel(function, first.grid, digits).nest()
        except Refused:
            raise refused from None


def whole_grid(grid: int | Sequence[int]) -> tuple[int, ...]:
    """CTAs along x, y, z."""
    return (*((grid,) if isinstance(grid, int) else grid), 1, 1, 1)[:3]


class _Kernel(State):
    """`digits`: an index of threads or blocks → divisors. It becomes a loop for each digit: tid = 16 * row + column."""

    def __init__(self, function: Function, grid: tuple[int, ...], digits: dict[str, list[int]] | None = None) -> None:
        super().__init__(function)
        self.grid, self.parameters, self.by_digits = grid, list[Parameter](), digits or {}
        nodes = list(function.walk())
        self.first = nodes[0].line if nodes else Line(function.name, 0)
        self.threads = self._start()

    def nest(self) -> LoopNest:
        body = list(self.function.body)
        if body and isinstance(body[-1], Return) and body[-1].value is None:
            body.pop()
        self._block(body, Around(self.threads))
        shared = {a.name: Memory(a.size or 0, a.element) for a in self.function.arrays if a.space == "shared"}
        statements = forwarded(self.items, shared, self.operations, self.elements)
        statements = rerolled(unmasked(used(statements, self.scalars), self.scalars), self.scalars, self.fresh)
        statements = inlined(statements, self.scalars, self.elements)
        for s in statements:
            checked(s, self.operations)
        if self.by_digits:              # which are no axes of a launch
            statements = [s._replace(loops=tuple([replace(x, kind="loop") if x.index.count(".") > 1 else x
                                                  for x in s.loops])) for s in statements]
        kept = {s.target.array for s in statements}
        scalars = {name: t for name, t in self.scalars.items() if name in kept}
        sizes = tuple(p.name for p in self.parameters if p.kind == "size")
        return LoopNest(self.function.name, tuple(self.parameters), sizes, scalars, tuple(statements),
                        self.function.threads)

    def _start(self) -> tuple[Loop, ...]:
        """The parameters, and the loops of blocks and threads."""
        f = self.function
        pointers = [name for name, value in f.params if isinstance(value.type, Pointer)]
        apart = pointers if f.noalias is True else f.noalias or ()
        if len([x for x in pointers if x not in apart]) > 1 and written(f):
            refuse(self.first, "arrays may overlap (noalias of the kernel)")
        for name, value in f.params:
            t = value.type
            if isinstance(t, Pointer):
                self.parameters.append(Parameter(name, "pointer", t.element, 1))
                self.env[value.id], self.elements[name] = Address(name, polynomial(0)), t.element
            elif not isinstance(t, Type) or t.length > 1:
                refuse(self.first, f"{name} is a {t}, and not a pointer or a number")
            elif t.is_float:
                self.parameters.append(Parameter(name, "number", t))
                self.env[value.id] = Number(("parameter", name))
            else:
                self.parameters.append(Parameter(name, "size", t))
                self.env[value.id] = polynomial(name)
        for array, value in f.arrays.items():
            self.env[value.id], self.elements[array.name] = Address(array.name, polynomial(0)), array.element
        loops = []
        extents = {**{f"block.{x}": n for x, n in zip("xyz", self.grid)},
                   **{f"thread.{x}": n for x, n in zip("xy", f.threads or ())}}
        for name, extent in extents.items():
            value = f.builtins.get(name)
            index, bounds = polynomial(0), [1, *self.by_digits.get(name, ()), extent]
            for n, (weight, most) in reversed([*enumerate(pairwise(bounds))]):
                if most > weight and f.threads:
                    digit = name if len(bounds) == 2 else f"{name}.{n}"
                    loops.append(Loop(digit, polynomial(0), polynomial(most // weight), 1, self.first,
                                      name.split(".")[0]))
                    self.operations.ranges[digit] = most // weight
                    index = index + polynomial(digit) * weight
            if value is not None:
                self.env[value.id] = index
        for x, n in zip("xyz", self.grid):
            if f"grid.{x}" in f.builtins:
                self.env[f.builtins[f"grid.{x}"].id] = polynomial(n)
        return tuple(loops)

    def digits(self) -> dict[str, list[int]]:
        """Divisors of thread and block indices, each of the next one, as the kernel divides by them."""
        extents, quotients = {x.index: x.stop.constant or 0 for x in self.threads}, self.operations.quotients
        wanted: dict[str, set[int]] = {}
        for q in quotients.values():
            for names, c in q.dividend.terms:
                name, by = names[0] if len(names) == 1 else "", q.divisor
                if name in quotients:           # of a quotient
                    inner = quotients[name]
                    (names, _), by = inner.dividend.terms[0], by * (1 if inner.remainder else inner.divisor)
                    name = names[0] if len(inner.dividend.terms) == len(names) == 1 else ""
                if name in extents and by % c == 0:
                    wanted.setdefault(name, set()).add(by // c)
        moduli: dict[str, list[int]] = {}
        for name, divisors in wanted.items():
            for by in sorted(divisors):
                if extents[name] % by == 0 and 1 < by < extents[name] and by % moduli.get(name, [1])[-1] == 0:
                    moduli.setdefault(name, []).append(by)
        return moduli

    # ---- nodes

    def _block(self, nodes: Sequence[Any], around: Around) -> None:
        end = 0                             # of the operations of a function that has been taken as a whole
        for at, n in enumerate(nodes):
            call = called(self.function, nodes, at) if isinstance(n, Op) and at >= end else None
            if call is not None:
                self.env[call.result.id] = self.operations.called(n, call.name, self.get(call.x, n.line))
                end = at + call.length
            if at < end:
                continue
            match n:
                case Recorded():
                    self._loop(n, around)
                case If():
                    self._if(n, self.get(n.condition, n.line), around)
                case Read():
                    self.env[n.result.id] = self.read(n.register, n.line)
                case Write():
                    self.write(n.register, self.get(n.value, n.line), n.line, around)
                case Load():
                    self.env[n.result.id] = self.load(n)
                case Store():
                    self.store(n, around)
                case Op():
                    self._operation(n, around)
                case Return(value, line):
                    refuse(line, "the function returns before its end" if value is None else "a result is returned")
                case _:
                    refuse(n.line, f"{_name(n)} is not taken")

    def _operation(self, n: Op, around: Around) -> None:
        name = n.operation.name
        if n.operation is gpu.BARRIER:
            if around.conditions or around.choices:
                refuse(n.line, "a barrier under a condition is not taken")
            self.items.append(Barrier(around.loops, n.line))
        elif n.operation.role == "thread" and len(n.results) == 1:
            self.env[n.results[0].id] = self.operations.result(n, [self.get(v, n.line) for v in n.operands])
        elif name not in SILENT:
            refuse(n.line, f"the operation {name} is not taken")

    def _loop(self, n: Recorded, around: Around) -> None:
        if n.rounds is not None and n.rounds.threads and self.function.threads and self._rounds(n, around):
            return
        start, stop = self.get(n.start, n.line), self.get(n.stop, n.line)
        step = self.index(n.step, n.line).constant
        if step is None or step < 1:
            refuse(n.line, "the step of a loop is a positive constant")
        starts, stops = [start], [stop]
        if isinstance(start, Extreme) and not start.least and step == 1:
            starts = [*start.of]
        if isinstance(stop, Extreme) and stop.least and isinstance(starts[0], Polynomial):
            stops = sorted(stop.of, key=lambda x: (x - starts[0]).constant is None)
        if not isinstance(starts[0], Polynomial) or not isinstance(stops[0], Polynomial):
            refuse(n.line, "a bound of a loop is a sum of indices and sizes, or the least of several of them")
        index = polynomial(self.fresh("i"))
        loop, index = self._counted(Loop(str(index), starts[0], stops[0], step, n.line))
        under = order([*(index - x for x in starts[1:]), *(x - index - 1 for x in stops[1:])])
        self._body(n, loop, index, around.under(under))

    def _counted(self, loop: Loop) -> tuple[Loop, Polynomial]:
        """(the loop, its index): counted from 0, if it begins where outer indices say and has so many rounds always."""
        rounds, index = (loop.stop - loop.start).constant, polynomial(loop.index)
        if rounds is None or not loop.start.names - {p.name for p in self.parameters}:
            return loop, index
        index = loop.start + index * loop.step
        return replace(loop, start=polynomial(0), stop=polynomial(max(-(-rounds // loop.step), 0)), step=1), index

    def _body(self, n: Recorded, loop: Loop, index: Polynomial, around: Around) -> None:
        first, last = loop.start.constant, loop.stop.constant
        if first is not None and last is not None and first >= 0:
            self.operations.ranges[loop.index] = max(last, 1)
        self.env[n.index.id] = index
        self.touch(n.body)
        self._block(n.body, around._replace(loops=(*around.loops, loop)))
        self.touch(n.body)

    def _rounds(self, n: Recorded, around: Around) -> bool:
        """The rounds of `each`, which all threads of the grid share, as one loop, if nothing else depends on who has
        which."""
        sizes = {loop.index: loop.stop.constant or 1 for loop in self.threads}
        thread, count, ctas = polynomial(0), 1, self.grid[0]
        for axis in "xy":
            thread = thread + (polynomial(f"thread.{axis}") * count if f"thread.{axis}" in sizes else 0)
            count *= sizes.get(f"thread.{axis}", 1)
        block = polynomial("block.x") * count if "block.x" in sizes else polynomial(0)
        stop = self.get(n.stop, n.line)
        if around != Around(self.threads) or self.grid[1:] != (1, 1) or not isinstance(stop, Polynomial) or (
                self.get(n.start, n.line), self.index(n.step, n.line)) != (block + thread, polynomial(ctas * count)):
            return False
        inside = {id(x.register) for x in self.function.walk(n.body) if isinstance(x, (Read, Write))}
        body = {id(x) for x in self.function.walk(n.body)}
        if any(id(x) not in body and id(x.register) in inside for x in self.function.walk()
               if isinstance(x, (Read, Write))):
            return False
        before, name = len(self.items), self.fresh("i")
        self._body(n, Loop(name, polynomial(0), stop, 1, n.line), polynomial(name), Around())
        for x in self.items[before:]:
            if isinstance(x, Barrier) or any(p.names & sizes.keys() for p in _polynomials(x)):
                refuse(n.line, "the rounds of each() depend on the thread that has them")
        return True

    def _if(self, n: If, condition: Any, around: Around) -> None:
        if isinstance(condition, Polynomial):
            condition = order([condition - 1])
        sides = [(condition, n.then)] + ([(self.operations.otherwise(condition), n.otherwise)] if n.otherwise else [])
        for side, body in sides:
            inside = around.under(side)
            if side.choices:
                own = [(x, len(inside.choices)) for x in self._private(body)]
                inside = inside._replace(private=(*around.private, *own))
            if side != NEVER:
                self._block(body, inside)
                self.touch(body)

    def _private(self, body: list) -> list[int]:
        """Registers that nothing outside of this branch uses, and that it sets before it uses them."""
        counts, first = Counter[int](), dict[int, Any]()
        for x in self.function.walk(body):
            if isinstance(x, (Read, Write)):
                counts[id(x.register)] += 1
                first.setdefault(id(x.register), x)
        direct = {id(x) for x in body if isinstance(x, Write)}
        return [x for x, n in counts.items() if n == self.uses[x] and id(first[x]) in direct]


def _polynomials(s: Statement) -> list[Polynomial]:
    inside = [p for a in leaves(s.value) for p in a.subscripts]
    return [*s.conditions, *s.target.subscripts, *inside, *leaves(s.value, "index"),
            *(p for loop in s.loops for p in (loop.start, loop.stop))]


def _name(node: Any) -> str:
    return f"{'an' if type(node).__name__[0] in 'AEIO' else 'a'} {type(node).__name__.lower()}"
