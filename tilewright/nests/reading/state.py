"""What is known while the loops of a recorded kernel are read (recorded.py): what values are, which registers and
elements have been written since they were read; and the statements so far.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from tilewright.ir import Function, Pointer, Type
from tilewright.ir.program import Array, Line, Load, Op, Read, Store, Write
from tilewright.ir.types import i1
from tilewright.nests.nest import LEAVES, Access, Loop, Statement, Term, arithmetic, leaves, mapped, refuse, statement
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.reading.forwarding import Item
from tilewright.nests.reading.known import NEVER, Address, Number, Operations, Order


class Around(NamedTuple):
    """Where a node stands."""
    loops: tuple[Loop, ...] = ()
    conditions: tuple[Polynomial, ...] = ()
    choices: tuple[Number, ...] = ()
    private: tuple[tuple[int, int], ...] = ()       # (register, how many of the choices are around all its uses)

    def under(self, order: Order) -> Around:
        """This place under one more condition."""
        conditions = [c for c in order.conditions if c not in self.conditions]
        return Around(self.loops, (*self.conditions, *conditions), (*self.choices, *order.choices), self.private)


class State:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.operations = Operations()
        self.env: dict[int, Any] = {}                               # value → what it is known to be
        self.items: list[Item] = []
        self.elements: dict[str, Type] = {}                         # of arrays and scalars
        self.scalars: dict[str, Type] = {}
        self.taken = {name for name, _ in function.params}
        self.registers: dict[int, str] = {}
        # array → what has been written to: an element, or None where that may be anything
        self.log: dict[str, list[Access | None]] = defaultdict(list)
        self.copies: dict[str, tuple[Any, int]] = {}                # register → what it holds, as of so many writes
        self.sums = _sums(function)
        self.uses = Counter(id(x.register) for x in function.walk() if isinstance(x, (Read, Write)))

    def fresh(self, name: str) -> str:
        """A name that nothing else has."""
        number, candidate = 0, name
        while candidate in self.taken:
            number += 1
            candidate = f"{name}{number}"
        self.taken.add(candidate)
        return candidate

    # ---- values

    def get(self, v: Any, line: Line) -> Any:
        if v.constant is not None and v.id not in self.env:
            x: Any = polynomial(int(v.constant)) if not v.type.is_float else Number(("number", float(v.constant)))
            return [x] * v.type.length if isinstance(v.type, Type) and v.type.length > 1 else x
        if v.id not in self.env:
            refuse(line, "this value is made by an operation that loops have not")
        return self.env[v.id]

    def index(self, v: Any, line: Line) -> Polynomial:
        x = self.get(v, line)
        if not isinstance(x, Polynomial):
            refuse(line, "this is no sum of loop indices and sizes with whole coefficients")
        return x

    def changed(self, access: Access, since: int) -> bool:
        """Whether an element may have been written after so many writes to its array."""
        for w in self.log[access.array][since:]:
            if w is None or not access.subscripts:
                return True
            if (w.subscripts[0] - access.subscripts[0]).constant in (None, 0):
                return True
        return False

    def plain(self, number: Number, line: Line) -> Term:
        """The term, whose loads still are what they were."""
        def leaf(x: Term) -> Term:
            if x[0] == "load" and self.changed(x[1], x[2]):
                refuse(line, f"{x[1].array} is written between a read and its use: the value read before is what is "
                       "used, so that no statement reads it where it stands")
            return x[:2]
        return mapped(number.term, leaf)

    def _element(self, access: Access) -> Number:
        return Number(("load", access, len(self.log[access.array])))

    def touch(self, nodes: list) -> None:
        """What these nodes write may be anything from now on."""
        for x in self.function.walk(nodes):
            if isinstance(x, Write):
                for name in self._registers(x.register):
                    self.log[name].append(None)
            elif isinstance(x, Store):
                for name in self._overlapping(x.pointer.array):
                    self.log[name].append(None)

    def _overlapping(self, array: Array | None) -> list[str]:
        """What a store through a pointer may change."""
        if array is None or array.name not in self.elements:
            return [*self.elements]
        return [array.name] + [x for x in self.scalars if x.startswith(f"{array.name}.")]

    # ---- registers and memory

    def _registers(self, register: Any) -> list[str]:
        """The scalars of a register: one, or one for each element of a vector."""
        t = register.type
        name = self.registers.get(id(register))
        if name is None:
            name = self.registers[id(register)] = self.fresh("r")
        if isinstance(t, Pointer) or t.length == 1:
            return [name]
        return [f"{name}.{e}" for e in range(t.length)]

    def read(self, register: Any, line: Line) -> Any:
        values = [self._value(name, register) for name in self._registers(register)]
        if any(x is None for x in values):
            refuse(line, "an address in a register is not known here")
        return values[0] if isinstance(register.type, Pointer) or register.type.length == 1 else values

    def _value(self, name: str, register: Any) -> Any:
        """What a register holds: what was copied into it, if that has not changed since."""
        x, since = self.copies.get(name, (None, 0))
        if x is not None and since == len(self.log[name]) and id(register) not in self.sums:
            if not isinstance(x, Number) or not any(self.changed(*read) for read in _reads(x.term)):
                return x
        return None if isinstance(register.type, Pointer) else self._element(Access(name, ()))

    def write(self, register: Any, x: Any, line: Line, around: Around) -> None:
        t = register.type
        for name, lane in zip(self._registers(register), x if isinstance(x, list) else [x]):
            if not isinstance(t, Pointer):
                self.scalars[name] = self.elements[name] = t.scalar
                self._put(Access(name, ()), lane, line, around, dict(around.private).get(id(register)))
            elif isinstance(lane, Address):
                self.log[name].append(None)
            else:
                refuse(line, "this address is not known")
            self.copies[name] = lane, len(self.log[name])

    def _address(self, pointer: Any, line: Line, t: Type) -> Address:
        x = self.get(pointer, line)
        if not isinstance(x, Address):
            refuse(line, "this address is no sum of loop indices and sizes with whole coefficients")
        if not isinstance(t, Type) or t.scalar != self.elements[x.array] or pointer.type.element != t.scalar:
            refuse(line, f"{x.array} has elements of {self.elements[x.array]}, and is accessed as {t}")
        return x

    def _accesses(self, pointer: Any, line: Line, t: Type) -> list[Access]:
        """The elements from an address on."""
        array, at = self._address(pointer, line, t)
        accesses = [Access(array, (at + e,)) for e in range(t.length)]
        local = next((a for a in self.function.arrays if a.name == array and a.space == "local"), None)
        if local is None:
            return accesses
        places = [a.subscripts[0].constant for a in accesses]
        if any(p is None or not 0 <= p < (local.size or 0) for p in places):
            refuse(line, f"{array}, on the stack, is accessed at constants only: its elements are registers")
        for p in places:
            self.scalars[f"{array}.{p}"] = self.elements[f"{array}.{p}"] = local.element
        return [Access(f"{array}.{p}", ()) for p in places]

    def load(self, n: Load) -> Any:
        t = n.result.type
        elements: list[Any] = [self._element(a) for a in self._accesses(n.pointer, n.line, t)]
        masks = [None] * t.length if n.mask is None else self.get(n.mask, n.line)
        self.operations.line = n.line
        for e, mask in enumerate(masks if isinstance(masks, list) else [masks] * t.length):
            if mask is not None and mask != Order():
                term = self.operations.number(mask)
                elements[e] = Number(("where", term.term, elements[e].term, ("number", 0)), term.formats)
        return elements if t.length > 1 else elements[0]

    def store(self, n: Store, around: Around) -> None:
        t, value = n.value.type, self.get(n.value, n.line)
        if not isinstance(t, Type):
            refuse(n.line, "an address is stored")
        masks = Order() if n.mask is None else self.get(n.mask, n.line)
        accesses = self._accesses(n.pointer, n.line, t)
        for e, access in enumerate(accesses):
            x = value[e] if isinstance(value, list) else value
            mask = masks[e] if isinstance(masks, list) else masks
            self._put(access, x, n.line, around.under(mask))

    def _put(self, target: Access, x: Any, line: Line, around: Around, private: int | None = None) -> None:
        """The statement target = x. `private`: a register that is not used where one of so many choices fails."""
        self.operations.line = line
        if NEVER.conditions[0] in around.conditions:
            return
        t, number = self.elements[target.array], self.operations.number(x)
        if t == i1:
            refuse(line, "a condition is kept in a register or in memory")
        if number.rounded not in (None, t):
            self.operations.operand(number)
        stored = statement(around.loops, around.conditions, target, _oriented(self.plain(number, line), target), line)
        formats = number.formats
        if around.choices and target.subscripts:
            for x in around.loops:
                if x.kind != "loop" and x.index not in target.subscripts[0].names:
                    refuse(line, f"which thread stores to {target} depends on numbers")
        for choice in around.choices:
            term = self.plain(choice, line)
            formats |= choice.formats
            if stored.reduce == "add":
                stored = stored._replace(value=("where", term, stored.value, ("number", 0)))
            else:
                own: Term = ("load", target)
                new = (stored.reduce, own, stored.value) if stored.reduce else stored.value
                other: Term = ("number", 0) if private == len(around.choices) else own
                stored = stored._replace(reduce="", value=("where", term, new, other))
        if stored.value[0] not in ("load", "number"):
            self._formats(stored, formats)
        self.items.append(stored)
        self.log[target.array].append(target)

    def _formats(self, s: Statement, formats: frozenset[Type]) -> None:
        """Refused, if the kernel does not compute in the format that the statement computes in."""
        reads = [self.elements[a.array] for a in leaves(s.value)] + [self.elements[s.target.array]] * bool(s.reduce)
        t = arithmetic(s.value, reads)
        if formats - {t}:
            kinds = ", ".join(sorted({str(x) for x in reads})) or "indices"
            refuse(s.line, f"the kernel computes in {' and '.join(sorted(map(str, formats)))}, and loops over {kinds} "
                   f"in {t}")


def _oriented(term: Term, target: Access) -> Term:
    """fmin(x, target) as fmin(target, x), which is a reduction."""
    own = ("load", target)
    return (term[0], own, term[1]) if term[0] in ("fmin", "fmax") and term[2] == own != term[1] else term


def _reads(term: Term) -> Iterator[tuple[Access, int]]:
    """The elements that a term reads, and how often their arrays had been written."""
    if term[0] == "load":
        yield term[1], term[2]
    elif term[0] not in LEAVES:
        for x in term[1:]:
            yield from _reads(x)


def _sums(function: Function) -> set[int]:
    """The registers that are written with a value made of what they held."""
    of: dict[int, frozenset[int]] = {}                  # value → registers that it is made of
    sums = set()
    for x in function.walk():
        if isinstance(x, Read):
            of[x.result.id] = frozenset([id(x.register)])
        elif isinstance(x, Op):
            made = frozenset().union(*(of.get(v.id, frozenset()) for v in x.operands))
            of |= {v.id: made for v in x.results}
        elif isinstance(x, Write) and id(x.register) in of.get(x.value.id, ()):
            sums.add(id(x.register))
    return sums
