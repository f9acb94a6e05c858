"""Parts of a sum over k in the CTAs of a cluster: each adds up its share of the tile of C, out of everybody's memory.

Rank      0              1              2    ...
          acc → smem     acc → smem     acc → smem        all in the same layout
          ------------------------- meet -------------------------
          share 0 of C   share 1 of C   share 2 of C      each = smem of rank 0 + rank 1 + rank 2 ..., in the order of k
          arrive         arrive         arrive            done with the others' memory
          → C            → C            → C
          ------------------------- wait -------------------------      until nobody needs this CTA's memory

A tile of 64 KiB is read once, by all multiprocessors of the cluster at a time. The last CTA alone, reading workspaces
of all others in global memory (epilogue.add_parts), takes 20 µs and more for it on an H200 while they idle.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tilewright.ir import Kernel, Tile, Value, vec
from tilewright.kernels.nvidia.cut import Cut
from tilewright.kernels.nvidia.operand import WIDEST


class Sum(NamedTuple):
    """A vector of a row of the CTA's tile of C; `there`: unless this is one too many, None if it is not."""
    row: Value
    column: Value
    vector: Value
    there: Value | None


@dataclass(frozen=True)
class TileLayout:
    """Where element (i, j) of a tile of `width` columns is kept: by rows, in which vectors of `vector` elements change
    places in eights, so that no two of a quarter of a warp, which store together, lie in the same banks.

    Such lanes have neighbouring vectors, up to eight, or fewer on several rows (cut.lane_grid). So the lowest bits of
    j // vector are theirs, and those of i // rows change the highest bits: these are reversed.
    """
    width: int
    vector: int
    rows: int                   # that a lane has side by side

    def __call__(self, i: Any, j: Any) -> Any:
        row = self.width // self.vector
        eights = min(row*self.rows & -(row*self.rows), 8)               # or fewer, if these do not fill `rows` rows
        moved, turn = 0, i // self.rows
        for bit in range(eights.bit_length() - 1):
            moved = ((turn >> bit) & 1) * (eights >> (bit + 1)) + moved
        if eights == 1:
            return i*self.width + j
        return i*self.width + (j ^ moved*self.vector) if row % eights == 0 else (i*self.width + j) ^ moved*self.vector


TOGETHER = 8            # loads of a thread that are on their way at a time: more take registers, and gain nothing


def add_parts(k: Kernel, T: Any, acc: Tile, smem: Value, rows: Cut, columns: Cut, mine: Value, t: Value, THREADS: int,
              CTA_M: int, CTA_N: int, PARTS: int, VECTOR: int, store: Callable[[list[Sum]], None]) -> None:
    """Threads that are `mine` hold accumulators of their CTA's part. `store` is given this thread's share of the sums:
    those of all THREADS of the PARTS CTAs are the tile. smem: T[CTA_M * CTA_N], where nothing is left to read."""
    layout = TileLayout(CTA_N, WIDEST // T.bytes, rows.pieces[0].width)
    with k.when(mine):
        for i, (base, offset) in enumerate(rows.elements):
            j = 0
            for piece in columns.pieces:
                values = [acc[i, j + e] for e in range(piece.width)]
                at = smem + layout(base + offset, piece.base + piece.offset)
                k.store(at, k.pack(*values) if len(values) > 1 else values[0])
                j += piece.width
    k.cluster_barrier()
    theirs = [k.of_cta(smem, part) for part in range(PARTS)]
    VECTORS, ROUND, ROW = CTA_M*CTA_N // VECTOR, PARTS*THREADS, CTA_N // VECTOR     # of the tile, at once, of a row
    first, sums = k.cluster_rank*THREADS + t, []
    for done in range(0, VECTORS, ROUND):
        which, short = first + done, done + ROUND > VECTORS
        inside = k.min(which, VECTORS - 1) if short else which
        row, column = inside // ROW, inside % ROW * VECTOR
        at = layout(row, column)
        total = k.load(theirs[0] + at, vec(T, VECTOR))
        for part in theirs[1:]:
            total = total + k.load(part + at, vec(T, VECTOR))
        sums.append(Sum(row, column, total, which < VECTORS if short else None))
        if len(sums) * PARTS % TOGETHER < PARTS:
            k.warp_barrier()        # ptxas would move all loads before the first sum
    k.cluster_arrive()              # before C is written: it releases what this thread wrote, and would wait for that
    store(sums)
    k.cluster_wait()
