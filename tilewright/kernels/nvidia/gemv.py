"""One row or one column of C: a vector times a matrix, which is read once, 16 bytes a lane and many of them in flight.

    the matrix is contiguous along k        a warp has one element of C: its lanes share the steps of k
    along the other index                   a lane has VECTOR elements of C, the warps of the CTA share the steps of k

CTAs along z share k; the last one of those that share elements of C adds up their sums, in the order of k.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tilewright.ir import Function, Kernel, Tile, Value, f32, f64, i32, i64, vec
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.scales import POINTERS
from tilewright.kernels.gpu.split_k import Holders, Split, finish
from tilewright.kernels.gpu.work import arguments, in_matrix, of_batch, parameters
from tilewright.kernels.narrow import memory_type

TYPES = {"f32": f32, "f64": f64}


def emit_gemv(DTYPE: str = "f32", LAYOUT: str = "nn", COLUMN: bool = False, VECTOR: int = 4,
              SPLIT_K: int = 1, BATCH: bool = False, WARPS: int = 8, UNROLL: int = 8, OUT: str = "",
              SCALED: bool = False) -> Function:
    """C = alpha * A @ B + beta * C of one row (or one COLUMN); parameters as for any GEMM; beta = 0 never reads C.

    VECTOR      elements that a lane loads at once: the matrix is aligned to so many, its leading dimension and its
                size along the contiguous dimension are multiples of it
    BATCH       of many products: see work.parameters
    WARPS       of a CTA
    UNROLL      loads of a lane in flight
    OUT         format of C, to which sums are rounded; "": DTYPE
    SCALED      scales multiply sums: see gpu/scales.py
    """
    T, split = TYPES[DTYPE], Split(SPLIT_K)
    k = Kernel(f"gemv_{DTYPE}_{LAYOUT}_{'column' if COLUMN else 'row'}_v{VECTOR}_k{SPLIT_K}{'_batch' if BATCH else ''}"
               f"{f'_{OUT}' if OUT else ''}{'_scaled' if SCALED else ''}", threads=32*WARPS,
               noalias=POINTERS if split.divided else True,
               **parameters(T, T, T, memory_type(OUT or DTYPE), split, T if SCALED else None, BATCH))
    g = arguments(k)
    size, along_k = (g.m, LAYOUT[0] == "n") if COLUMN else (g.n, LAYOUT[1] == "t")

    def tiles() -> Value:
        return k.ceil_div(size, WARPS if along_k else 32*VECTOR)
    block = in_matrix(k, g, k.block[0], tiles)
    if COLUMN:
        matrix, ld = g.a, g.lda
        x = g.b.view(g.ldb if LAYOUT[1] == "n" else 1)
    else:
        matrix, ld = g.b, g.ldb
        x = g.a.view(1 if LAYOUT[0] == "n" else g.lda)
    t, zero = k.thread[0], k.constant(i32, 0)
    share = k.ceil_div(g.k, SPLIT_K*VECTOR)*VECTOR                      # steps of k, for this CTA
    p0 = k.block_z*share if split.divided else zero
    p1 = k.min(g.k, p0 + share)

    def store(acc: Tile, first: Value, HOLDERS: int) -> None:
        """Elements first, first + 1 ... of C are in acc, in the first HOLDERS threads."""
        out = Out.of(k, g, OUT or DTYPE, SCALED=SCALED)

        def write() -> None:
            for e in range(acc.cols):
                i = first + e
                with k.when(i < size):
                    out.cases_of_beta(partial(put, *((i, zero) if COLUMN else (zero, i)), e))

        def put(row: Value, column: Value, e: int, read_c: bool) -> None:
            out.put(row, column, out.scaled([acc[0, e]], row, column), read_c, None)
        _, parts = split.parts(k, g, k.block[0], lambda: of_batch(g, tiles()))
        finish(k, acc, parts, Holders(t, t, HOLDERS, t < HOLDERS), write)

    def unrolled(start: Value, STEP: int, add: Callable[[list[Value]], None]) -> None:
        _unrolled(k, start, p1, STEP, UNROLL, add)
    (_along if along_k else _across)(k, T, VECTOR, WARPS, matrix, ld, x, size, block, t, p0, unrolled, store)
    return k.function


def _along(k: Kernel, T: Any, VECTOR: int, WARPS: int, matrix: Value, ld: Value, x: Value, size: Value, block: Value,
           t: Value, p0: Value, unrolled: Callable[..., None], store: Callable[..., None]) -> None:
    """An element of C for each warp."""
    warp, lane = t // 32, t % 32
    i = block*WARPS + warp
    row = matrix + k.cast(k.min(i, size - 1), i64)*ld
    sums = k.tile(1, VECTOR, T)
    STEP = 32*VECTOR

    TOGETHER = VECTOR if isinstance(x.strides[0], int) else 1           # elements of x in one load: its stride is 1

    def add(steps: list[Value]) -> None:
        found = [k.load(row + p, vec(T, VECTOR)) for p in steps]
        factors = [[k.load(x.at(k.cast(p + e, i64)), vec(T, TOGETHER)) for e in range(0, VECTOR, TOGETHER)]
                   for p in steps]
        for vector, parts in zip(found, factors):
            for e, (v, f) in enumerate(zip(_elements([vector]), _elements(parts), strict=True)):
                sums[0, e] = k.fma(v, f, sums[0, e])
    unrolled(p0 + lane*VECTOR, STEP, add)
    total = sums[0, 0]
    for e in range(1, VECTOR):
        total = total + sums[0, e]
    by_warp = k.smem("by_warp", (WARPS,), T)
    total = k.warp_sum(total)
    with k.when(lane == 0):
        by_warp[warp] = total
    k.barrier()
    acc = k.tile(1, 1, T)
    with k.when(t < WARPS):
        acc[0, 0] = by_warp[t]
    store(acc, block*WARPS + t, WARPS)


def _across(k: Kernel, T: Any, VECTOR: int, WARPS: int, matrix: Value, ld: Value, x: Value, size: Value, block: Value,
            t: Value, p0: Value, unrolled: Callable[..., None], store: Callable[..., None]) -> None:
    """VECTOR elements of C for each lane; the warps take every WARPS-th step of k, and are added up at the end."""
    warp, lane = t // 32, t % 32
    i = (block*32 + lane)*VECTOR
    column = matrix + k.min(i, size - VECTOR)
    acc = k.tile(1, VECTOR, T)

    def add(steps: list[Value]) -> None:
        found = [k.load(column + k.cast(p, i64)*ld, vec(T, VECTOR)) for p in steps]
        factors = [x[k.cast(p, i64)] for p in steps]
        for vector, factor in zip(found, factors):
            for e, v in enumerate(_elements([vector])):
                acc[0, e] = k.fma(v, factor, acc[0, e])
    unrolled(p0 + warp, WARPS, add)
    sums = k.smem("sums", (WARPS, VECTOR, 32), T)
    for e in range(VECTOR):
        sums[warp, e, lane] = acc[0, e]
    k.barrier()
    with k.when(warp == 0):
        for e in range(VECTOR):
            total = sums[0, e, lane]
            for other in range(1, WARPS):
                total = total + sums[other, e, lane]
            acc[0, e] = total
    store(acc, i, 32)


def _unrolled(k: Kernel, start: Value, stop: Value, STEP: int, UNROLL: int,
              add: Callable[[list[Value]], None]) -> None:
    """add([p, p + STEP, ...]) for p from start to stop, UNROLL of them at a time and the last ones alone."""
    whole = k.max(stop - (start + STEP*(UNROLL - 1)), 0)
    with k.loop(start + whole, start, STEP*UNROLL) as p:
        add([p + u*STEP for u in range(UNROLL)])
    with k.loop(stop, start + k.ceil_div(whole, STEP*UNROLL)*(STEP*UNROLL), STEP, unroll=False) as p:
        add([p])


def _elements(vectors: list[Value]) -> list[Value]:
    return [x[e] if x.type.length > 1 else x for x in vectors for e in range(x.type.length)]
