"""What is raised on all ranks when one of them cannot go on."""

from __future__ import annotations


class RankError(RuntimeError):
    """Another rank has ended, has been silent for longer than the team's timeout, or has failed in the middle of a
    product. `rank` is its number."""

    def __init__(self, sentence: str, rank: int) -> None:
        super().__init__(sentence)
        self.rank = rank
