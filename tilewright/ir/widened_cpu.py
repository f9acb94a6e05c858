"""The body of a loop for several rounds at once on a CPU: vectors, and masks for branches."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir.ops import core as ops
from tilewright.ir.program import If, Load, Op, Read, Register, Store, Write
from tilewright.ir.types import Pointer, Type, vec
from tilewright.ir.values import Value
from tilewright.ir.widened import ELEMENTWISE, Linear, Scalar, Shape, TooWide, Uniform, Varying, Widened


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
