"""What a GPU of NVIDIA's cannot do, by its compute capability and by what this version spells in PTX."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.compiler.gate_gpu import GpuGate
from tilewright.ir.operations import OPAQUE
from tilewright.ir.program import Function
from tilewright.ir.textures import TEXELS
from tilewright.ir.types import Pointer, Texture, Type
from tilewright.targets.nvidia import CLUSTER, LEAST_REGISTERS, THREADS, GpuTarget

WIDEST = 128                    # bits that a thread can load, store or keep as one vector
FORMATS = ("f16", "f32", "f64")         # of floating-point numbers that this version lowers


class NvidiaGate(GpuGate):
    target: GpuTarget
    group, thread, shared = "CTAs", "thread", "shared memory"
    spelled = "PTX takes letters, digits, _ and $"
    taken = "numbers, addresses and textures"
    local = 512 << 10
    parameters = 32764                  # since CUDA 12.1

    def limits(self, function: Function) -> Iterator[str]:
        name, target = function.name, self.target
        x, y = function.threads or (1, 1)
        threads = x * y
        if threads > THREADS:
            yield f"{name} has CTAs of {threads} threads, and {target.name} allows 1 to {THREADS}"
        elif function.min_ctas * threads > target.threads_sm or function.min_ctas > target.ctas_sm:
            yield (f"{name} wants {function.min_ctas} CTAs of {threads} threads on a multiprocessor, and one of "
                   f"{target.name} holds {min(target.threads_sm // threads, target.ctas_sm)}")
        yield from self._cluster(function)
        if function.warp != target.warp:
            yield f"{name} has warps of {function.warp} lanes, and {target.name} has warps of {target.warp}"
        if function.shared_bytes > target.smem_cta:
            yield (f"{name} needs {function.shared_bytes} bytes of shared memory, and {target.name} gives a CTA "
                   f"{target.smem_cta}")
        most = target.registers_thread
        if function.max_registers is not None and not LEAST_REGISTERS <= function.max_registers <= most:
            yield (f"{name} wants {function.max_registers} registers a thread, and {target.name} gives from "
                   f"{LEAST_REGISTERS} to {most}")

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
        elif t.bits * t.length > WIDEST:
            yield f"{t} is a vector of {t.bits * t.length} bits, and a thread of {name} handles {WIDEST} at once"
        if t.is_float and (str(t.scalar) not in FORMATS or str(t.scalar) not in self.target.arithmetic):
            yield f"{name} has no {t.scalar} in this version"
