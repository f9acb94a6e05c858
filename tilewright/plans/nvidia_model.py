"""What a plan for one of NVIDIA's GPUs costs: arithmetic on the target's record, with rates that were measured."""
from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from tilewright.plans import epilogues, gemv_model, semirings
from tilewright.plans.common import Cost, Term, overlapped
from tilewright.plans.gemv_rules import LANES
from tilewright.plans.gpu import WIDEST, bits_of, memory_traffic

if TYPE_CHECKING:
    from tilewright.plans.gpu import GpuShape
    from tilewright.plans.nvidia import NvidiaPlan
    from tilewright.targets.nvidia import GpuTarget

LANES_M = 8             # rows of C of which the lanes of a warp have sums of an instruction
EXCHANGED = 4           # sums that a lane reads at once, when lanes exchange them
MOST_PARTS = 16
PART = 0.008            # of a tile's time that another part of it costs: writing and adding up a tile of C
# Multiply-adds issued of those that could be, for a thread's tile with 8 warps or more on a multiprocessor: an H200,
# 2026-11-21 (bench/h200.py). Loads of fragments and register conflicts take the rest.
ISSUE = {(8, 16): 0.83, (16, 8): 0.82, (12, 8): 0.74, (8, 8): 0.83, (8, 4): 0.57, (4, 8): 0.57, (4, 4): 0.43,
         (4, 2): 0.5}                                           # of 257 x 257 x 257 alone
ISSUE_ASYNC = {(8, 8): 0.74, (8, 4): 0.62, (4, 4): 0.55}        # where asynchronous copies make a difference
FEW_WARPS = {"async": 0.70, "registers": 0.55}  # of it, the fewer there are, down to nothing: they wait for loads
AS_STORED = 0.95        # of it, where vectors along k are read from shared memory
SLICE, LEAST_STEPS = 2e-7, 8                    # seconds to add up sums of another slice; steps of k between barriers
MOST_WARPS = {"async": 1.08, "registers": 1.04}         # what more than 8 warps gain at most
COPY = 4                # slots for multiply-adds that a copy takes
TRANSPOSED = 7          # and one of an element that is stored alone, since its operand is transposed
SINGLE = 16             # a whole copy of 4 bytes if it is asynchronous: four clocks of the multiprocessor for a warp
TRANSPOSED_ASYNC = 12   # the same where others have 16 bytes. Both, and the next, by bench/results/regret_h200.jsonl
ARRIVING, STARTED = 800, 20     # clocks until a tile of k has come, and for each copy of it that a thread starts
ALONE = 0.92            # of the rate where single elements pass through registers, and no second CTA works meanwhile
# Of the peak of matrix instructions, f64, by the tile of a warp; other tiles are not measured (an H100, 2026-11-22).
MATRIX = {(32, 64): 0.97, (64, 32): 0.93, (32, 32): 0.90, (48, 48): 0.83, (48, 32): 0.95, (16, 16): 0.95,
          (32, 16): 0.82, (16, 32): 0.86, (48, 16): 0.72, (16, 48): 0.82}
DMMA_MEETING = 60       # clocks of a tile of k besides
DMMA_ARRIVAL = 7.5e-7   # seconds of its copy from memory
ALL_DIVIDED = 1.1       # of the time, with a tail and no whole tile
EMPTY, LEAST_EMPTY = 1.2, 32     # of the time, for rows of the only tile beyond C: all CTAs copy its last row again
MATRIX_OTHER, MATRIX_ALONE = 0.85, 0.91         # and where one CTA has a multiprocessor to itself
# Bytes per clock and multiprocessor, from L2; by copies of 16 bytes that pass L1 by.
L2, WIDE_L2 = (x / 132 / 1.98e9 for x in (5.5e12, 8e12))
START = 3.0e-6          # seconds of a launch that are not its arithmetic: first loads, last stores
# And to write parts of a tile and learn that all are there; mma's was measured when graphs had a node for counters.
SPLIT, SPLIT_MMA = 1.8e-6, 3.0e-6
SHARED_LATENCY = 30     # clocks of a load from shared memory: a warp's step of k takes no less
PASS, PASS_RATE = 2.5e-6, 0.75                  # seconds of a pass (passes.py); of the memory's rate, an estimate
ADDING = 50e9           # bytes per second at which the last CTA, alone, adds them up

