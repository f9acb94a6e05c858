"""Which of a function's arrays it may write: pointers are followed from the parameters through operations, registers
and calls. What C functions and functions at an address do with a pointer is not known, so they count as writing.
"""
from __future__ import annotations

from functools import cache
from typing import Any

from tilewright.ir.program import Call, Function, Line, Op, Read, Store, Write
from tilewright.ir.types import Pointer

Names = frozenset[str]


@cache
def written(function: Function) -> dict[str, Line]:
    """Pointer parameter → the first line that may write through it."""
    origin: dict[Any, Names] = {value.id: frozenset([name]) for name, value in function.params
                                if isinstance(value.type, Pointer)}
    nodes = list(function.walk())
    found: dict[str, Line] = {}

    def of(*values: Any) -> Names:
        return frozenset().union(*(origin.get(getattr(x, "id", x), frozenset()) for x in values))

    def flow(to: Any, names: Names) -> bool:
        before = origin.get(to, frozenset())
        if names <= before:
            return False
        origin[to] = before | names
        return True

    def write(names: Names, line: Line) -> None:
        for name in names:
            found.setdefault(name, line)

    again = True
    while again:                                # registers carry pointers from one round of a loop to the next
        again = False
        for node in nodes:
            match node:
                case Op(operation, operands, results):
                    for x in results if operation.role != "effect" else ():     # those have it from memory
                        if getattr(x.type, "bits", 64) > 1:
                            again |= flow(x.id, of(*operands))
                    if operation.writes:
                        write(of(operands[0]), node.line)
                case Read(result, register):
                    again |= flow(result.id, of(register))
                case Write(register, value):
                    again |= flow(register, of(value))
                case Store(pointer):
                    write(of(pointer), node.line)
                case Call(callee, operands, result):
                    if result is not None:
                        again |= flow(result.id, of(*operands))
                    inner = written(callee) if isinstance(callee, Function) else None
                    params = callee.params if isinstance(callee, Function) else [("", None)] * len(operands)
                    for (name, _), x in zip(params, operands):
                        if inner is None or name in inner:
                            write(of(x), node.line)
    return found
