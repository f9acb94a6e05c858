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

from tilewright.ir import Function, Kernel, Tile, Type, Value, i32
from tilewright.kernels.expression import Arithmetic, neutral, semiring_suffix
from tilewright.kernels.gpu import fused, groups, transform
from tilewright.kernels.gpu.auxiliary import pointers
from tilewright.kernels.gpu.epilogue import Out
from tilewright.kernels.gpu.split_k import Split
from tilewright.kernels.gpu.transform import Transform
from tilewright.kernels.gpu.work import Work, arguments, parameters, share
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.nvidia import result
from tilewright.kernels.nvidia.gathered import placed
from tilewright.kernels.nvidia.operand import WIDEST, SmemOperand
from tilewright.kernels.nvidia.result import Partition, Result, Staging, lane_grid, partition
from tilewright.kernels.nvidia.ring import Fragments, Ring
from tilewright.plans import semirings
from tilewright.plans.gpu_shape import GpuShape
from tilewright.plans.nvidia_plan import NvidiaPlan

STEPS_MOST = 1 << 16        # of any tile of k
MOST_CODE = 2048            # instructions of a main loop; what is more than that misses the instruction cache
BESIDE = 32             # registers of a thread for prologues
FILE = 65536                # registers of a multiprocessor
MOST_REGISTERS = 224        # of a thread, for terms of a semiring: with more ptxas moves so many that some are spilled


