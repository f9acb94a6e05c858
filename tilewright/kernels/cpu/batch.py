"""A batch of packed products: whole products go to whoever is free, so that no thread ever waits for another.

Each thread has a copy of the job and packs into memory of its own. The job is that of one thread: ways of 1x1x1.
"""
from __future__ import annotations

from types import SimpleNamespace

from tilewright.ir import Function, Kernel, i8, i64, ptr
from tilewright.kernels.cpu.jobs import BATCH, PACKED, offsets
from tilewright.targets.cpu import CpuTarget


def emit_batch(target: CpuTarget) -> Function:
    """batch(job, tid): what thread `tid` of any team does; one alone does it all."""
    k = Kernel("batch_packed", noalias=False, job=ptr(i8), tid=i64)
    job, tid = k.args
    pointers = {"driver": ptr(i8), "product": ptr(i64)}
    g = SimpleNamespace(**{name: k.field(job, at, pointers.get(name, i64)) for name, at in offsets(BATCH).items()
                           if name != "claimed"})
    claimed = (job + offsets(BATCH)["claimed"]).as_(i64)
    own = k.local("own", (len(PACKED),), i64)
    for at, name in enumerate(PACKED):
        own_space = tid*g.space_step if name in ("a_space", "b_space", "sums") else 0
        k.store(own + at, g.product[at] + own_space)
    first = {name: g.product[PACKED.index(name)] for name in "abc"}
    steps = {"a": g.a_step, "b": g.b_step, "c": g.c_step}
    index = k.variable(i64, k.atomic_add(claimed, 1, "monotonic"))
    with k.while_(lambda: index.get() < g.batch):
        for name in "abc":
            k.store(own + PACKED.index(name), first[name] + index.get()*steps[name])
        k.call(g.driver, own.as_(i8), k.constant(i64, 0))
        index.set(k.atomic_add(claimed, 1, "monotonic"))
    return k.function
