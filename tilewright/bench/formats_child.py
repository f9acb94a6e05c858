"""The process that measures products of formats: started and listened to as child.py is; a "product" is its result."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from tilewright.bench import formats_data, formats_peers, peers
from tilewright.bench.child import Emit
from tilewright.bench.formats_data import Matrices
from tilewright.bench.formats_error import Reference
from tilewright.bench.formats_peers import Entrant
from tilewright.bench.formats_products import Product
from tilewright.bench.formats_results import ABSENT, F32, Row, Timed
from tilewright.bench.results import OURS
from tilewright.measure import check, measure, quiet
from tilewright.measure.disturbance import Load, Watch
from tilewright.measure.measure import Call, Rules

FEWEST = 8  # rows of A per thread: the least that a slow peer is given
SLOW = 10e9  # operations a second: less is a loop without vectors or blocks, whose rows of A all cost the same


@dataclass(frozen=True)
class FormatsJob:
    """What the parent asks for."""

    threads: int
    isa: str
    cases: list[tuple[Product, int]]  # m = n = k
    rules: Rules
    peers: list[str] | None = None  # None: all that are installed
    call_s: float = 1.0  # a slow peer is given so many rows of A

    def to_json(self) -> dict[str, Any]:
        cases = [[product.to_json(), n] for product, n in self.cases]
        return {**self.__dict__, "cases": cases, "rules": self.rules.__dict__}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FormatsJob:
        cases = [(Product(**product), n) for product, n in data["cases"]]
        return cls(**{**data, "cases": cases, "rules": Rules(**data["rules"])})


class _Out(Exception):
    """Why a contender sits this product out."""


class Bench:
    """Times one product after the other."""

    def __init__(self, job: FormatsJob, found: list[peers.Contender], clock: measure.Clock = time.perf_counter):
        self.job, self.clock = job, clock
        self.found = {c.name: c for c in found}
        self.f32: tuple[int, Matrices, Entrant] | None = None

    def run(self, product: Product, n: int) -> Timed:
        """Everybody who knows the product, each checked, then timed in turns."""
        given = formats_data.make(product, n, n, n)
        entrants = formats_peers.entrants(product, self.found, self.job.threads)
        reasons: dict[str, str] = {}
        calls: dict[str, list[Call]] = {}
        rows: dict[str, tuple[int, float]] = {}
        if absent := _absent(entrants[0], product):
            reasons[OURS] = absent
        reference = Reference(given)
        for entrant in entrants:
            if entrant.name in reasons:
                continue
            try:
                call, m, error = self._checked(entrant, given, reference)
            except _Out as reason:
                reasons[entrant.name] = str(reason)
            else:
                calls[entrant.name], rows[entrant.name] = [call], (m, error)
        if OURS in calls and product.key != "f32-f32-f32":
            entrants.append(self._beside(n, calls))
            rows[F32] = n, 0.0
        samples = measure.interleave(
            calls, self.job.rules, clock=self.clock, settle=quiet.settle, disturbed=Watch().disturbed
        )
        found = []
        for e in entrants:
            row = Row(e.name, e.how, prepared=e.prepared)
            if e.name in reasons:
                found.append(replace(row, reason=reasons[e.name]))
            else:
                m, error = rows[e.name]
                found.append(replace(row, sample=samples[e.name], m=m, error=error))
        return Timed(product, n, self.job.threads, self.job.isa, tuple(found))

    def _checked(self, entrant: Entrant, given: Matrices, reference: Reference) -> tuple[Call, int, float]:
        """Its call, made at least once; on how many rows of A; and its error.  _Out if it cannot or is wrong."""
        try:
            part, (fn, args) = self._part(entrant, given)
            part.poison()
            returned = fn(*args)
            c = part.c if entrant.returns is None else entrant.returns(returned)
        except Exception as error:  # whatever a library raises is a line of the report, not the end of it
            raise _Out(f"{type(error).__name__}: {' '.join(str(error).split())}") from None
        if wrong := reference.wrong(c, rounded_once=entrant.name == OURS):
            raise _Out(f"wrong result: {wrong}")
        return (fn, args), len(part.a), reference.error(c)

    def _part(self, entrant: Entrant, given: Matrices) -> tuple[Matrices, Call]:
        """All of A; but for a peer that is a slow loop over its rows, no more of them than it does in `call_s`."""
        rows = len(given.a) if entrant.name == OURS else self._rows(entrant, given)
        part = given.first(rows)
        return part, entrant.bind(part)

    def _rows(self, entrant: Entrant, given: Matrices) -> int:
        """How many rows of A, from what a few cost beyond what any number costs: who packs or converts B, does so once.

        A library that has a few rows done slowly and many fast is given all: only below SLOW it is a loop.
        """
        m, few = len(given.a), FEWEST * self.job.threads
        if m <= 2 * few:
            return m
        per_row = (self._seconds(entrant, given.first(2 * few)) - self._seconds(entrant, given.first(few))) / few
        if per_row * m <= self.job.call_s or self._operations(given, 1) > SLOW * per_row:
            return m
        fixed = max(0.0, self._seconds(entrant, given.first(few)) - few * per_row)
        rows = max(few, math.floor(max(self.job.call_s, 20 * fixed) / per_row))
        if rows >= m or self._operations(given, rows) > SLOW * self._seconds(entrant, given.first(rows)):
            return m
        return rows

    def _seconds(self, entrant: Entrant, part: Matrices) -> float:
        """Of one call, after a short one for what it does but once."""
        fn, args = entrant.bind(part.first(1))
        fn(*args)
        fn, args = entrant.bind(part)
        start = self.clock()
        fn(*args)
        return self.clock() - start

    def _operations(self, given: Matrices, rows: int) -> int:
        return given.product.operations(rows, given.sizes[1], given.sizes[2])

    def _beside(self, n: int, calls: dict[str, list[Call]]) -> Entrant:
        """Our own f32 of this size, on matrices that are kept for the next product."""
        entrant = formats_peers.our_f32()
        if self.f32 is None or self.f32[0] != n:
            given = formats_data.make(Product("f32", "f32", "f32"), n, n, n)
            fn, args = entrant.bind(given)
            fn(*args)
            if wrong := check.wrong(given.a, given.b, given.c):
                raise ArithmeticError(f"f32 is wrong at n = {n}: {wrong}")
            self.f32 = n, given, entrant
        calls[F32] = [entrant.bind(self.f32[1])]
        return entrant


def _absent(entrant: Entrant, product: Product) -> str | None:
    """The sentence with which this version, or this machine, refuses a product."""
    fn, args = entrant.bind(formats_data.make(product, 8, 8, 8))
    try:
        fn(*args)
    except (TypeError, ValueError, NotImplementedError) as error:
        return f"{ABSENT}: {' '.join(str(error).split())}"
    return None


def run(job: FormatsJob, emit: Emit) -> None:
    """Measure everything the job asks for, an event for each step."""
    before = Load.now()
    found, left_out = peers.find(job.threads, job.peers, job.isa)
    described = [{"name": c.name, "version": c.version, "how": c.how} for c in found]
    emit("contenders", contenders=described, left_out=left_out, load=before.average)
    bench = Bench(job, found)
    for product, n in job.cases:
        emit("case", label=f"{product.label} {n}")
        emit("product", product=bench.run(product, n).to_json())
    after = Load.now()
    emit("done", load=after.average, stolen=after.stolen_since(before), others=after.others_since(before))


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library's chatter must not end up between the events

    def emit(event: str, **details: Any) -> None:
        out.write(json.dumps({"event": event, **details}) + "\n")

    run(FormatsJob.from_json(json.load(sys.stdin)), emit)
