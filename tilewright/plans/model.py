"""What a CPU plan costs, by counting: multiply-adds issued, and bytes that cross each level of the memory.

Pure arithmetic on a Shape, a CpuPlan and a target. `tilewright explain` prints it beside what was measured; the planner
takes the plan with the least `seconds`.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tilewright.plans.cpu import CpuPlan, Shape
from tilewright.targets.base import CpuTarget


@dataclass(frozen=True)
class Ceilings:
    """What one core can do at most: multiply-add vectors per second, and bytes per second from each level.

    The defaults are a 3.5 GHz core that issues one widest multiply-add a cycle; only their ratios matter for a choice.
    """
    vectors: float = 3.5e9
    l2: float = 100e9
    l3: float = 35e9
    memory: float = 20e9


@dataclass(frozen=True)
class Cost:
    """Totals over all threads, but `seconds` of the slowest one."""
    vectors: int            # multiply-add instructions, with the lanes that edges leave empty
    l1: int                 # bytes that registers take from L1: what the micro-kernels load
    l2: int                 # bytes that come into L1 from beyond it
    l3: int                 # bytes that come into L2
    memory: int             # bytes that come from memory and go back
    seconds: float

    @property
    def bytes_by_level(self) -> dict[str, int]:
        return {"L1": self.l1, "L2": self.l2, "L3": self.l3, "memory": self.memory}


CALL = 60                   # vectors' worth of time that a micro-kernel call costs beside its multiply-adds
HIDDEN = 0.75               # of the traffic beyond L2 that prefetching hides behind arithmetic, in packed plans


def cost(shape: Shape, plan: CpuPlan, target: CpuTarget, ceilings: Ceilings | None = None) -> Cost:
    """The predicted cost of a legal plan."""
    ceilings = ceilings or Ceilings()
    if plan.swap:
        shape = shape.swapped
    return {"packed": _packed, "in_place": _in_place, "dots": _dots}[plan.algorithm](shape, plan, target, ceilings)


def _packed(shape: Shape, plan: CpuPlan, target: CpuTarget, ceilings: Ceilings) -> Cost:
    m, n, k, s = shape.m, shape.n, shape.k, shape.itemsize
    lanes = target.lanes(s)
    row_panels, col_panels = ceil(m / plan.mr), ceil(n / plan.nr)
    k_blocks = ceil(k / plan.kc)
    kc = ceil(k / k_blocks)
    share_m, share_n = ceil(row_panels / plan.ic_ways), ceil(col_panels / (plan.jc_ways * plan.jr_ways))
    m_blocks = plan.ic_ways * ceil(share_m * plan.mr / plan.mc)
    n_blocks = plan.jc_ways * ceil(ceil(col_panels / plan.jc_ways) * plan.nr / plan.nc)
    vectors = m * ceil(n / lanes) * k
    tiles = row_panels * col_panels * k_blocks

    a, b, c = m*k*s, k*n*s, m*n*s
    b_panel_stays = kc*plan.nr*s <= target.l1d // 2
    l1 = (a * ceil(n / lanes)) + b * row_panels + 2*c*k_blocks              # an element of A is loaded per vector of B
    l2 = a * col_panels + (b * m_blocks if b_panel_stays else b * row_panels) + 2*c*k_blocks
    packing = 2*a * n_blocks + 2*b
    l3 = a * n_blocks + b * m_blocks + 2*c*k_blocks + packing
    fits = (a + b + c) <= target.l3 // 2
    memory = a * (1 if fits else n_blocks) + b + c * (1 if fits else 2*k_blocks - 1)

    threads = plan.threads
    busiest = (min(share_m * plan.mr, m) * min(share_n * plan.nr, n)) / (m * n)      # its share of C
    work = (vectors + CALL*tiles) * busiest / ceilings.vectors
    traffic = (packing + l3) / threads / ceilings.l3 + (0 if fits else memory / ceilings.memory / threads)
    spill = max(0.0, plan.mc*plan.kc*s / target.l2 - 0.7) * work            # a block of A that L2 has no room for
    barriers = 2e-6 * k_blocks * n_blocks * (threads > 1)
    return Cost(vectors, l1, l2, l3, memory, work + (1 - HIDDEN)*traffic + spill + barriers)


def _in_place(shape: Shape, plan: CpuPlan, target: CpuTarget, ceilings: Ceilings) -> Cost:
    m, n, k, s = shape.m, shape.n, shape.k, shape.itemsize
    lanes = target.lanes(s)
    row_panels, col_panels = ceil(m / plan.mr), ceil(n / plan.nr)
    kc = plan.kc or k
    k_blocks = ceil(k / kc)
    vectors = m * ceil(n / lanes) * k
    a, b, c = m*k*s, k*n*s, m*n*s
    columns_outside = row_panels < col_panels
    l1 = a * ceil(n / lanes) + b * row_panels + 2*c*k_blocks
    l2 = (a * col_panels + b if columns_outside else a + b * row_panels) + 2*c*k_blocks
    inner = (m*kc if columns_outside else n*kc) * s                         # re-read for each panel of the outer loop
    again = 1 if inner <= target.l2 // 2 else min(row_panels, col_panels)
    l3 = (a if columns_outside else b) * again + (b if columns_outside else a) + (2*c*k_blocks if c > target.l2 else c)
    fits = a + b + c <= target.l3 // 2
    memory = a + b + (c if fits else 2*c)
    threads = plan.threads
    busiest = min(ceil(row_panels/plan.ic_ways)*plan.mr, m) * min(ceil(col_panels/plan.jc_ways)*plan.nr, n) / (m*n)
    work = (vectors + CALL * row_panels * col_panels * k_blocks) * busiest / ceilings.vectors
    traffic = l3 / threads / ceilings.l3 + (0 if fits else memory / ceilings.memory / threads)
    strided = 0.0 if b <= target.l2 * 0.3 or k_blocks > 1 else 0.05 * work  # a column of panels is a page per row
    return Cost(vectors, l1, l2, l3, memory, max(work, traffic) + 0.2*min(work, traffic) + strided + 1e-6*(threads > 1))


def _dots(shape: Shape, plan: CpuPlan, target: CpuTarget, ceilings: Ceilings) -> Cost:
    m, n, k, s = shape.m, shape.n, shape.k, shape.itemsize
    vectors = m * n * ceil(k / target.lanes(s))
    a, b, c = m*k*s, k*n*s, m*n*s
    l1 = a + b * ceil(m / plan.mr) + 2*c
    fits = a + b + c <= target.l3 // 2
    memory = a + b + c
    work = (vectors + CALL * ceil(m / plan.mr)) / plan.threads / ceilings.vectors
    traffic = memory / (ceilings.l3 if fits else ceilings.memory) / plan.threads
    return Cost(vectors, l1, a + b * ceil(m / plan.mr), a + b + c, memory, max(work, traffic) + 1e-6*(plan.threads > 1))
