"""From a lane's accumulators to C = alpha * acc + beta * C, within the edges of C; and sums over slices of k.

Instructions multiply B^T by A^T, so that a lane's accumulators lie along the rows of C: in runs, which are written at
once.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.ir import Kernel, Tile, Value, f32, i16, i32, i64, vec
from tilewright.kernels.amd.workgroup import Work
from tilewright.kernels.atoms.mfma import Mfma

WIDEST = 16                 # bytes that a lane writes at once


@dataclass(frozen=True)
class Place:
    """Where the lane's accumulators belong in C."""
    rows: list[Value]               # of C, for each row of the register tile
    columns: list[Value]            # where the instruction's tile begins, for each column of the register tile
    lane: Value
    ATOM: Mfma

    def runs(self) -> Iterator[tuple[int, int]]:
        """(first element, count) of those that are next to each other in a row of C."""
        at = [self.ATOM.c(0, e)[0] for e in range(self.ATOM.c.elements)]
        most = WIDEST // self.ATOM.c.type.scalar.bytes
        first = 0
        for e in range(1, len(at) + 1):
            if e == len(at) or at[e] != at[e - 1] + 1 or e - first == most:
                yield first, e - first
                first = e


def finish(k: Kernel, acc: Tile, work: Work, ATOM: Mfma, m: Value, n: Value, alpha: Value, beta: Value, c: Value,
           ldc: Value, VECTOR: int, SPLIT_K: int, THREADS: int) -> None:
    """All of it; the last two arguments of a kernel with SPLIT_K parts are a workspace and counters."""
    MFMA = ATOM.m
    place = Place([work.i0 + work.i1 + work.lane % MFMA + i*MFMA for i in range(acc.rows)],
                  [work.j0 + work.j1 + j*MFMA for j in range(acc.cols)], work.lane, ATOM)

    def written() -> None:
        store(k, acc, place, m, n, alpha, beta, c, ldc, VECTOR)
    if SPLIT_K > 1:
        workspace, counters = k.args[-2:]
        add_parts(k, acc, workspace, counters, work.tile, work.tile_count, k.block_z, SPLIT_K, work.t, THREADS, written)
    else:
        written()


def store(k: Kernel, acc: Tile, place: Place, m: Value, n: Value, alpha: Value, beta: Value, c: Value, ldc: Value,
          VECTOR: int) -> None:
    """VECTOR elements of C are written at once where the lane has them side by side; n is a multiple of VECTOR."""
    T, OUT = place.ATOM.c.type.scalar, c.type.element

    def each(read_c: bool) -> None:
        for i, row in enumerate(place.rows):
            c_row = c + k.cast(row, i64)*ldc
            for j, column in enumerate(place.columns):
                sums = acc[i, j]
                for first, count in place.runs():
                    width = min(count, VECTOR)
                    for e in range(first, first + count, width):
                        at = column + place.ATOM.c(place.lane, e)[0]
                        put(c_row + at, [sums[e + d] for d in range(width)], read_c, (row < m) & (at < n))

    def put(at: Value, sums: list[Value], read_c: bool, inside: Value) -> None:
        width = len(sums)
        values = [x*alpha for x in sums]
        if read_c:
            old = k.load(at, vec(OUT, width), align=OUT.bytes, mask=inside)
            parts = [old[e] for e in range(width)] if width > 1 else [old]
            values = [k.fma(beta, _widened(k, part, T), x) for part, x in zip(parts, values)]
        whole = k.pack(*values) if width > 1 else values[0]
        k.store(at, _narrowed(k, whole, OUT), align=OUT.bytes, mask=inside)

    with k.when(beta.equals(0)):
        each(read_c=False)
    with k.otherwise():
        each(read_c=True)


def _widened(k: Kernel, x: Value, T: Any) -> Value:
    if x.type.kind != "bf":
        return k.cast(x, T)
    return k.bits_as(k.cast(k.bits_as(x, i16), i32) << 16, f32)


def _narrowed(k: Kernel, x: Value, OUT: Any) -> Value:
    """To nearest, ties to even; a NaN of f32 stays one."""
    if OUT.kind != "bf":
        return k.cast(x, vec(OUT, x.type.length))
    pair = x if x.type.length > 1 else k.pack(x, x)             # elements of vectors are bits, not indices
    INTS = vec(i32, pair.type.length)
    bits = k.bits_as(pair, INTS)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    kept = k.select(pair.equals(pair), rounded, (bits >> 16) | 0x40)
    narrow = k.bits_as(k.cast(kept, vec(i16, pair.type.length)), vec(OUT, pair.type.length))
    return narrow if x.type.length > 1 else narrow[0]


def add_parts(k: Kernel, acc: Tile, workspace: Value, counters: Value, tile: Value, tiles: Value, part: Value,
              PARTS: int, t: Value, THREADS: int, then: Callable[[], None]) -> None:
    """The workgroup that comes last of the PARTS that share a tile of C adds up all their accumulators, in the order of
    k, and does `then`. The counters are 0 before and after.

    workspace: accumulators [PARTS, tiles, vectors of 16 bytes, THREADS]; counters: i32[tiles].
    """
    T = workspace.type.element
    WIDTH = WIDEST // T.bytes
    vectors = [(ij, first) for ij in acc.registers for first in range(0, acc.type.length, WIDTH)]
    arrived = k.smem("arrived", (1,), i32)

    def place(part: Value) -> Value:
        return workspace + (k.cast(part*tiles + tile, i64)*(len(vectors)*THREADS) + t)*WIDTH

    at = place(part)
    for e, (ij, first) in enumerate(vectors):
        sums = acc[ij]
        k.store(at + e*THREADS*WIDTH, k.shuffle(sums, sums, range(first, first + WIDTH)))
    k.fence_device()
    k.barrier()
    with k.when(t.equals(0)):
        arrived[0] = k.atomic_add(counters + tile, 1, "monotonic")
    k.barrier()
    with k.when(arrived[0].equals(PARTS - 1)):
        k.fence_device()
        for ij in acc.registers:
            acc[ij] = k.constant(acc.type, 0)
        with k.loop(k.constant(i32, PARTS)) as other:
            at = place(other)
            for ij in acc.registers:
                parts = [k.load(at + e*THREADS*WIDTH, vec(T, WIDTH)) for e, (its, _) in enumerate(vectors) if its == ij]
                while len(parts) > 1:
                    parts = [k.shuffle(x, y, range(2*x.type.length)) for x, y in zip(parts[::2], parts[1::2])]
                acc[ij] = acc[ij] + parts[0]
        then()
        with k.when(t.equals(0)):
            counters[tile] = 0
