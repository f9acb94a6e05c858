"""What the GPUs of both makers have: shared memory, barriers, exchanges between lanes, matrix instructions.

A CPU's gate refuses what these record, in a sentence.
"""
from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.ops.core import Operation, by_family, by_machine, calls
from tilewright.ir.ops.pipelines import whole_cta
from tilewright.ir.types import Type, f32, i8, i32
from tilewright.ir.values import Value

if TYPE_CHECKING:
    from tilewright.ir.builder import Kernel

WORD = 32           # bits that one exchange moves; wider values go in parts
MOVED = (16, 32, 64)
HALF = 32           # lanes that AMD's swizzle stays within
# Exchanges within 16 lanes that AMD's vector ALU makes on its way (DPP), by the bits in which lanes differ: quad_perm
# for 1 to 3, row_half_mirror, row_ror:8 and row_mirror. AMD Instinct MI300 ISA, 12.1.1 "DPP".
_DPP = {**{x: sum((lane ^ x) << 2*lane for lane in range(4)) for x in (1, 2, 3)}, 7: 0x141, 8: 0x128, 15: 0x140}


# ---- a thread's coordinates

def thread(k: Kernel) -> tuple[Value, Value]:
    """(x, y) of this thread in its CTA."""
    return k._builtin("thread.x"), k._builtin("thread.y")


def block(k: Kernel) -> tuple[Value, Value]:
    """(x, y) of this CTA in the grid."""
    return k._builtin("block.x"), k._builtin("block.y")


def block_z(k: Kernel) -> Value:
    """The third coordinate of this CTA: a slice of k, or a product of a batch."""
    return k._builtin("block.z")


def grid(k: Kernel) -> tuple[Value, Value]:
    """How many CTAs the grid has along x and along y."""
    return k._builtin("grid.x"), k._builtin("grid.y")


def cta_shape(k: Kernel) -> tuple[int, int]:
    """How many threads a CTA has along x and along y."""
    assert k.function.threads is not None
    return k.function.threads


# ---- shared memory, and meeting there

def smem(k: Kernel, name: str, shape: int | tuple[int, ...], element: Type, align: int = 16) -> Value:
    """A shared-memory array, row-major, its first element at a multiple of `align` bytes."""
    return k._array(name, shape, element, "shared", align)


def smem_bytes(k: Kernel, name: str, size: int, align: int = 128) -> Value:
    """Bytes of shared memory for arrays of any type, at once or one after another: `bytes.as_(f32).view(LD, 1)`."""
    return k._array(name, (size,), i8, "shared", align)


def _barrier_amd(low: Any, t: Any) -> None:
    """Every wave waits for its own accesses to LDS before, and for nothing else: waves of a workgroup share a compute
    unit, whose vector memory is ordered, so loads from global memory may stay on their way.

    The fences of a workgroup say so, but LLVM 22 has them wait for direct loads too. Where there are any the kernel
    waits for those that it means (`k.lds_wait`), and here for the rest."""
    direct = "direct load" in low.kinds
    scope = "wavefront" if direct else "workgroup"
    low.b.fence("release", scope)
    if direct:
        low.dialect.wait(low, lgkm=0)
    low.call("llvm.amdgcn.s.barrier", None)
    low.b.fence("acquire", scope)


# No thread goes on before all threads of the CTA have come here; what they wrote before is then visible to all of them.
BARRIER = Operation("barrier", by_family(
    nvptx64=calls("llvm.nvvm.barrier.cta.sync.aligned.all", 0), amdgcn=_barrier_amd),
    lambda gang, node: gang.barrier(node), "barrier", "blocking", needs="gpu")


def barrier(k: Kernel) -> None:
    """All threads of the CTA meet here."""
    whole_cta(k, "a barrier")
    k._effect(BARRIER)


def _warp_barrier_amd(low: Any, t: Any) -> None:
    """No instruction: a wave's lanes run in lockstep, and its accesses to LDS in order."""
    low.b.fence("release", "wavefront")
    low.call("llvm.amdgcn.wave.barrier", None)
    low.b.fence("acquire", "wavefront")


# No lane goes on before all lanes of the warp have come here, and the compiler moves no access to memory across it.
WARP_BARRIER = Operation("warp_barrier", by_family(
    nvptx64=calls("llvm.nvvm.bar.warp.sync", -1), amdgcn=_warp_barrier_amd),
    lambda gang, node: gang.warp_barrier(node), "warp barrier", "effect", needs="gpu")


def warp_barrier(k: Kernel) -> None:
    """All lanes of the warp meet here; what each did in memory before, the others see after.

    It costs next to nothing, and the assembler moves no loads across it: what comes before stays there."""
    k._effect(WARP_BARRIER)


LAST_KERNEL = Operation("last_kernel", lambda low, t: low.overlap(), lambda gang, node: None, "kernels", "effect",
                        needs="gpu")


