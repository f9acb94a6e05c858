"""AMD's words for kernels: LLVM's intrinsics of the amdgcn target, for chips whose waves have 64 lanes.

Source: LLVM, "User Guide for AMDGPU Backend", https://llvm.org/docs/AMDGPUUsage.html
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ll

from tilewright.ir.dialects import Dialect
from tilewright.ir.direct import KIND
from tilewright.ir.program import Op

SIMDS = 4           # of a compute unit: the waves of a workgroup are dealt out to them
REGISTERS = 512     # of each lane of a SIMD, VGPRs and AGPRs together. AMDGPUUsage, "Register Usage": gfx90a and later
HALF = 32           # lanes that a swizzle stays within
RAW = 4 << 15 | 7 << 12     # the last word of a buffer of bytes: 32-bit data. MI300 ISA guide, 9.1.8 "Buffer Resource"
# Exchanges within 16 lanes that the vector ALU makes on its way (DPP), by the bits in which lanes differ: quad_perm for
# 1 to 3, row_half_mirror, row_ror:8 and row_mirror. AMD Instinct MI300 ISA, 12.1.1 "DPP".
_DPP = {**{x: sum((lane ^ x) << 2*lane for lane in range(4)) for x in (1, 2, 3)}, 7: 0x141, 8: 0x128, 15: 0x140}


@dataclass(frozen=True)
class Amdgcn(Dialect):
    def letter(self, low: Any, x: Any) -> str:
        return "v"          # a vector register, since a scalar one holds one value for the whole wave

    def launched(self, low: Any, function: Any) -> list[str]:
        x, y = function.threads
        low.fn.set_metadata("reqd_work_group_size", low.module.add_metadata([low.i32(n) for n in (x, y, 1)]))
        found = [f'"amdgpu-flat-work-group-size"="{x*y},{x*y}"', '"uniform-work-group-size"="true"']
        waves = -(-function.min_ctas * -(-x*y // function.warp) // SIMDS)
        if function.max_registers is not None:      # a SIMD's registers are divided evenly among as many waves as fit
            waves = -(-REGISTERS // function.max_registers)
        return [*found, f'"amdgpu-waves-per-eu"="{waves}"']

    def builtin(self, low: Any, name: str, t: Any) -> Any:
        what, axis = name.split(".")
        if what == "grid":                          # hidden_block_count_x, _y, _z: the first of the implicit arguments
            constant = ll.PointerType(addrspace=4)
            arguments = low.call("llvm.amdgcn.implicitarg.ptr", constant)
            at = low.b.gep(arguments, [low.i32("xyz".index(axis))], source_etype=low.type(t))
            return low.b.load(at, typ=low.type(t), align=4, name=name)
        return low.call(f"llvm.amdgcn.{'workitem' if what == 'thread' else 'workgroup'}.id.{axis}", t, name=name)

    def barrier(self, low: Any) -> None:
        """Every wave waits for its own accesses to LDS before, and for nothing else: waves of a workgroup share a
        compute unit, whose vector memory is ordered, so loads from global memory may stay on their way.

        The fences of a workgroup say so, but LLVM 22 has them wait for direct loads too. Where there are any the kernel
        waits for those that it means (`k.lds_wait`), and here for the rest."""
        scope = "wavefront" if _direct(low) else "workgroup"
        low.b.fence("release", scope)
        if _direct(low):
            low.call("llvm.amdgcn.s.waitcnt", None, low.i32(_counters(lgkm=0)))
        low.call("llvm.amdgcn.s.barrier", None)
        low.b.fence("acquire", scope)

    def warp_barrier(self, low: Any) -> None:
        """No instruction: a wave's lanes run in lockstep, and its accesses to LDS in order."""
        low.b.fence("release", "wavefront")
        low.call("llvm.amdgcn.wave.barrier", None)
        low.b.fence("acquire", "wavefront")

    def fence(self, low: Any) -> None:
        low.b.fence("seq_cst", self.scope)

    def addition(self, low: Any, atomic: Any) -> None:
        """What kernels add to is this device's own memory, where hardware adds floats at L2; else LLVM loops over a
        compare and swap. AMDGPUUsage, "amdgpu.no.fine.grained.memory"."""
        for promise in ("amdgpu.no.fine.grained.memory", "amdgpu.no.remote.memory"):
            atomic.set_metadata(promise, low.module.add_metadata([]))

    def shuffled(self, low: Any, x: Any, y: Any, indices: tuple[int, ...]) -> Any:
        if not (x.type.count == len(indices) == 4 and x.type.element == low.integer(8)):
            return super().shuffled(low, x, y, indices)
        word = low.integer(32)                      # LLVM 22 takes bytes apart, and the hardware has one instruction
        picks = sum(index << 8*e for e, index in enumerate(indices))
        bits = low.call("llvm.amdgcn.perm", word, low.b.bitcast(y, word), low.b.bitcast(x, word), low.i32(picks))
        return low.b.bitcast(bits, x.type, "shuffle")

    def uniform(self, low: Any, x: Any) -> Any:
        address = isinstance(x.type, ll.PointerType)
        kind = f"p{x.type.addrspace}" if address else f"{'f' if low.is_float(x) else 'i'}{low.bits(x)}"
        return low.call(f"llvm.amdgcn.readfirstlane.{kind}", x.type, x, name="uniform")

    def direct(self, low: Any, bytes: int, smem: Any, gmem: Any, base: Any, size: Any) -> None:
        """By a buffer, which checks bounds, and whose loads LLVM 22 counts right: it takes `global_load_lds` for one
        that the counter of LDS hears of (llvm-project pull request 179305), and then waits for too little."""
        buffer, offset = self.buffer(low, gmem, base, size)
        load = low.call("llvm.amdgcn.raw.ptr.buffer.load.lds", None, buffer, smem, low.i32(bytes), offset,
                        *[low.i32(0)] * 3)
        # LLVM would wait for it before the next read of LDS that might be of what it brings. Kernels wait themselves,
        # so the two are said to be of different memory; fences keep them in order.
        _apart(low, load, "direct", "read")

    def buffer(self, low: Any, pointer: Any, base: Any, size: Any) -> tuple[Any, Any]:
        """A buffer of `size` bytes from `base` on, and where in it `pointer` is."""
        b, wide = low.b, low.integer(64)
        buffer = low.call("llvm.amdgcn.make.buffer.rsrc.p8.p1", ll.PointerType(addrspace=8), base, low.integer(16)(0),
                          size, low.i32(RAW), name="buffer")
        offset = b.sub(b.ptrtoint(pointer, wide), b.ptrtoint(base, wide), name="offset")
        return buffer, b.trunc(offset, low.integer(32))

    def wait(self, low: Any, pending: int) -> None:
        low.b.fence("release", "wavefront")         # so that LLVM moves no access across
        low.call("llvm.amdgcn.s.waitcnt", None, low.i32(_counters(vm=pending)))
        low.b.fence("acquire", "wavefront")

    def shared(self, low: Any, load: Any) -> None:
        if _direct(low):
            _apart(low, load, "read", "direct")

    def exchanged(self, low: Any, x: Any, mask: int, warp: int) -> Any:
        if mask in _DPP:
            return low.call("llvm.amdgcn.update.dpp.i32", x.type, x, x, low.i32(_DPP[mask]), low.i32(15), low.i32(15),
                            low.integer(1)(1), name="exchanged")
        if mask < HALF:                             # the mask in bits 10 to 14, and in bits 0 to 4 which bits stay
            return low.call("llvm.amdgcn.ds.swizzle", x.type, x, low.i32(mask << 10 | 31), name="exchanged")
        below = low.call("llvm.amdgcn.mbcnt.lo", x.type, low.i32(-1), low.i32(0))
        lane = low.call("llvm.amdgcn.mbcnt.hi", x.type, low.i32(-1), below, name="lane")
        at = low.b.shl(low.b.xor(lane, low.i32(mask)), low.i32(2))          # in bytes of 4-byte registers
        return low.call("llvm.amdgcn.ds.bpermute", x.type, at, x, name="exchanged")


