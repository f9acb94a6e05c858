"""What simt, mma and dmma have in common: CTAs of warp tiles that bring tiles of k to shared memory, and how long these
take. Each family says at which rate a multiprocessor multiplies (`rate`), and what else it waits for (`waiting`).
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, ClassVar

from tilewright.plans import epilogues, prologues, semirings
from tilewright.plans.common import Cost, Term, overlapped
from tilewright.plans.gpu_shape import WIDEST, bits_of
from tilewright.plans.invariant import ROWS as ANY_ROWS
from tilewright.plans.nvidia.family import LANES, PART, SPLITS, Family, memory
from tilewright.plans.nvidia.rates import L2, SCHEDULERS, WIDE_L2, once

if TYPE_CHECKING:
    from tilewright.plans.gpu_shape import GpuShape
    from tilewright.plans.nvidia.plan import NvidiaPlan
    from tilewright.targets.nvidia import GpuTarget

LEAST_TAIL = 128        # steps of k: with fewer, kernels without a tail take 3/4 of the time on an H200
TINY = 512, 512, 1024   # m, n and k up to which tiles for matrices of few rows and columns are offered
LANE_C = 4              # elements of a row of C that a lane stores at once at most
FEW_WARPS = {"async": 0.70, "registers": 0.55}  # of the rate, the fewer there are, down to nothing: they wait for loads
COPY = 4                # slots for multiply-adds that a copy takes
SLICE = 1.3e-7          # seconds of another slice, whose sums are added up
# Of prologues in copies through registers, an estimate: instructions of an element beside its own (rounding, a part of
# its operands' loads).
PREPARING = 1.5
# Bytes per second at which the last CTA, alone, adds parts up: of a warp that holds sums, and of all its warps.
ADDING_WARP, ADDING = 19e9, 120e9


class Tiled(Family):
    """Families of plans by warp tiles.

    START       seconds of a launch that are not its arithmetic
    FIRST       tiles of k that pass until the first one has come to a CTA, as each part of a tile's k waits for it
    STORING     clocks of a warp to store an element of C of each of its lanes, one by one
    SPLIT       seconds to write parts of a tile and learn that all are there
    MOST_WARPS  what more than 8 warps gain at most
    WIDE        copies of 16 bytes pass L1 by

    START, FIRST and STORING of simt and mma were fitted to every other case of regret_h200.jsonl and h200_plans.json
    (2026-11-23).
    """
    START: float
    FIRST: float
    STORING: int
    SPLIT = 8.5e-7
    MOST_WARPS: ClassVar[dict[str, float]] = {"async": 1.0, "registers": 1.0}
    WIDE = True

    def rate(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget, resident: int, together: int) -> float:
        """Multiply-adds per clock of a multiprocessor, which holds so many CTAs and has so many together."""
        raise NotImplementedError

    def waiting(self, work: float, shape: GpuShape, p: NvidiaPlan, target: GpuTarget, rate: float, turns: float,
                warps: int, slots: int) -> float:
        """Seconds of `turns` rounds that take `work` by the rate, with what CTAs wait for besides."""
        return work

    def exchanges(self, p: NvidiaPlan) -> bool:
        """Whether lanes exchange their sums to store them."""
        return False

    def busy(self, p: NvidiaPlan, warps: int) -> float:
        """Of the rate with 8 warps on a multiprocessor: few wait for their loads."""
        few = FEW_WARPS[p.copy]
        return min(self.MOST_WARPS[p.copy], few + (1 - few)*warps/8)

    def cost(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> Cost:
        m, n, k, s = shape.m, shape.n, shape.k, shape.itemsize
        tiles, resident = p.tiles(m, n, shape.batch), max(p.resident(shape, target), 1)
        slots = target.sms * resident
        together = min(resident, ceil(tiles*p.split_k / target.sms))
        warps = p.threads // LANES * together
        rate = self.rate(shape, p, target, resident, together)
        depth, parts = ceil(k / p.cta_k), p.tail_split(shape, target)[1] if p.tail else p.split_k

        def alone(tiles_of_k: int) -> float:
            """Clocks of a tile of C, or a part of it, that has the multiprocessor."""
            steps = min(tiles_of_k*p.cta_k, k) + self.FIRST*p.cta_k
            return p.extent[0]*p.extent[1] * steps / rate
        whole, shorter = 0, alone(ceil(depth / parts)) / alone(depth)      # each part has its own first tile of k
        if p.tail:
            whole = p.tail_split(shape, target)[0]
            rounds = whole/slots + ceil((tiles - whole)*parts / slots)*shorter
        else:
            full, rest = divmod(tiles*parts, slots)
            last = ceil(rest / target.sms)                          # CTAs share multiprocessors as evenly as can be,
            slower = 1.0 if not last else self.busy(p, warps) / self.busy(p, p.threads // LANES * last)
            rounds = full + min(last / resident * slower, 1.0)      # and the last are slower if they are fewer
            if full and rest and p.slices == 1:
                rounds = full + 1
            rounds *= shorter
        ctas = whole + (tiles - whole)*parts
        stored = p.extent[0]*p.extent[1] / (LANES*SCHEDULERS) * self.STORING / min(p.vectors[2], LANE_C)
        work = (rounds * resident * alone(depth) + ceil(ctas / target.sms) * stored) / target.clock
        turns = rounds if p.tail else ceil(ctas / slots) * ceil(depth / parts) / depth
        work = self.waiting(work, shape, p, target, rate, turns, warps, slots)
        (bits_a, bits_b), (rows, columns) = shape.bits, p.extent
        moved = tiles * (rows*bits_a + columns*bits_b) * k // 8
        wide = self.WIDE and p.copy == "async" and p.vector*s == WIDEST
        through_l2 = moved / min(tiles*p.split_k, target.sms) / (WIDE_L2 if wide else L2) / target.clock
        least = once(shape, target)
        tile = p.extent[0]*p.extent[1] * s * semirings.fields(shape.semiring)
        adding = min(ADDING_WARP * (p.threads // LANES // p.slices), ADDING)
        added = self.SPLIT + parts * tile / adding if parts > 1 else 0.0
        if p.tail and parts > 1:
            added = max(added, self.SPLIT + PART*parts * resident*alone(depth) / target.clock)
        if p.split_k > 1:                   # before the last ones, on all multiprocessors at once
            added += 2 * p.split_k * tiles*tile / (L2 * target.sms * target.clock)
        finishing = epilogues.slots(shape.epilogue) * p.extent[0]*p.extent[1] * rounds*resident
        added += finishing / (LANES*SCHEDULERS*target.clock)
        return overlapped(self.START + added + SLICE*(p.slices - 1),
                          {"multiply-adds": work, "from L2": through_l2, "memory": least}, rounds)

    def reads(self, s: GpuShape, p: NvidiaPlan, divided: int) -> list[Term]:
        """What a kernel loads of fragments from shared memory."""
        tiles, steps, warps = p.tiles(s.m, s.n, s.batch), ceil(s.k / p.cta_k), p.threads // LANES
        step, terms = self.fragment(s), s.tile_bits[0] // bits_of(s.a)
        reads = tiles*(steps*p.cta_k*bits_of(s.a)*terms // 8 // step + divided)*warps
        return [Term(f"{x} read", own*step, reads, f"by {warps} warps in {step} bytes of k")
                for x, own in (("A", p.warp_m), ("B", p.warp_n))]

    def fragment(self, s: GpuShape) -> int:
        """Bytes of k that are read ahead of those that are multiplied."""
        raise NotImplementedError

    def traffic(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> dict[str, tuple[Term, ...]]:
        s, size = shape, shape.itemsize
        tiles, steps = p.tiles(s.m, s.n, s.batch), ceil(s.k / p.cta_k)
        moved, divided = memory(s, p, target)
        every = tiles*steps, f"{tiles:,} tiles x {steps:,} steps along k"
        extents = ("A", p.cta_m), ("B", p.cta_n)
        brought = [extent*p.cta_k*bits // 8 for (_, extent), bits in zip(extents, shape.tile_bits)]     # of a tile
        written = [Term(f"{x} written", tile, *every) for (x, _), tile in zip(extents, brought)]
        read = self.reads(s, p, divided)
        if p.slices > 1:                    # which add up their sums
            sums = (p.slices - 1)*p.cta_m*p.cta_n*size, tiles*p.split_k, f"of {p.slices - 1} of {p.slices} slices"
            written, read = [*written, Term("sums written", *sums)], [*read, Term("sums read", *sums)]
        if divided == 1 and not p.tail and self.exchanges(p):
            sums = size*p.cta_m*p.cta_n, tiles, "exchanged by lanes"
            written, read = [*written, Term("sums written", *sums)], [*read, Term("sums read", *sums)]
        return {"shared": (*written, *read),
                "L2": tuple(Term(x, extent*s.k*bits // 8, tiles, f"for each of {tiles:,} tiles")
                            for (x, extent), bits in zip(extents, s.bits)), "memory": moved}


def preparing(shape: GpuShape, p: NvidiaPlan) -> float:
    """Instructions of a thread that a CTA's prologues take for a tile of k."""
    return sum(extent * p.cta_k * (prologues.instructions(shape.prologue_of(role)) + PREPARING)
               for role, extent in (("a", p.cta_m), ("b", p.cta_n)) if role in shape.prologues)


