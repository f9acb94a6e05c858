"""The body of a loop whose rounds are independent, for several rounds at once: what CPUs and GPUs have in common, and
`Vectors` of a CPU (of a GPU: widened_gpu.py).

A value of the body is one of three things to V consecutive rounds: *uniform*, the same in all of them; *linear*, a
whole number or an address that grows by a constant from each to the next; or *varying*. On a CPU what varies is a
vector, and a branch on it becomes a mask; on a GPU, whose threads have no vectors, it is V values. On both, accesses of
consecutive elements become one, and other elements are read and written one by one.

`Scalar` says why a body cannot be written so.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ir.ops import core as ops
from tilewright.ir.program import If, Line, Load, Loop, Op, Read, Register, Store, Write
from tilewright.ir.types import Pointer, Type, vec
from tilewright.ir.values import Value

GPU_BYTES = 16                  # of a thread's longest access
# Operations that mean the same of each element of vectors
ELEMENTWISE = frozenset(("add", "sub", "mul", "div", "rem", "divide", "neg", "abs", "sqrt", "fmin", "fmax", "lt", "le",
                         "eq", "ne", "and", "or", "xor", "shl", "shr", "cast", "bitcast", "select", "fma",
                         "fms", "fnma", "fnms", "reciprocal"))


class Scalar(Exception):
    """A body is left as it is; the line and the reason."""

    def __init__(self, line: Line, why: str) -> None:
        super().__init__(f"{line}: {why}")
        self.line, self.why = line, why


class TooWide(Exception):
    """V values of a type do not fit a vector register."""

    def __init__(self, t: Type) -> None:
        super().__init__(str(t))
        self.type = t


@dataclass(frozen=True)
class Uniform:
    value: Value


@dataclass(frozen=True)
class Linear:
    first: Value                    # of the first of the rounds
    step: int                       # to the next one; of a pointer in elements


@dataclass(frozen=True)
class Varying:
    value: Any                      # a vector; or a value for each round


Shape = Uniform | Linear | Varying


class Widened:
    """Writes into `nodes`. `V`: how many rounds; `aligned`: loads and stores of consecutive elements that are known to
    begin at multiples of their size; `streaming`: stores are not read soon, and begin so, too."""

    def __init__(self, k: Any, V: int, nodes: list) -> None:
        self.k, self.V, self.nodes = k, V, nodes
        self.env: dict[int, Shape] = {}
        self.own: set[Register] = set()             # registers that the body writes, each round its own
        self.registers: dict[Register, Any] = {}
        self.written: set[Any] = set()
        self.mask: Value | None = None              # of a CPU: the rounds that take part
        self.inner = False                          # a branch has narrowed it: there may be none
        self.streaming = 0                          # bytes at multiples of which stores begin, or 0
        self.line: Line

    # ---- nodes

    def op(self, operation: ops.Operation, t: Any, *operands: Value) -> Value:
        array = operands[0].array if isinstance(t, Pointer) and operands else None
        result = Value(self.k, t, array=array)
        self.nodes.append(Op(operation, operands, (result,), self.line))
        return result

    def constant(self, t: Any, x: Any) -> Value: return Value(self.k, t, constant=x)

    def moved(self, first: Value, by: int) -> Value:
        """first + by, of numbers and of addresses."""
        if by == 0:
            return first
        if isinstance(first.type, Pointer):
            return self.op(ops.OFFSET, first.type, first, self.constant(INDEX, by))
        return self.op(ops.ADD, first.type, first, self.constant(first.type, by))

    def shape(self, x: Value) -> Shape:
        return self.env.get(x.id) or Uniform(x)

    def uniform(self, x: Value, what: str) -> Value:
        shape = self.shape(x)
        if isinstance(shape, Uniform):
            return shape.value
        raise Scalar(self.line, f"{what} differs from round to round")

    # ---- what a CPU and a GPU write differently

    def register(self, register: Register) -> Any: raise NotImplementedError
    def read(self, register: Register) -> Shape: raise NotImplementedError
    def write(self, register: Register, x: Shape) -> None: raise NotImplementedError

    def lanes(self, x: Shape) -> list[Value]:
        """The values of all rounds."""
        if isinstance(x, Uniform):
            return [x.value] * self.V
        if isinstance(x, Linear):
            return [self.moved(x.first, e * x.step) for e in range(self.V)]
        return x.value

    def varying(self, node: Op, shapes: Sequence[Shape]) -> Shape: raise NotImplementedError
    def load(self, node: Load, pointer: Shape) -> Shape: raise NotImplementedError
    def store(self, node: Store, pointer: Shape, value: Shape) -> None: raise NotImplementedError
    def branch(self, node: If, condition: Shape) -> None: raise NotImplementedError

    # ---- the walk

    def body(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            self.line = node.line
            match node:
                case Op():
                    self.operation(node)
                case Load():
                    self.env[node.result.id] = self.loaded(node)
                case Store(pointer, value):
                    where = self.shape(pointer)
                    if isinstance(where, Uniform) or (isinstance(where, Linear) and where.step == 0):
                        raise Scalar(node.line, "all rounds store to one address")
                    self.store(node, where, self.shape(value))
                case Read(result, register) if register in self.own:
                    self.env[result.id] = self.read(register)
                case Read(result, register):
                    outside = Value(self.k, result.type, array=result.array)
                    self.nodes.append(Read(outside, register, node.line))
                    self.env[result.id] = Uniform(outside)
                case Write(register, value):
                    self.write(register, self.shape(value))
                case Loop():
                    self.loop(node)
                case If(condition):
                    shape = self.shape(condition)
                    if isinstance(shape, Uniform):
                        then, otherwise = self.inside(node.then), self.inside(node.otherwise)
                        self.nodes.append(If(shape.value, then, otherwise, node.line))
                    else:
                        self.branch(node, shape)
                case _:
                    raise Scalar(node.line, f"a {type(node).__name__.lower()} stays one for each round")

    def inside(self, nodes: list) -> list:
        """The body of a branch or a loop; what it alone has written is not written after it."""
        outer, written = self.nodes, set(self.written)
        recorded: list = []
        self.nodes = recorded
        self.body(nodes)
        self.nodes, self.written = outer, written
        return recorded

    def loop(self, node: Loop) -> None:
        what = "how often a loop is repeated"
        start, stop, step = (self.uniform(x, what) for x in (node.start, node.stop, node.step))
        index = Value(self.k, node.index.type)
        self.env[node.index.id] = Uniform(index)
        line = node.line
        body = self.inside(node.body)
        self.nodes.append(Loop(index, start, stop, step, body, line, node.unroll))

    def operation(self, node: Op) -> None:
        operation = node.operation
        if operation.role != "thread" or operation.kind == "exchange":
            raise Scalar(node.line, f"{operation.name} is not of one round alone")
        shapes = [self.shape(x) for x in node.operands]
        if all(isinstance(x, Uniform) for x in shapes):
            results = tuple(Value(self.k, y.type, array=y.array) for y in node.results)
            values = tuple(x.value for x in shapes)     # type: ignore[union-attr]
            self.nodes.append(Op(operation, values, results, node.line))
            for old, new in zip(node.results, results):
                self.env[old.id] = Uniform(new)
            return
        if len(node.results) != 1:
            raise Scalar(node.line, f"{operation.name} has several results")
        self.env[node.results[0].id] = self.linear(node, shapes) or self.varying(node, shapes)

    def linear(self, node: Op, shapes: Sequence[Shape]) -> Linear | None:
        """Sums of what is linear or uniform, and multiples, in whole numbers and addresses."""
        if node.results[0].type.is_float or len(shapes) != 2 or any(isinstance(x, Varying) for x in shapes):
            return None
        (x, dx), (y, dy) = ((s.first, s.step) if isinstance(s, Linear) else (s.value, 0) for s in shapes)
        operation, t = node.operation, node.results[0].type
        if operation in (ops.ADD, ops.OFFSET):
            step = dx + dy
        elif operation is ops.SUB:
            step = dx - dy
        elif operation is ops.MUL and isinstance(y.constant, int) and dy == 0:
            step = dx * y.constant
        else:
            return None
        return Linear(self.op(operation, t, x, y), step)

    def loaded(self, node: Load) -> Shape:
        if isinstance(node.result.type, Pointer) or node.result.type.length > 1:
            raise Scalar(node.line, f"a {node.result.type} is loaded for each round")
        where = self.shape(node.pointer)
        mask = None if node.mask is None else self.uniform(node.mask, "the mask of a load")
        if isinstance(where, Uniform) and not self.inner:
            result = Value(self.k, node.result.type)
            self.nodes.append(Load(result, where.value, node.align, mask, node.line))
            return Uniform(result)
        if mask is not None:
            raise Scalar(node.line, "a load has a mask of its own")
        return self.load(node, where)

    def one(self, node: Load, pointer: Value, mask: Value | None = None) -> Value:
        result = Value(self.k, node.result.type)
        self.nodes.append(Load(result, pointer, node.align, mask, node.line))
        return result


INDEX = Type("i", 64)


class Vectors(Widened):
    """On a CPU: a vector for each value that varies, `most` bytes long at most."""

    def __init__(self, k: Any, V: int, nodes: list, most: int) -> None:
        super().__init__(k, V, nodes)
        self.most = most

    def wide(self, t: Type) -> Type:
        vector = vec(t, self.V)
        if t.bits > 1 and vector.bytes > self.most:
            raise TooWide(t)
        return vector

    def vector(self, x: Shape) -> Value:
        if isinstance(x, Varying):
            if isinstance(x.value, list):
                return self.packed(x.value)
            return x.value
        value = x.value if isinstance(x, Uniform) else x.first
        t = value.type
        if isinstance(t, Pointer) or t.length > 1:
            raise Scalar(self.line, f"a {t} is not a number")
        if value.constant is not None:
            return self.constant(self.wide(t), value.constant)
        spread = self.op(ops.BROADCAST, self.wide(t), value)
        if isinstance(x, Uniform) or x.step == 0:
            return spread
        steps = self.op(ops.PACK, self.wide(t), *(self.constant(t, x.step * e) for e in range(self.V)))
        return self.op(ops.ADD, self.wide(t), spread, steps)

    def packed(self, values: list[Value]) -> Value:
        return self.op(ops.PACK, self.wide(values[0].type), *values)

    def lanes(self, x: Shape) -> list[Value]:
        if not isinstance(x, Varying) or isinstance(x.value, list):
            return super().lanes(x)
        return [self.op(ops.extract(e), x.value.type.scalar, x.value) for e in range(self.V)]

    def varying(self, node: Op, shapes: Sequence[Shape]) -> Shape:
        operation, t = node.operation, node.results[0].type
        if operation is ops.OFFSET:
            pairs = zip(*(self.lanes(x) for x in shapes))
            return Varying([self.op(operation, t, *pair) for pair in pairs])
        if operation.name not in ELEMENTWISE or isinstance(t, Pointer) or any(
                isinstance(x.type, Pointer) or x.type.length > 1 for x in (*node.operands, *node.results)):
            raise Scalar(node.line, f"{operation.name} has no form for vectors of {t}")
        if operation is ops.SELECT and isinstance(shapes[0], Uniform):
            operands = [shapes[0].value, *(self.vector(x) for x in shapes[1:])]
        else:
            operands = [self.vector(x) for x in shapes]
        if self.mask is not None and operation.partial and not (operation is ops.CAST and (
                t.is_float or not operands[0].type.is_float)):      # rounds that are off may hold anything
            operands = [self.op(ops.SELECT, x.type, self.mask, x, self.constant(x.type, 1)) for x in operands]
        return Varying(self.op(operation, self.wide(t), *operands))

    # ---- registers

    def register(self, register: Register) -> Register:
        if register not in self.registers:
            if isinstance(register.type, Pointer) or register.type.length > 1:
                raise Scalar(self.line, f"a variable holds a {register.type}")
            self.registers[register] = Register(self.wide(register.type))
        return self.registers[register]

    def read(self, register: Register) -> Shape:
        wide_register = self.register(register)
        result = Value(self.k, wide_register.type)
        self.nodes.append(Read(result, wide_register, self.line))
        return Varying(result)

    def write(self, register: Register, x: Shape) -> None:
        wide_register, value = self.register(register), self.vector(x)
        if self.mask is not None and wide_register in self.written:
            old = Value(self.k, wide_register.type)
            self.nodes.append(Read(old, wide_register, self.line))
            value = self.op(ops.SELECT, wide_register.type, self.mask, value, old)
        self.written.add(wide_register)
        self.nodes.append(Write(wide_register, value, self.line))

    # ---- memory, and branches

    def moved_as(self, t: Type) -> Type:
        """Floats of 16 bits under a mask LLVM moves one by one, and i16 at once."""
        return Type("i", 16) if t.is_float and t.bits == 16 and self.mask is not None else t

    def load(self, node: Load, pointer: Shape) -> Shape:
        if isinstance(pointer, Linear) and pointer.step == 1:
            t, moved = node.result.type, self.moved_as(node.result.type)
            result = Value(self.k, self.wide(moved))
            self.nodes.append(Load(result, pointer.first, t.bytes, self.mask, node.line))
            return Varying(result if moved is t else self.op(ops.BITCAST, self.wide(t), result))
        places = self.lanes(pointer)
        masks = [None] * self.V if self.mask is None else self.lanes(Varying(self.mask))
        return Varying(self.packed([self.one(node, p, mask) for p, mask in zip(places, masks)]))

    def store(self, node: Store, pointer: Shape, value: Shape) -> None:
        if node.mask is not None or isinstance(node.value.type, Pointer) or node.value.type.length > 1:
            raise Scalar(node.line, "a store has a mask of its own, or is not of a number")
        if isinstance(pointer, Linear) and pointer.step == 1:
            streams = self.streaming > 0 and self.mask is None
            t, vector = node.value.type, self.vector(value)
            if self.moved_as(t) is not t:
                vector = self.op(ops.BITCAST, self.wide(self.moved_as(t)), vector)
            align = vector.type.bytes if streams else t.bytes
            self.nodes.append(Store(pointer.first, vector, align, self.mask, node.line, node.streaming or streams))
            return
        places, values = self.lanes(pointer), self.lanes(value)
        masks = [None] * self.V if self.mask is None else self.lanes(Varying(self.mask))
        for p, x, mask in zip(places, values, masks):
            self.nodes.append(Store(p, x, node.value.type.bytes, mask, node.line))

    def branch(self, node: If, condition: Shape) -> None:
        where = self.vector(condition)
        outer = self.mask, self.inner, set(self.written)
        for nodes, flip in (node.then, False), (node.otherwise, True):
            if nodes:
                side = self.op(ops.XOR, where.type, where, self.constant(where.type, -1)) if flip else where
                self.mask = side if outer[0] is None else self.op(ops.AND, side.type, outer[0], side)
                self.inner = True
                self.body(nodes)
                self.mask, self.inner = outer[:2]
                self.written = set(outer[2])
