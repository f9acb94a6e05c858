"""From a lane's accumulators to C = alpha * acc + beta * C, within the edges of C; and sums over slices of k.

Instructions multiply B^T by A^T, so that a lane's accumulators lie along the rows of C: in runs, which are written at
once.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.atoms.mfma import Mfma
from tilewright.ir import Kernel, Tile, Type, Value, f32, f64, i32, i64, vec
from tilewright.kernels.amd.workgroup import Work
from tilewright.kernels.gpu.split_k import last_to_come
from tilewright.kernels.narrow import narrowed, scaled, stored_as, widened

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


@dataclass(frozen=True)
class Result:
    """C, of m x n numbers of FORMAT, whose rows are ldc apart; n is a multiple of VECTOR, and so many are written at
    once where a lane has them side by side."""
    m: Value
    n: Value
    alpha: Value
    beta: Value
    c: Value
    ldc: Value
    FORMAT: str
    VECTOR: int


def finish(k: Kernel, acc: Tile, work: Work, ATOM: Mfma, result: Result, SPLIT_K: int, THREADS: int) -> None:
    """All of it; the last two arguments of a kernel with SPLIT_K parts are a workspace and counters."""
    MFMA = ATOM.m
    place = Place([work.i0 + work.i1 + work.lane % MFMA + i*MFMA for i in range(acc.rows)],
                  [work.j0 + work.j1 + j*MFMA for j in range(acc.cols)], work.lane, ATOM)

    def written() -> None:
        store(k, acc, place, result)

    if SPLIT_K > 1:
        workspace, counters = k.args[-2:]
        add_parts(k, acc, workspace, counters, work.tile, work.tile_count, k.block_z, SPLIT_K, work.t, THREADS, written)
    else:
        written()


def store(k: Kernel, acc: Tile, place: Place, result: Result) -> None:
    c, alpha, beta, FORMAT = result.c, result.alpha, result.beta, result.FORMAT
    T, KEPT = place.ATOM.c.type.scalar, c.type.element

    def each(read_c: bool) -> None:
        for i, row in enumerate(place.rows):
            c_row = c + k.cast(row, i64)*result.ldc
            for j, column in enumerate(place.columns):
                sums = acc[i, j]
                for first, count in place.runs():
                    width = min(count, result.VECTOR)
                    for e in range(first, first + count, width):
                        at = column + place.ATOM.c(place.lane, e)[0]
                        put(c_row + at, [sums[e + d] for d in range(width)], read_c, (row < result.m) & (at < result.n))

    def put(at: Value, sums: list[Value], read_c: bool, inside: Value) -> None:
        width = len(sums)
        values = [scaled(k, x, alpha) for x in sums]
        if read_c:
            old = _widened(k, k.load(at, vec(KEPT, width), align=KEPT.bytes, mask=inside), FORMAT, T)
            parts = [old[e] for e in range(width)] if width > 1 else [old]
            values = [scaled(k, part, beta, x) for part, x in zip(parts, values)]
        whole = k.pack(*values) if width > 1 else values[0]
        k.store(at, _narrowed(k, whole, FORMAT, T), align=KEPT.bytes, mask=inside)

    with k.when(beta == 0):
        each(read_c=False)
    with k.otherwise():
        each(read_c=True)


def kept_as(FORMAT: str) -> Type:
    """The type of a result's elements in memory."""
    return {"f64": f64, "f32": f32, "i32": i32}.get(FORMAT) or stored_as(FORMAT)


def _widened(k: Kernel, x: Value, FORMAT: str, T: Type) -> Value:
    return x if x.type.scalar == T else widened(k, x, FORMAT, T)


def _narrowed(k: Kernel, x: Value, FORMAT: str, T: Type) -> Value:
    """Floats to nearest, ties to even; of integers the lowest bits."""
    if kept_as(FORMAT) == T:
        return x
    if x.type.length > 1:
        return narrowed(k, x, FORMAT)
    return narrowed(k, k.pack(x, x), FORMAT)[0]                 # elements of vectors are bits, not indices


def add_parts(k: Kernel, acc: Tile, workspace: Value, counters: Value, tile: Value, tiles: Value, part: Value,
              PARTS: int, t: Value, THREADS: int, then: Callable[[], None]) -> None:
    """The workgroup that comes last of the PARTS that share a tile of C adds up all their accumulators, in the order of
    k, and does `then`. The counters are 0 before and after.

    workspace: accumulators [PARTS, tiles, vectors of 16 bytes, THREADS]; counters: i32[tiles].
    """
    T = workspace.type.element
    WIDTH = WIDEST // T.bytes
    vectors = [(ij, first) for ij in acc.registers for first in range(0, acc.type.length, WIDTH)]

    def place(part: Value) -> Value:
        return workspace + (k.cast(part*tiles + tile, i64)*(len(vectors)*THREADS) + t)*WIDTH

    def leave() -> None:
        at = place(part)
        for e, (ij, first) in enumerate(vectors):
            sums = acc[ij]
            k.store(at + e*THREADS*WIDTH, k.shuffle(sums, sums, range(first, first + WIDTH)))

    with last_to_come(k, leave, counters, tile, PARTS, t):
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
