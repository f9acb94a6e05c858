"""small (kernels/gpu/small.py): batches of products of a size that is in the code. The batch crosses the memory's
interface once, unless loads from shared memory or multiply-adds take longer, or too few teams are there to hide what
one waits for.

A plan's text has the size, the rows and columns of C of a thread, the matrices of a team and, if that is not one warp,
its warps: small 32x32x32 thread=4x4 stages=1 matrices=1 team=2.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil
from typing import TYPE_CHECKING, Any

from tilewright.plans import small_layout
from tilewright.plans.common import Cost, Term
from tilewright.plans.gpu_shape import WIDEST, GpuShape
from tilewright.plans.nvidia.family import Family
from tilewright.plans.nvidia.plan import NvidiaPlan
from tilewright.plans.small_layout import MOST, Lanes, Stored, beyond_whole, passes, tile_passes, whole
from tilewright.targets.banks import NVIDIA

if TYPE_CHECKING:
    from tilewright.targets.nvidia import GpuTarget

FORMATS = {"f32": 1, "f64": 2, "c64": 2, "c128": 4}     # words of a number
COMPLEX = "c64", "c128"
WARP, WARPS = 32, 4     # lanes; warps of a CTA, if each has matrices of its own
MOST_SUMS = 64          # words of a thread's sums
MOST_LOADED = 128       # that a plan may have
LOADED, AROUND = 96, 36  # words that a thread loads before it multiplies them, at most; its indices and addresses
SECTOR = 32             # bytes
TEAMS = 1, 2, 4         # warps that may share a product
BYTES = 1536, 4096      # of the A and B of a team, about
TILES, LATER = 8, 4     # that are offered, and as many of the smaller ones that follow: each fourth

# Of an H200, 2026-11-23: 394 plans for 44 sizes (bench/results/h200_small_batches.json has those that are chosen).
START = 2.7e-6          # seconds of a launch: the first loads, the last sums
READING = 0.885         # of the memory's bandwidth
ISSUED = 0.75           # of the multiply-adds that a multiprocessor could issue
ARRIVAL = 3000          # clocks until a group's operands are there
WAITING = 3.0           # clocks of a warp alone for each instruction that multiplies
PARTLY = 0.5            # of the memory's bandwidth, in which sectors of C are written that are not whole
POWER = 5               # the higher, the less what takes equally long slows each other down


# ---- what a plan is

def fits(shape: GpuShape) -> bool:
    """Whether there are such plans."""
    return not list(_of_shape(shape))


def warps(p: NvidiaPlan) -> int:
    """Of a CTA."""
    return p.team if p.team > 1 else WARPS


def lanes(p: NvidiaPlan, shape: GpuShape) -> Lanes:
    return Lanes(WARP*p.team, ceil(shape.m / p.thread_m), ceil(shape.n / p.thread_n))


def operands(p: NvidiaPlan, shape: GpuShape) -> tuple[Stored, Stored]:
    """A and B in shared memory."""
    return small_layout.operands(shape.itemsize, shape.layout, (shape.m, shape.n, shape.k), (p.thread_m, p.thread_n),
                                 p.vectors[:2], lanes(p, shape))


def _shared(p: NvidiaPlan, shape: GpuShape) -> int:
    """Bytes of a CTA."""
    (a, b), size = operands(p, shape), shape.itemsize
    tile = whole(lanes(p, shape).TOGETHER * shape.m*shape.n, size) if p.store == "smem" else 0
    return warps(p) // p.team * (a.area(p.matrices) + b.area(p.matrices) + tile) * size


def _registers(p: NvidiaPlan, shape: GpuShape) -> int:
    """Of a thread, about: sums, and most of what is loaded before it is multiplied; indices and addresses."""
    words = FORMATS[shape.a]
    loaded = min((p.thread_m + p.thread_n) * words * max(WIDEST // (4*words), 1), LOADED)
    return min(-(-(p.thread_m*p.thread_n*words + loaded // 2 + AROUND) // 8) * 8, 255)


def ctas(p: NvidiaPlan, shape: GpuShape) -> int:
    """Of a launch: a team for each group of matrices."""
    return ceil(shape.batch / (p.matrices * (warps(p) // p.team)))


def whole_sectors(p: NvidiaPlan, shape: GpuShape) -> bool:
    """Whether threads that store at once what they have side by side write whole sectors of C."""
    (_, b), of = operands(p, shape), lanes(p, shape)
    run = of.ACROSS * (1 if b.ALONG_K else min(b.WIDTH, p.vectors[2])) * shape.itemsize
    return run % SECTOR == 0 and shape.n*shape.itemsize % SECTOR == 0


def _of_shape(shape: GpuShape) -> Iterator[str]:
    """Why no plan by small can run a shape."""
    if not shape.a == shape.b == shape.out or shape.a not in FORMATS:
        yield (f"small multiplies two operands of one format into the same, {', '.join(FORMATS)}, not {shape.a} by "
               f"{shape.b} into {shape.out}.")
    if max(shape.m, shape.n, shape.k) > MOST or shape.batch < 2:
        other = "; of other complex matrices tilewright.matmul makes real ones"*(shape.a in COMPLEX)
        yield (f"small multiplies batches of matrices of at most {MOST} rows, columns and steps of k, and this is "
               f"{shape.m}x{shape.n}x{shape.k}, {shape.batch} times{other}.")
    if wrong := [name for name in ("epilogue", "scales", "scaled", "semiring", "terms", "prologues")
                 if getattr(shape, name)]:
        yield f"small has no {' and no '.join(wrong)}."


def _violations(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    """Why a plan of this algorithm cannot run a shape: sentences, none if it can."""
    if wrong := [*_of_shape(shape), *p.below_one("thread_m", "thread_n", "matrices", "vector", "team")]:
        yield from wrong
        return
    size, of = shape.itemsize, lanes(p, shape)
    if p.team not in TEAMS:
        yield f"team must be {', '.join(map(str, TEAMS[:-1]))} or {TEAMS[-1]}, not {p.team}."
    if (p.cta_m, p.cta_n, p.cta_k) != (shape.m, shape.n, shape.k):
        yield f"this plan is for products of {p.cta_m}x{p.cta_n}x{p.cta_k} alone, not {shape.m}x{shape.n}x{shape.k}."
    if p.matrices % of.TOGETHER:
        yield f"a team multiplies {of.TOGETHER} matrices at once, of which matrices = {p.matrices} is no multiple."
    for name, vector, most in zip("ABC", p.vectors, (shape.vector_a, shape.vector_b, shape.vector_c)):
        if vector < 1 or vector & (vector - 1) or vector > most:
            yield f"{vector} elements of {name} are moved at once, and it must be a power of two up to {most}."
    if p.copy == "async" and "cp.async" not in target.instructions:
        yield f"{target.name} has no asynchronous copies."
    if p.stages != 1:
        yield f"stages must be 1 for small, not {p.stages}."
    if other := [x for x in ("split_k", "slices") if getattr(p, x) != 1] + ["tail"]*p.tail:
        yield f"small has no {' and no '.join(other)}."
    if p.store == "tma":
        yield "store must be lanes or smem for small, not tma."
    if (found := _shared(p, shape)) > target.smem_cta:
        yield f"the matrices take {found} bytes of shared memory, and {target.name} gives a CTA {target.smem_cta}."
    if (sums := p.thread_m*p.thread_n*size // 4) > MOST_LOADED:
        yield f"a thread's sums would be {sums} registers, and may be {MOST_LOADED}."


def _candidates(shape: GpuShape, target: GpuTarget) -> Iterator[NvidiaPlan]:
    """Plans worth a look: by the tiles of threads that load the least."""
    s, words = shape, FORMATS.get(shape.a, 1)
    a, b, c = (1 << (x.bit_length() - 1) for x in (s.vector_a, s.vector_b, s.vector_c))
    tiles = _tiles(s.m, s.n, words)
    for team, (thread_m, thread_n) in product(TEAMS, [*tiles[:TILES], *tiles[TILES::LATER][:TILES]]):
        of = Lanes(WARP*team, ceil(s.m / thread_m), ceil(s.n / thread_n))
        if team > 1 and of.EACH <= WARP:
            continue
        each = of.TOGETHER * (s.m + s.n) * s.k * 4*words
        for matrices in sorted({of.TOGETHER * max(round(size / each), 1) for size in BYTES}):
            plan = NvidiaPlan("small", s.m, s.n, s.k, thread_m=thread_m, thread_n=thread_n, stages=1,
                              copy="async" if "cp.async" in target.instructions else "registers", vector=a,
                              vector_b=b if b != a else 0, vector_c=c if c != a else 0, matrices=matrices, team=team)
            yield plan
            if not list(_of_shape(s)) and not whole_sectors(plan, s):
                yield replace(plan, store="smem")


def _tiles(m: int, n: int, words: int) -> list[tuple[int, int]]:
    """Rows and columns of a thread, those that load the least first."""
    found = []
    for down, across in product(range(1, 33), repeat=2):
        thread_m, thread_n = ceil(m / down), ceil(n / across)
        if (ceil(m / thread_m), ceil(n / thread_n)) != (down, across) or thread_m*thread_n*words > MOST_SUMS:
            continue
        of = Lanes(WARP, down, across)
        used = m*n / (thread_m*thread_n * WARP*of.PARTS / of.TOGETHER)              # of what lanes have
        found.append(((1/thread_m + 1/thread_n) / used, thread_m, thread_n))
    return [(thread_m, thread_n) for _, thread_m, thread_n in sorted(found)]


# ---- what one costs

def _cost(shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> Cost:
    s, of = shape, lanes(p, shape)
    wide = 2 if s.a in ("f64", "c128") else 1
    bytes = s.batch * (s.m*s.k + s.k*s.n + s.m*s.n) * s.itemsize
    teams = warps(p) // p.team
    groups, rounds = ceil(s.batch / p.matrices), p.matrices // of.TOGETHER * of.PARTS
    fmas = p.thread_m * p.thread_n * s.k * (4 if s.a in COMPLEX else 1)         # of a lane in a round
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
        *operands(p, s), (s.m, s.n), of)
    parts = (*parts, ("partial sectors", partly)) if partly else parts
    together = sum(x**POWER for what, x in parts if what != "partial sectors") ** (1/POWER)
    return Cost(START + together + partly, parts, rounds=groups / (at_once*target.sms))


def loads(s: GpuShape, p: NvidiaPlan) -> float:
    """Clocks of shared memory for all that a warp loads in a round."""
    of = lanes(p, s)

    def clocks(x: Stored, down: bool) -> float:
        each = NVIDIA.split(x.WIDTH*x.BYTES, True).phases + passes(x, of, down, NVIDIA)
        return each * x.COUNT * s.k / x.WIDTH
    a, b = operands(p, s)
    return clocks(a, True) + clocks(b, False)


def stores(s: GpuShape, p: NvidiaPlan) -> float:
    """The same for C on its way."""
    a, b = operands(p, s)
    return 2.0 * a.COUNT * b.COUNT * tile_passes(a, b, (s.m, s.n), lanes(p, s), NVIDIA)


def loaded(shape: GpuShape, p: NvidiaPlan) -> int:
    """Bytes that all lanes load of a product's operands, those that several lanes share as often."""
    return lanes(p, shape).EACH * (p.thread_m + p.thread_n) * shape.k * shape.itemsize