def last_kernel(k: Kernel, *early: str) -> None:
    """Wait for the end of the stream's last kernel, before which this one may begin on some targets; a kernel without
    this does so first of all. Every thread comes here before it writes, or reads what may have been written: anything
    but the memory of the parameters `early`, of which launches take care.

    Source: PTX ISA, "griddepcontrol"."""
    k.function.early = tuple(dict.fromkeys((*k.function.early, *early)))
    k._effect(LAST_KERNEL)


# Orders this thread's accesses to global memory for the other CTAs; carries nothing by itself.
FENCE_DEVICE = Operation("fence_device", by_family(
    nvptx64=calls("llvm.nvvm.membar.gl"), amdgcn=lambda low, t: low.b.fence("seq_cst", low.dialect.scope)),
    by_machine("atomics", "fence"), "fence", "effect", needs="gpu")


def fence_device(k: Kernel) -> None:
    """What this thread has written before is seen by every thread of the device that sees what it writes after."""
    k._effect(FENCE_DEVICE)


# ---- lanes of a warp

def _exchanged_nvidia(low: Any, x: Any, mask: int, warp: int) -> Any:
    all_lanes, clamp = low.i32(-1), low.i32(warp - 1)
    return low.call("llvm.nvvm.shfl.sync.bfly.i32", x.type, all_lanes, x, low.i32(mask), clamp, name="exchanged")


def _exchanged_amd(low: Any, x: Any, mask: int, warp: int) -> Any:
    if mask in _DPP:
        return low.call("llvm.amdgcn.update.dpp.i32", x.type, x, x, low.i32(_DPP[mask]), low.i32(15), low.i32(15),
                        low.integer(1)(1), name="exchanged")
    if mask < HALF:                             # the mask in bits 10 to 14, and in bits 0 to 4 which bits stay
        return low.call("llvm.amdgcn.ds.swizzle", x.type, x, low.i32(mask << 10 | 31), name="exchanged")
    below = low.call("llvm.amdgcn.mbcnt.lo", x.type, low.i32(-1), low.i32(0))
    lane = low.call("llvm.amdgcn.mbcnt.hi", x.type, low.i32(-1), below, name="lane")
    at = low.b.shl(low.b.xor(lane, low.i32(mask)), low.i32(2))          # in bytes of 4-byte registers
    return low.call("llvm.amdgcn.ds.bpermute", x.type, at, x, name="exchanged")


@cache
def _exchange(mask: int, warp: int) -> Operation:
    """x of lane (lane ^ mask)."""
    exchanged = by_family(nvptx64=lambda low, t, x: _exchanged_nvidia(low, x, mask, warp),
                          amdgcn=lambda low, t, x: _exchanged_amd(low, x, mask, warp))

    def spelling(low: Any, t: Any, x: Any) -> Any:
        b, narrow, wide = low.b, low.integer(WORD), low.integer(t.bits)
        bits = b.bitcast(x, wide)
        if t.bits <= WORD:
            bits = exchanged(low, t, b.zext(bits, narrow))
        else:
            halves = [exchanged(low, t, b.trunc(b.lshr(bits, wide(shift)), narrow)) for shift in range(0, t.bits, WORD)]
            bits, upper = (b.zext(half, wide) for half in halves)
            bits = b.or_(bits, b.shl(upper, wide(WORD)))
        return b.bitcast(b.trunc(bits, wide), low.type(t), name="exchanged")
    return Operation(f"lane_xor{mask}", spelling, lambda t, x: x[..., np.arange(warp) ^ mask], "exchange", "group",
                     warp, needs="gpu")


def lane_xor(k: Kernel, x: Value, mask: int) -> Value:
    """The x of the lane whose number differs in the bits of `mask`; all lanes take part."""
    if not isinstance(x, Value):
        raise TypeError(f"lanes exchange values of the kernel, not {x!r}")
    if not isinstance(x.type, Type) or x.type.length > 1 or x.type.bits not in MOVED:
        raise TypeError(f"lanes exchange numbers of 16, 32 or 64 bits, not {x.type}")
    if not 0 < mask < k.warp:
        raise ValueError(f"mask must be from 1 to {k.warp - 1}, not {mask}")
    return k._op(_exchange(mask, k.warp), x.type, x)


def warp_sum(k: Kernel, x: Value) -> Value:
    """The sum of x over the lanes of the warp, in every lane, always in the same order."""
    distance = k.warp // 2
    while distance:
        x = x + lane_xor(k, x, distance)
        distance //= 2
    return x


def _uniform_amd(low: Any, t: Any, x: Any) -> Any:
    """LLVM then keeps it in a scalar register."""
    space = getattr(x.type, "addrspace", None)
    kind = f"p{space}" if space is not None else f"{'f' if low.is_float(x) else 'i'}{low.bits(x)}"
    return low.call(f"llvm.amdgcn.readfirstlane.{kind}", x.type, x, name="uniform")


