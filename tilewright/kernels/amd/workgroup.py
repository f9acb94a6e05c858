"""What a workgroup of a GEMM works on: which tile of C, which part of it each wave, which steps of k."""
from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import Kernel, Value, i32
from tilewright.kernels.amd.lds_tile import LANES
from tilewright.kernels.gpu import raster


@dataclass(frozen=True)
class Work:
    t: Value                # thread
    lane: Value
    tile: Value             # of C, of so many
    tile_count: Value
    i0: Value               # where it begins in C
    j0: Value
    i1: Value               # where the wave's part of it begins in the tile
    j1: Value
    k_first: Value          # the first step of k
    tiles: Value            # of k, at least one
    short: Value            # steps of k in the first of them


def share(k: Kernel, m: Value, n: Value, depth: Value, *, CTA_M: int, CTA_N: int, CTA_K: int, WARP_M: int, WARP_N: int,
          SPLIT_K: int, GROUP_M: int, XCDS: int) -> Work:
    """The grid is (tiles of C, 1, SPLIT_K). ValueError for tiles of waves that LdsTile could not find its way in."""
    if any(side < 32 or side & (side - 1) for side in (WARP_M, WARP_N)) or CTA_M % WARP_M or CTA_N % WARP_N:
        raise ValueError(f"a wave's tile must have 32, 64, 128 ... rows and columns and divide {CTA_M} x {CTA_N}, not "
                         f"{WARP_M} x {WARP_N}")
    t = k.thread[0]
    wave = t // LANES
    tiles_m, tiles_n = k.ceil_div(m, CTA_M), k.ceil_div(n, CTA_N)
    count = tiles_m*tiles_n
    tile = raster.by_die(k, k.block[0], count, XCDS)
    tile_m, tile_n = raster.grouped(k, tile, tiles_m, tiles_n, GROUP_M)
    WAVES_M = CTA_M // WARP_M
    k_first, steps = k.constant(i32, 0), depth
    if SPLIT_K > 1:
        part = k.ceil_div(k.ceil_div(depth, CTA_K), SPLIT_K)*CTA_K
        k_first = k.min(k.block_z*part, depth)
        steps = k.min(depth - k_first, part)
        k_first = k.select(steps > 0, k_first, 0)               # nothing to do: zeros are multiplied
    tiles = k.max(k.ceil_div(steps, CTA_K), 1)
    return Work(t, t % LANES, tile, count, tile_m*CTA_M, tile_n*CTA_N, wave % WAVES_M*WARP_M, wave // WAVES_M*WARP_N,
                k_first, tiles, steps - (tiles - 1)*CTA_K)
