"""The GEMM on CUDA cores: one emitter for every tile, pipeline and layout.

A CTA computes a tile of C (gpu/work.py). Tiles of A and B come into shared memory STAGES - 1 ahead of their use
(ring.py, whose docstring has the timeline; operand.py copies). A lane keeps its THREAD_M x THREAD_N elements of C in
registers and adds the outer product of a fragment of A and one of B per step of k, while the fragments of the next step
are being loaded. Then result.py stores C by way of gpu/epilogue.py.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from tilewright.ir import Function, Kernel, Tile, Value, f32, f64, i32, i64
from tilewright.kernels.expression import Arithmetic, neutral, semiring_suffix
from tilewright.kernels.gpu import fused, groups, transform
from tilewright.kernels.gpu.auxiliary import pointers
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.split_k import Split
from tilewright.kernels.gpu.transform import Transform
from tilewright.kernels.gpu.work import Work, arguments, parameters, share
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.nvidia import result
from tilewright.kernels.nvidia.operand import WIDEST, SmemOperand
from tilewright.kernels.nvidia.result import Partition, Result, Staging, lane_grid, partition
from tilewright.kernels.nvidia.ring import Fragments, Ring
from tilewright.plans import semirings

STEPS_MOST = 1 << 16        # of any tile of k
MOST_CODE = 2048            # instructions of a main loop; what is more than that misses the instruction cache
BESIDE = 32             # registers of a thread for prologues
FILE = 65536                # registers of a multiprocessor
MOST_REGISTERS = 224        # of a thread, for terms of a semiring: with more ptxas moves so many that some are spilled
TYPES = {"f32": f32, "f64": f64, "i32": i32, "i64": i64}


def emit_simt_gemm(DTYPE: str = "f32", LAYOUT: str = "nn", CTA_M: int = 128, CTA_N: int = 128, CTA_K: int = 16,
                   WARP_M: int = 32, WARP_N: int = 64, THREAD_M: int = 8, THREAD_N: int = 8, SLICES: int = 1,
                   STAGES: int = 3, ASYNC: bool = True, TRANSPOSE: bool = True, VECTOR: int = 4, VECTOR_C: int = 0,
                   SPLIT_K: int = 1, TAIL: bool = False, GROUP_M: int = 8, ORDER: str = "rows", REGISTERS: int = 0,
                   EARLY: bool = False, BATCH: bool = False, OUT: str = "", SCALED: bool = False,
                   WHEN: str = "", EPILOGUE: str = "", SEMIRING: str = "", PROLOGUE_A: str = "", PROLOGUE_B: str = "",
                   ARCH: str = "sm_75", GROUPED: str = "") -> Function:
    """C[m, n] = alpha * A @ B + beta * C, row-major; beta = 0 never reads C.

    LAYOUT      "n" or "t" for A and for B: [m, k] or [k, m], [k, n] or [n, k]
    SLICES      groups of warps that share the CTA's tile of C, each with its part of the CTA_K steps of k
    ASYNC       copies by cp.async, else through registers (and STAGES = 2), EARLY or when ptxas likes: see ring.Ring
    TRANSPOSE   operands that are contiguous along k are transposed on their way to shared memory
    VECTOR      elements per copy: matrices are aligned to so many, and their leading dimensions, and their sizes along
                the contiguous dimension, are multiples of it
    VECTOR_C    elements of C that are stored at once, 0: VECTOR
    SPLIT_K     parts of k, and TAIL: see split_k.Split; `workspace` has CTA_M * CTA_N sums for each part of each tile
    GROUP_M     rows of tiles that are finished before the next ones
    ORDER       of the FMAs of an outer product: along "rows" or "columns"
    REGISTERS   that a thread may have, 0: an estimate; with a limit ptxas avoids more bank conflicts
    BATCH       of many matrices: see work.parameters, and so are strides multiples of VECTOR
    OUT         format of C, to which sums are rounded; "": DTYPE
    SCALED      scales multiply sums: see gpu/scales.py
    WHEN        see work.arguments
    EPILOGUE    the text of an expressions.function.Epilogue: see gpu/fused.py
    SEMIRING    the text of an expressions.semiring.Semiring: what stands for multiplication and addition, of integers
                too. There are no alpha and beta then
    PROLOGUE_A  the text of an expressions.function.Prologue, whose result is DTYPE, for copies through registers: see
                gpu/transform.py. PROLOGUE_B: of B. ARCH: the target whose conversions they take
    GROUPED     what offsets divide, "m" or "k" (then LAYOUT is "tn"): see gpu/groups.py; with BATCH, SPLIT_K 1
    """
    T, V, split = TYPES[DTYPE], WIDEST // TYPES[DTYPE].bytes, Split(SPLIT_K, TAIL)
    LANES_M, LANES_N, WARPS = WARP_M // THREAD_M, WARP_N // THREAD_N, CTA_M // WARP_M * (CTA_N // WARP_N)
    THREADS = 32 * WARPS * SLICES
    name = (f"simt_gemm_{DTYPE}_{LAYOUT}_{CTA_M}x{CTA_N}x{CTA_K}_w{WARP_M}x{WARP_N}_t{THREAD_M}x{THREAD_N}_s{STAGES}"
            f"_v{VECTOR}_k{SLICES}x{'tail' if TAIL else SPLIT_K}_{'async' if ASYNC else 'regs'}"
            f"{'' if TRANSPOSE else '_along'}{'_early' if EARLY else ''}{'_batch' if BATCH else ''}"
            f"{f'_c{VECTOR_C}' if VECTOR_C else ''}{f'_{OUT}' if OUT else ''}{'_scaled' if SCALED else ''}"
            f"{f'_when_{WHEN}' if WHEN else ''}{f'_groups_{GROUPED}' if GROUPED else ''}"
            f"{fused.suffix(EPILOGUE)}{semiring_suffix(SEMIRING)}{transform.suffix(PROLOGUE_A, PROLOGUE_B)}")
    staged = 0 if ASYNC else (CTA_M + CTA_N)*CTA_K // THREADS          # elements of a thread, to shared memory
    fragments = sum(own * (1 if TRANSPOSE or not along_k else V) for own, along_k in (
        (THREAD_M, LAYOUT[0] == "n"), (THREAD_N, LAYOUT[1] == "t")))
    limit = registers(THREAD_M*THREAD_N * semirings.fields(SEMIRING), fragments,
                      staged + semirings.in_flight(SEMIRING) + BESIDE*bool(PROLOGUE_A or PROLOGUE_B), T.bytes)
    if SEMIRING:                            # as many terms on their way as cost no CTA of a multiprocessor
        limit = min(FILE // (THREADS * max(FILE // (THREADS*limit), 1)) // 8 * 8, MOST_REGISTERS)
    k = Kernel(name, threads=THREADS, max_registers=REGISTERS or limit,
               noalias=pointers(EPILOGUE, PROLOGUE_A, PROLOGUE_B) if split.divided else True,
               **parameters(T, transform.memory(PROLOGUE_A, T), transform.memory(PROLOGUE_B, T),
                            memory_type(OUT or DTYPE), split, T if SCALED else None, BATCH, WHEN=WHEN,
                            EPILOGUE=EPILOGUE, LINEAR=not SEMIRING, PROLOGUES=(PROLOGUE_A, PROLOGUE_B), LAYOUT=LAYOUT,
                            GROUPED=GROUPED))
    g = arguments(k, WHEN)
    if GROUPED == "m":
        groups.clear(k, g, EPILOGUE, THREADS)
    work = share(k, g, split, CTA_M=CTA_M, CTA_N=CTA_N, CTA_K=CTA_K, WARP_M=WARP_M, WARP_N=WARP_N, GROUP_M=GROUP_M,
                 SLICES=SLICES, GROUPED=GROUPED)

    # which rows and columns of the CTA's tile the lane has; of an operand along k, neighbouring lanes read neighbours
    lane_m, lane_n = lane_grid(work.lane, LANES_M, LANES_N)
    wide_m, wide_n = V if TRANSPOSE or LAYOUT[0] == "t" else 1, V if TRANSPOSE or LAYOUT[1] == "n" else 1
    rows = partition(work.i1, lane_m, LANES_M, THREAD_M, wide_m)
    columns = partition(work.j1, lane_n, LANES_N, THREAD_N, wide_n)

    def operand(gmem: Value, ld: Value, along_k: bool, EXTENT: int, ROLE: str, PROLOGUE: str) -> SmemOperand:
        before = Transform.from_arguments(k, g, ROLE, PROLOGUE, ALONG_K=along_k, ARCH=ARCH)
        return SmemOperand(k, T, gmem, ld, along_k=along_k, transposed=TRANSPOSE, EXTENT=EXTENT, CTA_K=CTA_K,
                           VECTOR=VECTOR, THREADS=THREADS, ASYNC=ASYNC, BEFORE=before)
    a = operand(g.a, g.lda, LAYOUT[0] == "n", CTA_M, "a", PROLOGUE_A)
    b = operand(g.b, g.ldb, LAYOUT[1] == "t", CTA_N, "b", PROLOGUE_B)
    # single elements of C, which a lane has in vectors, go through shared memory to lie side by side
    arithmetic = Arithmetic.from_text(k, T, SEMIRING)
    FIELDS = len(arithmetic.types)
    STAGED = ((VECTOR_C or VECTOR) == 1 and SLICES == 1 and not split.divided and WARP_N % 32 == 0
              and arithmetic.types == (T,))
    STAGING = Staging.size(LANES_M, WARP_N) if STAGED else 0
    smem = k.smem("tiles", (max(STAGES*(a.SIZE + b.SIZE), CTA_M*CTA_N*FIELDS if SLICES > 1 else 0,
                              WARPS*STAGING),), T, align=128)
    a.begin(work.t, work.i0, g.m, work.k_first)
    b.begin(work.t, work.j0, g.n, work.k_first)

    pad = neutral(SEMIRING, T) if SEMIRING else (0, 0)
    ring = Ring(k, (a, b), smem, work.tiles, work.short, STAGES=STAGES, ASYNC=ASYNC, EARLY=EARLY, PAD=pad or (0, 0))
    accs = [k.tile(THREAD_M, THREAD_N, type, zero=not SEMIRING) for type in arithmetic.types]
    products = OuterProducts(k, ring, (a, b), (rows, columns), accs, work, CTA_K, CTA_K // SLICES, ORDER, arithmetic,
                             GUARDED=pad is None,
                             UNROLLED=unrolled(SEMIRING, THREAD_M*THREAD_N, CTA_K // SLICES) if TRANSPOSE else 0)
    ring.run(products, products.UNROLLED)
    staging = Staging(smem + work.t // 32*STAGING, lane_m,
                      lambda r: partition(work.i1, r, LANES_M, THREAD_M, wide_m),
                      partition(k.constant(work.lane.type, 0), lane_n, LANES_N, THREAD_N, wide_n),
                      WARP_N) if STAGED else None
    holders = result.holders(work, 32*WARPS)
    if SLICES > 1:
        result.add_slices(k, accs, smem, work, SLICES, holders, arithmetic)
    out = Out.from_arguments(k, g, OUT or DTYPE, VECTOR_C or VECTOR, SCALED=SCALED, EPILOGUE=EPILOGUE, SUMS=T)
    result.store(k, work, out, Result(accs[0], rows, columns, accs[1:]), holders, staging, arithmetic)
    return k.function


class OuterProducts:
    """acc[i, j] += A[row i, p] * B[p, column j] for STEPS steps p of each tile, those of this slice; or what else the
    arithmetic is, of states with a tile for each field.

    GUARDED     what is beyond k in the first tile would change sums, whatever it is, and is passed over
    UNROLLED    see ring.Ring.run
    """

    def __init__(self, k: Kernel, ring: Ring, operands: Sequence[SmemOperand], own: Sequence[Partition],
                 accs: Sequence[Tile], work: Work, CTA_K: int, STEPS: int, ORDER: str,
                 arithmetic: Arithmetic, GUARDED: bool, UNROLLED: int) -> None:
        self.k, self.ring, self.operands, self.own, self.accs = k, ring, operands, own, accs
        self.work, self.slice, self.CTA_K, self.STEPS = work, work.slice, CTA_K, STEPS
        self.arithmetic, self.GUARDED, self.UNROLLED = arithmetic, GUARDED, UNROLLED
        self.order = [*serpentine(accs[0].rows, accs[0].cols, ORDER)]
        for acc, first in zip(accs, arithmetic.first) if arithmetic.semiring else ():
            for ij in acc.registers:
                acc[ij] = first

    def read(self, stage: Value, step: int | Value, before: Fragments | None = None) -> Fragments:
        """Vectors along k have several steps: they stay."""
        found = []
        for index, (x, at) in enumerate(zip(self.operands, self.ring.places(stage))):
            if before and isinstance(step, int) and step % x.STEPS:
                found.append(before[index])
                continue
            if self.slice is not None:
                at = x.after(at, self.slice*self.STEPS)
            found.append(x.fragment(at, self.own[index], step))
        return found

    @contextmanager
    def accumulating(self, tile: Value) -> Iterator[None]:
        k, in_place = self.k, self.GUARDED or self.UNROLLED > 0
        own = self.slice*self.STEPS if self.slice is not None and in_place else 0
        if self.GUARDED:
            self.left = k.select(tile == 0, self.ring.short, k.constant(i32, STEPS_MOST)) - own
        if self.arithmetic.indexed:
            before = k.select(tile == 0, k.constant(i32, 0), self.ring.short + (tile - 1)*self.CTA_K)
            self.first = self.work.k_first + before + own
        self.now: Sequence[Any] = self.accs if in_place else [{ij: x[ij] for ij in x.registers} for x in self.accs]
        yield
        for acc, values in zip(self.accs, self.now) if not in_place else ():
            for ij, value in values.items():
                acc[ij] = value

    def multiply(self, fragments: Fragments, step: int | Value) -> None:
        a_reg, b_reg = (x.values(vectors, step) for x, vectors in zip(self.operands, fragments))
        with self.k.when(self.left > step) if self.GUARDED else nullcontext():
            index = self.k.cast(self.first + step, self.arithmetic.INT) if self.arithmetic.indexed else None
            for ij in self.order:
                state = self.arithmetic.step(a_reg[ij[0]], b_reg[ij[1]], tuple(x[ij] for x in self.now), index)
                for x, value in zip(self.now, state):
                    x[ij] = value


def unrolled(SEMIRING: str, SUMS: int, STEPS: int) -> int:
    """Steps of k in the code, of STEPS, for so many sums in a thread; 0: all."""
    each = semirings.instructions(SEMIRING) if SEMIRING else 0
    if not SEMIRING or (each <= semirings.SHORT and SUMS*each*STEPS <= MOST_CODE):
        return 0
    most = MOST_CODE // (SUMS*each) if each <= semirings.SHORT else 1
    return next((count for count in range(most, 1, -1) if STEPS % count == 0), 1)


def serpentine(rows: int, columns: int, ORDER: str) -> Iterator[tuple[int, int]]:
    """All (i, j), each sharing an index with the one before it: one operand less to read from the registers."""
    if ORDER == "columns":
        yield from ((i, j) for j, i in serpentine(columns, rows, "rows"))
        return
    for i in range(rows):
        for j in range(columns):
            yield i, j if i % 2 == 0 else columns - 1 - j


def registers(SUMS: int, FRAGMENTS: int, STAGED: int, itemsize: int) -> int:
    """A limit for ptxas: accumulators, fragments one and a half times, what is on its way, addresses; in eights."""
    values = SUMS + FRAGMENTS * 3 // 2 + STAGED
    return min((values * itemsize // 4 + 40 + 7) // 8 * 8, 255)
