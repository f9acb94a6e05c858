"""Attention's sums on their way to memory, for kernels of both makers: what they are divided by, where they go, and the
parts of a tile, which the CTA that ends last adds up."""
from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Kernel, Value, bf16, f16, f32, i32, i64, vec
from tilewright.kernels.gpu.attention_work import Sized, Work

LOG2E = math.log2(math.e)
TYPES = {"bf16": bf16, "f16": f16}
TOGETHER, MOST_TOGETHER = 64, 16     # registers of a lane for parts whose loads are under way at once; such parts
RAISED = 8                  # powers of 2, of exponentials of 8 bits: the largest is 256


class Rows:
    """Rows of a team of warps, each a query of a head. One that has all rows of a CTA may have parts of the keys, at
    most as many as a warp has lanes."""

    def __init__(self, k: Kernel, g: SimpleNamespace, s: Sized) -> None:
        self.k, self.g, self.s, self.T = k, g, s, TYPES[s.shape.out]
        if s.shape.split:
            self.shares = k.smem("shares", (s.ROWS, k.warp), f32)
            self.arrived = k.smem("arrived", (1,), i32)

    def meet(self) -> None:
        """All threads of the team."""
        raise NotImplementedError

    def place(self, work: Work, team: Value, row: Value) -> tuple[Value, Value, Value]:
        """A row of a team: the query's index, its head, and whether there is one."""
        packed, i = self.s.shape.packed, work.i0 + team*self.s.EACH
        if not packed:
            return i + row, work.head, i + row < work.queries
        i, head = i + row // packed, row % packed
        return i, work.head*self.g.group + head, (i < work.queries) & (head < self.g.group)

    def factor(self, x: str, work: Work, head: Value) -> Value:
        """What numbers of 8 bits of this head of q, k or v are multiplied by."""
        k, g = self.k, self.g
        at = k.cast(work.sequence, i64)*getattr(g, f"{x}_sequence") + k.cast(head, i64)*getattr(g, f"{x}_head")
        return k.load(getattr(g, f"{x}_factors") + at)

    def finished(self, work: Work, i: Value, head: Value, mine: Value, largest: Value, total: Value, factor: Value
                  ) -> Value:
        """What sums are multiplied by; where it is `mine`, the logarithm of the sum is stored."""
        k, g, shape = self.k, self.g, self.s.shape
        nothing = largest == -math.inf
        raised = 2.0**RAISED if self.s.EIGHT else 1.0
        if shape.sinks:
            top = k.select(nothing, -math.inf, largest*factor)
            sink = k.load(g.sinks + k.min(head, g.heads*g.group - 1 if shape.packed else head)) * LOG2E
            most = k.fmax(top, sink)
            most = k.select(most == -math.inf, 0.0, most)
            shrink = k.exp2_approximate(top - most)
            total = total*shrink + k.exp2_approximate(sink - most)*raised
            inverse = k.select(total == 0.0, 0.0, shrink / total)
            nothing = total == 0.0
            power = most
        else:
            inverse = k.select(total == 0.0, 0.0, 1.0 / total)
            power = largest*factor
        if shape.lse:
            at = g.lse + (k.cast(work.sequence, i64)*g.lse_batch + k.cast(head, i64)*g.lse_head + self.index(work, i))
            k.store(at, k.select(nothing, -math.inf, power*(1 / LOG2E) + k.log(total*(1 / raised))), mask=mine)
        return inverse

    def index(self, work: Work, i: Value) -> Value:
        """A query's place among those of all sequences that lie one after the other."""
        return self.k.cast(i if work.q0 is None else work.q0 + i, i64)

    def address(self, work: Work, i: Value, head: Value) -> Value:
        k, g = self.k, self.g
        at = k.cast(head, i64)*g.out_head + self.index(work, i)*g.out_row
        return g.out + (at if work.q0 is not None else at + k.cast(work.sequence, i64)*g.out_batch)

    def places(self, work: Work, part: Value, row: Value) -> tuple[Value, Value]:
        """Where a row's sums are in the workspace, and its largest score and the sum of its exponentials."""
        assert work.tile is not None
        rows = self.s.plan.rows
        DV = self.s.shape.value_size
        at = self.k.cast(work.tile*self.g.splits + part, i64)*(rows*(DV + 2))
        own = self.g.workspace + at
        return own + row*DV, own + (rows*DV + row*2)

    def combine(self, work: Work, t: Value) -> None:
        """Each warp has rows in turn; its lanes have parts, then columns."""
        k, g, s = self.k, self.g, self.s
        assert work.tile is not None
        k.fence_device()
        self.meet()
        with k.when(t == 0):
            self.arrived[0] = k.atomic_add(g.counters + work.tile, 1, "monotonic")
        self.meet()
        with k.when(self.arrived[0] == g.splits - 1):
            k.fence_device()
            lane, warp = t % k.warp, k.uniform(t // k.warp)
            rows = k.min((work.queries - work.i0)*max(s.shape.packed, 1), s.ROWS)
            with k.loop(rows, start=warp, step=s.plan.warps, unroll=False) as row:
                i, head, inside = self.place(work, k.constant(i32, 0), row)
                with k.when(inside):                        # of all lanes, or of none
                    self._add_up(work, row, lane, i, head)
            with k.when(t == 0):
                g.counters[work.tile] = 0
        self.meet()                                        # the next tile's counter is put in the same place

    def _add_up(self, work: Work, row: Value, lane: Value, i: Value, head: Value) -> None:
        k, g, s = self.k, self.g, self.s
        DV, zero, LANES = s.shape.value_size, k.constant(i32, 0), k.warp
        there = lane < g.splits
        first = self.places(work, zero, row)[0] + lane*2
        begin = self._brought(first, zero)
        state = k.load(self.places(work, k.select(there, lane, 0), row)[1], vec(f32, 2))
        mine, total = k.select(there, state[0], -math.inf), k.select(there, state[1], 0.0)
        most = mine
        for bit in range(LANES.bit_length() - 1):
            most = k.fmax(k.lane_xor(most, 1 << bit), most)
        base = k.select(most == -math.inf, 0.0, most)*g.factor
        share = k.exp2_approximate(mine*g.factor - base)
        share = k.select(mine == -math.inf, 0.0, share)
        total_of_warp = k.warp_sum(total*share)
        inverse = self.finished(work, i, head, lane == 0, most, total_of_warp, g.factor)
        self.shares.view(LANES, 1)[row, lane] = share*inverse
        k.warp_barrier()
        columns = range(0, DV, LANES*2)
        sums = [[k.variable(f32, 0) for _ in range(2)] for _ in columns]
        self._add(sums, begin, row, zero)
        with k.loop(g.splits, start=len(begin), step=len(begin), unroll=False) as part:
            self._add(sums, self._brought(first, part), row, part)
        out = self.address(work, i, head) + lane*2
        for pair, column in zip(sums, columns):
            word = k.round_pair(k.pack(*(x.get() for x in pair)), self.T)
            inner = None if column + 2*LANES <= DV else lane*2 + column < DV
            k.store((out + column).as_(i32), word, align=4, mask=inner)

    def _brought(self, first: Value, part: Value) -> list[list[Value]]:
        """A lane's columns of a power of 2 of parts from this one on, whose loads are all under way before one is
        waited for; 0 of parts that there are not."""
        k, DV, LANES = self.k, self.s.shape.value_size, self.k.warp
        columns, lane, values = range(0, DV, LANES*2), k.thread[0] % LANES, []
        for more in range(min(1 << (TOGETHER // (2*len(columns))).bit_length() - 1, MOST_TOGETHER)):
            there, at = part + more < self.g.splits, first + k.cast(part + more, i64)*(self.s.plan.rows*(DV + 2))
            values.append([k.load(at + x, vec(f32, 2), mask=there if x + 2*LANES <= DV else
                                 there & (lane*2 + x < DV)) for x in columns])
        return values

    def _add(self, sums: list[list[Any]], brought: list[list[Value]], row: Value, part: Value) -> None:
        """Parts from this one on, times their shares, which are 0 of those that there are not."""
        for more, loaded in enumerate(brought):
            factor = self.shares.view(self.k.warp, 1)[row, part + more]
            for pair, x in zip(sums, loaded):
                for e in range(2):
                    pair[e].set(self.k.fma(x[e], factor, pair[e].get()))
