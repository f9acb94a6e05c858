"""tilewright.torch on one NVIDIA GPU: operators and layers beside torch's, captured, compiled, and in a decode step.

    python bench/torch_device.py [check] [host] [decode] [--quick] [--kinds int4 ...] [--layers N] [--batch N]
                                 [--compiled] [--only PATTERN ...]
                                 [--out FILE]

check    Every operator and layer on the GPU beside float64; captured in a CUDA graph, replayed on new operands; by
         torch.compile(fullgraph=True); a training step of a small model beside torch's.
host     What a call of an operator costs the host, beside torch's.
decode   A decode step with narrow weights beside torch's bf16: bench/decode_step.py. --compiled: what is not a product
         by torch.compile, in both.

A check that fails is printed and is in the report, which is written after each part: nothing of it is timed.
"""
from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tilewright as tw
import tilewright.torch as twt
from bench import decode_step
from bench.decode_step import BF16, KINDS, captured, near
from bench.gpu_costs import host_cost
from tilewright.lab.bench import results
from tilewright.lab.bench.gpu_device import TorchDevice
from tilewright.lab.measure.gpu_rules import GpuRules
from tilewright.torch.quantization import BLOCKS, dequantize, quantize, rows_in_fp8

Tensor = Any


# ---- checks


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
        a, b = rand(20, 30, 64, dtype=dtype), rand(40, 64, 30, dtype=dtype)
        found[f"einsum {name}"] = (partial(twt.einsum, "abk,ckb->ac"), [a, b], partial(torch.einsum, "abk,ckb->ac"),
                                   tolerance)
        given = [rand(5, 60, 512, dtype=dtype), rand(256, 512, dtype=dtype), rand(256, dtype=dtype)]
        for activation in ("none", "gelu", "silu", "relu"):
            function = twt.functions.ops.ACTIVATIONS[activation]
            found[f"linear {activation} {name}"] = (
                partial(twt.linear, activation=activation), given,
                lambda *x, function=function: function(F.linear(*x)), tolerance)
        found[f"linear and sums {name}"] = (
            lambda *x: torch.cat(torch.ops.tilewright.linear_sums(*x, "gelu"), -1), given,
            lambda *x: torch.cat([F.gelu(F.linear(*x)), F.linear(*x)], -1), tolerance)
    for dtype in (BF16, torch.float16, torch.float32):
        x = rand(5, 300, dtype=dtype)
        found[f"quantize_rows {dtype}"] = lambda x: torch.cat([t.float() for t in twt.quantize_rows(x)], 1), [x], (
            lambda x: torch.cat([t.float() for t in rows_in_fp8(x.float())], 1)), 0.0
    (a, scale_a), (b, scale_b) = (twt.quantize_rows(rand(n, 512)) for n in (96, 160))
    found["scaled_mm"] = (
        lambda a, b, s, t: twt.scaled_mm(a, b.t(), s, t.t(), out_dtype=BF16), [a, b, scale_a, scale_b],
        lambda a, b, s, t: (a*s) @ (b*t).t(), 4e-3)
    for kind in KINDS[:-1]:
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
            torch._dynamo.reset()       # partials of one function are one code, compiled eight times at most
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


def check_quantization() -> str:
    """Weights that are quantised on the GPU have the bits of those that are on the CPU, and mean the same numbers."""
    x = torch.randn(70, 200)
    x[1], x[2], x[3] = 0, x[2]*1e-30, torch.arange(200)/8 - 12
    for dtype in (BF16, torch.float16, torch.float32):
        for format, group, zero_points in (("i8", None, False), ("u8", 48, True), ("i4", 32, False), ("u4", 64, True),
                                           *((name, None, False) for name in BLOCKS)):
            sides = [quantize(x.to(device, dtype), format, group, zero_points) for device in ("cpu", "cuda")]
            numbers = [dequantize(q["elements"], q["scales"], q["zeros"], format, group or 0, q["tensor_scale"], 200)
                       for q in sides]
            for name in ("elements", "scales", "zeros"):
                one, other = (q[name] for q in sides)
                if one is not None and not torch.equal(one, other.cpu()):
                    return f"{name} of {format} from {dtype}: {(one != other.cpu()).sum()} differ"
            if not torch.equal(numbers[0], numbers[1].cpu()):
                return f"numbers of {format} from {dtype} differ"
    return ""


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


