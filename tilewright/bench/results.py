"""What a bench run found, as JSON: enough to draw every table and plot again, and to judge whether to believe them.

    {"schema": 1, "kind": "bench", "created": ..., "tilewright": ..., "commit": ..., "machine": {...},
     "sessions": [{"threads", "isa", "contenders": [{"name", "version", "how"}], "left_out": {name: reason},
                   "load_before", "load_after", "stolen", "others", "notes"}],
     "results": [{"suite", "m", "n", "k", "dtype", "layout", "cold", "beside"?, "threads", "isa",
                  "rows": [{"name", "reps", "seconds": [per round], "left_out"?, "disturbed"?,
                            "median_s", "q1_s", "q3_s", "gflops", "gpu"?}
                           or {"name", "error": sentence}]}]}

"left_out" counts rounds that other processes disturbed and that are not in "seconds"; "disturbed" is true where they
are in it, because too few others were found. "others" of a session: CPUs that other processes kept busy.
On a GPU a row's "gpu" says in what state the device was (gpu_state.summary), and "isa" is its architecture.
The derived figures (median_s to gflops) are there for readers of the file; `Report` computes them from `seconds`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilewright import outputs
from tilewright.bench.shapes import Case, size
from tilewright.measure.measure import Sample, Spread, ratios, spread

SCHEMA = 1
OURS = "tilewright"
BESIDE = "tilewright beside"  # the row of Case.beside
COMPILED = ("openblas", "mkl", "blis")  # called without Python (thunk.py)


def sample_json(sample: Sample) -> dict[str, Any]:
    doubts = {"left_out": sample.left_out, "disturbed": sample.disturbed}
    return {"reps": sample.reps, "seconds": list(sample.seconds), **{k: v for k, v in doubts.items() if v}}


def sample_from(data: dict[str, Any]) -> Sample:
    return Sample(tuple(data["seconds"]), data["reps"], data.get("left_out", 0), data.get("disturbed", False))


@dataclass(frozen=True)
class Row:
    """One contender on one case: its sample, or the sentence that says why there is none."""

    name: str
    sample: Sample | None = None
    error: str | None = None
    gpu: dict[str, Any] | None = None  # gpu_state.summary: clocks, power, ... while it ran alone; our plan

    def to_json(self, flops: int) -> dict[str, Any]:
        if self.sample is None:
            return {"name": self.name, "error": self.error}
        s = self.sample.spread
        derived = {"median_s": s.median, "q1_s": s.q1, "q3_s": s.q3, "gflops": round(flops / s.median / 1e9, 3)}
        state = {} if self.gpu is None else {"gpu": self.gpu}
        return {"name": self.name, **sample_json(self.sample), **derived, **state}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        if "error" in data:
            return cls(data["name"], error=data["error"])
        return cls(data["name"], sample_from(data), gpu=data.get("gpu"))


@dataclass(frozen=True)
class Result:
    """One case at one thread count and ISA, timed with every contender in one interleaved run."""

    case: Case
    threads: int
    isa: str
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def sample(self, name: str) -> Sample | None:
        row = self.row(name)
        return row.sample if row else None

    @property
    def disturbed(self) -> bool:
        """Whether other processes disturbed the rounds that count: then no ratio is worth anything."""
        return any(row.sample.disturbed for row in self.rows if row.sample)

    def flops(self, name: str = OURS) -> int:
        return self.case.beside.flops if name == BESIDE and self.case.beside else self.case.problem.flops

    def gflops(self, name: str) -> float | None:
        sample = self.sample(name)
        return self.flops(name) / sample.spread.median / 1e9 if sample else None

    def ratio(self, peer: str, ours: str = OURS) -> Spread | None:
        """The peer's time over ours, round by round (or rate over rate, where the work differs): above 1 we win."""
        theirs, mine = self.sample(peer), self.sample(ours)
        if theirs is None or mine is None:
            return None
        work = self.flops(ours) / self.flops(peer)
        return spread([work * r for r in ratios(theirs.seconds, mine.seconds)])

    def fastest_peer(self) -> str | None:
        """The peer with the least median time.  Where the call itself is what is timed, only what users call counts:
        a C function with its arguments ready checks nothing and returns nothing."""
        unfit = (OURS, BESIDE) if self.case.suite != "overhead" else (OURS, BESIDE, *COMPILED)
        timed = {r.name: r.sample.spread.median for r in self.rows if r.sample and r.name not in unfit}
        return min(timed, key=timed.__getitem__) if timed else None

    def to_json(self) -> dict[str, Any]:
        rows = [row.to_json(self.flops(row.name)) for row in self.rows]
        return {**self.case.to_json(), "size": size(self.case.problem), **self._where(), "rows": rows}

    def _where(self) -> dict[str, Any]:
        return {"threads": self.threads, "isa": self.isa}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        return cls(Case.from_json(data), data["threads"], data["isa"], tuple(map(Row.from_json, data["rows"])))


@dataclass
class Session:
    """One measuring process: its contenders and how quiet the machine was around it."""

    threads: int
    isa: str
    contenders: list[dict[str, str]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    load_before: float | None = None
    load_after: float | None = None
    stolen: float | None = None  # share of CPU time that the hypervisor gave away
    others: float | None = None  # CPUs that other processes kept busy
    notes: list[str] = field(default_factory=list)


@dataclass
class Report:
    """A whole run."""

    kind: str
    created: str
    tilewright: str
    commit: str | None
    machine: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)  # what only one kind of study has

    @classmethod
    def start(cls, kind: str, **options: Any) -> Report:
        """An empty report of here and now."""
        from tilewright import __version__
        from tilewright.measure import machine

        return cls(kind, machine.now(), __version__, machine.commit(), machine.describe(), options)

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        sessions, results = [asdict(s) for s in self.sessions], [r.to_json() for r in self.results]
        return {"schema": SCHEMA, **plain, "sessions": sessions, "results": results}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        if data.get("schema") != SCHEMA:
            raise ValueError(f"this is schema {data.get('schema')!r} of a bench result; schema {SCHEMA} is understood")
        fields = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        sessions = [Session(**s) for s in data["sessions"]]
        return cls(**{**fields, "sessions": sessions, "results": [Result.from_json(r) for r in data["results"]]})


def save(report: Report, path: Path) -> None:
    """Write the JSON whole or not at all, since it may have taken an hour to measure. `-` is standard output."""
    text = json.dumps(report.to_json(), indent=1) + "\n"
    if path == Path("-"):
        sys.stdout.write(text)
        return
    outputs.write(path, text)


def load(path: Path) -> Report:
    try:
        return Report.from_json(json.loads(path.read_text()))
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a result of tilewright bench: {error}") from error
