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
LINK = 370e9            # bytes per second that a copy engine sends
SIGNAL = 6e-6           # from the end of a copy to the start of what waits for it
COPY = 4e-6             # from a stream's last step to the first byte of a copy
GATHER, GATHER_LINK = 27e-6, 253e9      # of NCCL: seconds, and bytes received per second
SCATTER, SCATTER_LINK = 19e-6, 229e9


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
        return COPY + others*p.sent + SIGNAL + p.multiply(all_rows)
    time, count = p.multiply(p.rows), plan.pieces
    for piece in range(others*count):
        landed = COPY + (piece + 1) * p.sent/count + SIGNAL
        time = max(time, landed) + p.multiply(p.rows/count)
    return time


def _ring(plan: Plan, p: Product) -> list[float]:
    """When each piece of a rank's own block is finished."""
    product = p.multiply(p.rows / plan.pieces)
    send = p.summed / plan.pieces
    ready, time, link = [0.0]*plan.pieces, 0.0, 0.0
    for step in range(p.ranks):
        for piece in range(plan.pieces):
            begin = max(time, ready[piece])
            time = begin + product
            if plan.form == "stores":
                time = max(time, begin + LAUNCH + send)
                ready[piece] = time + SIGNAL
            else:
                link = max(time + COPY, link) + send
                ready[piece] = link + SIGNAL
            if step == p.ranks - 1:
                ready[piece] = time
    return ready


def _scatter(plan: Plan, p: Product) -> float:
    others, all_rows = p.ranks - 1, p.rows*p.ranks
    if plan.form == "pair":
        return p.multiply(all_rows) + SCATTER + others*p.summed*LINK/SCATTER_LINK
    if plan.form == "one":
        added = (p.ranks + 1) * p.rows*p.n*p.result / MEMORY
        return p.multiply(all_rows) + COPY + others*p.summed + SIGNAL + LAUNCH + added
    return _ring(plan, p)[-1]


def _reduce(plan: Plan, p: Product) -> float:
    others, all_rows = p.ranks - 1, p.rows*p.ranks
    copied = p.rows*p.n*p.result / MEMORY
    if plan.form == "pair":
        return _scatter(plan, p) + GATHER + others*p.summed*LINK/GATHER_LINK - LAUNCH
    if plan.form == "one":
        return p.multiply(all_rows) + COPY + others*p.ranks*p.summed + SIGNAL + LAUNCH + (p.ranks + 1)*p.ranks*copied
    link = 0.0
    for time in _ring(plan, p):
        link = max(link, time + COPY) + others*p.summed/plan.pieces
    return link + SIGNAL + 2*copied


def candidates(kind: str) -> list[Plan]:
    forms = [form for form in FORMS if form != "stores" or kind != "gather"]
    return [Plan(form, pieces) for form in forms for pieces in (
        (1,) if form in ("pair", "one") else (1, 2, 4))]


def choose(kind: str, product: Product, forms: Sequence[str] = FORMS) -> Plan:
    """The plan of the least predicted time."""
    return min((x for x in candidates(kind) if x.form in forms), key=lambda plan: seconds(kind, plan, product))
