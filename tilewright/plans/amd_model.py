"""What a plan for one of AMD's GPUs costs: arithmetic on the target's record.

None of it has been measured: there is no such GPU where it was written. How long a compute unit takes for a tile of k
follows the static count of cycles of the main loops (inspect/amd_cycles.py, docs/amd-code.md).
"""
from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from tilewright.plans.common import Cost, Term
from tilewright.plans.gpu import memory_traffic, with_passes
from tilewright.plans.gpu_shape import GpuShape, bits_of
from tilewright.targets.amd import AmdTarget

if TYPE_CHECKING:
    from tilewright.plans.amd import AmdPlan

LANES, PIECE = 64, 16           # lanes of a wave; bytes that a lane moves
L1_CLOCK = 64           # bytes per clock that a compute unit gets from beyond itself: CDNA3 white paper
WRITE_CLOCK = 128       # bytes per clock that LDS takes: 32 banks (targets.banks)
L2_CLOCK = 2048         # bytes per clock of one die's L2: 16 channels of 128 bytes. CDNA3 white paper
GROUP = 180             # clocks that a wave takes for a group of operands, from LDS to its products, at the least
MEETING = 140           # clocks that it takes at a barrier, to get there and to go on
GAP = 120               # clocks in each tile of k in which no wave of a SIMD has products, of groups of 256 clocks
START = 5e-6            # seconds that a launch takes before its first and after its last product
ADDING = 50e9           # bytes per second at which a workgroup alone adds up the parts of a tile: as a CTA of an H200


def cost(shape: GpuShape, plan: AmdPlan, target: AmdTarget) -> Cost:
    """The predicted cost of a legal plan."""
    product = _product(plan.after_passes(shape), plan, target)
    moved = [(one.read, one.size) for one in plan.passes(shape)]
    if not moved:
        return product
    seconds = sum(START + (read + written) / target.bandwidth for read, written in moved)
    return replace(product, seconds=product.seconds + seconds, parts=(*product.parts, ("passes", seconds)))


def _product(shape: GpuShape, plan: AmdPlan, target: AmdTarget) -> Cost:
    """Without passes."""
    p = plan
    resident = max(target.occupancy(p.threads, p.estimate(shape), p.lds(shape)), 1)
    tiles = p.tiles(shape.m, shape.n, shape.batch) * p.split_k
    steps = ceil(ceil(shape.k / p.cta_k) / p.split_k)                   # tiles of k for each tile of C
    # workgroups that share a compute unit take turns; in the last round there may be fewer than fit
    full, over = divmod(tiles, target.cus * resident)
    turns = full*resident + ceil(over / target.cus)
    moved = brought(shape, p)
    time = {"matrix": _matrix(shape, p, target, resident), "LDS": _lds(shape, p, target), "L1": moved / L1_CLOCK}
    bounds = {name: turns * steps * clocks / target.clock for name, clocks in time.items() if clocks}
    # of a workgroup alone on its compute unit, which has so many tiles of k on their way
    arrival = time["L1"] / target.clock
    latency = 2e-6 + steps * max((1.5e-7 + arrival) / (p.stages - 1), arrival)
    out = bits_of(shape.out) / 8
    least = shape.batch * ((shape.m*shape.bits[0] + shape.n*shape.bits[1]) * shape.k / 8 + shape.m*shape.n*out)
    parts = p.split_k * shape.batch * shape.m * shape.n * 4 * 2 if p.split_k > 1 else 0
    bounds |= {"L2": tiles * steps * moved / (L2_CLOCK * target.xcds * target.clock),
               "memory": (least + parts) / target.bandwidth, "latency": latency}
    # parts are written, and added up by the last workgroup, when products are done
    adding = parts / target.bandwidth + p.split_k * p.cta_m * p.cta_n * 4 / ADDING if p.split_k > 1 else 0.0
    seconds = max(bounds.values()) + START * (1 + (p.split_k > 1)) + adding
    return Cost(seconds, tuple(bounds.items()), rounds=turns / resident)


# ---- clocks of a compute unit for one tile of k of a workgroup, if `resident` of them fill one another's gaps

