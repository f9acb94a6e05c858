"""Attention on AMD's Matrix Cores: softmax(scale * Q K^T) V by tiles of queries that stay in registers, and tiles of
keys and values that come through LDS. No score is ever written to memory.

Layouts     The first product is S^T = K Q^T, so a lane has scores of one query, and the two lanes that share a query
            have eight of sixteen keys each, in the order in which the second product, O^T = V^T P^T, takes them (see
            attention_tiles.key_of): powers go from one to the other in the registers that they are in, and what a
            query's sums are multiplied by is one number of a lane.

Roles       All waves do everything: each copies its share of every tile, and has 32 queries.

Pipelines   LDS, two tiles of keys and two of values; tile p, counted from the last one that a query sees, is in place
            p % 2. Registers: the keys of tile p + 1 and the values of tile p on their way there.

A round p of a wave; S are scores, X what they are powers of, P what is multiplied with V, O the sums
    products    S = K[p] Q^T                            | O += V[p - 1]^T P
    beside      O *= shrink; P = exp2(X), rounded       | mask S; new maximum m and shrink; X = S*c - m*c
    copies      keys of p + 1 and values of p to LDS, then loads of those of p + 2 and p + 1
    barrier

Products, reads of LDS, copies and powers are issued in the order in which they are written here (`_Round`).

The maximum by which powers are taken grows when scores exceed it by a power of 2^8, so that sums are seldom multiplied:
what is divided at the end has the same factor. Tiles of keys that no query of a tile sees are not visited, and only
those are masked of which some are not seen.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Function, Kernel, Value, f32, i8, i16, i32, i64, ptr, vec
from tilewright.kernels.amd.attention_result import Result
from tilewright.kernels.amd.attention_tiles import Side, Sizes
from tilewright.kernels.amd.pipeline import Do, Operands
from tilewright.kernels.gpu.attention_result import RAISED, TYPES
from tilewright.kernels.gpu.attention_scores import Scores
from tilewright.kernels.gpu.attention_work import Order, Work, begun, stretches
from tilewright.kernels.narrow import memory_type
from tilewright.plans.amd_attention import LANES, ROWS, AmdAttention
from tilewright.plans.nvidia_attention import AttentionShape

PAIR = vec(f32, 2)
EXP, PACKED, FULL = 16, 8, 4            # cycles of vector instructions


def emit_attention(SHAPE: AttentionShape, PLAN: AmdAttention, ARCH: str, WARP: int = LANES) -> Function:
    """out[b, h, i, :] = softmax(scale * q[b, h, i] . k[b, h // group])  v[b, h // group].

    Parameters: q, k, v, each with its distances in elements from row to row, head to head and sequence to sequence
    (pages: page to page): q_by_row, q_by_head, q_by_batch ..., all of multiples of 16 bytes. The others are those of
    kernels/nvidia/attention.py. Grid: workgroups along x, not more than tiles.
    """
    s = Sizes(SHAPE, PLAN, ARCH)
    T = memory_type(SHAPE.format)
    operands: dict[str, Any] = {f"{x}{of}": i64 if of else ptr(T) for x in "qkv"
                                for of in ("", "_by_row", "_by_head", "_by_batch")}
    k, g = begun(s, operands, WARP)
    _Wave(k, g, s).run()
    return k.function


@dataclass
class Beside:
    """Something to do beside products: its cycles, and between which of them."""
    do: Do
    cycles: int
    after: float = 0            # products that have been issued
    before: int = 1 << 30       # the product that needs it
    later: int = 0              # products between the one before it in its queue and this


class _Wave:
    """A wave's 32 queries."""

    def __init__(self, k: Kernel, g: SimpleNamespace, s: Sizes) -> None:
        self.k, self.g, self.s, self.SCORE, self.VALUE = k, g, s, s.SCORE, s.VALUE
        self.t = k.thread[0]
        self.lane, self.wave = self.t % LANES, k.uniform(k.opaque(self.t // LANES))
        self.row, self.group = self.lane % ROWS, self.lane // ROWS
        self.keys, self.values = (Side(k, g, s, name, self.t) for name in "kv")
        self.smem = [k.smem(f"{side.name}_smem", (2*side.SIZE,), i8, align=128) for side in (self.keys, self.values)]
        self.order, self.result, self.finished = Order(k, g, s), Result(k, g, s), Scores(k, g, s)
        self.COLUMNS, self.HEIGHT = s.KEYS // ROWS, -(-s.shape.value_size // ROWS)      # tiles of keys, of V's elements
        self.sums = k.tile(1, self.HEIGHT, self.VALUE.c.type)
        self.exponents = [k.variable(PAIR) for _ in range(s.KEYS // 4)]
        self.of_heads = k.variable(f32, 1.0) if s.EIGHT else None
        self.largest, self.shrink, self.total = k.variable(f32, -math.inf), k.variable(f32, 1.0), k.variable(PAIR)

    def run(self) -> None:
        """All tiles of the workgroup."""
        k, order = self.k, self.order
        with k.loop(order.rounds, unroll=False) as number:
            self._tile(order.work(number))

    # ---- a tile of queries

    def _tile(self, work: Work) -> None:
        k, s = self.k, self.s
        for side in (self.keys, self.values):
            side.begin(work)
        zero, last = k.constant(i32, 0), work.end - 1
        queries = self._queries(work)
        if self.of_heads:
            self.of_heads.set(self._of_heads(work))
        self.keys.load(last, CLAMPED=True)
        self.values.load(last, CLAMPED=True)
        k.barrier()                                             # the tile before has been multiplied
        self._to_lds(self.keys, zero)
        self._to_lds(self.values, zero)
        self._clear()
        with k.when(work.count > 1):
            self.keys.load(last - 1)
            self.values.load(last - 1)
        k.barrier()
        self._round(work, queries, zero, SCORES=True, SUMS=False, MASKED=True)
        self._to_lds(self.keys, k.constant(i32, 1))
        with k.when(work.count > 2):
            self.keys.load(last - 2)
        k.barrier()
        for start, stop, MASKED in stretches(k, s, work):
            with k.loop(stop, start=start, unroll=False) as p:
                self._round(work, queries, p, SCORES=True, SUMS=True, MASKED=MASKED)
                k.barrier()
        self._round(work, queries, work.count, SCORES=False, SUMS=True, MASKED=False)
        both = self.total.get()
        total = both[0] + both[1]
        self.result.store(work, self.wave, self.t, self.sums, self.largest.get(), total + k.lane_xor(total, ROWS),
                          self.factor)

    @property
    def factor(self) -> Value:
        """What scores are multiplied by before they are exponents of 2."""
        return self.of_heads.get() if self.of_heads and not self.s.shape.score else self.g.factor

    def _of_heads(self, work: Work) -> Value:
        """What this head's scores are multiplied by, with the factors of queries and keys; with a score function before
        that."""
        g, heads = self.g, (work.head, work.head // self.g.group)
        q, k = (self.result.factor(x, work, head) for x, head in zip("qk", heads))
        return (g.scale if self.s.shape.score else g.factor)*q*k

    def _clear(self) -> None:
        k = self.k
        for ij in self.sums.registers:
            self.sums[ij] = k.constant(self.VALUE.c.type, 0)
        self.largest.set(k.constant(f32, -math.inf))
        self.total.set(k.constant(PAIR, 0))

    def _queries(self, work: Work) -> Operands:
        """The wave's queries as operands of the first product, in the order of its steps."""
        k, g, s, ATOM = self.k, self.g, self.s, self.SCORE
        i, head, _ = self.result.place(work, self.wave, self.row)
        i = k.max(k.min(i, work.queries - 1), 0)
        if s.shape.packed:
            head = k.min(head, g.heads*g.group - 1)
        at = g.q + (k.cast(head, i64)*g.q_by_head + k.cast(i if work.q0 is None else work.q0 + i, i64)*g.q_by_row)
        if work.q0 is None:
            at = at + k.cast(work.sequence, i64)*g.q_by_batch
        at = at.as_(i8) + k.cast(self.group*16, i64)
        words = [k.load((at + byte).as_(i32), vec(i32, 4)) for byte in range(0, s.shape.size*ATOM.a.bits // 8, 32)]
        bytes = ATOM.b.type.bytes
        if bytes == 32:
            return [k.shuffle(words[at], words[at + 1], range(8)) for at in range(0, len(words), 2)]
        return [k.reinterpret(k.shuffle(word, word, range(at, at + bytes // 4)) if bytes < 16 else word, ATOM.b.type)
                for word in words for at in range(0, 4, bytes // 4)]

    def _place(self, side: int, p: Any) -> Value:
        """Where tile p of keys (0) or values (1) is in LDS."""
        return self.smem[side] + (p & 1)*(self.keys, self.values)[side].SIZE

    def _to_lds(self, side: Side, p: Value) -> None:
        for store in side.stores(self._place(side is self.values, p)):
            store()

    # ---- a round

    def _round(self, work: Work, queries: Operands, p: Value, SCORES: bool, SUMS: bool, MASKED: bool) -> None:
        """Scores of tile p, and the products of tile p - 1 with V."""
        k = self.k
        scores: list[Value] = [k.constant(self.SCORE.c.type, 0)]*self.COLUMNS
        products, reads, powers = list[Do](), list[tuple[int, Do]](), dict[int, Value]()
        beside = list[Beside]()
        if SCORES:
            self._of_scores(queries, self._place(0, p), scores, products, reads)
        first = len(products)
        if SUMS:
            self._shrunk()
            self._of_sums(self._place(1, p + 1), powers, products, reads)
            beside += self._powers(powers, first)
        if SCORES and SUMS:
            stores = [*self.keys.stores(self._place(0, p + 1)), *self.values.stores(self._place(1, p))]
            beside += [Beside(store, FULL) for store in stores]
        maximum = _Maximum(self, work, p, scores, MASKED).steps(first) if SCORES else []
        issue(k, products, reads, maximum, beside)
        if SCORES and SUMS:
            last = work.end - 1
            self.keys.load(k.max(last - (p + 2), work.first))
            self.values.load(k.max(last - (p + 1), work.first))

    def _shrunk(self) -> None:
        """The sums of lanes whose maximum has grown."""
        k, shrink = self.k, self.shrink.get()
        with k.when(shrink != 1.0):
            for row in range(self.HEIGHT):
                self.sums[0, row] = self.sums[0, row]*k.broadcast(shrink, self.VALUE.c.elements)

    def _of_scores(self, queries: Operands, smem: Value, scores: list[Value], products: list[Do],
                   reads: list[tuple[int, Do]]) -> None:
        k, ATOM = self.k, self.SCORE
        READS = self.keys.parts[0].READS

        def multiply(operands: Operands, e: int, column: int, step: int) -> None:
            left = k.reinterpret(operands[e], ATOM.a.type)
            (scores[column],) = k.mma(ATOM, [left], [queries[step]], [scores[column]])
        all_reads = self.keys.reads(smem, self.COLUMNS, 0)
        for at in range(0, len(all_reads), self.COLUMNS):
            held = [Operands() for _ in range(self.COLUMNS)]
            for column in range(self.COLUMNS):
                reads.append((len(products) + column, partial(_into, held[column], all_reads[at + column])))
            for e in range(READS):
                products += [partial(multiply, held[column], e, column, at // self.COLUMNS*READS + e)
                             for column in range(self.COLUMNS)]

    def _of_sums(self, smem: Value, powers: dict[int, Value], products: list[Do], reads: list[tuple[int, Do]]) -> None:
        k, ATOM = self.k, self.VALUE
        READS = self.values.parts[0].READS

        def multiply(operands: Operands, e: int, row: int, step: int) -> None:
            words = ATOM.b.type.bytes // 4
            parts = [powers[step*words + x] for x in range(words)]
            right = k.reinterpret(k.pack(*parts) if words > 1 else parts[0], ATOM.b.type)
            (self.sums[0, row],) = k.mma(ATOM, [k.reinterpret(operands[e], ATOM.a.type)], [right], [self.sums[0, row]])
        all_reads = self.values.reads(smem, 0, self.s.KEYS // ATOM.k)
        for at in range(0, len(all_reads), self.HEIGHT):
            held = [Operands() for _ in range(self.HEIGHT)]
            for row in range(self.HEIGHT):
                reads.append((len(products) + row, partial(_into, held[row], all_reads[at + row])))
            for e in range(READS):
                products += [partial(multiply, held[row], e, row, at // self.HEIGHT*READS + e)
                             for row in range(self.HEIGHT)]

    def _powers(self, powers: dict[int, Value], first: int) -> list[Beside]:
        """Powers, in words of two, each before the product that takes it. Those of a pair are added up and rounded
        beside the exponentials of the next one, which take their time."""
        k, pairs, of_word = self.k, [x.get() for x in self.exponents], 2 if self.s.EIGHT else 1
        per_word = self.VALUE.b.type.bytes // 4 * of_word                   # pairs of a product's powers
        total, held = [self.total.get()*k.broadcast(self.shrink.get(), 2)], list[Value]()

        def power(number: int) -> None:
            more = [k.exp2_approximate(pairs[number][e]) for e in range(2)] if number < len(pairs) else []
            if held:
                total[0] = total[0] + k.pack(*held[-2:])
                if number % of_word == 0:
                    powers[number // of_word - 1] = self._rounded(held)
                    held.clear()
            held.extend(more)
            if not more:
                self.total.set(total[0])
        return [Beside(partial(power, number), (2*EXP if number < len(pairs) else 0) + (3*FULL if number else 0),
                       before=first + max(number - 1, 0) // per_word*self.HEIGHT) for number in range(len(pairs) + 1)]

    def _rounded(self, powers: list[Value]) -> Value:
        """Two powers of 2 in a word, or four. Without an instruction for bf16, to nearest with ties up: a power is no
        tie but in one of 2^16 cases."""
        k = self.k
        pair = k.pack(*powers)
        if self.s.EIGHT:
            return k.fp8_four(pair)
        if self.s.shape.format == "f16" or self.s.ARCH != "gfx942":
            return k.round_pair(pair, TYPES[self.s.shape.format])
        x, y = (k.reinterpret(k.bits_as(pair[e], i32) + 0x8000, vec(i16, 2)) for e in range(2))
        return k.reinterpret(k.shuffle(x, y, (1, 3)), i32)


class _Maximum:
    """What becomes of a tile's scores: masked, their maximum, and what they are powers of."""

    def __init__(self, wave: _Wave, work: Work, p: Value, scores: list[Value], MASKED: bool) -> None:
        self.wave, self.work, self.p, self.tiles, self.MASKED, self.k = wave, work, p, scores, MASKED, wave.k
        self.scores: list[Value] = []
        self.most: list[Value] = []
        self.other: Value | None = None

    def steps(self, first: int) -> list[Beside]:
        """In their order, after product `first`."""
        count = self.wave.s.KEYS // 2
        steps = [Beside(self._begin, FULL, first + 1)]
        steps += [Beside(partial(self._larger, e), FULL*2, first + 2) for e in range(2, count, 4)]
        steps += [Beside(self._exchange, FULL*4), Beside(self._shrink, FULL*8, later=EXCHANGE)]
        return steps + [Beside(partial(self._exponent, number), FULL) for number in range(count // 2)]

    def _begin(self) -> None:
        k, wave, s = self.k, self.wave, self.wave.s
        self.scores = [tile[e] for tile in self.tiles for e in range(wave.SCORE.c.elements)]
        if self.MASKED or s.shape.score:
            tile = k.tile(1, len(self.scores), f32, zero=False)
            for e, x in enumerate(self.scores):
                tile[0, e] = x
            i, head, _ = wave.result.place(self.work, wave.wave, wave.row)
            j0 = (self.work.end - 1 - self.p)*s.KEYS + wave.group*s.RUN
            columns = [((0, e), e // s.RUN*2*s.RUN + e % s.RUN) for e in range(len(self.scores))]
            if s.shape.score:
                scale = wave.of_heads.get() if wave.of_heads else wave.g.scale
                wave.finished.change(tile, scale, self.work, i, head, j0, columns)
            if self.MASKED:
                wave.finished.mask(tile, self.work, i, j0, columns)
            self.scores = [tile[0, e] for e in range(len(self.scores))]
        self.most = self.scores[:2]

    def _larger(self, first: int) -> None:
        for e in range(first, min(first + 4, len(self.scores))):
            self.most[e % 2] = self.k.fmax(self.scores[e], self.most[e % 2])

    def _exchange(self) -> None:
        k, (a, b) = self.k, self.most
        self.mine = k.fmax(a, k.fmax(b, self.wave.largest.get()))
        self.other = k.lane_xor(self.mine, ROWS)

    def _shrink(self) -> None:
        k, wave = self.k, self.wave
        assert self.other is not None
        factor, before = wave.factor, wave.largest.get()
        most = k.fmax(self.other, self.mine)
        grown = (most - before)*factor > (0.0 if wave.s.EIGHT else GROWTH)                     # not of -inf and -inf
        most = k.select(grown, most, before)
        self.zero = -(k.select(most == -math.inf, 0.0, most)*factor)        # a row that has seen no key yet
        wave.shrink.set(k.select(grown, k.exp2_approximate(k.fma(before, factor, self.zero)), 1.0))
        wave.largest.set(most)
        if wave.s.EIGHT:
            self.zero = self.zero + RAISED

    def _exponent(self, number: int) -> None:
        k, wave = self.k, self.wave
        pair = k.pack(*self.scores[2*number:2*number + 2])
        wave.exponents[number].set(k.fma(pair, k.broadcast(wave.factor, 2), k.broadcast(self.zero, 2)))


LATENCY = 128           # cycles of what is beside the first product, while its operands come from LDS
AHEAD = 4               # products between a read of LDS and the one that needs it
EXCHANGE = 6            # and between two lanes' exchange and its result's use
GROWTH = 8.0            # powers of 2 by which scores may exceed what is taken for their maximum


def _into(held: Operands, read: Callable[[], Operands]) -> None:
    held.extend(read())


def issue(k: Kernel, products: Sequence[Do], reads: Sequence[tuple[int, Do]], *queues: list[Beside]) -> None:
    """All of it in one order: reads AHEAD of the products that need them; what is beside the products evenly among
    them, each queue in its order, what a product needs before it."""
    waiting = [list(queue) for queue in queues]
    left = sum(instruction.cycles for queue in waiting for instruction in queue)
    reads = list(reads)

    def some(queue: list[Beside], done: float, quota: float) -> float:
        """What is due in a queue, and then as many cycles as the quota has; what is left of it."""
        while queue and queue[0].after <= done and (quota > 0 or any(x.before <= done for x in queue)):
            instruction = queue.pop(0)
            instruction.do()
            if queue and queue[0].later:
                queue[0].after = done + queue[0].later
            k.sched_fence("salu")
            quota -= instruction.cycles
        return quota
    debt = 0.0
    for number, product in enumerate(products):
        while reads and reads[0][0] <= number + AHEAD:
            reads.pop(0)[1]()
            k.sched_fence("salu")
        quota = max(debt + left / (len(products) - number), 0 if number else LATENCY)
        for queue in waiting:
            quota = some(queue, number, quota)
        debt = min(quota, 0)
        left = sum(instruction.cycles for queue in waiting for instruction in queue)
        product()
        k.sched_fence("salu")
    for queue in waiting:
        some(queue, math.inf, math.inf)
