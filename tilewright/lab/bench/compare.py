"""Two result files, cell by cell: what became faster, what slower, and where the noise allows neither to be said.

A cell is a case at a thread count. Where both files have a peer in the same version, tilewright's time is taken in that
peer's, round by round: how fast the machine was that day then cancels. Else times themselves are compared.

The interval of a cell has two parts. Within a run: the spread of its rounds, whose median is known to 1.25 sigma /
sqrt(rounds). Between two runs: pages lie elsewhere, clocks differ. How much is seen from what did not change, the
peers: the median of how their times moved against each other, and never less than LEAST. A cell that other processes
disturbed in either run has no verdict.
"""
from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from textwrap import wrap
from typing import Any

from tilewright.lab.bench.peer import OURS
from tilewright.lab.bench.results import BESIDE, Report
from tilewright.text import plural, table

SURE = 2.58         # standard errors on either side: of a hundred cells that did not change one is called changed
MEAN = 1.96         # of the geometric mean
LEAST = 0.005       # of the noise between two runs, which cannot be seen with one peer
UNKNOWN = 0.015     # of it where there is no peer: what was seen with several
FASTER, SLOWER, SAME, DISTURBED = "faster", "slower", "no difference that the noise allows", "disturbed"
SECONDS = "seconds"


@dataclass(frozen=True)
class Cell:
    """The old time over the new one: above 1 the new one is faster."""
    name: str
    ratio: float
    low: float
    high: float
    beside: str         # the peer in whose time both are taken; "" for times themselves
    rounds: tuple[int, int]
    disturbed: bool

    @property
    def verdict(self) -> str:
        if self.disturbed:
            return DISTURBED
        return FASTER if self.low > 1 else SLOWER if self.high < 1 else SAME


@dataclass(frozen=True)
class Comparison:
    cells: tuple[Cell, ...]
    noise: float                    # between two runs, of one ratio
    seen: bool                      # whether it was measured
    only: tuple[int, int]           # cells that one file has alone
    notes: tuple[str, ...] = ()
    mean: tuple[float, float, float] | None = None       # geometric mean and its interval

    def count(self, verdict: str) -> int:
        return sum(x.verdict == verdict for x in self.cells)

    @property
    def slower(self) -> bool:
        """Whether a cell is slower, or all of them together."""
        return bool(self.count(SLOWER)) or (self.mean is not None and self.mean[2] < 1)

    @property
    def verdict(self) -> str:
        counts = ", ".join(f"{n} {word}" for word in (FASTER, SLOWER, SAME, DISTURBED) if (n := self.count(word)))
        said = f"{plural(len(self.cells), 'cell')}: {counts}."
        if self.mean:
            middle, low, high = self.mean
            word = "faster" if low > 1 else "slower" if high < 1 else SAME
            said += f" Geometric mean {middle:.3f} ({low:.3f} to {high:.3f}): {word}."
        return said

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "cells": [{**asdict(x), "verdict": x.verdict} for x in self.cells],
                "verdict": self.verdict}


@dataclass(frozen=True)
class Timed:
    """A cell of one file: seconds of each side, round by round."""
    seconds: Mapping[str, Sequence[float]]
    disturbed: bool = False


def cells(report: Report) -> dict[str, Timed]:
    """All cells of a report by their names, whether they are results of cases or records of a study."""
    timed: dict[str, Timed] = {}
    several = len({(r.threads, r.isa) for r in report.results}) > 1
    for r in report.results:
        where = f", {plural(r.threads, 'thread')}" + f" {r.isa}" * (r.isa != "native") if several else ""
        samples = {row.name: row.sample.seconds for row in r.rows if row.sample and row.name != BESIDE and not row.m}
        timed[f"{r.case.suite}: {r.case.label}{where}"] = Timed(samples, r.disturbed)
    for part in report.extra.values():
        for x in part if isinstance(part, list) else ():
            if isinstance(x, dict) and isinstance(x.get(SECONDS), dict):
                about = [str(value) for key, value in x.items() if isinstance(value, str | int | list | tuple)
                         and key not in ("plan", "bytes", "memory", "threads")]
                threads = f", {plural(x['threads'], 'thread')}" if "threads" in x else ""
                timed[" ".join(about) + threads] = Timed(x[SECONDS])
    return timed


def versions(report: Report) -> dict[str, str]:
    return {p["name"]: p["version"] for session in report.sessions for p in session.peers if p["name"] != OURS}


