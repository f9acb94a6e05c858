"""CTAs of a cluster that share tiles of C by k, in the GEMM by wgmma: each has its steps of k, and adds up the sums of
all for its share of the tile's columns. They go from registers to the shared memory of the CTA that wants them.

    came[warp]      the sums of all CTAs have come; one arrival, which announces their bytes
    left[warp]      they have been read, in all CTAs, whose stores for the next tile may begin

The same warp of all CTAs has the same elements of C, so that it waits for no others.
"""
from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir import Kernel, Tile, Type, Value, vec
from tilewright.ir.ops.pipelines import STORED

LANES = 32


class Exchange:
    """WARPS warps of CTAS CTAs, whose threads have REGISTERS sums of type T each."""

    def __init__(self, k: Kernel, T: Type, WARPS: int, CTAS: int, REGISTERS: int) -> None:
        """Before k.init_mbarriers(). `came` is CTA by CTA, in the order of k."""
        self.k, self.T, self.WARPS, self.CTAS = k, T, WARPS, CTAS
        self.VECTOR = STORED // T.bytes
        self.smem = k.smem("sums_smem", (WARPS, CTAS, REGISTERS // CTAS // self.VECTOR, LANES, self.VECTOR), T, STORED)
        self.BYTES = REGISTERS * T.bytes * LANES
        self.came, self.left = k.mbarriers("came", WARPS), k.mbarriers("left", WARPS)

    def columns(self, sums: list[Tile], warp: Value, lane: Value, number: Value) -> list[Tile]:
        """The sums of all CTAs, added up in the order of k, of this CTA's share of the columns: in `sums` rows of
        8 x 8 blocks of them. number: of the warp's tiles."""
        k, (smem, rank) = self.k, (self.smem, self.k.cluster_rank)
        EACH = len(sums[0].registers) // self.CTAS
        STEP = LANES*self.VECTOR
        self.left.wait(warp, number % 2 ^ 1, sleep=True)
        self.came.arrive(warp, by="warp", expect=self.BYTES, turns=self.WARPS)
        for cta in range(self.CTAS):
            there = k.of_cta(smem.at(warp, rank, 0, lane, 0), cta)
            for at, (tile, e) in enumerate(self._vectors(sums, EACH)):
                numbers = [tile[0, cta*EACH + e + d] for d in range(self.VECTOR)]
                self.came.store(there + at*STEP, numbers, warp, cta)
        self.came.wait(warp, number % 2, cluster=True)
        tiles = [k.tile(1, EACH, self.T) for _ in sums]
        with k.loop(self.CTAS) as part:
            here = smem.at(warp, part, 0, lane, 0)
            for at, (tile, e) in enumerate(self._vectors(tiles, EACH)):
                x = k.load(here + at*STEP, vec(self.T, self.VECTOR))
                for d in range(self.VECTOR):
                    tile[0, e + d] = tile[0, e + d] + x[d]
        k.warp_barrier()
        self.left.arrive(warp, by="warp", everywhere=True, turns=self.WARPS)
        return tiles

    def _vectors(self, tiles: list[Tile], EACH: int) -> Iterator[tuple[Tile, int]]:
        """The vectors of a share: tiles, and the first register of each vector."""
        return ((tile, e) for tile in tiles for e in range(0, EACH, self.VECTOR))
