"""What one workgroup (a CTA) of a GEMM works on: which matrix of a batch, which tile of its C, which part of the tile
each warp, which steps of k.

Every tiled kernel for a GPU opens with these: `parameters` of its function, `arguments` by name, and `share`. The tiles
of a batch are numbered matrix after matrix, so that one launch covers all of them, and split_k divides them.
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.atoms.fragment import ROUNDED
from tilewright.expressions import HALVES, texts
from tilewright.ir import Kernel, Type, Value, f32, f64, i8, i32, i64, ptr
from tilewright.kernels.gpu import auxiliary, groups
from tilewright.kernels.gpu.split_k import Parts, Split
from tilewright.kernels.narrow import memory_type
from tilewright.plans import prologues
from tilewright.plans.gpu_shape import GpuShape
from tilewright.problem import SCALE_BLOCKS


def parameters(s: GpuShape, SUMS: Type, split: Split, WHEN: str = "", GROUPED: str = "",
               types: tuple[Type, Type] | None = None, GATHERED: str = "") -> dict[str, Any]:
    """The parameters of C[m, n] = alpha * A @ B + beta * C in the order of a launch; there are no alpha and beta with a
    semiring. SUMS: the type in which products are added up. `types`: of elements of A and of B in memory.

    Of a batch there are `batch` such products, from one matrix of each operand to the next stride_a, stride_b and
    stride_c elements; 0 where all products have the same matrix. Operands that are terms (rewrite.py) are plane_a and
    plane_b elements from one to the next. WHEN: see `arguments`. GROUPED: see groups.py; of "m" there is
    stride_of_b_NAME, too, from the numbers beside a group's B to the next one's. GATHERED: an operand's rows and steps
    of k lie where two tables of elements say."""
    batch, factor = s.batch != 1, f64 if SUMS == f64 else f32
    apart = {"batch": i32, "stride_a": i64, "stride_b": i64, "stride_c": i64} if batch else {}
    planes: dict[str, Any] = {"plane_a": i64, "plane_b": i64} if s.terms else {}
    special: dict[str, Any] = {"special": ptr(i32)} if WHEN else {}
    contiguous = "a"*(s.layout[0] == "t") + "b"*(s.layout[1] == "n")
    before = auxiliary.parameters(texts.auxiliary("", s.prologue_a, s.prologue_b), GROUPED == "m", contiguous)
    offsets: dict[str, Any] = {"offsets": ptr(i32)} if GROUPED else {}
    tables: dict[str, Any] = {"rows": ptr(i32), "steps": ptr(i32)} if GATHERED else {}
    alpha, beta = ({name: factor if s.scales else SUMS} if not s.semiring else {} for name in ("alpha", "beta"))
    scales = auxiliary.scales(i8 if s.scaled else factor if s.scales else None, s.scales in SCALE_BLOCKS)
    a, b = types or operand_types(s)
    return {"m": i32, "n": i32, "k": i32, **alpha, "a": ptr(a), "lda": i64, "b": ptr(b), "ldb": i64,
            **auxiliary.parameters(scales, batch), **beta, "c": ptr(memory_type(s.out)), "ldc": i64, **apart, **offsets,
            **tables, **planes, **special, **auxiliary.parameters(texts.auxiliary(s.epilogue), batch), **before,
            **split.parameters(SUMS)}


def operand_types(s: GpuShape) -> tuple[Type, Type]:
    """The types of elements of A and of B in memory."""
    stored = (prologues.stored(x, text) for x, text in ((s.a, s.prologue_a), (s.b, s.prologue_b)))
    a, b = (memory_type(ROUNDED.get(x, x).removesuffix(HALVES)) for x in stored)
    return a, b


def arguments(k: Kernel, WHEN: str = "") -> SimpleNamespace:
    """The kernel's parameters by name; `matrix` is the number of the workgroup's matrix in a batch (`in_matrix`).

    WHEN: of two kernels for one product only one does anything, "split" where all numbers could be split into terms,
    so that `special` is 0, and "special" where not."""
    if WHEN:
        special = k.load(dict(k.function.params)["special"])
        with k.when(special != 0 if WHEN == "split" else special == 0):
            k.ret()
    perhaps = "alpha", "beta", "batch", "matrix", "plane_a", "plane_b", "offsets"
    return SimpleNamespace(**dict.fromkeys(perhaps) | dict(k.function.params))


def in_matrix(k: Kernel, g: SimpleNamespace, tile: Value, tiles: Callable[[], Value]) -> Value:
    """The number in its matrix of tile `tile` of a batch whose matrices have so many tiles. From here on g.a and g.b
    are that matrix's operands; Out.from_arguments finds C, after the main loop, which needs the registers."""
    if g.batch is None:
        return tile
    count = tiles()
    g.matrix = tile // count
    for name in ("a", "b"):
        setattr(g, name, getattr(g, name) + k.cast(g.matrix, i64)*getattr(g, f"stride_{name}"))
    return tile - g.matrix*count


def of_batch(g: SimpleNamespace, tiles: Value) -> Value:
    """How many tiles all matrices have, if one has `tiles`."""
    return tiles if g.batch is None else tiles*g.batch


