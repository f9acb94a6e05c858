"""What a target cannot do, said in a sentence before LLVM sees it.

LLVM answers an operation that it cannot select, or whose runtime function this process lacks, by ending the process; a
vector wider than a register it splits in silence, which no kernel here ever means.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tilewright.compiler.gate_gpu import AmdGate, NvidiaGate
from tilewright.ir.ops.core import CASTS, FMA
from tilewright.ir.program import Function, Load, Op, Register, Store, Write
from tilewright.ir.types import TensorMap, Texture, Type
from tilewright.ir.vectors import vectorised, width
from tilewright.targets.amd import AmdTarget
from tilewright.targets.cpu import INSTRUCTIONS, NEEDS, CpuTarget

if TYPE_CHECKING:
    from tilewright.targets import Target

SPACES = ("global", "local")            # of memory, on a CPU
MOVED = ("f16", "bf16")                 # formats without arithmetic that LLVM can still load, store and convert


def check(functions: Function | Iterable[Function], target: Target) -> None:
    """NotImplementedError with every refusal, if there is one."""
    refused = list(dict.fromkeys(refusals(functions, target)))
    if refused:
        raise NotImplementedError("\n".join(refused))


def refusals(functions: Function | Iterable[Function], target: Target) -> Iterator[str]:
    """One sentence for each thing that these functions, or what they call, do and the target cannot."""
    every = [functions] if isinstance(functions, Function) else functions
    if isinstance(target, CpuTarget):
        for function in every:
            for callee in (*function.callees(), function):
                yield from _on_cpu(vectorised(callee, width(target)), target)
        return
    gpu = AmdGate(target) if isinstance(target, AmdTarget) else NvidiaGate(target)
    for function in every:
        for callee in (*function.callees(), function):
            yield from gpu.body(vectorised(callee), inner=callee is not function)
        yield from gpu.kernel(function)


def _on_cpu(function: Function, target: CpuTarget) -> Iterator[str]:
    if function.threads is not None:
        yield f"{function.name} is written for a grid of threads, and {target.name} is a CPU: it runs one thread"
    for array in function.arrays:
        if array.space not in SPACES:
            yield f"{function.name}: {array.name} is in {array.space} memory, and {target.name} has none"
    for name, param in function.params:
        if isinstance(param.type, (Texture, TensorMap)):
            what = "texture" if isinstance(param.type, Texture) else str(param.type)
            yield f"{function.name}: {name} is a {what}, and {target.name} is a CPU"
    for node in function.walk():
        operation, types = _types(node)
        needed = operation.needs.split(" or ") if operation else ()
        if INSTRUCTIONS.intersection(needed):
            if not {*NEEDS[target.name], *target.features.replace("+", "").split(",")}.intersection(needed):
                yield f"{function.name}, {node.line}: {target.name} has no {operation.needs}, so no {operation.name}"
        elif operation and operation.needs not in ("", "cpu"):
            yield f"{function.name}, {node.line}: {operation.name} is for GPUs, and {target.name} is a CPU"
        for t in types:
            if isinstance(t, Type):
                why = _vector(t, target) or _format(t, operation, target)
                if why:
                    yield f"{function.name}, {node.line}: {why}"


def _types(node: Any) -> tuple[Any, list[Any]]:
    """The operation, if it is one, and the types of what the node touches."""
    match node:
        case Op(operation, operands, results):
            return operation, [x.type for x in (*results, *operands)]
        case Load(result):
            return None, [result.type]
        case Store(_, value):
            return None, [value.type]
        case Write(Register(t)):
            return None, [t]
    return None, []


def _vector(t: Type, target: CpuTarget) -> str:
    bits = 8 * target.vector_bytes
    if t.length == 1 or t.bits == 1 or t.bits * t.length <= bits:
        return ""
    return f"{t} is a vector of {t.bits * t.length} bits, and {target.name} has registers of {bits}"


def _format(t: Type, operation: Any, target: CpuTarget) -> str:
    format = str(t.scalar)
    if not t.is_float or format in target.arithmetic:
        return ""
    if format not in MOVED:
        return f"{target.name} has no {format}"
    if operation in (None, *CASTS) or operation.kind == "move":
        return ""
    name = "fused multiply-add" if operation is FMA else operation.name
    return f"{target.name} has no {format} arithmetic, so no {name}: cast to {target.arithmetic[0]} first"
