"""The teaching ladders, step against step: every step as a peer, beside NumPy and OpenBLAS, or on a GPU cuBLAS."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tilewright.bench import peer
from tilewright.bench.cases import Product
from tilewright.bench.peer import CPU, GPU, Peer, Setting, Unfit, Way, single
from tilewright.measure.measure import Call
from tilewright.measure.operands import Operands

if TYPE_CHECKING:
    from tilewright.bench.results import Result

UNBLOCKED = ("naive", "registers", "padded")  # what they do to a cache makes minutes of a large product
MAX_CALL_S = 2.0
GPU_SIZES = (1024, 2048, 4096)
AWKWARD = ((1, 1, 1), (127, 130, 9), (129, 131, 65), (300, 5, 17), (256, 512, 64), (255, 260, 0))
CUBLAS = "cuBLAS"


def peers(
    setting: Setting, wanted: Iterable[str] | None = None, device: str = CPU
) -> tuple[list[Peer], dict[str, str]]:
    """tilewright, then the steps in their order, then the peers; on CPUs with several threads only the step that uses
    them."""
    if device == GPU:
        from tilewright.ladder.names import GPU_LADDER

        found, left_out = peer.find(setting, (CUBLAS,) if wanted is None else wanted, device)
        return [found[0], *(_gpu_step(name, step) for name, step in GPU_LADDER.items()), *found[1:]], left_out
    from tilewright.ladder import STEPS

    threads = setting.threads
    found, left_out = peer.find(setting, ("numpy", "openblas") if wanted is None else wanted)
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
        steps.append(single(step.title, "", step.idea, bind, limit))
    return [found[0], *steps, *found[1:]], left_out


# ---- on a GPU


def titles() -> dict[str, str]:
    """{step's name: its title}, the choice by size among them."""
    from tilewright.ladder.names import GPU_LADDER

    return {name: step.title for name, step in GPU_LADDER.items()}


def _gpu_step(name: str, step: Any) -> Peer:
    """A step on torch's tensors, after its products of awkward shapes were compared."""
    from tilewright.bench.child import Left

    checked: list[str] = []

    def bind(o: Operands) -> Call:
        import torch

        if not checked:
            checked.append(wrong(name))
        if checked[0]:
            raise Left(f"wrong result: {checked[0]}")
        try:
            launch = prepared(name, o.a, o.b, o.c)
        except ValueError as refused:
            raise Unfit(str(refused)) from None
        return lambda: launch(torch.cuda.current_stream().cuda_stream), ()

    def ways(product: Product) -> list[Way]:
        return [Way(step.title, step.idea, bind)] if product.key == "f32-f32-f32" else []

    return Peer(step.title, "", step.idea, ways)


def prepared(name: str, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> Callable[[int], None]:
    """`launch(stream)` of a step on torch's tensors."""
    from tilewright.ladder import run_nvidia

    (m, k), n = a.shape, b.shape[1]
    where = (a.data_ptr(), a.stride(0), b.data_ptr(), b.stride(0), c.data_ptr(), c.stride(0))
    launch = run_nvidia.prepare(name, m, n, k, *where, alpha=alpha, beta=beta)

    def run(stream: int, _keep: object = (a, b, c)) -> None:
        launch(stream)

    return run


def wrong(name: str) -> str:
    """What is wrong with a step's products on this device: "" if whole numbers come out exact in every shape, with
    rows apart, alpha and beta, and nothing is written beside C."""
    import torch

    for m, n, k in AWKWARD:
        for alpha, beta, gap in ((1.0, 0.0, 0), (-2.0, 3.0, 4)):
            a, b = (torch.randint(-4, 5, size, device="cuda").float() for size in ((m, k + gap), (k, n + gap)))
            whole = torch.randint(-4, 5, (m, n + 1), device="cuda").float()
            a, b, c = a[:, :k], b[:, :n], whole[:, :n]
            beside, before = whole[:, n].clone(), c.double()
            if beta == 0:
                c.fill_(float("nan"))
            try:
                prepared(name, a, b, c, alpha, beta)(torch.cuda.current_stream().cuda_stream)
            except ValueError:
                continue  # textures cannot look at these
            torch.cuda.synchronize()
            wanted = alpha * (a.double() @ b.double()) + (beta * before if beta else 0)
            if not torch.equal(c.double(), wanted) or not torch.equal(whole[:, n], beside):
                return f"{m} x {n} x {k} with alpha {alpha:g}, beta {beta:g} is wrong"
    return ""


def table(results: list[Result]) -> list[list[str]]:
    """Heading and a row for each step on a GPU: TFLOP/s at each size, and the share of cuBLAS's."""
    wanted = (CUBLAS, *titles().values(), peer.OURS)
    there = [name for name in wanted if any(r.row(name) for r in results)]
    head = ["TFLOP/s at m = n = k =", *(r.case.size for r in results)]
    return [head, *([name, *(_cell(r, name) for r in results)] for name in there)]


def _cell(r: Result, name: str) -> str:
    row, rate, best = r.row(name), r.gflops(name), r.gflops(CUBLAS)
    if row is None or rate is None:
        return "-" if row is None or "not aligned" in (row.error or "") else "wrong"
    said = f"{rate / 1e3:.2f}" if rate < 1e4 else f"{rate / 1e3:.1f}"
    return said if best is None or name == CUBLAS else f"{said} ({rate / best:.3f})"
