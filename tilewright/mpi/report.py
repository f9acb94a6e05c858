"""What a product has sent and when, on each rank, and what that comes to on all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

Span = tuple[float, float]


class Event(NamedTuple):
    """From `begin` to `end`, by time.perf_counter, which all processes of a machine share: "product" of a panel, "wait"
    for one, "sent" to and "received" from a rank (whose end is when it was seen)."""

    kind: str
    name: str
    rank: int | None
    begin: float
    end: float
    bytes: int = 0


@dataclass
class Report:
    """Fill it by matmul(..., report=Report()): the bytes and the times of this rank. `summary` is for all ranks.

    panels_sent, panels_received   bytes of panels of a and b, during the product
    moved_sent, moved_received     bytes that brought operands and results to the layout of the product or of the caller
    reduced_sent, reduced_received bytes of sums of layers
    """

    panels_sent: int = 0
    panels_received: int = 0
    moved_sent: int = 0
    moved_received: int = 0
    reduced_sent: int = 0
    reduced_received: int = 0
    events: list[Event] = field(default_factory=list)
    grid: tuple[int, ...] = ()
    bound: float = 0.0

    def sent(self, name: str, to: int, count: int, at: float) -> None:
        self.panels_sent += count
        self.events.append(Event("sent", name, to, at, at, count))

    def received(self, name: str, source: int | None, count: int, at: float) -> None:
        self.panels_received += count
        self.events.append(Event("received", name, source, at, at, count))

    @contextmanager
    def timed(self, kind: str, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.events.append(Event(kind, name, None, begin, time.perf_counter()))

    def seconds(self, kind: str) -> float:
        """The time of this kind of event on this rank."""
        return sum(e.end - e.begin for e in self.events if e.kind == kind)

    @property
    def total_sent(self) -> int:
        return self.panels_sent + self.moved_sent + self.reduced_sent

    def to_json(self) -> str:
        return json.dumps(self.__dict__)

    @classmethod
    def of_json(cls, text: str) -> Report:
        read = json.loads(text)
        return cls(**{**read, "events": [Event(*e) for e in read["events"]], "grid": tuple(read["grid"])})


def transfers(reports: list[Report], rank: int) -> list[Event]:
    """What came to a rank: from when its sender started to send it until it was seen there."""
    begun = {(sender, e.name, e.rank): e.begin
             for sender, report in enumerate(reports) for e in report.events if e.kind == "sent"}
    return [e._replace(kind="transfer", begin=begun[e.rank, e.name, rank])
            for e in reports[rank].events if e.kind == "received" and e.rank is not None]


def hidden(reports: list[Report], rank: int) -> float:
    """The share of the time in which panels came to a rank that it did not spend waiting: 1 if nothing came."""
    under_way = union([(e.begin, e.end) for e in transfers(reports, rank)])
    waits = union([(e.begin, e.end) for e in reports[rank].events if e.kind == "wait"])
    total = length(under_way)
    return 1 - length(common(under_way, waits)) / total if total else 1.0


def union(spans: list[Span]) -> list[Span]:
    """Spans that do not overlap, in order."""
    spans_of_union: list[Span] = []
    for begin, end in sorted(spans):
        if spans_of_union and begin <= spans_of_union[-1][1]:
            spans_of_union[-1] = spans_of_union[-1][0], max(spans_of_union[-1][1], end)
        else:
            spans_of_union.append((begin, end))
    return spans_of_union


def common(x: list[Span], y: list[Span]) -> list[Span]:
    return union([(max(a, c), min(b, d)) for a, b in x for c, d in y if max(a, c) < min(b, d)])


def length(spans: list[Span]) -> float:
    return sum(end - begin for begin, end in spans)
