"""f64 on tensor cores (`mma.sync`, Hopper's m16n8k4): tiles in shared memory, multiplied by warps.

The parts are those of simt_gemm.py: work, ring (whose docstring has the timeline), operands, result. What differs are
the products.

Operands lie in shared memory as they lie in global memory, copied 16 bytes at a time; PAD elements after each row keep
what the lanes of a fragment read in different banks. How rows and columns of C are dealt to those of the instruction is
free, and chosen by what is contiguous:

    i (rows of A, columns of B)     lane group g takes 2g and 2g + 1, as rows g and g + 8 of one instruction, or as
                                    column g of two: one 16-byte load brings both, in the registers they belong in
    k                               g and g + 8, by 8-byte loads: those of a 16-byte load would be two steps of k,
                                    which belong in registers that are not neighbours
"""
from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tilewright.atoms.nvidia import MMA_F64_16X8X4 as ATOM
from tilewright.ir import Function, Kernel, Value, f64, vec
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.split_k import Split
from tilewright.kernels.gpu.work import Work, arguments, parameters, share
from tilewright.kernels.nvidia import result
from tilewright.kernels.nvidia.operand import SmemOperand
from tilewright.kernels.nvidia.result import Partition, Piece, Result
from tilewright.kernels.nvidia.ring import Fragments, Ring


