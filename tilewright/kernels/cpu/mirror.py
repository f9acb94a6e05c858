"""The upper triangle of a square matrix from the lower one."""
from __future__ import annotations

from tilewright.ir import Function, i32, i64, vec
from tilewright.kernels.cpu.jobs import MIRROR
from tilewright.kernels.cpu.pool import job_kernel, split
from tilewright.targets.cpu import CpuTarget

TYPES = {4: i32, 8: i64}
WIDE, HIGH = 16, 8      # rows and columns that are written at a time: as many lines are read, in one set of L1 at worst


def emit_mirror(target: CpuTarget, BYTES: int) -> Function:
    """mirror(job, part): C[i, j] = C[j, i] for j > i, of rows of C that are part of `parts`; elements of 4, 8 or 16
    bytes, of which rows are contiguous."""
    T = TYPES[min(BYTES, 8)]
    PAIR = BYTES // T.bytes
    VT = vec(T, PAIR) if PAIR > 1 else T
    k, g, part = job_kernel(f"mirror_{8*BYTES}", MIRROR, T)
    c = g.c.view(g.ldc*PAIR, PAIR)
    lo, hi = (x*WIDE for x in split(k.ceil_div(g.n, WIDE), g.parts, part))
    with k.loop(k.min(hi, g.n), lo, WIDE) as i0, k.loop(g.n, i0, HIGH) as j0:
        with k.loop(k.min(i0 + WIDE, g.n), i0) as i, k.loop(k.min(j0 + HIGH, g.n), k.max(j0, i + 1)) as j:
            k.store(c.at(i, j), k.load(c.at(j, i), VT, T.bytes), T.bytes)
    return k.function
