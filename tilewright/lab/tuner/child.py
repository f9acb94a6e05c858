"""The process that measures one problem's plans, on this CPU (on_cpu.py) or on a GPU (on_gpu.py), or the configurations
of a user's kernel (launches.py), and the rules by which one of them wins; search.py starts it, listens and ends it.

It is given a `Job` (measure/process.py); its events:

    {"event": "trying", "name"}                 about to compile and run this contender for the first time
    {"event": "out", "name", "reason"}          its result was wrong, it raised, or there is no time for it
    {"event": "phase", "names"}                 these contenders now take turns
    {"event": "at_work"}                        about to time a turn
    {"event": "turn", "name", "seconds"}        per call, in one turn that counts
    {"event": "disturbed"}                      other processes disturbed the turns of this phase
    {"event": "vendor", "name", "ratio"}        another library, and its time over that of the plan that won
    {"event": "clock", "hz"}                    of the device meanwhile
    {"event": "done", "certain"}                whether more rounds could choose another plan

Phase by phase the slower half of the plans drops out (successive halving), until a few are left, which take turns until
it is certain which of them wins. Every round gives each contender one turn, so that what disturbs the machine disturbs
all of them alike, and what counts are ratios within a round. `REFERENCE` is matmul, or a user's
kernel, as it is without what is being measured.
"""
from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from tilewright.lab.measure import measure
from tilewright.lab.measure.measure import Spread, ratios, spread
from tilewright.lab.measure.process import Emit, serve
from tilewright.lab.tuner.contenders import REFERENCE, Contenders, Job
from tilewright.plans import asked
from tilewright.runtime.gpu.driver import LibraryError
from tilewright.targets import CpuTarget

FINALISTS = 3                   # beside matmul and the model's plan
SHORTER = 0.25                  # the length of turns of a phase before the last, beside the last's
SURE = 5                        # rounds after which the last phase may end
NOISE = 0.005                   # a ratio is known when its error is no larger: half of what a win must be
HOPELESS = 0.93                 # a ratio to the best below which more rounds would be wasted
MARGIN = 1.01                   # a win of less than 1 % is not worth another plan

Seconds = Mapping[str, Sequence[float]]


def run(job: Any, emit: Emit, clock: measure.Clock = time.perf_counter) -> None:
    """Try every plan of a Job, or every configuration of a launches.KernelJob, once, compare its result, time them all
    in turn, and the best of them for longer."""
    began = clock()
    by = _contenders(job)
    try:
        _compare(job, by, emit, clock, began)
    finally:
        by.restore()


