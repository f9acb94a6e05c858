"""The loop of suites that time calls of this process: cases, sizes and numbers of threads, beside peers."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import tilewright as tw
from tilewright.lab.bench.tables import quoted
from tilewright.lab.measure.measure import Call, Rules, Sample, interleave, ratios, spread
from tilewright.lab.measure.quiet import Watch, settle

ALONE = "product alone"         # a contender that computes something else: it is not checked


class Made(NamedTuple):
    """What is timed of one case: calls of each contender in turns, the bytes that one moves, and the measured bandwidth
    to hold that against, None for what stays in a cache."""
    calls: dict[str, list[Call]]
    bytes: int
    memory: float | None = None


@dataclass(frozen=True)
class Found:
    """One case on so many threads: as Made, with the samples of all."""
    case: str
    n: int
    threads: int
    bytes: int
    samples: dict[str, Sample]
    memory: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {"case": self.case, "n": self.n, "threads": self.threads, "bytes": self.bytes, "memory": self.memory,
                "seconds": {name: list(sample.seconds) for name, sample in self.samples.items()}}


def timed(make: Callable[[str, int, int], Made], cases: Iterable[str], sizes: Iterable[int], threads: Iterable[int],
          quick: bool, step: Callable[[str], None]) -> Iterator[Found]:
    """Each case as it is measured; `step` is called before it. `make(case, n, threads)` checks results, too."""
    before = tw.get_num_threads()
    try:
        for count in threads:
            tw.set_num_threads(count)
            for case in cases:
                for n in sizes:
                    step(f"{case}, {n:,}, {count} threads")
                    made = make(case, n, count)
                    samples = interleave(made.calls, Rules.choose(count, quick), settle=settle,
                                         disturbed=Watch().disturbed)
                    yield Found(case, n, count, made.bytes, samples, made.memory)
    finally:
        tw.set_num_threads(before)


def checked(what: str, calls: dict[str, Call], exact: np.ndarray, tolerance: float) -> dict[str, list[Call]]:
    """The calls, as they are timed, once the first rows of their results are these. RuntimeError for a wrong one."""
    for name, (call, args) in calls.items():
        rows = np.asarray(call(*args))[:len(exact)]
        if name != ALONE and not np.allclose(rows, exact, rtol=tolerance, atol=tolerance):
            raise RuntimeError(f"{what} by {name} is wrong")
    return {name: [call] for name, call in calls.items()}


# ---- records

def median_us(x: dict[str, Any], name: str) -> str:
    """Of a record, "" if this was not measured."""
    return f"{spread(x['seconds'][name]).median * 1e6:.1f}" if name in x["seconds"] else ""


def compared(x: dict[str, Any], name: str, other: str) -> str:
    """How many times as long `other` takes in the same rounds; "" if it was not measured."""
    seconds = x["seconds"]
    return quoted(spread(ratios(seconds[other], seconds[name]))) if other in seconds else ""
