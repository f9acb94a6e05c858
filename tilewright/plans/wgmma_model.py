"""What a plan by wgmma (kernels/nvidia/wgmma_gemm.py) costs: CTAs that stay, and copies that multiply meanwhile."""
from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from tilewright.plans import epilogues, prologues, wgmma_residuals as residuals
from tilewright.plans.common import Cost, Term
from tilewright.plans.gemv_rules import LANES
from tilewright.plans.gpu import memory_traffic
from tilewright.plans.gpu_shape import LINE, SECTOR, bits_of
from tilewright.plans.nvidia_rates import ARRIVAL, DRAM, SCHEDULERS, SHARED_CLOCK, TMA_L2, operations
from tilewright.plans.wgmma_rules import APART

if TYPE_CHECKING:
    from tilewright.plans.gpu_shape import GpuShape
    from tilewright.plans.nvidia_plan import NvidiaPlan
    from tilewright.plans.wgmma_rules import Division
    from tilewright.targets.nvidia import GpuTarget

# By the target's rates of wgmma. Fitted by bench/fit_costs.py to plans of random shapes in bf16, f16, fp8 and i8 on an
# H200, of which a fifth was held back (bench/results/h200_plan_times*.jsonl.xz), but for SUSTAINED and those with a
# comment that says where else they are from.
STAYING = 9.35e-7       # seconds of a launch that are not its arithmetic
RATE = 1.14             # of these rates, which were measured while power lowered the clock, in short turns
SUSTAINED = 0.88        # of them that the power of a chip allows in the mean: bf16 760 TFLOP/s on an H200
SAVED = 0.236           # more, for what all CTAs of a cluster get at once, which saves power: of all that they get
BESIDE_POWER = 8.0      # the higher, the less power slows down what takes nearly as long without it; the same of L2
BESIDE_L2 = 6.34
BESIDE_MEMORY = 4.85
TMA_ARRIVAL = 425       # clocks of a bulk copy, and of one in a cluster more; bytes per clock of a stage's copies
CLUSTER_ARRIVAL = 170
RECEIVED = 55.0         # bytes per clock that copies bring to a multiprocessor, and where others get the same
RECEIVED_MULTICAST = 59.5
TMA_CLOCK = 33.0
HELD = 1.48             # stages that are not on their way: one is multiplied, and the next is there when it ends
RATE_PROMOTED = 1.31    # of the rates where warpgroups promote sums, each time in so many clocks; and in a cluster
PROMOTING_TOGETHER = 58.2
WAITED = 0.93
PROMOTING = 92.3        # clocks until products have ended whose sums a warpgroup alone promotes
STEP_CLOCKS = 15.2      # of each step of k beside: waits, and stages given back
L2_SHARED = 0.865       # the less of it, the more L2 brings to each multiprocessor where others ask for nothing
INSTRUCTION_ROWS = 64   # of A that an instruction multiplies; it reads all of the tile of B in shared memory
MEETING_CLUSTER = 1.38e-6   # seconds that CTAs of a cluster take to meet, at the beginning and at the end
BETWEEN_TILES = 693     # clocks in which the last products of a tile end, and the first of the next begin
DIVIDING = 3.46e-6      # seconds until a CTA knows that it is the last one of a tile
UNEVEN = 0.111          # of a part's time, by which the last one of a tile ends later
PARTING_CLOCK = 22.6    # bytes per clock at which a CTA writes its part of sums, and at which the last one of a tile
ADDING_CLOCK = 54.7      # adds all of them up
EXCHANGING = 17.2       # bytes of sums per clock that CTAs of a cluster give each other
DECODED = 2.2           # clocks for an instruction that decodes, of warps that wait for products in between
DECODING = 2.5          # the higher, the more decoding and multiplying overlap
DECODING_STEP = 280.0   # clocks of each step of k beside
# Seconds that CTAs without clusters gain in CUDA graphs, where they read what they decode before the last kernel has
# ended: half of what layers of 14336 x 4096 took less on an H200 (64 to 256 rows by i4 and i8: 1.9 to 2.2e-6).
EARLY = 1e-6
STORING = {"tma": 13.6, "lanes": 48.4}  # clocks of a warp for an element of C of each of its lanes


