"""tilewright.torch on one NVIDIA GPU: operators and layers beside torch's, captured, compiled, and in a decode step.

    python bench/torch_device.py check host decode [--quick] [--layers N] [--batch N] [--out FILE]

1. Checks. Every operator and layer on the GPU beside float64; captured in a CUDA graph, replayed on new operands; by
   torch.compile(fullgraph=True); a training step of a small model beside torch's. A check that fails is printed and is
   in the report: nothing of it is timed.
2. A decode step of a Llama-like model (4096 wide, 14336 between, 32 heads on 8 of keys, a cache of 1024 positions),
   with weights from a seed: torch in bf16 beside tilewright's layers, all captured in CUDA graphs, which take turns.
   The target of int4 is 2.5 of torch's bf16. The logits are compared with those of the model with the same weights
   dequantised to bf16, by torch.
3. What a call of an operator costs the host, beside torch's.
"""
from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tilewright.torch as twt
from bench.gpu_costs import host_cost
from tilewright.bench import results
from tilewright.bench.gpu_device import TorchDevice
from tilewright.measure.gpu_rules import GpuRules, GraphTrack
from tilewright.measure.measure import interleave, ratios, spread

Tensor = Any
WIDTH, BETWEEN, HEADS, KV_HEADS, POSITIONS, VOCABULARY = 4096, 14336, 32, 8, 1024, 32000
KINDS = ("float", "fp8", "int8", "int4", "mxfp4")
TARGET = {"int4": 2.5}
BF16 = torch.bfloat16


# ---- the model


class Layer(nn.Module):
    """One layer, for one new position of each sequence; keys and values of earlier ones are in a cache."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.head = WIDTH // HEADS
        self.qkv = nn.Linear(WIDTH, (HEADS + 2*KV_HEADS)*self.head, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2*BETWEEN, bias=False)
        self.down = nn.Linear(BETWEEN, WIDTH, bias=False)
        self.norms = nn.ParameterList(torch.ones(WIDTH) for _ in range(2))
        cache = torch.randn(2, batch, KV_HEADS, POSITIONS, self.head)*0.5
        self.register_buffer("cache", cache, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        q, k, v = self.qkv(F.rms_norm(x, (WIDTH,), self.norms[0])).split(
            [HEADS*self.head, KV_HEADS*self.head, KV_HEADS*self.head], -1)
        keys, values = self.cache
        keys[:, :, -1], values[:, :, -1] = (t.view(batch, KV_HEADS, self.head) for t in (k, v))
        y = F.scaled_dot_product_attention(q.view(batch, HEADS, 1, self.head), keys, values, enable_gqa=True)
        x = x + self.out(y.reshape(batch, WIDTH))
        gate, up = self.gate_up(F.rms_norm(x, (WIDTH,), self.norms[1])).chunk(2, -1)
        return x + self.down(F.silu(gate)*up)


class Model(nn.Module):
    def __init__(self, layers: int, batch: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(batch) for _ in range(layers))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(F.rms_norm(x, (WIDTH,)))


def dequantized(net: nn.Module) -> nn.Module:
    """The same weights in bf16 in layers of torch's."""
    for name, module in list(net.named_modules()):
        if hasattr(module, "dequantized"):
            plain = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
            plain.weight = nn.Parameter(module.dequantized().to("cuda", BF16), requires_grad=False)
            parent, _, child = name.rpartition(".")
            setattr(net.get_submodule(parent), child, plain)
    return net


# ---- checks


