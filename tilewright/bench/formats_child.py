"""The process that measures products of formats: started and listened to as child.py is; a "product" is its result."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from tilewright.bench import check, formats_data, formats_peers, measure, peers, quiet
from tilewright.bench.child import Emit
from tilewright.bench.formats_data import Matrices
from tilewright.bench.formats_error import Reference
from tilewright.bench.formats_peers import Entrant
from tilewright.bench.formats_products import Product
from tilewright.bench.formats_results import ABSENT, F32, Row, Timed
from tilewright.bench.measure import Call, Rules
from tilewright.bench.results import OURS

FEWEST = 8  # rows of A per thread: the least that a slow contender is given


@dataclass(frozen=True)
class FormatsJob:
    """What the parent asks for."""

    threads: int
    isa: str
    cases: list[tuple[Product, int]]  # m = n = k
    rules: Rules
    peers: list[str] | None = None  # None: all that are installed
    call_s: float = 1.0  # a peer whose call would take longer is given fewer rows of A

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
        samples = measure.interleave(calls, self.job.rules, clock=self.clock, settle=quiet.settle)
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
        """All of A for tilewright; for a peer as many rows as it can do in time, from its time for fewer."""
        m, rows = len(given.a), FEWEST * self.job.threads
        while entrant.name != OURS and rows < m:
            part = given.first(rows)
            fn, args = entrant.bind(part)
            fn(*args)  # what it does once, it does now
            start = self.clock()
            fn(*args)
            took = self.clock() - start
            if took > self.job.call_s / 8:
                whole = m * took / rows <= self.job.call_s
                rows = m if whole else min(m, max(rows, math.floor(rows * self.job.call_s / took)))
                break
            rows *= 8
        part = given.first(min(rows, m)) if entrant.name != OURS else given
        return part, entrant.bind(part)

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
    before = quiet.Load.now()
    found, left_out = peers.find(job.threads, job.peers, job.isa)
    described = [{"name": c.name, "version": c.version, "how": c.how} for c in found]
    emit("contenders", contenders=described, left_out=left_out, load=before.average)
    bench = Bench(job, found)
    for product, n in job.cases:
        emit("case", label=f"{product.label} {n}")
        emit("product", product=bench.run(product, n).to_json())
    after = quiet.Load.now()
    emit("done", load=after.average, stolen=after.stolen_since(before), others=after.others_since(before))


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library's chatter must not end up between the events

    def emit(event: str, **details: Any) -> None:
        out.write(json.dumps({"event": event, **details}) + "\n")

    run(FormatsJob.from_json(json.load(sys.stdin)), emit)
