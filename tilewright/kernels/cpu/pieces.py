"""Pieces of work, of any drivers, that threads claim one after the other: the products of groups of unequal size.

Each piece has a job of its own, which one thread does alone. Panels go into memory of the thread.
"""
from __future__ import annotations

from tilewright.ir import Function, Kernel, i8, i64, ptr
from tilewright.kernels.cpu.jobs import PACKED, PIECE, PIECES, offsets
from tilewright.kernels.cpu.pool import job_fields
from tilewright.targets.cpu import CpuTarget


def emit_pieces(target: CpuTarget) -> Function:
    """pieces(job, tid): what thread `tid` of any team does; one alone does all pieces."""
    k = Kernel("pieces", noalias=False, job=ptr(i8), tid=i64)
    job, tid = k.args
    g = job_fields(k, job, PIECES[:-1], i8, pieces=i64)
    claimed = (job + offsets(PIECES)["claimed"]).as_(i64)
    own = g.space + tid*g.space_step
    index = k.variable(i64, k.atomic_add(claimed, 1, "monotonic"))
    with k.while_(lambda: index.get() < g.count):
        piece = g.pieces + index.get()*len(PIECE)
        function, of = (k.load(piece + PIECE.index(name), ptr(i8)) for name in ("function", "job"))
        with k.when(piece[PIECE.index("packs")] != 0):
            for name in "a_space", "b_space", "sums":
                field = of.as_(i64) + PACKED.index(name)
                k.store(field, k.load(field) + own)
        k.call(function, of, k.constant(i64, 0))
        index.set(k.atomic_add(claimed, 1, "monotonic"))
    return k.function
