"""The body of a loop for several rounds at once on a GPU, whose threads have vectors in memory only."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.ir.ops import core as ops
from tilewright.ir.program import If, Load, Op, Read, Register, Store, Write
from tilewright.ir.types import Type, vec
from tilewright.ir.values import Value
from tilewright.ir.widened import GPU_BYTES, Linear, Scalar, Shape, Varying, Widened


class Lanes(Widened):
    """On a GPU: a value for each round, and vectors only in memory, where `aligned` says that they may be."""

    def __init__(self, k: Any, V: int, nodes: list, aligned: set[int]) -> None:
        super().__init__(k, V, nodes)
        self.aligned = aligned                      # accesses, by the number of their pointer

    def varying(self, node: Op, shapes: Sequence[Shape]) -> Shape:
        t = node.results[0].type
        return Varying([self.op(node.operation, t, *operands) for operands in zip(*(self.lanes(x) for x in shapes))])

    def register(self, register: Register) -> list[Register]:
        return self.registers.setdefault(register, [Register(register.type) for _ in range(self.V)])

    def read(self, register: Register) -> Shape:
        results = []
        for lane_register in self.register(register):
            results.append(Value(self.k, lane_register.type))
            self.nodes.append(Read(results[-1], lane_register, self.line))
        return Varying(results)

    def write(self, register: Register, x: Shape) -> None:
        for lane_register, value in zip(self.register(register), self.lanes(x)):
            self.nodes.append(Write(lane_register, value, self.line))

    def pieces(self, t: Type) -> Iterator[tuple[int, Type]]:
        """The first element, and the type, of each access of at most GPU_BYTES."""
        length = min(self.V, GPU_BYTES // t.bytes)
        return ((e, vec(t, length)) for e in range(0, self.V, length))

    def load(self, node: Load, pointer: Shape) -> Shape:
        if isinstance(pointer, Linear) and node.pointer.id in self.aligned:
            lanes: list[Value] = []
            for e, t in self.pieces(node.result.type):
                result = Value(self.k, t)
                self.nodes.append(Load(result, self.moved(pointer.first, e), t.bytes, None, node.line))
                lanes += [self.op(ops.extract(part), t.scalar, result) for part in range(t.length)]
            return Varying(lanes)
        return Varying([self.one(node, p) for p in self.lanes(pointer)])

    def store(self, node: Store, pointer: Shape, value: Shape) -> None:
        if node.mask is not None:
            raise Scalar(node.line, "a store has a mask of its own")
        values = self.lanes(value)
        if isinstance(pointer, Linear) and node.pointer.id in self.aligned:
            for e, t in self.pieces(node.value.type):
                vector = self.op(ops.PACK, t, *values[e:e + t.length])
                place = self.moved(pointer.first, e)
                self.nodes.append(Store(place, vector, t.bytes, None, node.line, node.streaming))
            return
        for p, x in zip(self.lanes(pointer), values):
            self.nodes.append(Store(p, x, node.align, None, node.line, node.streaming))

    def branch(self, node: If, condition: Shape) -> None:
        raise Scalar(node.line, "a branch that differs from round to round keeps a thread for each round")
