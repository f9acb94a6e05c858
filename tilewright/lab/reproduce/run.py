"""Makes a report: every row of a source, one after the other."""
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tilewright.lab.bench.results import Report, check_shown, load
from tilewright.lab.measure import machine
from tilewright.lab.measure.quiet import Load
from tilewright.lab.reproduce.row import MISSING, WRONG, Absent, Cell, Row, Setting, Source, source

RESULTS = Path(__file__).resolve().parents[3] / machine.RESULTS


@dataclass(frozen=True)
class Done:
    """A row with its cell, or with the sentence that says why it has none."""
    row: Row
    cell: Cell | None
    seconds: float
    why: str = ""
    failed: bool = False

    @property
    def how(self) -> str:
        """The label: how the cell was made, "left out", "as above", or why there is none."""
        if self.cell:
            return self.cell.how
        return WRONG if self.failed else "as above" if self.row.item.again else \
            "left out" if self.row.item.left_out else MISSING


@dataclass(frozen=True)
class Reproduction:
    source: Source
    setting: Setting
    rows: list[Done]
    created: str
    commit: str | None
    machine: dict[str, Any]
    others: float               # CPUs that other processes kept busy
    seconds: float

    @property
    def counts(self) -> Counter[str]:
        return Counter(done.how for done in self.rows)

    @property
    def failed(self) -> list[Done]:
        return [done for done in self.rows if done.failed]

    def to_json(self) -> dict[str, Any]:
        rows = [asdict(done.row.item) | {"how": done.how, "seconds": round(done.seconds, 3), "why": done.why,
                                         "ours": asdict(done.cell) if done.cell else None} for done in self.rows]
        return {"source": self.source.name, "title": self.source.title, "address": self.source.address,
                "quick": self.setting.quick, "created": self.created, "commit": self.commit, "machine": self.machine,
                "others": self.others, "seconds": round(self.seconds, 1), "counts": dict(self.counts), "rows": rows}


def rows_of(name: str, only: Sequence[str] = ()) -> list[Row]:
    """The rows of a source, all or those of these names or kinds. ValueError for a name that is none of its items'."""
    source(name)
    rows: list[Row] = [*import_module(f"tilewright.lab.reproduce.{name}").rows]
    known = {word for row in rows for word in (row.item.name, row.item.kind)}
    if unknown := [word for word in only if word not in known]:
        raise ValueError(f"{name} has no item {unknown[0]!r}; its items are {', '.join(row.item.name for row in rows)}")
    return [row for row in rows if not only or {row.item.name, row.item.kind} & {*only}]


def make(row: Row, setting: Setting) -> Done:
    began = time.monotonic()
    try:
        if row.ours is None and not (row.item.left_out or row.item.again):
            raise Absent("tilewright has no counterpart yet")
        cell = row.ours(setting) if row.ours else None
        return Done(row, cell, time.monotonic() - began, row.item.left_out)
    except Absent as reason:
        return Done(row, None, time.monotonic() - began, str(reason))
    except Exception as error:  # one broken row must not take the page with it
        return Done(row, None, time.monotonic() - began, f"{type(error).__name__}: {error}", failed=True)


def reproduce(name: str, setting: Setting, only: Sequence[str] = (),
              before: Callable[[Row], object] = lambda row: None) -> Reproduction:
    """All rows of a source, or those of the names or kinds in `only`; `before` hears of each before it is made."""
    rows, began, load_before, done = rows_of(name, only), time.monotonic(), Load.now(), []
    for row in rows:
        before(row)
        done.append(make(row, setting))
    machine_load = Load.now().beside(load_before)
    return Reproduction(source(name), setting, done, machine.now(), machine.commit(), machine.describe(),
                        round(machine_load.get("others") or 0.0, 2), time.monotonic() - began)


# ---- what rows are made of

def committed(name: str) -> Report:
    """A result file of the checkout. Absent where there is none, as in an installation from a wheel."""
    path = RESULTS / name
    if not path.exists():
        raise Absent(f"it needs {machine.RESULTS}/{name}, which is in tilewright's repository and not here")
    report = load(path)
    check_shown(report)
    return report


def where(report: Report) -> str:
    """Machine, date and commit of a result file, for the text of a row."""
    gpu = report.machine.get("gpu") or report.extra.get("device") or {}
    name = gpu.get("name") or report.machine["cpu"]
    return f"{name}, {report.created[:10]}" + (f", commit {report.commit}" if report.commit else "")
