"""Batches of small products of one size: that size is in the code, and one loop over the batch is outside of all.

Rows of a tile of C are in registers for all of k; B's rows are read as vectors, A's elements as broadcast operands. Of
complex numbers the same with two steps for one of k: re(A) by B's row, then im(A) by the row with its parts exchanged
and the real one negated. So each element is added up in the order in which micro-kernels do it, and has their bits.
"""
from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from tilewright.ir import Function, Kernel, Value, i8, i64, ptr, vec
from tilewright.ir.values import Variable
from tilewright.kernels.cpu.jobs import IN_PLACE
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.pool import job_fields, split
from tilewright.targets.cpu import CpuTarget

LINE = 64
UNROLLED = 3 / 8        # of the registers are sums, at most, where all steps of k stand in a row: with more LLVM hoists
STEPS = 12              # loads, and spills; and the most such steps


class Chunk(NamedTuple):
    """Reals of a row from `at` on, as a vector of so many lanes, of which `reals` are there."""
    at: int
    lanes: int
    reals: int


def chunks(reals: int, lanes: int) -> list[Chunk]:
    """A row as vectors: whole ones, and the narrowest that holds the rest."""
    full, rest = reals // lanes * lanes, reals % lanes
    pieces = [Chunk(at, lanes, lanes) for at in range(0, full, lanes)]
    return pieces + [Chunk(full, max(1 << (rest - 1).bit_length(), 2), rest)] * bool(rest)


def tiles(m: int, row: list[Chunk], registers: int, complex: bool) -> list[tuple[range, list[Chunk]]]:
    """Rows and vectors of C that are in registers together, with those of B: vectors of one width, or LLVM keeps A's
    elements in registers for both, and spills."""
    most, blocks = 3 if len(row) == 3 and not complex else 2, list[tuple[range, list[Chunk]]]()
    for _, alike in groupby(row, lambda x: x.lanes):
        vectors = list(alike)
        for first in range(0, len(vectors), most):
            group = vectors[first:first + most]
            masked = group[-1].reals < group[-1].lanes          # AVX2 has masks in vectors
            free = registers - len(group)*(2 if complex else 1) - (3 if complex else 2) - masked
            count = -(-m // max(free // len(group), 1))
            blocks += [(range(m*i // count, m*(i + 1) // count), group) for i in range(count)]
    return blocks


def emit_batches(target: CpuTarget, dtype: str, M: int, N: int, K: int, BY_ROWS: bool, COMPLEX: bool = False
                 ) -> Function:
    """batches(job, part): C = A @ B for a share of the batch: jobs.IN_PLACE, of whose fields it reads addresses, steps,
    batch and batch_parts. C [M, N] and B [K, N] have contiguous rows without gaps, A [M, K] too, or BY_ROWS is
    false, and its columns are. COMPLEX: numbers of two `dtype`, in which steps are counted.
    """
    T = TYPES[dtype]
    PAIR = 2 if COMPLEX else 1
    k = Kernel(f"batches_{'complex_'*COMPLEX}{dtype}_{M}x{N}x{K}_{'rows' if BY_ROWS else 'columns'}", noalias=False,
               job=ptr(i8), part=i64)
    job, part = k.args
    g = job_fields(k, job, IN_PLACE, T)
    row = chunks(N*PAIR, target.lanes(T.bytes))
    masks = {c.reals: k.lanes_below(k.constant(i64, c.reals), c.lanes) for c in row if c.reals < c.lanes}

    def product(a: Value, b: Value, c: Value, next_a: Value, next_b: Value) -> None:
        blocks = tiles(M, row, target.tile_registers, COMPLEX)
        for number, (rows, group) in enumerate(blocks):
            acc = [[k.variable(vec(T, x.lanes), k.constant(vec(T, x.lanes), 0.0)) for x in group] for _ in rows]
            if len(rows)*len(group) <= UNROLLED*target.tile_registers and K <= STEPS:
                for q in range(K):
                    step(acc, a, b, rows, group, q)
            else:
                with k.loop(K) as p:
                    if number == 0:
                        coming(next_b + p*(N*PAIR), N)
                    if number == len(blocks) - 1:
                        coming(next_a + p*(M*PAIR), M)
                    step(acc, a, b, rows, group, p)
            for i, of_row in zip(rows, acc):
                for x, sums in zip(group, of_row):
                    k.store(c + (i*N*PAIR + x.at), sums.get(), T.bytes, masks.get(x.reals))

    def coming(start: Value, numbers: int) -> None:
        for at in range(0, numbers*PAIR, LINE // T.bytes):
            k.prefetch(start + at)

    def step(acc: list[list[Variable]], a: Value, b: Value, rows: range, group: list[Chunk], p: Value | int) -> None:
        loaded = [k.load(b + (p*(N*PAIR) + x.at), vec(T, x.lanes), T.bytes, masks.get(x.reals)) for x in group]
        of_a, along = (a + p*PAIR, K*PAIR) if BY_ROWS else (a + p*(M*PAIR), PAIR)
        for half, vectors in enumerate([loaded, [exchanged(x) for x in loaded]] if COMPLEX else [loaded]):
            for i, of_row in zip(rows, acc):
                element = k.load(of_a + (i*along + half))
                for x, sums in zip(vectors, of_row):
                    sums.set(k.fma(k.broadcast(element, x.type.length), x, sums.get()))

    def exchanged(x: Value) -> Value:
        """(-im, re) of each number."""
        lanes = x.type.length
        signs = k.pack(*(k.constant(T, 1.0 if e % 2 else -1.0) for e in range(lanes)))
        return k.shuffle(x, x, [e ^ 1 for e in range(lanes)]) * signs

    first, last = split(g.batch, g.batch_parts, part)
    with k.loop(last, first) as index:
        a, b = g.a + index*g.a_step, g.b + index*g.b_step
        product(a, b, g.c + index*g.c_step, a + g.a_step, b + g.b_step)
    return k.function