def _uniform_nvidia(low: Any, t: Any, x: Any) -> Any:
    """NVIDIA's assembler then keeps an i32 in a uniform register: it comes from one lane, the first active one."""
    if low.is_float(x) or t != i32:
        return x
    active = low.call("llvm.nvvm.activemask", low.integer(32))
    first = low.call("llvm.cttz.i32", low.integer(32), active, low.integer(1)(1))
    return low.call("llvm.nvvm.shfl.sync.idx.i32", low.integer(32), active, x, first, low.i32(31), name="uniform")


def first_lanes(gang: Any, node: Any, x: Any) -> Any:
    """What the first active lane of each wave holds; a fault if another active one holds something else."""
    if np.ndim(x) == 0:
        return x
    warp = gang.machine.warp
    on, lanes = gang.active().reshape(-1, warp), np.broadcast_to(x, gang.size).reshape(-1, warp)
    first = np.take_along_axis(lanes, on.argmax(1)[:, None], 1)
    wrong = on & (lanes != first)
    if wrong.any():
        lane = int(wrong.ravel().argmax())
        raise gang.fault("divergent", node, f"{node.operation.name} of a value that is not the same in all lanes of a "
                         f"wave: {lanes.ravel()[lane]}{gang.by(lane)}, where the first lane has "
                         f"{first[lane // warp, 0]}")
    return np.repeat(first[:, 0], warp)


def whole_warps(gang: Any, node: Any) -> None:
    """A fault if only some lanes of a warp have come to an instruction that all of them execute together."""
    warp = gang.machine.warp
    on = gang.active().reshape(-1, warp)
    if (some := on.any(1) != on.all(1)).any():
        first = int(some.argmax())
        what = "warp" if warp == HALF else "wave"
        raise gang.fault("divergent", node, f"{node.operation.name} needs all lanes of a {what}"
                         + gang.by(first*warp + int(on[first].argmin())))


# x, of which all lanes of a wave hold the same.
UNIFORM = Operation("uniform", by_family(nvptx64=_uniform_nvidia, amdgcn=_uniform_amd), first_lanes, "move",
                    "effect", needs="gpu")


def uniform(k: Kernel, x: Value) -> Value:
    """x, of which all lanes of the wave hold the same: what is computed from it is then computed once for the wave."""
    return Value(k, x.type, array=x.array, strides=x.strides, id=k._op(UNIFORM, x.type, x).id)


# ---- functions by their hardware

def _exp2_nvidia(low: Any, t: Any, x: Any) -> Any:
    return low.call("llvm.nvvm.ex2.approx.ftz.f", t, x, name="exp2")


def _exp2(t: Any, x: Any) -> Any:
    with np.errstate(all="ignore"):
        power = np.exp2(np.asarray(x, np.float64)).astype(np.float32)
    return np.where(np.abs(power) < np.finfo(np.float32).tiny, np.float32(0), power)[()]


EXP2 = Operation("exp2_approximate", by_family(
    nvptx64=_exp2_nvidia, amdgcn=lambda low, t, x: low.call("llvm.amdgcn.exp2.f32", t, x, name="exp2")), _exp2, "float",
    needs="gpu")


def exp2_approximate(k: Kernel, x: Value) -> Value:
    """2^x of an f32 by the chip's own instruction: within 2 ulp (PTX ISA, ex2.approx; AMD's v_exp_f32 within 1), and 0
    where the result would be subnormal. The last bits differ from chip to chip, and from the simulator's."""
    if not isinstance(x, Value) or x.type != f32:
        raise TypeError(f"exp2_approximate takes an f32, not {x.type if isinstance(x, Value) else repr(x)}")
    return k._op(EXP2, f32, x)


RECIPROCAL = Operation("reciprocal_approximate", by_family(
    nvptx64=lambda low, t, x: low.call("llvm.nvvm.rcp.approx.ftz.f", t, x, name="reciprocal"),
    amdgcn=lambda low, t, x: low.call("llvm.amdgcn.rcp.f32", t, x, name="reciprocal")),
    lambda t, x: silently_inverted(x), "float", needs="gpu")


def silently_inverted(x: Any) -> Any:
    """1 / x, of 0 an infinity."""
    with np.errstate(all="ignore"):
        return (np.float32(1) / np.asarray(x, np.float32))[()]


def reciprocal_approximate(k: Kernel, x: Value) -> Value:
    """1 / x of an f32 by the chip's own instruction: within 1 ulp, and 0 where the result would be subnormal. The last
    bits differ from chip to chip, and from the simulator's."""
    if not isinstance(x, Value) or x.type != f32:
        raise TypeError(f"reciprocal_approximate takes an f32, not {x.type if isinstance(x, Value) else repr(x)}")
    return k._op(RECIPROCAL, f32, x)


# ---- matrix instructions

def mma(k: Kernel, atom: Any, a: Any, b: Any, c: Any) -> tuple[Value, ...]:
    """D = A @ B + C by a matrix instruction (atoms): each a list of this lane's registers, as is D."""
    return k._group(atom.operation, [x.type for x in c], *a, *b, *c)
