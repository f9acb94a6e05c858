"""Products with an epilogue on one NVIDIA GPU, beside torch and beside the same product without one.

    python bench/epilogues.py [--quick] [--out FILE] [CASE]...

Five sides of each case of `CASES` take turns in one interleaved run, in CUDA graphs over operands that rotate through
more than the L2 cache:

    tilewright      matmul's kernel with the epilogue: one launch
    product         tilewright's kernel for the product alone, without the epilogue
    cublas          torch.mm, the product alone
    eager           the same function by torch, operation after operation
    compiled        that function by torch.compile

Every side that computes the function is compared with torch's in float64 before it is timed. Then what a call of matmul
costs the host, beside the same call without the epilogue, torch.mm and the function by torch.
"""
from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tilewright as tw
from bench.gpu_costs import host_cost
from tilewright.lab.bench import results
from tilewright.lab.bench.gpu_device import TorchDevice
from tilewright.lab.measure.gpu_rules import GpuRules, GraphTrack, sets
from tilewright.lab.measure.measure import interleave, ratios, spread

Tensor = Any
Launch = Callable[[], Any]


@dataclass(frozen=True)
class Function:
    """`ours` of sums and operands by name; `torchs` of the product and the same operands."""
    ours: Callable[..., Any]
    torchs: Callable[..., Tensor]
    operands: tuple[str, ...] = ()          # of bias (n), res (m x n), scale (a number)
    out: str = "bf16"


def swiglu(acc: Any) -> Any:
    gate, up = tw.pairs(acc)
    return tw.silu(gate)*up


def torch_swiglu(y: Tensor) -> Tensor:
    return F.silu(y[:, ::2])*y[:, 1::2]


# torch's are given sums with the bias: F.linear adds it
FUNCTIONS = {
    "gelu": Function(lambda acc, bias: tw.gelu(acc + bias), F.gelu, ("bias",)),
    "gelu tanh": Function(lambda acc, bias: tw.gelu(acc + bias, "tanh"), partial(F.gelu, approximate="tanh"),
                          ("bias",)),
    "relu": Function(lambda acc, bias: tw.relu(acc + bias), F.relu, ("bias",)),
    "residual": Function(lambda acc, bias, res: acc + bias + res, lambda y, res: y + res, ("bias", "res")),
    "swiglu": Function(swiglu, torch_swiglu),
    "fp8": Function(lambda acc, scale: acc*scale, lambda y, scale: (y*scale).to(torch.float8_e4m3fn), ("scale",),
                    "e4m3fn"),
}
LARGE, MODEL, FEW = (4096, 4096, 4096), (8192, 28672, 8192), (16, 28672, 8192)
CASES = [*((name, LARGE) for name in FUNCTIONS), ("gelu", MODEL), ("swiglu", MODEL), ("gelu", FEW), ("swiglu", FEW)]
HOST = 256


class Case:
    """One function of products of one size, of bf16 with both operands' k contiguous, as a layer of torch has them."""

    def __init__(self, on: TorchDevice, name: str, size: tuple[int, int, int]) -> None:
        self.on, self.f, (m, n, k) = on, FUNCTIONS[name], size
        count = sets(2*(m*k + n*k + m*n), on.on.target.l2)
        torch.manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, device=on.name).to(torch.bfloat16)
        self.sets = [(random(m, k), random(n, k)) for _ in range(count)]
        every = {"bias": random(n), "res": random(m, n), "scale": torch.tensor(0.25, device=on.name)}
        self.operands = {x: every[x] for x in self.f.operands}
        torch.compiler.reset()                          # which else stops compiling one function for more than 8 cases
        self.compiled = torch.compile(self.by_torch, dynamic=False)

    def by_torch(self, a: Tensor, b: Tensor) -> Tensor:
        others = {name: x for name, x in self.operands.items() if name != "bias"}
        return self.f.torchs(F.linear(a, b, self.operands.get("bias")), **others)

    def sides(self) -> dict[str, list[Launch]]:
        ours = partial(tw.matmul, epilogue=self.f.ours, operands=self.operands, out_dtype=self.f.out)
        outs = [torch.empty_like(a[:, :1].expand(-1, len(b)).contiguous()) for a, b in self.sets]
        return {"tilewright": [partial(ours, a, b.T) for a, b in self.sets],
                "product": [partial(tw.matmul, a, b.T, out) for (a, b), out in zip(self.sets, outs)],
                "cublas": [partial(torch.mm, a, b.T, out=out) for (a, b), out in zip(self.sets, outs)],
                "eager": [partial(self.by_torch, a, b) for a, b in self.sets],
                "compiled": [partial(self.compiled, a, b) for a, b in self.sets]}

    def wrong(self, launch: Launch) -> str:
        """Why what it computes is not right; "" if it is."""
        a, b = self.sets[0]
        operands = {x: y.double()[:512] if x == "res" else y.double() for x, y in self.operands.items()}
        wide = a[:512].double() @ b.double().T + operands.pop("bias", 0)
        wanted = self.f.torchs(wide, **operands).double()
        found = launch()[:512].double()
        eps = 2.0**-4 if self.f.out == "e4m3fn" else 2.0**-8
        size = wanted.abs() + wide.abs().mean()         # torch rounds the product, and each step after it, to bf16
        error = ((found - wanted).abs() / size).max().item()
        return f"error {error:.1e}" if not error < 4*eps else ""

    def track(self, calls: Any) -> GraphTrack:
        return GraphTrack(self.on, [partial(function, *args) for function, args in calls])