def _direct(low: Any) -> bool:
    """Does the kernel load anything straight into LDS?"""
    return any(isinstance(node, Op) and node.operation.kind == KIND for node in low.function.walk())


def _counters(vm: int = 63, lgkm: int = 15) -> int:
    """s_waitcnt until at most so much is under way; the largest numbers wait for nothing. MI300 ISA guide, 4.4."""
    exports = 7
    return vm & 15 | exports << 4 | lgkm << 8 | vm >> 4 << 14


def _apart(low: Any, access: Any, own: str, other: str) -> None:
    """This access is of what is called `own`, and of nothing that is called `other`: LangRef, "alias.scope"."""
    domain = low.module.add_metadata([ll.MetaDataString(low.module, "tilewright LDS")])
    for what, name in ("alias.scope", own), ("noalias", other):
        scope = low.module.add_metadata([ll.MetaDataString(low.module, name), domain])
        access.set_metadata(what, low.module.add_metadata([scope]))


# Version 5 of the code object: every ROCm since 5.3 loads it.
AMDGCN = Amdgcn("amdgcn-amd-amdhsa", ("nounwind", "convergent"), ("alwaysinline",), "amdgpu_kernel",
                (("global", 1), ("shared", 3), ("local", 5)), "agent", gpu=True,
                flags=(("amdhsa_code_object_version", 500),))
