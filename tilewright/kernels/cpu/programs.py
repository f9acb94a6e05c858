"""The programs of a grid on a CPU: what a task of the pool calls, for a function that is recorded for one program."""
from __future__ import annotations

from tilewright.ir import Function, Kernel, i8, i32, i64, ptr
from tilewright.ir.arguments import HIDDEN

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
