"""Loops of block programs: `for i in k.range(...)` records its body anew, with what it changes in registers.

The body is run to see which names it rebinds, into a list that is dropped, as often as it takes until these keep their
dimensions, and then once to record it. The object that a name stands for is given the registers' contents before, so
that Python's own assignments carry blocks.

With stages it is run more often, computing only addresses (`Program.addresses_only`): for copies from global to shared
memory before the loop, and in each round for those of num_stages - 1 rounds later:

    rounds 0 ... S - 2: copies                        a group for each
    each round: wait for its group | barrier | products | copies of round + S - 1 into the stage of the round before

Where a round ends with products of wgmma that go on, and only those of the next round add to their sums, these do not
wait for them, tensor cores are never idle, and copies are one round less ahead:

    each round: wait for its group | barrier | start products | wait for those of the round before
                | copies of round + S - 2 into the stage of the round before that one
"""
from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from math import gcd
from typing import TYPE_CHECKING, Any

from tilewright.blocks.block import Addresses, Block
from tilewright.blocks.index import FAR, Formula
from tilewright.blocks.layout import Layout, Registers
from tilewright.blocks.tensor import ALIGN, InFlight, Operand
from tilewright.ir import Value, i32, i64
from tilewright.ir.ops.nvidia import COPIED

if TYPE_CHECKING:
    from tilewright.blocks.program import Program


class Loads:
    """The loads of a loop's body by their order: which of them feed products alone, and where those are that are copied
    ahead (`stages`)."""

    def __init__(self) -> None:
        self.next = 0
        self.copied: dict[int, Any] = {}            # that can be copied as they are
        self.operands: dict[int, Any] = {}          # of products: as which operand
        self.others: set[int] = set()               # that something else looks at, too
        self.known = True                           # without a load: where all of them read
        self.written: set[int] = set()              # arrays that the body stores to
        self.stages: dict[int, Operand] = {}
        self.rings: dict[int, Value] = {}

    def number(self, access: Any, layout: Layout, other: Any) -> int:
        """The number of a load that is recorded now."""
        self.next += 1
        self.known &= bool(access.shape) or access.T.is_float
        plain = isinstance(other, (int, float, type(None))) and not other
        masked = access.mask is not None and not isinstance(access.mask.content, tuple)
        if plain and not masked and len(access.shape) == 2 and \
                access.length(layout) * access.T.bytes in COPIED and len(access.pointers.dims) == 2:
            self.copied[self.next] = access
        return self.next

    def seen(self, content: Any) -> None:
        if content.load is not None:
            self.others.add(content.load)

    def product(self, a: Block, b: Block, along_k: tuple[bool, bool], how: str) -> None:
        """Note a product of two blocks whose numbers are as they were loaded."""
        for of_b, x in enumerate((a, b)):
            use, number = (x, of_b == 1, along_k[of_b], how), x.content.load
            if number is not None and self.operands.setdefault(number, use)[1:] != use[1:]:
                self.others.add(number)

    def staged(self, p: Program, count: int) -> None:
        """Room for `count` rounds of each load that only products use."""
        for number in sorted(self.operands.keys() & self.copied.keys() - self.others) if self.known else ():
            if self.copied[number].base.id in self.written:
                continue
            block, of_b, inner_k, how = self.operands[number]
            operand = Operand(p, block, of_b, inner_k, how)
            name, align = f"stages{len(p.ir.function.arrays)}", ALIGN if how == "wgmma" else 128
            self.rings[number] = p.ir.smem(name, count * operand.size, operand.T, align)
            self.stages[number] = operand

    def go(self, slot: Any) -> None:
        """From here on loads and products are those of the round in this slot."""
        self.next = 0
        for number, operand in self.stages.items():
            operand.at = self.rings[number] + slot*operand.size


