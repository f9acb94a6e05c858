"""A few rows or columns of C: vectors times a matrix, which is read once, 16 bytes a lane and many of them in flight.

    the matrix is contiguous along k        a warp has some elements of each vector's product: its lanes share k
    along the other index                   a lane has VECTOR elements of each, and all lanes that have the same columns
                                            (or rows) of the matrix share k
    8 vectors and more, along k             the same by matrix instructions, and warps share k as well

CTAs along z share k; the last one of those that share elements of C adds up their sums, in the order of k. Nothing goes
through shared memory before it is multiplied: the matrix has no second use, and the vectors stay in L1. A prologue of
the matrix is computed in registers (gpu/transform.py); factors that a run of k has in common multiply the run's sums: a
lane's vector along k, its steps in flight across k, a piece of a warp by matrix instructions.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import gcd

from tilewright.ir import Function, Kernel, Value, f32, i32, i64
from tilewright.kernels.gpu import transform
from tilewright.kernels.gpu.auxiliary import pointers
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.fused import suffix
from tilewright.kernels.gpu.split_k import Holders, Split, finish
from tilewright.kernels.gpu.transform import Transform
from tilewright.kernels.gpu.work import arguments, in_matrix, of_batch, parameters
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.nvidia.gemv_matrices import ROWS, VECTORS, ByMatrices
from tilewright.kernels.nvidia.gemv_reading import SUMS, WIDEST, Reading

FOR_TWO = 128           # registers with which a multiprocessor holds two CTAs of 256 threads


def emit_gemv(DTYPE: str = "f32", B: str = "", LAYOUT: str = "nn", COLUMN: bool = False, VECTOR: int = 4,
              COUNT: int = 1, EXTENT: int = 0, SPLIT_K: int = 1, BATCH: bool = False, WARPS: int = 8, UNROLL: int = 8,
              OUT: str = "", SCALED: bool = False, WHEN: str = "", BESIDE: int = 0, EPILOGUE: str = "",
              PROLOGUE: str = "", ARCH: str = "sm_80", STAGES: int = 0, REGISTERS: int = 0) -> Function:
    """C = alpha * A @ B + beta * C of at most COUNT rows (or with COLUMN, columns); parameters as for any GEMM;
    beta = 0 never reads C.

    DTYPE       of A, and of B if `B` is "": f32, f64, f16, bf16; with a COUNT of 8 or more f16, bf16, or any two of i8
                and u8, or of e4m3fn and e5m2
    VECTOR      elements of the matrix that a lane loads at once: it is aligned to so many, its leading dimension and
                its size along the contiguous dimension are multiples of it. If k is contiguous in both operands that is
                true of the other one, too
    COUNT       a power of two. From 8 on matrix instructions multiply, for which k is contiguous in both operands, and
                VECTOR 16 bytes
    EXTENT      elements of each row of C that a CTA has: WARPS times a power of two where the matrix is contiguous
                along k, 16 times one for matrix instructions; else VECTOR times at most 32, a divisor of its threads.
                0: one for each warp, or a vector for each lane of a warp
    BATCH       of many products: see work.parameters
    WARPS       of a CTA
    UNROLL      loads of a lane in flight
    OUT         format of C, to which sums are rounded; "": DTYPE
    SCALED      scales multiply sums: see gpu/scales.py
    WHEN        see work.arguments
    BESIDE      of COUNT vectors without k contiguous, so many elements of a step of k in one load, a divisor; or 0
    EPILOGUE    the text of an expressions.function.Epilogue, not of pairs: see gpu/fused.py
    PROLOGUE    the text of an expressions.function.Prologue, of the matrix: DTYPE is its result, and VECTOR elements of
                its source are loaded at once
    ARCH        the target whose conversions it takes
    STAGES      of matrix instructions, spans of a warp in flight by cp.async, of EXTENT elements of each row of C, of
                which there are as many; 0: as many loads as UNROLL. EXTENT is any multiple of 16 then
    REGISTERS   that a thread may have; 0: what has been found to be best
    """
    T, split, THREADS = SUMS[DTYPE], Split(SPLIT_K), 32*WARPS
    along_k, matrices = LAYOUT[0] == "n" if COLUMN else LAYOUT[1] == "t", COUNT >= VECTORS
    UNIT = ROWS if matrices else WARPS if along_k else VECTOR
    WIDTH = EXTENT or (WARPS if along_k else 32*VECTOR)
    across = not along_k and not matrices
    fits = (THREADS % (WIDTH // UNIT) == 0 if across else (WIDTH // UNIT) & (WIDTH // UNIT - 1) == 0) or STAGES
    if WIDTH % UNIT or not fits or WIDTH > 32*VECTOR*WARPS or COUNT & (COUNT - 1):
        raise ValueError(f"EXTENT must be {UNIT} times a {f'divisor of {THREADS}' if across else 'power of two'}, and "
                         f"COUNT a power of two, not {EXTENT} and {COUNT}")
    A_TYPE, B_TYPE = memory_type(DTYPE), memory_type(B or DTYPE)
    if PROLOGUE:
        A_TYPE, B_TYPE = (transform.memory(PROLOGUE, A_TYPE), B_TYPE)[::1 if COLUMN else -1]
    whole = WIDEST // (A_TYPE if COLUMN else B_TYPE).bytes * transform.together(PROLOGUE)
    if matrices and (LAYOUT, VECTOR) != ("nt", whole):
        raise ValueError(f"COUNT = {COUNT} needs LAYOUT nt and VECTOR {whole}, not {LAYOUT} and {VECTOR}")
    FACTOR = None if not SCALED else f32 if T == i32 else T
    ROLE, PROLOGUES = ("a", (PROLOGUE, "")) if COLUMN else ("b", ("", PROLOGUE))
    k = Kernel(f"gemv_{DTYPE}_{B or DTYPE}_{LAYOUT}_{'column' if COLUMN else 'row'}{COUNT}x{WIDTH}_v{VECTOR}_w{WARPS}"
               f"_k{SPLIT_K}{'_batch' if BATCH else ''}{f'_{OUT}' if OUT else ''}{'_scaled' if SCALED else ''}"
               f"{f'_when_{WHEN}' if WHEN else ''}{f'_beside{BESIDE}' if BESIDE else ''}{suffix(EPILOGUE)}"
               f"{transform.suffix(*PROLOGUES)}{f'_async{STAGES}' * (STAGES > 0)}{f'_r{REGISTERS}' * (REGISTERS > 0)}",
               threads=THREADS,
               max_registers=REGISTERS or (
                   min(256*FOR_TWO // THREADS, 255) if STAGES and COUNT > VECTORS else
                   FOR_TWO if STAGES or (PROLOGUE and THREADS <= 256 and COUNT in (1, VECTORS)) else None),
               noalias=(pointers(EPILOGUE, *PROLOGUES*(not STAGES))
                        if split.divided or STAGES else True),      # what copies read beside stays where it is read
               **parameters(T, A_TYPE, B_TYPE, memory_type(OUT or DTYPE), split, FACTOR, BATCH, WHEN=WHEN,
                            EPILOGUE=EPILOGUE, PROLOGUES=PROLOGUES, LAYOUT=LAYOUT))
    g = arguments(k, WHEN)
    size, count = (g.m, g.n) if COLUMN else (g.n, g.m)

    def tiles() -> Value:
        return k.ceil_div(size, WIDTH)
    block = in_matrix(k, g, k.block[0], tiles)
    matrix, ld, x, ld_x = (g.a, g.lda, g.b, g.ldb) if COLUMN else (g.b, g.ldb, g.a, g.lda)
    x_along_k = LAYOUT[1] == "t" if COLUMN else LAYOUT[0] == "n"
    t, zero = k.thread[0], k.constant(i32, 0)
    RUN = 4*VECTOR if matrices else VECTOR if along_k else UNROLL          # of k, with common factors
    before = Transform.from_arguments(k, g, ROLE, PROLOGUE, ALONG_K=along_k, RUN=RUN, ARCH=ARCH, PAIRED=matrices)
    PIECE = RUN if matrices or before else VECTOR
    share = k.ceil_div(g.k, SPLIT_K*PIECE)*PIECE                        # steps of k, for this CTA

    def vectors() -> list[tuple[Value, Value | int]]:
        """Where each of them, or BESIDE together, begins, and from step to step of k; those beyond C are the last."""
        found: list[tuple[Value, Value | int]] = []
        for number in range(0, COUNT, BESIDE or 1):
            i = k.constant(i64, number) if BESIDE or not number else k.cast(k.min(count - 1, number), i64)
            found.append((x + i*ld_x, 1) if x_along_k else (x + i, ld_x))
        return found

    def store(sum_of: Callable[[Value], Value]) -> None:
        """Sum number i*WIDTH + j is element j of the CTA's of vector i: threads next to each other store elements next
        to each other."""
        HOLDERS = COUNT*WIDTH if COUNT*WIDTH <= THREADS else gcd(COUNT*WIDTH, THREADS)
        out = Out.from_arguments(k, g, OUT or DTYPE, SCALED=SCALED, EPILOGUE=EPILOGUE)
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
        finish(k, [acc], parts, Holders(t, t, HOLDERS, t < HOLDERS), write)

    p0 = k.block_z*share if split.divided else zero
    first = block*WIDTH if not STAGES else k.min(block*WIDTH, size - WIDTH)         # there are as many rows
    part = (k, DTYPE, VECTOR, COUNT, WIDTH, WARPS, UNROLL, matrix, ld, size, [] if matrices else vectors(),
            x_along_k, BESIDE, first, p0, k.min(g.k, p0 + share), g.k, before)
    if matrices:
        formats = (DTYPE, B or DTYPE) if COLUMN else (B or DTYPE, DTYPE)
        store(ByMatrices(*part, formats, x, ld_x, count, STAGES,
                         block*WIDTH - first if STAGES else None).sums())
        return k.function
    reading = Reading(*part)
    store(reading.along() if along_k else reading.across())
    return k.function