def _matrix(shape: GpuShape, p: AmdPlan, target: AmdTarget, resident: int) -> float:
    rate = operations(shape, p, target)
    busy = 2 * p.cta_m * p.cta_n * p.cta_k / rate
    own = 2 * p.warp_m * p.warp_n * p.cta_k / (rate / target.simds)     # of a wave on its SIMD
    groups = max(min(p.rows(shape)) * p.mfma // (PIECE * LANES), 1)
    alone = groups * max(own / groups, GROUP) + MEETING
    gap = GAP + _transposing(shape, p)
    if resident * p.threads > LANES * target.simds:                     # other waves have products to go on with
        gap *= min(256 * groups / own, 1)
    return max(busy + gap, alone / resident)


def _transposing(shape: GpuShape, p: AmdPlan) -> float:
    """Operands that are transposed in registers: an instruction for a word, of bytes two."""
    if p.copy == "lds" or shape.layout == "nt":
        return 0.0
    sides = zip((p.cta_m, p.cta_n), shape.bits, (shape.layout[0] == "t", shape.layout[1] == "n"), strict=True)
    return sum(p.cta_k * rows * bits / 32 * (1 + (bits == 8)) / LANES for rows, bits, transposed in sides if transposed)


def _lds(shape: GpuShape, p: AmdPlan, target: AmdTarget) -> float:
    a, b = p.rows(shape)
    read, written = p.threads // LANES * (p.warp_m*a + p.warp_n*b), p.cta_m*a + p.cta_n*b
    return read / target.lds_clock + written / WRITE_CLOCK


def brought(shape: GpuShape, p: AmdPlan) -> float:
    """Bytes of a workgroup's tile of k."""
    return p.cta_k * (p.cta_m*shape.bits[0] + p.cta_n*shape.bits[1]) / 8


def operations(shape: GpuShape, p: AmdPlan, target: AmdTarget) -> float:
    """Operations per clock of a compute unit."""
    rates = target.matrix_rates
    if p.algorithm == "xf32":
        return rates["xf32"]
    return min(rates.get(shape.a, 1), rates.get(shape.b, 1))            # 1: of plans that rules refuse


def peak(shape: GpuShape, plan: AmdPlan, target: AmdTarget) -> float:
    """Operations per second of all compute units, with the instructions of this plan."""
    return operations(plan.after_passes(shape), plan, target) * target.cus * target.clock


# ---- bytes

def bandwidths(plan: AmdPlan, target: AmdTarget) -> dict[str, float]:
    """Bytes per second that the levels of `traffic` give all compute units at most."""
    return {"LDS": target.lds_clock * target.cus * target.clock, "L2": L2_CLOCK * target.xcds * target.clock,
            "memory": target.bandwidth}


def traffic(shape: GpuShape, plan: AmdPlan, target: AmdTarget) -> dict[str, tuple[Term, ...]]:
    """Bytes that all workgroups move, by level, without scales; at the edges of C as if all tiles were whole."""
    return with_passes(plan, shape, _traffic(plan.after_passes(shape), plan))


def _traffic(s: GpuShape, p: AmdPlan) -> dict[str, tuple[Term, ...]]:
    """Without passes."""
    tiles, steps, waves = p.tiles(s.m, s.n, s.batch), ceil(s.k / p.cta_k), p.threads // LANES
    moved, every = tiles * steps, f"{tiles:,} tiles x {steps:,} steps along k"
    parts = f" for each of {p.split_k} parts"*(p.split_k > 1)
    a_ahead, b_ahead = ((moved + int(tiles * p.split_k * ahead), f"{every}, and {ahead:g} past the end{parts}")
                        for ahead in _ahead(s, p))
    a_written, b_written = (a_ahead, b_ahead) if p.copy == "lds" else 2*((moved, every),)
    (row_a, row_b), (a, b) = p.rows(s), (p.cta_k * bits // 8 for bits in s.bits)
    return {"LDS": (Term("A written", p.cta_m*row_a, *a_written), Term("B written", p.cta_n*row_b, *b_written),
                    Term("A read", p.warp_m*row_a, moved*waves, f"by {waves} waves"),
                    Term("B read", p.warp_n*row_b, moved*waves, f"by {waves} waves")),
            "L2": (Term("A", p.cta_m*a, *a_ahead), Term("B", p.cta_n*b, *b_ahead)),
            "memory": memory_traffic(s, p.split_k, tiles*p.cta_m*p.cta_n*s.itemsize)}


def _ahead(s: GpuShape, p: AmdPlan) -> tuple[float, float]:
    """Tiles of A and of B that are loaded after the last one and not used. Of the last tile ahead of three and more in
    LDS only half of the copies have been started then, A's first (kernels/amd/pipeline.py)."""
    if p.copy != "lds" or p.stages == 2:
        return p.stages - 1, p.stages - 1
    a, b = (count*row // (p.threads*PIECE) for count, row in zip((p.cta_m, p.cta_n), p.rows(s), strict=True))
    half = (a + b + 1) // 2                                             # of the copies of a thread
    return p.stages - 2 + min(a, half) / a, p.stages - 2 + max(half - a, 0) / b
