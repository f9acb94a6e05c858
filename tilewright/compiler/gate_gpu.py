"""What a GPU of NVIDIA's cannot do, said in a sentence before LLVM or the assembler sees it."""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.ir.operations import OPAQUE
from tilewright.ir.program import Call, External, Function, Load, Op, Register, Store, Write
from tilewright.ir.textures import TEXELS
from tilewright.ir.types import Pointer, Texture, Type
from tilewright.targets.nvidia import CLUSTER, GpuTarget

THREADS = 1024                  # of a CTA, at most
WIDEST = 128                    # bits that a thread can load, store or keep as one vector
LOCAL = 512 << 10               # bytes of its own memory that a thread can have
PARAMETERS = 32764              # bytes of a kernel's arguments, since CUDA 12.1
NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*", re.ASCII)
FORMATS = ("f16", "f32", "f64")         # of floating-point numbers that this version lowers


def kernel(function: Function, target: GpuTarget) -> Iterator[str]:
    """Of a function that is launched: what it may ask of a CTA, and be given."""
    name = function.name
    if function.threads is None:
        yield f"{name} is written for one thread of a CPU, and {target.name} is a GPU: it runs CTAs"
        return
    if not NAME.fullmatch(name):
        yield f"{name!r} cannot be the name of a GPU kernel: PTX takes letters, digits, _ and $"
    if function.result is not None:
        yield f"{name} returns {function.result}, and a GPU kernel returns nothing"
    x, y = function.threads
    threads = x * y
    if not 0 < threads <= THREADS:
        yield f"{name} has CTAs of {threads} threads, and {target.name} allows 1 to {THREADS}"
    elif function.min_ctas * threads > target.threads_sm or function.min_ctas > target.ctas_sm:
        yield (f"{name} wants {function.min_ctas} CTAs of {threads} threads on a multiprocessor, and one of "
               f"{target.name} holds {min(target.threads_sm // threads, target.ctas_sm)}")
    yield from _cluster(function, target)
    if function.warp != target.warp:
        yield f"{name} has warps of {function.warp} lanes, and {target.name} has warps of {target.warp}"
    if function.shared_bytes > target.smem_cta:
        yield (f"{name} needs {function.shared_bytes} bytes of shared memory, and {target.name} gives a CTA "
               f"{target.smem_cta}")
    most = target.registers_thread
    if function.max_registers is not None and not 16 <= function.max_registers <= most:
        yield f"{name} wants {function.max_registers} registers a thread, and {target.name} gives from 16 to {most}"
    size = 0
    for param, value in function.params:
        t = value.type
        width = t.bytes if isinstance(t, Type) else 8
        size = -(-size // width) * width + width
        if isinstance(t, Pointer) and t.space != "global":
            yield f"{name}: {param} points to {t.space} memory, which nobody can point to before the kernel runs"
        elif isinstance(t, Type) and (t.length > 1 or t.bits == 1):
            yield f"{name}: {param} is a {t}, and a kernel takes numbers, addresses and textures"
        elif isinstance(t, Texture) and t.texel not in TEXELS:
            yield f"{name}: {param} is a {t}, and a texel is {' or '.join(map(str, TEXELS))}"
    if size > PARAMETERS:
        yield f"{name} has {size} bytes of parameters, and {target.name} takes {PARAMETERS}"


def _cluster(function: Function, target: GpuTarget) -> Iterator[str]:
    x, y, z = function.cluster
    ctas = function.ctas_cluster
    if min(x, y, z) < 1 or ctas > CLUSTER:
        yield f"{function.name} has clusters of {x} x {y} x {z} CTAs, and a cluster has from 1 to {CLUSTER}"
    elif ctas > 1 and "cluster" not in target.instructions:
        yield f"{function.name} has clusters of {ctas} CTAs, and {target.name} has no clusters: sm_90 was the first"


def body(function: Function, target: GpuTarget, inner: bool) -> Iterator[str]:
    """Of any function: what it does. `inner`: it is called by others."""
    local = 0
    for array in function.arrays:
        if array.space == "local":
            local += array.bytes
        elif inner:
            yield f"{function.name}: {array.name} is shared memory, which only the kernel itself can have"
    if local > LOCAL:
        yield f"{function.name} has {local} bytes of local arrays, and a thread of {target.name} can have {LOCAL}"
    if inner and function.threads is not None:
        yield f"{function.name} is a kernel: it can be launched, not called"
    met: dict[Any, list[str]] = {}      # type → what is wrong with it
    for node in function.walk():
        for why in _node(node, target, met):
            yield f"{function.name}, {node.line}: {why}"


def _node(node: Any, target: GpuTarget, met: dict[Any, list[str]]) -> Iterator[str]:
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


def _operation(operation: Any, types: list[Any], target: GpuTarget) -> Iterator[str]:
    if operation.needs not in ("", "gpu", *target.instructions):
        why = "an instruction of CPUs" if operation.needs == "cpu" else operation.needs
        yield f"{target.name} has no {operation.name} ({why})"
    if operation.kind in ("prefetch", "atomic"):
        spaces = [t.space for t in types if isinstance(t, Pointer)]
        if operation.kind == "prefetch" and spaces != ["global"]:
            yield f"only global memory can be prefetched, not {spaces[0]} memory"
        if operation.kind == "atomic" and "local" in spaces:
            yield "an atomic access of local memory: no other thread can see it"
        if operation.kind == "atomic" and "cluster" in spaces:
            yield "an atomic access of another CTA's shared memory, which this version does not have"
    if operation is OPAQUE and isinstance(types[0], Type) and (types[0].length > 1 or types[0].bits == 1):
        yield f"{types[0]} does not fit one register, so it cannot be opaque"


def _type(t: Type, target: GpuTarget) -> Iterator[str]:
    if t.length & (t.length - 1):
        yield f"{t} has {t.length} elements, and vectors on {target.name} have 1, 2, 4, 8 ... of them"
    elif t.bits * t.length > WIDEST:
        yield f"{t} is a vector of {t.bits * t.length} bits, and a thread of {target.name} handles {WIDEST} at once"
    if t.is_float and (str(t.scalar) not in FORMATS or str(t.scalar) not in target.arithmetic):
        yield f"{target.name} has no {t.scalar} in this version"
