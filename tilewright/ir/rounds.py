"""One loop with independent rounds, as vector code for a CPU or for a GPU (`ir.vectors`): whole vectors, what is left,
and sums, around its body (`ir.widened`).
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.ir.ops import core as ops
from tilewright.ir.ops.atomics import FENCE
from tilewright.ir.program import Fold, Function, If, Load, Loop, Op, Read, Register, Store, Write
from tilewright.ir.types import Type, i1, i64, vec
from tilewright.ir.values import Value
from tilewright.ir.widened import GPU_BYTES, Linear, Scalar, TooWide, Uniform, Varying, Vectors, Widened
from tilewright.ir.widened_gpu import Lanes

if TYPE_CHECKING:
    from tilewright.ir.vectors import Width

LONG = 64                       # vectors of a loop for which it pays to align them
UNROLLED = ((16, 4), (48, 2))   # nodes of a body, up to which so many vectors are handled at a time


def begin(k: Any, nodes: list, loop: Loop) -> Widened:
    """To record operations outside the body."""
    widened = Widened(k, 1, nodes)
    widened.line = loop.line
    return widened


class Vectorised:
    """One loop, of which `V` rounds become one."""
    V: int

    def __init__(self, k: Any, original: Function, width: Width, loop: Loop, folds: list[Fold],
                 total: Value | None = None) -> None:
        self.k, self.width, self.loop, self.folds = k, width, loop, folds
        self.total = loop.stop if total is None else total      # rounds, of all threads
        self.nodes = list(original.walk(loop.body))
        self.made = {x.id: node for node in self.nodes for x in node.defines}
        self.made |= {node.index.id: node for node in self.nodes if isinstance(node, Loop)}
        self.registers(original)

    def registers(self, function: Function) -> None:
        """No round reads what another one has left in a variable, but for the sums of a fold."""
        self.own = {node.register for node in self.nodes if isinstance(node, Write)}
        folded = {register for fold in self.folds for register in fold.registers}
        written = self.own - folded
        inside = set(map(id, self.nodes))
        for node in function.walk():
            if isinstance(node, Read) and node.register in written and id(node) not in inside:
                raise Scalar(node.line, "a variable that the rounds have written is read after them")
        self.order(self.loop.body, written, set())

    def order(self, nodes: list, carried: set[Register], known: set[Register]) -> None:
        for node in nodes:
            match node:
                case Write(register):
                    known.add(register)
                case Read(_, register) if register in carried and register not in known:
                    raise Scalar(node.line, "a variable carries a number from one round to the next")
                case Loop() | If():
                    for inner in "body", "then", "otherwise":
                        self.order(getattr(node, inner, []), carried, set(known))

    def accesses(self) -> Iterator[tuple[Any, Any, Type]]:
        """(node, pointer, element) of loads and stores of numbers."""
        for node in self.nodes:
            t = node.result.type if isinstance(node, Load) else node.value.type if isinstance(node, Store) else None
            if isinstance(t, Type):
                yield node, node.pointer, t

    def key(self, x: Value) -> Any:
        """Equal for values that are the same in a round."""
        if x.constant is not None:
            return "constant", x.constant
        node = self.made.get(x.id)
        if isinstance(node, Op) and node.operation.role == "thread" and len(node.results) == 1:
            return node.operation.name, str(x.type), *map(self.key, node.operands)
        return x.id

    def hoisted(self, w: Widened, x: Value, index: Value) -> Value | None:
        """x of the round `index`, recorded before the loop; None if it depends on more than that."""
        if x.id == self.loop.index.id:
            return index
        if x.constant is not None or x.id not in self.made:
            return x
        node = self.made[x.id]
        if not isinstance(node, Op) or node.operation.role != "thread" or len(node.results) != 1:
            return None
        operands = [self.hoisted(w, y, index) for y in node.operands]
        if any(y is None for y in operands):
            return None
        return w.op(node.operation, x.type, *operands)      # type: ignore[arg-type]

    def consecutive(self, x: Value) -> bool:
        """Whether a pointer moves by one element from round to round."""
        return self.step(x) == 1

    def step(self, x: Value) -> int | None:
        if x.id == self.loop.index.id:
            return 1
        node = self.made.get(x.id)
        if node is None:
            return 0
        if not isinstance(node, Op):
            return 0 if isinstance(node, Loop) else None
        steps = [self.step(y) for y in node.operands]
        if not any(step != 0 for step in steps):
            return 0
        if None in steps or len(steps) != 2 or x.type.is_float:
            return None
        first, second = steps
        match node.operation:
            case ops.ADD | ops.OFFSET:
                return first + second               # type: ignore[operator]
            case ops.SUB:
                return first - second               # type: ignore[operator]
            case ops.MUL if isinstance(node.operands[1].constant, int):
                return first * node.operands[1].constant        # type: ignore[operator]
        return None

    # ---- sums

    def begin_folds(self, w: Widened) -> None:
        """Each of w's sums holds what changes nothing."""
        for fold in self.folds:
            for register, identity in zip(fold.registers, fold.identities):
                registers = w.register(register)
                for register_lane in registers if isinstance(registers, list) else [registers]:
                    w.nodes.append(Write(register_lane, w.constant(register_lane.type, identity), w.line))

    def combined(self, w: Widened, fold: Fold, x: list[Value], y: list[Value]) -> list[Value]:
        """One step of the fold, of numbers or of vectors."""
        length = x[0].type.length
        step = Vectors(self.k, length, w.nodes, length * 16)
        kind = Varying if length > 1 else Uniform
        for inputs, given in ((fold.a, x), (fold.b, y)):
            for old, new in zip(inputs, given):
                step.env[old.id] = kind(new)
        step.body(fold.nodes)
        return [step.vector(step.shape(z)) if length > 1 else step.shape(z).value   # type: ignore[union-attr]
                for z in fold.results]

    def tree(self, w: Widened, fold: Fold, found: list[list[Value]]) -> list[Value]:
        while len(found) > 1:
            half = (len(found) + 1) // 2
            found = [self.combined(w, fold, x, y) for x, y in zip(found, found[half:])] + found[len(found) - half:half]
        return found[0]

    def into_registers(self, w: Widened, fold: Fold, numbers: list[Value]) -> None:
        old = [self.read(w, register) for register in fold.registers]
        for register, x in zip(fold.registers, self.combined(w, fold, old, numbers)):
            w.nodes.append(Write(register, x, w.line))

    def read(self, w: Widened, register: Register) -> Value:
        result = Value(self.k, register.type)
        w.nodes.append(Read(result, register, w.line))
        return result


