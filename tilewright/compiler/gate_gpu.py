"""What a GPU cannot do, said in a sentence before LLVM or an assembler sees it: the walk that all GPUs have in common.

gate_nvidia and gate_amd know their own chips' limits, types and operations.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.ir.program import Call, External, Function, Load, Op, Register, Store, Write
from tilewright.ir.types import Pointer, Texture, Type

NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*", re.ASCII)


class GpuGate:
    """`kernel` and `body` yield a sentence for each thing that a function asks and the target does not have."""

    group, thread, shared = "workgroups", "lane", "LDS"         # as the maker calls them
    spelled = "it takes letters, digits, _ and $"               # a kernel's name
    taken = "numbers and addresses"                             # as parameters
    families: tuple[str, ...] = ()                              # of instructions that all its targets have
    local: int                                                  # bytes of its own memory that a thread can have
    parameters: int                                             # bytes of a kernel's arguments

    def __init__(self, target: Any) -> None:
        self.target = target
        self._met: dict[Any, list[str]] = {}                    # type → what is wrong with it

    # ---- what targets differ in

    def limits(self, function: Function) -> Iterator[str]:
        """What a kernel asks of a workgroup: threads, registers, shared memory."""
        raise NotImplementedError

    def texture(self, t: Texture) -> str:
        """What is wrong with a texture as a parameter, as the end of a sentence; or nothing."""
        raise NotImplementedError

    def operation(self, operation: Any, types: list[Any]) -> Iterator[str]:
        """`types`: of the results, then of the operands."""
        raise NotImplementedError

    def type(self, t: Type) -> Iterator[str]:
        """What is wrong with values of a type, wherever they are."""
        raise NotImplementedError

    # ---- the walk

    def kernel(self, function: Function) -> Iterator[str]:
        """Of a function that is launched: what it may ask of a workgroup, and be given."""
        name, target = function.name, self.target
        if function.threads is None:
            yield f"{name} is written for one thread of a CPU, and {target.name} is a GPU: it runs {self.group}"
            return
        if not NAME.fullmatch(name):
            yield f"{name!r} cannot be the name of a GPU kernel: {self.spelled}"
        if function.result is not None:
            yield f"{name} returns {function.result}, and a GPU kernel returns nothing"
        yield from self.limits(function)
        size = 0
        for param, value in function.params:
            t = value.type
            width = t.bytes if isinstance(t, Type) else 8
            size = -(-size // width) * width + width
            if isinstance(t, Pointer) and t.space != "global":
                yield f"{name}: {param} points to {t.space} memory, which nobody can point to before the kernel runs"
            elif isinstance(t, Type) and (t.length > 1 or t.bits == 1):
                yield f"{name}: {param} is a {t}, and a kernel takes {self.taken}"
            elif isinstance(t, Texture) and (why := self.texture(t)):
                yield f"{name}: {param} is a {why}"
        if size > self.parameters:
            yield f"{name} has {size} bytes of parameters, and {target.name} takes {self.parameters}"

    def body(self, function: Function, inner: bool) -> Iterator[str]:
        """Of any function: what it does. `inner`: it is called by others."""
        local = 0
        for array in function.arrays:
            if array.space == "local":
                local += array.bytes
            elif inner:
                yield f"{function.name}: {array.name} is {self.shared}, which only the kernel itself can have"
        if local > self.local:
            yield (f"{function.name} has {local} bytes of local arrays, and a {self.thread} of {self.target.name} can "
                   f"have {self.local}")
        if inner and function.threads is not None:
            yield f"{function.name} is a kernel: it can be launched, not called"
        for node in function.walk():
            for why in self._node(node):
                yield f"{function.name}, {node.line}: {why}"

    def _node(self, node: Any) -> Iterator[str]:
        types: Sequence[Any] = ()
        match node:
            case Op(operation, operands, results):
                types = [x.type for x in (*results, *operands)]
                yield from self._operation(operation, types)
            case Load(value) | Store(_, value):
                t = value.type
                types = (t,)
                if isinstance(t, Type) and t.bits == 1 and t.length > 1:
                    yield f"{t} has no form in memory: its elements are bits"
                if isinstance(t, Pointer) and t.space != "global":
                    yield f"an address of {t.space} memory cannot be kept in memory"
            case Write(Register(t)):
                types = (t,)
            case Call(callee) if isinstance(callee, External) or not isinstance(callee, Function):
                yield "a GPU kernel can call recorded functions only"
        for t in types:
            if t not in self._met:
                self._met[t] = list(self.type(t)) if isinstance(t, Type) else []
            yield from self._met[t]

    def _operation(self, operation: Any, types: list[Any]) -> Iterator[str]:
        if {"", "gpu", *self.families, *self.target.instructions}.isdisjoint(operation.needs.split(" or ")):
            why = "an instruction of CPUs" if operation.needs == "cpu" else operation.needs
            yield f"{self.target.name} has no {operation.name} ({why})"
        if operation.kind == "atomic" and "local" in [t.space for t in types if isinstance(t, Pointer)]:
            yield "an atomic access of local memory: no other thread can see it"
        yield from self.operation(operation, types)
