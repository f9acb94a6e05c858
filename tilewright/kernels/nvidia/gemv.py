"""One row or one column of C: a vector times a matrix, which is read once, 16 bytes a lane and many of them in flight.

    the matrix is contiguous along k        a warp has one element of C: its lanes share the steps of k
    along the other index                   a lane has VECTOR elements of C, the warps of the CTA share the steps of k

CTAs along z share k; the last one of those that share elements of C adds up their sums, in the order of k.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir import Function, Kernel, Tile, Value, f32, f64, i32, i64, ptr, vec
from tilewright.kernels.nvidia import epilogue

TYPES = {"f32": f32, "f64": f64}
WARPS = 8               # of a CTA
UNROLL = 8              # loads of a lane in flight


def emit_gemv(DTYPE: str = "f32", LAYOUT: str = "nn", COLUMN: bool = False, VECTOR: int = 4,
              SPLIT_K: int = 1) -> Function:
    """C = alpha * A @ B + beta * C of one row (or one COLUMN); parameters as for any GEMM; beta = 0 never reads C.

    VECTOR      elements that a lane loads at once: the matrix is aligned to so many, its leading dimension and its
                size along the contiguous dimension are multiples of it
    """
    T = TYPES[DTYPE]
    params: dict[str, Any] = {"m": i32, "n": i32, "k": i32, "alpha": T, "a": ptr(T), "lda": i64, "b": ptr(T),
                              "ldb": i64, "beta": T, "c": ptr(T), "ldc": i64}
    if SPLIT_K > 1:
        params |= {"workspace": ptr(T), "counters": ptr(i32)}
    k = Kernel(f"gemv_{DTYPE}_{LAYOUT}_{'column' if COLUMN else 'row'}_v{VECTOR}_k{SPLIT_K}", threads=32*WARPS,
               noalias=SPLIT_K == 1, **params)
    m, n, kk, alpha, a, lda, b, ldb, beta, c, ldc = k.args[:11]
    if COLUMN:
        size, matrix, ld, along_k = m, a, lda, LAYOUT[0] == "n"
        x, y = b.view(ldb if LAYOUT[1] == "n" else 1), c.view(ldc)
    else:
        size, matrix, ld, along_k = n, b, ldb, LAYOUT[1] == "t"
        x, y = a.view(1 if LAYOUT[0] == "n" else lda), c.view(1)
    t, block = k.thread[0], k.block[0]
    share = k.ceil_div(kk, SPLIT_K*VECTOR)*VECTOR                       # steps of k, for this CTA
    p0 = k.block_z*share if SPLIT_K > 1 else k.constant(i32, 0)
    p1 = k.min(kk, p0 + share)

    def finish(acc: Tile, first: Value, tiles: Value, HOLDERS: int) -> None:
        """Elements first, first + 1 ... of C are in acc, in the first HOLDERS threads."""
        def write() -> None:
            for _, e in acc.registers:
                i = k.cast(first + e, i64)
                with k.when(i < size):
                    with k.when(beta == 0.0):
                        y[i] = acc[0, e]*alpha
                    with k.otherwise():
                        y[i] = k.fma(beta, y[i], acc[0, e]*alpha)
        mine = t < HOLDERS
        if SPLIT_K > 1:
            workspace, counters = k.args[11:]
            epilogue.add_parts(k, acc, workspace, counters, block, tiles, k.block_z, SPLIT_K, t, t,
                               HOLDERS, mine, write)
        else:
            with k.when(mine):
                write()

    (_along if along_k else _across)(k, T, VECTOR, matrix, ld, x, size, block, t, p0, p1, finish)
    return k.function


def _along(k: Kernel, T: Any, VECTOR: int, matrix: Value, ld: Value, x: Value, size: Value, block: Value, t: Value,
           p0: Value, p1: Value, finish: Callable[..., None]) -> None:
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
    _unrolled(k, p0 + lane*VECTOR, p1, STEP, add)
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
    finish(acc, block*WARPS + t, k.ceil_div(size, WARPS), WARPS)


def _across(k: Kernel, T: Any, VECTOR: int, matrix: Value, ld: Value, x: Value, size: Value, block: Value, t: Value,
            p0: Value, p1: Value, finish: Callable[..., None]) -> None:
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
    _unrolled(k, p0 + warp, p1, WARPS, add)
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
    finish(acc, i, k.ceil_div(size, 32*VECTOR), 32)


def _unrolled(k: Kernel, start: Value, stop: Value, STEP: int, add: Callable[[list[Value]], None]) -> None:
    """add([p, p + STEP, ...]) for p from start to stop, UNROLL of them at a time and the last ones alone."""
    whole = k.max(stop - (start + STEP*(UNROLL - 1)), 0)
    with k.loop(start + whole, start, STEP*UNROLL) as p:
        add([p + u*STEP for u in range(UNROLL)])
    with k.loop(stop, start + k.ceil_div(whole, STEP*UNROLL)*(STEP*UNROLL), STEP, unroll=False) as p:
        add([p])


def _elements(vectors: list[Value]) -> list[Value]:
    return [x[e] if x.type.length > 1 else x for x in vectors for e in range(x.type.length)]
