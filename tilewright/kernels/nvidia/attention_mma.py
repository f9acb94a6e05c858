"""Attention on tensor cores by warps (`mma.sync`, sm_80 and later): softmax(scale * Q K^T) V by tiles of queries that
stay, in registers where there is room, and tiles of keys and values that come by `cp.async`.

    Roles       All threads of the CTA do everything: they copy their share of each tile; a warp has 16 or 32 rows of
                the tile of queries, with their scores, powers and sums in its registers.

    Pipeline    stages of shared memory, each for a tile of keys and one of values. One barrier for each tile of keys:

        copies      K[p+S-1] V[p+S-1] ................................ wait for K[p+1] V[p+1] | barrier | ...
        products    S = Q K[p]^T                       O = O*shrink + P V[p]
        softmax                  mask; maxima; P, sums

    A copy goes into the stage of tile p - 1, which no warp reads behind that barrier. While one warp computes powers,
    the tensor cores have products of others: of two CTAs, or of two warps for each scheduler.

What tiles of keys are visited and masked, `packed`, `split`, `page` and `score` are as of the kernel for Hopper, whose
parts these are (attention.py). A row of shared memory that no key has is copied as zeros, so nothing that lies in
memory behind a sequence's last key is multiplied.
"""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.atoms.nvidia import mma
from tilewright.ir import Function, Kernel, Value, f32, i8, i32, i64, ptr
from tilewright.kernels.gpu.attention_work import Order, Work, begun
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.nvidia.attention_copies import Copies, Matrices
from tilewright.kernels.nvidia.attention_result import Result
from tilewright.kernels.nvidia.attention_softmax import Rows
from tilewright.kernels.nvidia.attention_tiles import Sizes
from tilewright.kernels.nvidia.wgmma_tiles import ALIGN
from tilewright.plans.nvidia_attention import AttentionPlan, AttentionShape

STEP = 32                       # bytes of k of an instruction


def emit_attention_mma(SHAPE: AttentionShape, PLAN: AttentionPlan, WARP: int = 32) -> Function:
    """out[b, h, i, :] = softmax(scale * q[b, h, i] . k[b, h // group])  v[b, h // group].

    Parameters: q, k, v, each with its distances in elements from row to row, head to head and sequence to sequence
    (pages: page to page): q_by_row, q_by_head, q_by_batch ...; v of 8 bits as attention_values.py makes it. The others,
    and the grid, are those of attention.emit_attention.
    """
    s = Sizes(SHAPE, PLAN)
    T = memory_type(SHAPE.format)
    apart = "", "_by_row", "_by_head", "_by_batch"
    k, g = begun(s, {f"{x}{of}": i64 if of else ptr(T) for x in "qkv" for of in apart})
    _Cta(k, g, s).run()
    return k.function


