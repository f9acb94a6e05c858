"""What a GPU cannot do, as sentences, before LLVM or an assembler sees the kernel: the walk that all GPUs have in
common, and the limits, types and operations of NVIDIA's and AMD's chips."""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.ir.ops.core import CASTS, OPAQUE
from tilewright.ir.ops.nvidia import TEXELS
from tilewright.ir.ops.pipelines import Role
from tilewright.ir.program import Call, External, Function, Load, Op, Register, Store, Write
from tilewright.ir.types import Pointer, TensorMap, Texture, Type
from tilewright.targets.amd import AmdTarget
from tilewright.targets.nvidia import CLUSTER, LEAST_REGISTERS, THREADS, GpuTarget
from tilewright.targets.tensor_maps import ALIGN, BYTES

REGISTER = 32           # bits, of which an opaque value of AMD's is whole ones
NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*", re.ASCII)


class GpuGate:
    """`kernel` and `body` yield a sentence for each thing that a function asks and the target does not have."""

    group, thread, shared = "workgroups", "lane", "LDS"         # as the maker calls them
    spelled = "it takes letters, digits, _ and $"               # a kernel's name
    taken = "numbers and addresses"                             # as parameters
    families: tuple[str, ...] = ()                              # of instructions that all its targets have
    local: int                                                  # bytes of its own memory that a thread can have
    parameters: int                                             # bytes of a kernel's arguments
    widest: int                                                 # bits of one value
    formats = ("f16", "f32", "f64")                             # floating-point formats with arithmetic in this version
    moved = ("bf16",)               # and those that are only loaded, stored, converted and looked at as bits

    def __init__(self, target: Any) -> None:
        self.target = target
        self._met: dict[Any, list[str]] = {}                    # type → what is wrong with it
        self._judged: dict[tuple[int, ...], list[str]] = {}     # operation, types → what is wrong with them

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
        """Faults of a launched function: in what it asks of a workgroup, and in its parameters."""
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
            width = t.bytes if isinstance(t, Type) else BYTES if isinstance(t, TensorMap) else 8
            size = -(-size // min(width, ALIGN)) * min(width, ALIGN) + width
            if isinstance(t, Pointer) and t.space != "global":
                yield f"{name}: {param} points to {t.space} memory, which has no addresses before the kernel runs"
            elif isinstance(t, Type) and (t.length > 1 or t.bits == 1):
                yield f"{name}: {param} is a {t}, and a kernel takes {self.taken}"
            elif isinstance(t, TensorMap) and "tma" not in target.instructions:
                yield f"{name}: {param} is a {t}, and {target.name} has no tensor maps: sm_90 was the first"
            elif isinstance(t, Texture) and (why := self.texture(t)):
                yield f"{name}: {param} is a {why}"
        if size > self.parameters:
            yield f"{name} has {size} bytes of parameters, and {target.name} takes {self.parameters}"

    def body(self, function: Function, inner: bool) -> Iterator[str]:
        """Faults in what a function does. `inner`: it is called by others."""
        local = 0
        for array in function.arrays:
            if array.space == "local":
                local += array.bytes
            elif inner:
                yield (f"{function.name}: {array.name} is {self.shared}, which only kernels can have, not functions "
                       "that they call")
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
                key = (id(operation), *map(id, types))      # of objects that the function holds
                if key not in self._judged:
                    self._judged[key] = list(self._operation(operation, types))
                yield from self._judged[key]
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
        if (operation.role == "thread" and operation.kind != "move" and operation not in CASTS) or \
                operation.kind == "atomic":
            for t in dict.fromkeys(types):
                if isinstance(t, Type) and str(t.scalar) in self.moved:
                    yield (f"{self.target.name} has no {t.scalar} arithmetic in this version, so no {operation.name} "
                           f"of {t}: cast to f32 first")
        yield from self.operation(operation, types)


class NvidiaGate(GpuGate):
    """A GPU of NVIDIA's, by its compute capability and by what this version spells in PTX."""

    target: GpuTarget
    families = ("nvidia",)
    widest = 128                        # bits that a thread can load, store or keep as one vector
    group, thread, shared = "CTAs", "thread", "shared memory"
    spelled = "PTX takes letters, digits, _ and $"
    taken = "numbers, addresses, textures and tensor maps"
    local = 512 << 10
    parameters = 32764                  # since CUDA 12.1

    def limits(self, function: Function) -> Iterator[str]:
        name, target = function.name, self.target
        x, y = function.threads or (1, 1)
        threads = x * y
        if threads > THREADS:
            yield f"{name} has CTAs of {threads} threads, and {target.name} allows 1 to {THREADS}"
        elif function.min_ctas * threads > target.threads_sm or function.min_ctas > target.ctas_sm:
            yield (f"{name} asks for {function.min_ctas} CTAs of {threads} threads on a multiprocessor, and one of "
                   f"{target.name} holds {min(target.threads_sm // threads, target.ctas_sm)}")
        yield from self._cluster(function)
        yield from self._registers(function)
        if function.warp != target.warp:
            yield f"{name} has warps of {function.warp} lanes, and {target.name} has warps of {target.warp}"
        if function.shared_bytes > target.smem_cta:
            yield (f"{name} needs {function.shared_bytes} bytes of shared memory, and {target.name} gives a CTA "
                   f"{target.smem_cta}")
        most = target.registers_thread
        if function.max_registers is not None and not LEAST_REGISTERS <= function.max_registers <= most:
            yield (f"{name} asks for {function.max_registers} registers a thread, and {target.name} gives from "
                   f"{LEAST_REGISTERS} to {most}")

    def _registers(self, function: Function) -> Iterator[str]:
        """Faults of warpgroups that take more or fewer registers than they were launched with, by role."""
        launched, (x, y) = function.registers(self.target.registers_sm, self.target.registers_thread), \
            function.threads or (1, 1)
        wanted = {role.name: (role.warps * function.warp, int(node.operation.name.split()[-1]))
                  for role in function.walk() if isinstance(role, Role)
                  for node in function.walk(role.then) if isinstance(node, Op) and node.operation.kind == "setmaxnreg"}
        total = sum(threads * count for threads, count in wanted.values())
        total += (x * y - sum(threads for threads, _ in wanted.values())) * launched
        if wanted and total > x * y * launched:
            listed = ", ".join(f"{name} {threads} x {count}" for name, (threads, count) in wanted.items())
            yield (f"{function.name} is launched with {x*y} threads of {launched} registers, {x*y*launched}, and its "
                   f"roles take {total}: {listed}")

    def _cluster(self, function: Function) -> Iterator[str]:
        x, y, z = function.cluster
        name, ctas = function.name, function.ctas_cluster
        if min(x, y, z) < 1 or ctas > CLUSTER:
            yield f"{name} has clusters of {x} x {y} x {z} CTAs, and a cluster has from 1 to {CLUSTER}"
        elif ctas > 1 and "cluster" not in self.target.instructions:
            yield f"{name} has clusters of {ctas} CTAs, and {self.target.name} has no clusters: sm_90 was the first"

    def texture(self, t: Texture) -> str:
        return "" if t.texel in TEXELS else f"{t}, and a texel is {' or '.join(map(str, TEXELS))}"

    def operation(self, operation: Any, types: list[Any]) -> Iterator[str]:
        spaces = [t.space for t in types if isinstance(t, Pointer)]
        if operation.kind == "prefetch" and spaces != ["global"]:
            yield f"only global memory can be prefetched, not {spaces[0]} memory"
        if operation.kind == "atomic" and "cluster" in spaces:
            yield "an atomic access of another CTA's shared memory, which this version does not have"
        if operation is OPAQUE and isinstance(types[0], Type) and (types[0].length > 1 or types[0].bits == 1):
            yield f"{types[0]} does not fit one register, so it cannot be opaque"

    def type(self, t: Type) -> Iterator[str]:
        name = self.target.name
        if t.length & (t.length - 1):
            yield f"{t} has {t.length} elements, and vectors on {name} have 1, 2, 4, 8 ... of them"
        elif t.bits * t.length > self.widest:
            yield f"{t} is a vector of {t.bits * t.length} bits, and a thread of {name} handles {self.widest} at once"
        if t.is_float and str(t.scalar) not in self.moved and not (
                str(t.scalar) in self.formats and str(t.scalar) in self.target.arithmetic):
            yield f"{name} has no {t.scalar} in this version"


class AmdGate(GpuGate):
    """A GPU of AMD's, by its architecture and by what LLVM can select for it."""

    target: AmdTarget
    widest = 1024                       # bits of one value: the accumulators of the largest matrix instruction
    families = ("amd",)
    local = 128 << 10
    parameters = 4096

    def limits(self, function: Function) -> Iterator[str]:
        name, target = function.name, self.target
        if function.warp != target.warp:
            yield (f"{name} has waves of {function.warp} lanes, and {target.name} has waves of {target.warp}: "
                   f"Kernel(warp={target.warp})")
        x, y = function.threads or (1, 1)
        threads = x * y
        waves, most = -(-threads // target.warp), target.simds * target.waves_simd
        if threads > target.threads_group:
            yield f"{name} has workgroups of {threads} threads, and {target.name} allows 1 to {target.threads_group}"
        elif function.min_ctas * waves > most:
            yield (f"{name} asks for {function.min_ctas} workgroups of {waves} waves on a compute unit, and one of "
                   f"{target.name} holds {most} waves")
        if function.ctas_cluster > 1:
            yield f"{name} has clusters, and {target.name} has none"
        if function.shared_bytes > target.lds:
            yield f"{name} needs {function.shared_bytes} bytes of LDS, and {target.name} gives a workgroup {target.lds}"
        least = target.vgprs // target.waves_simd
        if function.max_registers is not None and not least <= function.max_registers <= target.vgprs_wave:
            yield (f"{name} asks for {function.max_registers} registers a lane, and {target.name} gives from {least} "
                   f"to {target.vgprs_wave}")

    def texture(self, t: Texture) -> str:
        return "texture, which Matrix Core GPUs do not have"

    def operation(self, operation: Any, types: list[Any]) -> Iterator[str]:
        if operation.kind == "prefetch":
            yield f"{self.target.name} has no prefetch: load earlier"
        first = types[0] if types else None
        bits = first.bits * first.length if isinstance(first, Type) else 0
        if operation is OPAQUE and isinstance(first, Type) and (first.bits < 16 or bits % REGISTER):
            yield f"{first} does not fill registers of {REGISTER} bits, so it cannot be opaque"

    def type(self, t: Type) -> Iterator[str]:
        name = self.target.name
        if t.bits * t.length > self.widest:
            yield f"{t} is a vector of {t.bits * t.length} bits, and a lane of {name} handles {self.widest} at once"
        if t.is_float and str(t.scalar) not in (*self.formats, *self.moved):
            yield f"{name} has no {t.scalar} in this version"