def cost(shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> Cost:
    """The cost of a wgmma plan: persistent CTAs take tiles in rounds. Copies of the next tile go on while one is
    stored, but nothing is multiplied then, unless warpgroups take turns; what the last round stores overlaps with
    nothing."""
    d, ctas = p.division(shape, target), p.ctas
    tiles, clusters, steps = d.tiles, d.clusters, d.steps
    parts = d.parts()
    rounds = ceil(d.whole / clusters) + (d.share / steps if parts else 0.0)
    shared = (p.tile_bytes(shape) + sum(_read(shape, p))) / SHARED_CLOCK
    (bits_a, bits_b), pitches = shape.bits, (shape.pitch_a, shape.pitch_b)
    lines = [extent*bits * (2 - pitch/LINE) for extent, bits, pitch in zip(     # rows that begin within a line
        (p.cta_m, p.cta_n), shape.bits, pitches)]                         # are parts of two
    brought = (lines[0] / p.cluster_n + lines[1] / p.cluster_m) * p.cta_k / 8          # by each CTA
    together = p.promote > 0 and not p.split and p.warpgroups > 1 and not p.pingpong
    rate = (RATE_PROMOTED if together else RATE) * operations(shape, p, target)
    rate *= WAITED if together and p.ctas > p.cluster_k else 1
    products = 2 * p.cta_m*p.cta_n*p.cta_k * p.products / rate
    sustained = SUSTAINED * (1 + SAVED * (1 - brought / (sum(lines) * p.cta_k / 8))) * operations(shape, p, target)
    power = 2 * shape.batch*shape.m*shape.n*shape.k * p.products / (sustained * target.sms * target.clock)
    arrival = TMA_ARRIVAL + CLUSTER_ARRIVAL*(ctas > 1) + brought / TMA_CLOCK
    received = sum(extent*bits * (1 + SECTOR/LINE*(pitch < SECTOR)) for extent, bits, pitch in zip(
        (p.cta_m, p.cta_n), shape.bits, pitches)) * p.cta_k / 8           # of these lines what was asked for
    received /= RECEIVED_MULTICAST if p.ctas > p.cluster_k else RECEIVED
    step = max(products, shared, received, arrival / (p.stages - HELD)) + STEP_CLOCKS
    step = _decoded(shape, p, step) if shape.prologues else step
    if p.alternates(shape) and not shape.prologues:     # of one step of so many nothing hides it
        promoted = p.cta_m*p.cta_n / LANES / SCHEDULERS
        step = max(step, promoted) + (promoted + PROMOTING) / APART
    elif p.promote and (p.warpgroups == 1 or p.pingpong):       # nothing else is multiplied meanwhile
        step += (p.cta_m*p.cta_n / LANES / SCHEDULERS + PROMOTING) * p.cta_k / p.promote
    elif together:
        step += PROMOTING_TOGETHER * p.parts * p.cta_k / p.promote
    storing = STORING[p.store if p.vectors[2] < 4 else "tma"] + epilogues.slots(shape.epilogue)
    stored = p.cta_m*p.cta_n / p.cluster_k / LANES / SCHEDULERS * storing
    stored += 4*p.cta_m*p.cta_n / EXCHANGING * (p.cluster_k > 1)
    tile = steps*step + BETWEEN_TILES + stored
    if p.pingpong:
        work = rounds * max(steps*step + BETWEEN_TILES, tile / p.warpgroups) + BETWEEN_TILES + stored
    else:
        work = rounds * tile
    adding = 0.0
    if max(parts, default=1) > 1:                   # each part is written, and the last one reads all of them
        fragments = 1 + (d.apart % d.share > 0)     # of a share
        adding = (fragments - rounds % 1)*(BETWEEN_TILES + stored)
        adding += 4*p.cta_m*p.cta_n * (fragments / PARTING_CLOCK + max(parts) / ADDING_CLOCK) + DIVIDING*target.clock
        adding += UNEVEN * d.share*step
    work = (work + adding + ARRIVAL) / target.clock
    busy = min(clusters*ctas, target.sms)           # where few multiprocessors ask, each gets more
    through_l2 = tiles*ctas * steps * brought / busy / TMA_L2 / target.clock * (busy / target.sms)**L2_SHARED
    last = (d.over if parts else clusters)*ctas * p.cta_m*p.cta_n * bits_of(shape.out) / 8 / (DRAM*target.bandwidth)
    memory = shape.bytes / (DRAM*target.bandwidth)
    once = shape.m <= p.cta_m*p.cluster_m or shape.n <= p.cta_n*p.cluster_n            # are large tiles read
    if not once and shape.batch * shape.k * (shape.m*bits_a + shape.n*bits_b) // 8 > target.l2:     # nothing stays
        memory = max(memory, ceil(rounds) * round_bytes(shape, p, target, p.group_m) / (DRAM*target.bandwidth))
    named = (("multiply-adds", work), ("power", power), ("from L2", through_l2), ("memory", memory))
    alone = STAYING + last + (MEETING_CLUSTER if ctas > 1 else -EARLY * (p.swap and len(shape.prologues) and not parts))
    longest = work                                  # of what goes on at once, and more the nearer others come to it
    for other, apart in ((through_l2, BESIDE_L2), (power, BESIDE_POWER), (memory, BESIDE_MEMORY)):
        longest = (longest**apart + other**apart) ** (1/apart)
    return _corrected(shape, p, d, Cost(alone + longest, named, rounds=rounds), busy, step)


def _corrected(shape: GpuShape, p: NvidiaPlan, d: Division, c: Cost, busy: int, step: float) -> Cost:
    """The cost with what times of measured plans say of it, where such plans have been measured. `busy` multiprocessors
    have a step of k in `step` clocks."""
    if not residuals.measured(shape, p):
        return c
    parts, high, wide, rounds = d.parts(), ceil(shape.m / p.cta_m), ceil(shape.n / p.cta_n), c.rounds or 0.0
    work, power, through_l2, memory = (seconds / c.seconds for _, seconds in c.parts)
    values = (p.cta_m, p.cta_n, p.cta_k, p.warpgroups, p.pingpong, p.swap, shape.bits[0], p.ctas, d.clusters, busy,
              work, through_l2, power, memory, step, rounds, rounds % 1, d.tiles, d.share, max(parts, default=1),
              (1 + (d.apart % d.share > 0))*bool(parts), shape.m*shape.n / (high*p.cta_m * wide*p.cta_n), high, wide,
              shape.pitch_a, shape.pitch_b, shape.layout[0] == "n", shape.layout[1] == "t")
    factor = residuals.factor(values)
    return Cost(factor*c.seconds, tuple([(what, factor*part) for what, part in c.parts]), rounds=rounds, values=values)


def _decoded(shape: GpuShape, p: NvidiaPlan, step: float) -> float:
    """Clocks of a step of k that takes so many where its rows of instructions are not decoded, while others are
    multiplied."""
    role, rows = shape.prologues, p.cta_n if p.swap else p.cta_m
    instructions = prologues.decoding(shape.prologue_of(role), role, p.promote)
    decoding = DECODING_STEP + rows*p.cta_k / LANES / SCHEDULERS * DECODED*instructions
    return float((step**DECODING + decoding**DECODING) ** (1/DECODING))


def round_bytes(shape: GpuShape, p: NvidiaPlan, target: GpuTarget, group_m: int) -> int:
    """Bytes of A and B that CTAs that run at once read, if clusters' tiles are taken in groups of so many rows."""
    rows, columns, clusters = p.cta_m*p.cluster_m, p.cta_n*p.cluster_n, p.clusters(shape, target)[1]
    tiles_m, tiles_n = ceil(shape.m / rows), ceil(shape.n / columns)
    wide = min(ceil(clusters / min(group_m, tiles_m)), tiles_n)
    high = min(ceil(clusters / wide), tiles_m)
    return (high*rows*shape.bits[0] + wide*columns*shape.bits[1]) * shape.k // 8


def _read(shape: GpuShape, p: NvidiaPlan) -> tuple[int, int]:
    """Bytes of a tile of A and of B in shared memory that all instructions of a step read."""
    bits_a, bits_b = (p.products*bits_of(x) for x in (shape.a, shape.b))
    of_a, of_b = (p.cta_n // INSTRUCTION_ROWS, 1) if p.swap else (p.parts, p.cta_m // INSTRUCTION_ROWS)
    if shape.prologues:                             # lanes read these
        bits_a, bits_b = shape.bits
    return of_a * p.cta_m*p.cta_k*bits_a // 8, of_b * p.cta_n*p.cta_k*bits_b // 8


def traffic(shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> dict[str, tuple[Term, ...]]:
    """The traffic of a wgmma plan; a tile is brought from L2 once for all CTAs of a cluster that have it, and what is
    beyond a matrix is not. Sums go through shared memory where a copy stores them, and where CTAs of a cluster exchange
    them."""
    s, d, ctas = shape, p.division(shape, target), p.cluster_m*p.cluster_n
    tiles, steps, parts = d.tiles*ctas, ceil(s.k / p.cta_k), sum(x for x in d.parts() if x > 1)*ctas
    every = tiles*steps, f"{tiles:,} tiles x {steps:,} steps along k"
    (bits_a, bits_b), (read_a, read_b) = s.bits, _read(s, p)
    high, wide = ceil(s.m / (p.cta_m*p.cluster_m)), ceil(s.n / (p.cta_n*p.cluster_n))
    rows, columns = (f"for each of {count:,} {what} of tiles"*(count > 1) or "once"
                     for count, what in ((wide, "columns"), (high, "rows")))
    shared = [Term("A written", p.cta_m*p.cta_k*bits_a // 8, *every),
              Term("B written", p.cta_n*p.cta_k*bits_b // 8, *every),
              Term("A read", read_a, *every), Term("B read", read_b, *every)]
    if p.store == "tma":
        shared.append(Term("C", p.cta_m*p.cta_n*bits_of(s.out) // 8, 2*tiles, f"{tiles:,} tiles, written and read"))
    if p.cluster_k > 1:
        shared.append(Term("sums", 4*p.cta_m*p.cta_n, 2*tiles*p.cluster_k, f"of {p.cluster_k} CTAs for {tiles:,} tiles,"
                           " written and read"))
    return {"shared": tuple(shared),
            "L2": (Term("A", s.m*s.k*bits_a // 8, s.batch*wide, rows),
                   Term("B", s.n*s.k*bits_b // 8, s.batch*high, columns)),
            "memory": (*memory_traffic(shape, 1, 0), *[Term("parts", 4*p.cta_m*p.cta_n, 2*parts, "of tiles, written, "
                                                            "and read by the last")][:parts])}
