"""An operand whose rows and steps of k lie where two tables say: windows of a convolution, axes without one stride.

Element (i, p) of the matrix is rows[i] + steps[p] elements from its beginning. As many steps of k as a copy takes are
consecutive in memory and begin at a multiple of their size, so that copies are vectors as those of matrices are.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from tilewright.ir import Value, i32, ptr
from tilewright.kernels.nvidia.operand import Pass, SmemOperand


def placed(g: SimpleNamespace, gathered: bool) -> Callable[..., SmemOperand]:
    """The class of an operand, with its tables among the kernel's arguments if it is gathered."""
    return partial(GatheredOperand, ROWS=g.rows, STEPS=g.steps, DEPTH=g.k) if gathered else SmemOperand


class GatheredOperand(SmemOperand):
    """A tile of such an operand: k is contiguous in it, as far as a copy goes."""

    def __init__(self, *given: Any, ROWS: Value, STEPS: Value, DEPTH: Value, **how: Any) -> None:
        """ROWS, STEPS: the tables; DEPTH: steps of k in all."""
        self.offsets_i, self.offsets_p, self.depth = ROWS, STEPS, DEPTH
        super().__init__(*given, **how)

    def _share(self) -> None:
        super()._share()
        if self.rows_end:                               # rows have no distance: a pointer to each
            self.rows_end = False
            self.sources = sorted({x.i for x in self.passes})
            self.passes = [Pass(self.sources.index(x.i), x.p, x.i) for x in self.passes]

    def _point(self, first: Value, limit: Value, k_first: Value) -> None:
        k = self.k
        for offset in self.sources:
            i = k.min(k.cast(first + self.thread_i + offset, limit.type), limit - 1)
            self.pointers.append(k.variable(ptr(self.S), self.gmem + k.load(self.offsets_i + i)))
        self.step = k.variable(i32, k_first)
        self.ahead = {p: k.variable(i32, self._offset(k_first, p)) for p in sorted({x.p for x in self.passes})}

    def _offset(self, step: Value, p: int) -> Value:
        """Where a thread copies from at so many steps of k; of a copy beyond k, which brings nothing, anywhere."""
        return self.k.load(self.offsets_p + self.k.min(step + self.thread_p + p, self.depth - 1))

    def _copies(self, steps: Value | None) -> Iterator[tuple[int, Pass, Value]]:
        """The offsets of the next tile are loaded a tile ahead, so that no copy waits for them."""
        now = {p: offset.get() for p, offset in self.ahead.items()}
        for index, step in enumerate(self.passes):
            yield index, step, self.pointers[step.source].get() + now[step.p]
        moved = self.CTA_K if steps is None else steps if self.then is None else self.then
        self.step.set(self.step.get() + moved)
        for p, offset in self.ahead.items():
            offset.set(self._offset(self.step.get(), p))
