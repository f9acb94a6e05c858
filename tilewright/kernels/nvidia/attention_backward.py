"""Gradients of attention on Hopper's tensor cores (sm_90a). A CTA has a tile of keys and values, and their gradients in
registers; tiles of queries, and of the gradients G of the result, come by TMA. No score is ever written to memory.

    Roles
        math    two warpgroups with 64 keys each
        loads   a warpgroup, of which one thread starts all copies, and one adds gradients by queries

    A warpgroup's round for a tile of queries; all scores have keys as rows, so that they are rows of the products with
    queries and G from registers. lse are logarithms of the sums of a query's powers, delta = rows of sum(G * result)
        start S = K Q^T; start D = V G^T - delta
        wait for S; P = exp2(S*c - lse), 0 where a query does not see a key
        start dV += P G
        wait for D; dS = P*D, rounded; left in shared memory for the other warpgroup
        start dQ = dS^T K, of half of the columns (of 128 queries half of the rows); start dK += dS Q
        wait for dQ; leave it in shared memory, from where a thread has it added to sums in global memory; wait for dK

While a warpgroup computes powers, tensor cores have D, and the products of the other; while it computes slopes, dV;
while it leaves dQ, dK. dS has two buffers: before a warpgroup overwrites one it has met the other, which has waited for
its products of two rounds before.

ordered     a tile of queries is added to by one tile of keys after the other, the last one that it sees first: a CTA
            waits until `counters` says that all later tiles of keys have been added to its tile of queries

Why waiting in order ends, whatever the order in which a device starts CTAs: a CTA does not take the work of its number
in the grid but that of its ticket, of which there is one for each CTA that has started. Tickets count the tiles of keys
of a (sequence, kv head) down, so that a CTA waits only for smaller tickets: for CTAs that have started, and that keep
their multiprocessor until they end. Of those that have not ended the one with the smallest ticket waits for nobody,
and so all end. A test has the simulator start CTAs in other orders.
"""
from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.atoms.wgmma import DEPTH, M
from tilewright.ir import Function, Kernel, Tile, Value, f32, i8, i32, i64, ptr, vec
from tilewright.ir.ops.pipelines import Mbarriers
from tilewright.kernels.gpu.attention_result import TYPES
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.nvidia import attention_backward_tiles as tiles
from tilewright.kernels.nvidia.attention_backward_tiles import SLAB, SLAB_FLOATS, BackwardSizes, Work
from tilewright.kernels.nvidia.attention_result import store_row
from tilewright.kernels.nvidia.attention_tiles import Ring
from tilewright.kernels.nvidia.wgmma_tiles import ALIGN
from tilewright.plans.nvidia_attention_backward import KEYS, BackwardPlan, BackwardShape
from tilewright.plans.wgmma_rules import GROUP, WARPS

WARPGROUPS = 2
REGISTERS = 240, 24             # of math and of loads
FAR = 1 << 30                   # more than any number of a query


