"""A wave's accumulators on their way to gpu/epilogue: which elements of C a lane has.

Instructions multiply B^T by A^T, so that a lane's accumulators lie along the rows of C: in runs, which are written at
once.
"""
from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tilewright.atoms.mfma import Mfma
from tilewright.ir import Kernel, Tile
from tilewright.kernels.gpu.epilogue import Out, Run
from tilewright.kernels.gpu.split_k import WIDEST, Holders, finish
from tilewright.kernels.gpu.work import Work


def store(k: Kernel, acc: Tile, work: Work, ATOM: Mfma, out: Out, THREADS: int) -> None:
    """From the accumulators of all THREADS of the workgroup to C."""
    finish(k, acc, work.parts, Holders(work.t, work.t, THREADS), lambda: out.store(partial(runs, acc, work, ATOM, out)))


def runs(acc: Tile, work: Work, ATOM: Mfma, out: Out) -> Iterator[Run]:
    """The lane's elements, out.VECTOR of a row at once where it has them side by side."""
    rows = [work.i0 + work.i1 + work.lane % ATOM.m + i*ATOM.m for i in range(acc.rows)]
    columns = [work.j0 + work.j1 + j*ATOM.m for j in range(acc.cols)]
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            sums = acc[i, j]
            for first, count in side_by_side(ATOM):
                width = min(count, out.VECTOR)
                for e in range(first, first + count, width):
                    yield Run(row, column + ATOM.c(work.lane, e)[0], [sums[e + d] for d in range(width)])


def side_by_side(ATOM: Mfma) -> Iterator[tuple[int, int]]:
    """(first element, count) of a lane's accumulators that are next to each other in a row of C, 16 bytes at most."""
    at = [ATOM.c(0, e)[0] for e in range(ATOM.c.elements)]
    most = WIDEST // ATOM.c.type.scalar.bytes
    first = 0
    for e in range(1, len(at) + 1):
        if e == len(at) or at[e] != at[e - 1] + 1 or e - first == most:
            yield first, e - first
            first = e
