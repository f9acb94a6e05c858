"""What a GPU of AMD's cannot do, by its architecture and by what LLVM can select for it."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.compiler.gate_gpu import GpuGate
from tilewright.ir.operations import CAST, OPAQUE
from tilewright.ir.program import Function
from tilewright.ir.types import Texture, Type
from tilewright.targets.amd import AmdTarget

WIDEST = 1024                           # bits of one value: the accumulators of the largest matrix instruction
PIECE = 32                              # bits of a register, of which a value of more bits is whole ones
FORMATS = ("f16", "f32", "f64")         # of floating-point numbers with arithmetic in this version
MOVED = ("bf16",)                       # and those that are only moved: loaded, stored, looked at as bits


class AmdGate(GpuGate):
    target: AmdTarget
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

    def texture(self, t: Texture) -> str:
        return "texture, which Matrix Core GPUs do not have"

    def operation(self, operation: Any, types: list[Any]) -> Iterator[str]:
        if operation.kind == "prefetch":
            yield f"{self.target.name} has no prefetch: load earlier"
        first = types[0] if types else None
        if operation is OPAQUE and isinstance(first, Type) and (first.bits < 16 or first.bits * first.length % PIECE):
            yield f"{first} does not fill registers of {PIECE} bits, so it cannot be opaque"
        if (operation.role == "thread" and operation.kind != "move") or operation.kind == "atomic":
            for t in dict.fromkeys(types):
                if isinstance(t, Type) and str(t.scalar) in MOVED:
                    what = "conversions" if operation is CAST else "arithmetic"
                    yield f"{self.target.name} has no {t.scalar} {what} in this version, so no {operation.name} of {t}"

    def type(self, t: Type) -> Iterator[str]:
        name = self.target.name
        if t.bits * t.length > WIDEST:
            yield f"{t} is a vector of {t.bits * t.length} bits, and a lane of {name} handles {WIDEST} at once"
        if t.is_float and str(t.scalar) not in (*FORMATS, *MOVED):
            yield f"{name} has no {t.scalar} in this version"
