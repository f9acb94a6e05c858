"""The teaching ladder, step against step: every kernel of kernels/ladder beside NumPy, OpenBLAS and the product."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilewright.bench import peers
from tilewright.bench.measure import Call
from tilewright.bench.operands import Operands
from tilewright.bench.peers import Contender


def contenders(
    threads: int, wanted: Iterable[str] | None = None, isa: str = peers.NATIVE
) -> tuple[list[Contender], dict[str, str]]:
    """tilewright, then the steps in their order, then the peers; with several threads only the steps that use them."""
    from tilewright.kernels.ladder import STEPS

    found, left_out = peers.find(threads, wanted or ("numpy", "openblas"), isa)
    steps = []
    for name, step in STEPS.items():
        if threads > 1 and not getattr(step, "parallel", False):
            left_out[name] = "this step runs on one thread"
            continue
        steps.append(Contender(name, "ladder", step.title, lambda o, step=step: _bind(step, o)))  # type: ignore[misc]
    return [found[0], *steps, *found[1:]], left_out


def _bind(step: Any, o: Operands) -> Call:
    p = o.problem
    return step.prepare(p.m, p.n, p.k, p.a), (o.a, o.b, o.c)
