"""What a GPU of AMD's cannot do, said in a sentence before LLVM sees it."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.compiler.gate_gpu import NAME
from tilewright.ir.operations import CAST, OPAQUE
from tilewright.ir.program import Call, External, Function, Load, Op, Register, Store, Write
from tilewright.ir.types import Pointer, Texture, Type
from tilewright.targets.amd import AmdTarget

WIDEST = 1024                           # bits of one value: the accumulators of the largest matrix instruction
PIECE = 32                              # bits of a register, of which a value of more bits is whole ones
STACK = 128 << 10                       # bytes of its own memory that a lane can have
PARAMETERS = 4096                       # bytes of a kernel's arguments
FORMATS = ("f16", "f32", "f64")         # of floating-point numbers with arithmetic in this version
MOVED = ("bf16",)                       # and those that are only moved: loaded, stored, looked at as bits


def kernel(function: Function, target: AmdTarget) -> Iterator[str]:
    """Of a function that is launched: what it may ask of a workgroup, and be given."""
    name = function.name
    if function.threads is None:
        yield f"{name} is written for one thread of a CPU, and {target.name} is a GPU: it runs workgroups"
        return
    if not NAME.fullmatch(name):
        yield f"{name!r} cannot be the name of a GPU kernel: it takes letters, digits, _ and $"
    if function.result is not None:
        yield f"{name} returns {function.result}, and a GPU kernel returns nothing"
    if function.warp != target.warp:
        yield (f"{name} has waves of {function.warp} lanes, and {target.name} has waves of {target.warp}: "
               f"Kernel(warp={target.warp})")
    x, y = function.threads
    threads = x * y
    waves, most = -(-threads // target.warp), target.simds * target.waves_simd
    if not 0 < threads <= target.threads_group:
        yield f"{name} has workgroups of {threads} threads, and {target.name} allows 1 to {target.threads_group}"
    elif function.min_ctas * waves > most:
        yield (f"{name} wants {function.min_ctas} workgroups of {waves} waves on a compute unit, and one of "
               f"{target.name} holds {most} waves")
    if function.ctas_cluster > 1:
        yield f"{name} has clusters, and {target.name} has none"
    if function.shared_bytes > target.lds:
        yield f"{name} needs {function.shared_bytes} bytes of LDS, and {target.name} gives a workgroup {target.lds}"
    least = target.vgprs // target.waves_simd
    if function.max_registers is not None and not least <= function.max_registers <= target.vgprs_wave:
        yield (f"{name} wants {function.max_registers} registers a lane, and {target.name} gives from {least} to "
               f"{target.vgprs_wave}")
    size = 0
    for param, value in function.params:
        t = value.type
        width = t.bytes if isinstance(t, Type) else 8
        size = -(-size // width) * width + width
        if isinstance(t, Pointer) and t.space != "global":
            yield f"{name}: {param} points to {t.space} memory, which nobody can point to before the kernel runs"
        elif isinstance(t, Type) and (t.length > 1 or t.bits == 1):
            yield f"{name}: {param} is a {t}, and a kernel takes numbers and addresses"
        elif isinstance(t, Texture):
            yield f"{name}: {param} is a texture, which Matrix Core GPUs do not have"
    if size > PARAMETERS:
        yield f"{name} has {size} bytes of parameters, and {target.name} takes {PARAMETERS}"


def body(function: Function, target: AmdTarget, inner: bool) -> Iterator[str]:
    """Of any function: what it does. `inner`: it is called by others."""
    local = 0
    for array in function.arrays:
        if array.space == "local":
            local += array.bytes
        elif inner:
            yield f"{function.name}: {array.name} is LDS, which only the kernel itself can have"
    if local > STACK:
        yield f"{function.name} has {local} bytes of local arrays, and a lane of {target.name} can have {STACK}"
    if inner and function.threads is not None:
        yield f"{function.name} is a kernel: it can be launched, not called"
    met: dict[Any, list[str]] = {}      # type → what is wrong with it
    for node in function.walk():
        for why in _node(node, target, met):
            yield f"{function.name}, {node.line}: {why}"


def _node(node: Any, target: AmdTarget, met: dict[Any, list[str]]) -> Iterator[str]:
    types: Sequence[Any] = ()
    match node:
        case Op(operation, operands, results):
            types = [x.type for x in (*results, *operands)]
            yield from _operation(operation, types, target)
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
        if t not in met:
            met[t] = list(_type(t, target)) if isinstance(t, Type) else []
        yield from met[t]


def _operation(operation: Any, types: list[Any], target: AmdTarget) -> Iterator[str]:
    if not {"", "gpu", "amd", *target.instructions}.intersection(operation.needs.split(" or ")):
        why = "an instruction of CPUs" if operation.needs == "cpu" else operation.needs
        yield f"{target.name} has no {operation.name} ({why})"
    if operation.kind == "prefetch":
        yield f"{target.name} has no prefetch: load earlier"
    if operation.kind == "atomic" and "local" in [t.space for t in types if isinstance(t, Pointer)]:
        yield "an atomic access of local memory: no other thread can see it"
    first = types[0] if types else None
    if operation is OPAQUE and isinstance(first, Type) and (first.bits < 16 or first.bits * first.length % PIECE):
        yield f"{first} does not fill registers of {PIECE} bits, so it cannot be opaque"
    if (operation.role == "thread" and operation.kind != "move") or operation.kind == "atomic":
        for t in dict.fromkeys(types):
            if isinstance(t, Type) and str(t.scalar) in MOVED:
                what = "conversions" if operation is CAST else "arithmetic"
                yield f"{target.name} has no {t.scalar} {what} in this version, so no {operation.name} of {t}"


def _type(t: Type, target: AmdTarget) -> Iterator[str]:
    if t.bits * t.length > WIDEST:
        yield f"{t} is a vector of {t.bits * t.length} bits, and a lane of {target.name} handles {WIDEST} at once"
    if t.is_float and str(t.scalar) not in (*FORMATS, *MOVED):
        yield f"{target.name} has no {t.scalar} in this version"