class _Cta:
    def __init__(self, k: Kernel, g: SimpleNamespace, s: Sizes) -> None:
        self.k, self.g, self.s, plan = k, g, s, s.plan
        self.STAGE = s.keys.BYTES + s.values.BYTES
        self.smem = k.smem("tiles", (s.plan.stages*self.STAGE + (0 if plan.held(s.shape) else s.queries.BYTES),), i8,
                           ALIGN)
        self.now, self.free = k.variable(i32, 0), k.variable(i32, 0)    # in bytes: the stage of a tile, and of the last
        self.result, t = Result(k, g, s), k.thread[0]
        self.t, self.order = t, Order(k, g, s)
        self.rows = Rows(k, g, s, self.result, k.constant(i32, 0), t, plan.height // 16)
        lane, first = t % k.warp, k.uniform(t // k.warp)*plan.height
        self.copies = {x: Copies(k, tile, t, plan.threads) for x, tile in (
            ("q", s.queries), ("k", s.keys), ("v", s.values))}
        self.of_queries = Matrices(k, s.queries, lane, first, OF_A=True)
        self.of_keys = Matrices(k, s.keys, lane)
        self.of_values = Matrices(k, s.values, lane, TRANSPOSED=not s.EIGHT)
        format = s.shape.format
        self.atom = mma(format, format, "f32", 16, 8, STEP // s.keys.ITEM)
        self.STEPS = s.shape.size*s.keys.ITEM // STEP       # along a row of queries
        self.held = k.tile(plan.height // 16, 4*self.STEPS, i32, zero=False) if plan.held(s.shape) else None

    def run(self) -> None:
        """All tiles of the CTA."""
        k, s, order = self.k, self.s, self.order
        with k.loop(order.rounds, unroll=False) as number:
            work = order.work(number)
            self._begin(work)
            self.rows.clear(work)
            masked = work.end - k.max(k.min(work.whole_end, work.end), work.first)      # of the first positions
            left = work.count if s.BAND != "window" else work.end - work.whole_first    # and from this one on
            self.now.set(0)
            self.free.set((s.plan.stages - 1)*self.STAGE)
            with k.loop(work.count, unroll=False) as p:
                self._step(work, p, (p < masked) | (p >= left))
            self.result.store(work, k.constant(i32, 0), self.t, self.rows.sums, self.rows.largest, self.rows.total,
                              self.rows.factor)
            k.cp_async_wait(0)

    # ---- copies

    def _queries_at(self) -> Value:
        """Queries that registers will hold come into the last stage, which is not needed before."""
        stages = self.s.plan.stages
        return self.smem.at((stages - 1 if self.held is not None else stages)*self.STAGE)

    def _begin(self, work: Work) -> None:
        """The tile's queries, and its first keys and values, are there."""
        k, stages = self.k, self.s.plan.stages
        self.copies["q"].request(self._queries_at(), lambda row: self._query(work, row),
                                 lambda row: self._place(work, row)[2])
        for ahead in range(stages - 1):
            self._request(work, k.constant(i32, ahead), self.smem.at(ahead*self.STAGE))
        k.cp_async_wait(stages - 2)
        k.barrier()
        if self.held is not None:
            for block in range(self.held.rows):
                for step in range(self.STEPS):
                    for e, x in enumerate(self.of_queries.read(self._queries_at(), 16*block, step)):
                        self.held[block, 4*step + e] = x
            k.barrier()                                     # they are overwritten

    def _place(self, work: Work, row: Value) -> tuple[Value, Value, Value]:
        return self.result.place(work, self.k.constant(i32, 0), row)

    def _query(self, work: Work, row: Value) -> Value:
        """Where a row of the tile of queries is."""
        k, g = self.k, self.g
        i, head, _ = self._place(work, row)
        index = i if work.q0 is None else work.q0 + i
        at = k.cast(head, i64)*g.q_by_head + k.cast(index, i64)*g.q_by_row
        return g.q + (at if work.q0 is not None else at + k.cast(work.sequence, i64)*g.q_by_batch)

    def _request(self, work: Work, p: Value, stage: Value) -> None:
        """Start copies of the keys and values number p, if there are any; a group of copies in any case."""
        k, s, g = self.k, self.s, self.g
        with k.when(p < work.count):
            first = (work.end - 1 - p)*s.KEYS
            self._request_rows("k", work, stage, first)
            if s.EIGHT:                                     # a row has an element of all values
                begin = g.v + (self._head("v", work) + k.cast(work.sequence, i64)*g.v_by_batch + k.cast(first, i64))
                self.copies["v"].request(
                    stage + s.keys.BYTES, lambda row: begin + k.cast(row, i64)*g.v_by_row,
                    lambda row: row < s.shape.value_size, g.v_by_row, k.ceil_div(g.keys, 32)*32 - first)
            else:
                self._request_rows("v", work, stage + s.keys.BYTES, first)
        k.cp_async_commit()

    def _request_rows(self, x: str, work: Work, smem: Value, first: Value) -> None:
        """A row for each key, or value, from this one on."""
        self.copies[x].request(smem, lambda row: self._key(x, work, first + row), lambda row: first + row < work.keys,
                               None if self.s.shape.page else getattr(self.g, f"{x}_by_row"))

    def _key(self, x: str, work: Work, j: Value) -> Value:
        """Where key (or value) j of the sequence is."""
        k, g, page = self.k, self.g, self.s.shape.page
        row, batch = j if work.k0 is None else work.k0 + j, work.sequence
        if page:
            number = k.min(j, k.max(work.keys - 1, 0)) // page
            batch, row = k.load(g.table + (k.cast(work.sequence, i64)*g.table_row + number)), j % page
        at = self._head(x, work) + k.cast(row, i64)*getattr(g, f"{x}_by_row")
        if page or work.k0 is None:
            at = at + k.cast(batch, i64)*getattr(g, f"{x}_by_batch")
        return getattr(g, x) + at

    def _head(self, x: str, work: Work) -> Value:
        head = work.head if self.s.shape.packed else work.head // self.g.group
        return self.k.cast(head, i64)*getattr(self.g, f"{x}_by_head")

    # ---- products

    def _step(self, work: Work, p: Value, masked: Value) -> None:
        k, s, rows = self.k, self.s, self.rows
        stages = s.plan.stages
        now, free = self.now.get(), self.free.get()
        self._request(work, p + (stages - 1), self.smem + free)
        stage = self.smem + now
        self._scores(stage)
        rows.finish(work, p, MASKED=False)
        with k.when(masked):
            rows.mask(work, p)
        shrink = rows.softmax()
        if not s.EIGHT:
            rows.shrink(shrink)
        self._sums(stage + s.keys.BYTES)
        if s.EIGHT:
            rows.add_products(shrink)
        self.free.set(now)
        self.now.set(k.select(now == (stages - 1)*self.STAGE, 0, now + self.STAGE))
        k.cp_async_wait(stages - 2)
        k.barrier()

    def _queries(self, block: int, step: int) -> list[Value]:
        if self.held is not None:
            return [self.held[block, 4*step + e] for e in range(4)]
        return [*self.of_queries.read(self._queries_at(), 16*block, step)]

    def _scores(self, stage: Value) -> None:
        s, scores = self.s, self.rows.scores
        for step in range(self.STEPS):
            queries = [self._queries(block, step) for block in range(scores.rows)]
            for first in range(0, s.KEYS, 16):
                self._multiply(scores, queries, self.of_keys.read(stage, first, step), first, step > 0)

    def _sums(self, values: Value) -> None:
        s, keys = self.s, STEP // self.s.keys.ITEM          # of a step
        powers = [*self.rows.powers()]
        for step in range(s.KEYS // keys):
            mine = [of_block[4*step:4*step + 4] for of_block in powers]
            for first in range(0, s.shape.value_size, 16):
                b = self.of_values.read(values, first, step) if s.EIGHT else self.of_values.read(
                    values, step*keys, first // 16)
                self._multiply(self.rows.products, mine, b, first, step > 0 or not s.EIGHT)

    def _multiply(self, sums: Any, a: list[list[Value]], b: tuple[Value, ...], first: int, add: bool) -> None:
        """Sums of sixteen columns from `first` on, of all blocks of rows."""
        k = self.k
        for block, mine in enumerate(a):
            for half in range(2):
                where = [(block, first // 8 * 4 + 4*half + e) for e in range(4)]
                c = [sums[ij] if add else k.constant(f32, 0) for ij in where]
                for ij, x in zip(where, k.mma(self.atom, mine, b[2*half:2*half + 2], c)):
                    sums[ij] = x
