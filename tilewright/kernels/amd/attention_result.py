"""Attention's sums on AMD's GPUs (attention.py) on their way to memory: divided by sums of exponentials, rounded and
stored; or left in a workspace."""
from __future__ import annotations

from tilewright.ir import Tile, Value, i32
from tilewright.kernels.gpu.attention_result import Rows
from tilewright.kernels.gpu.attention_work import Work
from tilewright.plans.amd_attention import LANES, ROWS

RUN = 4                 # elements of a value that are side by side in a lane


class Result(Rows):
    """Each wave has 32 rows, of which two lanes have every other run of four elements."""

    def meet(self) -> None:
        self.k.barrier()

    def store(self, work: Work, wave: Value, t: Value, sums: Tile, largest: Value, total: Value, factor: Value
              ) -> None:
        """The sums of thread t."""
        k, s = self.k, self.s
        row, group = t % ROWS, t % LANES // ROWS
        i, head, inside = self.place(work, wave, row)
        runs = [(column*ROWS + e*2 + group*RUN, [sums[0, column][e + x] for x in range(RUN)])
                for column in range(sums.cols) for e in range(0, 16, RUN) if column*ROWS + e*2 < s.shape.value_size]
        if s.shape.split:
            assert work.part is not None
            values, state = self.places(work, work.part, row)
            with k.when(inside):
                for at, run in runs:
                    k.store(values + at, k.pack(*run))
                with k.when(group == 0):
                    k.store(state, k.pack(largest, total))
            self.combine(work, t)
            return
        inverse = self.finished(work, i, head, inside & (group == 0), largest, total, factor)
        if s.EIGHT:
            inverse = inverse*self.factor("v", work, work.head // self.g.group)
        base = self.address(work, i, head)
        with k.when(inside):
            for at, run in runs:
                scaled = [k.select(total == 0.0, 0.0, x*inverse) for x in run]          # 0 times inf is none
                words = [k.round_pair(k.pack(*scaled[e:e + 2]), self.T) for e in (0, 2)]
                k.store((base + at).as_(i32), k.pack(*words), align=8)
