"""What the tuner's process is asked to measure, a `Job`, and `Contenders`: the plans of it as calls that take turns."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.lab.measure import measure, quiet
from tilewright.lab.measure.measure import Rules, ratios, spread

if TYPE_CHECKING:
    from tilewright.lab.measure.process import Emit

REFERENCE = "in use"            # a contender: what runs without what is being measured


@dataclass(frozen=True)
class Job:
    problem: Any                # a Gemm, or an Attention
    target: Any                 # a CPU's record, or a GPU's
    threads: int                # 1 for a GPU
    plans: tuple[str, ...]      # the model's first
    time_limit: float
    vendor: bool = False        # compare what wins with another library
    despite_load: bool = False  # by the time of this process, which others do not use, and in more rounds

    def __str__(self) -> str:
        return str(self.problem)

    @property
    def flops(self) -> int:
        return int(self.problem.flops)


class Contenders:
    """Operands, and the calls of plans with them; REFERENCE is the name of matmul's own choice."""
    shares: tuple[float, float]     # of the time limit, after which no more plans are tried, and the final begins
    rules: Rules
    rounds: tuple[int, int, int] = 3, 3, 25     # of a phase before the last; of the last at least, and at most
    track: Callable[[Sequence[measure.Call]], measure.Track] | None = None      # as for measure.interleave

    def tried(self, name: str) -> Sequence[measure.Call]:
        """A plan's calls, one for each set of operands, of which the first has been made."""
        raise NotImplementedError

    def wrong(self) -> str | None:
        """What is wrong with the result of that call: a sentence, or None."""
        raise NotImplementedError

    def compare(self, job: Job, calls: Sequence[measure.Call], emit: Emit) -> None:
        """The clock, and what another library does with these operands, beside these calls of the plan that won."""

    def settle(self) -> None:
        """Before every turn."""

    def watch(self) -> Callable[[], bool]:
        """Whether others disturbed what ran since it was asked last."""
        return lambda: False

    def restore(self) -> None:
        """Undo what `tried` and turns changed in this process: no plan of a contender stays in use."""


class OnProcessor(Contenders):
    """Calls on this processor, whose turns begin when other threads sleep."""
    shares = 0.3, 0.65

    def settle(self) -> None:
        quiet.settle()

    def watch(self) -> Callable[[], bool]:
        return quiet.Watch().disturbed


def beside(by: Contenders, calls: Sequence[measure.Call], name: str, theirs: Sequence[measure.Call],
           emit: Emit) -> None:
    """Let another library of this name take turns with the plan that won."""
    for call, args in theirs:
        call(*args)
    times = measure.interleave({"ours": calls, name: theirs}, dataclasses.replace(by.rules, min_rounds=3, max_rounds=5),
                               settle=by.settle, track=by.track)
    emit("vendor", name=name, ratio=spread(ratios(times[name].seconds, times["ours"].seconds)).median)
