"""Tasks of drivers and functions of any kind: pieces of work that threads claim one after the other, the products of
groups of unequal size, each with a job of its own, which one thread does alone, with panels in its own memory; and the
programs of a grid, for a function that is recorded for one program."""
from __future__ import annotations

from tilewright.ir import Function, Kernel, i8, i32, i64, ptr
from tilewright.ir.arguments import HIDDEN
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


FIELD = 8                       # bytes of an argument in a job


def emit_task(function: Function) -> Function:
    """name(job, part): the programs of part `part`. A job holds the arguments one after the other, 8 bytes each, then
    as i64 the grid's x and y, how many programs there are, and how many a part has."""
    k = Kernel(f"{function.name}_task", job=ptr(i8), part=i64, noalias=False)
    job, part = k.args
    types = [value.type for _, value in function.params[:-HIDDEN]]
    given = [k.field(job, FIELD*n, t) for n, t in enumerate(types)]
    x, y, count, share = (k.field(job, FIELD*(len(types) + n), i64) for n in range(4))
    grid = [k.cast(extent, i32) for extent in (x, y, count // (x*y))]
    with k.loop(k.min((part + 1)*share, count), start=part*share) as program:
        place = [k.cast(at, i32) for at in (program % x, program // x % y, program // (x*y))]
        k.call(function, *given, *place, *grid)
    return k.function
