"""Probes of GPUs of all makers: multiply-adds in registers, bytes from memory or L2, an empty launch.

Each is a loop whose only limit is the one that it measures, as those of CPUs; `gpu_probes` times them.
Those of NVIDIA's matrix instructions are in nvidia_probe_kernels.py beside this file.
"""
from __future__ import annotations

from tilewright.ir import Function, Kernel, f32, f64, i32, ptr, vec

TYPES = {"f32": f32, "f64": f64}
THREADS, CHAINS, FACTORS = 256, 16, 4       # of a CTA; of a thread: independent sums, and what they are made of
LOADS, APART = 8, 131                       # of 16 bytes, that a thread has under way; CTAs from round to round


def emit_fma_probe(DTYPE: str = "f32", WARP: int = 32) -> Function:
    """CHAINS sums of each thread += two factors' product, `rounds` times; x has THREADS + FACTORS numbers, y one for
    each thread of the grid."""
    T = TYPES[DTYPE]
    k = Kernel("fma_probe", threads=THREADS, warp=WARP, rounds=i32, x=ptr(T), y=ptr(T))
    rounds, x, y = k.args
    acc = k.tile(CHAINS, 1, T)
    factor = [x[k.thread[0] + i] for i in range(FACTORS)]
    with k.loop(rounds, unroll=False):
        for i in range(CHAINS):
            j = i // FACTORS % FACTORS              # the same two several times: registers have banks, and are cached
            acc[i, 0] = k.fma(factor[j], factor[(j + 1) % FACTORS], acc[i, 0])
    total = acc[0, 0]
    for i in range(1, CHAINS):
        total = total + acc[i, 0]
    y[k.block[0]*THREADS + k.thread[0]] = total
    return k.function


def emit_read_probe(WARP: int = 32) -> Function:
    """Read `pieces` times LOADS vectors of 16 bytes by all threads of the grid, `rounds` times, each CTA what another
    one has read in the round before, so that its own cache does not have it; y has a word for each thread."""
    V = vec(i32, 4)
    k = Kernel("read_probe", threads=THREADS, warp=WARP, rounds=i32, pieces=i32, ctas=i32, x=ptr(i32), y=ptr(i32))
    rounds, pieces, ctas, x, y = k.args
    acc = k.tile(LOADS, 1, V)
    step = ctas*THREADS*4
    with k.loop(rounds, unroll=False) as number:
        at = x + ((k.block[0] + number*APART) % ctas*THREADS + k.thread[0])*4
        with k.loop(pieces, unroll=False) as piece:
            for i in range(LOADS):
                acc[i, 0] = acc[i, 0] ^ k.load(at + (piece*LOADS + i)*step, V, 16)
    total = acc[0, 0]
    for i in range(1, LOADS):
        total = total ^ acc[i, 0]
    y[k.block[0]*THREADS + k.thread[0]] = k.sum(total)
    return k.function


def emit_empty_probe(WARP: int = 32) -> Function:
    """A launch of nothing but a store."""
    k = Kernel("empty_probe", threads=32 if WARP == 32 else 64, warp=WARP, x=ptr(i32))
    with k.when(k.thread[0] == 0):
        k.args[0][0] = 1
    return k.function
