"""From a lane's accumulators to C = alpha * acc + beta * C, within the edges of C; and sums over slices of k."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir import Kernel, Tile, Value, i64, vec
from tilewright.kernels.gpu.split_k import last_to_come
from tilewright.kernels.nvidia.cut import Cut

LANES = 32


def store(k: Kernel, T: Any, acc: Tile, rows: Cut, columns: Cut, i0: Value, j0: Value, m: Value, n: Value,
          alpha: Value, beta: Value, c: Value, ldc: Value, VECTOR: int) -> None:
    """acc[i, j] belongs to row i of `rows` and column j of `columns`, in the CTA's tile at (i0, j0).

    VECTOR elements of C are written at once where the lane has them side by side; n and ldc are multiples of VECTOR.
    """
    def each(read_c: bool) -> None:
        for i, (base, offset) in enumerate(rows.elements):
            row = i0 + base + offset
            c_row = c + row*ldc
            j = 0
            for piece in columns.pieces:
                width = min(piece.width, VECTOR)
                for e in range(0, piece.width, width):
                    column = j0 + piece.base + (piece.offset + e)
                    inside = (row < m) & (column < n)
                    put(c_row + column, [acc[i, j + d]*alpha for d in range(width)], read_c, inside)
                    j += width

    def put(at: Value, values: list[Value], read_c: bool, inside: Value) -> None:
        if read_c:
            old = k.load(at, vec(T, len(values)), mask=inside)
            values = [k.fma(beta, old[e] if len(values) > 1 else old, x) for e, x in enumerate(values)]
        k.store(at, k.pack(*values) if len(values) > 1 else values[0], mask=inside)

    with k.when(beta == 0.0):
        each(read_c=False)
    with k.otherwise():
        each(read_c=True)


PAD = 8                     # elements after a staged row: lanes of two rows then write different banks


def staging(WARPS: int, LANES_M: int, WARP_N: int) -> int:
    """Elements of shared memory that `store_staged` takes."""
    return WARPS * LANES_M * (WARP_N + PAD)


def store_staged(k: Kernel, T: Any, acc: Tile, rows_of: Callable[[Value], Cut], columns: Cut, lane_m: Value,
                 lane: Value, smem: Value, WARP_N: int, i0: Value, j0: Value, m: Value, n: Value, alpha: Value,
                 beta: Value, c: Value, ldc: Value) -> None:
    """As `store`, where C has to be written by single elements: side by side, for which the lanes of a warp exchange
    them in its part `smem` of shared memory. Else each would write a sector of its own, eight times in all.

    rows_of(r): rows of the lanes in row r of the warp, in the CTA's tile; columns: of the lane, in the warp's tile,
    which starts at column j0 of C.
    """
    ROW, LANES_M = WARP_N + PAD, LANES * acc.cols // WARP_N

    def each(read_c: bool) -> None:
        for i in range(acc.rows):
            j = 0
            for piece in columns.pieces:
                values = [acc[i, j + e]*alpha for e in range(piece.width)]
                at = smem + lane_m*ROW + piece.base + piece.offset
                k.store(at, k.pack(*values) if len(values) > 1 else values[0])
                j += piece.width
            k.warp_barrier()
            with k.loop(LANES_M, unroll=False) as r:                    # unrolled, its addresses are too many
                base, offset = rows_of(r).elements[i]
                row = i0 + base + offset
                for first in range(0, WARP_N, LANES):
                    column = j0 + lane + first
                    inside, at = (row < m) & (column < n), c + row*ldc + column
                    x = k.load(smem + lane + r*ROW + first)
                    k.store(at, k.fma(beta, k.load(at, T, mask=inside), x) if read_c else x, mask=inside)
            k.warp_barrier()

    with k.when(beta == 0.0):
        each(read_c=False)
    with k.otherwise():
        each(read_c=True)


def add_slices(k: Kernel, acc: Tile, smem: Value, t: Value, slice: Value, SLICES: int, THREADS: int) -> None:
    """acc of slice 0 += acc of slices 1 ... SLICES - 1, through shared memory, where nothing may be left to read.

    THREADS: of one slice; thread t of each holds the same elements of C."""
    registers = [*acc.registers]
    for other in range(1, SLICES):
        k.barrier()
        with k.when(slice == other):
            for e, ij in enumerate(registers):
                k.store(smem + t + e*THREADS, acc[ij])
        k.barrier()
        with k.when(slice == 0):
            for e, ij in enumerate(registers):
                acc[ij] = acc[ij] + k.load(smem + t + e*THREADS)


def add_parts(k: Kernel, acc: Tile, workspace: Value, counters: Value, tile: Value, tiles: Value, part: Value,
              parts: Any, t: Value, slot: Value, SLOTS: int, mine: Value, then: Callable[[], None]) -> None:
    """The CTA that comes last of the `parts` that share a tile of C adds up all their accumulators, in the order of k,
    and does `then`. The counters are 0 before and after. Threads that are `mine` hold accumulators, each in its slot.

    workspace: T[parts, tiles, registers of acc, SLOTS]; counters: i32[tiles].
    """
    registers = [*acc.registers]

    def place(part: Value) -> Value:
        return workspace + k.cast(part*tiles + tile, i64)*(len(registers)*SLOTS) + slot

    def leave() -> None:
        at = place(part)
        for e, ij in enumerate(registers):
            k.store(at + e*SLOTS, acc[ij])

    with last_to_come(k, leave, counters, tile, parts, t, mine), k.when(mine):
        for ij in registers:
            acc[ij] = 0
        with k.loop(parts) as other:
            at = place(other)
            for e, ij in enumerate(registers):
                acc[ij] = acc[ij] + k.load(at + e*SLOTS)
        then()
