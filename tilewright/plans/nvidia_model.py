"""What a plan for one of NVIDIA's GPUs costs: arithmetic on the target's record, with rates that were measured."""
from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from tilewright.plans import epilogues, gemv_model, passes, prologues, semirings, small_rules, wgmma_model
from tilewright.plans.common import Cost, Term, overlapped
from tilewright.plans.gemv_rules import LANES
from tilewright.plans.gpu import memory_traffic, with_passes
from tilewright.plans.gpu_shape import WIDEST, bits_of
from tilewright.plans.nvidia_rates import ARRIVAL, DRAM, L2, SCHEDULERS, SHARED_CLOCK, WIDE_L2, operations

if TYPE_CHECKING:
    from tilewright.plans.gpu_shape import GpuShape
    from tilewright.plans.nvidia import NvidiaPlan
    from tilewright.targets.nvidia import GpuTarget

LANE_C = 4              # elements of a row of C that a lane stores at once at most
LANES_M = 8             # rows of C of which the lanes of a warp have sums of an instruction
EXCHANGED = 4           # sums that a lane reads at once, when lanes exchange them
MOST_PARTS = 16
PART = 0.008            # of a tile's time that another part of it costs, but of f64: writing and adding up a tile of C
# Multiply-adds issued of those that could be, for a thread's tile with 8 warps or more on a multiprocessor. Loads of
# fragments and register conflicts take the rest. These and the next were fitted by bench/fit_costs.py to random shapes
# in f32 on an H200, to turns of 10 ms, in which power lowers the clock (h200_plan_times_long_turns.jsonl.xz). Of the
# best measured plan the pick has 0.97.
ISSUE = {(8, 16): 0.958, (16, 8): 0.87, (12, 8): 0.911, (8, 8): 0.931, (8, 4): 0.57, (4, 8): 0.57, (4, 4): 0.43,
         (4, 2): 0.58}
ISSUE_ASYNC = {(8, 8): 0.67, (8, 4): 0.731, (4, 4): 0.74}        # where asynchronous copies make a difference
FEW_WARPS = {"async": 0.52, "registers": 0.46}  # of it, the fewer there are, down to nothing: they wait for loads
AS_STORED = 0.91        # of it, where vectors along k are read from shared memory
SLICE, LEAST_STEPS = 1.4e-7, 10     # seconds of another slice, whose sums are added up; steps of k between barriers
MEETING_ALONE = 42     # clocks of a barrier in a CTA that is alone: of its first warp, none of the eighth
MOST_WARPS = {"async": 1.24, "registers": 1.04}         # what more than 8 warps gain at most
COPY = 5.7              # slots for multiply-adds that a copy takes
TRANSPOSED = 8.5        # and one of an element that is stored alone, since its operand is transposed
SINGLE = 13             # a whole copy of 4 or 8 bytes, if it is asynchronous
TRANSPOSED_ASYNC = 13   # one of 4 bytes where others have 16. These, and the next, by bench/results/regret_h200.jsonl
ARRIVING, STARTED = 800, 10     # clocks until a tile of k has come, and for each copy of it that a thread starts
ALONE = 0.92            # of the rate where single elements pass through registers, and no second CTA works meanwhile
# Of the peak of matrix instructions, f64, by the tile of a warp; other tiles are not measured. These and the next were
# fitted to turns of 6 ms on an H200 (h200_plan_times_f64.jsonl.xz): of the best plan the pick has 0.975, least 0.90, on
# shapes held back; its time is off by 2.4 %, where cuBLAS' own of two turns differ by 8 %, as the clock does.
MATRIX = {(32, 64): 0.952, (64, 32): 0.843, (32, 32): 0.912, (48, 48): 0.87, (48, 32): 0.847, (32, 48): 0.894,
          (16, 16): 0.9, (32, 16): 0.85, (16, 32): 0.868, (48, 16): 0.839, (16, 48): 0.82}
