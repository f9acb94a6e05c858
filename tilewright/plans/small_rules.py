"""Plans by small (kernels/gpu/small.py): batches of products of a size that is in the code; what a plan may be, what it
takes of a multiprocessor and costs, and where a team keeps matrices in shared memory.

A plan's text has the size, the rows and columns of C of a thread, the matrices of a team and, if that is not one warp,
its warps: small 32x32x32 thread=4x4 stages=1 matrices=1 team=2. Pads are found by counting the passes of shared memory
that loads take, by the rule of targets/banks.py. The batch crosses the memory's interface once, unless loads from
shared memory or multiply-adds take longer, or too few teams are there to hide what one waits for.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd
from operator import itemgetter
from typing import TYPE_CHECKING

from tilewright.forks import cached_property
from tilewright.plans.common import Cost, Term
from tilewright.plans.gpu_shape import SECTOR, WIDEST, GpuShape
from tilewright.targets import banks as of_targets
from tilewright.targets.banks import NVIDIA, WORD, Banks
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.plans.nvidia_plan import NvidiaPlan

PADS = 2, 9         # vectors after a row, or after a matrix, fewer than so many


def power(*counts: int) -> int:
    """The largest power of two that divides all of these."""
    divisor = gcd(*counts)
    return divisor & -divisor


def whole(count: int, bytes: int) -> int:
    """So many elements, and what fills up the last vector."""
    return -(-count*bytes // WIDEST) * WIDEST // bytes


@dataclass(frozen=True)
class Lanes:
    """The COUNT lanes of a team, which has warps of WARP: DOWN x ACROSS of them share a matrix, the latter side by
    side, and TOGETHER matrices are multiplied at once; or one in PARTS, where it takes more lanes than there are. Lanes
    beyond have what the last one's have."""
    COUNT: int
    DOWN: int
    ACROSS: int
    WARP: int = 32

    @cached_property
    def EACH(self) -> int:
        return self.DOWN * self.ACROSS

    @cached_property
    def TOGETHER(self) -> int:
        return max(self.COUNT // self.EACH, 1)

    @property
    def PARTS(self) -> int:
        return ceil(self.EACH / self.COUNT)

    @property
    def IDLE(self) -> bool:
        """Whether there are lanes beyond."""
        return self.EACH * self.TOGETHER % self.COUNT > 0

    @cached_property
    def places(self) -> list[tuple[int, int, int]]:
        """(matrix, down, across) of every lane of the first warp, in the first part."""
        last, own, across = self.TOGETHER - 1, self.EACH, self.ACROSS
        return [(min(lane // own, last), lane % own // across, lane % own % across) for lane in range(self.WARP)]


@dataclass(frozen=True)
class Stored:
    """An operand: OUTER rows of INNER elements of BYTES, as they are contiguous in memory; ROW and MATRIX elements
    apart in shared memory. Of its rows (ALONG_K), or the columns that lie side by side, a lane has COUNT of what LANES
    lanes share: number e of lane u is

        ALONG_K     u + e*LANES                                     and vectors of WIDTH are steps of k
        else        (e // WIDTH)*LANES*WIDTH + u*WIDTH + e % WIDTH  and vectors of WIDTH are of one step

    which may lie beyond OUTER, or INNER: then it is the last, or stands at the beginning. COPIED elements of a row are
    copied at once; 0: rows are no whole vectors, and nothing is padded."""
    OUTER: int
    INNER: int
    BYTES: int
    ALONG_K: bool
    LANES: int
    COUNT: int
    WIDTH: int
    ROW: int
    MATRIX: int
    COPIED: int

    @property
    def starts(self) -> list[int]:
        """Where each lane begins to read."""
        if self.ALONG_K:
            return [min(lane, self.OUTER - 1) * self.ROW for lane in range(self.LANES)]
        return [lane*self.WIDTH if lane*self.WIDTH < self.INNER else 0 for lane in range(self.LANES)]

    @property
    def SIZE(self) -> int:
        """Elements of a matrix."""
        return self.OUTER * self.INNER

    def area(self, MATRICES: int) -> int:
        """Elements of shared memory for so many, whole vectors."""
        return whole(MATRICES * self.MATRIX, self.BYTES)


def passes(x: Stored, lanes: Lanes, down: bool, banks: Banks) -> int:
    """Wavefronts of shared memory for one load of all lanes of a warp, beyond the fewest."""
    starts = x.starts
    at = [(matrix*x.MATRIX + starts[i if down else j]) * x.BYTES for matrix, i, j in lanes.places]
    return _passes(at, x.WIDTH*x.BYTES, True, banks)


def tile_passes(a: Stored, b: Stored, sizes: tuple[int, int], lanes: Lanes, banks: Banks) -> float:
    """For each number of C, M x N without gaps, that a lane stores there."""
    at, width = _of_c(a, b, sizes, lanes)
    bytes = width*b.BYTES
    return (banks.split(bytes, False).phases + _passes(at, bytes, False, banks)) / width


def beyond_whole(a: Stored, b: Stored, sizes: tuple[int, int], lanes: Lanes) -> float:
    """Bytes of the sectors of C that lanes of a warp touch with one store, over those that they store, less 1."""
    at, width = _of_c(a, b, sizes, lanes)
    touched = {byte // SECTOR for first in at for byte in (first, first + width*b.BYTES - 1)}
    return max(len(touched) * SECTOR / (len(set(at)) * width*b.BYTES) - 1, 0.0)


def _of_c(a: Stored, b: Stored, sizes: tuple[int, int], lanes: Lanes) -> tuple[list[int], int]:
    """Where in C, without gaps, each lane of a warp stores first, in bytes; how many numbers at once."""
    M, N = sizes
    elements = []
    for matrix, i, j in lanes.places:
        row, column = i if a.ALONG_K else i*a.WIDTH, j if b.ALONG_K else j*b.WIDTH
        elements.append((matrix*M*N + row*N + column) * b.BYTES)
    return elements, 1 if b.ALONG_K else b.WIDTH


def _passes(at: list[int], size: int, load: bool, banks: Banks) -> int:
    """For accesses of so many bytes at these places by the lanes of a warp, beyond the fewest."""
    split = banks.split(size, load)
    words: list[dict[int, set[int]]] = [{} for _ in range(split.phases)]
    for phase, first in zip(split.phase, at):
        for word in range(first // WORD, first // WORD + max(size // WORD, 1)):
            words[phase].setdefault(word % split.banks, set()).add(word)
    most = [len(max(phase.values(), key=len, default=())) for phase in words]
    return sum(most) - split.phases


@lru_cache(maxsize=1024)
def stored(OUTER: int, INNER: int, BYTES: int, ALONG_K: bool, COUNT: int, COPIED: int, lanes: Lanes, down: bool,
           banks: Banks) -> Stored:
    """The layout with the fewest conflicts, and of those the smallest. COPIED elements of a row may be copied at once;
    `down`: these are the lanes that share it."""
    widest, LANES = WIDEST // BYTES, lanes.DOWN if down else lanes.ACROSS
    padded = COPIED*BYTES == WIDEST
    unit = widest if padded else 1
    WIDTH = power(widest, INNER) if ALONG_K else power(widest, INNER, COUNT)
    layouts: list[tuple[int, int, Stored]] = []
    for row in range(PADS[0] if padded else 1):
        for matrix in range(PADS[1] if padded else 1):
            ROW = INNER + row*unit
            layout = Stored(OUTER, INNER, BYTES, ALONG_K, LANES, COUNT, WIDTH, ROW, OUTER*ROW + matrix*unit,
                          COPIED if padded else 0)
            layouts.append((passes(layout, lanes, down, banks), layout.MATRIX, layout))
    return min(layouts, key=itemgetter(0, 1))[2]


FORMATS = {"f32": 1, "f64": 2, "c64": 2, "c128": 4}     # words of a number
COMPLEX = "c64", "c128"
MOST = 64               # rows, columns and steps of k
WARP, WARPS = 32, 4     # lanes; warps of a CTA, if each has matrices of its own
MOST_LOADED = 128       # that a plan may have
LOADED, AROUND = 96, 36  # words that a thread loads before it multiplies them, at most; its indices and addresses
TEAMS = 1, 2, 4         # warps that may share a product


def fits(shape: GpuShape) -> bool:
    """Whether there are such plans."""
    return not list(of_shape(shape))


def warps(p: NvidiaPlan) -> int:
    """Warps of a CTA."""
    return p.team if p.team > 1 else WARPS


def lanes(p: NvidiaPlan, shape: GpuShape) -> Lanes:
    return Lanes(WARP*p.team, ceil(shape.m / p.thread_m), ceil(shape.n / p.thread_n))


def operands(p: NvidiaPlan, shape: GpuShape) -> tuple[Stored, Stored]:
    """A and B in shared memory."""
    own, LAYOUT, (M, N, K) = lanes(p, shape), shape.layout, (shape.m, shape.n, shape.k)
    banks = of_targets.for_target(None, own.WARP)
    return (stored(*((M, K) if LAYOUT[0] == "n" else (K, M)), shape.itemsize, LAYOUT[0] == "n", p.thread_m,
                   p.vectors[0], own, True, banks),
            stored(*((K, N) if LAYOUT[1] == "n" else (N, K)), shape.itemsize, LAYOUT[1] == "t", p.thread_n,
                   p.vectors[1], own, False, banks))


def shared(p: NvidiaPlan, shape: GpuShape) -> int:
    """Bytes of a CTA."""
    (a, b), size = operands(p, shape), shape.itemsize
    tile = whole(lanes(p, shape).TOGETHER * shape.m*shape.n, size) if p.store == "smem" else 0
    return warps(p) // p.team * (a.area(p.matrices) + b.area(p.matrices) + tile) * size


def registers(p: NvidiaPlan, shape: GpuShape) -> int:
    """Registers of a thread, about: sums, and most of what is loaded before it is multiplied; indices and addresses."""
    words = FORMATS[shape.a]
    loaded = min((p.thread_m + p.thread_n) * words * max(WIDEST // (4*words), 1), LOADED)
    return min(-(-(p.thread_m*p.thread_n*words + loaded // 2 + AROUND) // 8) * 8, 255)


def ctas(p: NvidiaPlan, shape: GpuShape) -> int:
    """CTAs of a launch: a team for each group of matrices."""
    return ceil(shape.batch / (p.matrices * (warps(p) // p.team)))


def whole_sectors(p: NvidiaPlan, shape: GpuShape) -> bool:
    """Whether threads that store at once what they have side by side write whole sectors of C."""
    (_, b), of = operands(p, shape), lanes(p, shape)
    run = of.ACROSS * (1 if b.ALONG_K else min(b.WIDTH, p.vectors[2])) * shape.itemsize
    return run % SECTOR == 0 and shape.n*shape.itemsize % SECTOR == 0


def of_shape(shape: GpuShape) -> Iterator[str]:
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


def violations(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    """Why a plan of this algorithm cannot run a shape: sentences, none if it can."""
    if wrong := [*of_shape(shape), *p.below_one("thread_m", "thread_n", "matrices", "vector", "team")]:
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
    if (needed := shared(p, shape)) > target.smem_cta:
        yield f"the matrices take {needed} bytes of shared memory, and {target.name} gives a CTA {target.smem_cta}."
    if (sums := p.thread_m*p.thread_n*size // 4) > MOST_LOADED:
        yield f"a thread's sums would be {sums} registers, and may be {MOST_LOADED}."


# Of an H200, 2026-11-23: 394 plans for 44 sizes (bench/results/h200_small_batches.json has those that are chosen).
START = 2.7e-6          # seconds of a launch: the first loads, the last sums
READING = 0.885         # of the memory's bandwidth
ISSUED = 0.75           # of the multiply-adds that a multiprocessor could issue
ARRIVAL = 3000          # clocks until a group's operands are there
WAITING = 3.0           # clocks of a warp alone for each instruction that multiplies
PARTLY = 0.5            # of the memory's bandwidth, in which sectors of C are written that are not whole
POWER = 5               # the higher, the less what takes equally long slows each other down


def cost(shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> Cost:
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
        phases = NVIDIA.split(x.WIDTH*x.BYTES, True).phases + passes(x, of, down, NVIDIA)
        return phases * x.COUNT * s.k / x.WIDTH
    a, b = operands(p, s)
    return clocks(a, True) + clocks(b, False)


def stores(s: GpuShape, p: NvidiaPlan) -> float:
    """Wavefronts of shared memory for C on its way."""
    a, b = operands(p, s)
    return 2.0 * a.COUNT * b.COUNT * tile_passes(a, b, (s.m, s.n), lanes(p, s), NVIDIA)


def loaded(shape: GpuShape, p: NvidiaPlan) -> int:
    """Bytes that all lanes load of a product's operands, those that several lanes share as often."""
    return lanes(p, shape).EACH * (p.thread_m + p.thread_n) * shape.k * shape.itemsize


def traffic(shape: GpuShape, p: NvidiaPlan) -> dict[str, tuple[Term, ...]]:
    s, itemsize = shape, shape.itemsize
    sizes = ("A", s.m*s.k*itemsize), ("B", s.k*s.n*itemsize)
    once = tuple(Term(x, size, s.batch, "once") for x, size in sizes)
    c = Term("C", s.m*s.n*itemsize, s.batch, "written")
    staged = (Term("C exchanged", s.m*s.n*itemsize, 2*s.batch, "written and read"),) if p.store == "smem" else ()
    return {"shared": (*(Term(f"{x} written", size, s.batch, "once") for x, size in sizes),
                       Term("A and B read", loaded(s, p), s.batch, "by the threads that share a product"), *staged),
            "L2": once, "memory": (*once, c)}
