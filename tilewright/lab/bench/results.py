"""What a bench run found, as JSON: enough to draw every table and plot again, and to judge whether to believe them.

    {"schema": 2, "kind": "bench", "created": ..., "tilewright": ..., "commit": ..., "sources": ..., "machine": {...},
     "sessions": [{"threads", "isa", "peers": [{"name", "version", "how"}], "left_out": {name: reason},
                   "load_before", "load_after", "stolen", "others", "notes"}],
     "results": [{"suite", "m", "n", "k", "dtype", "b"?, "out"?, "batch"?, "algorithm"?, "layout", "gap"?, "cold",
                  "beside"?, "threads", "isa",
                  "rows": [{"name", "how"?, "reps", "seconds": [per round], "left_out"?, "disturbed"?,
                            "median_s", "q1_s", "q3_s", "gflops", "m"?, "deviation"?, "prepared"?, "gpu"?, "bound"?}
                           or {"name", "how"?, "error": sentence}]}]}

Fields that have their default are left out: "b" and "out" where the formats are that of "dtype", A's. On a GPU "isa" is
its architecture. The derived figures (median_s to gflops) are there for readers of the file; `Report` computes them
from "seconds", which are those of rounds that count (Sample).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tilewright import __version__, outputs
from tilewright.lab.bench.cases import Case, size
from tilewright.lab.bench.peer import OURS, libraries
from tilewright.lab.measure import machine
from tilewright.lab.measure.measure import Sample, Spread, ratios, spread

SCHEMA = 2
ALLOW_DIRTY = "--allow-dirty"
RULE = "2026-11-27"  # the last day on which a checkout with changes could write results that pages show
STDOUT = Path("-")
INTERRUPTED = "interrupted"  # how a session's note begins after Ctrl-C
BESIDE = "tilewright beside"  # the row of Case.beside
NUMPY, CUBLAS = "numpy", "cuBLAS"  # the peers that tables compare with, whichever is the fastest
CELLS = "never-lose", "random", "einsum"  # reports of many products, each beside its fastest peer
SUITES = "elementwise", "weights", "epilogues", "contract", "attention_calls"  # of records (study.py)
OWN = *SUITES, "simulated", "startup", "tiles"  # names in Report.extra of figures that are no results of cases
ABSENT = "absent"  # how the error begins where this version or machine does not have a product


def _stated(record: Any) -> dict[str, Any]:
    """The fields of a dataclass that have not their default."""
    return {f.name: value for f in fields(record) if (value := getattr(record, f.name)) != f.default}


@dataclass(frozen=True)
class Row:
    """One peer on one case: its sample, or the sentence that says why there is none."""

    name: str
    sample: Sample | None = None
    error: str | None = None
    gpu: dict[str, Any] | None = None  # gpu_state.summary: clocks, power, ... while it ran alone; our plan
    how: str = ""  # what one timed call is, where it is not what the session says of the peer
    m: int = 0  # rows of A, where it was not given all since the whole product would take too long
    deviation: float | None = None  # check.Reference.error
    prepared: bool = False  # it found B packed beforehand, which is not timed
    bound: dict[str, Any] | None = None  # never_lose.bound: what bounds our plan by the cost model, and its seconds

    def to_json(self, operations: int) -> dict[str, Any]:
        entry = _stated(self)
        if sample := entry.pop("sample", None):
            s = sample.spread
            entry |= _stated(sample) | {"seconds": list(sample.seconds), "median_s": s.median, "q1_s": s.q1,
                                        "q3_s": s.q3, "gflops": round(operations / s.median / 1e9, 3)}
        return entry

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        given = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        if "seconds" not in data:
            return cls(**given)
        timed = {name: data[name] for name in Sample.__dataclass_fields__ if name in data}
        return cls(**given, sample=Sample(**timed | {"seconds": tuple(data["seconds"])}))


@dataclass(frozen=True)
class Result:
    """One case at one thread count and ISA, timed with every peer in one interleaved run."""

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

    def operations(self, name: str = OURS) -> int:
        """Operations of one call, by which a rate counts."""
        if name == BESIDE and self.case.beside:
            return self.case.beside.flops
        row = self.row(name)
        return self.case.operations(row.m if row else 0)

    def gflops(self, name: str = OURS) -> float | None:
        """10^9 operations a second, the median of the rounds; None without a sample."""
        sample = self.sample(name)
        return self.operations(name) / sample.spread.median / 1e9 if sample else None

    def ratio(self, peer: str, ours: str = OURS, hollow: bool = False) -> Spread | None:
        """The peer's time over ours, round by round (or rate over rate, where the work differs): above 1 we win.
        None without samples, and where other processes disturbed the rounds: the time spent waiting for a CPU then
        decides. `hollow`: that one, too, for a plot that marks it."""
        theirs, mine = self.sample(peer), self.sample(ours)
        if theirs is None or mine is None or (mine.disturbed and not hollow):
            return None
        work = self.operations(ours) / self.operations(peer)
        return spread([work * r for r in ratios(theirs.seconds, mine.seconds)])

    def peers(self, prepared: bool = False) -> list[str]:
        """The peers that have a sample, the fastest first."""
        there = [r.name for r in self.rows if r.sample and r.name not in (OURS, BESIDE) and r.prepared == prepared]
        return sorted(there, key=lambda name: -(self.gflops(name) or 0.0))

    def fastest_peer(self) -> str | None:
        """The peer with the highest median rate.  Where the call itself is what is timed, only what users call counts:
        a C function with its arguments ready checks nothing and returns nothing."""
        compiled = {x.name for x in libraries() if x.compiled} if self.case.suite == "overhead" else ()
        names = [name for name in self.peers() if name not in compiled]
        return names[0] if names else None

    def to_json(self) -> dict[str, Any]:
        rows = [row.to_json(self.operations(row.name)) for row in self.rows]
        where = {"threads": self.threads, "isa": self.isa}
        return {**self.case.to_json(), "size": size(self.case.problem), **where, "rows": rows}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        return cls(Case.from_json(data), data["threads"], data["isa"], tuple(map(Row.from_json, data["rows"])))


@dataclass
class Session:
    """One measuring process: its peers and how quiet the machine was around it."""

    threads: int
    isa: str
    peers: list[dict[str, str]] = field(default_factory=list)  # tilewright among them
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
    sources: str | None = None  # machine.sources

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return any(note.startswith(INTERRUPTED) for session in self.sessions for note in session.notes)

    @classmethod
    def start(cls, kind: str, **options: Any) -> Report:
        """An empty report of here and now."""
        return cls(kind, machine.now(), __version__, machine.commit(), machine.describe(), options,
                   sources=machine.sources())

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if self.sources is None:  # of before there were digests: what a picture says of its results stays true
            del plain["sources"]
        sessions, results = [asdict(s) for s in self.sessions], [r.to_json() for r in self.results]
        return {"schema": SCHEMA, **plain, "sessions": sessions, "results": results}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        if data.get("schema") != SCHEMA:
            raise ValueError(f"this is schema {data.get('schema')!r} of a bench result; {SCHEMA} is understood")
        given = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        sessions = [Session(**s) for s in data["sessions"]]
        return cls(**{**given, "sessions": sessions, "results": [Result.from_json(r) for r in data["results"]]})


def check_tree(allow_dirty: bool = False) -> None:
    """Before results are measured that a file is to keep. ValueError in a checkout with changes: nobody could measure
    them again."""
    if not allow_dirty and (commit := machine.commit() or "").endswith(machine.DIRTY):
        raise ValueError(f"no result file is written from a checkout with changes ({commit}), since its figures belong "
                         f"to no commit: commit the changes, or give {ALLOW_DIRTY} (tilewright bench {ALLOW_DIRTY} "
                         "...), which marks the file, so that no page shows it before `python bench/readme.py commit "
                         "FILE` finds the commit that has these sources")


def check_shown(report: Report) -> None:
    """ValueError for results from a checkout with changes, which no page or table shows; those of before the rule are
    left as they are, and say so by their commit."""
    if (report.commit or "").endswith(machine.DIRTY) and report.created[:10] > RULE:
        raise ValueError(f"these results are of a checkout with changes ({report.commit}, {report.created[:10]}): "
                         "measure them from a commit, or let `python bench/readme.py commit FILE` find the one whose "
                         "sources these were")


def name_commit(path: Path) -> str:
    """The commit whose sources a result file was measured with, which is written into it in place of that of the
    checkout, which had changes: a copy of a working tree on another machine is seldom at its own commit. ValueError
    where no commit up to HEAD has these sources."""
    record = json.loads(path.read_text())
    digest = record.get("sources")
    commit = machine.commit_of(digest) if digest else None
    if commit is None:
        raise ValueError(f"{path}: " + (f"no commit up to HEAD has the sources {digest[:12]}" if digest else
                                        "it does not say with which sources it was measured"))
    outputs.write(path, json.dumps(record | {"commit": commit}, indent=1) + "\n")
    return commit


def options(parser: argparse.ArgumentParser, file: str) -> argparse.Namespace:
    """The options of a script of bench/, of which `file` names its result file; see check_tree."""
    parser.add_argument(ALLOW_DIRTY, action="store_true", help="write a result file from a checkout with changes")
    options_given = parser.parse_args()
    if getattr(options_given, file) is not None:
        try:
            check_tree(options_given.allow_dirty)
        except ValueError as error:
            parser.error(str(error))
    return options_given


def write(record: dict[str, Any], path: Path) -> None:
    """Write what a script of bench/ has measured as JSON, with the commit and the sources."""
    made = {"commit": machine.commit(), "sources": machine.sources()}
    outputs.write(path, json.dumps(record | made, indent=1) + "\n")


def save(report: Report, path: Path) -> None:
    """Write the JSON whole or not at all, since it may have taken an hour to measure. `-` is standard output."""
    text = json.dumps(report.to_json(), indent=1) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
        return
    outputs.write(path, text)


def load(path: Path) -> Report:
    try:
        return Report.from_json(json.loads(path.read_text()))
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a result of tilewright bench: {error}") from error
