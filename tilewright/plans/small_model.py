"""What a plan by small (kernels/gpu/small.py) costs: the batch crosses the memory's interface once, unless loads from
shared memory or multiply-adds take longer, or too few teams are there to hide what one waits for."""
from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from tilewright.plans import small_rules
from tilewright.plans.common import Cost, Term
from tilewright.plans.small_layout import Stored, beyond_whole, passes, tile_passes
from tilewright.targets.banks import NVIDIA

if TYPE_CHECKING:
    from tilewright.plans.gpu_shape import GpuShape
    from tilewright.plans.nvidia_plan import NvidiaPlan
    from tilewright.targets.nvidia import GpuTarget

# Of an H200, 2026-11-23: 394 plans for 44 sizes (bench/results/h200_small_batches.json has those that are chosen).
START = 2.7e-6          # seconds of a launch: the first loads, the last sums
READING = 0.885         # of the memory's bandwidth
ISSUED = 0.75           # of the multiply-adds that a multiprocessor could issue
ARRIVAL = 3000          # clocks until a group's operands are there
WAITING = 3.0           # clocks of a warp alone for each instruction that multiplies
PARTLY = 0.5            # of the memory's bandwidth, in which sectors of C are written that are not whole
POWER = 5               # the higher, the less what takes equally long slows each other down


def cost(shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> Cost:
    s, of = shape, small_rules.lanes(p, shape)
    wide = 2 if s.a in ("f64", "c128") else 1
    bytes = s.batch * (s.m*s.k + s.k*s.n + s.m*s.n) * s.itemsize
    teams = small_rules.warps(p) // p.team
    groups, rounds = ceil(s.batch / p.matrices), p.matrices // of.TOGETHER * of.PARTS
    fmas = p.thread_m * p.thread_n * s.k * (4 if s.a in small_rules.COMPLEX else 1)         # of a lane in a round
    shared = loads(s, p) + (stores(s, p) if p.store == "smem" else 0.0)                   # clocks of a warp in one
    everywhere = target.sms * target.clock
    fma = (target.fma_f32 if wide == 1 else target.fma_f64) / of.WARP                       # of warps in a clock
    multiplying = WAITING * rounds * wide * fmas                                            # clocks of a team alone
    at_once = max(p.resident(s, target), 1) * teams
    parts: tuple[tuple[str, float], ...] = (
        ("memory", bytes / (READING*target.bandwidth)),
        ("shared memory", groups * rounds * p.team * shared / everywhere),
        ("multiply-adds", groups * rounds * p.team * fmas / (ISSUED*fma*everywhere)),
        ("waiting", max(groups / at_once / target.sms * (ARRIVAL + multiplying), multiplying) / target.clock))
    partly = 0.0 if p.store == "smem" else s.batch * s.m*s.n*s.itemsize / (PARTLY*target.bandwidth) * beyond_whole(
        *small_rules.operands(p, s), (s.m, s.n), of)
    parts = (*parts, ("partial sectors", partly)) if partly else parts
    together = sum(x**POWER for what, x in parts if what != "partial sectors") ** (1/POWER)
    return Cost(START + together + partly, parts, rounds=groups / (at_once*target.sms))


def loads(s: GpuShape, p: NvidiaPlan) -> float:
    """Clocks of shared memory for all that a warp loads in a round."""
    of = small_rules.lanes(p, s)

    def clocks(x: Stored, down: bool) -> float:
        each = NVIDIA.split(x.WIDTH*x.BYTES, True).phases + passes(x, of, down, NVIDIA)
        return each * x.COUNT * s.k / x.WIDTH
    a, b = small_rules.operands(p, s)
    return clocks(a, True) + clocks(b, False)


def stores(s: GpuShape, p: NvidiaPlan) -> float:
    """Wavefronts of shared memory for C on its way."""
    a, b = small_rules.operands(p, s)
    return 2.0 * a.COUNT * b.COUNT * tile_passes(a, b, (s.m, s.n), small_rules.lanes(p, s), NVIDIA)


def loaded(shape: GpuShape, p: NvidiaPlan) -> int:
    """Bytes that all lanes load of a product's operands, those that several lanes share as often."""
    return small_rules.lanes(p, shape).EACH * (p.thread_m + p.thread_n) * shape.k * shape.itemsize


def traffic(shape: GpuShape, p: NvidiaPlan) -> dict[str, tuple[Term, ...]]:
    s, each = shape, shape.itemsize
    sizes = ("A", s.m*s.k*each), ("B", s.k*s.n*each)
    once = tuple(Term(x, size, s.batch, "once") for x, size in sizes)
    c = Term("C", s.m*s.n*each, s.batch, "written")
    staged = (Term("C exchanged", s.m*s.n*each, 2*s.batch, "written and read"),) if p.store == "smem" else ()
    return {"shared": (*(Term(f"{x} written", size, s.batch, "once") for x, size in sizes),
                       Term("A and B read", loaded(s, p), s.batch, "by the threads that share a product"), *staged),
            "L2": once, "memory": (*once, c)}