FEW_DMMA = 0.39         # as FEW_WARPS
DMMA_MEETING = 18.5     # clocks of a tile of k besides
DMMA_ARRIVAL = 1.09e-6  # seconds of its copy from memory
DRAINING = 1.11         # of the time in which memory takes C, if no other CTA multiplies meanwhile
MATRIX_OTHER = 0.85
# Seconds of a launch that are not its arithmetic; tiles of k that pass until the first one has come to a CTA, as each
# part of a tile's k waits for it; clocks of a warp to store an element of C of each of its lanes, one by one. What is
# said of simt and mma was fitted to every other case of regret_h200.jsonl and of 236 others (2026-11-23); SINGLE, and
# ISSUE of 4x2 and 4x4, were then chosen by all of them. What is said of mma was fitted again, also to short products
# (h200_plan_times*.jsonl.xz, 2026-11-29).
START = {"simt": 2.9e-6, "mma": 1.67e-6, "dmma": 1.65e-6}
FIRST = {"simt": 0.97, "mma": 0.391, "dmma": 0.723}
STORING = {"simt": 34, "mma": 80.5, "dmma": 10}
# And to write parts of a tile and learn that all are there.
SPLIT, SPLIT_MMA = 1.6e-6, 1.1e-6
SHARED_LATENCY = 30     # clocks of a load from shared memory: a warp's step of k takes no less
PASS, PASS_RATE = 2.5e-6, 0.75                  # seconds of a pass (passes.py); of the memory's rate, an estimate
# Bytes per second at which the last CTA, alone, adds them up: of a warp that holds sums, and of all its warps.
ADDING_WARP, ADDING = 26e9, 103e9

# Of kernels/nvidia/mma_gemm.py, by the target's rates of matrix instructions; on an H200 with few rows alone
# (2026-11-23).
STEP = 32               # bytes along k that an instruction multiplies
CHAIN = 13.5              # clocks of a step of a warp at the least: its loads from shared memory, and its instructions
MEETING = 443           # clocks that a CTA loses at the barrier of a tile of k
COPY_CLOCK = 10.4       # bytes per clock of the copies of a tile of k
# Of prologues in copies through registers, estimates: instructions of an element beside its own (rounding, a part of
# its operands' loads), and of their clocks those in which nothing else of the CTA goes on.
PREPARING, PREPARED_ALONE = 1.5, 0.5


def exchanges(warp_n: int, vector: int) -> bool:
    """Lanes of mma can exchange a warp's sums, to store `vector` side by side: rows of C are whole turns of the lanes,
    or turns are whole rows, no more than the lanes have at once."""
    wide = LANES * min(vector, EXCHANGED)
    return warp_n % wide == 0 or (wide % warp_n == 0 and wide <= LANES_M*warp_n)


