"""Candidates of plans by Hopper's warpgroups: which tiles, clusters and divisions of k a model chooses from."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from tilewright.plans import prologues
from tilewright.plans.gpu_formats import FP8
from tilewright.plans.gpu_shape import WIDEST, GpuShape, bits_of
from tilewright.plans.nvidia_plan import NvidiaPlan
from tilewright.plans.wgmma_model import round_bytes
from tilewright.plans.wgmma_rules import GROUP_ROWS, NARROWEST, NARROWEST_C, REPEAT, SWIZZLED
from tilewright.problem import SCALE_BLOCKS

if TYPE_CHECKING:
    from tilewright.targets.nvidia import GpuTarget

Tile = tuple[int, int, int, bool, bool]         # cta_m, cta_n, warpgroups, pingpong, swap

# Of wgmma: (CTA's tile, warpgroups that multiply), the largest first; tiles of two warpgroups in turns; clusters.
WARPGROUP = (((192, 192), 3), ((128, 256), 2), ((256, 128), 2), ((192, 128), 3), ((128, 192), 2),
             ((256, 64), 2), ((64, 256), 1), ((128, 128), 2), ((64, 192), 1), ((128, 64), 2), ((64, 128), 1),
             ((64, 64), 1), ((64, 32), 1))
OF_FP8 = ((128, 160), 2),        # besides, where sums and promoted sums share the registers
# Of tf32 whose rows are contiguous: rows of instructions by columns. In turns nothing hides loads of fragments: 0.8.
OF_STRIDED = ((256, 128), 2), ((128, 128), 1), ((128, 64), 1), ((128, 32), 1)
OF_F16 = ((256, 256), 2),       # besides, where sums are f16
# Besides, with widths that fit the shape: rows and warpgroups; parts of n, units of columns (with swap of rows), the
# widest.
FITTED, PARTS_OF_N, WIDTHS, MOST_WIDE = ((64, 1), (128, 2), (192, 3)), (1, 2, 3), (16, 8), 256
LARGE, WIDE = (256, 2), (128, 160)          # of such rows and warpgroups, widths between these: of more some spill
DEEP = (64, 64), (64, 32)       # with twice as much of k, which is 8 % faster
# With a prologue: parts of the columns of instructions, and widths of many; steps of k of tiles at most so wide.
PARTS_DECODED, WIDTHS_DECODED, DEEP_DECODED, WIDE_DECODED = (1, 2, 3, 4), (64, 128, 192, 256), 128, 128
OF_TERMS = ((128, 192), 2), ((128, 160), 2), ((128, 128), 2), ((128, 64), 2), ((64, 128), 1), ((64, 64), 1)
TURNS = (128, 192), (64, 256), (128, 128), (64, 192), (128, 64), (64, 128)
CLUSTERS = (2, 1), (1, 2), (1, 1)
LARGE_CLUSTERS = (4, 1), (1, 4), (2, 4), (4, 2)         # besides, where each CTA has one tile; of three warpgroups the
#                                                         last two take 1.1 to 1.4 of the expected time
# Tiles that two CTAs of a cluster share by k, where there are few; others of one warpgroup take up to 1.5 of the time.
ALONG_K = ((128, 64), 2), ((128, 96), 2), ((128, 128), 2), ((64, 64), 1)
MOST_ROUNDS = 4         # of tiles, of whose last one parts of k are worth a look
GROUPS = 8, 4, 16, 2, 32, 1     # rows of clusters' tiles that are taken together
FEWEST_STAGES, DEEPEST_STAGES = 3, 8
FEW_ROWS = 32           # for which wgmma is offered with swap alone: copies of rows beyond m are slow
PROMOTED = 128          # steps of k of fp8, of whose sums wgmma keeps about 14 bits: errors would else grow with k


# Of wgmma with swap, for few rows: (columns of C, warpgroups), bytes of k, the most stages.
SWAPPED = ((64, 1), 256, 11), ((64, 1), 128, 12), ((128, 2), 128, 6), ((128, 2), 128, 9)
MOST_SWAPPED = 64


def tiles(shape: GpuShape, target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
    """Plans by Hopper's warpgroups, with as many stages as fit, for what the `declared` passes have left."""
    # of terms: instructions cut off less than an addition rounds, if they add up 128 bytes of k
    promoted = shape.a in FP8 or shape.scales in SCALE_BLOCKS
    promote = SWIZZLED*8 // bits_of(shape.a) if shape.terms else PROMOTED if promoted else 0
    row, fewest = (SWIZZLED, FEWEST_STAGES) if not shape.terms else (SWIZZLED // 2, 2)
    by_threads = shape.a == "tf32" and shape.layout != "nt" and not shape.terms
    mapped = shape.align_c == WIDEST and not by_threads
    offered: list[Tile] = []
    if shape.prologues:
        offered += _decoded(shape)
    elif by_threads:
        offered += ((*(x if shape.layout == "tt" else x[::-1]), warpgroups, False, shape.layout == "nn")
                    for x, warpgroups in OF_STRIDED)
    else:
        tiles = OF_TERMS if shape.terms else (*WARPGROUP, *OF_FP8*promoted, *OF_F16*(declared.get("terms") == "f16"))
        offered += ((*x, warpgroups, False, False) for x, warpgroups in tiles)
        # promoted sums in turns were measured before they alternated: 0.6 of the rate
        offered += ((*x, 2, True, False) for x in TURNS if not promote)
        offered += _fitted(shape, target, not promote)
    for cta_m, cta_n, warpgroups, pingpong, swap in offered:
        row_c, cta_k = cta_n * bits_of(shape.out) // 8, row * 8 // bits_of(shape.a)
        if (by_threads and warpgroups == 1) or ((cta_m, cta_n) in DEEP and not shape.terms and not promoted):
            cta_k *= 2                          # by threads it is 20 % faster: half as many waits for fragments
        if shape.prologues:
            most = DEEP_DECODED if (cta_m if swap else cta_n) <= WIDE_DECODED else cta_k
            cta_k = next((x for x in (most, cta_k, cta_k // 2) if shape.k % x == 0), cta_k)
        plan = NvidiaPlan("wgmma", cta_m, cta_n, cta_k, stages=DEEPEST_STAGES, warpgroups=warpgroups,
                          pingpong=pingpong, promote=max(promote, cta_k) if promote else 0, swap=swap, **declared,
                          vector_c=min(shape.vector_c, 2 if not swap else 4 if by_threads else 1),
                          store="tma" if mapped and row_c % NARROWEST_C == 0 and not (
                              swap and bits_of(shape.out) != 16) else "lanes")
        if shape.prologues and prologues.factored_by(shape.prologue_of(shape.prologues), shape.prologues, cta_k):
            by_stages = replace(plan, promote=cta_k)
            plan = by_stages if by_stages.alternates(shape) else plan
        deepest, plan = plan, _that_fits(plan, fewest, shape, target)
        high, wide = ceil(shape.m / cta_m), ceil(shape.n / cta_n)
        # one warpgroup that reads fragments waits for other CTAs, too: 0.9
        clusters: tuple[tuple[int, int], ...] = CLUSTERS[-1:] if by_threads and warpgroups == 1 else CLUSTERS
        if high*wide*shape.batch <= target.sms and not by_threads and not shape.terms:
            clusters += LARGE_CLUSTERS[:2 if warpgroups == 3 else None]
        for cluster_m, cluster_n in clusters:
            if high > cluster_m - 1 and wide > cluster_n - 1:           # else a CTA of the cluster has nothing to do
                clustered = replace(plan, cluster_m=cluster_m, cluster_n=cluster_n)
                bytes_of = partial(round_bytes, shape, clustered, target)
                clustered = replace(clustered, group_m=min(GROUPS, key=bytes_of))
                yield clustered
                divided = replace(clustered, tail=True)
                d = divided.division(shape, target)
                if d.tiles < MOST_ROUNDS*d.clusters and max(d.parts(), default=1) > 1 and not by_threads:
                    yield divided
        if shape.prologues or (((cta_m, cta_n), warpgroups) in ALONG_K and not (pingpong or by_threads or swap)):
            store = "lanes" if swap else deepest.store
            along = _that_fits(replace(deepest, cluster_k=2, store=store), fewest, shape, target)
            if along.clusters(shape, target)[0]*along.cluster_k <= target.sms:
                yield along


def _decoded(shape: GpuShape) -> Iterator[Tile]:
    """Tiles for a prologue of the rows of instructions, which is evaluated once for each tile of columns."""
    swap = shape.prologues == "b"
    columns = shape.m if swap else shape.n
    widths = {ceil(columns / x / REPEAT)*REPEAT for x in PARTS_DECODED} | {x for x in WIDTHS_DECODED if x < columns}
    for high, warpgroups in FITTED:
        for width in sorted(x for x in widths if x <= MOST_WIDE):
            yield *((width, high) if swap else (high, width)), warpgroups, False, swap


def _fitted(shape: GpuShape, target: GpuTarget, turns: bool) -> Iterator[Tile]:
    """Tiles whose widths divide the columns of C, or with `swap` its rows, or are such that each multiprocessor has one
    or two tiles."""
    for swap in False, True:
        (rows, columns), operand = ((shape.m, shape.n), 1) if not swap else ((shape.n, shape.m), 0)
        # of contiguous columns (or rows) whole lines: half ones took 1.2 to 1.5 of the expected time on an H200
        unit = WIDTHS[swap] if shape.layout[operand] == "tn"[swap] else SWIZZLED*8 // bits_of(shape.a)
        unit = max(unit, 16) if shape.sums == "i32" else unit
        for high, warpgroups in FITTED:
            count = ceil(rows / high)*shape.batch
            across = [*PARTS_OF_N, *(int(rounds*target.sms) // count for rounds in (0.5, 1, 2))]
            for width in sorted({ceil(columns / x / unit)*unit for x in across if x}):
                if width > MOST_WIDE or ((high, width), warpgroups) in WARPGROUP:
                    continue
                tile = (width, high) if swap else (high, width)
                yield *tile, warpgroups, False, swap
                if turns and high == GROUP_ROWS and count*ceil(columns / width) > target.sms:
                    yield *tile, 2, True, swap
        if turns and not swap:                      # with swap some spill
            (high, warpgroups), (least, most) = LARGE, WIDE
            across = [*range(ceil(columns / most), columns // least + 1)]
            for width in sorted({ceil(columns / x / unit)*unit for x in across}):
                if least < width and 2*ceil(rows / high)*ceil(columns / width)*shape.batch > target.sms:
                    yield high, width, warpgroups, False, False


def _that_fits(plan: NvidiaPlan, fewest: int, shape: GpuShape, target: GpuTarget) -> NvidiaPlan:
    """The plan with as many of its stages as fit."""
    while plan.stages > fewest and plan.shared(shape) > target.smem_cta:
        plan = replace(plan, stages=plan.stages - 1)
    return plan


def few_rows(shape: GpuShape, target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
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
                if cta_n == GROUP_ROWS and len({*along.clusters(shape, target)}) == 1:      # all run at once
                    yield _that_fits(along, FEWEST_STAGES, shape, target)
