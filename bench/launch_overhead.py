"""Host time of a call on a CUDA device, in microseconds: python bench/launch_overhead.py [--plain] [--json FILE].

Of a product so small (64 x 64 x 64) that the device is never the one to wait for: calls in a row without waiting, fewer
than the driver queues, the best and the median of rounds. Bound kernels with a plan without a workspace, with one that
has one, and with the plan that matmul chooses; and their launches alone, with the arguments of a call before.
--plain: with the kernel of tests/plain_gemm.py, which takes planning and production kernels out of the picture.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import tilewright as tw
from tilewright.bench.gpu_cost import BOUND, SMALL
from tilewright.runtime import bound, cuda, gpu

CALLS, ROUNDS, N = 400, 50, SMALL


def cost(call: Callable[[], Any]) -> dict[str, float]:
    """Microseconds per call on the host's clock."""
    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        rounds.append((time.perf_counter() - began) / CALLS * 1e6)
    torch.cuda.synchronize()
    return {"best": min(rounds), "median": statistics.median(rounds)}


def launch_alone(call: bound.Bound, stream: int) -> Callable[[], None]:
    """What is left of a bound call when all addresses are where the last call has put them."""
    call(stream)
    (step,) = call.recipe.steps
    return partial(step.prepared.launch, stream, step.spare[-1].address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    a, b, out = (torch.ones(N, N, device="cuda") for _ in range(3))
    problem, target = tw.Gemm(N, N, N), cuda.target()
    stream = torch.cuda.current_stream().cuda_stream
    kernels: dict[str, Any] = {}
    if options.plain:
        from tests.plain_gemm import Compiled, Split

        gpu.compile = Compiled  # type: ignore[assignment,misc]
        kernels = {"the plain kernel": Compiled(problem, target), "the plain kernel, split": Split(problem, target)}
        chosen = "the plain kernel"
    else:
        chosen = str(tw.plan(problem, target))
        kernels = {plan: tw.compile(problem, target, plan) for plan in dict.fromkeys((*BOUND.values(), chosen))}
    calls: dict[str, Callable[[], Any]] = {}
    for plan, kernel in kernels.items():
        call = bound.bind(kernel, a, b, out)
        calls[f"launch alone: {plan}"] = launch_alone(call, stream)
        calls[f"bound: {plan}"] = call
        calls[f"bound, on a given stream: {plan}"] = partial(call, stream)
    calls |= {
        f"tw.matmul(a, b, out): {chosen}": lambda: tw.matmul(a, b, out),
        f"tw.matmul(a, b): {chosen}": lambda: tw.matmul(a, b),
        "torch.mm(a, b, out=out)": lambda: torch.mm(a, b, out=out),
        "torch.mm(a, b)": lambda: torch.mm(a, b),
    }
    for name, once in calls.items():
        out.zero_()
        made = once()
        torch.cuda.synchronize()
        assert ((out if made is None else made) == N).all(), f"the product is wrong: {name}"
    results = {name: cost(call) for name, call in calls.items()}
    print(f"{torch.cuda.get_device_name()}: microseconds per call on the host, best and median of {ROUNDS} rounds")
    for name, found in results.items():
        print(f"{found['best']:6.2f} {found['median']:6.2f}  {name}")
    if options.json:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "plain": options.plain}
        options.json.write_text(json.dumps({**about, "calls": CALLS, "rounds": ROUNDS, "us": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
