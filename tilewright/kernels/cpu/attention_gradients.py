"""The gradients of attention: powers are computed again from scores and their logarithms of sums, block by block.

    P = exp(score - lse)      dP = dO V^T      dS = P (dP - delta) score'      delta = sum(dO O) - dlse, by row
    dQ = dS K scale           dK = dS^T Q scale           dV = P^T dO

Two kernels, each of which adds up what its lanes own, so that nothing is added twice and no order depends on threads:

    SIDE     lanes       rows that pass by, a block at a time       sums in the strip's state
    queries  queries     keys K, values V                           dQ += K dS
    keys     keys        queries Q, gradients dO                    dK += Q dS, dV += dO P

Both multiply rows by two panels of the strip: rows_1 panel_1 are products of queries and keys, rows_2 panel_2 are dP.
"""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from zlib import crc32

from tilewright.ir import Function, Value, i32, i64, vec
from tilewright.ir.elementary import exp_below
from tilewright.kernels.cpu import attention_parts as parts, jobs
from tilewright.kernels.cpu.attention_parts import Scores, Strip, product, seen
from tilewright.kernels.narrow import memory_type
from tilewright.plans.cpu_attention import Spec, gradient_layout
from tilewright.targets.cpu import CpuTarget

JOB = jobs.ATTENTION_GRADIENTS


def emit_gradients(target: CpuTarget, SIDE: str, *fields: Any) -> Function:
    """gradients(job, tid): what thread `tid` of any team does. `fields`: of a Spec."""
    spec = Spec(*fields)
    named = f"attention_{SIDE}_{crc32(repr(spec).encode()):08x}"
    task = _Task(target, spec, SIDE, f"{named}_task")
    return parts.claims(named, JOB, task.k.function)


