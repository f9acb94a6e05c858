"""Loops whose only limit is what they measure of a core: multiply-adds, bytes from memory, latencies, the clock."""
from __future__ import annotations

from tilewright.ir import Function, Kernel, i64, ptr, vec
from tilewright.kernels.cpu.microkernel import TYPES, emit_microkernel
from tilewright.targets.cpu import CpuTarget

FACTORS = 4             # registers of multiplicands; the others are chains of additions
UNROLL = 16             # vectors in one round of a memory loop
CHAIN = 32              # dependent additions in one round of the clock's loop


def chains(target: CpuTarget) -> int:
    """Independent sums: 12 or 28, where two multiply-adds a cycle at a latency of five need ten."""
    return target.registers - FACTORS


def emit_fma_probe(target: CpuTarget, dtype: str) -> Function:
    """x[0 ... chains) += two vectors' product, `rounds` times: chains(target) multiply-adds a round, none waits."""
    T, V, CHAINS = TYPES[dtype], target.lanes(TYPES[dtype].bytes), chains(target)
    k = Kernel("fma_probe", rounds=i64, x=ptr(T))
    rounds, x = k.args
    acc = k.tile(CHAINS, 1, vec(T, V))
    for i in range(CHAINS):
        acc[i, 0] = k.load(x + i*V, vec(T, V))
    factor = [k.load(x + (CHAINS + i)*V, vec(T, V)) for i in range(FACTORS)]
    with k.loop(rounds):
        for i in range(CHAINS):
            acc[i, 0] = k.fma(factor[i % FACTORS], factor[(i + 1) % FACTORS], acc[i, 0])
    for i in range(CHAINS):
        k.store(x + i*V, acc[i, 0])
    return k.function


def emit_memory_probe(target: CpuTarget, KIND: str) -> Function:
    """Go through `vectors` vectors (a multiple of UNROLL) `rounds` times. KIND: "read" x, "copy" from x to y, "write" y
    or "stream" y past the caches, by non-temporal stores."""
    VT = vec(i64, target.lanes(8))
    V, SUMS = VT.length, UNROLL // 2
    k = Kernel(f"{KIND}_probe", rounds=i64, vectors=i64, x=ptr(i64), y=ptr(i64))
    rounds, vectors, x, y = k.args
    acc = k.tile(SUMS, 1, VT)
    for i in range(SUMS):
        acc[i, 0] = k.load(x + i*V, VT)
    with k.loop(rounds), k.loop(vectors, step=UNROLL) as v:
        for u in range(UNROLL):
            at = (v + u)*V
            if KIND == "read":              # exclusive or: one cycle, on as many ports as vectors can come in by
                acc[u % SUMS, 0] = acc[u % SUMS, 0] ^ k.load(x + at, VT)
            elif KIND == "copy":
                k.store(y + at, k.load(x + at, VT))
            else:
                k.store(y + at, acc[u % SUMS, 0], streaming=KIND == "stream")
    if KIND == "read":
        for i in range(SUMS):
            k.store(y + i*V, acc[i, 0])
    return k.function


def emit_latency_probe(target: CpuTarget) -> Function:
    """From `start`, follow i → x[i] for `steps` steps, and say where that leads: each load waits for the one before."""
    k = Kernel("latency_probe", steps=i64, x=ptr(i64), start=i64, result=i64)
    steps, x, start = k.args
    at = k.variable(i64, start)
    with k.loop(steps):
        at.set(x[at.get()])
    k.ret(at.get())
    return k.function


def emit_clock_probe(target: CpuTarget) -> Function:
    """CHAIN dependent additions a round, one cycle each. The addend is a register: constants some chips fold."""
    k = Kernel("clock_probe", rounds=i64, addend=i64, result=i64)
    rounds, addend = k.args
    x = k.variable(i64, addend)
    with k.loop(rounds):
        for _ in range(CHAIN):
            x.set(k.opaque(x.get() + addend))
    k.ret(x.get())
    return k.function


def emit_call_probe(target: CpuTarget) -> Function:
    """Nothing: what it costs to get here and back."""
    k = Kernel("call_probe", x=i64, result=i64)
    k.ret(k.args[0])
    return k.function


def emit_tile_probe(target: CpuTarget, dtype: str, MR: int, NV: int) -> Function:
    """`rounds` times: C[panels*MR, NR] += A @ b1, `panels` packed panels of A and one of B; C's rows are contiguous."""
    T, NR = TYPES[dtype], NV * target.lanes(TYPES[dtype].bytes)
    microkernel = emit_microkernel(target, dtype, MR, NV)
    k = Kernel(f"tile_probe_{dtype}_{MR}x{NR}", rounds=i64, panels=i64, kc=i64, a=ptr(T), b1=ptr(T), c=ptr(T))
    rounds, panels, kc, a, b1, c = k.args
    with k.loop(rounds), k.loop(panels) as ir:
        k.call(microkernel, kc, a + ir * kc * MR, MR, b1, NR, c + ir * (MR * NR), NR, NR, 1.0, 1.0, b1, 0)
    return k.function
