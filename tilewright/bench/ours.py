"""tilewright as a peer of the others: called as its users call it, argument checks included."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tilewright import formats
from tilewright.bench.cases import Product
from tilewright.bench.peer import OURS, Peer, Setting, Way, single


def load(setting: Setting) -> Peer:
    import tilewright as tw

    if setting.on is None:
        tw.set_num_threads(setting.threads)
    return Peer(OURS, tw.__version__, "tilewright.matmul(a, b, out)", ways)


def ways(product: Product) -> Iterator[Way]:
    """tilewright.matmul(a, b, out), with out_dtype and algorithm where the product asks for them."""
    import tilewright as tw

    options: dict[str, Any] = {}
    if formats.promote(product.a, product.b).name != product.out:
        options["out_dtype"] = formats.get(product.out).dtype
    if product.algorithm:
        options["algorithm"] = product.algorithm
    call = partial(tw.matmul, **options) if options else tw.matmul
    said = "".join(f", {key}={value!s}" for key, value in options.items())
    yield Way(OURS, f"tilewright.matmul(a, b, out{said})", lambda o: (call, (o.a, o.b, o.c)))


def planned(text: str) -> Peer:
    """tilewright on a GPU by the plan that is written so."""
    import tilewright as tw
    from tilewright.plans.nvidia import NvidiaPlan

    plan = NvidiaPlan.parse(text)
    return single(text, tw.__version__, "tilewright.matmul(a, b, out, plan=...)",
                  lambda o: (partial(tw.matmul, plan=plan), (o.a, o.b, o.c)))


def plan_of(problem: Any, target: Any) -> str | None:
    """What tilewright.matmul runs for a problem on a GPU, for the record."""
    import tilewright as tw

    try:
        return str(tw.plan(problem, target))
    except (TypeError, ValueError):
        return None