def emit_attention_backward(SHAPE: BackwardShape, PLAN: BackwardPlan, WARP: int = 32) -> Function:
    """by_k and by_v, and by_q before it is rounded, of out = softmax(scale * q k^T) v.

    Parameters: maps q, g (the gradient of the result), k, v, sums (`BackwardSizes.maps`); rows, of emit_rows; by_k and
    by_v with `distances`; group: query heads of a kv head; kv_heads, pairs of (sequence, kv head); section of them, see
    `Work`; scale; factor = scale * log2(e); `parameters`. By the fields of SHAPE also
        band        after, and of a window before: a query at position i sees keys i - before to i + after
        ordered     counters of tiles of queries and the ticket, all 0
    Grid: tiles of 128 keys * pairs; ragged: (keys // 128 + sequences) * kv heads.
    """
    s, shape, T = BackwardSizes(SHAPE, PLAN), SHAPE, memory_type(SHAPE.format)
    more: dict[str, Any] = {"before": i32} if shape.band == "window" else {}
    more |= {"after": i32} if shape.band else {}
    more |= {"counters": ptr(i32), "ticket": ptr(i32)} if shape.ordered else {}
    more = tiles.parameters(shape) | more
    more = {**s.maps, "rows": ptr(f32), "by_k": ptr(T), "by_v": ptr(T), **tiles.distances("by_k", "by_v"), "group": i32,
            "kv_heads": i32, "pairs": i32, "section": i32, "scale": f32, "factor": f32, **more}
    k = Kernel(f"attention_backward_{shape.name}_{PLAN.name}", threads=GROUP*(WARPGROUPS + 1), noalias=False, **more)
    parts = _Parts.begun(k, SimpleNamespace(**dict(k.function.params)), s)
    with k.role("math", warps=WARPS*WARPGROUPS):
        _Math(parts).run()
    with k.role("loads", warps=WARPS):
        k.registers(REGISTERS[1], more=False)
        warp = k.uniform(parts.t // WARP) - WARPS*WARPGROUPS
        _load(parts, warp == 0)
        _add(parts, parts.t == GROUP*WARPGROUPS + WARP)
    return k.function


@dataclass(frozen=True)
class _Parts:
    """What both roles have."""
    k: Kernel
    g: SimpleNamespace
    s: BackwardSizes
    t: Value
    keys: Ring                      # of one stage
    values: Ring
    queries: Ring
    grads: Ring
    rows: Value                     # of the stages of queries
    slopes: Value
    sums: Value
    sums_full: Mbarriers            # of each warpgroup
    sums_empty: Mbarriers
    work: Work

    @classmethod
    def begun(cls, k: Kernel, g: SimpleNamespace, s: BackwardSizes) -> _Parts:
        full = [k.mbarriers(f"{x}_full", 1) for x in "kv"]
        keys, values = (Ring(full, full, k.smem(f"{x}_smem", (1, tile.BYTES), i8, ALIGN), tile, 1)
                        for x, full, tile in zip("kv", full, (s.keys, s.values)))
        queries = Ring.new(k, "q_smem", s.queries, s.QUERY_STAGES)
        grads = Ring.new(k, "g_smem", s.grads, s.plan.stages)
        slopes = k.smem("slopes", (2, s.slopes.BYTES), i8, ALIGN)
        sums = k.smem("sums_smem", (s.SLABS*SLAB_FLOATS,), f32, ALIGN)
        rows = k.smem("rows_smem", (s.QUERY_STAGES, s.ROWS), f32)
        sums_full, sums_empty = (k.mbarriers(f"sums_{x}", WARPGROUPS) for x in ("full", "empty"))
        number = k.block[0]
        if s.shape.ordered:
            ticket = k.smem("ticket_smem", (1,), i32)
            with k.when(k.thread[0] == 0):
                ticket[0] = k.atomic_add(g.ticket, 1, "monotonic")
        k.init_mbarriers()                      # all threads meet here
        if s.shape.ordered:
            number = k.uniform(ticket[0])
        return cls(k, g, s, k.thread[0], keys, values, queries, grads, rows, slopes, sums, sums_full, sums_empty,
                   Work.taken(k, g, s, number))


# ---- the role that copies and adds

def _load(parts: _Parts, here: Value) -> None:
    """All tiles, by one thread of this warp."""
    k, g, s, work = parts.k, parts.g, parts.s, parts.work
    with k.loop(k.select(here, work.rounds, 0), unroll=False) as number:
        with k.loop(k.cast(number == 0, i32), unroll=False):
            for ring, map in (parts.keys, g.k), (parts.values, g.v):
                ring.full.arrive(0, by="role", expect=ring.tile.BYTES)
                with k.when(k.elect()):
                    ring.copy(map, k.constant(i32, 0), 0, (work.own.k0 + work.j0, work.kv_head, work.sequence))
        head, tile = work.round(k, number)
        row = work.own.q0 + tile*s.QUERIES
        stage, lap = number % s.QUERY_STAGES, number // s.QUERY_STAGES
        parts.queries.empty.wait(stage, lap % 2 ^ 1, sleep=True)
        parts.queries.full.arrive(stage, by="role", expect=s.queries.BYTES + s.ROWS*4)
        rows = g.rows + k.cast(work.own.place(head, tile), i64)*s.ROWS
        with k.when(k.elect()):
            parts.queries.copy(g.q, stage, 0, (row, head, work.sequence))
            parts.queries.full.copy(parts.rows.at(stage, 0), rows, s.ROWS*4, stage)
        stage = parts.grads.refill(number)
        with k.when(k.elect()):
            parts.grads.copy(g.g, stage, 0, (row, head, work.sequence))


def _add(parts: _Parts, here: Value) -> None:
    """Gradients by queries to the sums in global memory, by this thread alone."""
    k, g, s, work = parts.k, parts.g, parts.s, parts.work
    with k.loop(k.select(here, work.rounds, 0), unroll=False) as number:
        head, tile = work.round(k, number)
        place = work.own.place(head, tile)
        for w in range(WARPGROUPS):
            slabs = range(s.SLABS // 2) if s.QUERIES > M else range(s.COLUMNS // SLAB)
            slabs = slabs if w == 0 else range(slabs.stop, s.SLABS)
            parts.sums_full.wait(w, number % 2, sleep=True)
            if w == 0 and s.shape.ordered:
                _wait_for_order(k, g, s, work, place, tile)
            for slab in slabs:
                to = (place*s.SLABS + slab)*(SLAB_FLOATS // tiles.LINE)
                k.tma_store(g.sums, (0, to), parts.sums.at(slab*SLAB_FLOATS), add=True)
            k.bulk_commit()
            k.bulk_wait(0, read=True)
            parts.sums_empty.arrive(w, by="warp", turns=WARPS)
        if s.shape.ordered:
            k.bulk_wait(0)
            k.fence_async("global")
            k.fence_device()
            k.atomic_add(g.counters + place, 1, "release")


def _wait_for_order(k: Kernel, g: SimpleNamespace, s: BackwardSizes, work: Work, place: Value, tile: Value) -> None:
    """Until all later tiles of keys that this tile of queries sees have been added."""
    last = (work.own.keys - 1) // KEYS
    if s.shape.band:
        last = k.min(last, ((tile + 1)*s.QUERIES - 1 + work.shift + g.after) // KEYS)
    with k.while_(lambda: k.atomic_load(g.counters + place, "acquire") < last - work.tile):
        k.nanosleep()
    k.fence_async("global")


# ---- the role that multiplies

class _Math:
    """A warpgroup's 64 keys."""

    def __init__(self, parts: _Parts) -> None:
        self.parts, self.k, self.g, self.s, self.work = parts, parts.k, parts.g, parts.s, parts.work
        k, s = self.k, self.s
        k.registers(REGISTERS[0], more=True)
        self.t, self.mine = parts.t % GROUP, k.uniform(parts.t // GROUP)
        self.lane = self.t % 32
        self.T = TYPES[s.shape.format]
        self.scores, self.slopes, self.by_k, self.by_v, self.by_q = (
            k.tile(1, atom.registers, f32) for atom in (s.score, s.slope, s.by_key, s.by_value, s.by_query))

    def run(self) -> None:
        k, parts, work = self.k, self.parts, self.work
        k.wgmma_fence(self.by_k, self.by_v)
        with k.loop(k.min(work.rounds, 1), unroll=False):
            for ring in (parts.keys, parts.values):
                ring.full.wait(0, 0, sleep=True)
            with k.loop(work.rounds, unroll=False) as number:
                self._round(number)
            if self.s.plan.ahead:
                k.wgmma_wait(0, self.by_k, self.by_v)
        self._store()

    def _round(self, number: Value) -> None:
        """With `ahead` dK of the round before is in flight at first, and dK in the end. Sums in flight then have no
        room for -delta to begin with: it is added to the slopes."""
        k, parts, ahead = self.k, self.parts, self.s.plan.ahead
        stage, query_stage = number % self.s.plan.stages, number % self.s.QUERY_STAGES
        _, tile = self.work.round(k, number)
        parts.queries.filled(number)
        if ahead:
            self._forget(self.slopes)
        else:
            self._begin_slopes(query_stage)
        self._start_scores(query_stage)
        parts.grads.filled(number)
        self._start_slopes(stage)
        k.wgmma_wait(1, self.scores, *([self.by_k] if ahead else []))
        if ahead:
            with k.loop(k.min(number, 1), unroll=False):
                parts.queries.give_back(number - 1)
        self._powers(query_stage, tile)
        rows = self._rounded(self.scores)
        k.wgmma_fence()
        self._start_by_value(stage, rows)
        k.wgmma_wait(1, self.slopes)
        rows_read = self._beside(query_stage, self.s.QUERIES) if ahead else []
        for _, e in self.slopes.registers:
            slope = self.slopes[0, e] + rows_read[e // 4][e % 2] if ahead else self.slopes[0, e]
            self.slopes[0, e] = self.scores[0, e]*slope
        rows = self._rounded(self.slopes)
        buffer = number % 2
        self._leave_slopes(buffer, rows)
        self._forget(self.by_q)
        k.wgmma_fence()
        self._start_by_query(buffer)
        self._start_by_key(query_stage, rows)
        k.wgmma_wait(1, self.by_q, *([self.by_v] if ahead else []))
        parts.grads.give_back(number)
        self._leave_sums(number)
        if not ahead:
            k.wgmma_wait(0, self.by_k, self.by_v)
            parts.queries.give_back(number)

    def _forget(self, *tiles: Tile) -> None:
        """Their numbers of before are not needed."""
        for tile in tiles:
            for ij in tile.registers:
                tile[ij] = self.k.forgotten(self.k.constant(f32, 0))

    # ---- products

    def _start_scores(self, stage: Value) -> None:
        k, s, parts = self.k, self.s, self.parts
        self._forget(self.scores)
        k.wgmma_fence(self.scores, self.slopes)
        for step in range(s.shape.size*s.keys.ITEM // DEPTH):
            k.wgmma(s.score, self.scores, parts.keys.smem.at(0, s.keys.offset(self.mine*M, step)),
                    parts.queries.smem.at(stage, s.queries.offset(0, step)), step > 0)
        k.wgmma_commit()

    def _start_slopes(self, stage: Value) -> None:
        k, s, parts = self.k, self.s, self.parts
        for step in range(s.shape.value_size*s.values.ITEM // DEPTH):
            k.wgmma(s.slope, self.slopes, parts.values.smem.at(0, s.values.offset(self.mine*M, step)),
                    parts.grads.smem.at(stage, s.grads.offset(0, step)), not s.plan.ahead or step > 0)
        k.wgmma_commit()

    def _start_by_value(self, stage: Value, rows: list[Value]) -> None:
        k, s, parts = self.k, self.s, self.parts
        for step in range(s.QUERIES // s.by_value.k):
            k.wgmma(s.by_value, self.by_v, rows[4*step:4*step + 4],
                    parts.grads.smem.at(stage, s.rows_of_grads.offset(0, step)))
        k.wgmma_commit()

    def _start_by_key(self, stage: Value, rows: list[Value]) -> None:
        k, s, parts = self.k, self.s, self.parts
        for step in range(s.QUERIES // s.by_key.k):
            k.wgmma(s.by_key, self.by_k, rows[4*step:4*step + 4],
                    parts.queries.smem.at(stage, s.rows_of_queries.offset(0, step)))
        k.wgmma_commit()

    def _start_by_query(self, buffer: Value) -> None:
        k, s, parts = self.k, self.s, self.parts
        wide = s.QUERIES > M
        row, column = (self.mine*M, 0) if wide else (0, self.mine*(s.shape.size - s.COLUMNS))
        for step in range(KEYS // s.by_query.k):
            k.wgmma(s.by_query, self.by_q, parts.slopes.at(buffer, s.slopes.offset(row, step)),
                    parts.keys.smem.at(0, s.rows_of_keys.offset(column, step)), step > 0)
        k.wgmma_commit()

    # ---- between products

    def _beside(self, stage: Value, first: int) -> list[tuple[Value, Value]]:
        """For each eight queries this lane's two of the numbers beside, from `first` on."""
        k, at = self.k, self.parts.rows.at(stage, 0) + (self.lane % 4 * 2 + first)
        pairs = (k.load(at + 8*j, vec(f32, 2)) for j in range(self.s.QUERIES // 8))
        return [(x[0], x[1]) for x in pairs]

    def _powers(self, stage: Value, tile: Value) -> None:
        """Scores become exp2(score*factor - lse), 0 where a query does not see the key."""
        k, g = self.k, self.g
        lse = self._beside(stage, 0)
        for _, e in self.scores.registers:
            self.scores[0, e] = k.exp2_approximate(k.fma(self.scores[0, e], g.factor, -lse[e // 4][e % 2]))
        with k.when(self._masked(tile)):
            self._mask(tile)

    def _masked(self, tile: Value) -> Value:
        """Whether some query of the tile does not see some key of the CTA's."""
        g, s, work = self.g, self.s, self.work
        i0, masked = tile*s.QUERIES + work.shift, work.j0 + KEYS > work.own.keys
        if s.shape.band:
            masked = masked | (i0 + g.after < work.j0 + (KEYS - 1))
        if s.shape.band == "window":
            masked = masked | (i0 + (s.QUERIES - 1) - g.before > work.j0)
        return masked

    def _mask(self, tile: Value) -> None:
        k, g, s, work = self.k, self.g, self.s, self.work
        for half in range(2):
            j = work.j0 + self.mine*M + self._row + half*8
            j_at = j - work.shift - tile*s.QUERIES          # the query beside it, in the tile
            low = k.select(j < work.own.keys, j_at - g.after if s.shape.band else k.constant(i32, 0), FAR)
            low = low - self.lane % 4 * 2
            high = j_at + g.before - self.lane % 4 * 2 if s.shape.band == "window" else None
            for _, e in self.scores.registers:
                if e // 2 % 2 == half:
                    column = e // 4 * 8 + e % 2
                    there = low <= column
                    if high is not None:
                        there = there & (high >= column)
                    self.scores[0, e] = k.select(there, self.scores[0, e], 0.0)

    @property
    def _row(self) -> Value:
        """The upper one of this lane's two, of the warpgroup's 64."""
        return self.t // 32 * 16 + self.lane // 4

    def _begin_slopes(self, stage: Value) -> None:
        """-delta, to which products are added."""
        rows_read = self._beside(stage, self.s.QUERIES)
        for _, e in self.slopes.registers:
            self.slopes[0, e] = rows_read[e // 4][e % 2]

    def _rounded(self, tile: Tile) -> list[Value]:
        """Rounded numbers, two in a word, as wgmma takes rows from registers."""
        k, count = self.k, len(tile.registers)
        return [k.round_pair(k.pack(tile[0, e], tile[0, e + 1]), self.T) for e in range(0, count, 2)]

    def _leave_slopes(self, buffer: Value, rows: list[Value]) -> None:
        """In shared memory, [keys, queries], where both warpgroups find them."""
        k, s = self.k, self.s
        tile, lane = s.slopes, self.lane
        row = self.mine*M + (self.t // 32 * 16 + lane % 16)
        for step in range(s.QUERIES // 16):
            block, piece = divmod(2*step, tile.SWIZZLE // 16)
            column = (piece + lane // 16) ^ (lane % 8)
            at = self.parts.slopes.at(buffer, row*tile.SWIZZLE + column*16 + block*tile.BLOCK)
            k.stmatrix(at, rows[4*step:4*step + 4])
        k.fence_async()
        k.role_barrier()

    def _leave_sums(self, number: Value) -> None:
        """In shared memory, slab by slab, for them to be added."""
        k, s, parts = self.k, self.s, self.parts
        groups, wide = s.COLUMNS // SLAB, s.QUERIES > M
        parts.sums_empty.wait(self.mine, number % 2 ^ 1, sleep=True)
        base = parts.sums.at(self.mine*(groups if wide else s.GROUPS - groups)*SLAB_FLOATS + self.t*4)
        for group in range(groups):
            pieces = [(j, k.pack(*(self.by_q[0, 4*j + e] for e in range(4))))
                      for j in range(group*SLAB // 8, (group + 1)*SLAB // 8)]
            again = group < s.AGAIN
            with k.when(self.mine == 0) if again else k.loop(1):
                for j, piece in pieces:
                    k.store(base + j*4*GROUP, piece, align=16)
        k.fence_async()
        k.warp_barrier()
        parts.sums_full.arrive(self.mine, by="warp", turns=WARPGROUPS)

    # ---- results

    def _store(self) -> None:
        """Both gradients, of keys that there are."""
        k, g, work = self.k, self.g, self.work
        one = k.constant(f32, 1.0)
        for half in range(2):
            j = work.j0 + self.mine*M + self._row + half*8
            for name, tile, factor in ("by_k", self.by_k, g.scale), ("by_v", self.by_v, one):
                mine = [tile[0, e] for _, e in tile.registers if e // 2 % 2 == half]
                base = tiles.row_of(k, g, name, work.own.k0 + j, work.kv_head, work.sequence)
                store_row(k, base, mine, factor, self.T, self.lane, j < work.own.keys)