class _Task(parts.Task):
    """Records the work of one task: `strips` strips of lanes of a kv head of a sequence."""

    def __init__(self, target: CpuTarget, spec: Spec, SIDE: str, name: str) -> None:
        s, self.by_keys, self.sizes = Strip.on_target(target, spec.WORD), SIDE == "keys", (spec.SIZE, spec.VALUE_SIZE)
        self.INTS = vec(i32, s.V)
        stages = parts.Stages(target)
        self.staged = [stages(spec.Q, spec.WORD, size) for size in self.sizes]
        self.scores = Scores(stages, spec.SCORE, s.T, slope=True)
        super().__init__(spec, s, gradient_layout(spec, target), name, JOB, delta_at=s.T, **dict.fromkeys(
            ("q_at", "k_at", "v_at", "do_at", "g_at", "h_at"), memory_type(spec.Q)))
        self.record()

    def record(self) -> None:
        k = self.k
        self.locate()
        lanes = self.keys if self.by_keys else self.group * self.queries
        with self.strips(lanes) as strips:
            with k.loop(strips) as strip:
                self.begin(strip)
            heads = self.group if self.by_keys else k.constant(i64, 1)
            with k.loop(heads) as h, k.loop(self.queries if self.by_keys else self.keys, step=self.spec.KEYS) as first:
                n = k.min((self.queries if self.by_keys else self.keys) - first, self.spec.KEYS)
                self.head = self.kv_head*self.group + h
                self.stage(first, n)
                with k.loop(strips) as strip:
                    x = self.state(strip)
                    with k.when(self.in_sight(x, first, n)):
                        self.add(x, first, n)
            with k.loop(strips) as strip:
                self.finish(self.state(strip))

    # ---- where things are

    def query_row(self, name: str, head: Value, query: Value) -> Value:
        g = self.g
        return getattr(g, f"{name}_at") + (self.sequence*getattr(g, f"{name}_s") + head*getattr(g, f"{name}_h")
                                           + (self.q_first + query)*getattr(g, f"{name}_i"))

    def key_row(self, name: str, j: Value, step: str = "j") -> Value:
        g = self.g
        return getattr(g, f"{name}_at") + (self.sequence*getattr(g, f"{name}_s") + self.kv_head*getattr(g, f"{name}_h")
                                           + (self.k_first + j)*getattr(g, f"{name}_{step}"))

    def ends(self, i: Value) -> tuple[Value, Value]:
        """The first and the last key that a position sees."""
        k, g = self.k, self.g
        return k.min(k.max(i - g.before, 0), self.keys), k.max(k.min(i + g.after, self.keys - 1), -1)

    def copied(self, source: Value, step: Value, which: int, to: Value) -> None:
        self.k.call(self.staged[which], source, step, self.k.constant(i64, self.sizes[which]), to)

    def begin(self, strip: Value) -> None:
        k, g, s, x = self.k, self.g, self.s, self.state(strip)
        rows = [self.shared(f"lanes_{which}", self.T) for which in (0, 1)]
        low, high = k.variable(i64, jobs.UNBOUNDED * 2), k.variable(i64, -jobs.UNBOUNDED * 2)
        with k.loop(k.constant(i64, s.LANES)) as lane:
            place = k.min(self.first + strip*s.LANES + lane, self.last)
            to = [row + lane*s.words(size) for row, size in zip(rows, self.sizes)]
            if self.by_keys:
                self.copied(self.key_row("k", place), g.k_d, 0, to[0])
                self.copied(self.key_row("v", place), g.v_d, 1, to[1])
                k.store(x.i + lane, k.cast(place, i32))
                first, last = place, place
                targets = self.key_row("g", place, "i"), self.key_row("h", place, "i")
            else:
                query, head = place % self.queries, self.kv_head*self.group + place // self.queries
                self.copied(self.query_row("q", head, query), g.q_d, 0, to[0])
                self.copied(self.query_row("do", head, query), g.do_d, 1, to[1])
                first, last = self.ends(query + self.shift)
                for where, value in ((x.i, query + self.shift), (x.head, head), (x.low, first), (x.high, last)):
                    k.store(where + lane, k.cast(value, i32))
                for where, name in ((x.lse, "lse"), (x.delta, "delta")):
                    at = self.sequence*g.lse_s + head*g.lse_h + (self.q_first + query)*g.lse_i
                    k.store(where + lane, self.finite(getattr(g, f"{name}_at")[at]))
                targets = self.query_row("g", head, query), self.query_row("g", head, query)
                for number in range(len(self.scores.reads)):
                    k.store(x.reads + (lane + number*s.LANES),
                            self.scores.address(g, number, self.sequence, head, query))
            low.set(k.min(low.get(), first))
            high.set(k.max(high.get(), last))
            beyond = self.first + strip*s.LANES + lane > self.last         # its operands are none: results go nowhere
            for where, target, row in zip((x.out_0, x.out_1), targets, rows):
                k.store(where + lane, k.select(beyond, k.address(row), k.address(target)))
        k.store(x.ends, low.get())
        k.store(x.ends + 1, high.get())
        for which, panel in enumerate((x.panel_0, x.panel_1)):
            width = s.words(self.sizes[which])
            parts.transposed(k, s, rows[which], width, width, panel)
        for which, sums in enumerate((x.sums_0, x.sums_1)):
            with k.loop(k.constant(i64, s.columns(self.sizes[which]) * s.NV)) as v:
                k.store(sums + v*s.V, k.constant(self.VT, 0), self.T.bytes * s.V)

    def finite(self, lse: Value) -> Value:
        """0 in place of -inf, of rows that see nothing: all their scores are -inf."""
        return self.k.select(lse == float("-inf"), 0.0, lse)

    def stage(self, first: Value, n: Value) -> None:
        k, g, s = self.k, self.g, self.s
        rows = [self.shared(f"rows_{which}", self.T) for which in (0, 1)]
        with k.loop(n) as r:
            to = [row + r*s.pitch(size) for row, size in zip(rows, self.sizes)]
            if self.by_keys:
                query = first + r
                self.copied(self.query_row("q", self.head, query), g.q_d, 0, to[0])
                self.copied(self.query_row("do", self.head, query), g.do_d, 1, to[1])
                at = self.sequence*g.lse_s + self.head*g.lse_h + (self.q_first + query)*g.lse_i
                k.store(self.shared("lse", self.T) + r, self.finite(g.lse_at[at]))
                k.store(self.shared("delta", self.T) + r, g.delta_at[at])
                for name, value in zip(("low", "high"), self.ends(query + self.shift)):
                    k.store(self.shared(name, i32) + r, k.cast(value, i32))
            else:
                self.copied(self.key_row("k", first + r), g.k_d, 0, to[0])
                self.copied(self.key_row("v", first + r), g.v_d, 1, to[1])

    def in_sight(self, x: SimpleNamespace, first: Value, n: Value) -> Value:
        """Whether the strip's lanes may meet rows first ... first + n - 1."""
        if not self.by_keys:
            return (x.ends[0] < first + n) & (x.ends[1] >= first)
        least, _ = self.ends(first + self.shift)
        _, most = self.ends(first + n - 1 + self.shift)
        return (least <= x.ends[1]) & (most >= x.ends[0])

    # ---- a block of rows

    def add(self, x: SimpleNamespace, first: Value, n: Value) -> None:
        k, s, MR = self.k, self.s, self.s.MR
        rows = [self.shared(f"rows_{which}", self.T) for which in (0, 1)]
        widths = [s.pitch(size) for size in self.sizes]
        powers, slopes = self.shared("powers", self.T), self.shared("slopes", self.T)
        operands = self.operands(x, first, n)
        half = max(MR // 2, 1)
        with k.loop(k.ceil_div(n, half)) as t:
            tiles = []
            for which, panel in enumerate((x.panel_0, x.panel_1)):
                tile = k.tile(half, s.NV, self.VT)
                product(k, s, tile, self.sizes[which], rows[which] + t*(half*widths[which]), widths[which], 1, panel)
                tiles.append(tile)
            for i in range(half):
                for v in range(s.NV):
                    self.element(x, first, t*half + i, v, tiles[0][i, v], tiles[1][i, v], operands, powers, slopes)
        sums = [(0, x.sums_0, slopes), *([(1, x.sums_1, powers)] if self.by_keys else [])]
        for which, total, factors in sums:
            self.add_up(total, self.sizes[which], n, rows[which], widths[which], factors)

    def element(self, x: SimpleNamespace, first: Value, row: Value, v: int, y: Value, dp: Value,
                operands: list[Value], powers: Value, slopes: Value) -> None:
        k, s = self.k, self.s

        def lanes(where: Value, type: Any) -> Value:
            return k.load(where + v*s.V, type)

        def spread(name: str, type: Any) -> Value:
            return k.broadcast(self.shared(name, type)[row], s.V)
        if self.by_keys:
            j, low, high = lanes(x.i, self.INTS), spread("low", i32), spread("high", i32)
            lse, delta = spread("lse", self.T), spread("delta", self.T)
            i = k.broadcast(k.cast(first + row + self.shift, i32), s.V)
            head = k.broadcast(k.cast(self.head, i32), s.V)
        else:
            j, low, high = k.broadcast(k.cast(first + row, i32), s.V), lanes(x.low, self.INTS), lanes(x.high, self.INTS)
            lse, delta = lanes(x.lse, self.VT), lanes(x.delta, self.VT)
            i, head = lanes(x.i, self.INTS), lanes(x.head, self.INTS)
        y = y * k.broadcast(self.scale, s.V)
        y, *slope = self.scores.changed(k, y, i, j, head, self.scores.numbers(k, s, operands, row, v))
        below = seen(k, y, j, low, high) - lse
        p = exp_below(k, k.select(below > 0.0, 0.0, below))
        ds = p * (dp - delta)
        for factor in slope:
            ds = ds * factor
        ds = k.select(p == 0.0, 0.0, ds * k.broadcast(self.scale, s.V))
        k.store(powers + (row*s.LANES + v*s.V), p, self.T.bytes * s.V)
        k.store(slopes + (row*s.LANES + v*s.V), ds, self.T.bytes * s.V)

    def operands(self, x: SimpleNamespace, first: Value, n: Value) -> list[Value]:
        """The score function's operands beside a block, [rows, lanes]."""
        k, s, values = self.k, self.s, list[Value]()

        def step(number: int) -> Value:
            return self.g.reads[number*len(jobs.READ) + 4]
        if not self.by_keys:
            return self.scores.operands(k, s, x.reads, step, first, n, self.shared, self.at.pitch)
        for number, (read, stage) in enumerate(zip(self.scores.reads, self.scores.staged)):
            M, tile = memory_type(read.format), self.shared(f"read{number}", self.scores.type(read))
            j = k.cast(x.i[k.constant(i64, 0)], i64)
            count = k.min(self.keys - j, s.LANES)
            with k.loop(n) as r:
                line = k.pointer(self.scores.address(self.g, number, self.sequence, self.head, first + r), M)
                k.call(stage, line + j*step(number), step(number), count, tile + r*s.LANES)
            values.append(tile)
        return values

    def finish(self, x: SimpleNamespace) -> None:
        """Sums are stored, transposed, as rows of the gradients."""
        for which, (sums, out) in enumerate(((x.sums_0, x.out_0), (x.sums_1, x.out_1))[:1 + self.by_keys]):
            for v in range(self.s.NV):
                self.store_rows(v, sums, self.sizes[which], out, self.spec.Q)