def captured(f: Callable[..., Tensor], *given: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """The graph of a call, and its result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):      # plans, kernels and workspaces are made before the capture
            f(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = f(*given)
    return graph, result


def near(found: Tensor, wanted: Tensor, tolerance: float) -> str:
    error = ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()
    return "" if error <= tolerance else f"error {error:.1e}, at most {tolerance:.0e} allowed"


def operators() -> dict[str, tuple[Callable[..., Tensor], list[Tensor], Callable[..., Tensor], float]]:
    """By name: ours, its arguments, what it should be, and the error that is allowed."""
    def rand(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
        return torch.randn(shape, device="cuda").to(dtype)

    found: dict[str, Any] = {}
    for dtype, tolerance in ((BF16, 4e-3), (torch.float16, 5e-4), (torch.float32, 1e-6)):
        name = str(dtype).removeprefix("torch.")
        a, b = rand(300, 512, dtype=dtype), rand(200, 512, dtype=dtype).t()
        found[f"mm {name}"] = twt.mm, [a, b], torch.mm, tolerance
        a, b = rand(3, 70, 64, dtype=dtype), rand(3, 64, 48, dtype=dtype)
        found[f"bmm {name}"] = twt.bmm, [a, b], torch.bmm, tolerance
        given = [rand(5, 60, 512, dtype=dtype), rand(256, 512, dtype=dtype), rand(256, dtype=dtype)]
        for activation in ("none", "gelu", "silu", "relu"):
            function = twt.functions.ops.ACTIVATIONS[activation]
            found[f"linear {activation} {name}"] = (
                partial(twt.linear, activation=activation), given,
                lambda *x, function=function: function(F.linear(*x)), tolerance)
    (a, scale_a), (b, scale_b) = (twt.quantize_rows(rand(n, 512)) for n in (96, 160))
    found["scaled_mm"] = (
        lambda a, b, s, t: twt.scaled_mm(a, b.t(), s, t.t(), out_dtype=BF16), [a, b, scale_a, scale_b],
        lambda a, b, s, t: (a*s) @ (b*t).t(), 4e-3)
    for kind in KINDS[1:]:
        layer = twt.convert(nn.Linear(1024, 512, device="cuda", dtype=BF16), kind)
        weight, bias = layer.dequantized().double().cuda(), layer.bias.double()
        for rows in (1, 16, 100):
            found[f"{kind} layer, {rows} rows"] = (
                layer, [rand(rows, 1024)], lambda x, w=weight, c=bias: x @ w.t() + c, 0.04 if kind == "fp8" else 4e-3)
    return found


def check_operator(ours: Callable[..., Tensor], given: list[Tensor], wanted: Callable[..., Tensor],
                   tolerance: float) -> dict[str, str]:
    """What is wrong, by the way of running it."""
    failed = {}
    with torch.no_grad():
        exact = [x.double() for x in given]
        for way in ("eager", "graph", "compiled"):
            try:
                if way == "graph":
                    graph, result = captured(ours, *given)
                    kept = [x.clone() for x in given]
                    if given[0].is_floating_point() and given[0].itemsize > 1:
                        given[0].mul_(-2)       # a replay reads what is there then
                        exact[0] = given[0].double()
                    graph.replay()
                    wrong = near(result, wanted(*exact), tolerance)
                    for x, y in zip(given, kept):
                        x.copy_(y)
                    exact = [x.double() for x in given]
                else:
                    f = ours if way == "eager" else torch.compile(ours, fullgraph=True)
                    wrong = near(f(*given), wanted(*exact), tolerance)
            except Exception as error:
                wrong = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
            if wrong:
                failed[way] = wrong
    return failed


def check_training() -> str:
    """Loss and gradients of a step beside torch's in float64, no farther than torch's own by half."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64)).cuda()
    x, target = torch.randn(96, 256, device="cuda"), torch.randint(0, 64, (96,), device="cuda")
    sides = {"torch": copy.deepcopy(net).to(BF16), "ours": twt.convert(copy.deepcopy(net).to(BF16)),
             "exact": copy.deepcopy(net).to(BF16).double()}
    for side, model in sides.items():
        F.cross_entropy(model(x.double() if side == "exact" else x.to(BF16)).double(), target).backward()
    for parameters in zip(*(model.parameters() for model in sides.values())):
        theirs, ours, exact = (p.grad.double() for p in parameters)
        if (ours - exact).norm() > 1.5*(theirs - exact).norm() + 1e-3*exact.norm():
            return f"a gradient of {tuple(exact.shape)} is {(ours - exact).norm()/exact.norm():.1e} off"
    return ""


# ---- the decode step


def decode(on: TorchDevice, layers: int, batch: int, rules: GpuRules) -> dict[str, Any]:
    torch.manual_seed(0)
    with torch.device("cuda"), torch.no_grad():
        base = Model(layers, batch).to(BF16).eval()
    tokens = torch.randint(0, VOCABULARY, (batch,), device="cuda")
    failed: dict[str, str] = {}
    sides: dict[str, Any] = {}
    for kind in ("torch", *KINDS):
        try:
            with torch.no_grad():
                net = copy.deepcopy(base)
                if kind != "torch":
                    twt.convert(net, kind)
                found = net(tokens)
                like = base if kind in ("torch", "float") else dequantized(copy.deepcopy(net))
                wrong = near(found, like(tokens), 0.1 if kind == "fp8" else 0.03)
                del like
                torch.cuda.empty_cache()
                graph, result = captured(net, tokens)
                graph.replay()
                wrong = wrong or near(result, found, 1e-2)
        except Exception as error:
            wrong = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
        if wrong:
            failed[kind] = wrong
        else:
            sides[kind] = net, graph

    def track(calls: Any) -> GraphTrack:
        """The decode step is a graph already, and reads more weights than the L2 cache holds."""
        found = GraphTrack(on, [partial(function, *args) for function, args in calls])
        found.device = Replays(on)
        return found

    timed = interleave({kind: [(graph.replay, ())] for kind, (_, graph) in sides.items()}, rules, track=track)
    return {"layers": layers, "batch": batch, "failed": failed,
            "seconds": {kind: list(sample.seconds) for kind, sample in timed.items()}}


class Replays:
    """A device whose launches are graphs, which are launched one after the other instead of being captured."""

    def __init__(self, on: TorchDevice) -> None:
        self.mark, self.seconds, self.flush = on.mark, on.seconds, on.flush

    def graph(self, launches: Any) -> Callable[[], None]:
        def run() -> None:
            for launch in launches:
                launch()
        return run


def host(on: TorchDevice) -> dict[str, list[float]]:
    a, w, c = (torch.randn(n, 64, device="cuda", dtype=BF16) for n in (64, 64, 1))
    with torch.no_grad():
        return host_cost({
            "torch.mm": partial(torch.mm, a, w.t()), "mm": partial(twt.mm, a, w.t()),
            "F.linear": partial(F.linear, a, w, c[0]), "linear": partial(twt.linear, a, w, c[0])}, on.wait)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=["check", "host", "decode"], choices=["check", "host", "decode"])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("torch_device.json"))
    options = parser.parse_args()
    on = TorchDevice()
    report = results.Report.start("torch")
    report.machine["gpu"] = on.describe()
    failed = False
    if "host" in options.jobs:
        report.extra["host"] = costs = {name: list(seconds) for name, seconds in host(on).items()}
        for name, seconds in costs.items():
            print(f"host: {name:10} {statistics.median(seconds)*1e6:6.1f} us", flush=True)
    if "decode" in options.jobs:
        rules = GpuRules(max_rounds=7 if options.quick else 15, budget_s=3.0 if options.quick else 8.0)
        report.extra["decode"] = found = decode(on, options.layers, options.batch, rules)
        for kind, seconds in found["seconds"].items():
            ratio = spread(ratios(found["seconds"]["torch"], seconds)).median if "torch" in found["seconds"] else 0.0
            print(f"decode: {kind:6} {statistics.median(seconds)*1e6:8.1f} us, {ratio:.2f} of torch's bf16"
                  + (f" (target {TARGET[kind]})" if kind in TARGET else ""), flush=True)
        for kind, why in found["failed"].items():
            print(f"decode: {kind:6} {why}", flush=True)
        failed |= bool(found["failed"])
    if "check" in options.jobs:
        report.extra["checks"] = checks = {"training": check_training()}
        print(f"training: {checks['training'] or 'right'}", flush=True)
        for name, how in operators().items():
            checks[name] = wrong = check_operator(*how)
            print(f"{name}: {wrong or 'right in eager mode, in a graph, compiled'}", flush=True)
        failed |= any(checks.values())
    results.save(report, options.out)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
