"""What a plan by small (kernels/gpu/small.py) costs: the batch crosses the memory's interface once, unless loads from
shared memory or multiply-adds take longer."""
from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from tilewright.plans import small_rules
from tilewright.plans.common import Cost, Term

if TYPE_CHECKING:
    from tilewright.plans.gpu_shape import GpuShape
    from tilewright.plans.nvidia_plan import NvidiaPlan
    from tilewright.targets.nvidia import GpuTarget

START = 2.5e-6          # seconds of a launch
READING = 0.92          # of the memory's bandwidth
SHARED_CLOCK = 128      # bytes that shared memory gives in a clock
ISSUED = 0.75           # of the multiply-adds that a multiprocessor could issue


def loaded(shape: GpuShape, p: NvidiaPlan) -> int:
    """Bytes that all lanes load of a product's operands, those that several lanes share as often."""
    return small_rules.lanes(p, shape).EACH * (p.thread_m + p.thread_n) * shape.k * shape.itemsize


def cost(shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> Cost:
    s, each = shape, shape.itemsize
    bytes = s.batch * (s.m*s.k + s.k*s.n + s.m*s.n) * each
    of = small_rules.lanes(p, s)
    rounds = ceil(s.batch / of.TOGETHER) * of.PARTS                     # of a team's lanes
    fma = target.fma_f32 if s.a in ("f32", "c64") else target.fma_f64
    sums = p.thread_m * p.thread_n * (4 if s.a in small_rules.COMPLEX else 1)
    everywhere = target.sms * target.clock
    parts = (("memory", bytes / (READING*target.bandwidth)),
             ("shared memory", s.batch * loaded(s, p) / (SHARED_CLOCK*everywhere)),
             ("multiply-adds", rounds * of.COUNT * sums * s.k / (ISSUED*fma*everywhere)))
    return Cost(START + sum(x**3 for _, x in parts) ** (1/3), parts,
                rounds=small_rules.ctas(p, s) / (target.sms*max(p.resident(s, target), 1)))


def traffic(shape: GpuShape, p: NvidiaPlan) -> dict[str, tuple[Term, ...]]:
    s, each = shape, shape.itemsize
    sizes = ("A", s.m*s.k*each), ("B", s.k*s.n*each)
    once = tuple(Term(x, size, s.batch, "once") for x, size in sizes)
    c = Term("C", s.m*s.n*each, s.batch, "written")
    staged = (Term("C exchanged", s.m*s.n*each, 2*s.batch, "written and read"),) if p.store == "smem" else ()
    return {"shared": (*(Term(f"{x} written", size, s.batch, "once") for x, size in sizes),
                       Term("A and B read", loaded(s, p), s.batch, "by the threads that share a product"), *staged),
            "L2": once, "memory": (*once, c)}
