"""Attention by strips of queries: scores stay in L1, and are never in memory as a matrix.

    task: queries of all heads that share a kv head, `strips` strips of them        claimed by threads
      Q of each strip: transposed, [size, lanes]
      for jb: keys, KEYS at a time
        K, V -> blocks of words in L2
        for strip:
          scores[KEYS, lanes] = K Q              tiles of MR keys; scale, score function, mask, running maximum
          powers = exp(scores - maximum)         in place; sums; bf16: two keys in a word
          O[value_size, lanes] = O exp(old maximum - maximum) + V powers
      out = O / sums, transposed back

A block that a strip does not see is passed over; one that it sees whole has no mask. The order of additions to an
element depends on KEYS alone, not on threads or strips.
"""
from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any
from zlib import crc32

from tilewright.ir import Function, Value, i32, i64, vec
from tilewright.ir.elementary import exp_below
from tilewright.ir.ops.x86 import TileRegisters
from tilewright.kernels.cpu import attention_parts as parts, attention_tiles as by_tiles, jobs
from tilewright.kernels.cpu.attention_parts import Scores, Strip, product, seen
from tilewright.kernels.narrow import memory_type
from tilewright.plans.cpu_attention import TILE_KEYS, Layout, Spec
from tilewright.targets.cpu import CpuTarget


def emit_attention(target: CpuTarget, *fields: Any) -> Function:
    """attention(job, tid): what thread `tid` of any team does; one alone does all tasks. `fields`: of a Spec."""
    spec = Spec(*fields)
    named = f"attention_{crc32(repr(spec).encode()):08x}"
    task = _Task(target, spec, f"{named}_task")
    return parts.claims(named, jobs.ATTENTION, task.k.function)


