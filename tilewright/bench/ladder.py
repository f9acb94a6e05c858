"""The teaching ladder, step against step: every kernel of kernels/ladder beside NumPy, OpenBLAS and the product."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.bench import peers
from tilewright.bench.measure import Call
from tilewright.bench.operands import Operands
from tilewright.bench.peers import Contender


def contenders(
    threads: int, wanted: Iterable[str] | None = None, isa: str = peers.NATIVE
) -> tuple[list[Contender], dict[str, str]]:
    """tilewright, then the steps in their order, then the peers; with several threads only the step that uses them."""
    from tilewright.kernels.ladder import STEPS

    found, left_out = peers.find(threads, wanted or ("numpy", "openblas"), isa)
    steps = []
    for name, step in STEPS.items():
        if step.parallel == (threads == 1):
            left_out[step.title] = "it is step 5 when it has one thread" if step.parallel else "it runs on one thread"
            continue

        def bind(o: Operands, name: str = name) -> Call:
            from tilewright.runtime.ladder import prepare

            p = o.problem
            return prepare(name, p.m, p.n, p.k, p.a, threads=threads), (o.a, o.b, o.c)

        steps.append(Contender(step.title, "", step.idea, bind))
    return [found[0], *steps, *found[1:]], left_out
