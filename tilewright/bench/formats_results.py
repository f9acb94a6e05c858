"""What was found of a product of formats: plain records, their JSON, and the ratios that tables and plots show.

A report is that of every bench (results.py), of kind "formats", with

    extra["products"]: [{"product": {"a", "b", "out", "algorithm"}, "n", "threads", "isa",
                         "rows": [{"name", "how", "m", "error", "prepared", "reps", "seconds": [per round], "median_s",
                                   "gops"} or {"name", "how", "reason": sentence}]}]

m, n and k are n, but a row's own m is less where the whole product would take too long: it was given so many rows of A.
"prepared" rows found B packed beforehand, which is not timed.  "gops" are 10^9 operations a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.bench.formats_products import Product
from tilewright.bench.results import OURS, Report, sample_from, sample_json
from tilewright.measure.measure import Sample, Spread, ratios, spread

F32 = "tilewright f32"  # our own f32 in the same rounds: what a format gains or costs
NUMPY = "numpy"
ABSENT = "absent"  # how the reason begins where this version or machine does not have a product


@dataclass(frozen=True)
class Row:
    """One contender: its sample on `m` rows of A, or the sentence that says why there is none."""

    name: str
    how: str
    sample: Sample | None = None
    m: int = 0
    error: float = 0.0  # formats_error.Reference.error
    prepared: bool = False
    reason: str = ""

    def to_json(self, product: Product, n: int) -> dict[str, Any]:
        if self.sample is None:
            return {"name": self.name, "how": self.how, "reason": self.reason}
        median = self.sample.spread.median
        return {
            "name": self.name, "how": self.how, "m": self.m, "error": self.error, "prepared": self.prepared,
            **sample_json(self.sample), "median_s": median,
            "gops": round(product.operations(self.m, n, n) / median / 1e9, 3),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        if "reason" in data:
            return cls(data["name"], data["how"], reason=data["reason"])
        return cls(data["name"], data["how"], sample_from(data), data["m"], data["error"], data["prepared"])


@dataclass(frozen=True)
class Timed:
    """One product at one size and thread count, with every contender in one interleaved run."""

    product: Product
    n: int
    threads: int
    isa: str
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def rate(self, name: str = OURS) -> float | None:
        """10^9 operations a second, the median of the rounds; None without a sample."""
        row = self.row(name)
        if row is None or row.sample is None:
            return None
        return self._product(name).operations(row.m, self.n, self.n) / row.sample.spread.median / 1e9

    def ratio(self, name: str) -> Spread | None:
        """Our rate over theirs, round by round: above 1 we are faster.  None where other processes disturbed them."""
        ours, theirs = self.row(OURS), self.row(name)
        if ours is None or theirs is None or ours.sample is None or theirs.sample is None or ours.sample.disturbed:
            return None
        work = self.product.operations(ours.m, self.n, self.n) / self._product(name).operations(
            theirs.m, self.n, self.n
        )
        return spread([work * r for r in ratios(theirs.sample.seconds, ours.sample.seconds)])

    def _product(self, name: str) -> Product:
        return Product("f32", "f32", "f32") if name == F32 else self.product

    def peers(self, prepared: bool = False) -> list[str]:
        """The peers that have a sample, NumPy among them, the fastest first."""
        there = [r.name for r in self.rows if r.sample and r.name not in (OURS, F32) and r.prepared == prepared]
        return sorted(there, key=lambda name: -(self.rate(name) or 0.0))

    def to_json(self) -> dict[str, Any]:
        rows = [r.to_json(self._product(r.name), self.n) for r in self.rows]
        where = {"n": self.n, "threads": self.threads, "isa": self.isa}
        return {"product": self.product.to_json(), **where, "rows": rows}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Timed:
        rows = tuple(map(Row.from_json, data["rows"]))
        return cls(Product(**data["product"]), data["n"], data["threads"], data["isa"], rows)


def timed(report: Report) -> list[Timed]:
    """Everything that a report of kind "formats" holds."""
    try:
        return [Timed.from_json(each) for each in report.extra["products"]]
    except KeyError as missing:
        raise ValueError(f"this is not a result of tilewright bench formats: it has no {missing}") from None


Group = tuple[int, str, int]  # threads, isa, n


def groups(found: list[Timed]) -> dict[Group, list[Timed]]:
    """What belongs in one table, in the order in which it was measured."""
    tables: dict[Group, list[Timed]] = {}
    for each in found:
        tables.setdefault((each.threads, each.isa, each.n), []).append(each)
    return tables
