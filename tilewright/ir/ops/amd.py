"""What AMD's GPUs alone have: loads straight into LDS, reads of LDS that transpose, hints to the scheduler.

Sources: AMD Instinct MI300 and CDNA4 ISA guides; LLVM, "User Guide for AMDGPU Backend",
https://llvm.org/docs/AMDGPUUsage.html
"""
from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.formats import FORMATS
from tilewright.ir.ops.core import Operation
from tilewright.ir.ops.gpu import first_lanes, whole_warps
from tilewright.ir.types import Pointer, f32, i16, i32, i64, vec
from tilewright.ir.values import Value

if TYPE_CHECKING:
    from tilewright.ir.builder import Kernel


# ---- loads from global memory straight into LDS, which pass no register
#
# A wave's lanes read where each of them says and land side by side: lane l at `bytes * l` from one place in LDS. Such a
# load is under way until its wave has waited; the hardware counts them (vmcnt), in the order in which they started.
# In the simulator it is a copy in flight (`simulator.copies`), each a group of its own, whichever lanes took part.
# Source: the ISA guides, "Memory Buffer Load to LDS"; AMDGPUUsage, "llvm.amdgcn.load.to.lds".

LDS_BYTES = (4, 12, 16)     # that a lane can load so; more than 4 on gfx950 only
PENDING = 62                # the counter has 6 bits, and its largest value waits for nothing
WHOLE = (1 << 32) - 1       # bytes from a base on that a load can reach
WORD = 4                    # bytes: each is in bounds by itself; memory need not be aligned to more: CDNA4 9.1.7
RAW = 4 << 15 | 7 << 12     # the last word of a buffer of bytes: 32-bit data. MI300 ISA guide, 9.1.8 "Buffer Resource"
KIND = "direct load"


def _lds_load_llvm(low: Any, bytes: int, smem: Any, gmem: Any, base: Any, size: Any) -> None:
    """By a buffer, which checks bounds, and whose loads LLVM 22 counts right: it takes `global_load_lds` for one that
    the counter of LDS hears of (llvm-project pull request 179305), and then waits for too little."""
    b, wide = low.b, low.integer(64)
    buffer = low.call("llvm.amdgcn.make.buffer.rsrc.p8.p1", low.pointer(8), base, low.integer(16)(0), size,
                      low.i32(RAW), name="buffer")
    offset = b.sub(b.ptrtoint(gmem, wide), b.ptrtoint(base, wide), name="offset")
    load = low.call("llvm.amdgcn.raw.ptr.buffer.load.lds", None, buffer, smem, low.i32(bytes),
                    b.trunc(offset, low.integer(32)), *[low.i32(0)] * 3)
    # LLVM would wait for it before the next read of LDS that might be of what it brings. Kernels wait themselves, so
    # the two are said to be of different memory; fences keep them in order.
    low.dialect.apart(low, load, "direct", "read")


def _lds_load_meaning(gang: Any, node: Any, bytes: int, smem: Any, gmem: Any, base: Any, size: Any) -> None:
    """Lane l's bytes land at smem + l * bytes."""
    machine = gang.machine
    to = first_lanes(gang, node, smem) + gang.threads % machine.warp * bytes
    machine.copies.start(gang, node, to, gmem, bytes, _valid(gang, node, gmem, base, size, bytes), WORD)
    machine.copies.closed[_waves(gang)] += 1


