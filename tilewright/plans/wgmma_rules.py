"""What a plan by Hopper's warpgroups (kernels/nvidia/wgmma_gemm.py) may be: its own limits, beside those that all plans
for NVIDIA's GPUs have (nvidia_rules.py), and how its clusters share tiles of C by k."""
from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from tilewright.plans import epilogues, gpu_shape, prologues
from tilewright.plans.gpu_shape import WIDEST, GpuShape
from tilewright.problem import SCALE_BLOCK, SCALE_BLOCKS
from tilewright.targets.nvidia import CLUSTER, GpuTarget

if TYPE_CHECKING:
    from tilewright.plans.nvidia_plan import NvidiaPlan

# What plans by wgmma do not have.
UNUSED = ("copy", "async"), ("vector", 1), ("slices", 1)
# Of wgmma: rows of an instruction, bytes of a row in shared memory (at least, of C at least, and at most), rows after
# which its swizzle repeats, extents of a TMA box. C goes through a buffer of so many bytes of each warp, or two where a
# tile has no more numbers than these: of a larger one a fourth stage fits instead. One warpgroup more copies.
GROUP_ROWS, NARROWEST, NARROWEST_C, SWIZZLED, REPEAT, BOX, STAGED_C, GROUP = 64, 64, 32, 128, 8, 256, 2048, 128
TWICE_STAGED = 128*256
REPEAT_C = 256          # bytes after which the swizzle of the NARROWEST_C bytes of a row of C repeats, with swap
GROUP_REGISTERS = {1: 240, 2: 232, 3: 160}      # of a thread that multiplies, by the number of warpgroups
BESIDE = 26             # registers that NVIDIA's assembler wants beside the sums of one instruction, of equal shares
MOST_CTAS, WARPS = CLUSTER, 4                   # CTAs of a cluster, warps of a warpgroup
# Multiprocessors of so many that clusters of more than two CTAs find: parts of the chip, in one of which each cluster
# is, leave some over. 30 clusters of 4 and 15 of 8 run at once on the 132 of an H200 (cuOccupancyMaxActiveClusters).
IN_CLUSTERS = 11, 12
MOST_PARTS = 16         # of a tile, with `tail`
PREPARED_BITS, PREPARED_STEP = (4, 8, 16), 32   # of elements with a prologue; steps of k of which tiles are multiples
STRIDED_STEP = 16       # of k, of which tf32 whose rows are contiguous is read at least
LEAST_SHARE = 4         # steps of k of a cluster
APART = 4               # steps of k whose sums overlap with each other's promotion (NvidiaPlan.alternates)
EVEN = 0.85             # of the clusters that equal parts of tiles must occupy, else shares are of equal length


