"""Probes of NVIDIA's matrix instructions: what tensor cores reach with operands in registers, or in shared memory.

Operands are what the caller has left in memory: the chip's power, and with it the clock, depends on them.
"""
from __future__ import annotations

from math import prod

from tilewright.atoms import nvidia as atoms
from tilewright.atoms.wgmma import Wgmma
from tilewright.ir import Function, Kernel, Value, f32, f64, i8, i32, ptr, vec
from tilewright.kernels.nvidia.wgmma_tiles import ALIGN, SmemTile
from tilewright.targets.nvidia import GpuTarget

MMA_THREADS, WGMMA_THREADS = 256, 384
BLOCKS = 4                                  # of rows, and of columns, of a warp
ROWS, COLUMNS, DEPTH = 64, 256, 128         # of a warpgroup's instruction, and bytes of k in shared memory
WORDS = (3*ROWS + COLUMNS) * DEPTH // 4     # of `x`
SUMS = {"f64": "f64", "i8": "i32", "u8": "i32"}


def largest(target: GpuTarget, FORMAT: str) -> tuple[int, int, int]:
    """m, n and k of the instruction that multiplies most."""
    atom = atoms.largest(target, FORMAT, FORMAT, SUMS.get(FORMAT, "f32"))
    return atom.m, atom.n, atom.k


def emit_mma_probe(FORMAT: str, SHAPE: tuple[int, int, int]) -> Function:
    """Each warp multiplies four blocks of rows by four of columns, of x's first WORDS words, `rounds` times; y has a
    sum for each thread of the grid."""
    atom = atoms.mma(FORMAT, FORMAT, SUMS.get(FORMAT, "f32"), *SHAPE)
    SUM = {"f64": f64, "i32": i32}.get(atom.c.format, f32)
    k = Kernel("mma_probe", threads=MMA_THREADS, rounds=i32, x=ptr(i32), y=ptr(SUM))
    rounds, x, y = k.args
    counts, types = atom.registers, [SUM]*3 if FORMAT == "f64" else [i32, i32, SUM]
    at = k.thread[0]

    def operand(which: int) -> list[Value]:
        nonlocal at
        numbers = k.pointer(k.address(x), types[which])
        at = at + 37
        return [numbers[at + i] for i in range(counts[which])]
    a, b = ([operand(which) for _ in range(BLOCKS)] for which in (0, 1))
    acc = k.tile(BLOCKS*BLOCKS, counts[2], types[2])
    with k.loop(rounds, unroll=False):
        for i in range(BLOCKS):
            for j in range(BLOCKS):
                row = i*BLOCKS + j
                for e, sum in enumerate(k.mma(atom, a[i], b[j], [acc[row, e] for e in range(counts[2])])):
                    acc[row, e] = sum
    total = acc[0, 0]
    for at in [*acc.registers][1:]:
        total = total + acc[at]
    y[k.block[0]*MMA_THREADS + k.thread[0]] = total
    return k.function


def mma_operations(target: GpuTarget, FORMAT: str) -> int:
    """Operations of a CTA in a round."""
    return 2 * prod(largest(target, FORMAT)) * BLOCKS**2 * MMA_THREADS // 32


def emit_wgmma_probe(FORMAT: str) -> Function:
    """Each of three warpgroups multiplies its tile of A by all of B, which stay in shared memory, `rounds` times; x has
    WORDS words, y a sum for each thread of the grid."""
    ITEM = SmemTile(FORMAT, True, ROWS, DEPTH, 1, False).ITEM
    a, b = (SmemTile(FORMAT, True, extent, DEPTH // ITEM, 1, False) for extent in (ROWS, COLUMNS))
    atom = Wgmma(COLUMNS, FORMAT, FORMAT, SUMS.get(FORMAT, "f32"), a.layout, b.layout)
    k = Kernel("wgmma_probe", threads=WGMMA_THREADS, rounds=i32, x=ptr(i32), y=ptr(atom.sum))
    rounds, x, y = k.args
    smem, t = k.smem("tiles", (3*a.BYTES + b.BYTES,), i8, ALIGN), k.thread[0]
    with k.loop(WORDS // 4, start=t, step=WGMMA_THREADS, unroll=False) as i:
        k.store(k.pointer(k.address(smem), i32, "shared") + i*4, k.load(x + i*4, vec(i32, 4), 16), 16)
    k.fence_async()
    k.barrier()
    acc = k.tile(1, atom.registers, atom.sum)
    own = smem + k.uniform(t // 32) // 4*a.BYTES
    k.wgmma_fence(acc)
    with k.loop(rounds, unroll=False):
        for step in range(DEPTH // 32):
            k.wgmma(atom, acc, own + a.offset(0, step), smem + (3*a.BYTES + b.offset(0, step)))
        k.wgmma_commit()
        k.wgmma_wait(0, acc)
        k.wgmma_fence(acc)
    k.wgmma_wait(0, acc)
    total = acc[0, 0]
    for at in [*acc.registers][1:]:
        total = total + acc[at]
    y[k.block[0]*WGMMA_THREADS + t] = total
    return k.function


def wgmma_operations(FORMAT: str) -> int:
    """Operations of a CTA in a round."""
    return 2 * 3*ROWS * COLUMNS * DEPTH // SmemTile(FORMAT, True, ROWS, DEPTH, 1, False).ITEM
