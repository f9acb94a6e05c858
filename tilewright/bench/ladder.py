"""The teaching ladder, step against step: every kernel of ladder beside NumPy, OpenBLAS and the product."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tilewright.bench import peers
from tilewright.bench.peers import Contender
from tilewright.measure.measure import Call
from tilewright.measure.operands import Operands

UNBLOCKED = ("naive", "registers", "padded")  # what they do to a cache makes minutes of a large product
MAX_CALL_S = 2.0


def contenders(
    threads: int, wanted: Iterable[str] | None = None, isa: str = peers.NATIVE
) -> tuple[list[Contender], dict[str, str]]:
    """tilewright, then the steps in their order, then the peers; with several threads only the step that uses them."""
    from tilewright.ladder import STEPS

    found, left_out = peers.find(threads, ("numpy", "openblas") if wanted is None else wanted, isa)
    here = {name: step for name, step in STEPS.items() if step.parallel == (threads > 1)}
    others = ", ".join(step.title for name, step in STEPS.items() if name not in here)
    left_out[others] = "they run on one thread" if threads > 1 else "with one thread it is step 5"
    limited = ", ".join(step.title for name, step in here.items() if name in UNBLOCKED)
    if limited:
        left_out[limited] = f"where one call would take more than {MAX_CALL_S:.0f} s"
    steps = []
    for name, step in here.items():

        def bind(o: Operands, name: str = name) -> Call:
            from tilewright.ladder.run_cpu import prepare

            p = o.problem
            return prepare(name, p.m, p.n, p.k, p.a, threads=threads), (o.a, o.b, o.c)

        limit = MAX_CALL_S if name in UNBLOCKED else math.inf
        steps.append(Contender(step.title, "", step.idea, bind, limit))
    return [found[0], *steps, *found[1:]], left_out
