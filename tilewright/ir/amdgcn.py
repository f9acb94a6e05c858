"""AMD's words for kernels: LLVM's intrinsics of the amdgcn target, for chips whose waves have 64 lanes.

Source: LLVM, "User Guide for AMDGPU Backend", https://llvm.org/docs/AMDGPUUsage.html
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ll

from tilewright.ir.dialects import Dialect

SIMDS = 4           # of a compute unit: the waves of a workgroup are dealt out to them
REGISTERS = 512     # of each lane of a SIMD, VGPRs and AGPRs together. AMDGPUUsage, "Register Usage": gfx90a and later
HALF = 32           # lanes that a swizzle stays within
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
        """The fences make every wave wait for its own accesses to LDS, and for nothing else: waves of a workgroup share
        a compute unit, whose vector memory returns in order, so loads from global memory may stay on their way."""
        low.b.fence("release", "workgroup")
        low.call("llvm.amdgcn.s.barrier", None)
        low.b.fence("acquire", "workgroup")

    def warp_barrier(self, low: Any) -> None:
        """No instruction: a wave's lanes run in lockstep, and its accesses to LDS in order."""
        low.b.fence("release", "wavefront")
        low.call("llvm.amdgcn.wave.barrier", None)
        low.b.fence("acquire", "wavefront")

    def fence(self, low: Any) -> None:
        low.b.fence("seq_cst", self.scope)

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


# Version 5 of the code object: every ROCm since 5.3 loads it.
AMDGCN = Amdgcn("amdgcn-amd-amdhsa", ("nounwind", "convergent"), ("alwaysinline",), "amdgpu_kernel",
                (("global", 1), ("shared", 3), ("local", 5)), "agent", gpu=True,
                flags=(("amdhsa_code_object_version", 500),))
