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

from tilewright.expressions import texts
from tilewright.ir import Kernel, Type, Value, i32, i64, ptr
from tilewright.kernels.gpu import auxiliary, groups
from tilewright.kernels.gpu.split_k import Parts, Split


def parameters(SUMS: Type, A: Type, B: Type, C: Type, split: Split, SCALES: Type | None = None, BATCH: bool = False,
               BLOCKS: int = 0, SPLIT: str = "", WHEN: str = "", EPILOGUE: str = "", LINEAR: bool = True,
               PROLOGUES: tuple[str, str] = ("", ""), LAYOUT: str = "", GROUPED: str = "") -> dict[str, Any]:
    """The parameters of C[m, n] = alpha * A @ B + beta * C, in the order of a launch. SUMS: the type in which products
    are added up. SCALES: of each operand, see gpu/scales.py, as for BLOCKS; alpha and beta have this type, unless it is
    one of bits.
    BATCH: of `batch` such products, from one matrix of each operand to the next stride_a, stride_b and stride_c
    elements; 0 where all products have the same matrix. SPLIT: operands are terms (rewrite.py), from one to the next
    plane_a and plane_b elements. WHEN: see `arguments`. EPILOGUE: see fused.py. LINEAR: there are alpha and beta.
    PROLOGUES: of A and of B, which have this LAYOUT: see transform.py. GROUPED: see groups.py; with BATCH: of
    "m" there is stride_of_b_NAME, too, from the numbers beside a group's B to the next one's."""
    scales = auxiliary.parameters(auxiliary.scales(SCALES, BLOCKS), BATCH)
    apart = {"batch": i32, "stride_a": i64, "stride_b": i64, "stride_c": i64} if BATCH else {}
    planes: dict[str, Any] = {"plane_a": i64, "plane_b": i64} if SPLIT else {}
    special: dict[str, Any] = {"special": ptr(i32)} if WHEN else {}
    contiguous = "a"*(LAYOUT[:1] == "t") + "b"*(LAYOUT[1:] == "n")
    before = auxiliary.parameters(texts.auxiliary("", *PROLOGUES), GROUPED == "m", contiguous)
    factor = SCALES if SCALES and SCALES.is_float else SUMS
    offsets: dict[str, Any] = {"offsets": ptr(i32)} if GROUPED else {}
    alpha, beta = ({name: factor} if LINEAR else {} for name in ("alpha", "beta"))
    return {"m": i32, "n": i32, "k": i32, **alpha, "a": ptr(A), "lda": i64, "b": ptr(B), "ldb": i64, **scales,
            **beta, "c": ptr(C), "ldc": i64, **apart, **offsets, **planes, **special,
            **auxiliary.parameters(texts.auxiliary(EPILOGUE), BATCH), **before, **split.parameters(SUMS)}


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


def share(k: Kernel, g: SimpleNamespace, split: Split, *, CTA_M: int, CTA_N: int, CTA_K: int, WARP_M: int, WARP_N: int,
          GROUP_M: int, SLICES: int = 1, DIES: int = 1, AT_LEAST_ONE: bool = False, GROUPED: str = "") -> Work:
    """The grid is that of `split`, with as many tiles as C has, or a batch, or with groups of rows as there are places
    for tiles (groups.slots). GROUP_M, DIES: see grouped and by_die.

    AT_LEAST_ONE: a workgroup for which no steps of k are left multiplies one tile of zeros, else none.
    """
    t = k.thread[0]
    warp, WARPS_M, WARPS = t // k.warp, CTA_M // WARP_M, CTA_M // WARP_M * (CTA_N // WARP_N)
    in_slice, slice = (warp % WARPS, warp // WARPS) if SLICES > 1 else (warp, None)
    lane, i1, j1 = t % k.warp, in_slice % WARPS_M*WARP_M, in_slice // WARPS_M*WARP_N
    by_rows = GROUPED == "m"
    tiles_m, tiles_n = groups.slots(g, CTA_M) if by_rows else k.ceil_div(g.m, CTA_M), k.ceil_div(g.n, CTA_N)
    total = (lambda: tiles_m*tiles_n) if by_rows else (lambda: of_batch(g, tiles_m*tiles_n))
    block = by_die(k, k.block[0], total(), DIES) if DIES > 1 else k.block[0]
    tile, parts = split.parts(k, g, block, total)
    if not by_rows:
        tile = in_matrix(k, g, tile, lambda: tiles_m*tiles_n)
    tile_m, tile_n = grouped(k, tile, tiles_m, tiles_n, GROUP_M)
    i0, j0 = groups.of_slot(k, g, tile_m, CTA_M) if by_rows else tile_m*CTA_M, tile_n*CTA_N
    depth = g.k if not GROUPED else k.select(i0 < g.m, g.k, 0) if by_rows else (
        groups.end(k, g, g.matrix) - groups.begin(k, g, g.matrix))
    k_first, tiles, short = _steps(k, depth, CTA_K, split, parts, AT_LEAST_ONE)
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
