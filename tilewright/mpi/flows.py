"""One panel's way through the ranks of a row or column of the grid: each has it from the one before and hands it on.

    owner      sends to the next rank
    others     receive from the rank before; as soon as all has arrived, they send it on, but for the last one

So each rank sends a panel at most once, whatever the number of ranks, and a row's or column's links carry different
panels at a time. Handing on needs a poll of the rank in the middle: Team.poll, which a thread calls while it computes.
"""

from __future__ import annotations

import time

from tilewright.mpi.report import Report
from tilewright.mpi.team import Team
from tilewright.mpi.transport import Bytes, Request


class Flow:
    """A buffer that comes from `source` (None: it is this rank's own) and goes on to `target` (None: it ends here)."""

    def __init__(self, team: Team, buffer: Bytes, source: int | None, target: int | None, tag: int, name: str,
                 report: Report) -> None:
        self.team, self.buffer, self.source, self.target, self.tag = team, buffer, source, target, tag
        self.name, self.report = name, report
        self.here = source is None
        self._request: Request | None = None
        self._begin = 0.0
        if source is not None:
            self._request = team.transport.receive(buffer, source, tag)

    def advance(self) -> bool:
        """Drive it; True once nothing is left to do."""
        if not self.here:
            if self._request is None or not self._request.done():
                return False
            self.here, self._request = True, None
            self.team.arrived = time.perf_counter()
            self.report.received(self.name, self.source, len(self.buffer), self.team.arrived)
        if self.target is None:
            return True
        if self._request is None:
            self._begin = time.perf_counter()
            self._request = self.team.transport.send(self.buffer, self.target, self.tag)
            self.report.sent(self.name, self.target, len(self.buffer), self._begin)
        return self._request.done()

    def leave(self) -> None:
        """It will not be over: withdraw what can be withdrawn."""
        if self._request is not None and not self.here:
            self._request.cancel()


def ring(owner: int, me: int, count: int) -> tuple[int | None, int | None]:
    """Where place `me` of so many in a ring has the owner's panel from, and whom it gives it to."""
    source = None if me == owner else (me - 1) % count
    following = (me + 1) % count
    return source, None if following == owner else following