def measured(on: TorchDevice, name: str, size: tuple[int, int, int], rules: GpuRules) -> dict[str, Any]:
    case = Case(on, name, size)
    sides, failed = case.sides(), dict[str, str]()
    for side, launches in list(sides.items()):
        try:
            failed[side] = case.wrong(launches[0]) if side in ("tilewright", "eager", "compiled") else ""
            for launch in launches[1:]:
                launch()
        except Exception as error:                      # a function that torch cannot compile, say
            failed[side] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
        if failed[side]:
            del sides[side]
    on.wait()
    found = interleave({side: [(x, ()) for x in launches] for side, launches in sides.items()}, rules, track=case.track)
    problem = tw.Gemm(*size, "bf16", out="bf16", layout="nt")
    return {"function": name, "size": list(size), "plan": str(tw.plan(problem, on.on.target)),
            "failed": {side: why for side, why in failed.items() if why},
            "seconds": {side: list(sample.seconds) for side, sample in found.items()}}


def host(on: TorchDevice) -> dict[str, list[float]]:
    """Seconds that a call takes to come back, of small matrices."""
    case = Case(on, "gelu", (HOST, HOST, HOST))
    (a, b), out = case.sets[0], torch.empty(HOST, HOST, device=on.name, dtype=torch.bfloat16)
    f, operands = case.f, case.operands
    made = tw.epilogue(f.ours, bias="bf16 row")
    return host_cost({
        "matmul": partial(tw.matmul, a, b.T, out), "with a function": partial(
            tw.matmul, a, b.T, out, epilogue=f.ours, operands=operands),
        "with tw.epilogue's": partial(tw.matmul, a, b.T, out, epilogue=made, operands=operands),
        "torch.mm": partial(torch.mm, a, b.T, out=out), "F.gelu(F.linear)": partial(case.by_torch, a, b)}, on.wait)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(FUNCTIONS), help=", ".join(FUNCTIONS))
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--out", type=Path, default=Path("epilogues.json"))
    options = results.options(parser, "out")
    on, began = TorchDevice(), time.perf_counter()
    report = results.Report.start("epilogues")
    report.machine["gpu"] = on.describe()
    report.extra["host"] = {name: list(seconds) for name, seconds in host(on).items()}
    for name, seconds in report.extra["host"].items():
        print(f"host: {name:20} {statistics.median(seconds)*1e6:6.1f} us", flush=True)
    report.extra["epilogues"] = found = []
    rules = GpuRules(max_rounds=7 if options.quick else 15, budget_s=1.5 if options.quick else 3.0)
    for name, size in CASES:
        if name not in options.cases:
            continue
        x = measured(on, name, size, rules)
        found.append(x)
        ours = x["seconds"]["tilewright"]
        each = ", ".join(f"{side} {spread(ratios(seconds, ours)).median:.3f}" for side, seconds in x["seconds"].items())
        print(f"{name:10} {'x'.join(map(str, size)):16} {statistics.median(ours)*1e6:7.1f} us; times of it: {each} "
              f"{x['failed']} ({time.perf_counter() - began:.0f} s)", flush=True)
        results.save(report, options.out)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
