"""NVIDIA's words for kernels: PTX, by LLVM's intrinsics and a little inline assembly."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ll

from tilewright.ir.dialects import Dialect
from tilewright.ir.types import Type


@dataclass(frozen=True)
class Nvptx(Dialect):
    def letter(self, low: Any, x: Any) -> str:
        if isinstance(x.type, ll.PointerType):                  # addresses of shared memory have 32 bits: compiler.llvm
            return "r" if x.type.addrspace in (low.spaces["shared"], low.spaces["cluster"]) else "l"
        if low.is_float(x):
            return {16: "h", 32: "f", 64: "d"}[low.bits(x)]
        return {16: "h", 64: "l"}.get(low.bits(x), "r")

    def launched(self, low: Any, function: Any) -> list[str]:
        x, y = function.threads
        found = [f'"nvvm.reqntid"="{x},{y},1"']
        if function.max_registers is None:
            found.append(f'"nvvm.minctasm"="{function.min_ctas}"')
        else:
            found.append(f'"nvvm.maxnreg"="{function.max_registers}"')
        if function.ctas_cluster > 1:       # part of the code, so that a launch need not know
            x, y, z = function.cluster
            found.append(f'"nvvm.cluster_dim"="{x},{y},{z}"')
        return found

    def builtin(self, low: Any, name: str, t: Any) -> Any:
        register = name.replace("thread", "tid").replace("block", "ctaid").replace("grid", "nctaid")
        return low.call(f"llvm.nvvm.read.ptx.sreg.{register}", t, name=name)

    def barrier(self, low: Any) -> None:
        low.call("llvm.nvvm.barrier.cta.sync.aligned.all", None, low.i32(0))

    def warp_barrier(self, low: Any) -> None:
        low.call("llvm.nvvm.bar.warp.sync", None, low.i32(-1))

    def fence(self, low: Any) -> None:
        low.call("llvm.nvvm.membar.gl", None)

    def exchanged(self, low: Any, x: Any, mask: int, warp: int) -> Any:
        whole, clamp = low.i32(-1), low.i32(warp - 1)
        return low.call("llvm.nvvm.shfl.sync.bfly.i32", x.type, whole, x, low.i32(mask), clamp, name="exchanged")

    def prefetch(self, low: Any, p: Any, write: bool, locality: int) -> None:
        """A GPU has two levels, and no difference between lines to be read and to be written."""
        low.asm(f"prefetch.global.L{1 if locality == 3 else 2} [$0];", low.nothing(), "l", p, effects=True)

    def streamed(self, low: Any, node: Any) -> bool:
        """`.cs`: likely accessed once, first to leave the cache. LLVM has no word for it."""
        t = node.value.type
        if not (isinstance(t, Type) and t.bits in (32, 64) and t.bits * t.length <= 128 and node.align >= t.bytes
                and node.pointer.type.space == "global"):       # for these there is one instruction
            return False
        pointer, value = low[node.pointer], low[node.value]
        elements = [low.b.extract_element(value, low.i32(e)) for e in range(t.length)] if t.length > 1 else [value]
        names = ", ".join(f"${e + 1}" for e in range(t.length))
        vector, names = (f".v{t.length}", f"{{{names}}}") if t.length > 1 else ("", names)
        constraints = ",".join([*(self.letter(low, x) for x in (pointer, *elements)), "~{memory}"])
        low.asm(f"st.global.cs{vector}.b{t.bits} [$0], {names};", low.nothing(), constraints, pointer, *elements,
                effects=True)
        return True


# convergent: a function may hold a barrier, so no call may move to where only some of the threads come by
NVPTX = Nvptx("nvptx64-nvidia-cuda", ("nounwind", "convergent"), (), "ptx_kernel",
              (("global", 1), ("shared", 3), ("cluster", 7), ("local", 0)), "device", gpu=True, dynamic=True,
              opaque_loads=True, fenced_additions=True)
