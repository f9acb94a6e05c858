"""Attention of few queries by many keys. A task is a *part* of the keys of a kv head, PART of them at the most, with
its queries (ROWS: of the query heads that share the kv head). It leaves, for each row, the maximum of its scores, the
sum of powers and sums of values; the last part to be done of a kv head combines all parts, in their order, and stores
the result.

    for j0: keys of the part, KEYS at a time
      scores[row, KEYS] = sums of lanes of K[j] * Q[row]        a shuffle tree for V keys at a time
      powers = exp(scores - maximum)
      O[row] = O[row] exp(old maximum - maximum) + powers V     sums in registers

emit_rows reads keys and values once, where they are, by vectors along their size. In emit_few lanes are keys, which are
turned into panels[size, LANES keys] first: none is empty, however many queries there are.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from zlib import crc32

from tilewright.formats import FORMATS
from tilewright.ir import Function, Kernel, Value, f64, i8, i32, i64, ptr, vec
from tilewright.ir.elementary import exp_below
from tilewright.kernels.cpu import attention_parts as parts, jobs
from tilewright.kernels.cpu.attention_parts import TYPES, Scores, Strip, seen
from tilewright.kernels.cpu.dot_tiles import in_order
from tilewright.kernels.cpu.pool import job_fields
from tilewright.kernels.narrow import memory_type, narrowed
from tilewright.plans.cpu_attention import RowsSpec, rows_memory
from tilewright.targets.cpu import CpuTarget

JOB = jobs.ATTENTION_ROWS


def emit_rows(target: CpuTarget, *fields: Any) -> Function:
    """rows(job, tid): what thread `tid` of any team does. `fields`: of a RowsSpec."""
    spec = RowsSpec(*fields)
    named = f"attention_rows_{crc32(repr(spec).encode()):08x}"
    task = Part(target, spec, f"{named}_part")
    return parts.claims(named, JOB, task.k.function)


class Part:
    """Records the work of one part of the keys of a kv head."""

    def __init__(self, target: CpuTarget, spec: RowsSpec, name: str) -> None:
        self.spec, self.T, self.M = spec, TYPES[spec.WORD], memory_type(spec.KV)
        self.V = target.lanes(self.T.bytes)
        self.VT, self.KEYS = vec(self.T, self.V), spec.KEYS
        self.W, self.WV = (-(-x // self.V) * self.V for x in (spec.SIZE, spec.VALUE_SIZE))
        stages = parts.Stages(target)
        self.of_q, self.of_k = (stages(x, spec.WORD, spec.SIZE) for x in (spec.Q, spec.KV))
        self.of_v = stages(spec.KV, spec.WORD, spec.VALUE_SIZE)
        self.scores = Scores(stages, spec.SCORE, self.T)
        k = self.k = Kernel(name, noalias=False, job=ptr(i8), index=i64, space=ptr(i8))
        job, index, space = k.args
        types = dict.fromkeys(("k_at", "v_at"), self.M) | {"q_at": memory_type(spec.Q), "out_at": memory_type(spec.OUT)}
        g = self.g = job_fields(k, job, JOB, self.T, **types, lse_at=self.T, sinks=self.T, q_scales=self.T,
                                k_scales=self.T, v_scales=self.T, rows=i64, table=i64, partials=self.T)
        self.counters = (job + 8*len(JOB)).as_(i64)
        self.scale = k.cast(k.field(job, jobs.offsets(JOB)["scale"], f64), self.T)
        self.space, self.place, self.part = space.as_(self.T), index // g.parts, index % g.parts
        self.sequence, self.kv_head = self.place // g.kv_heads, self.place % g.kv_heads
        row = g.rows + self.sequence * len(jobs.SEQUENCE)
        self.queries, self.keys = row[1], row[3]
        self.shift = k.select(g.upper != 0, 0, self.keys - self.queries)
        self.rows = k.constant(i64, spec.ROWS) if spec.ROWS else g.heads // g.kv_heads * self.queries
        self.SIZE = 2*self.V + self.WV              # numbers that a row of a part leaves
        self.own = g.partials + index*(self.rows * self.SIZE)
        self.record()

    def record(self) -> None:
        k, g = self.k, self.g
        with k.loop(self.rows) as r:
            self.begin(r)
        low, high = self.ends(k.constant(i64, 0))[0], self.ends(self.queries - 1)[1]
        first = k.max(self.part * self.spec.PART, low // self.KEYS * self.KEYS)
        last = k.min(k.min(self.part*self.spec.PART + self.spec.PART, self.keys), high + 1)
        with k.loop(last, first, self.KEYS) as j0:
            self.block(j0, k.min(last - j0, self.KEYS))
        with k.when(k.atomic_add(self.counters + self.place, 1, "acq_rel") == g.parts - 1):
            with k.loop(self.rows) as r:
                self.combine(r)

    def begin(self, r: Value) -> None:
        """A row's query, as words, and its state, in which nothing was seen."""
        k, g, V = self.k, self.g, self.V
        head, query = self.head_and_query(r)
        source = g.q_at + (self.sequence*g.q_s + head*g.q_h + query*g.q_i)
        k.call(self.of_q, source, g.q_d, k.constant(i64, self.spec.SIZE), self.memory("q") + r*self.W)
        at = self.own + r*self.SIZE
        k.store(at, k.constant(self.VT, -math.inf), self.T.bytes)
        for c in range(V, self.SIZE, V):
            k.store(at + c, k.constant(self.VT, 0), self.T.bytes)

    def memory(self, name: str) -> Value:
        """This thread's, by what it has."""
        sizes = rows_memory(self.spec, self.rows, self.V)
        before = [*sizes.values()][:[*sizes].index(name)]
        return self.space + sum(before, start=self.k.constant(i64, 0))

    def head_and_query(self, r: int | Value) -> tuple[Value, Value]:
        row = self.k._value(r, i64)
        return self.kv_head*(self.g.heads // self.g.kv_heads) + row // self.queries, row % self.queries

    def ends(self, query: Value) -> tuple[Value, Value]:
        """The first and the last key that a query sees."""
        k, g, i = self.k, self.g, query + self.shift
        return k.min(k.max(i - g.before, 0), self.keys), k.max(k.min(i + g.after, self.keys - 1), -1)

    def row_at(self, name: str, j: Value) -> Value:
        """Where the numbers of a key or a value are."""
        k, g = self.k, self.g
        sequence, line = k.variable(i64, self.sequence), k.variable(i64, j)
        with k.when(g.page != 0):
            sequence.set(g.table[self.sequence*g.table_s + j // g.page])
            line.set(j % g.page)
        step_s, step_h, step_j = (getattr(g, f"{name}_{x}") for x in "shj")
        return getattr(g, f"{name}_at") + (sequence.get()*step_s + self.kv_head*step_h + line.get()*step_j)

    def block(self, j0: Value, n: Value) -> None:
        k, g, spec = self.k, self.g, self.spec
        if spec.DIRECT:
            key, value, steps = self.row_at("k", j0), self.row_at("v", j0), (g.k_j, g.v_j)
        else:
            key, value = self.memory("keys"), self.memory("values")
            steps = (k.constant(i64, self.W), k.constant(i64, self.WV))
            with k.loop(n) as j:
                k.call(self.of_k, self.row_at("k", j0 + j), g.k_d, k.constant(i64, spec.SIZE), key + j*self.W)
                k.call(self.of_v, self.row_at("v", j0 + j), g.v_d, k.constant(i64, spec.VALUE_SIZE),
                       value + j*self.WV)
        for r in range(spec.ROWS):
            self.scored(r, j0, n, key, steps[0])
        rows = max(min(24 // (self.WV // self.V), spec.ROWS), 1)
        for begin in range(0, spec.ROWS, rows):
            self.added(range(begin, min(begin + rows, spec.ROWS)), n, value, steps[1])

    def vectors(self, at: Value, size: int, width: int) -> list[Value]:
        """The numbers of a row as vectors; what is beyond them is 0."""
        k, V, values = self.k, self.V, []
        for c in range(0, width, V):
            left = size - c
            mask = None if left >= V or not self.spec.DIRECT else k.lanes_below(k.opaque(k.constant(i64, left)), V)
            values.append(k.load(at + c, self.VT, self.T.bytes, mask))
        return values

    def scored(self, r: int, j0: Value, n: Value, key: Value, step: Value) -> None:
        """Powers of a row's scores of a block in place of these, and its maximum, sum and values by the new maximum."""
        k, V, spec, state = self.k, self.V, self.spec, self.own + r*self.SIZE
        scores = self.memory("scores") + r*self.KEYS
        head, query = self.head_and_query(r)
        low, high = self.ends(query)
        own = self.memory("q") + r*self.W
        scale = self.scale_of(head)
        largest = k.tile(1, 1, self.VT, zero=False)
        largest[0, 0] = k.load(state, self.VT, self.T.bytes)
        with k.loop(k.ceil_div(n, V)) as t:
            q = [k.load(own + c, self.VT, self.T.bytes) for c in range(0, self.W, V)]
            dots = []
            for e in range(V):
                row = key + k.min(t*V + e, n - 1)*step
                x = self.vectors(row, spec.SIZE, self.W)
                total = x[0] * q[0]
                for c in range(1, len(q)):
                    total = k.fma(x[c], q[c], total)
                dots.append(total)
            y, = in_order(k, dots, 16 // self.T.bytes)
            y = y * k.broadcast(scale, V)
            first = j0 + t*V
            if self.scores.expression:
                j = k.pack(*(k.cast(first + e, i32) for e in range(V)))
                i, of = (k.broadcast(k.cast(x, i32), V) for x in (query + self.shift, head))
                y, = self.scores.changed(k, y, i, j, of)
            y = k.select(k.lanes_below(k.max(k.min(high + 1 - first, V), 0), V), y, -math.inf)
            if spec.MASKED:
                y = k.select(k.lanes_below(k.max(k.min(low - first, V), 0), V), k.constant(self.VT, -math.inf), y)
            k.store(scores + t*V, y, self.T.bytes)
            largest[0, 0] = k.max(largest[0, 0], y)
        self.powers(state, scores, largest[0, 0], k.ceil_div(n, V))

    def scale_of(self, head: Value) -> Value:
        """What products of a head are multiplied by."""
        g = self.g
        factors = [g.q_scales[self.sequence*g.heads + head], g.k_scales[self.place]] if self.spec.FACTORS else []
        return math.prod(factors, start=self.scale)

    def powers(self, state: Value, scores: Value, most: Value, count: Value) -> None:
        """So many vectors of a row's scores become powers, and its state goes on; lanes of `most` have the maximum."""
        k, V, size = self.k, self.V, self.V // 2
        while size:
            most = k.max(most, k.shuffle(most, most, [e ^ size for e in range(V)]))
            size //= 2
        base = k.select(most == -math.inf, 0.0, most)
        factor = exp_below(k, k.load(state, self.VT, self.T.bytes) - base)
        k.store(state, most, self.T.bytes)
        sums = k.tile(1, 1, self.VT)
        with k.loop(count) as t:
            p = exp_below(k, k.load(scores + t*V, self.VT, self.T.bytes) - base)
            k.store(scores + t*V, p, self.T.bytes)
            sums[0, 0] = sums[0, 0] + p
        k.store(state + V, k.fma(k.load(state + V, self.VT, self.T.bytes), factor, sums[0, 0]), self.T.bytes)
        for c in range(2*V, self.SIZE, V):
            k.store(state + c, k.load(state + c, self.VT, self.T.bytes) * factor, self.T.bytes)

    def added(self, rows: range, n: Value, value: Value, step: Value) -> None:
        """Sums of values of some rows += powers by values of a block."""
        k, V = self.k, self.V
        acc = k.tile(len(rows), self.WV // V, self.VT, zero=False)
        places = {(i, c): self.own + (r*self.SIZE + (2 + c)*V) for i, r in enumerate(rows) for c in range(acc.cols)}
        for ij, at in places.items():
            acc[ij] = k.load(at, self.VT, self.T.bytes)
        with k.loop(n) as j:
            x = self.vectors(value + j*step, self.spec.VALUE_SIZE, self.WV)
            for i, r in enumerate(rows):
                p = k.broadcast(self.memory("scores")[k.constant(i64, r*self.KEYS) + j], V)
                for c in range(acc.cols):
                    acc[i, c] = k.fma(p, x[c], acc[i, c])
        for ij, at in places.items():
            k.store(at, acc[ij], self.T.bytes)

    def combine(self, r: Value) -> None:
        """The result of a row from its parts, in their order."""
        k, g, V, spec = self.k, self.g, self.V, self.spec
        head, query = self.head_and_query(r)
        first = g.partials + (self.place*g.parts*(self.rows*self.SIZE) + r*self.SIZE)
        step = self.rows * self.SIZE
        start = k.broadcast(g.sinks[head], V) if spec.SINKS else k.constant(self.VT, -math.inf)
        most = k.tile(1, 1, self.VT, zero=False)
        most[0, 0] = start
        with k.loop(g.parts) as part:
            most[0, 0] = k.max(most[0, 0], k.load(first + part*step, self.VT, self.T.bytes))
        base = k.select(most[0, 0] == -math.inf, 0.0, most[0, 0])
        sums, out = k.tile(1, 1, self.T), k.tile(1, self.WV // V, self.VT)
        sums[0, 0] = exp_below(k, start - base)[0] if spec.SINKS else k.constant(self.T, 0.0)
        with k.loop(g.parts) as part:
            at = first + part*step
            factor = exp_below(k, k.load(at, self.VT, self.T.bytes) - base)
            sums[0, 0] = k.fma(k.sum(k.load(at + V, self.VT, self.T.bytes)), factor[0], sums[0, 0])
            for c in range(out.cols):
                out[0, c] = k.fma(k.load(at + (2 + c)*V, self.VT, self.T.bytes), factor, out[0, c])
        total = sums[0, 0]
        inverse = k.select(total == 0.0, 0.0, 1.0 / total)
        if spec.FACTORS:
            inverse = inverse * g.v_scales[self.place]
        to, M = g.out_at + (self.sequence*g.out_s + head*g.out_h + query*g.out_i), memory_type(spec.OUT)
        for c in range(out.cols):
            left = spec.VALUE_SIZE - c*V
            mask = None if left >= V else k.lanes_below(k.opaque(k.constant(i64, left)), V)
            y = out[0, c] * k.broadcast(inverse, V)
            y = y if FORMATS[spec.OUT].bits >= self.T.bits else narrowed(k, y, spec.OUT)
            k.store(to + c*V, k.cast(y, vec(M, V)), M.bytes, mask)
        with k.when(g.wants_lse != 0):
            k.store(g.lse_at + (self.sequence*g.lse_s + head*g.lse_h + query*g.lse_i),
                    most[0, 0][0] + k.log(k.broadcast(total, V))[0])


ROW = 4                     # numbers of a row: its position, head, and the first and the last key that it sees


def emit_few(target: CpuTarget, *fields: Any) -> Function:
    """few(job, tid): what thread `tid` of any team does. `fields`: those of a RowsSpec."""
    spec = RowsSpec(*fields)
    named = f"attention_few_{crc32(repr(spec).encode()):08x}"
    task = _Few(target, spec, f"{named}_part")
    return parts.claims(named, JOB, task.k.function)


class _Few(Part):
    """Records the work of one part of the keys of a kv head."""

    def __init__(self, target: CpuTarget, spec: RowsSpec, name: str) -> None:
        self.s = Strip.on_target(target, spec.WORD)
        super().__init__(target, spec, name)

    def begin(self, r: Value) -> None:
        super().begin(r)
        k = self.k
        head, query = self.head_and_query(r)
        for number, x in enumerate((query + self.shift, head, *self.ends(query))):
            k.store(self.memory("row").as_(i32) + (r*ROW + number), k.cast(x, i32))
        k.store(self.memory("scale") + r, self.scale_of(head))

    def by_heights(self, record: Callable[[Value, int], None]) -> None:
        """record(first, height) of tiles of rows, none of which is more than a row taller than another."""
        k, MR = self.k, self.s.MR
        count = k.ceil_div(self.rows, MR)
        small, tall = self.rows // count, self.rows % count
        with k.loop(count) as t:
            height, first = small + k.select(t < tall, k.constant(i64, 1), 0), t*small + k.min(t, tall)
            for H in range(1, MR + 1):
                with k.when(height == H):
                    record(first, H)

    def block(self, j0: Value, n: Value) -> None:
        k, g, s, spec, V, W = self.k, self.g, self.s, self.spec, self.V, self.W
        lines, panels, scores, size = (*map(self.memory, ("lines", "keys", "scores")), k.constant(i64, spec.SIZE))
        groups = k.ceil_div(n, s.LANES)
        with k.loop(groups) as t:
            with k.loop(k.constant(i64, s.LANES)) as e:
                k.call(self.of_k, self.row_at("k", j0 + k.min(t*s.LANES + e, n - 1)), g.k_d, size, lines + e*W)
            parts.transposed(k, s, lines, W, W, panels + t*(W*s.LANES))
        value, step = self.row_at("v", j0), g.v_j
        if not spec.DIRECT:
            value, step = self.memory("values"), k.constant(i64, self.WV)
            with k.loop(n) as j:
                k.call(self.of_v, self.row_at("v", j0 + j), g.v_d, k.constant(i64, spec.VALUE_SIZE), value + j*self.WV)
        with k.loop(groups) as t:
            self.by_heights(lambda first, H: self.tile(first, H, panels, scores, j0, t))
        with k.loop(self.rows) as r:
            largest, row, state = k.tile(1, 1, self.VT, zero=False), scores + r*self.KEYS, self.own + r*self.SIZE
            largest[0, 0] = k.load(state, self.VT, self.T.bytes)
            with k.loop(groups * s.NV) as t:
                largest[0, 0] = k.max(largest[0, 0], k.load(row + t*V, self.VT, self.T.bytes))
            self.powers(state, row, largest[0, 0], groups * s.NV)
        pairs, odd = divmod(self.WV // V, s.NV)
        with k.loop(k.constant(i64, pairs)) as c:
            self.by_heights(lambda first, H: self.sums(first, H, s.NV, c * s.LANES, n, value, step))
        if odd:
            at = k.constant(i64, pairs * s.LANES)
            self.by_heights(lambda first, H: self.sums(first, H, 1, at, n, value, step))

    def tile(self, first: Value, H: int, panels: Value, scores: Value, j0: Value, t: Value) -> None:
        """The scores of H rows by group t of a block's keys."""
        k, s, V = self.k, self.s, self.V
        acc, row = k.tile(H, s.NV, self.VT), self.memory("row").as_(i32)
        parts.product(k, s, acc, self.spec.SIZE, self.memory("q") + first*self.W, self.W, 1,
                      panels + t*(self.W*s.LANES))
        lanes = k.pack(*(k.constant(i32, e) for e in range(V)))
        for v in range(s.NV):
            j = lanes + k.broadcast(k.cast(j0 + t*s.LANES + v*V, i32), V)
            for i in range(H):
                at = first + i
                place, head, low, high = (k.broadcast(row[at*ROW + x], V) for x in range(ROW))
                y = acc[i, v] * k.broadcast(self.memory("scale")[at], V)
                y, = self.scores.changed(k, y, place, j, head)
                y = seen(k, y, j, low if self.spec.MASKED else None, high)
                k.store(scores + (at*self.KEYS + t*s.LANES + v*V), y, self.T.bytes)

    def sums(self, first: Value, H: int, columns: int, c: Value, n: Value, value: Value, step: Value) -> None:
        """Sums of values of H rows, from element c on, += powers by values of a block."""
        k, V = self.k, self.V
        acc = k.tile(H, columns, self.VT, zero=False)
        places = {(i, v): self.own + ((first + i)*self.SIZE + (2 + v)*V + c) for i, v in acc.registers}
        for iv, at in places.items():
            acc[iv] = k.load(at, self.VT, self.T.bytes)
        parts.product(k, self.s, acc, n, self.memory("scores") + first*self.KEYS, self.KEYS, 1, value + c, step)
        for iv, at in places.items():
            k.store(at, acc[iv], self.T.bytes)