def emit_dmma_gemm(LAYOUT: str = "nn", CTA_M: int = 128, CTA_N: int = 128, CTA_K: int = 16, WARP_M: int = 64,
                   WARP_N: int = 32, STAGES: int = 4, VECTOR: int = 2, VECTOR_C: int = 0, SPLIT_K: int = 1,
                   TAIL: bool = False, GROUP_M: int = 8, MIN_CTAS: int = 1, BATCH: bool = False,
                   PAD: int = 4) -> Function:
    """C[m, n] = alpha * A @ B + beta * C in f64, row-major; beta = 0 never reads C.

    VECTOR      elements per copy, 1 or 2: matrices are aligned to so many, and their leading dimensions, and their
                sizes along the contiguous dimension, are multiples of it
    VECTOR_C    elements of C that are stored at once, 0: VECTOR
    SPLIT_K     parts of k, and TAIL: see split_k.Split; `workspace` has CTA_M * CTA_N sums for each part of each tile
    BATCH       of many matrices: see work.parameters
    PAD         elements after each row of a tile
    """
    THREADS, split = 32 * (CTA_M // WARP_M) * (CTA_N // WARP_N), Split(SPLIT_K, TAIL)
    k = Kernel(f"dmma_gemm_f64_{LAYOUT}_{CTA_M}x{CTA_N}x{CTA_K}_w{WARP_M}x{WARP_N}_s{STAGES}_v{VECTOR}"
               f"_k{'tail' if TAIL else SPLIT_K}{'_batch' if BATCH else ''}"
               f"{f'_c{VECTOR_C}' if VECTOR_C else ''}", threads=THREADS, min_ctas=MIN_CTAS,
               noalias=not split.divided, **parameters(f64, f64, f64, f64, split, BATCH=BATCH))
    g = arguments(k)
    work = share(k, g, split, CTA_M=CTA_M, CTA_N=CTA_N, CTA_K=CTA_K, WARP_M=WARP_M, WARP_N=WARP_N, GROUP_M=GROUP_M)

    common: dict[str, Any] = {"CTA_K": CTA_K, "VECTOR": VECTOR, "THREADS": THREADS, "ASYNC": True,
                              "transposed": False, "PAD": PAD}
    a = SmemOperand(k, f64, g.a, g.lda, along_k=LAYOUT[0] == "n", EXTENT=CTA_M, **common)
    b = SmemOperand(k, f64, g.b, g.ldb, along_k=LAYOUT[1] == "t", EXTENT=CTA_N, **common)
    smem = k.smem("tiles", (STAGES*(a.SIZE + b.SIZE),), f64, align=128)
    a.begin(work.t, work.i0, g.m, work.k_first)
    b.begin(work.t, work.j0, g.n, work.k_first)
    products = WarpProducts(k, smem, a, b, work, WARP_M, WARP_N, CTA_K // ATOM.k)
    Ring(k, (a, b), smem, work.tiles, work.short, STAGES=STAGES).run(products)
    result.store(k, work, Out.of(k, g, "f64", VECTOR_C or VECTOR), products.result, result.holders(work, THREADS))
    return k.function


class WarpProducts:
    """acc += a warp's part of A's tile times its part of B's, STEPS instructions along k."""

    def __init__(self, k: Kernel, smem: Value, a: SmemOperand, b: SmemOperand, work: Work, WARP_M: int, WARP_N: int,
                 STEPS: int) -> None:
        self.k, self.a, self.b, self.work, self.STEPS = k, a, b, work, STEPS
        self.TILES_M, self.PAIRS_N = WARP_M // ATOM.m, WARP_N // (2*ATOM.n)
        self.group, self.quad = group, quad = work.t % 32 // 4, work.t % 4

        def first(x: SmemOperand, start: Value) -> Value:
            """Where this lane's part of the first fragment is, from the start of the tile."""
            return (start + group)*x.ROW + quad if x.inner_k else quad*x.ROW + start + group*2
        self.a_lane, self.b_lane = smem + first(a, work.i1), smem + a.SIZE + first(b, work.j1)
        self.acc = k.tile(2*self.TILES_M, 4*self.PAIRS_N, f64)                  # [rows, columns] of this lane

    @property
    def result(self) -> Result:
        """Where the accumulators are in the CTA's tile: computed after the main loop, which needs its registers."""
        i1, j1, group, quad = self.work.i1, self.work.j1, self.group, self.quad
        if self.a.inner_k:
            rows = [Piece(i1 + group, i*8, 1) for i in range(2*self.TILES_M)]
        else:
            rows = [Piece(i1 + group*2, i*16, 2) for i in range(self.TILES_M)]
        if self.b.inner_k:
            columns = [Piece(j1 + quad*2, j*8, 2) for j in range(2*self.PAIRS_N)]
        else:
            columns = [Piece(j1 + quad*4, j*16, 4) for j in range(self.PAIRS_N)]
        return Result(self.acc, Partition(tuple(rows)), Partition(tuple(columns)))

    def read(self, stage: Value, step: int, before: Fragments | None = None) -> Fragments:
        """Of A for each row of tiles, then of B for each pair of tiles."""
        at = stage*(self.a.SIZE + self.b.SIZE)
        return [*self._fragments(self.a, self.a_lane + at, step, self.TILES_M),
                *self._fragments(self.b, self.b_lane + at, step, self.PAIRS_N)]

    def _fragments(self, x: SmemOperand, at: Value, step: int, COUNT: int) -> Fragments:
        """COUNT times two of this lane's rows or columns, at one step of k."""
        k, found = self.k, []
        for part in range(COUNT):
            if x.inner_k:
                found.append([k.load(at + ((part*16 + e*8)*x.ROW + step*ATOM.k)) for e in range(2)])
            else:
                both = k.load(at + (step*ATOM.k*x.ROW + part*16), vec(f64, 2))
                found.append([both[0], both[1]])
        return found

    def accumulating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def multiply(self, fragments: Fragments, step: int) -> None:
        acc = self.acc
        for i, a_reg in enumerate(fragments[:self.TILES_M]):
            for j, b_reg in enumerate(fragments[self.TILES_M:]):
                for e in range(2):
                    columns = [2*e + r if self.b.inner_k else 2*r + e for r in range(2)]    # of the two that e has
                    where = [(2*i + r // 2, 4*j + columns[r % 2]) for r in range(4)]
                    d = self.k.mma(ATOM, a_reg, [b_reg[e]], [acc[ij] for ij in where])
                    for ij, x in zip(where, d):
                        acc[ij] = x