class Carried:
    """A name that the body rebinds: its registers, and its object's content made of them."""

    def __init__(self, name: str, before: Block, after: Block) -> None:
        p = self.p = before.program
        if not _alive(p, before):
            raise TypeError(f"{name} is not known here: a loop assigned it before, and this one does so only later")
        if before.type != after.type or before.shape != after.shape:
            raise TypeError(f"{name} is {before!r} before the loop and {after!r} at its end: a loop keeps type and "
                            "shape")
        self.name, self.flies = name, False
        old, new = _formula(before), _formula(after)
        self.dense = old is None or new is None
        if not self.dense:
            assert old is not None
            assert new is not None
            if old.terms.keys() != new.terms.keys() or any(old.terms[dim] is not new.terms[dim] for dim in old.terms):
                raise TypeError(f"{name}: a loop may add to offsets what is the same for all elements, and this one "
                                "changes how they differ")
            wide = any(isinstance(x, Value) and x.type == i64 for x in (old.scalar, new.scalar)) or before.type == i64
            self.multiple = gcd(old.multiple, new.multiple)
            self.kept, self.kept_content = before, before.content
            self.registers: list[Any] = [p.ir.variable(i64 if wide else i32)]
            self.ahead = [p.ir.variable(i64 if wide else i32)]
            self.initial: list[Any] = [old.scalar]
        else:
            content = after.content
            self.layout = content.layout if isinstance(content, Registers) else p.blocked(after.shape, after.type)
            self.stack = p.on_stack(self.layout, after.type) if p.vector and self.layout.warps else None
            self.ahead, self.initial = [], self._values(before)
            self.registers = [p.ir.variable(x.type) for x in self.initial]

    def _values(self, block: Block) -> list[Value]:
        """The values of a dense block for the loop's registers; on a CPU, if there are many, they are put on the
        stack. None of a loop in a round of which only addresses are recorded."""
        p = self.p
        if p.ahead:
            return []
        laid = block.laid(self.layout)
        if self.stack is None:
            return [*p.wide(self.layout, laid.values(self.layout))]
        if isinstance(laid.content, Registers) and laid.content is self.stack:
            return []
        with p.turns(self.layout):
            p.put(self.stack, p.wide(self.layout, laid.values(self.layout)))
        return []

    def begin(self) -> None:
        for register, x in zip((*self.registers, *self.ahead), (*self.initial, *self.initial)):
            register.set(x)

    def give(self, block: Block) -> None:
        """Let this object stand for what the registers hold now."""
        ahead = self.p.ahead
        if self.dense:
            values: Any = () if ahead else tuple(x.get() for x in self.registers)
            if self.flies and not ahead:
                values = self.flight = InFlight.from_values(self.p.ir, values)
                self.p.in_flight.append(values)
            block.content = self.stack or Registers(self.layout, values)
            return
        old, scalar = _formula(self.kept), (self.ahead if ahead else self.registers)[0].get()
        assert old is not None
        formula = Formula(scalar, self.multiple, old.terms)
        of = self.kept_content
        block.content = Addresses(of.base, formula, of.align) if isinstance(of, Addresses) else formula

    def take(self, block: Block) -> None:
        """At the end of a round."""
        ahead = self.p.ahead
        if self.dense:
            values = () if ahead else self.product(block).registers if self.flies else self._values(block)
            for register, x in zip(self.registers, values):
                register.set(x)
            return
        new = _formula(block)
        if new is None or (self.multiple and new.multiple % self.multiple):
            raise TypeError(f"{self.name} changes in another way in the second round of the loop than in the first")
        (self.ahead if ahead else self.registers)[0].set(new.scalar)

    def product(self, block: Block) -> Any:
        """What added to sums that were given in flight and is under way; None if there is no such product."""
        values = block.content.values if isinstance(block.content, Registers) else None
        return values if isinstance(values, InFlight) and values.before is self.flight else None


def _formula(block: Block) -> Formula | None:
    content = block.content
    return content.offset if isinstance(content, Addresses) else content if isinstance(content, Formula) else None


