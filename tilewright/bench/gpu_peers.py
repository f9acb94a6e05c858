"""Whom tilewright is compared with on a GPU: cuBLAS through torch, which is kernel 0, and a kernel in Triton.

tilewright is called as its users call it, `tilewright.matmul(a, b, out)` with torch's tensors; `plans` are further
contenders that run given plans.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright.bench.gpu_device import Operands, TorchDevice
from tilewright.bench.gpu_measure import Launch
from tilewright.bench.peers import Unavailable
from tilewright.bench.results import OURS

CUBLAS, TRITON = "cuBLAS", "triton"
PEERS = (CUBLAS, TRITON)


class Unfit(Exception):
    """A contender has nothing for this problem; not an error of anybody's."""


@dataclass(frozen=True)
class Contender:
    """One library or kernel."""

    name: str
    version: str
    how: str  # what one timed call is
    bind: Callable[[Operands], Launch]


def find(
    on: TorchDevice, wanted: Iterable[str] | None = None, plans: Iterable[str] = ()
) -> tuple[list[Contender], dict[str, str]]:
    """tilewright, the given plans, and the peers that are here; for the other peers a reason."""
    finders = {CUBLAS: cublas, TRITON: triton}
    names = list(finders) if wanted is None else list(wanted)
    unknown = [name for name in names if name not in finders]
    if unknown:
        raise ValueError(f"unknown peer {unknown[0]!r}; on a GPU the peers are {', '.join(finders)}")
    found, left_out = [tilewright(), *(planned(text) for text in plans)], {}
    for name in names:
        try:
            found.append(finders[name](on))
        except Unavailable as reason:
            left_out[name] = str(reason)
    return found, left_out


def tilewright() -> Contender:
    import tilewright as tw

    return Contender(OURS, tw.__version__, "tilewright.matmul(a, b, out)", lambda o: partial(tw.matmul, o.a, o.b, o.c))


def planned(text: str) -> Contender:
    """tilewright by the plan that is written so."""
    import tilewright as tw
    from tilewright.plans.nvidia import NvidiaPlan

    plan = NvidiaPlan.parse(text)
    return Contender(text, tw.__version__, "tilewright.matmul(a, b, out, plan=...)",
                     lambda o: partial(tw.matmul, o.a, o.b, o.c, plan=plan))


def cublas(on: TorchDevice) -> Contender:
    """As torch calls it, in full f32: TorchDevice has turned tf32 off."""
    torch = on.torch
    version = f"of torch {torch.__version__}"
    for package in ("nvidia-cublas", "nvidia-cublas-cu12"):
        try:
            version = f"{importlib.metadata.version(package)} ({version})"
        except importlib.metadata.PackageNotFoundError:
            continue
    return Contender(CUBLAS, version, "torch.mm(a, b, out=), tf32 off", lambda o: partial(torch.mm, o.a, o.b, out=o.c))


def triton(on: TorchDevice) -> Contender:
    if importlib.util.find_spec("triton") is None:
        raise Unavailable("triton is not installed")
    from tilewright.bench import gpu_triton

    def bind(o: Operands) -> Launch:
        if o.problem.a != "f32":
            raise Unfit("the Triton kernel is for f32")
        return partial(gpu_triton.matmul, o.a, o.b, o.c)

    version = importlib.metadata.version("triton")
    return Contender(TRITON, version, "a kernel of ours (bench/gpu_triton.py), autotuned", bind)


def plan_of(problem: Any, target: Any) -> str | None:
    """What tilewright.matmul runs for a problem, for the record."""
    import tilewright as tw

    try:
        return str(tw.plan(problem, target))
    except (TypeError, ValueError):
        return None
