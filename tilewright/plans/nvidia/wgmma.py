"""wgmma (kernels/nvidia/wgmma_gemm.py): matrix instructions of Hopper's warpgroups, for operands that tensor maps can
describe: CTAs that stay, and copies that multiply meanwhile."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from tilewright.plans import epilogues, passes
from tilewright.plans.common import Cost, Term
from tilewright.plans.gpu import memory_traffic
from tilewright.plans.gpu_lowering import FP8
from tilewright.plans.gpu_shape import WIDEST, GpuShape, bits_of
from tilewright.plans.invariant import ROWS as ANY_ROWS
from tilewright.plans.nvidia.division import clusters, division, round_bytes
from tilewright.plans.nvidia.family import LANES, Family, as_is_or_copied, copied, stored
from tilewright.plans.nvidia.plan import NvidiaPlan
from tilewright.plans.nvidia.rates import ARRIVAL, SCHEDULERS, SHARED_CLOCK, TMA_L2, once, operations
from tilewright.problem import SCALE_BLOCK, SCALE_BLOCKS
from tilewright.targets.nvidia import CLUSTER, GpuTarget

# What plans by wgmma do not have.
UNUSED = ("copy", "async"), ("vector", 1), ("slices", 1)
# Of wgmma: rows of an instruction, bytes of a row in shared memory (at least, of C at least, and at most), rows after
# which its swizzle repeats, extents of a TMA box. C goes through 4096 bytes of each warp. One warpgroup more copies.
GROUP_ROWS, NARROWEST, NARROWEST_C, SWIZZLED, REPEAT, BOX, STAGED_C, GROUP = 64, 64, 32, 128, 8, 256, 4096, 128
GROUP_REGISTERS = {1: 240, 2: 232, 3: 160}      # of a thread that multiplies, by the number of warpgroups
BESIDE = 26             # registers that NVIDIA's assembler wants beside the sums of one instruction, of equal shares
MOST_CTAS, WARPS = CLUSTER, 4                   # CTAs of a cluster, warps of a warpgroup
PARTED = 2              # warpgroups whose sums may be promoted in parts: with 3 the parts are too narrow
AROUND = 40             # registers of a thread beside sums

# Of wgmma: (CTA's tile, warpgroups that multiply), the largest first; tiles of two warpgroups in turns; clusters.
WARPGROUP = (((128, 256), 2), ((256, 128), 2), ((192, 128), 3), ((128, 192), 2), ((256, 64), 2), ((64, 256), 1),
             ((128, 128), 2), ((64, 192), 1), ((128, 64), 2), ((64, 128), 1), ((64, 64), 1), ((64, 32), 1))
OF_FP8 = ((128, 160), 2),        # besides, where sums and promoted sums share the registers
# Of tf32 whose rows are contiguous: rows of instructions by columns. In turns nothing hides loads of fragments: 0.8.
OF_STRIDED = ((256, 128), 2), ((128, 128), 1), ((128, 64), 1), ((128, 32), 1)
OF_F16 = ((256, 256), 2),       # besides, where sums are f16
DEEP = (64, 64), (64, 32)       # with twice as much of k, which is 8 % faster
OF_TERMS = ((128, 192), 2), ((128, 160), 2), ((128, 128), 2), ((128, 64), 2), ((64, 128), 1), ((64, 64), 1)
TURNS = (128, 192), (64, 256), (128, 128), (64, 192), (128, 64), (64, 128)
CLUSTERS = (2, 1), (1, 2), (1, 1)
ALONG_K = ((128, 64), 2), ((128, 128), 2)       # tiles that two CTAs of a cluster share by k, where there are few
MOST_ROUNDS = 4         # of tiles, of whose last one parts of k are worth a look
GROUPS = 8, 4, 16, 2, 32, 1     # rows of clusters' tiles that are taken together
FEWEST_STAGES, DEEPEST_STAGES = 3, 8
FEW_ROWS = 32           # for which wgmma is offered with swap alone: copies of rows beyond m are slow
PROMOTED = 128          # steps of k of fp8, of whose sums wgmma keeps about 14 bits: errors would else grow with k


# Of wgmma with swap, for few rows: (columns of C, warpgroups), bytes of k, the most stages.
SWAPPED = ((64, 1), 256, 11), ((64, 1), 128, 12), ((128, 2), 128, 6), ((128, 2), 128, 9)
MOST_SWAPPED = 64

# By the target's rates of wgmma (an H200, 2026-11-23: bench/results/h200_plans.json; STAYING, DIVIDING, MEETING_CLUSTER
# and ADDING_CLOCK were fitted to every other case of it and of regret_h200.jsonl).
STAYING = 1.1e-6        # seconds of a launch that are not its arithmetic
POWER = 0.82            # of these rates that a chip keeps up for long: bf16 at about 700 of 862 TFLOP/s on an H200
SAVED = 0.08            # more, for what all CTAs of a cluster get at once, which saves power: of all that they get
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
READ_ONCE = 64          # rows of C, up to which nothing takes longer than reading B
INSTRUCTION_ROWS = 64   # of A that an instruction multiplies; it reads all of the tile of B in shared memory
MEETING_CLUSTER = 9.8e-7  # seconds that CTAs of a cluster take to meet, at the beginning and at the end
BETWEEN_TILES = 1700    # clocks in which the last products of a tile end, and the first of the next begin
DIVIDING = 2.5e-6       # seconds until a CTA knows that it is the last one of a tile
ADDING_CLOCK = 31       # bytes per clock at which it adds up parts
EXCHANGING = 4500       # clocks in which CTAs of a cluster give each other their sums
STORING = {"tma": 25, "lanes": 50}              # clocks of a warp for an element of C of each of its lanes


# ---- what a plan is

def parts(p: NvidiaPlan) -> int:
    """Of the columns of a tile, promoted one after the other, if the sums would be too many registers."""
    if not p.promote or p.warpgroups != PARTED or p.swap:
        return 1
    return 1 if 2*p.cta_m*p.cta_n // (GROUP*PARTED) + AROUND <= GROUP_REGISTERS[PARTED] else 2


def strided(p: NvidiaPlan, shape: GpuShape) -> bool:
    """Whether the rows of instructions are contiguous, not k, in tf32, which wgmma takes from registers then."""
    return shape.a == "tf32" and shape.layout[p.swap] != "nt"[p.swap]


def _violations(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    """Why a plan of this algorithm cannot run a shape: sentences, none if it can."""
    yield from (f"{name} must be {value} for wgmma." for name, value in UNUSED if getattr(p, name) != value)
    yield from p.above(cta_m=BOX, cta_n=BOX, warpgroups=max(GROUP_REGISTERS), cta_k=BOX)
    by = " with swap" * p.swap
    (high, rows), (wide, columns) = (("cta_m", p.cta_m), ("cta_n", p.cta_n))[::-1 if p.swap else 1]
    by_threads = strided(p, shape)
    if rows % (unit := GROUP_ROWS * (1 + by_threads) * (1 if p.pingpong else p.warpgroups)):
        yield f"{high} must be a multiple of {unit} where warpgroups is {p.warpgroups}{by}, not {rows}."
    if by_threads and (p.store != "lanes" or p.vectors[2] > 2 + 2*p.swap):
        yield (f"tf32 in layout {shape.layout} needs store=lanes and vector_c of at most {2 + 2*p.swap}{by}, not "
               f"{p.store} and {p.vectors[2]}.")
    elif p.swap and not by_threads and (p.store, p.vectors[2]) != ("lanes", 1):
        yield f"swap needs store=lanes and vector_c=1, not {p.store} and {p.vectors[2]}."
    elif not by_threads and p.vectors[2] > 2:
        yield f"vector_c must be 1 or 2 for wgmma, not {p.vectors[2]}."
    if p.pingpong and p.warpgroups < 2:
        yield f"pingpong takes 2 warpgroups or more, not {p.warpgroups}."
    if columns % (unit := 16 if shape.sums == "i32" and columns > 32 else 8):
        yield f"{wide} must be a multiple of {unit} for products of {shape.a}{by}, not {columns}."
    if p.ctas > MOST_CTAS:
        yield f"a cluster would have {p.ctas} CTAs, and may have {MOST_CTAS}."
    if p.cluster_k > 1:
        if p.ctas > p.cluster_k or p.divided or parts(p) > 1:
            yield "with cluster_k, cluster must be 1x1, parts 1, and there can be no split_k or tail."
        if by_threads:
            yield f"cluster_k must be 1 for tf32 in layout {shape.layout}, not {p.cluster_k}."
        if columns % (REPEAT*p.cluster_k):
            yield f"{wide} must be a multiple of {REPEAT*p.cluster_k} with cluster_k = {p.cluster_k}, not {columns}."
        if p.cluster_k > ceil(shape.k / max(p.cta_k, p.promote)):
            yield f"cluster_k = {p.cluster_k} exceeds the number of tiles along k."
    if bits_of(shape.a) != 16 and shape.layout != ("nt" if not by_threads else "nn" if p.swap else "tt"):
        also = ", nn with swap or tt" * (shape.a == "tf32")
        yield f"wgmma multiplies {shape.a} with k contiguous in A and B, layout nt{also}, not {shape.layout}{by}."
    for name, align, extent, bits, along_k, share in (
            ("A", shape.align_a, p.cta_m, bits_of(shape.a), shape.layout[0] == "n", p.cluster_n),
            ("B", shape.align_b, p.cta_n, bits_of(shape.b), shape.layout[1] == "t", p.cluster_m)):
        if align < WIDEST:
            yield (f"{name} must begin at a multiple of {WIDEST} bytes, and its rows (or columns) must be such "
                   "multiples apart, so that a tensor map can describe it.")
        along, across = (p.cta_k, extent) if along_k else (extent, p.cta_k)
        if along*bits // 8 % NARROWEST or across % (REPEAT*share):
            yield (f"a tile of {name} of {extent} by {p.cta_k} of k must have a multiple of {NARROWEST*8 // bits} "
                   f"elements along its contiguous dimension, and of {REPEAT*share} along the other.")
    if p.store == "tma" and shape.align_c < WIDEST:
        yield f"store=tma needs C and its rows at multiples of {WIDEST} bytes."
    if p.store == "tma" and p.cta_n*bits_of(shape.out) // 8 % (NARROWEST_C*p.cluster_k):
        yield (f"store=tma needs cta_n to be a multiple of {NARROWEST_C*p.cluster_k} bytes of C, and {p.cta_n} "
               f"{shape.out} are not.")
    blocks = shape.scales in SCALE_BLOCKS
    if blocks and p.promote != SCALE_BLOCK:
        yield f"promote must be {SCALE_BLOCK} with scales of {shape.scales}, not {p.promote}."
    if p.promote < 0 or p.promote % p.cta_k or (p.promote and (shape.sums != "f32" or p.terms == "f16") and not blocks):
        yield (f"promote must be 0 or, for sums in f32, a multiple of cta_k = {p.cta_k}, not {p.promote} for sums in "
               f"{'f16' if p.terms == 'f16' else shape.sums}.")
    if parts(p) > 1 and (p.promote != p.cta_k or p.cta_n % (8*parts(p)) or shape.layout[1] == "n"):
        yield (f"the sums of {p.cta_m}x{p.cta_n} are promoted in {parts(p)} parts, for which promote must be cta_k, "
               f"cta_n a multiple of {8*parts(p)}, and k contiguous in B.")
    if (registers := p.estimate(shape)) > (most := GROUP_REGISTERS.get(p.warpgroups, 0)):
        yield f"a thread would need about {registers} registers, and has {most} where warpgroups is {p.warpgroups}."
    sums = columns // parts(p) * GROUP_ROWS // GROUP // p.packed
    if sums > (most := target.registers_sm // p.threads - BESIDE):
        yield (f"an instruction's sums take {sums} registers of a thread, and NVIDIA's assembler allows {most} where a "
               f"CTA has {p.threads} threads.")


# ---- which plans

def _mapped(shape: GpuShape) -> bool:
    """Tensor maps can describe both operands, as wgmma needs them."""
    layouts = ("nt", "nn", "tt") if shape.a == "tf32" else ("nt",)
    return min(shape.align_a, shape.align_b) == WIDEST and (max(shape.bits) == 16 or shape.layout in layouts)


def _warpgroups(shape: GpuShape, target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
    """Plans by Hopper's warpgroups, with as many stages as fit, for what the `declared` passes have left."""
    # of terms: instructions cut off less than an addition rounds, if they add up 128 bytes of k
    promoted = shape.a in FP8 or shape.scales in SCALE_BLOCKS
    promote = SWIZZLED*8 // bits_of(shape.a) if shape.terms else PROMOTED if promoted else 0
    row, fewest = (SWIZZLED, FEWEST_STAGES) if not shape.terms else (SWIZZLED // 2, 2)
    by_threads = shape.a == "tf32" and shape.layout != "nt" and not shape.terms
    swap = by_threads and shape.layout == "nn"
    mapped = shape.align_c == WIDEST and not by_threads
    offered: list[tuple[tuple[int, int], int, bool]] = []
    if by_threads:
        offered += ((*x, False) for x in OF_STRIDED)
    else:
        tiles = OF_TERMS if shape.terms else (*WARPGROUP, *OF_FP8*promoted, *OF_F16*(declared.get("terms") == "f16"))
        offered += ((*x, False) for x in tiles)
        # a warpgroup alone does not hide the additions of promoted sums: 0.6 of the rate
        offered += ((x, 2, True) for x in TURNS if not promote)
    for (cta_m, cta_n), warpgroups, pingpong in offered:
        if swap:
            cta_m, cta_n = cta_n, cta_m
        row_c, cta_k = cta_n * bits_of(shape.out) // 8, row * 8 // bits_of(shape.a)
        if (by_threads and warpgroups == 1) or ((cta_m, cta_n) in DEEP and not shape.terms and not promoted):
            cta_k *= 2                          # by threads it is 20 % faster: half as many waits for fragments
        plan = NvidiaPlan("wgmma", cta_m, cta_n, cta_k, stages=DEEPEST_STAGES, warpgroups=warpgroups,
                          pingpong=pingpong, promote=max(promote, cta_k) if promote else 0,
                          vector_c=min(shape.vector_c, 4 if swap else 2), swap=swap, **declared,
                          store="tma" if mapped and row_c % NARROWEST_C == 0 else "lanes")
        deepest, plan = plan, _that_fits(plan, fewest, shape, target)
        # one warpgroup that reads fragments waits for other CTAs, too: 0.9
        for cluster_m, cluster_n in CLUSTERS if not (by_threads and warpgroups == 1) else CLUSTERS[-1:]:
            if cluster_m == 1 or shape.m > cta_m:               # else a CTA of the cluster has nothing to do
                if cluster_n == 1 or shape.n > cta_n:
                    found = replace(plan, cluster_m=cluster_m, cluster_n=cluster_n)
                    found = replace(found, group_m=min(GROUPS, key=lambda g: round_bytes(shape, found, target, g)))
                    yield found
                    divided = replace(found, tail=True)
                    d = division(divided, shape, target)
                    if d.tiles < MOST_ROUNDS*d.clusters and max(d.parts(), default=1) > 1 and not by_threads:
                        yield divided
        if ((cta_m, cta_n), warpgroups) in ALONG_K and not pingpong and not by_threads:
            along = _that_fits(replace(deepest, cluster_k=2), fewest, shape, target)
            if clusters(along, shape, target)[0]*along.cluster_k <= target.sms:
                yield along


def _that_fits(plan: NvidiaPlan, fewest: int, shape: GpuShape, target: GpuTarget) -> NvidiaPlan:
    """The plan with as many of its stages as fit."""
    while plan.stages > fewest and plan.shared(shape) > target.smem_cta:
        plan = replace(plan, stages=plan.stages - 1)
    return plan


def _swapped(shape: GpuShape, target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
    """Plans by Hopper's warpgroups for few rows, which are columns of the instructions. Clusters may share k; split_k
    and tail cost more than they gain."""
    unit = 8 if shape.layout[0] == "n" else NARROWEST*8 // bits_of(shape.a)
    unit = max(unit, 16) if shape.sums == "i32" and shape.m > 32 else unit
    for (cta_n, warpgroups), row, stages in SWAPPED:
        cta_k, promoted = row*8 // bits_of(shape.a), shape.a in FP8 or shape.scales in SCALE_BLOCKS
        if not promoted or cta_k <= PROMOTED:
            plan = NvidiaPlan("wgmma", -(-shape.m // unit)*unit, cta_n, cta_k, stages=stages, warpgroups=warpgroups,
                              swap=True, vector_c=1, promote=PROMOTED if promoted else 0, **declared)
            yield _that_fits(plan, FEWEST_STAGES, shape, target)
            for cluster_k in (2, 4) if shape.m <= FEW_ROWS else (4,):
                rows = max(unit, REPEAT*cluster_k)
                along = replace(plan, cta_m=-(-shape.m // rows)*rows, cluster_k=cluster_k)
                if cta_n == GROUP_ROWS and len({*clusters(along, shape, target)}) == 1:      # all run at once
                    yield _that_fits(along, FEWEST_STAGES, shape, target)


# ---- what one costs

def _cost(shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> Cost:
    """Of wgmma: CTAs that stay take tiles in rounds. Copies of the next tile go on while one is stored, but nothing is
    multiplied then, unless warpgroups take turns; what the last round stores overlaps with nothing."""
    d, ctas = division(p, shape, target), p.ctas
    tiles, steps, shares = d.tiles, d.steps, d.parts()
    rounds = ceil(d.whole / d.clusters) + (d.share / steps if shares else 0.0)
    shared = (p.tile_bytes(shape) + sum(_read(shape, p))) / SHARED_CLOCK
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
        step += PROMOTING_TOGETHER * parts(p) * p.cta_k / p.promote
    storing = STORING[p.store if p.vectors[2] < 4 else "tma"] + epilogues.slots(shape.epilogue)
    stored = p.cta_m*p.cta_n / p.cluster_k / LANES / SCHEDULERS * storing + EXCHANGING*(p.cluster_k > 1)
    tile = steps*step + BETWEEN_TILES + stored
    if p.pingpong:
        work = rounds * max(steps*step + BETWEEN_TILES, tile / p.warpgroups) + BETWEEN_TILES + stored
    else:
        work = rounds * tile
    adding = 0.0
    if max(shares, default=1) > 1:                   # each part is written, and the last one reads all of them
        fragments = 1 + (d.apart % d.share > 0)     # of a share
        adding = (fragments - rounds % 1)*(BETWEEN_TILES + stored)
        adding += (fragments + max(shares)) * 4*p.cta_m*p.cta_n / ADDING_CLOCK + DIVIDING*target.clock
    work = (work + adding + ARRIVAL) / target.clock
    through_l2 = tiles*ctas * steps * brought / min(d.clusters*ctas, target.sms) / TMA_L2 / target.clock
    last = (d.over if shares else d.clusters)*ctas * p.cta_m*p.cta_n * bits_of(shape.out) / 8 / (0.85*target.bandwidth)
    least = memory = once(shape, target)
    if shape.batch * shape.k * (shape.m*bits_a + shape.n*bits_b) // 8 > target.l2:  # nothing stays for the next round
        memory = max(memory, ceil(rounds) * round_bytes(shape, p, target, p.group_m) / (0.85*target.bandwidth))
    if shape.m <= min(p.cta_m, READ_ONCE):           # B is read once, and slowed down by what takes as long
        found = (("multiply-adds", work), ("from L2", through_l2), ("memory", least))
        seconds = sum(each**3 for _, each in found) ** (1/3)
        return Cost(STAYING + last + seconds + adding / target.clock, found, rounds=rounds)
    found = (("multiply-adds", work), ("from L2", through_l2), ("memory", memory))
    alone = STAYING + last + MEETING_CLUSTER*(ctas > 1) + UNHIDDEN*min(work, least)
    return Cost(alone + max(seconds for _, seconds in found), found, rounds=rounds)


def _read(shape: GpuShape, p: NvidiaPlan) -> tuple[int, int]:
    """Bytes of a tile of A and of B in shared memory that all instructions of a step read."""
    bits_a, bits_b = (p.products*bits_of(x) for x in (shape.a, shape.b))
    of_a, of_b = (p.cta_n // INSTRUCTION_ROWS, 1) if p.swap else (parts(p), p.cta_m // INSTRUCTION_ROWS)
    return of_a * p.cta_m*p.cta_k*bits_a // 8, of_b * p.cta_n*p.cta_k*bits_b // 8


def _traffic(shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> dict[str, tuple[Term, ...]]:
    """Of wgmma; a tile is brought from L2 once for all CTAs of a cluster that have it, and what is beyond a matrix is
    not. Sums go through shared memory where a copy stores them, and where CTAs of a cluster exchange them."""
    s, d, ctas = shape, division(p, shape, target), p.cluster_m*p.cluster_n
    tiles, steps, shares = d.tiles*ctas, ceil(s.k / p.cta_k), sum(x for x in d.parts() if x > 1)*ctas
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
            "memory": (*memory_traffic(shape, 1, 0), *[Term("parts", 4*p.cta_m*p.cta_n, 2*shares, "of tiles, written, "
                                                            "and read by the last")][:shares])}


class Wgmma(Family):
    name = "wgmma"
    sizes = "warpgroups", "cluster_m", "cluster_n", "cluster_k"
    splits = swaps = stays = True
    l2_clock = TMA_L2

    def candidates(self, shape: GpuShape, target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
        if shape.terms:
            shape = passes.after(shape, "none", shape.terms)
            if shape.a in target.wgmma_rates:
                yield from _warpgroups(shape, target, **declared)
        elif shape.a in target.wgmma_rates and not (shape.prologues or shape.semiring):
            if shape.m > FEW_ROWS or shape.invariant in ANY_ROWS:
                yield from as_is_or_copied(_warpgroups, _mapped, shape, target, **declared)
            if shape.m <= MOST_SWAPPED and _mapped(shape):
                yield from _swapped(shape, target, **declared)

    violations = staticmethod(_violations)

    def formats(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> tuple[str, ...]:
        return (*target.wgmma_rates,)

    def wrong_formats(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> str:
        if not target.wgmma_rates:
            return f"{target.name} lacks the matrix instructions of Hopper's warpgroups."
        return super().wrong_formats(p, shape, target)

    def moved(self, p: NvidiaPlan, shape: GpuShape) -> Iterator[str]:
        yield from stored(p.vectors[2], shape)
        yield from copied(p, shape)

    def threads(self, p: NvidiaPlan) -> int:
        return GROUP * (p.warpgroups + 1)

    def registers(self, p: NvidiaPlan, shape: GpuShape) -> int:
        """Sums, those that promoted ones are added to, and what a thread has beside."""
        sums = p.cta_m*p.cta_n // (GROUP * (1 if p.pingpong else p.warpgroups)) // p.packed
        more = 24*(shape.scales == "1x128" or strided(p, shape))
        more += 8*(bits_of(shape.out) == 32 and not p.split) + epilogues.registers(shape.epilogue)
        return sums + (sums // parts(p) if p.promote else 0) + AROUND + more

    def shared(self, p: NvidiaPlan, shape: GpuShape) -> int:
        """Tiles, two barriers of a stage; buffers for C, a barrier of a turn."""
        each = WARPS*STAGED_C*(p.store == "tma") + 8*p.pingpong
        size = p.stages * (p.tile_bytes(shape) + 16) + p.warpgroups*each
        if p.cluster_k > 1:                         # sums of all CTAs, and two barriers of a warp
            tiles = p.warpgroups if p.pingpong else 1
            size += 4*p.cta_m*p.cta_n*tiles + 16*WARPS*p.warpgroups
        return size

    def resident(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> int:
        """One, for which stages have all of the shared memory."""
        return 1

    def tail_split(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> tuple[int, int]:
        d = division(p, shape, target)
        return min(d.whole*p.ctas, p.tiles(shape.m, shape.n, shape.batch)), max(d.parts(), default=1)

    def grid(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> tuple[int, int, int]:
        return division(p, shape, target).clusters * p.ctas, 1, 1

    cost = staticmethod(_cost)
    traffic = staticmethod(_traffic)

    def rates(self, target: GpuTarget) -> Mapping[str, float]:
        return target.wgmma_rates

    def peak(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> float:
        return operations(shape, p, target) * target.sms * target.clock / p.products
