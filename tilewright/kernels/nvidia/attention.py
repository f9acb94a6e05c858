"""Attention on Hopper's tensor cores (sm_90a): softmax(scale * Q K^T) V by tiles of queries that stay, and tiles of
keys and values that come by TMA. No score is ever written to memory.

    Roles
        math    warpgroups, each with 64 rows of the CTA's tile of queries: scores by `wgmma` in registers, their
                softmax there, and products with V whose rows are those registers
        loads   a warpgroup, of which one thread starts all copies

    Barriers, of each stage of tiles of K, of V, and of Q
        full            the tile has come
        empty           no warpgroup reads it any more; an arrival of each warp that did
        turn[w]         warpgroup w - 1 has started its products; w's may follow

    A warpgroup's round for a tile of keys; S are scores, P what is multiplied with V, O the sums
        wait for the turn; start S = Q K[p]^T; start O += P V[p - 1]; give the turn on
        wait for S; mask it; new row maxima m; P' = exp2(S*c - m*c); sums of rows
        wait for O; O *= exp2((m before - m)*c); P = P'
    Products of 8 bits end sooner: they are waited for before the exponentials, beside which they are added to O and
    powers are rounded.

While a warpgroup computes exponentials, the tensor cores have the products of the others. The last products with V of
a tile of queries are started together with the first scores of the CTA's next one, so that there is no gap between
them: what follows is O's way to memory, beside products of the other warpgroups.

Tiles of keys that no query of a tile sees are not visited, and only those are masked of which some are not seen.

packed      the rows of a tile are the query heads of a kv head, of each query: one query of a sequence takes few rows,
            and keys are read once for all of these heads
split       CTAs have parts of a tile's keys; the last one to end adds up (attention_result.py)
page        keys and values are in pages, of which a table of each sequence has the numbers
score       a traced function of scores (attention_problem.Score), evaluated on each
"""
from __future__ import annotations

from tilewright.atoms.wgmma import DEPTH, Wgmma
from tilewright.ir import Function, Value, f32, i32
from tilewright.kernels.gpu.attention_work import Carried, Work, begun, stretches
from tilewright.kernels.nvidia.attention_parts import REGISTERS, Parts, load
from tilewright.kernels.nvidia.attention_softmax import Rows
from tilewright.kernels.nvidia.attention_tiles import Sizes
from tilewright.kernels.nvidia.wgmma_products import Turns
from tilewright.plans.nvidia_attention import AttentionPlan, AttentionShape
from tilewright.plans.wgmma_rules import GROUP, WARPS

NEVER = 0x7FC0BEEF              # the bits of a NaN that no operation gives


def emit_attention(SHAPE: AttentionShape, PLAN: AttentionPlan, WARP: int = 32) -> Function:
    """out[b, h, i, :] = softmax(scale * q[b, h, i] . k[b, h // group])  v[b, h // group].

    Parameters: maps q, k, v (`Sizes.maps`); out, of contiguous elements for each query, and its distances in elements;
    of each sequence `queries` and `keys`; heads (packed: kv heads), group: query heads of each; pairs of (sequence,
    head); `section` of them: see `Order`; factor = scale * log2(e), at least `nvidia_attention.LEAST`, with a score
    function log2(e), and `scale` itself. By the fields of SHAPE also
        band        after, and of a window before: a query at position i sees keys i - before to i + after
        ragged      q_offsets, k_offsets (but of pages), sequences
        lengths     of the keys of each sequence;  page: table, table_row: pages from a sequence to the next
        split       splits, workspace of (DV + 2) f32 for each row of a tile and part, counters, 0, of each tile
        lse         lse, and from head to head and sequence to sequence lse_head, lse_batch
        sinks       one f32 for each head
        e4m3fn      q_factors, k_factors, v_factors: one f32 for each head (kv head) of a sequence, and distances
                    from one to the next along both, q_sequence, q_head ...
    Grid: CTAs along x, not more than tiles.
    """
    s = Sizes(SHAPE, PLAN)
    k, g = begun(s, s.maps)
    parts = Parts.begun(k, g, s)
    with k.role("math", warps=WARPS*PLAN.blocks):
        _Math(parts).run()
    with k.role("loads", warps=WARPS):
        load(parts)
    return k.function