def check_tangents() -> str:
    """Forward-mode derivatives beside torch's of the same functions in float64."""
    x, w, t = (torch.randn(n, 48, device="cuda") for n in (20, 30, 20))
    for name, ours, exact in (
            ("mm", lambda x: twt.mm(x, w.t()), lambda x: x @ w.t().double()),
            ("linear", lambda x: twt.linear(x, w, activation="gelu"), lambda x: F.gelu(x @ w.t().double())),
            ("einsum", lambda x: twt.einsum("ik,jk->ij", x, w), lambda x: x @ w.t().double())):
        wanted = torch.func.jvp(exact, (x.double(),), (t.double(),))[1]
        if wrong := near(torch.func.jvp(ours, (x,), (t,))[1], wanted, 1e-5):
            return f"the tangent of {name}: {wrong}"
    return ""


def check_checkpoints() -> str:
    """Layers of weights that were quantised elsewhere, moved to the GPU, down to one input and one block."""
    layers = {16: twt.WeightLinear.from_linear(nn.Linear(16, 40, bias=False, device="cuda"), "mxfp4")}
    for inputs, format, group in (96, "i4", 32), (64, "i8", None), (32, "mxfp4", None), (1, "i4", None):
        weight = np.random.default_rng(0).standard_normal((40, inputs), np.float32)
        quantised = tw.quantize(weight, format, **({"group": group} if group else {}))
        layers[inputs] = twt.WeightLinear.from_weight(quantised).to("cuda")
    for inputs, layer in layers.items():
        x = torch.randn(3, inputs, device="cuda")
        if wrong := near(layer(x), x.double() @ layer.dequantized().double().cuda().t(), 1e-5):
            return f"a layer of {inputs} inputs: {wrong}"
    return ""


def host(on: TorchDevice) -> dict[str, list[float]]:
    a, w, c = (torch.randn(n, 64, device="cuda", dtype=BF16) for n in (64, 64, 1))
    narrow = twt.convert(nn.Linear(1024, 512, device="cuda", dtype=BF16, bias=False), "int4")
    blocks = twt.convert(nn.Linear(1024, 512, device="cuda", dtype=BF16, bias=False), "mxfp4")
    plain = nn.Linear(1024, 512, device="cuda", dtype=BF16, bias=False)
    row = torch.randn(1, 1024, device="cuda", dtype=BF16)
    t, out = w.t(), torch.empty(64, 64, device="cuda", dtype=BF16)
    with torch.no_grad():
        return host_cost({
            "torch.mm": partial(torch.mm, a, t), "tw.matmul": partial(tw.matmul, a, t),
            "tw.matmul with out": partial(tw.matmul, a, t, out), "mm": partial(twt.mm, a, t),
            "F.linear": partial(F.linear, a, w, c[0]), "linear": partial(twt.linear, a, w, c[0]),
            "nn.Linear": partial(plain, row), "int4 layer": partial(narrow, row),
            "mxfp4 layer": partial(blocks, row)}, on.wait)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=["check", "host", "decode"], choices=["check", "host", "decode"])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--only", nargs="*", default=["*"], help="which operators and layers to check: patterns")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="what is not a product by torch.compile")
    parser.add_argument("--out", type=Path, default=Path("torch_device.json"))
    options = results.options(parser, "out")
    on = TorchDevice()
    report = results.Report.start("torch")
    report.machine["gpu"] = on.describe()
    failed = False
    if "host" in options.jobs:
        report.extra["host"] = costs = {name: list(seconds) for name, seconds in host(on).items()}
        for name, seconds in costs.items():
            print(f"host: {name:18} {statistics.median(seconds)*1e6:6.1f} us", flush=True)
        results.save(report, options.out)
    if "decode" in options.jobs:
        rules = GpuRules(max_rounds=7 if options.quick else 15, budget_s=1.5 if options.quick else 4.0)
        for kind, found in zip(options.kinds, decode_step.decode(
                on, options.layers, options.batch, rules, options.kinds, options.compiled)):
            print(decode_step.described(found, kind), flush=True)
            report.extra["decode"] = found
            results.save(report, options.out)
            failed |= bool(found["failed"])
        print({side: found["took"][side] for side in ("built", "torch")}, flush=True)
    if "check" in options.jobs:
        report.extra["checks"] = checks = {"training": check_training(), "quantization": check_quantization(),
                                                   "tangents": check_tangents(), "checkpoints": check_checkpoints()}
        print(*(f"{name}: {wrong or 'right'}" for name, wrong in checks.items()), sep="\n", flush=True)
        for name, how in operators().items():
            if not any(fnmatch(name, pattern) for pattern in options.only):
                continue
            checks[name] = wrong = check_operator(*how)
            print(f"{name}: {wrong or 'right in eager mode, in a graph, compiled'}", flush=True)
            results.save(report, options.out)
        failed |= any(checks.values())
    results.save(report, options.out)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
