"""What a family of kernels for NVIDIA's GPUs is: one object that knows which plans are worth a look, why one cannot
run, what it takes of a multiprocessor and how long it takes. `FAMILIES` has one for each algorithm of plans.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any

from tilewright.plans import gpu_lowering, passes
from tilewright.plans.common import Term
from tilewright.plans.gpu import memory_traffic
from tilewright.plans.gpu_shape import WIDEST
from tilewright.plans.invariant import ROWS as ANY_ROWS
from tilewright.plans.nvidia.rates import WIDE_L2

if TYPE_CHECKING:
    from tilewright.plans.common import Cost
    from tilewright.plans.gpu_shape import GpuShape
    from tilewright.plans.nvidia.plan import NvidiaPlan
    from tilewright.targets.nvidia import GpuTarget

LANES = 32              # of a warp
FORMATS = "f32", "f64"  # that CUDA cores multiply; of semirings gpu_lowering.COMBINED
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32)
LEAST_COPIED = 256      # of m, n and k, from which copies of operands are considered
MOST_PARTS = 16
PART = 0.008            # of a tile's time that another part of it costs: writing and adding up a tile of C


class Family:
    """Kernels of one kind. Here is what most of them have in common.

    name            the first word of a plan's text
    sizes           fields that must not be less than 1, beside those of all plans
    fewest_stages   of tiles of k in shared memory
    tiled           plans have tiles of C and of k, and follow the rules of rules.py
    prepares        its kernels evaluate prologues
    combines        they take a semiring instead of multiplying and adding
    splits          they multiply terms
    swaps           rows of instructions may be columns of C
    spreads_k       threads have parts of k of their own
    stays           CTAs take tile after tile, as many as run at once
    slack           registers by which an estimate may be wrong
    l2_clock        bytes per clock and multiprocessor that its copies bring from L2
    """
    name: str
    sizes: tuple[str, ...] = ("warp_m", "warp_n")
    fewest_stages = 2
    tiled = True
    prepares = combines = splits = swaps = stays = spreads_k = False
    slack = 16
    l2_clock = WIDE_L2

    # ---- which plans

    def candidates(self, shape: GpuShape, target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
        """Plans worth a look, legal or not; `declared` are words that all of them have."""
        raise NotImplementedError

    def violations(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
        """Why a plan cannot run a shape, beside what is wrong with plans of any family (rules.py)."""
        raise NotImplementedError

    def formats(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> tuple[str, ...]:
        """Formats that it multiplies."""
        raise NotImplementedError

    def wrong_formats(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> str:
        """What is wrong with the formats, if anything is."""
        own = self.formats(p, shape, target)
        listed = " and ".join(filter(None, (", ".join(own[:-1]), own[-1])))
        return "" if shape.a in own else f"{self.name} multiplies {listed}, and this is {shape.a} by {shape.b}."

    def moved(self, p: NvidiaPlan, shape: GpuShape) -> Iterator[str]:
        """What is wrong with the elements that are moved at once."""
        if p.vector > (most := min(shape.vector_a, shape.vector_b)):
            yield (f"vector = {p.vector} elements are copied at once, and the operands allow {most}: by their "
                   "addresses, leading dimensions and sizes.")
        yield from stored(p.vectors[2], shape)
        yield from copied(p, shape)

    # ---- what a plan takes

    def threads(self, p: NvidiaPlan) -> int:
        """Threads of a CTA."""
        return LANES * (p.cta_m // p.warp_m) * (p.cta_n // p.warp_n) * p.slices

    def registers(self, p: NvidiaPlan, shape: GpuShape) -> int:
        """Registers of a thread, about."""
        raise NotImplementedError

    def shared(self, p: NvidiaPlan, shape: GpuShape) -> int:
        """Bytes of a CTA's shared memory."""
        raise NotImplementedError

    def resident(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> int:
        """CTAs that a multiprocessor holds."""
        return target.occupancy(p.threads, min(p.estimate(shape), target.registers_thread), p.shared(shape))

    def tail_split(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> tuple[int, int]:
        """With `tail`: (tiles that stay whole, parts of each of the others)."""
        tiles = p.tiles(shape.m, shape.n, shape.batch)
        slots = target.sms * max(p.resident(shape, target), 1)
        whole = tiles // slots * slots
        over = tiles - whole
        if not over:
            return tiles, 1
        parts = min(range(1, MOST_PARTS + 1), key=lambda s: ceil(over*s / slots)/s + PART*s)
        return (tiles, 1) if parts == 1 else (whole, parts)

    def grid(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> tuple[int, int, int]:
        tiles = p.tiles(shape.m, shape.n, shape.batch)
        if p.tail:
            whole, parts = p.tail_split(shape, target)
            return whole + (tiles - whole)*parts, 1, 1
        return tiles, 1, p.split_k

    # ---- what it costs

    def cost(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> Cost:
        """The predicted cost of a legal plan, without passes."""
        raise NotImplementedError

    def traffic(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> dict[str, tuple[Term, ...]]:
        """Bytes that all CTAs move, by level, without passes."""
        raise NotImplementedError

    def rates(self, target: GpuTarget) -> Mapping[str, float]:
        """Rates of the matrix instructions that it uses: operations per clock of a multiprocessor, by format."""
        return target.matrix_rates

    def peak(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> float:
        """Operations per second of all multiprocessors, with the instructions of a plan."""
        return 2 * (target.fma_f32 if shape.itemsize == 4 else target.fma_f64) * target.sms * target.clock


FAMILIES: dict[str, Family] = {}        # by their names; plans/nvidia/__init__.py has the list


def memory(s: GpuShape, p: NvidiaPlan, target: GpuTarget) -> tuple[tuple[Term, ...], int]:
    """What crosses the memory's interface, and into how many parts tiles are divided."""
    tiles, tile = p.tiles(s.m, s.n, s.batch), p.extent[0]*p.extent[1] * s.itemsize
    whole, divided = p.tail_split(s, target) if p.tail else (0, p.split_k)
    if not p.tail or divided == 1:
        return memory_traffic(s, divided, tiles*tile), divided
    over = tiles - whole                                                # tiles that are added up from parts
    return (*memory_traffic(s, 1, 0), Term("parts", over*tile, 2*divided,
                                           f"{divided} of {over} tiles, written, and read by the last")), divided


def stored(vector: int, shape: GpuShape) -> Iterator[str]:
    if vector > shape.vector_c:
        yield f"vector_c = {vector} elements of C are stored at once, and C allows {shape.vector_c}."


def copied(p: NvidiaPlan, shape: GpuShape) -> Iterator[str]:
    if p.vector*shape.itemsize > WIDEST:
        yield f"vector = {p.vector} {shape.sums} are more than the {WIDEST} bytes that a thread copies at once."


def supported(shape: GpuShape, target: GpuTarget) -> tuple[str, ...]:
    """Formats of kernels for products like this."""
    return gpu_lowering.multiplied(target, shape.scales, shape.semiring)


# ---- what candidates of several families need

def as_is_or_copied(plans: Callable[..., Iterator[NvidiaPlan]], fits: Callable[[GpuShape], bool], shape: GpuShape,
                    target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
    """Plans for a shape that fits a kernel, or that does once passes have copied operands."""
    if fits(shape):
        yield from plans(shape, target, **declared)
    elif ((min(shape.m, shape.n, shape.k) >= LEAST_COPIED or shape.invariant in ANY_ROWS)
          and (copies := passes.copies(shape, fits))):
        copied, after = copies
        yield from plans(after, target, copied=copied, **declared)


def whole_vectors(shape: GpuShape) -> bool:
    return all(vector*bits == 8*WIDEST for vector, bits in zip((shape.vector_a, shape.vector_b), shape.bits))