class _Math(Rows):
    """A warpgroup's 64 rows."""

    def __init__(self, parts: Parts) -> None:
        k, s, shape = parts.k, parts.s, parts.s.shape
        if s.WARPGROUPS in REGISTERS:
            k.registers(REGISTERS[s.WARPGROUPS][0], more=True)
        super().__init__(k, parts.g, s, parts.result, k.uniform(parts.t // GROUP), parts.t % GROUP)
        self.parts, self.turns = parts, Turns(k, parts.turn, self.mine, s.WARPGROUPS) if parts.turn else None
        self.score = Wgmma(s.KEYS, shape.format, shape.format, "f32", s.queries.layout, s.keys.layout)
        self.value = Wgmma(shape.value_size, shape.format, shape.format, "f32", None, s.values.layout)
        self.weights = k.tile(1, s.KEYS // (8 if s.EIGHT else 4), i32)          # P, as wgmma takes rows from registers
        self.shrunk = k.tile(1, 2, f32)                     # factors of sums, before products of 8 bits are added
        self.position = k.variable(i32, 0)

    def run(self) -> None:
        """All tiles of the CTA."""
        if self.s.shape.ragged:                             # for which there may be fewer than CTAs
            with self.k.loop(self.k.min(self.parts.order.rounds, 1), unroll=False):
                self._tiles()
        else:
            self._tiles()

    def _tiles(self) -> None:
        """Tile after tile. The first scores of the next one are products beside the last sums of one; after the CTA's
        last tile they are its own once more, and not used."""
        k, s, parts = self.k, self.s, self.parts
        order = parts.order
        work = Carried(k, order.work(k.constant(i32, 0)))
        self._first_scores(k.constant(i32, 0))
        self._begin(work.get(), k.constant(i32, 0))
        with k.loop(order.rounds, unroll=False) as number:
            now, begin = work.get(), self.position.get()
            self._steps(now, number, begin)
            more = number + 1 < order.rounds
            after = number + k.cast(more, i32)
            parts.queries.empty.arrive(parts.of_queries(number, self.mine)[0], by="warp", turns=s.WARPGROUPS)
            self._turn_over(after, begin + now.count - 1, more)
            parts.result.store(now, self.mine, self.t, self.sums, self.largest, self.total, self.factor)
            work.set(order.work(after))
            self.position.set(begin + now.count)
            self._begin(work.get(), begin + now.count, more)

    def _steps(self, work: Work, number: Value, begin: Value) -> None:
        """All tiles of keys but the first."""
        for start, stop, MASKED in stretches(self.k, self.s, work):
            with self.k.loop(stop, start=start, unroll=False) as p:
                self._step(work, number, begin, p, MASKED)

    # ---- products

    def _start_scores(self, number: Value, position: Value) -> None:
        k, s, keys, queries = self.k, self.s, self.parts.keys, self.parts.queries
        own, stage = self.parts.of_queries(number, self.mine)[0], position % s.plan.stages
        for step in range(s.shape.size * s.keys.ITEM // DEPTH):
            k.wgmma(self.score, self.scores, queries.smem.at(own, s.queries.offset(0, step)),
                    keys.smem.at(stage, s.keys.offset(0, step)), step > 0)
        k.wgmma_commit()

    def _rows(self) -> list[Value]:
        """P, to be read before the fence that orders it before products."""
        return [self.weights[ij] for ij in self.weights.registers]

    def _start_sums(self, position: Value, rows: list[Value]) -> None:
        k, s, values = self.k, self.s, self.parts.values
        stage = position % s.plan.stages
        for step in range(s.KEYS // self.value.k):
            k.wgmma(self.value, self.products, rows[4*step:4*step + 4],
                    values.smem.at(stage, s.values.offset(0, step)), step > 0 or not s.EIGHT)
        k.wgmma_commit()

    def _first_scores(self, number: Value) -> None:
        """Scores of the CTA's first tile."""
        k, parts = self.k, self.parts
        stage, parity = parts.of_queries(number, self.mine)
        parts.queries.full.wait(stage, parity, sleep=True)
        parts.keys.filled(number)
        self._forget()
        k.wgmma_fence()
        self._start_scores(number, number)
        k.wgmma_wait(0, self.scores)
        parts.keys.give_back(number)

    def _begin(self, work: Work, position: Value, more: Value | None = None) -> None:
        """With the scores of a tile's first keys, at this position; `more`: whether they are of another tile."""
        if self.s.shape.lengths and not self.s.EIGHT:
            self._clear_values(work, position, more)
        self.clear(work)
        if self.s.EIGHT:
            for half in range(2):
                self.shrunk[0, half] = 1.0
        self.finish(work, self.k.constant(i32, 0), MASKED=True)
        self.softmax()
        self._pack()

    def _clear_values(self, work: Work, position: Value, more: Value | None) -> None:
        """Values behind a sequence's last key, of which memory may have any, become 0: their powers are 0, and 0 times
        an inf or a NaN is none."""
        k, s, values = self.k, self.s, self.parts.values
        first = work.keys - (work.end - 1)*s.KEYS
        behind = first < s.KEYS if more is None else (first < s.KEYS) & more
        with k.when(behind):
            values.filled(position)
            stage, tile, t = position % s.plan.stages, s.values, self.mine*GROUP + self.t
            for block in range(tile.BYTES // tile.BLOCK):
                begin = k.max(first, 0)*tile.SWIZZLE + t*16
                with k.loop(tile.BLOCK, start=begin, step=GROUP*s.WARPGROUPS*16, unroll=False) as at:
                    k.store(values.smem.at(stage, at + block*tile.BLOCK).as_(i32), k.broadcast(k.constant(i32, 0), 4))
            k.fence_async()
            k.role_barrier()

    def _step(self, work: Work, number: Value, begin: Value, p: Value, MASKED: bool) -> None:
        k, parts, turns = self.k, self.parts, self.turns
        parts.keys.filled(begin + p)
        if turns:
            turns.wait()
        self._forget()
        rows = self._rows()
        k.wgmma_fence(*([] if self.s.EIGHT else [self.sums]))
        self._start_scores(number, begin + p)
        parts.values.filled(begin + p - 1)
        self._start_sums(begin + p - 1, rows)
        if turns:
            turns.end()
        k.wgmma_wait(1, self.scores)
        parts.keys.give_back(begin + p)
        self.finish(work, p, MASKED)
        if self.s.EIGHT:
            self.shrunk[0, 0], self.shrunk[0, 1] = self.softmax(lambda largest: self._sums(
                begin + p - 1, k.reinterpret(largest[0] + largest[1], i32) == NEVER))
            self._pack()
        else:
            shrink = self.softmax()
            self._sums(begin + p - 1, self.total[0, 0] + self.total[0, 1] < 0.0)
            self._pack()
            self.shrink(shrink)

    def _sums(self, position: Value, never: Value | None = None) -> None:
        """Wait for the products with values at this position; behind what `never` is computed from. NVIDIA's assembler
        would move the wait in front of that, and the tensor cores would have nothing to do meanwhile, but for a branch
        that depends on it, and is not taken."""
        k = self.k
        if never is not None:
            with k.when(never):
                k.warp_barrier()
        k.wgmma_wait(0, self.products)
        self.parts.values.give_back(position)
        if self.s.EIGHT:
            self.add_products([self.shrunk[0, half] for half in range(2)])

    def _pack(self) -> None:
        (powers,) = self.powers()
        for ij, x in zip(self.weights.registers, powers):
            self.weights[ij] = x

    def _turn_over(self, after: Value, last: Value, more: Value) -> None:
        """The products of a tile's last keys with V, at this position, and the first scores of tile `after`."""
        k, parts, turns = self.k, self.parts, self.turns
        position = last + k.cast(more, i32)
        with k.when(more):
            stage, parity = parts.of_queries(after, self.mine)
            parts.queries.full.wait(stage, parity, sleep=True)
            parts.keys.filled(position)
        if turns:
            turns.wait()
        self._forget()
        rows = self._rows()
        k.wgmma_fence(*([] if self.s.EIGHT else [self.sums]))
        self._start_scores(after, position)
        parts.values.filled(last)
        self._start_sums(last, rows)
        if turns:
            turns.end()
        k.wgmma_wait(1, self.scores)
        parts.keys.give_back(position)
        self._sums(last)

    def _forget(self) -> None:
        """The scores of before are not needed, nor products that have been added up."""
        for tile in (self.scores, self.products) if self.s.EIGHT else (self.scores,):
            for ij in tile.registers:
                tile[ij] = self.k.forgotten(self.k.constant(f32, 0))
