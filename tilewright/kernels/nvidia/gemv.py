"""A few rows or columns of C: vectors times a matrix, which is read once, 16 bytes a lane and many of them in flight.

    the matrix is contiguous along k        a warp has some elements of each vector's product: its lanes share k
    along the other index                   a lane has VECTOR elements of each, and all lanes that have the same columns
                                            (or rows) of the matrix share k

CTAs along z share k; the last one of those that share elements of C adds up their sums, in the order of k. 16-bit
numbers become f32 in registers: where nothing but reading the matrix takes time, no matrix instruction is needed.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.ir import Function, Kernel, Value, f32, f64, i32, i64, vec
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.scales import POINTERS
from tilewright.kernels.gpu.split_k import Holders, Split, finish
from tilewright.kernels.gpu.work import arguments, in_matrix, of_batch, parameters
from tilewright.kernels.narrow import memory_type, widened

SUMS = {"f32": f32, "f64": f64, "f16": f32, "bf16": f32}        # types of sums, by the operands' format
WIDEST = 16            # bytes that a thread moves at once, and between the sums of those that share k


def emit_gemv(DTYPE: str = "f32", LAYOUT: str = "nn", COLUMN: bool = False, VECTOR: int = 4, COUNT: int = 1,
              EXTENT: int = 0, SPLIT_K: int = 1, BATCH: bool = False, WARPS: int = 8, UNROLL: int = 8, OUT: str = "",
              SCALED: bool = False, WHEN: str = "") -> Function:
    """C = alpha * A @ B + beta * C of at most COUNT rows (or with COLUMN, columns); parameters as for any GEMM;
    beta = 0 never reads C.

    VECTOR      elements of the matrix that a lane loads at once: it is aligned to so many, its leading dimension and
                its size along the contiguous dimension are multiples of it. If k is contiguous in both operands that is
                true of the other one, too
    COUNT       a power of two
    EXTENT      elements of each row of C that a CTA has: WARPS times a power of two where the matrix is contiguous
                along k, VECTOR times one up to 32 else. 0: one for each warp, or a vector for each lane of a warp
    BATCH       of many products: see work.parameters
    WARPS       of a CTA
    UNROLL      loads of a lane in flight
    OUT         format of C, to which sums are rounded; "": DTYPE
    SCALED      scales multiply sums: see gpu/scales.py
    WHEN        see work.arguments
    """
    T, KEPT, split, THREADS = SUMS[DTYPE], memory_type(DTYPE), Split(SPLIT_K), 32*WARPS
    along_k = LAYOUT[0] == "n" if COLUMN else LAYOUT[1] == "t"
    UNIT = WARPS if along_k else VECTOR
    WIDTH = EXTENT or (WARPS if along_k else 32*VECTOR)
    if WIDTH % UNIT or (WIDTH // UNIT) & (WIDTH // UNIT - 1) or WIDTH > 32*VECTOR*WARPS or COUNT & (COUNT - 1):
        raise ValueError(f"EXTENT must be {UNIT} times a power of two, and COUNT one, not {EXTENT} and {COUNT}")
    k = Kernel(f"gemv_{DTYPE}_{LAYOUT}_{'column' if COLUMN else 'row'}{COUNT}x{WIDTH}_v{VECTOR}_k{SPLIT_K}"
               f"{'_batch' if BATCH else ''}{f'_{OUT}' if OUT else ''}{'_scaled' if SCALED else ''}"
               f"{f'_when_{WHEN}' if WHEN else ''}", threads=THREADS, noalias=POINTERS if split.divided else True,
               **parameters(T, KEPT, KEPT, memory_type(OUT or DTYPE), split, T if SCALED else None, BATCH, WHEN=WHEN))
    g = arguments(k, WHEN)
    size, count = (g.m, g.n) if COLUMN else (g.n, g.m)

    def tiles() -> Value:
        return k.ceil_div(size, WIDTH)
    block = in_matrix(k, g, k.block[0], tiles)
    matrix, ld, x, ld_x = (g.a, g.lda, g.b, g.ldb) if COLUMN else (g.b, g.ldb, g.a, g.lda)
    x_along_k = LAYOUT[1] == "t" if COLUMN else LAYOUT[0] == "n"
    t, zero = k.thread[0], k.constant(i32, 0)
    share = k.ceil_div(g.k, SPLIT_K*VECTOR)*VECTOR                      # steps of k, for this CTA
    p0 = k.block_z*share if split.divided else zero
    p1 = k.min(g.k, p0 + share)

    def vectors() -> list[Callable[[Value], Value]]:
        """Where element p of each of them is; those beyond C are the last one."""
        found: list[Callable[[Value], Value]] = []
        for number in range(COUNT):
            i = k.cast(k.min(count - 1, number), i64) if number else k.constant(i64, 0)
            base, stride = (x + i*ld_x, 1) if x_along_k else (x + i, ld_x)
            found.append(partial(lambda base, stride, p: base + k.cast(p, i64)*stride, base, stride))
        return found

    def store(sum_of: Callable[[Value], Value]) -> None:
        """Sum number i*WIDTH + j is element j of the CTA's of vector i: threads next to each other store elements next
        to each other."""
        HOLDERS, out = min(COUNT*WIDTH, THREADS), Out.of(k, g, OUT or DTYPE, SCALED=SCALED)
        acc = k.tile(1, COUNT*WIDTH // HOLDERS, T)
        with k.when(t < HOLDERS):
            for e in range(acc.cols):
                acc[0, e] = sum_of(t + e*HOLDERS)

        def write() -> None:
            for e in range(acc.cols):
                at = t + e*HOLDERS
                i, j = at // WIDTH, block*WIDTH + at % WIDTH
                with k.when((i < count) & (j < size)):
                    out.cases_of_beta(partial(put, *((j, i) if COLUMN else (i, j)), e))

        def put(row: Value, column: Value, e: int, read_c: bool) -> None:
            out.put(row, column, out.scaled([acc[0, e]], row, column), read_c, None)
        _, parts = split.parts(k, g, k.block[0], lambda: of_batch(g, tiles()))
        finish(k, acc, parts, Holders(t, t, HOLDERS, t < HOLDERS), write)

    def unrolled(start: Value, STEP: int, LOADS: int, add: Callable[[list[Value]], None]) -> None:
        _unrolled(k, start, p1, STEP, max(UNROLL // LOADS, 1), add)
    (_along if along_k else _across)(k, DTYPE, VECTOR, COUNT, WIDTH, WARPS, matrix, ld, vectors(), x_along_k, size,
                                     block, t, p0, unrolled, store)
    return k.function


def _along(k: Kernel, DTYPE: str, VECTOR: int, COUNT: int, WIDTH: int, WARPS: int, matrix: Value, ld: Value,
           vectors: list[Callable[[Value], Value]], x_along_k: bool, size: Value, block: Value, t: Value, p0: Value,
           unrolled: Callable[..., None], store: Callable[..., None]) -> None:
    """OWN elements of each product for each warp."""
    T, KEPT, OWN, warp, lane = SUMS[DTYPE], memory_type(DTYPE), WIDTH // WARPS, t // 32, t % 32
    i = block*WIDTH + warp*OWN
    rows = [matrix + k.cast(k.min(i + o, size - 1), i64)*ld for o in range(OWN)]
    CHAINS = VECTOR if COUNT*OWN == 1 else 1
    sums = k.tile(COUNT*OWN, CHAINS, T)
    TOGETHER = VECTOR if x_along_k else 1                               # elements of a vector in one load

    def add(steps: list[Value]) -> None:
        loaded = [[k.load(row + p, vec(KEPT, VECTOR)) for row in rows] for p in steps]
        for p, found in zip(steps, loaded):
            numbers = [_wide(k, each, DTYPE) for each in found]
            for v, vector in enumerate(vectors):
                factors = [y for e in range(0, VECTOR, TOGETHER)
                           for y in _wide(k, k.load(vector(p + e), vec(KEPT, TOGETHER)), DTYPE)]
                for o, own in enumerate(numbers):
                    for e, (x, y) in enumerate(zip(own, factors, strict=True)):
                        at = v*OWN + o, e % CHAINS
                        sums[at] = k.fma(x, y, sums[at])
    unrolled(p0 + lane*VECTOR, 32*VECTOR, OWN, add)
    by_warp = k.smem("by_warp", (COUNT, WIDTH), T)
    for v in range(COUNT):
        for o in range(OWN):
            total = sums[v*OWN + o, 0]
            for e in range(1, CHAINS):
                total = total + sums[v*OWN + o, e]
            total = k.warp_sum(total)
            with k.when(lane == 0):
                by_warp[v, warp*OWN + o] = total
    k.barrier()
    store(lambda at: by_warp[at // WIDTH, at % WIDTH])


def _across(k: Kernel, DTYPE: str, VECTOR: int, COUNT: int, WIDTH: int, WARPS: int, matrix: Value, ld: Value,
            vectors: list[Callable[[Value], Value]], x_along_k: bool, size: Value, block: Value, t: Value, p0: Value,
            unrolled: Callable[..., None], store: Callable[..., None]) -> None:
    """VECTOR elements of each product for each lane; so many lanes as have other elements take a step of k together,
    and the others, in number SHARERS, every other one. They are added up at the end."""
    T, KEPT, LANES = SUMS[DTYPE], memory_type(DTYPE), WIDTH // VECTOR
    SHARERS = 32*WARPS // LANES
    sharer, lane = t // LANES, t % LANES
    column = matrix + k.min(block*WIDTH + lane*VECTOR, size - VECTOR)
    acc = k.tile(COUNT, VECTOR, T)

    def add(steps: list[Value]) -> None:
        found = [k.load(column + k.cast(p, i64)*ld, vec(KEPT, VECTOR)) for p in steps]
        factors = [[_wide(k, k.load(vector(p)), DTYPE)[0] for vector in vectors] for p in steps]
        for each, of_step in zip(found, factors):
            numbers = _wide(k, each, DTYPE)
            for v, factor in enumerate(of_step):
                for e, x in enumerate(numbers):
                    acc[v, e] = k.fma(x, factor, acc[v, e])
    unrolled(p0 + sharer, SHARERS, 1, add)
    TOGETHER = min(VECTOR, WIDEST // T.bytes)
    sums = k.smem("sums", (SHARERS, COUNT*WIDTH + WIDEST // T.bytes), T, WIDEST)
    for v in range(COUNT):
        for e in range(0, VECTOR, TOGETHER):
            values = [acc[v, e + d] for d in range(TOGETHER)]
            k.store(sums.at(sharer, v*WIDTH + lane*VECTOR + e), k.pack(*values) if TOGETHER > 1 else values[0])
    k.barrier()

    def total(at: Value) -> Value:
        found = sums[0, at]
        for other in range(1, SHARERS):
            found = found + sums[other, at]
        return found
    store(total)


def _unrolled(k: Kernel, start: Value, stop: Value, STEP: int, UNROLL: int,
              add: Callable[[list[Value]], None]) -> None:
    """add([p, p + STEP, ...]) for p from start to stop, UNROLL of them at a time and the last ones alone."""
    whole = k.max(stop - (start + STEP*(UNROLL - 1)), 0)
    with k.loop(start + whole, start, STEP*UNROLL) as p:
        add([p + u*STEP for u in range(UNROLL)])
    with k.loop(stop, start + k.ceil_div(whole, STEP*UNROLL)*(STEP*UNROLL), STEP, unroll=False) as p:
        add([p])


def _wide(k: Kernel, x: Value, FORMAT: str) -> list[Value]:
    """Its numbers, in the type of sums. Of a bf16 that is the upper half, of two the halves of a word."""
    T, n = SUMS[FORMAT], x.type.length
    if FORMAT == "bf16" and n > 1:
        words = k.reinterpret(x, vec(i32, n // 2))
        words = k.broadcast(words, 2) if n == 2 else words              # elements of vectors are bits, not indices
        halves = [k.bits_as(bits, vec(T, words.type.length))
                  for bits in (words << 16, words & k.constant(words.type, -1 << 16))]
        return [half[e] for e in range(n // 2) for half in halves]
    most = WIDEST // T.bytes
    parts = [x] if n <= most else [k.shuffle(x, x, range(first, first + most)) for first in range(0, n, most)]
    if memory_type(FORMAT) != T:
        parts = [widened(k, part, FORMAT, T) for part in parts]
    return [part[e] for part in parts for e in range(min(n, most))] if n > 1 else parts