def divided_plans(tiles: Iterable[NvidiaPlan], shape: GpuShape, target: GpuTarget) -> Iterator[NvidiaPlan]:
    """Plans of these tiles, of f32, f64 or a semiring, for the operands' alignment, by parts of k."""
    for tile in tiles:
        vector = min(shape.vector_a, shape.vector_b, WIDEST // shape.itemsize)
        tile = replace(tile, registers=0) if shape.semiring or shape.prologues else tile    # these are of multiply-adds
        tile = replace(tile, vector=vector, vector_c=shape.vector_c if shape.vector_c != vector else 0)
        if vector < WIDEST // shape.itemsize and tile.copy == "registers":
            tile = replace(tile, prefetch_first=True)    # many loads: 2039 by single elements gained 28 % on an H200
        if ("cp.async" not in target.instructions or shape.prologues) and tile.copy == "async":
            tile = replace(tile, copy="registers", stages=2)
        # Copies of single elements need more pointers and would spill; slices are slower with a tail.
        if tile.vector > 1 and tile.slices == 1 and shape.k >= LEAST_TAIL:
            yield replace(tile, tail=True)          # first: its kernel is 2 % faster even where nothing is left over
        yield from (replace(tile, split_k=split) for split in SPLITS)


def several(shape: GpuShape) -> bool:
    """Whether C has several rows and columns, or is none of gemv's, which has no pairs of sums."""
    return (1 not in (shape.m, shape.n) or shape.invariant in ANY_ROWS
            or epilogues.sums_of_result(shape.epilogue) > 1)


def tiny(shape: GpuShape) -> bool:
    """Whether tiles for matrices of few rows and columns are worth a look: others are mostly empty, or too few."""
    return all(size <= most for size, most in zip((shape.m, shape.n, shape.k), TINY))
