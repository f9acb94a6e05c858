"""Attention's sums on their way to memory (attention.py): divided by sums of exponentials, rounded and stored; or left
in a workspace."""
from __future__ import annotations

from typing import Any

from tilewright.ir import Kernel, Tile, Value, i32
from tilewright.kernels.gpu.attention_result import Rows
from tilewright.kernels.gpu.attention_work import Work
from tilewright.kernels.nvidia.attention_tiles import SHARING, lines

LANES = 32


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
    full = len(words) // 4 * 4
    for j, word in enumerate(words[full:], full):           # of 16 columns
        k.store((base + (lane % 4 * 2 + j*8)).as_(i32), word, align=4, mask=inside)
    for first in range(0, full, 4):
        at = (base + (lane % 4 * 8 + first*8)).as_(i32)
        k.store(at, k.pack(*transposed(k, words[first:first + 4], lane % 4)), align=16, mask=inside)


class Result(Rows):
    """Made before the roles begin."""

    def meet(self) -> None:
        self.k.barrier() if self.s.plan.mma else self.k.role_barrier()

    def store(self, work: Work, warpgroup: Value, t: Value, sums: Tile, largest: Tile, total: Tile, factor: Value
              ) -> None:
        """The sums of thread t of the warpgroup."""
        k, s = self.k, self.s
        lane = t % LANES
        for line, (below, held) in enumerate(lines(sums)):
            sum_of_row = total[0, line]
            for distance in SHARING:
                sum_of_row = sum_of_row + k.lane_xor(sum_of_row, distance)
            row, mine = t // LANES * (16*sums.rows) + lane // 4 + below, [sums[ij] for ij, _ in held]
            if s.shape.split:
                self._leave(work, warpgroup, row, lane, mine, largest[0, line], sum_of_row)
                continue
            i, head, inside = self.place(work, warpgroup, row)
            inverse = self.finished(work, i, head, inside & (lane % 4 == 0), largest[0, line], sum_of_row, factor)
            if s.EIGHT:
                inverse = inverse*self.factor("v", work, work.head // self.g.group)
            base = self.address(work, i, head)
            store_row(k, base, mine, inverse, self.T, lane, inside)
        if s.shape.split:
            self.combine(work, t)

    def _leave(self, work: Work, warpgroup: Value, row: Value, lane: Value, sums: list[Value], largest: Value,
               total: Value) -> None:
        k = self.k
        assert work.part is not None
        _, _, inside = self.place(work, warpgroup, row)
        values, state = self.places(work, work.part, warpgroup*self.s.ROWS + row)
        with k.when(inside):
            for j in range(len(sums) // 2):
                k.store(values + (lane % 4 * 2 + j*8), k.pack(sums[2*j], sums[2*j + 1]))
            with k.when(lane % 4 == 0):
                k.store(state, k.pack(largest, total))
