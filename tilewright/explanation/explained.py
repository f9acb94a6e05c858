"""What explanations for all targets have in common: their fields, their text by sections, their record."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.plans.common import Cost
from tilewright.plans.measured import store

if TYPE_CHECKING:
    from rich.text import Text

    from tilewright.problem import Gemm

REJECTED = 4            # plans that are shown beside the one that runs
# Where a plan comes from, if it is not the model's choice: plans.measured.store.chosen
ORIGINS = {store.MEASURED: "measured to be the fastest (tilewright tune show)",
           store.NEARBY: "measured to be the fastest for a shape nearby (tilewright tune show)",
           store.PACKED: store.PACKED}


@dataclass(frozen=True)
class Explained:
    """What `explain` found, as data; print it to read it."""
    problem: Gemm
    target: Any
    shape: Any                                  # the problem as the planner sees it
    plan: Any
    origin: str                                 # given, chosen by the model, or measured by the tuner
    violations: tuple[str, ...] = ()            # why it cannot run; then nothing below is known
    cost: Cost | None = None                    # by the model, with the ceilings of this machine if they are known
    considered: int = 0
    rejected: tuple[tuple[Any, float, str], ...] = ()       # plan, by how much it is slower, what takes longer

    def title(self) -> str:
        raise NotImplementedError

    def of_plan(self) -> Iterator[tuple[str, Iterator[str]]]:
        """(heading, lines) that any plan has."""
        raise NotImplementedError

    def of_cost(self, cost: Cost) -> Iterator[tuple[str, Iterator[str]]]:
        """The same of a plan that can run."""
        raise NotImplementedError

    def record(self) -> dict[str, Any]:
        """As plain data, for JSON: the numbers, and the text."""
        cost = self.cost
        return {
            "problem": str(self.problem), "target": self.target.name, "model": self.target.model,
            "plan": str(self.plan), "origin": self.origin, "violations": list(self.violations),
            "predicted_seconds": cost and cost.seconds, "parts": dict(cost.parts) if cost else {},
            "bytes": {level: [{"what": what, "bytes": size, "times": times} for what, size, times, _ in terms]
                      for level, terms in cost.traffic.items()} if cost else {},
            "considered": self.considered,
            "alternatives": [{"plan": str(plan), "slower_by": more, "cause": why} for plan, more, why in self.rejected],
            "text": str(self).splitlines(),
        }

    def __str__(self) -> str:
        return "\n".join(line for line, _ in self.lines())

    def __rich__(self) -> Text:
        from rich.text import Text
        return Text("\n").join(Text(line, "bold" if heading else "") for line, heading in self.lines())

    def lines(self) -> Iterator[tuple[str, bool]]:
        """Each line, and whether it begins a section."""
        yield self.title(), True
        for heading, lines in self.sections():
            yield "", False
            for number, line in enumerate(lines):
                yield f"{'' if number else heading:<12}{line}".rstrip(), number == 0

    def sections(self) -> Iterator[tuple[str, Iterator[str]]]:
        """(heading, lines)."""
        yield from self.of_plan()
        if self.violations:
            yield "cannot run", iter(self.violations)
        elif self.cost:
            yield from self.of_cost(self.cost)

    def alternatives(self) -> Iterator[str]:
        """The plans that were rejected, a line each."""
        width = max((len(str(plan)) for plan, _, _ in self.rejected), default=0)
        for plan, more, why in self.rejected:
            yield f"{plan!s:<{width}}  {more:+7.1%}  {why}".rstrip()


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"
