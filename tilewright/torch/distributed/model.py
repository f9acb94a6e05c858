"""Which form a product that exchanges rows takes, by its predicted time: arithmetic, no clock, the same on all ranks.

Of the parts: products in waves of tiles, copies between ranks, what a collective of NCCL takes, and latencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from tilewright.torch.distributed.schedules import FORMS, MOST_PIECES

# Of two H200 with NVLink 4 (18 links), torch 2.11, NCCL without multicast, medians in CUDA graphs (docs/distributed.md)
RATE = {1: 1400e12, 2: 810e12, 4: 48e12, 8: 60e12}      # of products, per second, by bytes of an operand's element
TILES = (128, 256, 1.0), (128, 128, 0.93), (64, 128, 0.8), (64, 64, 0.6)    # rows, columns, of the rate
SMS, MEMORY, LAUNCH = 132, 4.0e12, 3e-6
ADDED = 3.0e12          # bytes per second of a partial sum that an epilogue adds
LINK = 380e9            # bytes per second that a copy engine sends
CALL, ALONE, WAIT = 9e-6, 5e-6, 2e-6    # of a call beside its products, with a second stream or without; of a wait
SIGNAL = 6e-6           # from the end of a copy to the start of what waits for it
COPY = 4e-6             # from a stream's last step to the first byte of a copy
STORED, STORING = 0.4, 4e-6     # of a copy's time, and seconds, that a product takes more if it stores over the link
GATHER, GATHER_LINK = 21e-6, 240e9      # of NCCL: seconds, and bytes sent by a rank per second
SCATTER, SCATTER_LINK = 15e-6, 229e9
REDUCE, REDUCE_LINK = 20e-6, 290e9


class Plan(NamedTuple):
    """How a call runs: form "pair" is a collective of torch beside a product, others are those of schedules.py."""

    form: str
    pieces: int = 1

    def __str__(self) -> str:
        return self.form if self.pieces == 1 else f"{self.form}:{self.pieces}"


def parse(text: str, kind: str) -> Plan:
    """A plan from its text, "pieces:2". ValueError if there is none of this kind."""
    form, _, pieces = text.partition(":")
    count = int(pieces) if pieces.isdigit() else 0 if pieces else 1
    if form not in FORMS or not 0 < count <= MOST_PIECES or (kind == "gather" and form == "stores"):
        raise ValueError(f"plan must be one of {', '.join(FORMS)}, with :2 to :{MOST_PIECES} for pieces, not {text!r}; "
                         "a product of gathered rows has no stores")
    return Plan(form, count)


class Product(NamedTuple):
    """rows: of one rank's block; of k and n as they are multiplied; bytes of an operand's and of a result's element."""

    rows: int
    n: int
    k: int
    operand: int
    result: int
    ranks: int

    def multiply(self, rows: float) -> float:
        """Seconds of a product of so many rows."""
        rate = RATE.get(self.operand, RATE[8]) / SMS
        work = min(ceil(ceil(rows/m) * ceil(self.n/n) / SMS) * 2*m*n*self.k / (rate*share) for m, n, share in TILES)
        moved = (rows + self.n)*self.k*self.operand + rows*self.n*self.result
        return LAUNCH + max(work, moved / MEMORY)

    @property
    def sent(self) -> float:
        """Seconds of the copy of one block of operands to one rank."""
        return self.rows*self.k*self.operand / LINK

    @property
    def summed(self) -> float:
        """And of a block of results."""
        return self.rows*self.n*self.result / LINK


def seconds(kind: str, plan: Plan, p: Product) -> float:
    """The predicted time of a call."""
    return {"gather": _gather, "scatter": _scatter, "reduce": _reduce}[kind](plan, p)


def _gather(plan: Plan, p: Product) -> float:
    others, all_rows = p.ranks - 1, p.rows*p.ranks
    if plan.form == "pair":
        return GATHER + others*p.sent*LINK/GATHER_LINK + p.multiply(all_rows)
    if plan.form == "one":
        return CALL + COPY + others*p.sent + SIGNAL + p.multiply(all_rows)
    time, count = p.multiply(p.rows), plan.pieces
    for piece in range(others*count):
        landed = COPY + (piece + 1) * p.sent/count + SIGNAL
        time = max(time, landed) + WAIT + p.multiply(p.rows/count)
    return CALL + time


def _ring(plan: Plan, p: Product) -> list[float]:
    """When each piece of a rank's own block is finished."""
    product, send = p.multiply(p.rows / plan.pieces), p.summed / plan.pieces
    added = send * LINK / ADDED
    ready, time, link = [0.0]*plan.pieces, 0.0, 0.0
    for step in range(p.ranks):
        for piece in range(plan.pieces):
            time = max(time, ready[piece]) + product + (WAIT + added if step else 0.0)
            if step == p.ranks - 1:
                ready[piece] = time
            elif plan.form == "stores":
                time += STORED*send + STORING
                ready[piece] = time + SIGNAL
            else:
                link = max(time + COPY, link) + send
                ready[piece] = link + SIGNAL
    return ready


def _scatter(plan: Plan, p: Product) -> float:
    others, all_rows = p.ranks - 1, p.rows*p.ranks
    if plan.form == "pair":
        return p.multiply(all_rows) + SCATTER + others*p.summed*LINK/SCATTER_LINK
    if plan.form == "one":
        added = (p.ranks + 1) * p.rows*p.n*p.result / MEMORY
        return CALL + p.multiply(all_rows) + COPY + others*p.summed + SIGNAL + LAUNCH + added
    return (ALONE if plan.form == "stores" else CALL) + _ring(plan, p)[-1]


def _reduce(plan: Plan, p: Product) -> float:
    others, all_rows = p.ranks - 1, p.rows*p.ranks
    copied = p.rows*p.n*p.result / MEMORY
    if plan.form == "pair":
        return p.multiply(all_rows) + REDUCE + 2*others*p.summed*LINK/REDUCE_LINK
    if plan.form == "one":
        added = LAUNCH + (p.ranks + 1)*p.ranks*copied
        return CALL + p.multiply(all_rows) + COPY + others*p.ranks*p.summed + SIGNAL + added
    link = 0.0
    for time in _ring(plan, p):
        link = max(link, time + COPY) + others*p.summed/plan.pieces
    return CALL + link + SIGNAL + LAUNCH + 2*copied


def candidates(kind: str) -> list[Plan]:
    forms = [form for form in FORMS if form != "stores" or kind != "gather"]
    return [Plan(form, pieces) for form in forms for pieces in (
        (1,) if form in ("pair", "one") else (1, 2, 4))]


def choose(kind: str, product: Product, forms: Sequence[str] = FORMS) -> Plan:
    """The plan of the least predicted time."""
    return min((x for x in candidates(kind) if x.form in forms), key=lambda plan: seconds(kind, plan, product))
