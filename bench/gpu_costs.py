"""What a GPU kernel costs beside its run: the call from Python, and emitting it.

    python bench/gpu_costs.py overhead emission [--out FILE]

overhead   microseconds until a call comes back: bound kernels, tilewright.matmul, torch.mm, Triton
emission   seconds per kernel: recording it, LLVM to PTX, and the driver's assembler

FILE is a result of kind "gpu" with both in "extra", for the figure `gpu_costs` of bench/readme.py.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tilewright.lab.bench import gpu_device, peer, results, study
from tilewright.lab.bench.cases import GPU, Product
from tilewright.lab.bench.peer import Setting
from tilewright.lab.bench.results import CUBLAS, Report
from tilewright.lab.bench.suites import shapes
from tilewright.lab.measure.measure import spread
from tilewright.plans.nvidia import NvidiaPlan
from tilewright.problem import Gemm

SMALL = 64  # n of the product whose calls are timed: the kernel takes less than the call
ONE = "simt 64x64x32 warp=32x32 thread=8x4 stages=3 vector=4"
BOUND = {"bound kernel": ONE, "bound kernel with workspace": f"{ONE} split_k=2"}  # which each call has to find


def overhead(on: gpu_device.TorchDevice, n: int = SMALL) -> dict[str, list[float]]:
    """Seconds per call, a figure for each burst: {"bound kernel, PLAN": [...], "torch.mm": [...], ...}.

    Bound kernels have the plans of BOUND that this GPU can run, tilewright.matmul the one that it chooses.
    """
    import tilewright as tw

    problem = Gemm(n, n, n)
    o = gpu_device.make(on, problem)
    target: Any = on.on.target
    calls: dict[str, Callable[[], Any]] = {}
    for name, plan in BOUND.items():
        if not any(NvidiaPlan.parse(plan).violations(problem, target)):
            kernel: Any = tw.compile(problem, target, plan)
            calls[f"{name}, {plan}"] = kernel.bind(o.a, o.b, o.c)
    calls[f"tilewright.matmul, {tw.plan(problem, target)}"] = partial(tw.matmul, o.a, o.b, o.c)
    found, _ = peer.find(Setting(on=on), device=GPU)
    for each in found[1:]:
        for way in each.ways(Product("f32", "f32", "f32")):
            fn, arguments = way.bind(o)
            calls["torch.mm" if each.name == CUBLAS else each.name] = partial(fn, *arguments)
    for call in calls.values():
        call()
    return study.host_cost(calls, on.wait)


def emission(problems: Sequence[Gemm], target: Any, load: Callable[[str], Any] | None = None
             ) -> dict[str, dict[str, float]]:
    """{kernel: {"record_s", "llvm_s", "load_s"}} of every kernel that these problems' plans need, each emitted once.

    Nothing comes from a cache.  The first kernel is emitted twice and timed the second time: LLVM has to be loaded once
    per process.
    """
    import tilewright as tw
    from tilewright.compiler import llvm

    found: dict[str, dict[str, float]] = {}
    for number, problem in enumerate([*problems[:1], *problems]):
        plan = tw.plan(problem, target)
        began = time.perf_counter()
        functions = list(dict.fromkeys(launch.function for launch in tw.compile(problem, target, plan).launches))
        recorded = time.perf_counter()
        text = llvm.assembly(functions, target)
        assembled = time.perf_counter()
        name = functions[0].name
        if number and name not in found:
            found[name] = {"record_s": recorded - began, "llvm_s": assembled - recorded}
            if load is not None:
                load(text)
                found[name]["load_s"] = time.perf_counter() - assembled
    return found


def _loaded(text: str) -> None:
    from tilewright.runtime.cuda import module

    module.Module(text.encode())


def lines(report: Report) -> Iterator[str]:
    """What was found, in words."""
    for name, seconds in report.extra.get("overhead", {}).items():
        s = spread(seconds)
        yield f"{name}: {s.median * 1e6:.2f} us a call ({s.q1 * 1e6:.2f} to {s.q3 * 1e6:.2f})"
    if found := {name: t["record_s"] + t["llvm_s"] for name, t in report.extra.get("emission", {}).items()}:
        slowest = max(found, key=found.__getitem__)
        yield (f"emission of {len(found)} kernels: median {statistics.median(found.values()):.3f} s, "
               f"most {found[slowest]:.3f} s ({slowest})")


def main() -> None:
    asked = study.parsed(__doc__ or "", "costs.json",
                         lambda p: p.add_argument("studies", nargs="*", default=["overhead", "emission"]))
    os.environ["CUDA_CACHE_DISABLE"] = "1"  # emission times the driver's assembler, not the driver's cache
    on = gpu_device.TorchDevice()
    report = Report.start("gpu", studies=asked.studies)
    report.machine["gpu"] = on.describe()
    if "overhead" in asked.studies:
        report.extra["overhead"] = overhead(on)
    if "emission" in asked.studies:
        problems = [case.problem for case in shapes.gpu_cases(["square", "odd", "skinny", "f64"])]
        report.extra["emission"] = emission(problems, on.on.target, _loaded)
    print("\n".join(lines(report)))
    results.save(report, asked.out)


if __name__ == "__main__":
    main()