class OnCpu(Vectorised):
    """Whole vectors, several at a time; then one at a time; then one under a mask."""

    def write(self, out: list) -> None:
        """Record the loop. Scalar if it stays as it is."""
        self.conflicts()
        sizes = [t.bytes for _, pointer, t in self.accesses() if self.consecutive(pointer)]
        if not sizes:
            raise Scalar(self.loop.line, "no access is of consecutive elements")
        if any(t.length > 1 for *_, t in self.accesses()):
            raise Scalar(self.loop.line, "vectors are loaded or stored in it")
        bytes_round = max(t.bytes for *_, t in self.accesses())
        while self.width.bytes // bytes_round > 1:
            self.V = self.width.bytes // bytes_round
            nodes: list = []
            try:
                self.pieces(nodes)
                out.extend(nodes)
                return
            except TooWide as wide:
                bytes_round = wide.type.bytes
        raise Scalar(self.loop.line, "a vector holds one element")

    def conflicts(self) -> None:
        """Elements that are written are accessed in the same round only, as far as can be seen."""
        stored = {pointer.array: self.key(pointer) for node, pointer, _ in self.accesses() if isinstance(node, Store)}
        for node, pointer, _ in self.accesses():
            if pointer.array in stored and self.key(pointer) != stored[pointer.array]:
                raise Scalar(node.line, "an array is written, and accessed at another index, too")

    def pieces(self, out: list) -> None:
        V, loop = self.V, self.loop
        many = next((count for nodes, count in UNROLLED if len(self.nodes) <= nodes), 1)
        w = self.w = begin(self.k, out, loop)
        t = loop.index.type
        below = w.op(ops.LT, i1, loop.stop, loop.start)
        end = w.op(ops.SELECT, t, below, loop.start, loop.stop)
        copies = [Vectors(self.k, V, out, self.width.bytes) for _ in range(many)]
        for copy in copies:
            copy.line, copy.own = loop.line, self.own
            self.begin_folds(copy)
        at = Register(t)
        first = self.begin_aligned(w, end)
        w.nodes.append(Write(at, first, loop.line))
        streams = self.streams(w, first)
        if streams is not None:
            branch = If(streams, [], [], loop.line)
            w.nodes.append(branch)
            w.nodes = branch.then
            self.whole(w, at, end, copies, many, streaming=True)
            w.nodes.append(Op(FENCE, (), (), loop.line))
            w.nodes = branch.otherwise
        self.whole(w, at, end, copies, many)
        w.nodes = out
        if many > 1:
            self.whole(w, at, end, copies[:1], 1)
        masked = self.width.masked or min(t.bytes for *_, t in self.accesses()) >= 4
        first = self.read(w, at)
        if masked:
            rest = If(w.op(ops.LT, i1, first, end), [], [], loop.line)
            w.nodes.append(rest)
            w.nodes = rest.then
            left = w.op(ops.SUB, t, end, first)
            if any(x.bytes < 4 for _, x in self.stores):    # LLVM would store 32 bits of what it knows to be one
                left = w.op(ops.OPAQUE, t, left)
            copies[0].mask = w.op(ops.LANES_BELOW, vec(i1, V), left)
            self.copy(copies[0], first, rest.then)
            w.nodes = out
        for fold in self.folds:
            vectors = [[self.read(w, copy.registers[register]) for register in fold.registers] for copy in copies]
            total = self.tree(w, fold, vectors)
            length = V
            while length > 1:
                length //= 2
                halves = [[self.part(w, x, start, length) for x in total] for start in (0, length)]
                total = self.combined(w, fold, *halves)
            self.into_registers(w, fold, total)
        if not masked:
            w.nodes.append(replace(loop, start=first, stop=end))

    def part(self, w: Widened, x: Value, start: int, length: int) -> Value:
        if length == 1:
            return w.op(ops.extract(start), x.type.scalar, x)
        return w.op(ops.shuffle(tuple(range(start, start + length))), vec(x.type.scalar, length), x, x)

    def copy(self, vectors: Vectors, first: Value, nodes: list) -> None:
        """The body for V rounds from `first` on."""
        vectors.nodes = nodes
        vectors.written = {vectors.registers[register] for fold in self.folds for register in fold.registers}
        vectors.env[self.loop.index.id] = Linear(first, 1)
        vectors.body(self.loop.body)

    def whole(self, w: Widened, at: Register, end: Value, copies: list[Vectors], many: int,
              streaming: bool = False) -> None:
        """Rounds of `many` whole vectors from `at` on, which then is where they ended."""
        t, loop, step = self.loop.index.type, self.loop, self.V * many
        first = self.read(w, at)
        index = Value(self.k, t)
        body: list = []
        for number, copy in enumerate(copies):
            copy.nodes, copy.line, copy.streaming = body, loop.line, streaming
            self.copy(copy, copy.moved(index, number * self.V), body)
            copy.streaming = False
        w.nodes.append(Loop(index, first, w.op(ops.SUB, t, end, w.constant(t, step - 1)), w.constant(t, step), body,
                            loop.line))
        done = w.op(ops.AND, t, w.op(ops.SUB, t, end, first), w.constant(t, -step))
        w.nodes.append(Write(at, w.op(ops.ADD, t, first, done), loop.line))

    @property
    def stores(self) -> list[tuple[Any, Type]]:
        """Pointers and elements of stores of consecutive elements."""
        return [(pointer, t) for node, pointer, t in self.accesses()
                if isinstance(node, Store) and self.consecutive(pointer)]

    def begin_aligned(self, w: Widened, end: Value) -> Value:
        """Run the first rounds of a long loop one by one, up to where vectors of the first array that is stored do not
        cross cache lines; the round after them."""
        t, loop = self.loop.index.type, self.loop
        place = self.hoisted(w, self.stores[0][0], loop.start) if self.stores else None
        if place is None:
            return loop.start
        size = self.stores[0][1].bytes
        address = w.op(ops.ADDRESS, i64, place)
        below = w.op(ops.AND, i64, w.op(ops.SUB, i64, w.constant(i64, 0), address), w.constant(i64, self.V*size - 1))
        head = w.op(ops.SHR, i64, below, w.constant(i64, size.bit_length() - 1))
        span = w.op(ops.SUB, t, end, loop.start)
        long = w.op(ops.LT, i1, w.constant(t, LONG * self.V), span)
        first = w.op(ops.ADD, t, loop.start, w.op(ops.SELECT, t, long, head, w.constant(t, 0)))
        w.nodes.append(replace(loop, stop=first))
        return first

    def streams(self, w: Widened, first: Value) -> Value | None:
        """Whether stores pass the caches by, as those of whole vectors can; None if it is never so."""
        if not self.stores or not self.width.cache or self.folds or any(
                self.V * t.bytes < GPU_BYTES for _, t in self.stores):
            return None
        moved = sum(t.bytes for _, pointer, t in self.accesses() if self.consecutive(pointer))
        most = w.constant(self.loop.index.type, max(self.width.cache // moved, LONG * self.V))
        condition = w.op(ops.LT, i1, most, self.total)
        for pointer, element in self.stores:
            place = self.hoisted(w, pointer, first)
            if place is None:
                return None
            low = w.op(ops.AND, i64, w.op(ops.ADDRESS, i64, place), w.constant(i64, self.V * element.bytes - 1))
            condition = w.op(ops.AND, i1, condition, w.op(ops.EQ, i1, low, w.constant(i64, 0)))
        return condition


class OnGpu(Vectorised):
    """16 bytes at a time, where arrays are aligned; then one element at a time."""

    def write(self, out: list) -> None:
        """Write the loop to `out` with rounds divided over the threads of CTAs."""
        loop, w = self.loop, begin(self.k, out, self.loop)
        t = loop.index.type
        accesses = [(node, pointer, element) for node, pointer, element in self.accesses()
                 if element.length == 1 and self.consecutive(pointer) and node.mask is None]
        outside = [access for access in accesses if access[1].type.space == "global"]
        V = self.V = GPU_BYTES // max((element.bytes for *_, element in outside or accesses), default=GPU_BYTES)
        if V < 2:
            raise Scalar(loop.line, "no access is of consecutive elements of at most 8 bytes")
        zero, bits, aligned = w.constant(t, 0), None, set()
        for _, pointer, element in accesses:
            place = self.hoisted(w, pointer, zero)
            if place is None:
                continue
            aligned.add(pointer.id)
            unit = w.constant(i64, min(V * element.bytes, GPU_BYTES) - 1)
            low = w.op(ops.AND, i64, w.op(ops.ADDRESS, i64, place), unit)
            bits = low if bits is None else w.op(ops.OR, i64, bits, low)
        if bits is None:
            raise Scalar(loop.line, "where consecutive elements begin is known in each round only")
        fits = w.op(ops.AND, i1, w.op(ops.EQ, i1, bits, w.constant(i64, 0)), w.op(ops.LT, i1, zero, loop.stop))
        wholes = w.op(ops.SELECT, t, fits, loop.stop, zero)
        vectors = w.op(ops.DIV, t, wholes, w.constant(t, V))
        index = Value(self.k, t)
        body: list = []
        lanes = Lanes(self.k, V, out, aligned)
        lanes.line, lanes.own = loop.line, self.own
        self.begin_folds(lanes)
        lanes.nodes = body
        lanes.env[loop.index.id] = Linear(lanes.op(ops.MUL, t, index, w.constant(t, V)), 1)
        lanes.body(loop.body)
        w.nodes.append(Loop(index, loop.start, vectors, loop.step, body, loop.line, loop.unroll))
        for fold in self.folds:
            sums = [[self.read(w, lanes.registers[register][e]) for register in fold.registers] for e in range(V)]
            self.into_registers(w, fold, self.tree(w, fold, sums))
        done = w.op(ops.MUL, t, vectors, w.constant(t, V))
        w.nodes.append(replace(loop, start=w.op(ops.ADD, t, done, loop.start)))
