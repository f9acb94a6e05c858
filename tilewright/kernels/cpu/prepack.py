"""Packing a whole operand beforehand, in the order in which the five loops (gemm.py) read it.

    for pc: k, kc_max at a time         as the loops cut it for a given kc
      for q: all panels of the operand

Every panel takes the space that it takes in the loops' blocks, so that a block of them starts at a multiple of that.
Nothing depends on the other operand but its format (words of i8 by i8), nor on blocks along m and n, or threads.
"""
from __future__ import annotations

from tilewright.ir import Function, Kernel, i8, i64, ptr
from tilewright.kernels.cpu.in_place import job_fields, split
from tilewright.kernels.cpu.jobs import PACKED, prepack_name
from tilewright.kernels.cpu.panels import panels_of
from tilewright.targets.cpu import CpuTarget


def emit_prepack(target: CpuTarget, dtype: str, MR: int, NV: int, SOURCE: str, ROLE: str) -> Function:
    """prepack(job, part): part of jc_ways, each a run of panels of A (ROLE "a") or B ("b"), written to the job's
    a_space or b_space. SOURCE: the operand's format, if it is not `dtype`."""
    panels = panels_of(target, dtype, MR, NV, SOURCE, SOURCE)
    V, NR = panels.V, panels.NR
    k = Kernel(prepack_name(dtype, MR, NR, SOURCE, ROLE), noalias=False, job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, PACKED, panels.T, panels.C, a=panels.of_a, b=panels.of_b, c=panels.C)
    panels.write(k, g)
    count = k.ceil_div(g.m, MR) if ROLE == "a" else k.ceil_div(g.n, NR)
    space, to = (panels.a_space, g.a_space) if ROLE == "a" else (panels.b_space, g.b_space)
    kc_max = panels.kc_max()
    row = panels.rows(count) if ROLE == "a" else None
    lo, hi = split(count, g.jc_ways, part)
    with k.loop(g.k, step=kc_max) as pc:
        kc = k.min(kc_max, g.k - pc)
        block = to + pc // kc_max * (count*space(kc_max))
        with k.loop(hi, lo) as q:
            panel = block + q*space(kc)
            if row:
                i, h = row(q), row(q + 1) - row(q)
                k.call(g.pack_a, kc, h, h, *panels.a_at(i, pc), panel, *panels.left(pc))
            else:
                cols = k.min(g.n - q*NR, NR)
                k.call(g.pack_b, kc, k.ceil_div(cols, V)*V, cols, *panels.b_at(pc, q*NR), panel, *panels.left(pc))
    return k.function
