"""What a plan by small (kernels/gpu/small.py) may be: batches of products of a size that is in the code; and what it
takes of a multiprocessor.

A plan's text has the size, the rows and columns of C of a thread, the matrices of a team and, if that is not one warp,
its warps: small 32x32x32 thread=4x4 stages=1 matrices=1 team=2.
"""
from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from tilewright.plans import small_layout
from tilewright.plans.gpu_shape import WIDEST, GpuShape
from tilewright.plans.small_layout import Lanes, Stored, whole
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.plans.nvidia_plan import NvidiaPlan

FORMATS = {"f32": 1, "f64": 2, "c64": 2, "c128": 4}     # words of a number
COMPLEX = "c64", "c128"
MOST = 64               # rows, columns and steps of k
WARP, WARPS = 32, 4     # lanes; warps of a CTA, if each has matrices of its own
MOST_LOADED = 128       # that a plan may have
LOADED, AROUND = 96, 36  # words that a thread loads before it multiplies them, at most; its indices and addresses
SECTOR = 32             # bytes
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
    return small_layout.operands(shape.itemsize, shape.layout, (shape.m, shape.n, shape.k), (p.thread_m, p.thread_n),
                                 p.vectors[:2], lanes(p, shape))


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
    if (found := shared(p, shape)) > target.smem_cta:
        yield f"the matrices take {found} bytes of shared memory, and {target.name} gives a CTA {target.smem_cta}."
    if (sums := p.thread_m*p.thread_n*size // 4) > MOST_LOADED:
        yield f"a thread's sums would be {sums} registers, and may be {MOST_LOADED}."