def ranged(p: Program, start: Any, stop: Any, step: int, num_stages: int) -> Iterator[Block]:
    """See Program.range."""
    if not isinstance(step, int) or step < 1:
        raise ValueError(f"k.range takes a step that is a Python number from 1 on, not {step!r}")
    ends = [_scalar(p, x) for x in (start, stop)]
    type = i64 if any(isinstance(x.scalar, Value) and x.scalar.type == i64 for x in ends) else i32
    first, last = (p.ir.cast(p.number(x.scalar), type) for x in ends)
    multiple = gcd(ends[0].multiple, step, FAR)

    p.settle()
    p.open_loops += 1
    frame = sys._getframe(1)
    before = {name: (block, Block(p, block.shape, block.type, block.content)) for name, block in _blocks(p, frame)}
    numbers = {name: x for name, x in frame.f_locals.items() if isinstance(x, (int, float))}

    def index(value: Value) -> Block: return Block(p, (), type, Formula(value, multiple, {}))
    trial: list[Any] = []
    arrays, room, loads = dict(p.ir.function.arrays), p._room_bytes, p.loads
    counter = Value(p.ir, type)
    dims: dict[str, set[int]] = {}
    with p.ir._into(trial, "loop", counter):
        while True:                     # until no name has elements that it had one number for in the round before
            p.loads = Loads()
            yield index(counter)
            for name in numbers.keys() & dict(_blocks(p, frame)).keys():    # unknown to a round that reads it first
                _rebind(frame, name, Block(p, (), i32, f"{name} is a Python number before the loop and a block at its "
                                           f"end: k.full((), {numbers[name]}) makes a number that a loop can change"))
            seen = {name: set(block.dims) for name, block in _blocks(p, frame) if name in before}
            if all(seen[name] <= dims.get(name, set(before[name][1].dims)) for name in seen):
                break
            dims = seen
    _dropped(p, arrays, room)
    for name, x in frame.f_locals.items():
        if name in numbers and isinstance(x, (int, float)) and x != numbers[name]:
            raise TypeError(f"{name} is a Python number that the loop changes, and the program is recorded once: "
                            f"k.full((), {numbers[name]}) makes a number that a loop can change")
    after = dict(_blocks(p, frame))
    names = [name for name, (block, _) in before.items() if name in after and after[name] is not block]
    after = _apart(p, frame, names)
    carried = {}
    for name in names:
        try:
            carried[name] = Carried(name, before[name][1], after[name])
        except TypeError as why:            # a name that is used for something else may be: not what it was before
            after[name].content = str(why)
    for x in carried.values():
        x.begin()

    def give() -> None:
        own = _apart(p, frame, carried)
        for name, x in carried.items():
            x.give(own[name])

    def take() -> None:
        for name, x in carried.items():
            x.take(frame.f_locals[name])

    tried, p.loads = p.loads, Loads()
    if num_stages > 1 and p.has("cp.async") and not p.ahead:
        p.loads = tried
        p.loads.staged(p, num_stages)
    k, loads_here = p.ir, p.loads
    if num_stages > 2 and any(x.how == "wgmma" for x in loads_here.stages.values()):
        yield from _let_fly(p, frame, carried, index, type)
    flying = [(name, x) for name, x in carried.items() if x.flies]
    behind = 1 + len(flying)                        # rounds of which the products may be under way
    ahead = num_stages - behind if loads_here.stages else 0
    for n in range(ahead):
        at = first + n*step
        with k.when(at < last), p.addresses_only():
            loads_here.go(n)
            give()
            yield index(at)
            take()
        k.cp_async_commit()
    slot = k.variable(i32, 0) if ahead else None
    with k.loop(last, first, step, unroll=False) as counter:
        now = None
        if slot is not None:
            k.cp_async_wait(ahead - 1)
            if any(x.how == "wgmma" for x in loads_here.stages.values()):
                k.fence_async()
            k.barrier()
            now = slot.get()
            loads_here.go(now)
        give()
        yield index(counter)
        if slot is not None and now is not None:
            for name, x in flying:
                k.wgmma_wait(1, *x.product(frame.f_locals[name]).tiles)
            results = {name: frame.f_locals[name].content for name in carried}
            at = counter + ahead*step
            with k.when(at < last), p.addresses_only():
                loads_here.go(k.select(now < behind, now + ahead, now - behind))
                give()
                yield index(at)
                take()
            k.cp_async_commit()
            slot.set(k.select(now == num_stages - 1, 0, now + 1))
            for name, content in results.items():
                frame.f_locals[name].content = content
        take()
        if flying:
            p.in_flight.clear()
        p.settle()
    p.loads = loads
    give()
    p.open_loops -= 1


