"""What the modules of blocks/ ask of a program that is being recorded: registers, places, shared memory, waits."""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from tilewright.blocks import loops
from tilewright.blocks.block import Block
from tilewright.blocks.index import Formula, Number
from tilewright.blocks.layout import Layout, Registers, Shape, Stack, blocked, held_as, loaded_from, stored_at
from tilewright.blocks.tensor import InFlight
from tilewright.ir import Kernel, Type, Value, i1, i8, i32, i64, vec
from tilewright.targets import AmdTarget

if TYPE_CHECKING:
    from tilewright.blocks.program import Program


class Recording:
    """A Program's state and everything in it that its users do not call."""

    target: Any
    vector: bool                # a CPU: threads of a warp are lanes of vectors
    num_warps: int
    ir: Kernel

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Any, Any]] = {}
        self._room: Value | None = None
        self._room_bytes, self._read = 0, True
        self._droppable: list[tuple[list, Any, Value]] = []     # bodies, loops in them, and the stack these store to
        self.ahead, self.open_loops = False, 0
        self.turn: Value | None = None                                  # of a CPU: which warp's part is being recorded
        self.loads = loops.Loads()
        self.in_flight: list[InFlight] = []

    @property
    def _program(self) -> Program: return cast("Program", self)

    # ---- registers

    def new_block(self, shape: Shape, type: Any, layout: Layout, make: Callable[[], Iterable[Value]],
             load: int | None = None) -> Block:
        """A block of the registers that `make` records; a whole number becomes a formula."""
        content: Any = self.registers(layout, type, make, load)
        if not shape and type in (i32, i64):
            content = self.formula(content.values[0])
        return Block(self._program, shape, type, content)

    def registers(self, layout: Layout, type: Any, make: Callable[[], Iterable[Value]], load: int | None = None
                  ) -> Registers:
        """What `make` records. On a CPU that is in a loop over warps, if there are several, and kept on the stack."""
        if not (self.vector and layout.warps):
            return Registers(layout, self.wide(layout, make()), load)
        stacked = self.on_stack(layout, type)
        with self.turns(layout):
            self.put(stacked, self.wide(layout, make()))
        return stacked

    def wide(self, layout: Layout, values: Iterable[Value]) -> tuple[Value, ...]:
        """On a CPU numbers among vectors are broadcast."""
        return tuple(self.ir.broadcast(x, layout.length) if self.vector and x.type.length != layout.length else x
                     for x in values)

    def on_stack(self, layout: Layout, type: Any) -> Registers:
        """Room for all registers of a layout, elements along the dimension of its lanes side by side."""
        places = [place for place in (*layout.registers, *layout.threads) if place]
        dims = sorted({dim for dim, _ in places}, key=lambda dim: (layout.across(dim), dim))
        strides, size = {}, 1
        for dim in reversed(dims):
            strides[dim], size = size, size << 1 + max(bit for d, bit in places if d == dim)
        element = i8 if type == i1 else held_as(type)
        at = self.ir.local(f"block{len(self.ir.function.arrays)}", size, element)
        return Registers(layout, (), None, Stack(at, strides))

    def put(self, content: Registers, values: Iterable[Value]) -> None:
        """The registers of this warp's turn to the stack."""
        assert content.stack is not None
        for r, x in enumerate(values):
            x = self.ir.cast(x, vec(i8, x.type.length)) if x.type.scalar == i1 else x
            stored_at(self._program, content.stack.at, content.layout, content.stack.strides, r, x)

    def droppable(self, x: Block) -> None:
        """What has just been recorded may be left out if nothing reads it; of registers `ir.fma` sees that."""
        if x.content.stack is not None:
            self._droppable.append((self.ir._body, self.ir._body[-1], x.content.stack.at))

    def drop_unread(self) -> None:
        """Leave out loops over warps that store what nothing reads."""
        function = self.ir.function
        uses = Counter(x.id for node in function.walk() for x in node.uses)
        for body, loop, at in reversed(self._droppable):
            inside = Counter(x.id for node in function.walk(loop.body) for x in node.uses)
            if loop in body and uses[at.id] == inside[at.id]:
                body.remove(loop)
                uses -= inside
                function.arrays = {array: x for array, x in function.arrays.items() if x.id != at.id}

    def held(self, content: Registers) -> Sequence[Value]:
        """Registers of this warp."""
        self.settle()
        if content.stack is None:
            return content.values
        layout, at = content.layout, content.stack.at
        element = at.type.element
        return [loaded_from(self._program, at, layout, content.stack.strides, r, element) for r in range(layout.count)]

    @contextmanager
    def turns(self, layout: Layout) -> Iterator[None]:
        """On a CPU, a loop over warps."""
        if not (self.vector and layout.warps):
            yield
            return
        with self.ir.loop(1 << len(layout.warps), unroll=False) as self.turn:
            yield
        self.turn = None

    def dense(self, x: Block) -> Block:
        """With registers for all of its elements."""
        if isinstance(x.content, Registers) and x.dims == {dim for dim, extent in enumerate(x.shape) if extent > 1}:
            return x
        layout = self.blocked(x.shape, x.type)
        if self.ahead:
            return self.nothing(x.shape, x.type, layout)
        laid = x.laid(layout)
        return self.new_block(x.shape, x.type, layout, lambda: laid.values(layout))

    # ---- what the parts of this package ask for

    def formula(self, value: Value) -> Formula: return Formula(value, 1, {})

    def number(self, x: Number) -> Value: return self.ir.constant(i32, x) if isinstance(x, int) else x

    def has(self, instruction: str) -> bool:
        """Whether the target has it, by the names that the gate uses."""
        return instruction in getattr(self.target, "instructions", ())

    @property
    def amd(self) -> bool: return isinstance(self.target, AmdTarget)

    def fits(self, layout: Layout, type: Any) -> bool:
        """Whether a CPU's vector of so many lanes is a register."""
        return not self.vector or type.bits == 1 or layout.length * type.bytes <= self.target.vector_bytes

    def blocked(self, shape: Shape, type: Any, along: int | None = None, side_by_side: int | None = None) -> Layout:
        """Lanes along `along`, the last dimension unless given, each with so many elements at once."""
        order = [*range(len(shape))][::-1]
        if along is not None:
            order.remove(along)
            order.insert(0, along)
        bytes = max(type.bytes, 4) if isinstance(type, Type) else 8
        if self.vector:
            most = self.target.vector_bytes // bytes
            return blocked(shape, tuple(order), 1, most.bit_length() - 1, 0, True)
        lanes, warps = (x.bit_length() - 1 for x in (self.ir.warp, self.num_warps))
        if side_by_side is None:
            side_by_side = 16 // bytes
        share = max(math.prod(shape) >> lanes + warps, 1)       # as many elements side by side as all threads can have
        return blocked(shape, tuple(order), min(side_by_side, share), lanes, warps, False)

    def coordinate(self, layout: Layout, dim: int) -> Any:
        """What this thread's number adds to a coordinate: an i32, or 0."""
        if not any(layout.runs(dim)):
            return 0
        return self.memoized(("coordinate", layout.threads, dim), self._coordinate, layout, dim)

    def _coordinate(self, layout: Layout, dim: int) -> Value:
        t, coordinate = self.turn if self.vector else self.ir.thread[0], None
        assert t is not None
        for first, count, bit in layout.runs(dim):
            part = (t >> first if first else t) & ((1 << count) - 1)
            part = part << bit if bit else part
            coordinate = part if coordinate is None else coordinate | part
        assert coordinate is not None
        return coordinate

    def owner(self, layout: Layout) -> Value | None:
        """Whether this thread is the first of those that hold the same elements; None: there is only one."""
        idle = sum(1 << at for at in layout.idle)
        return None if self.vector or not idle else self.memoized(
            ("owner", idle), lambda: (self.ir.thread[0] & idle) == 0)

    def memoized(self, key: Hashable, make: Callable[..., Any], *operands: Any) -> Any:
        """What has been made of these operands for this key and can be used here, or is made now."""
        key = key, None if self.turn is None else self.turn.id
        entry = self._kept.get(key)
        if entry is None or not (entry[0] is None or entry[0].open):
            entry = self._kept[key] = self.ir._scope, make(*operands)
        return entry[1]

    def room(self, E: Any, size: int) -> Value:
        """Shared memory (of a CPU: the stack) for so many numbers, which the next exchange uses again."""
        self._room_bytes = max(self._room_bytes, size * E.bytes)
        if self._room is None:
            self._room = self.ir.local("room", 1, i8) if self.vector else self.ir.smem_bytes("room", 1, 1024)
        return self._room.as_(E)

    def settle(self) -> None:
        """Wait for products that are under way; not while only addresses are computed."""
        if not self.ahead:
            for product in self.in_flight:
                product.land()
            self.in_flight.clear()

    def meet(self, writing: bool) -> None:
        """Before the room is written all must have read, and before it is read all must have written."""
        self.settle()
        if not self.vector:
            self.ir.barrier()

    def nothing(self, shape: Shape, type: Any, layout: Layout) -> Block:
        """In place of a block while only addresses are computed: `loops`."""
        return Block(self._program, shape, type, Registers(layout, ()))

    @contextmanager
    def addresses_only(self) -> Iterator[None]:
        """Record what changes pointers, and copies; nothing of numbers."""
        self.ahead = True
        try:
            yield
        finally:
            self.ahead = False
