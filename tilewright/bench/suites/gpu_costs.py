"""What a GPU kernel costs beside its run: the call from Python, and emitting it.

overhead   microseconds until a call comes back: bound kernels, tilewright.matmul, torch.mm, Triton
emission   seconds per kernel: recording it, LLVM to PTX, and on a GPU the driver's assembler
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tilewright.bench import gpu_device, peer
from tilewright.bench.cases import Product
from tilewright.bench.peer import GPU, Setting
from tilewright.bench.results import Report
from tilewright.bench.suites import gpu as suites
from tilewright.measure.gpu_rules import host_cost
from tilewright.plans.nvidia import NvidiaPlan
from tilewright.problem import Gemm

SMALL = 64  # n of the product whose calls are timed: the kernel takes less than the call
ONE = "simt 64x64x32 warp=32x32 thread=8x4 stages=3 vector=4"
BOUND = {"bound kernel": ONE, "bound kernel with workspace": f"{ONE} split_k=2"}  # which each call has to find


def measure(report: Report, names: Iterable[str], device: int = 0) -> None:
    """Add these studies to the report."""
    on = gpu_device.TorchDevice(device)
    report.machine.setdefault("gpu", on.describe())
    if "overhead" in names:
        report.extra["overhead"] = overhead(on)
    if "emission" in names:
        problems = [case.problem for name in ("square", "odd", "skinny", "f64") for case in suites.cases([name])]
        report.extra["emission"] = emission(problems, on.on.target, _loaded)


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
            calls["torch.mm" if each.name == "cuBLAS" else each.name] = partial(fn, *arguments)
    for call in calls.values():
        call()
    return {name: list(sample.seconds) for name, sample in host_cost(calls, on.wait).items()}


def emission(
    problems: Iterable[Gemm], target: Any, load: Callable[[str], Any] | None = None
) -> dict[str, dict[str, float]]:
    """{kernel: {"record_s", "llvm_s", "load_s"}} of every kernel that these problems' plans need, each emitted once.

    Nothing comes from a cache.  The first kernel is emitted twice and timed the second time: LLVM has to be loaded once
    per process.
    """
    import tilewright as tw
    from tilewright.compiler import llvm

    found: dict[str, dict[str, float]] = {}
    first = True
    for problem in problems:
        plan = tw.plan(problem, target)
        while True:
            kernel: Any = tw.compile(problem, target, plan)
            began = time.perf_counter()
            functions = list(dict.fromkeys(launch.function for launch in kernel.launches))
            recorded = time.perf_counter()
            text = llvm.assembly(functions, target)
            assembled = time.perf_counter()
            if not first:
                break
            first = False
        name = functions[0].name
        if name not in found:
            found[name] = {"record_s": recorded - began, "llvm_s": assembled - recorded}
            if load is not None:
                load(text)
                found[name]["load_s"] = time.perf_counter() - assembled
    return found


def _loaded(text: str) -> None:
    from tilewright.runtime.cuda import module

    module.Module(text)