class Division(NamedTuple):
    """How clusters share tiles of C (of all CTAs of a cluster together) by k: see wgmma_tiles.Tiles.

    clusters    that are launched; each has `whole` tiles in turn, then a share
    shares      of the other tiles: `share` steps of k each, on a line on which a tile begins `apart` steps behind the
                one before
    """
    tiles: int
    steps: int              # of a CTA, for a tile
    clusters: int
    whole: int
    share: int
    apart: int

    @property
    def over(self) -> int:
        """Tiles that are divided."""
        return self.tiles - self.whole

    @property
    def shares(self) -> int:
        return ceil(self.over*self.apart / self.share)

    def parts(self) -> list[int]:
        """Parts of each tile that is divided."""
        begins = range(0, self.over*self.apart, self.apart)
        return [(at + self.steps - 1) // self.share - at // self.share + 1 for at in begins]


def division(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Division:
    """The division of k: with `split_k`, equal parts of each tile that is left over after whole rounds, no more than
    there are clusters; with `tail`, such parts if they occupy most clusters, else shares of equal length; or of tiles
    alone."""
    tiles, most = p.clusters(shape, target)
    steps = ceil(ceil(shape.k / p.cta_k) / p.cluster_k)
    over = tiles % most
    if not over or not p.divided:
        return Division(tiles, steps, most, tiles, steps, steps)
    unit = max(p.promote // p.cta_k, 1)                     # of steps, whose sums have a scale in common
    least = max(min(most // over, steps, p.split_k if p.split_k > 1 else MOST_PARTS), 1)
    share = ceil(ceil(steps / least) / unit) * unit
    apart = ceil(steps / share) * share
    if p.tail and over*(apart // share) < EVEN*most:
        apart = ceil(steps / unit) * unit
        share = min(max(ceil(ceil(over*apart / most) / unit), ceil(LEAST_SHARE / unit)) * unit, apart)
    divided = Division(tiles, steps, most, tiles - over, share, apart)
    return divided if divided.whole else divided._replace(clusters=divided.shares)


def staged(p: NvidiaPlan) -> int:
    """Bytes of shared memory through which a warp's part of C goes to a tensor map; 0: its lanes store C."""
    if p.store != "tma":
        return 0
    if p.swap:
        return ceil(p.cta_m*NARROWEST_C / REPEAT_C) * REPEAT_C
    return STAGED_C * (1 + (p.cta_m*p.cta_n <= TWICE_STAGED))


def strided(p: NvidiaPlan, shape: GpuShape) -> bool:
    """Whether the rows of instructions are contiguous, not k, in tf32, which wgmma takes from registers then."""
    return shape.a == "tf32" and shape.layout[p.swap] != "nt"[p.swap]


def by_registers(p: NvidiaPlan, shape: GpuShape) -> bool:
    """Whether instructions take their rows from registers."""
    return bool(shape.prologues) or strided(p, shape)


def _prologues(shape: GpuShape) -> Iterator[str]:
    """Why no plan evaluates the shape's prologues."""
    role = shape.prologues
    if len(role) > 1:
        yield "wgmma evaluates a prologue of A or of B, not of both."
        return
    at = "ab".index(role)
    bits, along_k = shape.bits[at], shape.layout[at] == "nt"[at]
    if not along_k or bits not in PREPARED_BITS or gpu_shape.bits_of(shape.a) != 16 or shape.k % PREPARED_STEP:
        yield (f"wgmma evaluates prologues of elements of {', '.join(map(str, PREPARED_BITS))} bits with k contiguous, "
               f"a multiple of {PREPARED_STEP}, that give 16 bits, not of {bits} bits in layout {shape.layout} that "
               f"give {shape.a}, with k = {shape.k}.")
    groups = [x.group for x in prologues.read(shape.prologue_of(role)).arrays(role) if x.along_k]
    if any(group % prologues.STEPS for group in groups):
        yield (f"wgmma evaluates prologues that read numbers of groups of a multiple of {prologues.STEPS} steps of k, "
               f"not of {', '.join(map(str, groups))}.")


def decodes(shape: GpuShape) -> bool:
    """Whether there are plans that evaluate the shape's prologues."""
    return next(_prologues(shape), "") == ""


def _preparing(p: NvidiaPlan, shape: GpuShape) -> Iterator[str]:
    """Why this plan does not."""
    yield from _prologues(shape)
    role = "b" if p.swap else "a"
    if shape.prologues != role:
        yield f"wgmma evaluates a prologue of {role.upper()}{' with swap' * p.swap}, not of {shape.prologues.upper()}."
        return
    if shape.k % p.cta_k or p.cta_k % PREPARED_STEP:
        yield f"with a prologue cta_k must divide k and be a multiple of {PREPARED_STEP}, not {p.cta_k} of {shape.k}."
    if p.promote and not (p.alternates(shape) and prologues.factored_by(shape.prologue_of(role), role, p.promote)):
        yield (f"sums are promoted for factors of a prologue that cta_k steps share, where registers suffice for three "
               f"tiles of them; promote must be 0, not {p.promote}.")


def of_wgmma(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    """Why a plan of this algorithm cannot run a shape: sentences, none if it can."""
    yield from (f"{name} must be {value} for wgmma." for name, value in UNUSED if getattr(p, name) != value)
    yield from p.above(cta_m=BOX, cta_n=BOX, warpgroups=max(GROUP_REGISTERS), cta_k=BOX)
    by = " with swap" * p.swap
    (high, rows), (wide, columns) = (("cta_m", p.cta_m), ("cta_n", p.cta_n))[::-1 if p.swap else 1]
    by_threads = strided(p, shape)
    if shape.prologues and (wrong := [*_preparing(p, shape)]):
        yield from wrong
        return
    if rows % (unit := GROUP_ROWS * (1 + by_threads) * (1 if p.pingpong else p.warpgroups)):
        yield f"{high} must be a multiple of {unit} where warpgroups is {p.warpgroups}{by}, not {rows}."
    if by_threads and (p.store != "lanes" or p.vectors[2] > 2 + 2*p.swap or p.promote or p.cta_k % STRIDED_STEP):
        yield (f"tf32 in layout {shape.layout} needs store=lanes, vector_c of at most {2 + 2*p.swap}{by}, promote=0 "
               f"and cta_k a multiple of {STRIDED_STEP}, not {p.store}, {p.vectors[2]}, {p.promote} and {p.cta_k}.")
    elif p.swap and not by_threads and p.vectors[2] != 1:
        yield f"swap needs vector_c=1, not {p.vectors[2]}."
    elif p.swap and p.store == "tma" and (gpu_shape.bits_of(shape.out) != 16 or p.cluster_k > 1 or (
            epilogues.sums_of_result(shape.epilogue) > 1)):
        yield (f"swap with store=tma is for C of 16 bits, of one sum for each number and with cluster_k=1, not for "
               f"{shape.out} and {p.cluster_k}.")
    elif not by_threads and p.vectors[2] > 2:
        yield f"vector_c must be 1 or 2 for wgmma, not {p.vectors[2]}."
    if p.pingpong and p.warpgroups < 2:
        yield f"pingpong takes 2 warpgroups or more, not {p.warpgroups}."
    if columns % (unit := 16 if shape.sums == "i32" and columns > 32 else 8):
        yield f"{wide} must be a multiple of {unit} for products of {shape.a}{by}, not {columns}."
    if p.ctas > MOST_CTAS:
        yield f"a cluster would have {p.ctas} CTAs, and may have {MOST_CTAS}."
    if p.cluster_k > 1:
        if p.ctas > p.cluster_k or p.divided or p.parts > 1:
            yield "with cluster_k, cluster must be 1x1, parts 1, and there can be no split_k or tail."
        if by_threads:
            yield f"cluster_k must be 1 for tf32 in layout {shape.layout}, not {p.cluster_k}."
        if columns % (REPEAT*p.cluster_k):
            yield f"{wide} must be a multiple of {REPEAT*p.cluster_k} with cluster_k = {p.cluster_k}, not {columns}."
        if p.cluster_k > ceil(shape.k / max(p.cta_k, p.promote)):
            yield f"cluster_k = {p.cluster_k} exceeds the number of tiles along k."
    if gpu_shape.bits_of(shape.a) != 16 and shape.layout != ("nt" if not by_threads else "nn" if p.swap else "tt"):
        also = ", nn with swap or tt" * (shape.a == "tf32")
        yield f"wgmma multiplies {shape.a} with k contiguous in A and B, layout nt{also}, not {shape.layout}{by}."
    narrowest = NARROWEST // 2 if shape.prologues else NARROWEST
    bits_a, bits_b = shape.bits if shape.prologues else map(gpu_shape.bits_of, (shape.a, shape.b))
    for name, align, extent, bits, along_k in (("A", shape.align_a, p.cta_m, bits_a, shape.layout[0] == "n"),
                                               ("B", shape.align_b, p.cta_n, bits_b, shape.layout[1] == "t")):
        if align < WIDEST:
            yield (f"{name} must begin at a multiple of {WIDEST} bytes, and its rows (or columns) must be such "
                   "multiples apart, so that a tensor map can describe it.")
        along, across = (p.cta_k, extent) if along_k else (extent, p.cta_k)
        if along*bits // 8 % narrowest or across % REPEAT:
            yield (f"a tile of {name} of {extent} by {p.cta_k} of k must have a multiple of {narrowest*8 // bits} "
                   f"elements along its contiguous dimension, and of {REPEAT} along the other.")
    if p.store == "tma" and shape.align_c < WIDEST:
        yield f"store=tma needs C and its rows at multiples of {WIDEST} bytes."
    unit = NARROWEST_C * p.cluster_k * epilogues.sums_of_result(shape.epilogue)
    if p.store == "tma" and p.cta_n*gpu_shape.bits_of(shape.out) // 8 % unit:
        yield f"store=tma needs cta_n to be a multiple of {unit} bytes of C, and {p.cta_n} {shape.out} are not."
    blocks = shape.scales in SCALE_BLOCKS
    if blocks and p.promote != SCALE_BLOCK:
        yield f"promote must be {SCALE_BLOCK} with scales of {shape.scales}, not {p.promote}."
    if p.promote < 0 or p.promote % p.cta_k or (p.promote and (shape.sums != "f32" or p.terms == "f16") and not blocks):
        yield (f"promote must be 0 or, for sums in f32, a multiple of cta_k = {p.cta_k}, not {p.promote} for sums in "
               f"{'f16' if p.terms == 'f16' else shape.sums}.")
    if p.parts > 1 and (p.promote != p.cta_k or p.cta_n % (8*p.parts) or shape.layout[1] == "n"):
        yield (f"the sums of {p.cta_m}x{p.cta_n} are promoted in {p.parts} parts, for which promote must be cta_k, "
               f"cta_n a multiple of {8*p.parts}, and k contiguous in B.")
    if (registers := p.estimate(shape)) > (most := GROUP_REGISTERS.get(p.warpgroups, 0)):
        yield f"a thread would need about {registers} registers, and has {most} where warpgroups is {p.warpgroups}."
    sums = columns // p.parts * GROUP_ROWS // GROUP // p.packed
    if sums > (most := target.registers_sm // p.threads - BESIDE):
        yield (f"an instruction's sums take {sums} registers of a thread, and NVIDIA's assembler allows {most} where a "
               f"CTA has {p.threads} threads.")
