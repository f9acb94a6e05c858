"""C by a tensor map, from warps whose instructions compute C^T: their rows are columns of C.

Matrices of 8 x 8 are transposed on their way to shared memory (`stmatrix`). A warp has 16 columns of C, of all rows of
the CTA's tile: one copy brings them to C.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.atoms.wgmma import swizzled
from tilewright.ir import Kernel, TensorMap, Type, Value, i32
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.nvidia.result import Blocks
from tilewright.plans.wgmma_rules import NARROWEST_C

COLUMNS, ROW = 16, NARROWEST_C          # of a warp; bytes of them, which are swizzled


@dataclass(frozen=True)
class TransposedCopy:
    """smem: of the warp, `wgmma_rules.staged` bytes at a multiple of REPEAT_C; matrix: of a batch."""
    k: Kernel
    ROWS: int               # of the CTA's tile of C
    map: Value
    smem: Value
    lane: Value
    matrix: Value | None

    @staticmethod
    def map_type(T: Type, ROWS: int, BATCH: bool) -> TensorMap:
        return TensorMap(T, (COLUMNS, ROWS) + (1,)*BATCH, ROW)

    def store(self, out: Out, sums: Blocks, row: Value, column: Value, APART: int) -> None:
        """sums: of blocks of 16 columns, the first of them `column` + i*APART, of the rows from `row` on."""
        def each(read_c: bool) -> None:
            for i in range(sums.shape[0]):
                self._block(out, sums, i, row, column + i*APART, read_c)
        out.cases_of_beta(each)

    def _block(self, out: Out, sums: Blocks, i: int, row: Value, column: Value, read_c: bool) -> None:
        k, lane = self.k, self.lane
        self.end()                                                      # the copy before has read the buffer
        k.warp_barrier()
        for first in range(0, self.ROWS, 16):
            rows = range(first, min(first + 16, self.ROWS), 8)
            words = [k.reinterpret(self._pair(out, sums, i, (row, at), (column, half), read_c), i32)
                     for at in rows for half in range(2)]
            own = (lane // 16 % len(rows) * 8 + lane % 8)*ROW + lane // 8 % 2 * (ROW // 2)
            k.stmatrix(self.smem + swizzled(own, ROW) + first*ROW, words, transposed=True)      # whole periods apart
        k.fence_async()
        k.warp_barrier()
        at: tuple[Any, ...] = (column, row) if self.matrix is None else (column, row, self.matrix)
        with k.when(lane == 0):
            k.tma_store(self.map, at, self.smem)
            k.bulk_commit()

    def _pair(self, out: Out, sums: Blocks, i: int, rows: tuple[Value, int], columns: tuple[Value, int], read_c: bool
              ) -> Value:
        """Two numbers of a column of C, in the rows of a matrix from the second number of `rows` on, as stored."""
        (row, at), (column, half), lane = rows, columns, self.lane
        column, numbers = column + half*8 + lane // 4, list[Value]()
        for d in range(2):
            own = row + (at + d) + lane % 4 * 2
            inside = (own < out.m) & (column < out.n)
            values = out.scaled([sums.element(i, at // 2 + 2*half + d)], own, column)
            numbers += out.numbers(own, column, values, read_c, inside)
        return out.rounded(numbers)

    def end(self) -> None:
        """Before the warp ends: its buffer has been read."""
        with self.k.when(self.lane == 0):
            self.k.bulk_wait(0, read=True)