def _let_fly(p: Program, frame: Any, carried: dict[str, Carried], index: Callable[[Value], Block], type: Any
             ) -> Generator[Block, None, None]:
    """Find the sums that one product in flight hands to that of the next round, by a round that is dropped."""
    arrays, room = dict(p.ir.function.arrays), p._room_bytes
    dense = {name: x for name, x in carried.items() if x.dense and x.stack is None}
    counter = Value(p.ir, type)
    with p.ir._into([], "loop", counter):
        p.loads.go(0)
        own = _apart(p, frame, carried)
        for name, x in carried.items():
            x.flies = name in dense
            x.give(own[name])
        given = [x.flight for x in dense.values()]
        yield index(counter)
        products = {name: x.product(frame.f_locals[name]) for name, x in dense.items()}
    under_way = [flight for flight in p.in_flight if flight not in given]
    for name, x in dense.items():
        x.flies = under_way == [products[name]] and not (x.flight.found or x.flight.read)
    _dropped(p, arrays, room)


def _dropped(p: Program, arrays: dict[Any, Any], room: int) -> None:
    """After a round that is not part of the program: arrays and products of its own are gone."""
    p.ir.function.arrays = {array: x for array, x in p.ir.function.arrays.items() if array in arrays or x is p._room}
    p._room_bytes = room
    if not p.ahead:
        p.in_flight.clear()


def _scalar(p: Program, x: Any) -> Formula:
    content = p.block(x).content
    if not isinstance(content, Formula) or content.terms:
        raise TypeError(f"k.range takes whole numbers, not {x!r}")
    return content


def _blocks(p: Program, frame: Any) -> list[tuple[str, Block]]:
    return [(name, x) for name, x in frame.f_locals.items() if isinstance(x, Block) and x.program is p]


def _alive(p: Program, block: Block) -> bool:
    """Can its values be used here? Of a round in which addresses alone were recorded there are none."""
    formula, content = _formula(block), block.content
    if isinstance(content, Registers) and not (content.values or content.stack or p.ahead):
        return False
    values = block.content.values if isinstance(block.content, Registers) else [
        z for x in ([formula] if formula else [y for c in block.content for y in (c.x, c.y)])
        for z in (x.scalar, *(term.stride for term in x.terms.values())) if isinstance(z, Value)]
    return all(x.id not in p.ir._made or p.ir._made[x.id][0].open for x in values)


def _apart(p: Program, frame: Any, names: Iterable[str]) -> dict[str, Block]:
    """The blocks of these names, each of which is its own: of a name that the body has bound to another name's block
    (`most = now`) a copy, since the next round, or what follows the loop, gives the two different contents."""
    blocks = dict(_blocks(p, frame))
    for name in names:
        block = blocks[name]
        if any(x is block for other, x in blocks.items() if other != name):
            blocks[name] = Block(p, block.shape, block.type, block.content)
            _rebind(frame, name, blocks[name])
    return blocks


def _rebind(frame: Any, name: str, block: Block) -> None:
    """An assignment in a function that is suspended. Before Python 3.13 its variables follow when they are told."""
    variables = frame.f_locals
    variables[name] = block
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
