"""The GEMM on CUDA cores: one emitter for every tile, pipeline and layout.

A CTA computes a tile of C. Tiles of A and B come into shared memory STAGES - 1 ahead of their use; a lane keeps its
THREAD_M x THREAD_N elements of C in registers and adds the outer product of a fragment of A and one of B per step of k,
while the fragments of the next step are being loaded.

The first tile of k is the one that may be short, so that the loop over the others asks nothing.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from tilewright.ir import Function, Kernel, Value, f32, f64, i32, i64, ptr
from tilewright.kernels.gpu import raster
from tilewright.kernels.nvidia import epilogue
from tilewright.kernels.nvidia.cut import cut, lane_grid
from tilewright.kernels.nvidia.operand import WIDEST, Operand

TYPES = {"f32": f32, "f64": f64}


def emit_simt_gemm(DTYPE: str = "f32", LAYOUT: str = "nn", CTA_M: int = 128, CTA_N: int = 128, CTA_K: int = 16,
                   WARP_M: int = 32, WARP_N: int = 64, THREAD_M: int = 8, THREAD_N: int = 8, SLICES: int = 1,
                   STAGES: int = 3, ASYNC: bool = True, TRANSPOSE: bool = True, VECTOR: int = 4, SPLIT_K: int = 1,
                   TAIL: bool = False, GROUP_M: int = 8, ORDER: str = "rows", REGISTERS: int = 0, EARLY: bool = False
                   ) -> Function:
    """C[m, n] = alpha * A @ B + beta * C, row-major; beta = 0 never reads C.

    LAYOUT      "n" or "t" for A and for B: [m, k] or [k, m], [k, n] or [n, k]
    SLICES      groups of warps that share the CTA's tile of C, each with its part of the CTA_K steps of k
    ASYNC       copies by cp.async, else through registers (and STAGES = 2)
    TRANSPOSE   operands that are contiguous along k are transposed on their way to shared memory
    VECTOR      elements per copy: matrices are aligned to so many, and their leading dimensions, and their sizes along
                the contiguous dimension, are multiples of it
    SPLIT_K     slices of k that CTAs along z have; then `workspace` is T[SPLIT_K, tiles of C, CTA_M * CTA_N] and
                `counters` is i32[tiles of C], 0
    TAIL        the last tiles of C are divided among CTAs (raster.tail): it takes `whole` and `parts`, i32, too,
                and the grid is whole + (tiles - whole) * parts; `workspace` and `counters` are for the divided tiles
    GROUP_M     rows of tiles that are finished before the next ones
    ORDER       of the FMAs of an outer product: along "rows" or "columns"
    EARLY       copies through registers begin before the first multiply-add; else ptxas begins them when it likes,
                often just before they are stored, where all wait for them
    REGISTERS   that a thread may have, 0: what it should need; ptxas avoids bank conflicts better if told
    """
    T = TYPES[DTYPE]
    V = WIDEST // T.bytes
    LANES_M, LANES_N = WARP_M // THREAD_M, WARP_N // THREAD_N
    WARPS_M, WARPS_N = CTA_M // WARP_M, CTA_N // WARP_N
    SLICE = 32 * WARPS_M * WARPS_N                                      # threads of one slice of the CTA
    THREADS = SLICE * SLICES
    name = (f"simt_gemm_{DTYPE}_{LAYOUT}_{CTA_M}x{CTA_N}x{CTA_K}_w{WARP_M}x{WARP_N}_t{THREAD_M}x{THREAD_N}_s{STAGES}"
            f"_v{VECTOR}_k{SLICES}x{'tail' if TAIL else SPLIT_K}_{'async' if ASYNC else 'regs'}"
            f"{'' if TRANSPOSE else '_along'}{'_early' if EARLY else ''}")
    params: dict[str, Any] = {"m": i32, "n": i32, "k": i32, "alpha": T, "a": ptr(T), "lda": i64, "b": ptr(T),
                              "ldb": i64, "beta": T, "c": ptr(T), "ldc": i64}
    DIVIDED = SPLIT_K > 1 or TAIL                                       # tiles of C, among CTAs that share k
    if DIVIDED:
        params |= {"workspace": ptr(T), "counters": ptr(i32)}
    if TAIL:
        params |= {"whole": i32, "parts": i32}
    staged = 0 if ASYNC else (CTA_M + CTA_N)*CTA_K // THREADS              # elements of a thread, to shared memory
    k = Kernel(name, threads=THREADS, max_registers=REGISTERS or registers(THREAD_M, THREAD_N, staged, T.bytes),
               noalias=not DIVIDED, **params)
    m, n, kk, alpha, a, lda, b, ldb, beta, c, ldc = k.args[:11]
    t = k.thread[0]
    warp, lane = t // 32, t % 32
    in_slice, which_slice = warp % (WARPS_M*WARPS_N), warp // (WARPS_M*WARPS_N)
    # in the CTA's tile of C: where the warp's begins, and which rows and columns of it the lane has
    rows_start, columns_start = in_slice % WARPS_M * WARP_M, in_slice // WARPS_M * WARP_N
    lane_m, lane_n = lane_grid(lane, LANES_M, LANES_N)
    # of an operand that lies along k, neighbouring lanes read neighbouring rows
    ROWS_WIDEST = V if TRANSPOSE or LAYOUT[0] == "t" else 1
    COLUMNS_WIDEST = V if TRANSPOSE or LAYOUT[1] == "n" else 1
    rows = cut(rows_start, lane_m, LANES_M, THREAD_M, ROWS_WIDEST)
    columns = cut(columns_start, lane_n, LANES_N, THREAD_N, COLUMNS_WIDEST)

    tiles_m, tiles_n = k.ceil_div(m, CTA_M), k.ceil_div(n, CTA_N)
    mine, part, parts = k.block[0], k.constant(i32, 0), k.constant(i32, SPLIT_K)     # which tile of C, which part of it
    if SPLIT_K > 1:
        part = k.block_z
    elif TAIL:
        mine, part, parts = raster.tail(k, k.block[0], *k.args[13:])
    tile_m, tile_n = raster.grouped(k, mine, tiles_m, tiles_n, GROUP_M)
    i0, j0 = tile_m*CTA_M, tile_n*CTA_N
    k_first, steps = k.constant(i32, 0), kk
    if DIVIDED:
        share = k.ceil_div(k.ceil_div(kk, CTA_K), parts)*CTA_K
        k_first = part*share
        steps = k.max(k.min(kk - k_first, share), 0)
    tiles = k.ceil_div(steps, CTA_K)                                    # of k, for this CTA
    short = k.select(tiles > 0, steps - (tiles - 1)*CTA_K, 0)           # steps of k in the first of them

    def operand(gmem: Value, ld: Value, along_k: bool, EXTENT: int) -> Operand:
        return Operand(k, T, gmem, ld, along_k=along_k, transposed=TRANSPOSE, EXTENT=EXTENT, CTA_K=CTA_K, VECTOR=VECTOR,
                       THREADS=THREADS, ASYNC=ASYNC)
    a_op, b_op = operand(a, lda, LAYOUT[0] == "n", CTA_M), operand(b, ldb, LAYOUT[1] == "t", CTA_N)
    operands = a_op, b_op
    SIZE = a_op.SIZE + b_op.SIZE
    # single elements of C, which a lane has in vectors, go through shared memory to lie side by side
    STAGED = VECTOR == 1 and SLICES == 1 and not DIVIDED and WARP_N % 32 == 0
    smem = k.smem("tiles", (max(STAGES*SIZE, CTA_M*CTA_N if SLICES > 1 else 0,
                                epilogue.staging(WARPS_M*WARPS_N, LANES_M, WARP_N) if STAGED else 0),), T, align=128)

    def places(stage: Value) -> tuple[Value, Value]:                    # of A and B in a stage
        at = smem + stage*SIZE
        return at, at + a_op.SIZE

    # ---- the pipeline: tile x goes to stage x % STAGES
    a_op.begin(t, i0, m, k_first)
    b_op.begin(t, j0, n, k_first)
    first_stage = places(k.constant(i32, 0))
    for x, place in zip(operands, first_stage):
        x.start(place, short) if ASYNC else x.fetch(short)
    if ASYNC:
        k.cp_async_commit()
        for ahead in range(1, STAGES - 1):
            with k.when(tiles > ahead):
                for x, place in zip(operands, places(k.constant(i32, ahead))):
                    x.start(place)
            k.cp_async_commit()
        k.cp_async_wait(STAGES - 2)
    else:
        for x, place in zip(operands, first_stage):
            x.stash(place)
    k.barrier()

    def request(tile: Value, stage: Value) -> None:
        """Start bringing a tile in."""
        with k.when(tile < tiles):
            for x, place in zip(operands, places(stage)):
                x.start(place) if ASYNC else x.fetch()
        if ASYNC:
            k.cp_async_commit()
        elif EARLY:
            k.warp_barrier()            # across which ptxas moves no load

    def arrive(tile: Value, stage: Value) -> None:
        """Wait until it is there for all, and all are done with the one before."""
        if ASYNC:
            k.cp_async_wait(STAGES - 2)
        else:
            with k.when(tile < tiles):
                for x, place in zip(operands, places(stage)):
                    x.stash(place)
        k.barrier()

    # ---- the loop over tiles of k
    STEPS = CTA_K // SLICES                                             # of k, of this thread

    def fragment(x: Operand, place: Value, p: int) -> list[Value]:
        return x.fragment(x.after(place, which_slice*STEPS) if SLICES > 1 else place, rows if x is a_op else columns, p)

    acc = k.tile(THREAD_M, THREAD_N, T)
    carried = [Carried(k, fragment(x, place, 0)) for x, place in zip(operands, first_stage)]
    now = k.variable(i32, 0)
    with k.loop(tiles) as tile:
        stage = now.get()
        after = k.select(stage == STAGES - 1, k.constant(i32, 0), stage + 1)
        free = k.select(stage == 0, k.constant(i32, STAGES - 1), stage - 1)
        request(tile + (STAGES - 1), free)
        current = [x.get() for x in carried]
        c_reg = {ij: acc[ij] for ij in acc.registers}
        for p in range(STEPS):
            following = [*current]
            if p == STEPS - 1:
                arrive(tile + 1, after)
                after = k.select(tile + 1 < tiles, after, stage)        # there is no next one: read anything
                for index, (x, place) in enumerate(zip(operands, places(after))):
                    following[index] = fragment(x, place, 0)
            for index, (x, place) in enumerate(zip(operands, places(stage))):
                if p + 1 < STEPS and (p + 1) % x.STEPS == 0:
                    following[index] = fragment(x, place, p + 1)
            a_reg, b_reg = (x.values(vectors, p) for x, vectors in zip(operands, current))
            for i, j in serpentine(THREAD_M, THREAD_N, ORDER):
                c_reg[i, j] = k.fma(a_reg[i], b_reg[j], c_reg[i, j])
            current = following
        for variables, vectors in zip(carried, current):
            variables.set(vectors)
        for ij, value in c_reg.items():
            acc[ij] = value
        now.set(after)

    # ---- C
    def finish() -> None:
        if STAGED:
            k.barrier()                         # nobody reads tiles any more
            own = cut(k.constant(i32, 0), lane_n, LANES_N, THREAD_N, COLUMNS_WIDEST)
            place = smem + in_slice*epilogue.staging(1, LANES_M, WARP_N)
            epilogue.store_staged(k, T, acc, lambda r: cut(rows_start, r, LANES_M, THREAD_M, ROWS_WIDEST), own, lane_m,
                                  lane, place, WARP_N, i0, j0 + columns_start, m, n, alpha, beta, c, ldc)
            return
        epilogue.store(k, T, acc, rows, columns, i0, j0, m, n, alpha, beta, c, ldc, VECTOR)

    if ASYNC:
        k.cp_async_wait(0)
    if SLICES > 1:
        epilogue.add_slices(k, acc, smem, t % SLICE, which_slice, SLICES, SLICE)
    has_acc = which_slice == 0
    if DIVIDED:
        workspace, counters = k.args[11:13]
        whole = k.args[13] if TAIL else k.constant(i32, 0)
        with k.when(parts > 1) if TAIL else nullcontext():
            epilogue.add_parts(k, acc, workspace, counters, mine - whole, tiles_m*tiles_n - whole, part, parts, t,
                               t % SLICE, SLICE, has_acc, finish)
    if TAIL:
        with k.when((parts == 1) & has_acc):
            finish()
    elif not DIVIDED:
        with k.when(has_acc) if SLICES > 1 else nullcontext():
            finish()
    return k.function


class Carried:
    """Vectors that a loop hands on to its next round."""

    def __init__(self, k: Kernel, values: list[Value]) -> None:
        self.variables = [k.variable(value.type, value) for value in values]

    def get(self) -> list[Value]: return [x.get() for x in self.variables]

    def set(self, values: list[Value]) -> None:
        for x, value in zip(self.variables, values):
            x.set(value)


def serpentine(rows: int, columns: int, ORDER: str) -> Iterator[tuple[int, int]]:
    """All (i, j), each sharing an index with the one before it: one operand less to read from the registers."""
    if ORDER == "columns":
        yield from ((i, j) for j, i in serpentine(columns, rows, "rows"))
        return
    for i in range(rows):
        for j in range(columns):
            yield i, j if i % 2 == 0 else columns - 1 - j


def registers(THREAD_M: int, THREAD_N: int, STAGED: int, itemsize: int) -> int:
    """A limit for ptxas: accumulators, fragments one and a half times, what is on its way, addresses; in eights."""
    values = THREAD_M*THREAD_N + (THREAD_M + THREAD_N) * 3 // 2 + STAGED
    return min((values * itemsize // 4 + 40 + 7) // 8 * 8, 255)
