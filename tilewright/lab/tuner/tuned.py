"""What `tilewright.tune` finds for a user's kernel: configurations ranked, refused and timed, as one screen."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.lab.tuner.trial import Trial
from tilewright.plans.common import Cost
from tilewright.plans.measured.kernels import KernelRow
from tilewright.text import plural, table


@dataclass(frozen=True)
class Contender:
    """A configuration that can run: what it takes at least, and what was measured of it."""
    trial: Trial
    cost: Cost
    row: KernelRow | None = None
    note: str = ""                  # why it was not timed
    regret: float | None = None     # its time over the best one's, in rounds that both took part in, less 1

    @property
    def configuration(self) -> str:
        return self.trial.configuration


@dataclass(frozen=True)
class Tuned:
    """What `tilewright.tune` found for a kernel. `contenders` come in the order of their bounds."""
    kernel: str
    target: str
    problem: str                                # the class of sizes
    contenders: tuple[Contender, ...]
    refused: dict[str, tuple[str, str]]         # configuration → the stage that found it, and why
    defaults: str
    parse: Callable[[str], dict[str, Any]]
    notes: tuple[str, ...] = ()
    disturbed: bool = False

    @property
    def timed(self) -> bool:
        return any(contender.row for contender in self.contenders)

    @property
    def best(self) -> dict[str, Any]:
        """The configuration to use: the fastest, or where nothing was timed the first in rank."""
        return self.parse(self._best.configuration)

    @property
    def _best(self) -> Contender:
        return next((x for x in self.contenders if x.row and x.row.role == "best"), self.contenders[0])

    @property
    def verdict(self) -> str:
        configuration = self._best.configuration
        if not self.timed:
            return (f"{configuration} takes the least time by the model. Nothing was timed, and nothing is stored: "
                    f"{self.notes[-1] if self.notes else 'the device is not here.'}")
        if self.disturbed:
            return "Other processes disturbed this: nothing is stored. Repeat on an idle machine."
        row, rank = self._best.row, self.contenders.index(self._best) + 1
        assert row is not None
        return (f"{self.kernel} uses {configuration} from now on, number {rank} by the model: {row.ratio:.2f} "
                f"({row.ratio_q1:.2f} to {row.ratio_q3:.2f}) times as fast as before.")

    def record(self) -> dict[str, Any]:
        """The results as plain data, for JSON."""
        return {"kernel": self.kernel, "target": self.target, "problem": self.problem, "best": self.best,
                "timed": self.timed, "disturbed": self.disturbed, "notes": list(self.notes), "verdict": self.verdict,
                "contenders": [{
                    "configuration": x.configuration, "registers": x.trial.registers,
                    "spills": x.trial.spills, "shared": x.trial.shared, "resident": x.trial.launch.resident,
                    "counts": dict(x.trial.launch.counts), "bound_seconds": x.cost.seconds,
                    "parts": dict(x.cost.parts), "seconds": x.row and x.row.seconds,
                    "ratio": x.row and x.row.ratio, "regret": x.regret, "note": x.note}
                    for x in self.contenders],
                "refused": {text: {"by": stage, "why": why} for text, (stage, why) in self.refused.items()}}

    def __str__(self) -> str:
        return self.text()

    def text(self, most: int = 20) -> str:
        """One screen: a line for each of the first, the reasons of those that cannot run, and the verdict."""
        lines = [f"{self.kernel} on {self.target}, {self.problem}: {plural(len(self.contenders), 'configuration')} of "
                 f"{len(self.contenders) + len(self.refused)} can run"]
        rows = [["rank", "configuration", "registers", "shared", "CTAs", "FMAs", "loads", "passes", "sectors",
                 "bound ms", "by", "time ms", "regret", ""]]
        kept = [*self.contenders[:most], *(x for x in self.contenders[most:] if x.row)]
        for x in kept:
            rows.append([str(self.contenders.index(x) + 1), x.configuration, *_cells(x.trial),
                         f"{x.cost.seconds*1e3:.4g}", x.cost.bound,
                         f"{x.row.seconds*1e3:.4g}" if x.row else "",
                         x.note[:40] if x.regret is None else f"{x.regret:.1%}",
                         ("best" if x is self._best else "") + (" default" if x.configuration == self.defaults
                                                                   else "")])
        lines.append(table(rows, (0, *range(2, 10), 11, 12)))
        if len(kept) < len(self.contenders):
            lines.append(f"and {len(self.contenders) - len(kept)} with higher bounds")
        reasons = Counter((stage, why.splitlines()[0]) for stage, why in self.refused.values())
        lines += [f"{count} refused by the {stage}: {why}" for (stage, why), count in reasons.most_common(6)]
        return "\n".join([*lines, *self.notes[:-1 if not self.timed and self.notes else None], self.verdict])


def _cells(t: Trial) -> list[str]:
    """Resources, and counts of instructions and of what they move."""
    n, spills = t.launch.counts, f"+{t.spills}" if t.spills else ""
    counts = (("fma",), ("load", "load shared"), ("passes",), ("sectors loaded", "sectors stored"))
    return [f"{t.registers}{spills}", str(t.shared), str(t.launch.resident),
            *(_short(sum(n.get(kind, 0) for kind in kinds)) for kinds in counts)]


def _short(n: float) -> str:
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= scale:
            return f"{n / scale:.3g}{unit}"
    return f"{n:.3g}"