def _compare(job: Any, by: Contenders, emit: Emit, clock: measure.Clock, began: float) -> None:
    (trying, heats), (heat, least, most) = by.shares, by.rounds
    calls: dict[str, Sequence[measure.Call]] = {}
    for name in (REFERENCE, *job.plans):
        if len(calls) > 2 and clock() - began > trying * job.time_limit:
            emit("out", name=name, reason="not measured: the time limit was reached")
            continue
        emit("trying", name=name)
        try:
            made = by.tried(name)
            wrong = by.wrong()
        except Exception as error:
            emit("out", name=name, reason=f"{type(error).__name__}: {error}")
            if isinstance(error, LibraryError):     # which a GPU's driver gives this process at every call from now on
                raise
            continue
        if wrong:
            emit("out", name=name, reason=f"wrong result: {wrong}")
        else:
            calls[name] = made
    if REFERENCE not in calls or len(calls) < 2:
        emit("done", certain=False)
        return

    def settle() -> None:
        emit("at_work")
        by.settle()

    model = job.plans[0]

    def take_turns(names: list[str], until: float, least: int, most: int,
                   shorter: float = 1.0) -> dict[str, list[float]]:
        emit("phase", names=names)
        budget = until * job.time_limit - (clock() - began)
        rules = dataclasses.replace(by.rules, turn_s=shorter * by.rules.turn_s, warm_s=shorter * by.rules.warm_s,
                                    min_rounds=least, max_rounds=most, budget_s=budget)
        samples = measure.interleave(
            {name: calls[name] for name in names}, rules, clock=clock,
            settle=settle, heard=lambda name, s: emit("turn", name=name, seconds=s),
            disturbed=by.watch(), track=by.track, enough=lambda seconds: certain(seconds, model))
        if any(sample.disturbed for sample in samples.values()):
            emit("disturbed")
        return {name: [*sample.seconds] for name, sample in samples.items()}

    left = finalists(take_turns([*calls], heats, 1, heat, SHORTER), model, max(len(calls) // 2, FINALISTS))
    while len(left) > FINALISTS + 2:
        left = finalists(take_turns(left, heats, 1, heat, SHORTER), model, max((len(left) - 2) // 2, FINALISTS))
    by_name = take_turns(left, 1.0, least, most)
    by.compare(job, calls[winner(by_name, model) or (model if model in calls else REFERENCE)], emit)
    emit("done", certain=certain(by_name, model))


# ---- the plans of a job as calls that take turns

def _contenders(job: Any) -> Contenders:
    here = isinstance(job.target, CpuTarget)
    if not isinstance(job, Job):
        from tilewright.lab.tuner import launches
        return launches.OnCpu(job) if here else launches.OnGpu(job)
    if asked.is_attention(job.problem):
        from tilewright.lab.tuner import attention
        return attention.OnCpu(job) if here else attention.OnGpu(job)
    if here:
        from tilewright.lab.tuner.on_cpu import OnCpu
        return OnCpu(job)
    from tilewright.lab.tuner.on_gpu import OnGpu
    return OnGpu(job.problem, job.target)


# ---- who wins

@dataclass
class Phase:
    """Rounds in which the same contenders took part. The last one may be incomplete."""
    names: tuple[str, ...]
    seconds: dict[str, list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self.seconds = {name: [] for name in self.names}

    @property
    def rounds(self) -> int:
        return min(map(len, self.seconds.values()), default=0)

    def complete(self) -> dict[str, list[float]]:
        """Without what the others have no turn to compare with."""
        return {name: turns[:self.rounds] for name, turns in self.seconds.items()}


def against(rival: str, seconds: Seconds) -> dict[str, Spread]:
    """The rival's time over each contender's, within a round: above 1 the contender is faster."""
    return {name: spread(ratios(seconds[rival], turns)) for name, turns in seconds.items()}


def finalists(seconds: Seconds, model: str, most: int = FINALISTS) -> list[str]:
    """Matmul, the model's plan, and the fastest of the others unless they are far behind."""
    found = against(REFERENCE, seconds)
    others = sorted((name for name in seconds if name not in (REFERENCE, model)), key=lambda name: -found[name].median)
    best = max(sample.median for sample in found.values())
    good = [name for name in others[:most] if found[name].median >= HOPELESS * best]
    return [name for name in (REFERENCE, model) if name in seconds] + good


def certain(seconds: Seconds, model: str) -> bool:
    """Whether more rounds could choose no other plan: it is clear which are a win and which of these is the fastest, or
    all that is not clear is known to `NOISE`."""
    rivals = [rival for rival in (REFERENCE, model) if rival in seconds]
    names = [name for name in seconds if name not in rivals]
    if min(map(len, seconds.values()), default=0) < SURE:
        return False
    wins = []
    for name in names:
        low, high, error = min(_interval(ratios(seconds[rival], seconds[name])) for rival in rivals)
        if low < MARGIN <= high and error > NOISE:
            return False
        if high >= MARGIN:
            wins.append((high, low, error))
    wins.sort(reverse=True)
    return len(wins) < 2 or wins[0][1] >= wins[1][0] or max(wins[0][2], wins[1][2]) <= NOISE


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The interval of the median, from and to, and half of that: two standard errors, by the quartiles of a normal
    distribution."""
    median, q1, q3 = spread(values)
    error = 2 * 0.93 * (q3 - q1) / sqrt(len(values))
    return median - error, median + error, error


def winner(seconds: Seconds, model: str) -> str | None:
    """The plan that is faster than matmul and than the model's plan, both beyond doubt: by 1 % in the median, and at
    all in three rounds of four. None if there is none.

    In large products matmul runs the model's plan, which so takes part twice: a difference that is noise will not be
    seen against both.
    """
    rivals = [against(rival, seconds) for rival in (REFERENCE, model) if rival in seconds]
    sure = [name for name in seconds if name not in (REFERENCE, model)
            and all(by_rival[name].median >= MARGIN and by_rival[name].q1 > 1 for by_rival in rivals)]
    return max(sure, key=lambda name: rivals[0][name].median, default=None)


# ---- the process

def main() -> None:
    serve(run)