def cost(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> Cost:
    """The predicted cost of a legal plan."""
    if plan.copied == plan.terms == plan.decoded == "none":
        return _product(shape, plan, target)
    product, moved = _product(plan.after_passes(shape), plan, target), passes.moved(shape, plan.copied, plan.split)
    if not moved:
        return product
    seconds = sum(PASS + (read + written) / (PASS_RATE*target.bandwidth) for read, written in moved)
    return replace(product, seconds=product.seconds + seconds, parts=(*product.parts, ("passes", seconds)))


def _product(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> Cost:
    """Without passes."""
    if plan.algorithm == "wgmma":
        return wgmma_model.cost(shape, plan, target)
    if plan.algorithm == "gemv":
        return gemv_model.cost(shape, plan, target)
    if plan.algorithm == "small":
        return small_rules.cost(shape, plan, target)
    m, n, k, s = shape.m, shape.n, shape.k, shape.itemsize
    tiles, resident = plan.tiles(m, n, shape.batch), max(plan.resident(shape, target), 1)
    slots, together = target.sms * resident, min(resident, ceil(tiles*plan.split_k / target.sms))
    area, own = plan.cta_m*plan.cta_n, plan.threads // LANES
    rate: float
    matrix = plan.algorithm == "mma"
    if matrix:
        rate = _matrix_rate(shape, plan, target, together)
    elif plan.algorithm == "dmma":
        rate = target.matrix_f64 * MATRIX.get((plan.warp_m, plan.warp_n), MATRIX_OTHER)    # which double it
        rate /= 1 + DMMA_MEETING*rate / (plan.cta_m*plan.cta_n*plan.cta_k)
        if plan.vector == 1:                                    # copies take the smaller a part the larger the tile is
            rate /= 1 + min(0.6 * 32*(plan.cta_m + plan.cta_n) / (plan.cta_m*plan.cta_n) - 0.2, 0.7)
    else:
        issue = {**ISSUE, **(ISSUE_ASYNC if plan.copy == "async" else {})}
        fma = target.fma_f32 if s == 4 else target.fma_f32 / 2 if shape.sums == "i64" else target.fma_f64
        rate = fma * issue.get((plan.thread_m, plan.thread_n), 0.4)
        if s == 8:
            rate = min(rate, fma * 0.9)
        rate /= 1 + _copies(shape, plan) / (plan.thread_m*plan.thread_n * plan.cta_k // plan.slices)
        if plan.vector == 1 and plan.copy == "registers" and resident == 1:
            rate *= ALONE
        if plan.as_stored:
            rate *= AS_STORED
        if shape.semiring:
            rate = 1 / (1/rate - 1/fma + semirings.clocks(shape.semiring, shape.sums, target))
    warps = own * together
    busy = 1.0 if matrix else _busy(plan, warps)
    rate *= busy
    if plan.algorithm == "simt":
        sums = plan.thread_m * plan.thread_n
        rate *= min(1.0, 0.7 + 0.3 * plan.cta_k / plan.slices / LEAST_STEPS)
        rate = min(rate, warps * LANES * sums / max(sums, SHARED_LATENCY))
    depth, (undivided, parts) = ceil(k / plan.cta_k), plan.tail_split(shape, target) if plan.tail else (0, plan.split_k)
    # clocks of a tile of C, and of a part of it, that has the multiprocessor; each part has its own first tile of k
    alone, part = [area * (min(steps*plan.cta_k, k) + FIRST[plan.algorithm]*plan.cta_k) / rate
                   for steps in (depth, ceil(depth / parts))]
    shorter = part / alone
    if undivided and parts > 1:
        rounds = undivided/slots + ceil((tiles - undivided)*parts / slots)*shorter
    else:
        full, rest = divmod(tiles*parts, slots)
        last = ceil(rest / target.sms)                          # CTAs share multiprocessors as evenly as can be,
        slower = 1.0 if matrix or not last else busy / _busy(plan, own*last)
        rounds = full + min(last / resident * slower, 1.0)      # and the last are slower if they are fewer
        if full and rest and plan.slices == 1 and plan.algorithm != "dmma":
            rounds = full + 1
        rounds *= shorter
    ctas = undivided + (tiles - undivided)*parts
    stored = area / (LANES*SCHEDULERS) * STORING[plan.algorithm] / min(plan.vectors[2], LANE_C)
    work = (rounds * resident * alone + ceil(ctas / target.sms) * stored) / target.clock
    turns = rounds if undivided and parts > 1 else ceil(ctas / slots) * ceil(depth / parts) / depth
    if plan.algorithm == "simt":                    # a CTA that nothing fills in for waits at barriers and for copies
        started = (plan.cta_m + plan.cta_n) * plan.cta_k / plan.threads / plan.vector * (plan.copy == "async")
        step = area*plan.cta_k / rate * busy / _busy(plan, own)
        step += MEETING_ALONE*max(1 - own/8, 0.0) + STARTED*started
        work = max(work, turns * depth * max(step, ARRIVING / max(plan.stages - 1, 1)) / target.clock)
    if plan.algorithm == "dmma":
        work = max(work, turns * k / plan.cta_k * DMMA_ARRIVAL / (plan.stages - 1))
        work += DRAINING * m*n*s*shape.batch / (DRAM*target.bandwidth) / resident
    bits_a, bits_b = shape.bits
    moved = tiles * (plan.cta_m*bits_a + plan.cta_n*bits_b) * k // 8
    wide = not matrix and plan.copy == "async" and plan.vector*s == WIDEST
    l2 = (WIDE_L2 if wide else L2) * target.clock
    least = shape.bytes / (DRAM*target.bandwidth)
    tile = area * s * semirings.fields(shape.semiring)
    split = SPLIT_MMA if matrix else SPLIT
    adding = min(ADDING_WARP * (plan.threads // LANES // plan.slices), ADDING)
    added = split + parts * tile / adding if parts > 1 else 0.0
    if undivided and parts > 1 and plan.algorithm != "dmma":
        added = max(added, split + PART*parts * resident*alone / target.clock)
    if parts > 1:                                               # before the last ones, on all multiprocessors at once
        added += 2 * parts*(tiles - undivided) * tile / (l2 * target.sms)
    finishing = epilogues.slots(shape.epilogue) * area * rounds*resident
    added += finishing / (LANES*SCHEDULERS*target.clock)
    return overlapped(START[plan.algorithm] + added + SLICE*(plan.slices - 1),
                      {"multiply-adds": work, "from L2": moved / min(ctas, target.sms) / l2, "memory": least}, rounds)


def _busy(plan: NvidiaPlan, warps: int) -> float:
    """The share of the rate that 8 warps on a multiprocessor reach: few wait for their loads."""
    few = FEW_DMMA if plan.algorithm == "dmma" else FEW_WARPS[plan.copy]
    return min(MOST_WARPS[plan.copy] if plan.algorithm == "simt" else 1.0, few + (1 - few)*warps/8)


def _matrix_rate(shape: GpuShape, p: NvidiaPlan, target: GpuTarget, resident: int) -> float:
    """Multiply-adds per clock of a multiprocessor with so many CTAs, by how long they take for a tile of k each."""
    rate, warps, brought = operations(shape, p, target), p.threads // LANES, p.tile_bytes(shape)
    products = 2 * p.cta_m*p.cta_n*p.cta_k * p.products / rate
    steps = p.cta_k * bits_of(shape.a) // 8 // STEP
    read = (p.warp_m*shape.tile_bits[0] + p.warp_n*shape.tile_bits[1]) * p.cta_k // 8 * warps
    through, written = brought // WIDEST, brought / SHARED_CLOCK        # copies of a tile; clocks of shared memory
    if p.copy == "registers":                   # a load and a store each: two clocks for a warp, however few its bytes
        through = sum(x // vector for x, vector in zip((p.cta_m, p.cta_n), p.vectors)) * p.cta_k
        written = max(written, 4*through / LANES)
    issued = through/LANES * COPY / SCHEDULERS
    if shape.prologues:                         # evaluated once for each tile of C that an operand's element is in
        prepared = _preparing(shape, p) / LANES / SCHEDULERS
        issued, alone_of = issued + prepared, PREPARED_ALONE*prepared
    else:
        alone_of = 0.0
    busy = products, read/SHARED_CLOCK + written, issued
    # clocks of a step of a warp alone
    own = 2 * p.warp_m*p.warp_n*p.cta_k * p.products / steps / (rate / SCHEDULERS)
    alone = max(steps * max(own, CHAIN) + MEETING, (ARRIVAL + brought / COPY_CLOCK) / (p.stages - 1)) + alone_of
    clocks = max(max(busy) + 0.1*(sum(busy) - max(busy)), alone / resident)
    return p.cta_m*p.cta_n*p.cta_k / clocks


def _preparing(shape: GpuShape, p: NvidiaPlan) -> float:
    """Instructions of a thread that a CTA's prologues take for a tile of k."""
    return sum(extent * p.cta_k * (prologues.instructions(shape.prologue_of(role)) + PREPARING)
               for role, extent in (("a", p.cta_m), ("b", p.cta_n)) if role in shape.prologues)


def _copies(shape: GpuShape, plan: NvidiaPlan) -> float:
    """Slots that a thread's copies of a tile of A and one of B take."""
    slots, transposed, side_by_side = 0.0, float(TRANSPOSED), COPY / plan.vector
    if plan.copy == "async":
        side_by_side = SINGLE / plan.vector if plan.vector <= 2 else side_by_side
        transposed = TRANSPOSED_ASYNC if plan.vector > 1 else SINGLE
    for extent, along_k in ((plan.cta_m, shape.layout[0] == "n"), (plan.cta_n, shape.layout[1] == "t")):
        elements = extent * plan.cta_k / plan.threads
        alone = along_k and not (plan.as_stored and plan.vector > 1)
        slots += elements * (transposed if alone else side_by_side)
    return slots + _preparing(shape, plan) / plan.threads if shape.prologues else slots


def traffic(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> dict[str, tuple[Term, ...]]:
    """Bytes that all CTAs move, by level; at the edges of C as if all tiles were whole. What threads of simt read from
    shared memory counts for each of them, though several read the same elements at once."""
    return with_passes(plan, shape, _traffic(plan.after_passes(shape), plan, target))


def _traffic(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> dict[str, tuple[Term, ...]]:
    """Without passes."""
    s, p, size = shape, plan, shape.itemsize
    tiles, steps = p.tiles(s.m, s.n, s.batch), ceil(s.k / p.cta_k)
    undivided, divided = p.tail_split(s, target) if p.tail else (0, p.split_k)
    over = (tiles - undivided)*(divided > 1)                            # tiles that are added up from parts
    tile = p.cta_m*p.cta_n * size
    once = memory_traffic(s, divided, tiles*tile) if not p.tail or divided == 1 else (
        *memory_traffic(s, 1, 0), Term("parts", over*tile, 2*divided,
                                           f"{divided} of {over} tiles, written, and read by the last"))
    if p.algorithm == "wgmma":
        return wgmma_model.traffic(s, p, target)
    if p.algorithm == "small":
        return small_rules.traffic(shape, p)
    if p.algorithm == "gemv":
        vectors = gemv_model.vectors_read(s, p, tiles)
        return {"L2": tuple(vectors if t.what == vectors.what else t for t in once[:2]), "memory": once}
    every = tiles*steps, f"{tiles:,} tiles x {steps:,} steps along k"
    extents, warps = (("A", p.cta_m, p.warp_m, p.thread_m), ("B", p.cta_n, p.warp_n, p.thread_n)), p.threads // LANES
    brought = [extent*p.cta_k*bits // 8 for (_, extent, *_), bits in zip(extents, shape.tile_bits)]     # of a tile
    written = [Term(f"{x} written", tile, *every) for (x, *_), tile in zip(extents, brought)]
    # fragments of one step of k, 4 for dmma and 32 bytes for mma, are read ahead of those that are multiplied
    if p.algorithm == "simt":
        reads = tiles*(steps*p.cta_k // p.slices + divided)
        read = [Term(f"{x} read", p.threads*own*size, reads, f"{own} elements by {p.threads} threads in a step of k")
                for x, _, _, own in extents]
    else:
        step = 4*size if p.algorithm == "dmma" else STEP
        terms = shape.tile_bits[0] // bits_of(s.a)
        reads = tiles*(steps*p.cta_k*bits_of(s.a)*terms // 8 // step + divided)*warps
        read = [Term(f"{x} read", own*step, reads, f"by {warps} warps in {step} bytes of k")
                for x, _, own, _ in extents]
    if p.slices > 1:                    # which add up their sums
        sums = (p.slices - 1)*p.cta_m*p.cta_n*size, tiles*p.split_k, f"of {p.slices - 1} of {p.slices} slices"
        written, read = [*written, Term("sums written", *sums)], [*read, Term("sums read", *sums)]
    alone = p.algorithm == "simt" and p.vectors[2] == p.slices == 1 and p.warp_n % LANES == 0
    if divided == 1 and not p.tail and (alone or (p.algorithm == "mma" and exchanges(p.warp_n, p.vectors[2]))):
        sums = size*p.cta_m*p.cta_n, tiles, "exchanged by lanes"
        written, read = [*written, Term("sums written", *sums)], [*read, Term("sums read", *sums)]
    return {"shared": (*written, *read),
            "L2": tuple(Term(x, extent*s.k*bits // 8, tiles, f"for each of {tiles:,} tiles")
                        for (x, extent, *_), bits in zip(extents, s.bits)), "memory": once}
