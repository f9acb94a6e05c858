"""Host time of a call on a CUDA device, in microseconds: python bench/launch_overhead.py [--plain] [--json FILE].

Of a product so small (16 x 16 x 16) that the device is never the one to wait for: calls in a row without waiting, fewer
than the driver queues, the best and the median of rounds. --plain: with the kernel of tests/plain_gemm.py, which takes
planning and production kernels out of the picture.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import tilewright as tw
from tilewright.runtime import bound, cuda, gpu

CALLS, ROUNDS, N = 400, 50, 16


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    a, b, out = (torch.ones(N, N, device="cuda") for _ in range(3))
    problem, target = tw.Gemm(N, N, N), cuda.target()
    if options.plain:
        from tests.plain_gemm import Compiled

        gpu.compile = Compiled  # type: ignore[assignment,misc]
    bound_call = bound.bind(gpu.compile(problem, target), a, b, out)  # type: ignore[arg-type]
    stream = torch.cuda.current_stream().cuda_stream
    step = bound_call.recipe.steps[0].prepared
    calls: dict[str, Callable[[], Any]] = {
        "a launch (Prepared)": lambda: step(stream),
        "a bound kernel": bound_call,
        "a bound kernel on a given stream": lambda: bound_call(stream),
        "tw.matmul(a, b, out)": lambda: tw.matmul(a, b, out),
        "tw.matmul(a, b)": lambda: tw.matmul(a, b),
        "torch.matmul(a, b, out=out)": lambda: torch.matmul(a, b, out=out),
        "torch.matmul(a, b)": lambda: torch.matmul(a, b),
    }
    for call in calls.values():
        call()
    step(stream)
    tw.matmul(a, b, out)
    torch.cuda.synchronize()
    assert (out == N).all(), "the product is wrong"
    results = {name: cost(call) for name, call in calls.items()}
    print(f"{torch.cuda.get_device_name()}: microseconds per call on the host, best and median of {ROUNDS} rounds")
    for name, found in results.items():
        print(f"{name:36} {found['best']:6.2f} {found['median']:6.2f}")
    if options.json:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "plain": options.plain}
        options.json.write_text(json.dumps({**about, "calls": CALLS, "rounds": ROUNDS, "us": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