def logs(values: Iterable[float]) -> tuple[float, float]:
    """The median of logarithms, and its standard error by the quartiles."""
    logarithms = [math.log(x) for x in values]
    if len(logarithms) < 3:
        return statistics.median(logarithms), 0.05  # so few that nothing is known of their spread
    q1, _, q3 = statistics.quantiles(logarithms, n=4, method="inclusive")
    return statistics.median(logarithms), 1.253 * (q3 - q1) / 1.349 / math.sqrt(len(logarithms))


def compare(old: Report, new: Report, absolute: bool = False) -> Comparison:
    """ValueError where the files have no cell in common."""
    before, after, same = cells(old), cells(new), set()
    if not absolute:
        theirs, ours = versions(old), versions(new)
        same = {name for name in theirs if theirs[name] == ours.get(name)}
    shared = [name for name in before if name in after and OURS in before[name].seconds
              and OURS in after[name].seconds]
    if not shared:
        raise ValueError("the two files have no cell in common: nothing can be compared")
    drifts = []
    for name in shared:
        there = sorted(same & before[name].seconds.keys() & after[name].seconds.keys())
        moved = [logs(before[name].seconds[x])[0] - logs(after[name].seconds[x])[0] for x in there]
        drifts += [abs(x - y) for x, y in combinations(moved, 2)]
    noise = max(LEAST, 1.48 * statistics.median(drifts)) if drifts else UNKNOWN
    compared = [_cell(name, before[name], after[name], same, noise) for name in shared]
    counted = [math.log(x.ratio) for x in compared if not x.disturbed]
    mean = None
    if len(counted) > 1:
        middle = statistics.mean(counted)
        error = MEAN * math.hypot(statistics.stdev(counted) / math.sqrt(len(counted)), LEAST)
        mean = math.exp(middle), math.exp(middle - error), math.exp(middle + error)
    only = len(before.keys() - after.keys()), len(after.keys() - before.keys())
    return Comparison(tuple(compared), noise, bool(drifts), only, tuple(_notes(old, new, compared, absolute)), mean)


def _cell(name: str, old: Timed, new: Timed, same: set[str], noise: float) -> Cell:
    """By the fastest peer that both have, if there is one."""
    there = same & old.seconds.keys() & new.seconds.keys()
    rival = min(there, key=lambda x: (statistics.median(old.seconds[x]), x), default="")
    middles, errors = [], [noise]
    for x in (old, new):
        ours = x.seconds[OURS]
        middle, error = logs([a / b for a, b in zip(ours, x.seconds[rival])] if rival else ours)
        middles.append(middle)
        errors.append(error)
    ratio, error = middles[0] - middles[1], SURE * math.hypot(*errors)
    return Cell(name, math.exp(ratio), math.exp(ratio - error), math.exp(ratio + error), rival,
                (len(old.seconds[OURS]), len(new.seconds[OURS])), old.disturbed or new.disturbed)


def _notes(old: Report, new: Report, found: Sequence[Cell], absolute: bool) -> list[str]:
    said = []
    machines = [x.machine.get("gpu", {}).get("name") or x.machine.get("cpu") for x in (old, new)]
    if machines[0] != machines[1]:
        said.append(f"The machines differ, {machines[0]} and {machines[1]}: the ratios are those of machines, too.")
    if not absolute and any(not x.beside for x in found):
        said.append("There is no peer in the same version in both files: times themselves are compared, and how fast "
                    "the machine was on each day counts.")
    return said


# ---- for a terminal

def text(found: Comparison, every: bool, fit: int | None) -> str:
    """A line for each cell that changed, or for every one, those that lost most first; then the verdict."""
    shown = sorted((x for x in found.cells if every or x.verdict in (FASTER, SLOWER)), key=lambda x: x.ratio)
    rows = [["old / new", "interval", "verdict", "beside", "cell"]]
    rows += [[f"{x.ratio:.3f}", f"{x.low:.3f} to {x.high:.3f}", x.verdict.split()[0], x.beside, x.name] for x in shown]
    lines = ["old / new: the old time over the new one, above 1 the new one is faster.",
             f"Noise between two runs: {found.noise:.1%}" + (", seen from peers that did not change." if found.seen else
                                                             ", assumed: no two peers are the same in both files."),
             *found.notes, *(f"{plural(n, 'cell')} in the {which} file alone." for n, which in
                             zip(found.only, ("old", "new")) if n), found.verdict]
    words = [line for x in lines for line in (wrap(x, fit) if fit else [x])]
    return "\n".join([*([table(rows, (0,), fit), ""] if shown else []), *words])
