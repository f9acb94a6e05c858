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

from tilewright.ir import Function, Kernel, Value, i32, i64
from tilewright.kernels.gpu import transform
from tilewright.kernels.gpu.auxiliary import pointers
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.fused import suffix
from tilewright.kernels.gpu.split_k import Holders, Split, finish
from tilewright.kernels.gpu.transform import Transform
from tilewright.kernels.gpu.work import arguments, in_matrix, of_batch, parameters
from tilewright.kernels.nvidia.gemv_matrices import VECTORS, ByMatrices
from tilewright.kernels.nvidia.gemv_reading import SUMS, Reading
from tilewright.plans.gemv_rules import FOR_TWO, LOADS, along_k, few_columns, run, tile
from tilewright.plans.gpu_shape import GpuShape
from tilewright.plans.nvidia_plan import NvidiaPlan


def emit_gemv(shape: GpuShape, plan: NvidiaPlan, ARCH: str = "sm_80", WHEN: str = "") -> Function:
    """C = alpha * A @ B + beta * C of at most as many rows (or columns) as the plan's tile; parameters as for any GEMM;
    beta = 0 never reads C. ARCH: the target, whose conversions a prologue takes. WHEN: see work.arguments.

    With copies by cp.async, of matrix instructions, `stages` spans of a warp are in flight, of the tile's elements of C
    of each row, of which there are as many; else `LOADS` loads of a lane.
    """
    s, p, T, split = shape, plan, SUMS[shape.a], Split(plan.split_k)
    COLUMN, (COUNT, WIDTH), by_k = few_columns(s), tile(p, s), along_k(s)
    STAGES, BESIDE, matrices = p.stages if p.copy == "async" else 0, p.vector_b, COUNT >= VECTORS
    PROLOGUE = s.prologue_of(s.prologues) if s.prologues else ""
    k = Kernel(f"gemv_{s.a}_{s.b}_{s.layout}_{'column' if COLUMN else 'row'}{COUNT}x{WIDTH}_v{p.vector}_w{p.cta_k}"
               f"_k{p.split_k}{'_batch' if s.batch != 1 else ''}{f'_{s.out}' if s.out != s.a else ''}"
               f"{'_scaled' if s.scales else ''}{f'_when_{WHEN}' if WHEN else ''}{f'_beside{BESIDE}' if BESIDE else ''}"
               f"{suffix(s.epilogue)}{transform.suffix(s.prologue_a, s.prologue_b)}{f'_async{STAGES}' * (STAGES > 0)}"
               f"{f'_r{p.registers}' * (p.registers > 0)}",
               threads=p.threads,
               max_registers=p.registers or (
                   min(256*FOR_TWO // p.threads, 255) if STAGES and COUNT > VECTORS else
                   FOR_TWO if STAGES or (PROLOGUE and p.threads <= 256 and COUNT in (1, VECTORS)) else None),
               noalias=(pointers(s.epilogue, *(s.prologue_a, s.prologue_b)*(not STAGES))
                        if split.divided or STAGES else True),      # what copies read beside stays where it is read
               **parameters(s, T, split, WHEN))
    g = arguments(k, WHEN)
    size, count = (g.m, g.n) if COLUMN else (g.n, g.m)

    def tiles() -> Value:
        return k.ceil_div(size, WIDTH)
    block = in_matrix(k, g, k.block[0], tiles)
    matrix, ld, x, ld_x = (g.a, g.lda, g.b, g.ldb) if COLUMN else (g.b, g.ldb, g.a, g.lda)
    x_along_k = s.layout[1] == "t" if COLUMN else s.layout[0] == "n"
    t, zero = k.thread[0], k.constant(i32, 0)
    RUN = run(s, COUNT, p.vector)
    before = Transform.from_arguments(k, g, "a" if COLUMN else "b", PROLOGUE, ALONG_K=by_k, RUN=RUN, ARCH=ARCH,
                                      PAIRED=matrices)
    PIECE = RUN if matrices or before else p.vector
    share = k.ceil_div(g.k, p.split_k*PIECE)*PIECE                        # steps of k, for this CTA

    def vectors() -> list[tuple[Value, Value | int]]:
        """Where each of them, or BESIDE together, begins, and from step to step of k; those beyond C are the last."""
        sums: list[tuple[Value, Value | int]] = []
        for number in range(0, COUNT, BESIDE or 1):
            i = k.constant(i64, number) if BESIDE or not number else k.cast(k.min(count - 1, number), i64)
            sums.append((x + i*ld_x, 1) if x_along_k else (x + i, ld_x))
        return sums

    def store(sum_of: Callable[[Value], Value]) -> None:
        """Sum number i*WIDTH + j is element j of the CTA's of vector i: threads next to each other store elements next
        to each other."""
        HOLDERS = COUNT*WIDTH if COUNT*WIDTH <= p.threads else gcd(COUNT*WIDTH, p.threads)
        out = Out.from_arguments(k, g, s.out, SCALED=s.scales == "rows", EPILOGUE=s.epilogue)
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
    part = (k, s.a, p.vector, COUNT, WIDTH, p.cta_k, LOADS, matrix, ld, size, [] if matrices else vectors(),
            x_along_k, BESIDE, first, p0, k.min(g.k, p0 + share), g.k, before)
    if matrices:
        formats = (s.a, s.b) if COLUMN else (s.b, s.a)
        store(ByMatrices(*part, formats, x, ld_x, count, STAGES,
                         block*WIDTH - first if STAGES else None, "" if WHEN else "ba"[COLUMN]).sums())
        return k.function
    reading = Reading(*part)
    store(reading.along() if by_k else reading.across())
    return k.function
