"""Attention on Hopper's tensor cores (sm_90a): softmax(scale * Q K^T) V by tiles of queries that stay, and tiles of keys
and values that come by TMA. No score is ever written to memory.

    Roles
        math    WARPGROUPS warpgroups, each with 64 queries of the CTA's tile: scores by `wgmma` in registers, their
                softmax there, and products with V whose rows are those registers
        loads   a warpgroup, of which one thread starts all copies

    Barriers, of STAGES stages for tiles of K, and as many for V
        keys.full, values.full          the tile has come
        keys.empty, values.empty        no warpgroup reads it any more; an arrival of each warp of math
        queries.full, queries.empty     the same of the tile of Q, which has one stage
        turn[w]                         warpgroup w - 1 has started its products; w's may follow

    A warpgroup's round for a tile of keys; S are scores, P what is multiplied with V, O the sums
        wait turn; start S = Q K[p]^T; start O += P V[p - 1]; give the turn on
        wait for S; mask it; new row maxima m; P' = exp2(S*c - m*c); sums of rows
        wait for O; O *= exp2((m before - m)*c); P = P'

While a warpgroup computes exponentials, the tensor cores have the products of the others.

Queries see keys in a band: query i those from i + first to i + last. Tiles of keys outside of a tile's band are not
visited, and only those that it crosses are masked. Tiles of queries are numbered so that the longest come first
(`Order`), and CTAs take them as a snake does: 0 1 2 ... 2 1 0 0 1 2, so that all have about as much to do.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

from tilewright.atoms.wgmma import DEPTH, M, Wgmma
from tilewright.ir import Function, Kernel, Value, bf16, f16, f32, i8, i32, i64, ptr
from tilewright.ir.ops.pipelines import Mbarriers
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.nvidia.wgmma_products import Turns
from tilewright.kernels.nvidia.wgmma_tiles import ALIGN, SmemTile
from tilewright.plans.wgmma_rules import GROUP, WARPS

REGISTERS = {1: (240, 24), 2: (240, 24), 3: (160, 32)}      # of math and of loads, by the number of warpgroups
TYPES = {"bf16": bf16, "f16": f16}
ROOM = 226 << 10                # bytes of shared memory for tiles
LOG2E = math.log2(math.e)
BANDS = "", "causal", "window"                              # what limits keys beside their number: nothing, i + last, both


def emit_attention(FORMAT: str = "bf16", D: int = 128, DV: int = 128, WARPGROUPS: int = 2, KEYS: int = 128,
                   STAGES: int = 2, BAND: str = "", LSE: bool = False, WARP: int = 32) -> Function:
    """out[b, h, i, :] = softmax(scale * q[b, h, i] . k[b, h // group])  v[b, h // group], and with LSE the logarithm of
    the sum of exponentials, -inf where a query sees no key; out is 0 there.

    Parameters: maps q, k, v of [batch, heads, length, D] (in any order of memory) with boxes of `queries`, `keys` and
    `values`; out, of DV contiguous elements for each query and its distances in elements; lse [batch, heads, queries];
    factor = scale * log2(e), which is not negative; first, last: of the band, BAND="causal" has no first. `section`:
    of (batch, head) pairs, see `Order`. Grid: CTAs along x.
    """
    s = _Sizes(FORMAT, D, DV, WARPGROUPS, KEYS, STAGES, BAND, LSE)
    T = memory_type(FORMAT)
    more: dict[str, Any] = {"first": i32} if BAND == "window" else {}
    more |= {"last": i32} if BAND else {}
    more |= {"lse": ptr(f32)} if LSE else {}
    name = f"attention_{FORMAT}_{D}x{DV}_k{KEYS}_s{STAGES}_g{WARPGROUPS}{'_' * bool(BAND)}{BAND}{'_lse' * LSE}"
    k = Kernel(name, threads=GROUP*(WARPGROUPS + 1), noalias=False, q=s.queries.map, k=s.keys.map, v=s.values.map,
               out=ptr(T), out_row=i64, out_head=i64, out_batch=i64, queries=i32, keys=i32, heads=i32, group=i32,
               pairs=i32, section=i32, factor=f32, **more)
    g = SimpleNamespace(**{name: value for name, value in k.function.params})
    parts = _Parts.begun(k, g, s)
    with k.role("math", warps=WARPS*WARPGROUPS):
        _Math(parts).run()
    with k.role("loads", warps=WARPS):
        _load(parts)
    return k.function


@dataclass(frozen=True)
class _Sizes:
    """What a kernel is made for."""
    FORMAT: str
    D: int
    DV: int
    WARPGROUPS: int
    KEYS: int
    STAGES: int
    BAND: str
    LSE: bool

    @property
    def QUERY_STAGES(self) -> int:
        """Two where shared memory has room, so that the next tile of queries is there when one ends."""
        others = self.STAGES*(self.keys.BYTES + self.values.BYTES)
        return 2 if others + 2*self.WARPGROUPS*self.queries.BYTES <= ROOM else 1

    @property
    def QUERIES(self) -> int:
        """Of a CTA."""
        return M*self.WARPGROUPS

    @property
    def queries(self) -> SmemTile:
        """Of a warpgroup."""
        return Tensor(self.FORMAT, True, M, self.D, 1, True, 1)

    @property
    def keys(self) -> SmemTile:
        return Tensor(self.FORMAT, True, self.KEYS, self.D, 1, True, 1)

    @property
    def values(self) -> SmemTile:
        return Tensor(self.FORMAT, False, self.DV, self.KEYS, 1, True, 1)


class Tensor(SmemTile):
    """A tile of one head: dimensions of its map are those of a matrix, heads (its only plane), and the batch."""


@dataclass(frozen=True)
class Ring:
    """Stages of tiles of one operand. A position counts tiles since the CTA began."""
    full: Mbarriers
    empty: Mbarriers
    smem: Value
    tile: SmemTile
    COUNT: int

    @classmethod
    def made(cls, k: Kernel, name: str, tile: SmemTile, COUNT: int) -> Ring:
        return cls(k.mbarriers(f"{name}_full", COUNT), k.mbarriers(f"{name}_empty", COUNT),
                   k.smem(name, (COUNT, tile.BYTES), i8, ALIGN), tile, COUNT)

    def refill(self, position: Value) -> Value:
        stage = position % self.COUNT
        self.empty.wait(stage, position // self.COUNT % 2 ^ 1, sleep=True)
        self.full.arrive(stage, by="role", expect=self.tile.BYTES)
        return stage

    def copy(self, k: Kernel, stage: Value, map: Value, row: Value, head: Value, batch: Value) -> None:
        """The tile from this row on."""
        zero = k.constant(i32, 0)
        for to, (x, y, *_) in self.tile.boxes(*((row, zero) if self.tile.along_k else (zero, row)), zero):
            self.full.load(self.smem.at(stage, to), map, (x, y, head, batch), stage)

    def filled(self, position: Value) -> Value:
        self.full.wait(position % self.COUNT, position // self.COUNT % 2, sleep=True)
        return position % self.COUNT

    def give_back(self, position: Value) -> None:
        self.empty.arrive(position % self.COUNT, by="warp")


@dataclass(frozen=True)
class Work:
    """A tile of queries: its first one, head and batch, and its tiles of keys `first` ... `end` - 1, of which those
    from `whole_first` to `whole_end` - 1 are seen by all of its queries."""
    i0: Value
    head: Value
    batch: Value
    first: Value
    end: Value
    whole_first: Value
    whole_end: Value

    @property
    def count(self) -> Value:
        return self.end - self.first


class Order:
    """Which tiles of queries a CTA takes. Pairs of batch and head are in sections, whose keys and values fit in L2. In a
    section the last tiles of queries of all its pairs come first, which with causal attention see the most keys."""

    def __init__(self, k: Kernel, g: SimpleNamespace, s: _Sizes) -> None:
        self.k, self.g, self.s = k, g, s
        self.rows = k.ceil_div(g.queries, s.QUERIES)
        tiles, ctas, cta = self.rows*g.pairs, k.grid[0], k.block[0]
        self.cta, self.ctas = cta, ctas
        rounds, rest = tiles // ctas, tiles % ctas
        self.rounds = rounds + k.cast(self._place(rounds) < rest, i32)

    def _place(self, round: Value) -> Value:
        """Of this CTA in a round."""
        return self.k.select(round % 2 == 0, self.cta, self.ctas - 1 - self.cta)

    @contextmanager
    def each(self, here: Value) -> Iterator[tuple[Value, Work]]:
        """A loop over the CTA's tiles, each with its number; `here` or not at all."""
        k = self.k
        with k.loop(k.select(here, self.rounds, 0), unroll=False) as number:
            yield number, self.work(number)

    def work(self, number: Value) -> Work:
        """The CTA's tile of this number."""
        g = self.g
        tile = number*self.ctas + self._place(number)
        part = self.rows*g.section
        section = tile // part
        inside = tile - section*part
        up = inside // g.section
        pair = section*g.section + (inside - up*g.section)
        batch = pair // g.heads
        return self._work((self.rows - 1 - up)*self.s.QUERIES, pair - batch*g.heads, batch)

    def _work(self, i0: Value, head: Value, batch: Value) -> Work:
        k, g, s = self.k, self.g, self.s
        end, whole_end = k.ceil_div(g.keys, s.KEYS), g.keys // s.KEYS
        first = whole_first = k.constant(i32, 0)
        if s.BAND:
            seen = k.max(k.min(i0 + (s.QUERIES - 1), g.queries - 1) + g.last + 1, 0)
            end = k.min(end, k.ceil_div(seen, s.KEYS))
            whole_end = k.min(whole_end, k.max(i0 + g.last + 1, 0) // s.KEYS)
        if s.BAND == "window":
            first = k.min(k.max(i0 + g.first, 0) // s.KEYS, k.max(end - 1, 0))
            whole_first = k.max(k.ceil_div(k.max(i0 + (s.QUERIES - 1) + g.first, 0), s.KEYS), first)
        end = k.max(end, first + 1)                                     # without any key it is all masked
        return Work(i0, head, batch, first, end, whole_first, whole_end)


class Carried:
    """A tile of queries that a loop hands on."""

    def __init__(self, k: Kernel, work: Work) -> None:
        self.variables = {x.name: k.variable(i32, getattr(work, x.name)) for x in fields(Work)}

    def get(self) -> Work: return Work(**{name: x.get() for name, x in self.variables.items()})

    def set(self, work: Work) -> None:
        for name, x in self.variables.items():
            x.set(getattr(work, name))


@dataclass(frozen=True)
class _Parts:
    """What both roles have."""
    k: Kernel
    g: SimpleNamespace
    s: _Sizes
    t: Value
    keys: Ring
    values: Ring
    queries: Ring                   # a stage for each warpgroup, once or twice
    turn: Mbarriers | None
    order: Order

    @classmethod
    def begun(cls, k: Kernel, g: SimpleNamespace, s: _Sizes) -> _Parts:
        keys, values = Ring.made(k, "k_smem", s.keys, s.STAGES), Ring.made(k, "v_smem", s.values, s.STAGES)
        COUNT = s.QUERY_STAGES*s.WARPGROUPS
        queries = Ring.made(k, "q_smem", s.queries, COUNT)
        turn = k.mbarriers("turn", s.WARPGROUPS) if s.WARPGROUPS > 1 else None
        k.init_mbarriers()
        return cls(k, g, s, k.thread[0], keys, values, queries, turn, Order(k, g, s))

    def of_queries(self, number: Value, warpgroup: Any) -> tuple[Value, Value]:
        """Stage and parity of a warpgroup's queries of tile `number`."""
        stages = self.s.QUERY_STAGES
        return number % stages * self.s.WARPGROUPS + warpgroup, number // stages % 2


def _load(parts: _Parts) -> None:
    """The role that copies: one of its threads starts all copies."""
    k, g, s, t = parts.k, parts.g, parts.s, parts.t
    k.registers(REGISTERS[s.WARPGROUPS][1], more=False)
    first_warp = t < GROUP*s.WARPGROUPS + k.warp
    queries, position = parts.queries, k.variable(i32, 0)

    def copy(ring: Ring, position: Value, map: Value, tile: Value, work: Work) -> None:
        stage = ring.refill(position)
        with k.when(k.elect()):
            ring.copy(k, stage, map, tile*s.KEYS, work.head // g.group, work.batch)

    with parts.order.each(first_warp) as (number, work):
        begin, last = position.get(), work.end - 1
        for w in range(s.WARPGROUPS):
            stage, parity = parts.of_queries(number, w)
            queries.empty.wait(stage, parity ^ 1, sleep=True)
            queries.full.arrive(stage, by="role", expect=s.queries.BYTES)
            with k.when(k.elect()):
                queries.copy(k, stage, g.q, work.i0 + w*M, work.head, work.batch)
        copy(parts.keys, begin, g.k, last, work)
        with k.loop(work.count, start=1, unroll=False) as p:
            copy(parts.keys, begin + p, g.k, last - p, work)
            copy(parts.values, begin + p - 1, g.v, last - p + 1, work)
        copy(parts.values, begin + work.count - 1, g.v, work.first, work)
        position.set(begin + work.count)


class _Math:
    """A warpgroup's 64 queries."""

    def __init__(self, parts: _Parts) -> None:
        self.parts, self.k, self.g, self.s = parts, parts.k, parts.g, parts.s
        k, s = self.k, self.s
        k.registers(REGISTERS[s.WARPGROUPS][0], more=True)
        self.t = parts.t % GROUP
        self.mine = k.uniform(parts.t // GROUP)
        self.turns = Turns(k, parts.turn, self.mine, s.WARPGROUPS) if parts.turn else None
        self.score = Wgmma(s.KEYS, s.FORMAT, s.FORMAT, "f32", s.queries.layout, s.keys.layout)
        self.value = Wgmma(s.DV, s.FORMAT, s.FORMAT, "f32", None, s.values.layout)
        self.scores, self.sums = (k.tile(1, atom.registers, f32) for atom in (self.score, self.value))
        self.weights = k.tile(1, s.KEYS // 4, i32)          # P: pairs, as wgmma takes rows from registers
        self.largest, self.total = k.tile(1, 2, f32), k.tile(1, 2, f32)         # of the row of each half
        self.T = TYPES[s.FORMAT]
        lane = self.t % 32
        self.row, self.column = self.t // 32 * 16 + lane // 4, lane % 4 * 2
        self.position = k.variable(i32, 0)

    def run(self) -> None:
        """Tile after tile. The first scores of the next one are products beside the last sums of one; after the CTA's
        last tile they are its own once more, and not used."""
        k, s, parts = self.k, self.s, self.parts
        order = parts.order
        work = Carried(k, order.work(k.constant(i32, 0)))
        self._first_scores(k.constant(i32, 0))
        self._begin(work.get())
        with k.loop(order.rounds, unroll=False) as number:
            now, begin = work.get(), self.position.get()
            self._steps(now, number, begin)
            more = number + 1 < order.rounds
            after = number + k.cast(more, i32)
            parts.queries.empty.arrive(parts.of_queries(number, self.mine)[0], by="warp", turns=s.WARPGROUPS)
            self._turn_over(after, begin + now.count - 1, more)
            self._store(now)
            work.set(order.work(after))
            self.position.set(begin + now.count)
            self._begin(work.get())

    def _steps(self, work: Work, number: Value, begin: Value) -> None:
        """All tiles of keys but the first."""
        k, s = self.k, self.s
        right = work.end - k.max(k.min(work.whole_end, work.end), work.first)           # positions that are masked
        masked = k.max(right, 1)
        end = work.count
        left = end if s.BAND != "window" else k.max(k.min(work.end - work.whole_first, end), masked)
        if s.BAND:
            with k.loop(k.min(masked, end), start=1, unroll=False) as p:
                self._step(work, number, begin, p, MASKED=True)
        with k.loop(left, start=k.min(masked, left), unroll=False) as p:
            self._step(work, number, begin, p, MASKED=False)
        if s.BAND == "window":
            with k.loop(end, start=left, unroll=False) as p:
                self._step(work, number, begin, p, MASKED=True)

    # ---- products

    def _start_scores(self, number: Value, position: Value) -> None:
        k, s, keys, queries = self.k, self.s, self.parts.keys, self.parts.queries
        own, stage = self.parts.of_queries(number, self.mine)[0], position % s.STAGES
        for step in range(s.D * s.keys.ITEM // DEPTH):
            k.wgmma(self.score, self.scores, queries.smem.at(own, s.queries.offset(0, step)),
                    keys.smem.at(stage, s.keys.offset(0, step)), step > 0)
        k.wgmma_commit()

    def _rows(self) -> list[Value]:
        """P, to be read before the fence that orders it before products."""
        return [self.weights[ij] for ij in self.weights.registers]

    def _start_sums(self, position: Value, rows: list[Value]) -> None:
        k, s, values = self.k, self.s, self.parts.values
        stage = position % s.STAGES
        for step in range(s.KEYS // self.value.k):
            k.wgmma(self.value, self.sums, rows[4*step:4*step + 4],
                    values.smem.at(stage, s.values.offset(0, step)), True)
        k.wgmma_commit()

    def _first_scores(self, number: Value) -> None:
        """Those of the CTA's first tile."""
        k, parts = self.k, self.parts
        stage, parity = parts.of_queries(number, self.mine)
        parts.queries.full.wait(stage, parity, sleep=True)
        parts.keys.filled(number)
        self._forget()
        k.wgmma_fence()
        self._start_scores(number, number)
        k.wgmma_wait(0, self.scores)
        parts.keys.give_back(number)

    def _begin(self, work: Work) -> None:
        """With the scores of a tile's first keys."""
        for half in range(2):
            self.largest[0, half], self.total[0, half] = -math.inf, 0
        for ij in self.sums.registers:
            self.sums[ij] = 0
        self._mask(work, self.k.constant(i32, 0))
        self._softmax()
        self._pack()

    def _step(self, work: Work, number: Value, begin: Value, p: Value, MASKED: bool) -> None:
        k, parts, turns = self.k, self.parts, self.turns
        parts.keys.filled(begin + p)
        if turns:
            turns.wait()
        self._forget()
        rows = self._rows()
        k.wgmma_fence(self.sums)
        self._start_scores(number, begin + p)
        parts.values.filled(begin + p - 1)
        self._start_sums(begin + p - 1, rows)
        if turns:
            turns.end()
        k.wgmma_wait(1, self.scores)
        parts.keys.give_back(begin + p)
        if MASKED:
            self._mask(work, p)
        shrink = self._softmax()
        self._stay()
        k.wgmma_wait(0, self.sums)
        parts.values.give_back(begin + p - 1)
        self._pack()
        for _, e in self.sums.registers:
            self.sums[0, e] = self.sums[0, e]*shrink[e // 2 % 2]

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
        k.wgmma_fence(self.sums)
        self._start_scores(after, position)
        parts.values.filled(last)
        self._start_sums(last, rows)
        if turns:
            turns.end()
        k.wgmma_wait(1, self.scores)
        parts.keys.give_back(position)
        k.wgmma_wait(0, self.sums)
        parts.values.give_back(last)

    def _forget(self) -> None:
        """The scores of before are not needed."""
        for ij in self.scores.registers:
            self.scores[ij] = self.k.forgotten(self.k.constant(f32, 0))

    # ---- softmax

    def _mask(self, work: Work, p: Value) -> None:
        """-inf for keys that the tile's queries do not see."""
        k, g, s = self.k, self.g, self.s
        j0 = (work.end - 1 - p)*s.KEYS + self.column
        for half in range(2):
            i = work.i0 + self.mine*M + self.row + half*8
            last = (k.min(g.keys - 1, i + g.last) if s.BAND else g.keys - 1) - j0
            first = i + g.first - j0 if s.BAND == "window" else None
            for _, e in self.scores.registers:
                if e // 2 % 2 == half:
                    column = e // 4 * 8 + e % 2
                    there = last >= column
                    if first is not None:
                        there = there & (first <= column)
                    self.scores[0, e] = k.select(there, self.scores[0, e], -math.inf)

    def _softmax(self) -> list[Value]:
        """Scores become exp2(score*factor - largest*factor). The factors of what was added up before, for each half."""
        k, factor = self.k, self.g.factor
        shrink = []
        for half in range(2):
            mine = [e for _, e in self.scores.registers if e // 2 % 2 == half]
            before = self.largest[0, half]
            most = before
            for x in self._tree([self.scores[0, e] for e in mine]):
                most = k.fmax(x, most)
            for distance in (1, 2):
                most = k.fmax(k.lane_xor(most, distance), most)
            self.largest[0, half] = most
            zero = k.select(most == -math.inf, 0.0, most)*factor        # a row that has seen no key yet
            shrink.append(k.exp2_approximate(k.fma(before, factor, -zero)))
            sums: list[Value] = []
            for e in mine:
                x = k.exp2_approximate(k.fma(self.scores[0, e], factor, -zero))
                self.scores[0, e] = x
                if len(sums) < 4:
                    sums.append(x)
                else:
                    sums[e // 2 % 4] = sums[e // 2 % 4] + x
            total = self.total[0, half]*shrink[half]
            for x in sums:
                total = total + x
            self.total[0, half] = total
        return shrink

    def _stay(self) -> None:
        """A branch that depends on all exponentials, and is never taken. NVIDIA's assembler would move the wait behind
        it in front of them, and the tensor cores would have nothing to do meanwhile."""
        k = self.k
        with k.when(self.total[0, 0] + self.total[0, 1] < 0.0):
            k.warp_barrier()

    def _tree(self, xs: list[Value]) -> list[Value]:
        """Four largest ones of several."""
        found = xs[:4]
        for at, x in enumerate(xs[4:]):
            found[at % 4] = self.k.fmax(found[at % 4], x)
        return found

    def _pack(self) -> None:
        k = self.k
        for _, e in self.weights.registers:
            pair = k.pack(self.scores[0, 2*e], self.scores[0, 2*e + 1])
            self.weights[0, e] = k.round_pair(pair, self.T)

    # ---- the result

    def _store(self, work: Work) -> None:
        """Each of four lanes that share rows gets eight neighbours of every 32 columns: stores of 16 bytes."""
        k, g, s = self.k, self.g, self.s
        lane = self.t % 32
        for half in range(2):
            total = self.total[0, half]
            for distance in (1, 2):
                total = total + k.lane_xor(total, distance)
            inverse = k.select(total == 0.0, 0.0, 1.0 / total)
            i = work.i0 + self.mine*M + self.row + half*8
            inside = i < g.queries
            if s.LSE:
                at = (work.batch*g.heads + work.head)*g.queries + i
                nothing = self.largest[0, half] == -math.inf
                value = k.select(nothing, -math.inf, self.largest[0, half]*(g.factor*(1 / LOG2E)) + k.log(total))
                k.store(g.lse + at, value, mask=inside & (lane % 4 == 0))
            base = g.out + (k.cast(work.batch, i64)*g.out_batch + k.cast(work.head, i64)*g.out_head
                            + k.cast(i, i64)*g.out_row)
            words = [k.round_pair(k.pack(*(self.sums[0, 4*j + 2*half + e]*inverse for e in range(2))), self.T)
                     for j in range(s.DV // 8)]
            for first in range(0, len(words), 4):
                four = self._transposed(words[first:first + 4])
                column = first*8 + lane % 4 * 8
                k.store((base + column).as_(i32), k.pack(*four), align=16, mask=inside)

    def _transposed(self, words: list[Value]) -> list[Value]:
        """Of word j of lane i of four, word i of lane j."""
        k, lane = self.k, self.t % 4
        for bit in (1, 2):
            odd = (lane & bit) > 0
            for j in range(4):
                if not j & bit:
                    low, high = words[j], words[j | bit]
                    other = k.lane_xor(k.select(odd, low, high), bit)
                    words[j], words[j | bit] = k.select(odd, other, low), k.select(odd, high, other)
        return words