# Of kernels/nvidia/mma_gemm.py, by the target's rates of matrix instructions; on an H200 with few rows alone
# (2026-11-23: bench/results/h200_plans.json).
SCHEDULERS = 4          # of a multiprocessor: each issues an instruction of a warp in a clock, and has a tensor core
SHARED_CLOCK = 128      # bytes per clock of shared memory, without conflicts
STEP = 32               # bytes along k that an instruction multiplies
CHAIN = 14              # clocks of a step of a warp at the least: its loads from shared memory, and its instructions
MEETING = 350           # clocks that a CTA loses at the barrier of a tile of k
ARRIVAL = 1160          # clocks of a copy from memory to shared memory, and
COPY_CLOCK = 8.2        # bytes per clock of the copies of a tile of k

F16_SUMS = {"sm_86": 2, "sm_89": 2}             # of the rate: GeForce chips add f32 up at half of it

# Of kernels/nvidia/wgmma_gemm.py, by the target's rates of wgmma (an H200, 2026-11-23: bench/results/h200_plans.json).
STAYING = 2e-6          # seconds of a launch that are not its arithmetic
POWER = 0.82            # of these rates that a chip keeps up for long: bf16 at about 700 of 862 TFLOP/s on an H200
SAVED = 0.08            # more, for what all CTAs of a cluster get at once, which saves power: of all that they get
TMA_L2 = 13.6e12 / 132 / 1.98e9                 # bytes per clock and multiprocessor that bulk copies bring from L2
TMA_ARRIVAL = 590       # clocks of a bulk copy, and of one in a cluster more; bytes per clock of a stage's copies
CLUSTER_ARRIVAL = 170
RECEIVED = 64           # bytes per clock that copies bring to a multiprocessor, and where others get the same
RECEIVED_MULTICAST = 53.5
TMA_CLOCK = 28
HELD = 1.4              # stages that are not on their way: one is multiplied, and the next is there when it ends
POWER_PROMOTED = 0.95   # of the rates where warpgroups promote sums, each time in so many clocks; and in a cluster
PROMOTING_TOGETHER = 196
WAITED = 0.93
PROMOTING = 100         # clocks until products have ended whose sums a warpgroup alone promotes
STEP_CLOCKS = 50        # of each step of k beside: waits, and stages given back
UNHIDDEN = 0.37         # of the memory's time (or the products', if that is less), in which the other stands still
FEW_ROWS = 64           # of C, up to which nothing takes longer than reading B
INSTRUCTION_ROWS = 64   # of A that an instruction multiplies; it reads all of the tile of B in shared memory
MEETING_CLUSTER = 7e-7  # seconds that CTAs of a cluster take to meet, at the beginning and at the end
BETWEEN_TILES = 1700    # clocks in which the last products of a tile end, and the first of the next begin
DIVIDING = 6e-6         # seconds until a CTA knows that it is the last one of a tile
ADDING_CLOCK = 40       # bytes per clock at which it adds up parts
EXCHANGING = 4500       # clocks in which CTAs of a cluster give each other their sums
STORING = {"tma": 25, "lanes": 50}              # clocks of a warp for an element of C of each of its lanes


def exchanges(warp_n: int, vector: int) -> bool:
    """Lanes of mma can exchange a warp's sums, to store `vector` side by side: rows of C are whole turns of the lanes,
    or turns are whole rows, no more than the lanes have at once."""
    wide = LANES * min(vector, EXCHANGED)
    return warp_n % wide == 0 or (wide % warp_n == 0 and wide <= LANES_M*warp_n)