def _traffic(shape: GpuShape, p: NvidiaPlan) -> dict[str, tuple[Term, ...]]:
    s, each = shape, shape.itemsize
    sizes = ("A", s.m*s.k*each), ("B", s.k*s.n*each)
    once = tuple(Term(x, size, s.batch, "once") for x, size in sizes)
    c = Term("C", s.m*s.n*each, s.batch, "written")
    staged = (Term("C exchanged", s.m*s.n*each, 2*s.batch, "written and read"),) if p.store == "smem" else ()
    return {"shared": (*(Term(f"{x} written", size, s.batch, "once") for x, size in sizes),
                       Term("A and B read", loaded(s, p), s.batch, "by the threads that share a product"), *staged),
            "L2": once, "memory": (*once, c)}


class Small(Family):
    name = "small"
    tiled = False

    def candidates(self, shape: GpuShape, target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
        if not shape.semiring and (fits(shape) or shape.a in COMPLEX):
            yield from _candidates(shape, target)

    violations = staticmethod(_violations)

    def threads(self, p: NvidiaPlan) -> int:
        return WARP * warps(p)

    registers = staticmethod(_registers)
    shared = staticmethod(_shared)

    def grid(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> tuple[int, int, int]:
        return ctas(p, shape), 1, 1

    cost = staticmethod(_cost)

    def traffic(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> dict[str, tuple[Term, ...]]:
        return _traffic(shape, p)

    def peak(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> float:
        if shape.a in COMPLEX:                      # four multiply-adds of real numbers
            return (target.fma_f32 if shape.a == "c64" else target.fma_f64) * target.sms * target.clock / 2
        return super().peak(shape, p, target)