def _valid(gang: Any, node: Any, gmem: Any, base: Any, size: Any, bytes: int) -> Any:
    """How many of each lane's bytes are read: those within `size` from `base` on, in whole words."""
    size = first_lanes(gang, node, size)
    offset = np.broadcast_to(gmem - first_lanes(gang, node, base), gang.size)
    far = gang.active() & ((offset < 0) | (offset > WHOLE) | (size < 0) | (size > WHOLE))
    if far.any():
        lane = int(far.argmax())
        there = int(np.broadcast_to(size, gang.size)[lane])
        raise gang.fault("out of bounds", node, f"{node.operation.name} at {offset[lane]:,} bytes{gang.by(lane)} from "
                         f"a base of {there:,}: a buffer's offsets and sizes are from 0 to 2^32 - 1")
    return np.clip((size - offset) // WORD * WORD, 0, bytes).astype(np.int32)


def _waves(gang: Any) -> NDArray[np.int64]:
    """The threads of all waves of which any lane is active."""
    warp = gang.machine.warp
    return gang.threads[np.repeat(gang.active().reshape(-1, warp).any(1), warp)]


@cache
def _lds_load(bytes: int) -> Operation:
    """Takes (smem, gmem, base, size): each lane's `gmem` lies within the `size` bytes from `base` on, the same for all,
    or zeros arrive."""
    return Operation(f"lds_load{bytes}", lambda low, t, *xs: _lds_load_llvm(low, bytes, *xs),
                     lambda gang, node, *xs: _lds_load_meaning(gang, node, bytes, *xs),
                     KIND, "effect", needs="amd" if bytes == 4 else "lds.direct.wide")


def lds_load(k: Kernel, smem: Value, gmem: Value, bytes: int, *, base: Value | None = None, size: Any = None) -> None:
    """Start to load `bytes` (4; on gfx950 also 12 or 16) for each lane from its `gmem` into LDS: those of lane l
    land at smem + l * bytes, so `smem` is the same for all lanes of a wave. `gmem` is a multiple of 4 bytes.

    base    where to count addresses from, the same for all lanes, at most 4 GiB before each: the parameter that
            `gmem` points into, if none is given
    size    bytes from `base` on that are read, at most 2^32 - 1; zeros arrive for what lies beyond

    This wave may read the destination when it has waited for the load, and others after a barrier."""
    if bytes not in LDS_BYTES:
        raise ValueError(f"a lane can load 4, 12 or 16 bytes straight into LDS, not {bytes}")
    if smem.type.space != "shared" or gmem.type.space != "global":
        raise TypeError(f"a direct load goes from global memory to LDS, not from {gmem.type} to {smem.type}")
    if bytes % smem.type.element.bytes:
        raise TypeError(f"{bytes} bytes are not whole {smem.type.element}")
    if base is None:
        base = next((value for _, value in k.function.params if value.array and value.array is gmem.array), None)
    if base is None:
        raise TypeError("the pointer belongs to no parameter: pass `base`, from which its offset is counted")
    k._effect(_lds_load(bytes), smem, gmem, base, k._value(WHOLE if size is None else size, i64))


def _lds_wait_llvm(low: Any, pending: int) -> None:
    low.b.fence("release", "wavefront")         # so that LLVM moves no access across
    low.dialect.wait(low, vm=pending)
    low.b.fence("acquire", "wavefront")


@cache
def _lds_wait(pending: int) -> Operation:
    """Until at most so many of this wave's direct loads, the newest, are under way."""
    return Operation(f"lds_wait{pending}", lambda low, t: _lds_wait_llvm(low, pending),
                     lambda gang, node: gang.machine.copies.arrive(_waves(gang), pending), "wait", "effect",
                     needs="amd")


def lds_wait(k: Kernel, pending: int = 0) -> None:
    """Wait until at most `pending` of the direct loads that this wave has started are under way: its newest.

    The hardware counts all loads and stores of global memory, so it may wait for a little more than it is asked to;
    what is loaded into registers after them is better loaded before."""
    if not 0 <= pending <= PENDING:
        raise ValueError(f"pending must be 0 to {PENDING} loads, not {pending}")
    k._effect(_lds_wait(pending))


# ---- reads of LDS that transpose numbers of 8 or 16 bits on their way to the registers: gfx950's ds_read_b64_tr_b8 and
# ds_read_b64_tr_b16
#
# Every lane reads 8 bytes at an address of its own. What sixteen lanes that follow each other have read is a matrix of
# 16 columns, row after row: of 16-bit numbers four rows, four lanes to a row, of bytes eight rows, two lanes to a row.
# Lane l gets column l.
#
# AMD's ISA guide names the instructions and does not say which lane gets which elements. Sources, of software that
# runs on the hardware: Triton's lowering, https://github.com/triton-lang/triton/pull/8525 (16-bit numbers also 5750,
# bytes 6018); AITER, fp8, https://github.com/ROCm/aiter
# (csrc/kernels/mla/opus/mla_decode_fwd_16mx8_32nx1_fp8fp8_ps_opus.hpp, "make_layout_rv"); rocm-systems, by hardware, 16
# bits, https://github.com/ROCm/rocm-systems/pull/10175; Mojo's kernels, whose test has the bytes that even and odd
# lanes read in lanes 0 to 7 and 8 to 15, https://github.com/modular/modular. (A comment there, on load_v_fp8_strip_16,
# has them in even and odd lanes.)

TRANSPOSED_BYTES = 8        # that a lane reads, and gets
TOGETHER = 16               # lanes that exchange what they have read
TRANSPOSED_BITS = (8, 16)   # of a number
_SPELLED = {8: ("tr8.b64.v2i32", vec(i32, 2)), 16: ("tr16.b64.v4i16", vec(i16, 4))}


def exchanged(x: NDArray[np.generic]) -> NDArray[np.generic]:
    """What lanes get of what they have read, [elements, lanes]; sixteen by sixteen."""
    rows, lanes = x.shape
    parts = x.reshape(rows, lanes // TOGETHER, rows, TOGETHER // rows)          # element, sixteen, row, part of the row
    return parts.transpose(2, 1, 3, 0).reshape(rows, lanes)


def _load_transposed_meaning(gang: Any, node: Any, smem: Any) -> Any:
    """Read 8 bytes of each lane and exchange them among sixteen lanes: [elements, threads]."""
    whole_warps(gang, node)
    access = gang.access(node, "load", node.results[0].type, TRANSPOSED_BYTES)
    return exchanged(access.gather(gang, np.broadcast_to(smem, gang.size), None))


@cache
def _load_transposed(bits: int) -> Operation:
    """Takes (smem)."""
    name, spelled = _SPELLED[bits]

    def spelling(low: Any, t: Any, smem: Any) -> Any:
        load = low.call(f"llvm.amdgcn.ds.read.{name}", spelled, smem, name="transposed")
        low.dialect.shared(low, load)
        return low.b.bitcast(load, low.type(t), name="transposed")
    return Operation(f"load_transposed{bits}", spelling, _load_transposed_meaning, "load shared", "effect",
                     needs="lds.transposed")


def load_transposed(k: Kernel, smem: Value) -> Value:
    """Four numbers of 16 bits, or eight of 8, of a column, where each lane reads 8 bytes of rows: of 16 lanes that
    follow each other lane l gets the l-th elements of the rows, each of which as many lanes as it takes have read
    one after the other. All lanes of the wave take part."""
    pointer = smem.type
    if not isinstance(pointer, Pointer) or pointer.space != "shared" or pointer.element.bits not in TRANSPOSED_BITS:
        raise TypeError(f"transposing reads take a pointer to 8-bit or 16-bit numbers in LDS, not {pointer}")
    t = pointer.element
    return k._op(_load_transposed(t.bits), vec(t, TRANSPOSED_BYTES // t.bytes), smem)


# ---- f32 as numbers of 8 bits: gfx950's v_cvt_pk_fp8_f32

def _fp8_llvm(low: Any, t: Any, x: Any) -> Any:
    word, elements = low.type(t), [low.b.extract_element(x, low.i32(e)) for e in range(4)]
    half = low.call("llvm.amdgcn.cvt.pk.fp8.f32", word, *elements[:2], low.i32(0), low.integer(1)(0), name="half")
    return low.call("llvm.amdgcn.cvt.pk.fp8.f32", word, *elements[2:], half, low.integer(1)(1), name="four")


def _fp8_meaning(t: Any, x: Any) -> Any:
    with np.errstate(all="ignore"):
        bytes = np.ascontiguousarray(np.moveaxis(np.asarray(x), 0, -1)).astype(FORMATS["e4m3fn"].dtype)
    return bytes.view(np.int32)[..., 0][()]


FP8_FOUR = Operation("fp8_four", _fp8_llvm, _fp8_meaning, needs="mfma.fp8.ocp")


def fp8_four(k: Kernel, x: Value) -> Value:
    """The e4m3fn nearest to four f32, ties to even, in an i32, the first one in its lowest bits; NaN beyond 448."""
    if x.type != vec(f32, 4):
        raise TypeError(f"fp8_four takes four f32, not {x.type}")
    return k._op(FP8_FOUR, i32, x)


# ---- hints to LLVM's scheduler and to the hardware's: in which order instructions are issued, whose wave goes first
#
# They change no result. Source: AMDGPUUsage, "llvm.amdgcn.sched.group.barrier", "llvm.amdgcn.sched.barrier"; MI300 ISA
# guide, S_SETPRIO.

# Instructions that the scheduler's groups are made of.
GROUPS = {"alu": 0x1, "valu": 0x2, "salu": 0x4, "mfma": 0x8, "global": 0x10, "global read": 0x20, "global write": 0x40,
          "lds": 0x80, "lds read": 0x100, "lds write": 0x200}


def _hint(name: str, intrinsic: str, *numbers: tuple[int, int]) -> Operation:
    """`numbers`: value and bits of each."""
    return Operation(name, lambda low, t: low.call(intrinsic, None, *(low.integer(bits)(n) for n, bits in numbers)),
                     None, "hint", "effect", needs="amd")


def sched_group(k: Kernel, kind: str, count: int, pipeline: int = 0) -> None:
    """The next `count` instructions of a kind ("mfma", "lds read", "global read" ...: `GROUPS`) belong here, of those
    between two fences of LLVM's scheduler. A row of such groups is the order in which it is to issue them."""
    if kind not in GROUPS:
        raise ValueError(f"kind must be one of {', '.join(GROUPS)}, not {kind!r}")
    k._effect(_hint(f"sched_group {count} {kind}", "llvm.amdgcn.sched.group.barrier", (GROUPS[kind], 32), (count, 32),
                    (pipeline, 32)))


def sched_fence(k: Kernel, *kinds: str) -> None:
    """The scheduler moves nothing across this place, except for instructions of these kinds."""
    k._effect(_hint("sched_fence", "llvm.amdgcn.sched.barrier", (sum(GROUPS[kind] for kind in kinds), 32)))


def priority(k: Kernel, level: int) -> None:
    """From 0 to 3, of this wave among those of its SIMD."""
    if not 0 <= level <= 3:
        raise ValueError(f"level must be 0 to 3, a wave's priority, not {level}")
    k._effect(_hint(f"priority {level}", "llvm.amdgcn.s.setprio", (level, 16)))