def first_threads(k: Kernel, t: Value, ACTIVE: int, THREADS: int) -> Any:
    """`with` this: what threads 0 ... ACTIVE - 1 of THREADS do."""
    return nullcontext() if ACTIVE == THREADS else k.when(t < ACTIVE)


@dataclass(frozen=True)
class Work:
    t: Value                # thread of the workgroup
    lane: Value             # thread of the warp
    slice: Value | None     # of the warps that share the workgroup's tile of C: each has its steps of every tile of k
    i0: Value               # where the workgroup's tile begins in C
    j0: Value
    i1: Value               # where the warp's part of it begins in the tile
    j1: Value
    parts: Parts            # of k, which workgroups share
    k_first: Value          # the first step of k
    tiles: Value            # of k
    short: Value            # steps of k in the first of them


def share(k: Kernel, g: SimpleNamespace, split: Split, p: Any, *, SLICES: int = 1, DIES: int = 1,
          AT_LEAST_ONE: bool = False, GROUPED: str = "") -> Work:
    """The grid is that of `split`, with as many tiles of the plan p as C has, or a batch, or with groups of rows as
    there are places for tiles (groups.slots). DIES: see by_die.

    AT_LEAST_ONE: a workgroup for which no steps of k are left multiplies one tile of zeros, else none.
    """
    t, CTA_M, CTA_N = k.thread[0], p.cta_m, p.cta_n
    warp, WARPS_M, WARPS = t // k.warp, CTA_M // p.warp_m, CTA_M // p.warp_m * (CTA_N // p.warp_n)
    in_slice, slice = (warp % WARPS, warp // WARPS) if SLICES > 1 else (warp, None)
    lane, i1, j1 = t % k.warp, in_slice % WARPS_M*p.warp_m, in_slice // WARPS_M*p.warp_n
    by_rows = GROUPED == "m"
    tiles_m, tiles_n = groups.slots(g, CTA_M) if by_rows else k.ceil_div(g.m, CTA_M), k.ceil_div(g.n, CTA_N)
    total = (lambda: tiles_m*tiles_n) if by_rows else (lambda: of_batch(g, tiles_m*tiles_n))
    block = by_die(k, k.block[0], total(), DIES) if DIES > 1 else k.block[0]
    tile, parts = split.parts(k, g, block, total)
    if not by_rows:
        tile = in_matrix(k, g, tile, lambda: tiles_m*tiles_n)
    tile_m, tile_n = grouped(k, tile, tiles_m, tiles_n, p.group_m)
    i0, j0 = groups.of_slot(k, g, tile_m, CTA_M) if by_rows else tile_m*CTA_M, tile_n*CTA_N
    depth = g.k if not GROUPED else k.select(i0 < g.m, g.k, 0) if by_rows else (
        groups.end(k, g, g.matrix) - groups.begin(k, g, g.matrix))
    k_first, tiles, short = _steps(k, depth, p.cta_k, split, parts, AT_LEAST_ONE)
    if GROUPED == "k":
        first = groups.begin(k, g, g.matrix) + k_first
        k_first = k.select(depth > 0, first, 0) if AT_LEAST_ONE else first
    return Work(t, lane, slice, i0, j0, i1, j1, parts, k_first, tiles, short)


def _steps(k: Kernel, depth: Value, CTA_K: int, split: Split, parts: Parts, AT_LEAST_ONE: bool
           ) -> tuple[Value, Value, Value]:
    """(first step of k, tiles of k, steps in the first tile) of a workgroup's part of k."""
    first, steps = k.constant(i32, 0), depth
    if split.divided:
        part = k.ceil_div(k.ceil_div(depth, CTA_K), parts.parts)*CTA_K
        first = parts.part*part
        if AT_LEAST_ONE:
            first = k.min(first, depth)
            steps = k.min(depth - first, part)
            first = k.select(steps > 0, first, 0)               # nothing to do: zeros are multiplied
        else:
            steps = k.max(k.min(depth - first, part), 0)
    tiles = k.ceil_div(steps, CTA_K)
    if AT_LEAST_ONE:
        tiles = k.max(tiles, 1)
        return first, tiles, steps - (tiles - 1)*CTA_K
    return first, tiles, k.select(tiles > 0, steps - (tiles - 1)*CTA_K, 0)


# ---- the order in which workgroups take the tiles of C


def grouped(k: Kernel, index: Value, tiles_m: Value, tiles_n: Value, GROUP_M: int) -> tuple[Value, Value]:
    """(row, column) of tile `index`: GROUP_M rows of tiles are finished column by column before the next rows begin,
    so that the CTAs that run together share rows of A and columns of B in L2."""
    per_group = tiles_n*GROUP_M
    first = index // per_group * GROUP_M
    height = k.min(tiles_m - first, GROUP_M)
    inside = index % per_group
    return first + inside % height, inside // height


def by_die(k: Kernel, index: Value, total: Value, DIES: int) -> Value:
    """Which tile workgroup `index` of `total` takes, on a chip that deals workgroups out to its DIES dies in turn: each
    die, which has an L2 of its own, gets tiles that follow each other."""
    die, place = index % DIES, index // DIES
    return die*(total // DIES) + k.min(die, total % DIES) + place
