"""Attention of some queries by many keys, whose lanes are keys: no lane is empty however many queries there are.

Tasks and what they leave are those of attention_rows.py, of all rows of a kv head by PART keys:

    for j0: keys of the part, KEYS at a time
      keys -> panels[size, LANES keys], turned
      scores[row, key] = Q panel                 tiles of rows, as even as whole numbers allow; score function, masks
      powers = exp(scores - maximum)             row by row
      O[row] = O[row] exp(old maximum - maximum) + powers V
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from tilewright.ir import Function, Value, i32, i64
from tilewright.kernels.cpu import attention_parts as parts
from tilewright.kernels.cpu.attention_parts import Strip
from tilewright.kernels.cpu.attention_rows import JOB, Part
from tilewright.kernels.cpu.attention_scores import seen
from tilewright.plans.cpu_attention import RowsSpec
from tilewright.targets.cpu import CpuTarget

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