def cost(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> Cost:
    """The predicted cost of a legal plan."""
    found = _product(plan.after_passes(shape), plan, target)
    made = plan.passes(shape)
    if not made:
        return found
    seconds = sum(PASS + (each.read + each.size) / (PASS_RATE*target.bandwidth) for each in made)
    return replace(found, seconds=found.seconds + seconds, parts=(*found.parts, ("passes", seconds)))


def _product(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> Cost:
    """Without passes."""
    if plan.algorithm == "wgmma":
        return _cost_of_warpgroups(shape, plan, target)
    if plan.algorithm == "gemv":
        return gemv_model.cost(shape, plan, target)
    m, n, k, s = shape.m, shape.n, shape.k, shape.itemsize
    tiles, resident = plan.tiles(m, n, shape.batch), max(plan.resident(shape, target), 1)
    slots = target.sms * resident
    rate: float
    matrix = plan.algorithm == "mma"
    if matrix:
        rate = _matrix_rate(shape, plan, target, min(resident, ceil(tiles*plan.split_k / target.sms)))
    elif plan.algorithm == "dmma":
        rate = target.fma_f64 * 2 * MATRIX.get((plan.warp_m, plan.warp_n), MATRIX_OTHER)    # which double it
        rate /= 1 + DMMA_MEETING*rate / (plan.cta_m*plan.cta_n*plan.cta_k)
        if resident == 1:
            rate *= MATRIX_ALONE
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
    warps = plan.threads // LANES * min(resident, ceil(tiles*plan.split_k / target.sms))
    if not matrix:
        rate *= _busy(plan, warps)
    if plan.algorithm == "simt":
        own = plan.thread_m * plan.thread_n
        rate *= min(1.0, 0.7 + 0.3 * plan.cta_k / plan.slices / LEAST_STEPS)
        rate = min(rate, warps * LANES * own / max(own, SHARED_LATENCY))
    if not matrix:
        beyond = (1 - size/own for size, own in ((m, plan.cta_m), (n, plan.cta_n)) if size < own >= LEAST_EMPTY)
        rate /= 1 + EMPTY*max(beyond, default=0.0)
    steps = k + plan.cta_k                                      # the first tile of k has to come
    alone = plan.extent[0] * plan.extent[1] * steps / rate              # clocks of a tile that has the multiprocessor
    if plan.tail:
        whole, parts = plan.tail_split(shape, target)
        rounds = whole/slots + ceil((tiles - whole)*parts / slots)/parts
    else:
        full, rest = divmod(tiles*plan.split_k, slots)
        last = ceil(rest / target.sms)                          # CTAs share multiprocessors as evenly as can be,
        slower = 1.0 if matrix or not last else _busy(plan, warps) / _busy(plan, plan.threads // LANES * last)
        rounds = full + min(last / resident * slower, 1.0)      # and the last are slower if they are fewer
        if full and rest and plan.slices == 1:
            rounds = full + 1
        rounds /= plan.split_k
    work = rounds * resident * alone / target.clock
    turns = rounds if plan.tail else ceil(tiles*plan.split_k / slots) / plan.split_k
    if plan.algorithm == "simt":
        started = (plan.cta_m + plan.cta_n) * plan.cta_k / plan.threads / plan.vector
        arrival = (ARRIVING + STARTED*started) / target.clock
        work = max(work, turns * ceil(k / plan.cta_k) * arrival / max(plan.stages - 1, 1))
    if plan.algorithm == "dmma":
        work = max(work, turns * k / plan.cta_k * DMMA_ARRIVAL / (plan.stages - 1))
        if plan.tail and tiles < slots:                         # all tiles are divided
            work *= ALL_DIVIDED
    (bits_a, bits_b), (rows, columns) = shape.bits, plan.extent
    moved = tiles * (rows*bits_a + columns*bits_b) * k // 8
    wide = not matrix and plan.copy == "async" and plan.vector*s == WIDEST
    through_l2 = moved / min(tiles*plan.split_k, target.sms) / (WIDE_L2 if wide else L2) / target.clock
    once = _once(shape, target)
    parts = plan.tail_split(shape, target)[1] if plan.tail else plan.split_k
    tile = plan.extent[0]*plan.extent[1] * s * semirings.fields(shape.semiring)
    split = SPLIT_MMA if matrix else SPLIT
    added = split + parts * tile / ADDING if parts > 1 else 0.0
    if plan.tail and parts > 1:
        added = max(added, split + PART*parts * resident*alone / target.clock)
    if plan.split_k > 1:                                        # before the last ones, on all multiprocessors at once
        added += 2 * plan.split_k * tiles*tile / (L2 * target.sms * target.clock)
    finishing = epilogues.slots(shape.epilogue) * plan.extent[0]*plan.extent[1] * rounds*resident
    added += finishing / (LANES*SCHEDULERS*target.clock)
    return overlapped(START + added + SLICE*(plan.slices - 1),
                      {"multiply-adds": work, "from L2": through_l2, "memory": once}, rounds)


def _busy(plan: NvidiaPlan, warps: int) -> float:
    """Of the rate with 8 warps on a multiprocessor: few wait for their loads."""
    few = FEW_WARPS[plan.copy]
    return min(MOST_WARPS[plan.copy] if plan.algorithm == "simt" else 1.0, few + (1 - few)*warps/8)


def _once(shape: GpuShape, target: GpuTarget) -> float:
    """Seconds in which the memory gives and takes each element once."""
    (a, b), c, (m, n, k) = shape.bits, bits_of(shape.out), (shape.m, shape.n, shape.k)
    return (shape.batch * (m*k*a + k*n*b + m*n*c) // 8 + epilogues.bytes_moved(shape)) / (0.85*target.bandwidth)


def _cost_of_warpgroups(shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> Cost:
    """Of wgmma: CTAs that stay take tiles in rounds. Copies of the next tile go on while one is stored, but nothing is
    multiplied then, unless warpgroups take turns; what the last round stores overlaps with nothing."""
    d, ctas = p.division(shape, target), p.ctas
    tiles, clusters, steps = d.tiles, d.clusters, d.steps
    parts = d.parts()
    rounds = ceil(d.whole / clusters) + (d.share / steps if parts else 0.0)
    shared = (p.tile_bytes(shape) + sum(_read_by_warpgroups(shape, p))) / SHARED_CLOCK
    bits_a, bits_b = shape.bits
    lines = [extent*bits * (1 + (x in shape.crossing)) for x, extent, bits in (
        ("a", p.cta_m, bits_a), ("b", p.cta_n, bits_b))]
    brought = (lines[0] / p.cluster_n + lines[1] / p.cluster_m) * p.cta_k / 8          # by each CTA
    together = p.promote > 0 and not p.split and p.warpgroups > 1 and not p.pingpong
    power = (POWER_PROMOTED if together else POWER) * (1 + SAVED * (1 - brought / (sum(lines) * p.cta_k / 8)))
    power *= WAITED if together and p.ctas > p.cluster_k else 1
    products = 2 * p.cta_m*p.cta_n*p.cta_k * p.products / (power * operations(shape, p, target))
    arrival = TMA_ARRIVAL + CLUSTER_ARRIVAL*(ctas > 1) + brought / TMA_CLOCK
    received = (p.cta_m*bits_a + p.cta_n*bits_b) * p.cta_k / 8  # of rows that cross lines only what is asked for
    received /= RECEIVED_MULTICAST if p.ctas > p.cluster_k else RECEIVED
    step = max(products, shared, received, arrival / (p.stages - HELD)) + STEP_CLOCKS
    if p.promote and (p.warpgroups == 1 or p.pingpong):         # nothing else is multiplied meanwhile
        step += (p.cta_m*p.cta_n / LANES / SCHEDULERS + PROMOTING) * p.cta_k / p.promote
    elif together:
        step += PROMOTING_TOGETHER * p.parts * p.cta_k / p.promote
    storing = STORING[p.store if p.vectors[2] < 4 else "tma"] + epilogues.slots(shape.epilogue)
    stored = p.cta_m*p.cta_n / p.cluster_k / LANES / SCHEDULERS * storing + EXCHANGING*(p.cluster_k > 1)
    tile = steps*step + BETWEEN_TILES + stored
    if p.pingpong:
        work = rounds * max(steps*step + BETWEEN_TILES, tile / p.warpgroups) + BETWEEN_TILES + stored
    else:
        work = rounds * tile
    adding = 0.0
    if max(parts, default=1) > 1:                   # each part is written, and the last one reads all of them
        fragments = 1 + (d.apart % d.share > 0)     # of a share
        adding = (fragments - rounds % 1)*(BETWEEN_TILES + stored)
        adding += (fragments + max(parts)) * 4*p.cta_m*p.cta_n / ADDING_CLOCK + DIVIDING*target.clock
    work = (work + adding + ARRIVAL) / target.clock
    through_l2 = tiles*ctas * steps * brought / min(clusters*ctas, target.sms) / TMA_L2 / target.clock
    last = (d.over if parts else clusters)*ctas * p.cta_m*p.cta_n * bits_of(shape.out) / 8 / (0.85*target.bandwidth)
    once = memory = _once(shape, target)
    if shape.batch * shape.k * (shape.m*bits_a + shape.n*bits_b) // 8 > target.l2:  # nothing stays for the next round
        memory = max(memory, ceil(rounds) * round_bytes(shape, p, target, p.group_m) / (0.85*target.bandwidth))
    if shape.m <= min(p.cta_m, FEW_ROWS):           # B is read once, and slowed down by what takes as long
        found = (("multiply-adds", work), ("from L2", through_l2), ("memory", once))
        seconds = sum(each**3 for _, each in found) ** (1/3)
        return Cost(STAYING + last + seconds + adding / target.clock, found, rounds=rounds)
    found = (("multiply-adds", work), ("from L2", through_l2), ("memory", memory))
    alone = STAYING + last + MEETING_CLUSTER*(ctas > 1) + UNHIDDEN*min(work, once)
    return Cost(alone + max(seconds for _, seconds in found), found, rounds=rounds)


def round_bytes(shape: GpuShape, p: NvidiaPlan, target: GpuTarget, group_m: int) -> int:
    """Of A and B: what CTAs that run at once read of them, if clusters' tiles are taken in groups of so many rows."""
    rows, columns, clusters = p.cta_m*p.cluster_m, p.cta_n*p.cluster_n, p.clusters(shape, target)[1]
    tiles_m, tiles_n = ceil(shape.m / rows), ceil(shape.n / columns)
    wide = min(ceil(clusters / min(group_m, tiles_m)), tiles_n)
    high = min(ceil(clusters / wide), tiles_m)
    return (high*rows*shape.bits[0] + wide*columns*shape.bits[1]) * shape.k // 8


def _read_by_warpgroups(shape: GpuShape, p: NvidiaPlan) -> tuple[int, int]:
    """Bytes of a tile of A and of B in shared memory that all instructions of a step read."""
    bits_a, bits_b = (p.products*bits_of(x) for x in (shape.a, shape.b))
    of_a, of_b = (p.cta_n // INSTRUCTION_ROWS, 1) if p.swap else (p.parts, p.cta_m // INSTRUCTION_ROWS)
    return of_a * p.cta_m*p.cta_k*bits_a // 8, of_b * p.cta_n*p.cta_k*bits_b // 8


def operations(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> float:
    """Operations per clock of a multiprocessor by matrix instructions of 8- and 16-bit formats, or of tf32."""
    rates = target.wgmma_rates if plan.algorithm == "wgmma" else target.matrix_rates
    return min(rates[x] for x in (shape.a, shape.b)) * (F16_SUMS.get(target.name, 1) if plan.terms == "f16" else 1)


def _matrix_rate(shape: GpuShape, p: NvidiaPlan, target: GpuTarget, resident: int) -> float:
    """Multiply-adds per clock of a multiprocessor with so many CTAs, by how long they take for a tile of k each."""
    rate, warps, brought = operations(shape, p, target), p.threads // LANES, p.tile_bytes(shape)
    products = 2 * p.cta_m*p.cta_n*p.cta_k * p.products / rate
    steps = p.cta_k * bits_of(shape.a) // 8 // STEP
    read = (p.warp_m*shape.bits[0] + p.warp_n*shape.bits[1]) * p.cta_k // 8 * warps
    through, written = brought // WIDEST, brought / SHARED_CLOCK        # copies of a tile; clocks of shared memory
    if p.copy == "registers":                   # a load and a store each: two clocks for a warp, however few its bytes
        through = sum(x // vector for x, vector in zip((p.cta_m, p.cta_n), p.vectors)) * p.cta_k
        written = max(written, 4*through / LANES)
    issued = through/LANES * COPY / SCHEDULERS
    busy = products, read/SHARED_CLOCK + written, issued
    # clocks of a step of a warp alone
    own = 2 * p.warp_m*p.warp_n*p.cta_k * p.products / steps / (rate / SCHEDULERS)
    alone = max(steps * max(own, CHAIN) + MEETING, (ARRIVAL + brought / COPY_CLOCK) / (p.stages - 1))
    clocks = max(max(busy) + 0.1*(sum(busy) - max(busy)), alone / resident)
    return p.cta_m*p.cta_n*p.cta_k / clocks


def _copies(shape: GpuShape, plan: NvidiaPlan) -> float:
    """Slots that a thread's copies of a tile of A and one of B take."""
    slots, transposed, side_by_side = 0.0, float(TRANSPOSED), COPY / plan.vector
    if plan.copy == "async":
        transposed, side_by_side = (TRANSPOSED_ASYNC, side_by_side) if plan.vector > 1 else (SINGLE, SINGLE)
    for extent, along_k in ((plan.cta_m, shape.layout[0] == "n"), (plan.cta_n, shape.layout[1] == "t")):
        elements = extent * plan.cta_k / plan.threads
        alone = along_k and not (plan.as_stored and plan.vector > 1)
        slots += elements * (transposed if alone else side_by_side)
    return slots


def peak(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> float:
    """Operations per second of all multiprocessors, with the instructions of this plan."""
    shape = plan.after_passes(shape)
    if plan.algorithm in ("mma", "wgmma"):
        return operations(shape, plan, target) * target.sms * target.clock / plan.products
    fma = target.fma_f32 if shape.itemsize == 4 else target.fma_f64 * (1 + (plan.algorithm == "dmma"))
    return 2 * fma * target.sms * target.clock


def bandwidths(plan: NvidiaPlan, target: GpuTarget) -> dict[str, float]:
    """Bytes per second that the levels of `traffic` give all multiprocessors at most, by the copies of this plan."""
    each = target.sms * target.clock
    l2 = TMA_L2 if plan.algorithm == "wgmma" else WIDE_L2
    return {"shared": SHARED_CLOCK * each, "L2": l2 * each, "memory": target.bandwidth}


def traffic(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> dict[str, tuple[Term, ...]]:
    """Bytes that all CTAs move, by level; at the edges of C as if all tiles were whole. What threads of simt read from
    shared memory counts for each of them, though several read the same elements at once."""
    found = _traffic(plan.after_passes(shape), plan, target)
    for each in plan.passes(shape):
        name = each.operand.upper()
        found["memory"] += (Term(f"{name} read", each.read, 1, "by a pass"),
                            Term(f"{name} written", each.size, 1, "by a pass"))
        if not each.blocks:
            found["shared"] += (Term(f"{name} in a pass", each.side_bytes, 2, "written and read"),)
    return found


def _traffic(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> dict[str, tuple[Term, ...]]:
    """Without passes."""
    s, p, size = shape, plan, shape.itemsize
    tiles, steps = p.tiles(s.m, s.n, s.batch), ceil(s.k / p.cta_k)
    whole, divided = p.tail_split(s, target) if p.tail else (0, p.split_k)
    over = (tiles - whole)*(divided > 1)                                # tiles that are added up from parts
    tile = p.extent[0]*p.extent[1] * size
    found = memory_traffic(s, divided, tiles*tile) if not p.tail or divided == 1 else (
        *memory_traffic(s, 1, 0), Term("parts", over*tile, 2*divided,
                                           f"{divided} of {over} tiles, written, and read by the last"))
    if p.algorithm == "wgmma":
        return _traffic_of_warpgroups(s, p, target)
    if p.algorithm == "gemv":
        vectors = gemv_model.vectors_read(s, p, tiles)
        return {"L2": tuple(vectors if t.what == vectors.what else t for t in found[:2]), "memory": found}
    every = tiles*steps, f"{tiles:,} tiles x {steps:,} steps along k"
    extents, warps = (("A", p.cta_m, p.warp_m, p.thread_m), ("B", p.cta_n, p.warp_n, p.thread_n)), p.threads // LANES
    brought = [extent*p.cta_k*bits // 8 for (_, extent, *_), bits in zip(extents, shape.bits)]     # of a tile of k
    written = [Term(f"{x} written", tile, *every) for (x, *_), tile in zip(extents, brought)]
    # fragments of one step of k, 4 for dmma and 32 bytes for mma, are read ahead of those that are multiplied
    if p.algorithm == "simt":
        reads = tiles*(steps*p.cta_k // p.slices + divided)
        read = [Term(f"{x} read", p.threads*own*size, reads, f"{own} elements by {p.threads} threads in a step of k")
                for x, _, _, own in extents]
    else:
        step = 4*size if p.algorithm == "dmma" else STEP
        terms = shape.bits[0] // bits_of(s.a)
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
                        for (x, extent, *_), bits in zip(extents, s.bits)), "memory": found}


def _traffic_of_warpgroups(shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> dict[str, tuple[Term, ...]]:
    """Of wgmma; a tile is brought from L2 once for all CTAs of a cluster that have it, and what is beyond a matrix is
    not. Sums go through shared memory where a copy stores them, and where CTAs of a cluster exchange them."""
    s, d, ctas = shape, p.division(shape, target), p.cluster_m*p.cluster_n
    tiles, steps, parts = d.tiles*ctas, ceil(s.k / p.cta_k), sum(x for x in d.parts() if x > 1)*ctas
    every = tiles*steps, f"{tiles:,} tiles x {steps:,} steps along k"
    (bits_a, bits_b), (read_a, read_b) = s.bits, _read_by_warpgroups(s, p)
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
