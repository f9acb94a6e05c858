"""Who is faster, from seconds per call, round by round: who goes on to the final, and whether there is a winner.

Every round gives each contender one turn, so that what disturbs the machine disturbs all of them alike, and what
counts are ratios within a round. `REFERENCE` is matmul as it is without what is being measured.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.measure.measure import Spread, ratios, spread

REFERENCE = "matmul"
FINALISTS = 3                   # beside matmul and the model's plan
HOPELESS = 0.93                 # a ratio to the best below which more rounds would be wasted
MARGIN = 1.01                   # a win of less than 1 % is not worth another plan

Seconds = Mapping[str, Sequence[float]]


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


def finalists(seconds: Seconds, model: str) -> list[str]:
    """Matmul, the model's plan, and the fastest of the others unless they are far behind."""
    found = against(REFERENCE, seconds)
    others = sorted((name for name in seconds if name not in (REFERENCE, model)), key=lambda name: -found[name].median)
    best = max(each.median for each in found.values())
    good = [name for name in others[:FINALISTS] if found[name].median >= HOPELESS * best]
    return [name for name in (REFERENCE, model) if name in seconds] + good


def winner(seconds: Seconds, model: str) -> str | None:
    """The plan that is faster than matmul and than the model's plan, both beyond doubt: by 1 % in the median, and at
    all in three rounds of four. None if there is none.

    In large products matmul runs the model's plan, which so takes part twice: a difference that is noise will not be
    seen against both.
    """
    rivals = [against(rival, seconds) for rival in (REFERENCE, model) if rival in seconds]
    sure = [name for name in seconds if name not in (REFERENCE, model)
            and all(found[name].median >= MARGIN and found[name].q1 > 1 for found in rivals)]
    return max(sure, key=lambda name: rivals[0][name].median, default=None)
