"""Rows of attention's scores in a warp's registers, between the two products: the score function, masks, and the online
softmax; and its powers as rows of the product with V, which the same registers hold.

Scores and sums are accumulators of `mma.sync` or `wgmma`, which have one layout: four lanes share a row, and a lane has
of every eight columns two, of rows lane // 4 and 8 below it. A tile of registers has a row for each sixteen of these.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace

from tilewright.ir import Kernel, Value, f32
from tilewright.kernels.gpu.attention_result import RAISED, TYPES
from tilewright.kernels.gpu.attention_scores import Scores
from tilewright.kernels.gpu.attention_work import Work
from tilewright.kernels.nvidia.attention_result import Result
from tilewright.kernels.nvidia.attention_tiles import SHARING, Sizes, lines


class Rows:
    """Rows of the CTA's part `mine` of a tile of queries, `blocks` times sixteen for each warp; the lane's first one is
    `row`, and its first column of eight is lane % 4 * 2."""

    def __init__(self, k: Kernel, g: SimpleNamespace, s: Sizes, result: Result, mine: Value, t: Value, BLOCKS: int = 1
                 ) -> None:
        self.k, self.g, self.s, self.result, self.mine, self.t = k, g, s, result, mine, t
        lane = t % k.warp
        self.row, self.column = t // k.warp * (16*BLOCKS) + lane // 4, lane % 4 * 2
        self.scores = k.tile(BLOCKS, s.KEYS // 2, f32)
        self.sums = k.tile(BLOCKS, s.shape.value_size // 2, f32)
        self.largest, self.total = k.tile(1, 2*BLOCKS, f32), k.tile(1, 2*BLOCKS, f32)
        # products of 8 bits are added up in other registers: see Sizes.EIGHT
        self.products = k.tile(BLOCKS, s.shape.value_size // 2, f32) if s.EIGHT else self.sums
        self.of_heads = k.variable(f32, 1.0) if s.EIGHT else None
        self.finished = Scores(k, g, s)

    def clear(self, work: Work) -> None:
        """Before a tile's first keys."""
        for line in range(self.largest.cols):
            self.largest[0, line], self.total[0, line] = -math.inf, 0
        for ij in self.sums.registers:
            self.sums[ij] = 0
        if self.of_heads:
            self.of_heads.set(self._of_heads(work))

    @property
    def factor(self) -> Value:
        """What scores are multiplied by."""
        return self.of_heads.get() if self.of_heads and not self.s.shape.score else self.g.factor

    def _of_heads(self, work: Work) -> Value:
        """What scores are multiplied by before their function, or without one before they are powers, with the factors
        of queries and keys of this head."""
        g, heads = self.g, (work.head, work.head // self.g.group)
        q, k = (self.result.factor(x, work, head) for x, head in zip("qk", heads))
        return (g.scale if self.s.shape.score else g.factor)*q*k

    def finish(self, work: Work, p: Value, MASKED: bool) -> None:
        """The score function, of scores of the tile's keys number p, the last ones first; then perhaps `mask`."""
        if self.s.shape.score:
            j0, scale = self._first(work, p), self.of_heads.get() if self.of_heads else self.g.scale
            for below, mine in lines(self.scores):
                i, head, _ = self.result.place(work, self.mine, self.row + below)
                self.finished.change(self.scores, scale, work, i, head, j0, mine)
        if MASKED:
            self.mask(work, p)

    def _first(self, work: Work, p: Value) -> Value:
        """The key of the lane's first column."""
        return (work.end - 1 - p)*self.s.KEYS + self.column

    def mask(self, work: Work, p: Value) -> None:
        """-inf for keys that the tile's queries do not see."""
        j0 = self._first(work, p)
        for below, mine in lines(self.scores):
            i, _, _ = self.result.place(work, self.mine, self.row + below)
            self.finished.mask(self.scores, work, i, j0, mine)

    def softmax(self, between: Callable[[list[Value]], None] | None = None) -> list[Value]:
        """Scores become exp2(score*factor - largest*factor). The factors of what was added up before, for each line.
        `between` is recorded before the rest, once the lane's own maxima are there, which it is given."""
        every = [self._line(line, [ij for ij, _ in held]) for line, (_, held) in enumerate(lines(self.scores))]
        if between:
            between([next(line) for line in every])
        return [[*line][-1] for line in every]

    def _line(self, line: int, mine: list[tuple[int, int]]) -> Iterator[Value]:
        """The lane's own maximum; then `softmax`, and the factor of what was added up before."""
        k, factor = self.k, self.factor
        before = most = self.largest[0, line]
        for x in self._tree([self.scores[ij] for ij in mine]):
            most = k.fmax(x, most)
        yield most
        for distance in SHARING:
            most = k.fmax(k.lane_xor(most, distance), most)
        self.largest[0, line] = most
        zero = k.select(most == -math.inf, 0.0, most)*factor        # a row that has seen no key yet
        shrink = k.exp2_approximate(k.fma(before, factor, -zero))
        zero = zero - RAISED if self.s.EIGHT else zero
        sums: list[Value] = []
        for ij in mine:
            x = k.exp2_approximate(k.fma(self.scores[ij], factor, -zero))
            self.scores[ij] = x
            if len(sums) < 4:
                sums.append(x)
            else:
                at = ij[1] // 2 % 4
                sums[at] = sums[at] + x
        total = self.total[0, line]*shrink
        for x in sums:
            total = total + x
        self.total[0, line] = total
        yield shrink

    def _tree(self, xs: list[Value]) -> list[Value]:
        """Four largest ones of several."""
        level = xs[:4]
        for at, x in enumerate(xs[4:]):
            level[at % 4] = self.k.fmax(level[at % 4], x)
        return level

    def shrink(self, factors: list[Value]) -> None:
        """Sums times the factors of their lines."""
        for factor, (_, mine) in zip(factors, lines(self.sums)):
            for ij, _ in mine:
                self.sums[ij] = self.sums[ij]*factor

    def add_products(self, factors: list[Value]) -> None:
        """Add products of 8 bits to the sums, which are multiplied by the factors of their lines."""
        for factor, (_, mine) in zip(factors, lines(self.sums)):
            for ij, _ in mine:
                self.sums[ij] = self.k.fma(self.sums[ij], factor, self.products[ij])

    def powers(self) -> Iterator[list[Value]]:
        """P of each sixteen rows, as registers of A of an instruction; four for each of its steps of k."""
        k = self.k
        for block in range(self.scores.rows):
            x = [self.scores[block, e] for e in range(self.scores.cols)]
            if not self.s.EIGHT:
                yield [k.round_pair(k.pack(x[e], x[e + 1]), TYPES[self.s.shape.format]) for e in range(0, len(x), 2)]
                continue
            firsts = (e // 4 * 16 + e % 4 // 2 * 8 + e % 2 * 2 for e in range(len(x) // 4))
            yield [k.round_e4m3_4(k.pack(x[e], x[e + 1], x[e + 4], x[e + 5])) for e in firsts]  # attention_values.py
