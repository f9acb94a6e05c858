"""Small emitted functions that tests of the runtime call."""

from __future__ import annotations

from tilewright.ir import Function, Kernel, f32, f64, i8, i64, ptr
from tilewright.kernels.cpu.pool import emit_barrier


def _small(name: str, element) -> Kernel:
    p = ptr(element)
    return Kernel(name, context=ptr(i64), m=i64, n=i64, p=i64, a=p, rsa=i64, csa=i64, b=p, rsb=i64, csb=i64, c=p,
                  rsc=i64, result=i64, noalias=False)


def emit_small(target) -> list[Function]:
    """Stand-ins for small kernels: small_f32 and small_f64 multiply, one element at a time; small_wait waits (see
    there); small_no declines."""
    functions = []
    for element in (f32, f64):
        k = _small(f"small_{element}", element)
        _, m, n, p, a, rsa, csa, b, rsb, csb, c, rsc = k.args
        with k.loop(m) as i, k.loop(n) as j:
            total = k.variable(element, 0.0)
            with k.loop(p) as q:
                total.set(k.fma(k.load(a + i * rsa + q * csa), k.load(b + q * rsb + j * csb), total.get()))
            k.store(c + i * rsc + j, total.get())
        k.ret(1)
        functions.append(k.function)

    # context[0] += 1, then wait for context[1], context[2] times at most; context[3] is how many were left
    k = _small("small_wait", f32)
    context = k.args[0]
    k.atomic_add(context, 1)
    left = k.variable(i64, k.load(context + 2))
    with k.while_(lambda: (k.atomic_load(context + 1) == 0) & (left.get() > 0)):
        k.pause()
        left.set(left.get() - 1)
    k.store(context + 3, left.get())
    k.ret(1)
    functions.append(k.function)

    k = _small("small_no", f32)
    k.ret(0)
    return [*functions, k.function]


def emit_jobs(target) -> list[Function]:
    """Jobs for the pool. Memory of both: int64, 64-byte aligned.

    meet(job, tid): job[0:2] barrier, [8] team, [9] rounds, [10] errors, [16 + 8 * tid] the last round of this member
    mark(job, part): job[part] += 1, after job[-1] pauses
    nested(job, tid): job is [pool_run_team, pool, fn, its job, sum of what pool_run_team says, team]
    nothing(job, tid)
    """
    k = Kernel("meet", job=ptr(i64), tid=i64, noalias=False)
    job, tid = k.args
    team, rounds, errors, last = k.load(job + 8), k.load(job + 9), job + 10, job + 16
    with k.loop(rounds) as r:
        k.store(last + tid * 8, r + 1)
        emit_barrier(k, job, team)
        with k.loop(team) as other, k.when(k.load(last + other * 8) != r + 1):
            k.atomic_add(errors, 1)
        emit_barrier(k, job, team)
    meet = k.function

    k = Kernel("mark", job=ptr(i64), part=i64, noalias=False)
    job, part = k.args
    with k.loop(k.load(job + -1)):
        k.pause()
    k.atomic_add(job + part, 1)
    mark = k.function

    k = Kernel("nested", job=ptr(i64), tid=i64, noalias=False)
    job, tid = k.args
    run, pool, inner, inner_job = (k.load(job + i, ptr(i8)) for i in range(4))
    got = k.call(run, pool, inner, inner_job, k.load(job + 5), result=i64)
    k.atomic_add(job + 4, got)
    nested = k.function

    k = Kernel("nothing", job=ptr(i8), tid=i64)
    k.ret()
    return [meet, mark, nested, k.function]