class _Task(parts.Task):
    """Records attention_task(job, index, space)."""

    def __init__(self, target: CpuTarget, spec: Spec, name: str) -> None:
        s, types = Strip.on_target(target, spec.WORD, spec.NV), {
            "q_at": spec.Q, "k_at": spec.KV, "v_at": spec.KV, "out_at": spec.OUT}
        stages = parts.Stages(target)
        self.of_q, self.of_k = (stages(x, spec.WORD, spec.SIZE) for x in (spec.Q, spec.KV))
        self.of_v = stages(spec.KV, spec.WORD, spec.VALUE_SIZE)
        self.pair = parts.emit_pair(target) if s.PARTS == 2 else None
        self.scores = Scores(stages, spec.SCORE, s.T)
        super().__init__(spec, s, Layout.on_target(spec, target), name, jobs.ATTENTION, table=i64, **dict.fromkeys(
            ("sinks", "q_scales", "k_scales", "v_scales"), s.T), **{x: memory_type(y) for x, y in types.items()})
        self.tiles = TileRegisters(self.k) if spec.WORD == "tiles" else None
        if self.tiles:
            self.tiles.configure()
        self.record()
        if self.tiles:
            self.tiles.release()

    def record(self) -> None:
        k = self.k
        self.locate()
        with self.strips(self.group * self.queries) as strips:
            self.low, self.high = k.variable(i64, jobs.UNBOUNDED), k.variable(i64, -jobs.UNBOUNDED)
            with k.loop(strips) as strip:
                self.begin(strip)
            low, end = k.constant(i64, 0), self.keys
            if self.spec.MASKED:
                low = k.max(self.low.get(), 0) // self.spec.KEYS * self.spec.KEYS
                end = k.min(self.high.get() + 1, self.keys)
            with k.loop(end, low, self.spec.KEYS) as jb:
                n = k.min(end - jb, self.spec.KEYS)
                self.stage(jb, n)
                with k.loop(strips) as strip:
                    self.add(self.state(strip), jb, n)
            with k.loop(strips) as strip:
                self.finish(self.state(strip))

    # ---- the start of a strip

    def begin(self, strip: Value) -> None:
        k, g, s, x = self.k, self.g, self.s, self.state(strip)
        rows = self.shared("rows", s.E)
        least, most = k.variable(i64, jobs.UNBOUNDED * 2), k.variable(i64, -jobs.UNBOUNDED * 2)
        with k.loop(k.constant(i64, s.LANES)) as lane:
            row = k.min(self.first + strip*s.LANES + lane, self.last)
            query = row % self.queries
            head = self.kv_head * self.group + row // self.queries
            i = query + self.shift
            source = g.q_at + (self.sequence*g.q_s + head*g.q_h + (self.q_first + query)*g.q_i)
            size, width = k.constant(i64, self.spec.SIZE), s.words(self.spec.SIZE)
            k.call(self.of_q, source, g.q_d, size, rows + lane*width)
            high = k.max(k.min(i + g.after, self.keys - 1), -1)
            low = k.min(k.max(i - g.before, 0), self.keys)
            least.set(k.min(least.get(), high))
            most.set(k.max(most.get(), low))
            self.high.set(k.max(self.high.get(), high))
            self.low.set(k.min(self.low.get(), low))
            for where, value in ((x.i, i), (x.head, head), (x.low, low), (x.high, high)):
                k.store(where + lane, k.cast(value, i32))
            scale = self.scale
            if self.spec.FACTORS:
                scale = scale * g.q_scales[self.sequence*g.heads + head] * g.k_scales[self.sequence*g.kv_heads
                                                                                     + self.kv_head]
            k.store(x.scale + lane, scale)
            k.store(x.maximum + lane, g.sinks[head] if self.spec.SINKS else k.constant(self.T, -math.inf))
            k.store(x.sums + lane, k.constant(self.T, 1.0 if self.spec.SINKS else 0.0))
            k.store(x.out + lane, k.address(g.out_at + (self.sequence*g.out_s + head*g.out_h
                                                     + (self.q_first + query)*g.out_i)))
            k.store(x.lse + lane, k.address(g.lse_at + (self.sequence*g.lse_s + head*g.lse_h
                                                        + (self.q_first + query)*g.lse_i)))
            for number in range(len(self.scores.reads)):
                k.store(x.reads + (lane + number*s.LANES), self.scores.address(g, number, self.sequence, head, query))
        k.store(x.ends, least.get())
        k.store(x.ends + 1, most.get())
        parts.transposed(k, s, rows, s.words(self.spec.SIZE), s.words(self.spec.SIZE), x.q)
        with k.loop(k.constant(i64, s.columns(self.spec.VALUE_SIZE) * s.NV)) as v:
            k.store(x.o + v*s.V, k.constant(self.VT, 0), self.T.bytes * s.V)

    # ---- a block of keys and values

    def stage(self, jb: Value, n: Value) -> None:
        k, g, s, spec = self.k, self.g, self.s, self.spec
        keys, values = self.shared("keys", s.E), self.shared("values", s.E)
        size, value_size = k.constant(i64, spec.SIZE), k.constant(i64, spec.VALUE_SIZE)

        def row(j: Value) -> tuple[Value, Value]:
            """Where the numbers of a key and of a value are."""
            first, line = k.variable(i64, self.sequence), k.variable(i64, self.k_first + j)
            with k.when(g.page != 0):
                first.set(g.table[self.sequence*g.table_s + j // g.page])
                line.set(j % g.page)
            return (g.k_at + (first.get()*g.k_s + self.kv_head*g.k_h + line.get()*g.k_j),
                    g.v_at + (first.get()*g.v_s + self.kv_head*g.v_h + line.get()*g.v_j))
        width, pitch = s.pitch(spec.SIZE), s.pitch(spec.VALUE_SIZE) * s.PARTS

        def staged(j: Value, to: Value, period: int = 0) -> None:
            """Words of key j, and of its value at row j of `to`, or of each pair of them, rows after `period` again."""
            key, value = row(jb + j)
            k.call(self.of_k, key, g.k_d, size, keys + j*width)
            if self.pair is None:
                k.call(self.of_v, value, g.v_d, value_size, to + j*pitch)
                return
            lines, pair = self.shared("lines", s.E), j // 2 % period if period else j // 2
            k.call(self.of_v, value, g.v_d, value_size, lines + j % 2 * pitch)
            with k.when((j % 2 == 0) & (j == n - 1)), k.loop(k.constant(i64, pitch)) as e:
                k.store(lines + (pitch + e), k.constant(i32, 0))
            with k.when((j % 2 == 1) | (j == n - 1)):
                k.call(self.pair, lines, lines + pitch, value_size, to + pair*pitch)
        if self.tiles:
            by_tiles.turned(k, s, n, pitch, s.columns(spec.VALUE_SIZE), self.shared("turned", s.E), values,
                            lambda j, to: staged(j, to, TILE_KEYS // 2))
            return
        with k.loop(n) as j:
            staged(j, values)

    # ---- scores, powers and sums of one strip

    def add(self, x: SimpleNamespace, jb: Value, n: Value) -> None:
        k, s = self.k, self.s
        if not self.spec.MASKED:
            self.add_seen(x, jb, n)
            return
        in_sight = k.variable(i64, 0)       # a strip whose rows see none of these keys is passed over
        with k.loop(k.constant(i64, s.LANES)) as lane:
            meets = (k.cast(x.low[lane], i64) < jb + n) & (k.cast(x.high[lane], i64) >= jb)
            in_sight.set(in_sight.get() + k.select(meets, k.constant(i64, 1), 0))
        with k.when(in_sight.get() > 0):
            self.add_seen(x, jb, n)

    def add_seen(self, x: SimpleNamespace, jb: Value, n: Value) -> None:
        k, s = self.k, self.s
        scores, exp = self.shared("scores", self.T), partial(exp_below, k)
        operands = self.scores.operands(k, s, x.reads, lambda number: self.g.reads[number*len(jobs.READ) + 4], jb, n,
                                        self.shared, self.at.pitch)
        lanes = [v*s.V for v in range(s.NV)]
        all_seen = (jb + n - 1 <= x.ends[0]) & (jb >= x.ends[1])
        keys, MR, width = self.shared("keys", s.E), s.MR, s.pitch(self.spec.SIZE)
        largest = k.tile(1, s.NV, self.VT, zero=False)
        for v in range(s.NV):
            largest[0, v] = k.load(x.maximum + lanes[v], self.VT)
        count = n
        if self.tiles:
            count = k.ceil_div(n, TILE_KEYS) * TILE_KEYS
            by_tiles.scores(k, s, self.tiles, count, keys, width, s.words(self.spec.SIZE), x.q, scores)
        with k.loop(k.ceil_div(count, MR)) as t:
            acc = k.tile(MR, s.NV, self.VT)
            if self.tiles:
                for i, v in acc.registers:
                    acc[i, v] = k.load(scores + ((t*MR + i)*s.LANES + lanes[v]), self.VT)
            else:
                product(k, s, acc, -(-self.spec.SIZE // s.PARTS), keys + t*(MR*width), width, 1, x.q)
            with k.when(all_seen & (t*MR + MR <= n)):
                self.scored(x, acc, scores, operands, jb, t, largest, False)
            with k.otherwise():
                self.scored(x, acc, scores, operands, jb, t, largest, True)
        factors = self.shared("factors", self.T)
        for v, at in enumerate(lanes):
            base = k.select(largest[0, v] == -math.inf, 0.0, largest[0, v])
            factor = exp(k.load(x.maximum + at, self.VT) - base)
            k.store(factors + at, factor)
            k.store(x.maximum + at, largest[0, v])
            largest[0, v] = base
        self.powers(x, scores, factors, largest, count)
        if self.tiles:
            with k.loop(k.constant(i64, s.columns(self.spec.VALUE_SIZE))) as c:
                for at in lanes:
                    place = x.o + (c*s.LANES + at)
                    k.store(place, k.load(place, self.VT) * k.load(factors + at, self.VT), self.T.bytes * s.V)
            by_tiles.sums(k, s, self.tiles, count, self.shared("values", s.E), s.columns(self.spec.VALUE_SIZE),
                          scores.as_(s.E), x.o)
            return
        steps = n if s.PARTS == 1 else k.ceil_div(n, s.PARTS)
        values, pitch = self.shared("values", s.E), s.pitch(self.spec.VALUE_SIZE) * s.PARTS
        self.add_up(x.o, self.spec.VALUE_SIZE, steps, values, pitch, scores.as_(s.E), factors)

    def powers(self, x: SimpleNamespace, scores: Value, factors: Value, base: Any, n: Value) -> None:
        """Scores become powers, as words; sums go on."""
        k, s = self.k, self.s
        total = k.tile(1, s.NV, self.VT)

        def power(row: Value, v: int) -> Value:
            p = exp_below(k, k.load(scores + (row*s.LANES + v*s.V), self.VT) - base[0, v])
            total[0, v] = total[0, v] + p
            return p
        if s.PARTS == 1:
            with k.loop(n) as j:
                for v in range(s.NV):
                    k.store(scores + (j*s.LANES + v*s.V), power(j, v), self.T.bytes * s.V)
        else:
            INTS = vec(i32, s.V)
            with k.loop(k.ceil_div(n, 2)) as j:
                for v in range(s.NV):
                    low, high = (k.bits_as(power(j*2 + e, v), INTS) + 0x8000 for e in range(2))
                    word = ((low >> 16) & 0xFFFF) | (high & -0x10000)
                    k.store(scores.as_(i32) + (j*s.LANES + v*s.V), word, 4 * s.V)
        for v in range(s.NV):
            at = x.sums + v*s.V
            k.store(at, k.fma(k.load(at, self.VT), k.load(factors + v*s.V, self.VT), total[0, v]))

    def scored(self, x: SimpleNamespace, acc: Any, scores: Value, operands: list[Value], jb: Value,
               t: Value, largest: Any, masked: bool) -> None:
        """A tile of scaled products as scores, and their maximum."""
        k, s = self.k, self.s
        INTS = vec(i32, s.V)
        for v in range(s.NV):
            scale = k.load(x.scale + v*s.V, self.VT)
            high = k.load(x.high + v*s.V, INTS)
            low = k.load(x.low + v*s.V, INTS) if self.spec.MASKED else None
            for i in range(s.MR):
                row = t*s.MR + i
                y = acc[i, v] * scale
                if masked or self.scores.expression:
                    j = k.broadcast(k.cast(jb + row, i32), s.V)
                    y, = self.scores.changed(k, y, k.load(x.i + v*s.V, INTS), j, k.load(x.head + v*s.V, INTS),
                                             self.scores.numbers(k, s, operands, row, v))
                    y = seen(k, y, j, low, high) if masked else y
                largest[0, v] = k.max(largest[0, v], y)
                k.store(scores + (row*s.LANES + v*s.V), y, self.T.bytes * s.V)

    # ---- the end of a strip

    def finish(self, x: SimpleNamespace) -> None:
        k, g, s = self.k, self.g, self.s
        for v in range(s.NV):
            sums = k.load(x.sums + v*s.V, self.VT)
            inverse = k.select(sums == 0.0, 0.0, 1.0 / sums)
            if self.spec.FACTORS:
                inverse = inverse * k.broadcast(g.v_scales[self.sequence*g.kv_heads + self.kv_head], s.V)
            k.store(x.sums + v*s.V, k.load(x.maximum + v*s.V, self.VT) + k.log(sums))
            self.store_rows(v, x.o, self.spec.VALUE_SIZE, x.out, self.spec.OUT, inverse)
        with k.when(g.wants_lse != 0), k.loop(k.constant(i64, s.LANES)) as lane:
            k.store(k.pointer(x.lse[lane], self.T), x.sums[lane])