def emit_simt_gemm(shape: GpuShape, plan: NvidiaPlan, ARCH: str = "sm_75", WHEN: str = "", GROUPED: str = "",
                   GATHERED: str = "") -> Function:
    """C[m, n] = alpha * A @ B + beta * C, row-major; beta = 0 never reads C. With a semiring, which stands for
    multiplication and addition, of integers too, there are no alpha and beta. ARCH: the target, whose conversions
    prologues take. `workspace` has a tile of sums for each part of each tile: see split_k.Split. WHEN: see
    work.arguments. GROUPED: what offsets divide, "m" or "k" (then the layout is "tn"): see gpu/groups.py; of a batch,
    with split_k = 1. GATHERED: the operand, "a" or "b", that tables describe: see gathered.py.
    """
    s, p, T, split = shape, plan, memory_type(shape.a), Split(plan.split_k, plan.tail)
    vector, transposed, along_k = p.vector, not p.as_stored, (s.layout[0] == "n", s.layout[1] == "t")
    lanes_m, lanes_n, threads = p.warp_m // p.thread_m, p.warp_n // p.thread_n, p.threads // p.slices
    limit = _registers(s, p, T)
    k = Kernel(_name(s, p, WHEN, GROUPED, GATHERED), threads=p.threads, max_registers=p.registers or limit,
               noalias=pointers(s.epilogue, s.prologue_a, s.prologue_b) if split.divided else True,
               **parameters(s, T, split, WHEN, GROUPED, GATHERED=GATHERED))
    g = arguments(k, WHEN)
    if GROUPED == "m":
        groups.clear(k, g, s.epilogue, p.threads)
    work = share(k, g, split, p, SLICES=p.slices, GROUPED=GROUPED)

    # which rows and columns of the CTA's tile the lane has; of an operand along k, neighbouring lanes read neighbours
    lane_m, lane_n = lane_grid(work.lane, lanes_m, lanes_n)
    wide_m, wide_n = (WIDEST // T.bytes if transposed or not by_k else 1 for by_k in along_k)
    rows = partition(work.i1, lane_m, lanes_m, p.thread_m, wide_m)
    columns = partition(work.j1, lane_n, lanes_n, p.thread_n, wide_n)

    def operand(role: str, gmem: Value, ld: Value, extent: int) -> SmemOperand:
        by_k = along_k[role == "b"]
        before = Transform.from_arguments(k, g, role, s.prologue_of(role), ALONG_K=by_k, ARCH=ARCH)
        return placed(g, role == GATHERED)(k, T, gmem, ld, along_k=by_k, transposed=transposed, EXTENT=extent,
                                           CTA_K=p.cta_k, VECTOR=vector, THREADS=p.threads, ASYNC=p.copy == "async",
                                           BEFORE=before)
    a, b = operand("a", g.a, g.lda, p.cta_m), operand("b", g.b, g.ldb, p.cta_n)
    # single elements of C, which a lane has in vectors, go through shared memory to lie side by side
    arithmetic = Arithmetic.from_text(k, T, s.semiring)
    staged = (p.vectors[2] == 1 and p.slices == 1 and not split.divided and p.warp_n % 32 == 0
              and arithmetic.types == (T,))
    staging_size = Staging.size(lanes_m, p.warp_n) if staged else 0
    smem = k.smem("tiles", (max(p.stages*(a.SIZE + b.SIZE),
                                p.cta_m*p.cta_n*len(arithmetic.types) if p.slices > 1 else 0,
                                threads // 32 * staging_size),), T, align=128)
    a.begin(work.t, work.i0, g.m, work.k_first)
    b.begin(work.t, work.j0, g.n, work.k_first)

    pad = neutral(s.semiring, T) if s.semiring else (0, 0)
    ring = Ring(k, (a, b), smem, work.tiles, work.short, STAGES=p.stages, ASYNC=p.copy == "async",
                EARLY=p.prefetch_first, PAD=pad or (0, 0))
    accs = [k.tile(p.thread_m, p.thread_n, type, zero=not s.semiring) for type in arithmetic.types]
    steps = p.cta_k // p.slices
    products = OuterProducts(k, ring, (a, b), (rows, columns), accs, work, p.cta_k, steps, p.order, arithmetic,
                             GUARDED=pad is None,
                             UNROLLED=unrolled(s.semiring, p.thread_m*p.thread_n, steps) if transposed else 0)
    ring.run(products, products.UNROLLED)
    staging = Staging(smem + work.t // 32*staging_size, lane_m,
                      lambda r: partition(work.i1, r, lanes_m, p.thread_m, wide_m),
                      partition(k.constant(work.lane.type, 0), lane_n, lanes_n, p.thread_n, wide_n),
                      p.warp_n) if staged else None
    holders = result.holders(work, threads)
    if p.slices > 1:
        result.add_slices(k, accs, smem, work, p.slices, holders, arithmetic)
    out = Out.from_arguments(k, g, s.out, p.vectors[2], SCALED=s.scales == "rows", EPILOGUE=s.epilogue, SUMS=T)
    result.store(k, work, out, Result(accs[0], rows, columns, accs[1:]), holders, staging, arithmetic)
    return k.function


def _name(s: GpuShape, p: NvidiaPlan, WHEN: str, GROUPED: str, GATHERED: str) -> str:
    return (f"simt_gemm_{s.a}_{s.layout}_{p.cta_m}x{p.cta_n}x{p.cta_k}_w{p.warp_m}x{p.warp_n}"
            f"_t{p.thread_m}x{p.thread_n}_s{p.stages}_v{p.vector}_k{p.slices}x{'tail' if p.tail else p.split_k}"
            f"_{'async' if p.copy == 'async' else 'regs'}{'_along' if p.as_stored else ''}"
            f"{'_early' if p.prefetch_first else ''}{'_batch' if s.batch != 1 else ''}"
            f"{f'_c{p.vector_c}' if p.vector_c else ''}{f'_{s.out}' if s.out != s.a else ''}"
            f"{'_scaled' if s.scales else ''}{f'_when_{WHEN}' if WHEN else ''}{f'_groups_{GROUPED}' if GROUPED else ''}"
            f"{f'_gathered_{GATHERED}' if GATHERED else ''}{fused.suffix(s.epilogue)}"
            f"{semiring_suffix(s.semiring)}{transform.suffix(s.prologue_a, s.prologue_b)}")


def _registers(s: GpuShape, p: NvidiaPlan, T: Type) -> int:
    """The limit for a thread; with a semiring for as many terms on their way as cost no CTA of a multiprocessor."""
    staged = 0 if p.copy == "async" else (p.cta_m + p.cta_n)*p.cta_k // p.threads
    fragments = sum(own * (WIDEST // T.bytes if p.as_stored and by_k else 1) for own, by_k in (
        (p.thread_m, s.layout[0] == "n"), (p.thread_n, s.layout[1] == "t")))
    limit = registers(p.thread_m*p.thread_n * semirings.fields(s.semiring), fragments,
                      staged + semirings.in_flight(s.semiring) + BESIDE*bool(s.prologues), T.bytes)
    if not s.semiring:
        return limit
    return min(FILE // (p.threads * max(FILE // (p.threads*limit), 1)) // 8 * 8, MOST_REGISTERS)


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
        values = []
        for index, (x, at) in enumerate(zip(self.operands, self.ring.places(stage))):
            if before and isinstance(step, int) and step % x.STEPS:
                values.append(before[index])
                continue
            if self.slice is not None:
                at = x.after(at, self.slice*self.STEPS)
            values.append(x.fragment(at, self.own[index], step))
        return values

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
    instructions = semirings.instructions(SEMIRING) if SEMIRING else 0
    if not SEMIRING or (instructions <= semirings.SHORT and SUMS*instructions*STEPS <= MOST_CODE):
        return 0
    most = MOST_CODE // (SUMS*instructions) if instructions <= semirings.SHORT else 1
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
