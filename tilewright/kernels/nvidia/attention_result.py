"""Attention's sums on their way to memory (attention.py): divided by sums of exponentials, rounded and stored; or left
in a workspace, where the CTA that ends last adds up the parts of a tile."""
from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Kernel, Tile, Value, bf16, f16, f32, i32, i64, vec
from tilewright.kernels.nvidia.attention_tiles import SHARING, Sizes, Work, lines

LOG2E = math.log2(math.e)
TYPES = {"bf16": bf16, "f16": f16}
RAISED = 8                  # powers of 2, of exponentials of 8 bits: the largest is 256
LANES = 32                  # the most parts of a tile, too
TOGETHER = 4                # parts whose sums are loaded at once


def transposed(k: Kernel, words: list[Value], lane: Value) -> list[Value]:
    """From word j of lane i of four, word i of lane j: eight neighbours of a row for each, stores of 16 bytes."""
    words = [*words]
    for bit in (1, 2):
        odd = (lane & bit) > 0
        for j in range(4):
            if not j & bit:
                low, high = words[j], words[j | bit]
                other = k.lane_xor(k.select(odd, low, high), bit)
                words[j], words[j | bit] = k.select(odd, other, low), k.select(odd, high, other)
    return words


def store_row(k: Kernel, base: Value, mine: list[Value], factor: Value, T: Any, lane: Value, inside: Value) -> None:
    """A lane's sums of a row of a product by wgmma or mma, times a factor, rounded to 16 bits, to where it begins."""
    words = [k.round_pair(k.pack(mine[2*j]*factor, mine[2*j + 1]*factor), T) for j in range(len(mine) // 2)]
    whole = len(words) // 4 * 4
    for j, word in enumerate(words[whole:], whole):         # of 16 columns
        k.store((base + (lane % 4 * 2 + j*8)).as_(i32), word, align=4, mask=inside)
    for first in range(0, whole, 4):
        at = (base + (lane % 4 * 8 + first*8)).as_(i32)
        k.store(at, k.pack(*transposed(k, words[first:first + 4], lane % 4)), align=16, mask=inside)


class Result:
    """Made before the roles begin."""

    def __init__(self, k: Kernel, g: SimpleNamespace, s: Sizes) -> None:
        self.k, self.g, self.s, self.T = k, g, s, TYPES[s.shape.out]
        if s.shape.split:
            self.shares = k.smem("shares", (s.ROWS, LANES), f32)
            self.arrived = k.smem("arrived", (1,), i32)

    def _meet(self) -> None:
        """All threads of the team."""
        self.k.barrier() if self.s.plan.mma else self.k.role_barrier()

    def place(self, work: Work, warpgroup: Value, row: Value) -> tuple[Value, Value, Value]:
        """A row of a warpgroup: the query's index, its head, and whether there is one."""
        packed, i = self.s.shape.packed, work.i0 + warpgroup*self.s.EACH
        if not packed:
            return i + row, work.head, i + row < work.queries
        i, head = i + row // packed, row % packed
        return i, work.head*self.g.group + head, (i < work.queries) & (head < self.g.group)

    def store(self, work: Work, warpgroup: Value, t: Value, sums: Tile, largest: Tile, total: Tile, factor: Value
              ) -> None:
        """The sums of thread t of the warpgroup."""
        k, s = self.k, self.s
        lane = t % LANES
        for line, (below, held) in enumerate(lines(sums)):
            whole = total[0, line]
            for distance in SHARING:
                whole = whole + k.lane_xor(whole, distance)
            row, mine = t // LANES * (16*sums.rows) + lane // 4 + below, [sums[ij] for ij, _ in held]
            if s.shape.split:
                self._leave(work, warpgroup, row, lane, mine, largest[0, line], whole)
                continue
            i, head, inside = self.place(work, warpgroup, row)
            inverse = self._finished(work, i, head, inside & (lane % 4 == 0), largest[0, line], whole, factor)
            if s.EIGHT:
                inverse = inverse*self.factor("v", work, work.head // self.g.group)
            base = self._row(work, i, head)
            store_row(k, base, mine, inverse, self.T, lane, inside)
        if s.shape.split:
            self._combine(work, t)

    def factor(self, x: str, work: Work, head: Value) -> Value:
        """What numbers of 8 bits of this head of q, k or v are multiplied by."""
        k, g = self.k, self.g
        at = k.cast(work.sequence, i64)*getattr(g, f"{x}_sequence") + k.cast(head, i64)*getattr(g, f"{x}_head")
        return k.load(getattr(g, f"{x}_factors") + at)

    def _finished(self, work: Work, i: Value, head: Value, mine: Value, largest: Value, total: Value, factor: Value
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
            at = g.lse + (k.cast(work.sequence, i64)*g.lse_batch + k.cast(head, i64)*g.lse_head + self._index(work, i))
            k.store(at, k.select(nothing, -math.inf, power*(1 / LOG2E) + k.log(total*(1 / raised))), mask=mine)
        return inverse

    def _index(self, work: Work, i: Value) -> Value:
        """A query's place among those of all sequences that lie one after the other."""
        return self.k.cast(i if work.q0 is None else work.q0 + i, i64)

    def _row(self, work: Work, i: Value, head: Value) -> Value:
        k, g = self.k, self.g
        at = k.cast(head, i64)*g.out_head + self._index(work, i)*g.out_row
        return g.out + (at if work.q0 is not None else at + k.cast(work.sequence, i64)*g.out_batch)

    # ---- parts of a tile

    def _places(self, work: Work, part: Value, row: Value) -> tuple[Value, Value]:
        """Where a row's sums are in the workspace, and its largest score and the sum of its exponentials."""
        assert work.tile is not None
        rows = self.s.plan.rows
        DV = self.s.shape.value_size
        at = self.k.cast(work.tile*self.g.splits + part, i64)*(rows*(DV + 2))
        own = self.g.workspace + at
        return own + row*DV, own + (rows*DV + row*2)

    def _leave(self, work: Work, warpgroup: Value, row: Value, lane: Value, sums: list[Value], largest: Value,
               total: Value) -> None:
        k = self.k
        assert work.part is not None
        _, _, inside = self.place(work, warpgroup, row)
        values, state = self._places(work, work.part, warpgroup*self.s.ROWS + row)
        with k.when(inside):
            for j in range(len(sums) // 2):
                k.store(values + (lane % 4 * 2 + j*8), k.pack(sums[2*j], sums[2*j + 1]))
            with k.when(lane % 4 == 0):
                k.store(state, k.pack(largest, total))

    def _combine(self, work: Work, t: Value) -> None:
        """Each warp has rows in turn; its lanes have parts, then columns."""
        k, g, s = self.k, self.g, self.s
        assert work.tile is not None
        k.fence_device()
        self._meet()
        with k.when(t == 0):
            self.arrived[0] = k.atomic_add(g.counters + work.tile, 1, "monotonic")
        self._meet()
        with k.when(self.arrived[0] == g.splits - 1):
            k.fence_device()
            lane, warp = t % LANES, k.uniform(t // LANES)
            rows = k.min((work.queries - work.i0)*max(s.shape.packed, 1), s.ROWS)
            with k.loop(rows, start=warp, step=s.plan.warps, unroll=False) as row:
                i, head, inside = self.place(work, k.constant(i32, 0), row)
                with k.when(inside):                        # of all lanes, or of none
                    self._add_up(work, row, lane, i, head)
            with k.when(t == 0):
                g.counters[work.tile] = 0
        self._meet()                                        # the next tile's counter is put in the same place

    def _add_up(self, work: Work, row: Value, lane: Value, i: Value, head: Value) -> None:
        k, g, s = self.k, self.g, self.s
        DV, zero = s.shape.value_size, k.constant(i32, 0)
        there = lane < g.splits
        state = k.load(self._places(work, k.select(there, lane, 0), row)[1], vec(f32, 2))
        mine, total = k.select(there, state[0], -math.inf), k.select(there, state[1], 0.0)
        most = mine
        for distance in (1, 2, 4, 8, 16):
            most = k.fmax(k.lane_xor(most, distance), most)
        base = k.select(most == -math.inf, 0.0, most)*g.factor
        share = k.exp2_approximate(mine*g.factor - base)
        share = k.select(mine == -math.inf, 0.0, share)
        whole = k.warp_sum(total*share)
        inverse = self._finished(work, i, head, lane == 0, most, whole, g.factor)
        self.shares.view(LANES, 1)[row, lane] = share*inverse
        k.warp_barrier()
        columns = range(0, DV, LANES*2)
        sums = [[k.variable(f32, 0) for _ in range(2)] for _ in columns]
        first = self._places(work, zero, row)[0] + lane*2
        step = s.plan.rows*(DV + 2)
        with k.loop(g.splits, unroll=False) as part:
            factor = self.shares.view(LANES, 1)[row, part]
            for pair, column in zip(sums, columns):
                at = first + k.cast(part, i64)*step + column
                x = k.load(at, vec(f32, 2), mask=None if column + 64 <= DV else lane*2 + column < DV)
                for e in range(2):
                    pair[e].set(k.fma(x[e], factor, pair[e].get()))
        out = self._row(work, i, head) + lane*2
        for pair, column in zip(sums, columns):
            word = k.round_pair(k.pack(*(x.get() for x in pair)), self.T)
            inner = None if column + 64 <= DV else lane*2 + column < DV
            k.store((out + column).as_(i32), word, align=4, mask=inner)
