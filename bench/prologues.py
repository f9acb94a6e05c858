"""Products with a prologue on one NVIDIA GPU: weights of few bits beside bf16 ones, and an activation of A.

    python bench/prologues.py [--quick] [--rows M,M...] [--plan TEXT]... [--out FILE] [CASE]...

bf16 activations [m, 8192] by weights [28672, 8192] as a layer of torch has them, for m of 1, 4 and 16, each kind of
weights in one interleaved run with bf16 weights, in CUDA graphs over operands that rotate through more than the L2
cache:

    tilewright      matmul by the weights as they are stored
    bf16            matmul by bf16 weights of these sizes
    cublas          torch.mm by these
    eager           torch makes bf16 of the weights, and multiplies

    TEXT            matmul by this plan instead; {count} stands for 8 or the rows of A, if these are more, {vector}
                    for 16 bytes of weights

silu: silu(A) B of 4096, beside the product alone and F.silu before torch.mm. Every side that decodes is compared with
float64 before it is timed; `predicted` is what the planner's model says of the kernel's plan.
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
from tilewright.expressions.prologue import Prologue
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Nibbles, Scaled
from tilewright.formats.table import BLOCK_FORMATS
from tilewright.lab.bench import results
from tilewright.lab.bench.gpu_device import TorchDevice
from tilewright.lab.measure.gpu_rules import GpuRules, GraphTrack, sets
from tilewright.lab.measure.measure import interleave, ratios, spread
from tilewright.plans import gpu, gpu_shape, prologues

Tensor = Any
Launch = Callable[[], Any]
N, K, GROUP = 28672, 8192, 128
ROWS = 1, 4, 16
CHECKED = 256           # columns whose products are compared with float64
E2M1 = 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0


@dataclass(frozen=True)
class Weights:
    """[n, k], contiguous along k. `numbers(first, last)`: of these rows, in float64; bytes of all."""
    given: Any                                      # b of matmul, with trans_b
    options: dict[str, Any]
    numbers: Callable[[int, int], Tensor]
    bf16: Callable[[], Tensor]                      # by torch's own operations
    bytes: int
    text: str                                       # of the prologue


def _text(source: str, scale: str, group: int) -> str:
    made = tw.prologue(lambda b, s: b*s, source.removesuffix("x2"), "bf16", s=f"{scale} full/{group}").text
    return made if source[-2:] != "x2" else made.replace(f"{source[:-2]} bf16", f"{source} bf16")


def of_bytes(kind: str, n: int, k: int, device: str) -> Weights:
    """i8 or e4m3fn, with scales of groups."""
    w = torch.randint(-127, 128, (n, k), device=device, dtype=torch.int8)
    if kind == "e4m3fn":
        w = (w.to(torch.bfloat16) / 16).to(torch.float8_e4m3fn)
    s = torch.rand(n, k // GROUP, device=device) / 64 + 1/64
    text = _text(kind, "f32", GROUP)
    options = {"prologue_b": Prologue.read(text), "operands": {"s": s.T}}

    def numbers(first: int, last: int) -> Tensor:
        return w[first:last].double() * s[first:last].double().repeat_interleave(GROUP, 1)
    return Weights(w.T, options, numbers, lambda: (w.float().view(n, -1, GROUP) * s[..., None]).view(n, k).bfloat16(),
                   n*k + 4*s.numel(), text)


def digits(w: Tensor) -> Tensor:
    """The two numbers of each byte, the first one in its lower half."""
    return torch.stack([w & 15, w >> 4], -1).flatten(-2)


def i4(n: int, k: int, device: str) -> Weights:
    w = torch.randint(0, 256, (n, k // 2), device=device, dtype=torch.uint8)
    s = torch.rand(n, k // GROUP, device=device) / 8 + 1/8
    q = Scaled(w, s, None, GROUP, Nibbles("i4", -1, k))

    def wide(x: Tensor, y: Tensor) -> Tensor:
        of = digits(x).to(y.dtype)
        return (torch.where(of > 7, of - 16, of).view(len(x), -1, GROUP) * y[..., None]).view(len(x), k)
    return Weights(q, {"trans_b": True}, lambda first, last: wide(w[first:last], s[first:last].double()),
                   lambda: wide(w, s).bfloat16(), n*k // 2 + 4*s.numel(), _text("i4x2", "f32", GROUP))


def mxfp4(n: int, k: int, device: str) -> Weights:
    f = BLOCK_FORMATS["mxfp4"]
    w = torch.randint(0, 256, (n, k // 2), device=device, dtype=torch.uint8)
    s = torch.randint(122, 128, (n, k // f.block), device=device, dtype=torch.uint8)
    q, table = Quantized(w, s, (n, k), f), torch.tensor([*E2M1, *(-x for x in E2M1)], device=device)

    def wide(x: Tensor, y: Tensor, dtype: Any) -> Tensor:
        of = table.to(dtype)[digits(x).int()].view(len(x), -1, f.block)
        return (of * torch.exp2(y.to(dtype) - 127)[..., None]).view(len(x), k)
    return Weights(q, {"trans_b": True}, lambda first, last: wide(w[first:last], s[first:last], torch.float64),
                   lambda: wide(w, s, torch.float32).bfloat16(), n*k // 2 + s.numel(),
                   _text("e2m1x2", "e8m0", f.block))


KINDS: dict[str, Callable[[int, int, str], Weights]] = {
    "i8": partial(of_bytes, "i8"), "e4m3fn": partial(of_bytes, "e4m3fn"), "i4": i4, "mxfp4": mxfp4}
CASES = *KINDS, "silu"
VECTORS = {"i8": 16, "e4m3fn": 16, "i4": 32, "mxfp4": 32}


def predicted(m: int, n: int, k: int, text: str, target: Any) -> dict[str, Any]:
    """The planner's kernel for these weights, and its time by the model."""
    shape = gpu_shape.shape("bf16", "bf16", "bf16", m, n, k, "nt", prologue_b=text)
    plan = gpu.choose(shape, target)
    return {"plan": str(plan), "predicted": gpu.cost(shape, plan, target).seconds,
            "instructions": prologues.paired(text) or prologues.instructions(text, GROUP)}


def wrong(launch: Launch, a: Tensor, weights: Weights) -> str:
    """Why a product is not right; "" if it is."""
    try:
        found = launch()
    except ValueError as unfit:
        return str(unfit)
    b = weights.numbers(0, CHECKED).T
    wanted, size = a.double() @ b, a.double().abs() @ b.abs()
    error = ((found[:, :CHECKED].double() - wanted).abs() / size).max().item()
    return f"error {error:.1e}" if not error < 2.0**-7 else ""


def products(on: TorchDevice, kind: str, m: int, plans: list[str]) -> tuple[dict[str, list[Launch]], dict[str, Any]]:
    """Sides, and what is known of ours."""
    first = KINDS[kind](N, K, on.name)
    count = sets(first.bytes, on.on.target.l2)
    every = [first, *(KINDS[kind](N, K, on.name) for _ in range(count - 1))]
    a = torch.randn(m, K, device=on.name).bfloat16()
    wide = [torch.randn(N, K, device=on.name).bfloat16() for _ in range(sets(2*N*K, on.on.target.l2))]
    sides: dict[str, list[Launch]] = {
        "tilewright": [partial(tw.matmul, a, w.given, out_dtype="bf16", **w.options) for w in every],
        "bf16": [partial(tw.matmul, a, w.T, out_dtype="bf16") for w in wide],
        "cublas": [partial(torch.mm, a, w.T) for w in wide],
        "eager": [lambda w=w: a @ w.bf16().T for w in every]}                   # type: ignore[misc]
    for text in plans:
        text = text.format(count=max(m, 8), vector=VECTORS[kind])
        sides[text] = [partial(tw.matmul, a, w.given, out_dtype="bf16", plan=text, **w.options) for w in every]
    failed = {side: why for side, launches in sides.items()
              if side not in ("bf16", "cublas") and (why := wrong(launches[0], a, first))}
    known = {"weights": kind, "size": [m, N, K], "bytes": first.bytes, "failed": failed,
             **predicted(m, N, K, first.text, on.on.target)}
    return {side: launches for side, launches in sides.items() if side not in failed}, known


def activation(on: TorchDevice, size: int = 4096) -> tuple[dict[str, list[Launch]], dict[str, Any]]:
    count = sets(6*size*size, on.on.target.l2)
    every = [[torch.randn(size, size, device=on.name).bfloat16() for _ in range(2)] for _ in range(count)]
    sides: dict[str, list[Launch]] = {
        "tilewright": [partial(tw.matmul, a, b.T, prologue_a=tw.silu, out_dtype="bf16") for a, b in every],
        "bf16": [partial(tw.matmul, a, b.T, out_dtype="bf16") for a, b in every],
        "eager": [lambda a=a, b=b: F.silu(a) @ b.T for a, b in every]}          # type: ignore[misc]
    a, b = every[0]
    wanted = F.silu(a[:64].double()) @ b.double().T
    error = ((sides["tilewright"][0]()[:64].double() - wanted).abs() / wanted.abs().mean()).max().item()
    made = tw.prologue(tw.silu, "bf16", "bf16")
    problem = tw.Gemm(size, size, size, "bf16", out="bf16", layout="nt", prologue_a=made)
    known = {"weights": "silu", "size": [size]*3, "plan": str(tw.plan(problem, on.on.target)),
             "failed": {"tilewright": f"error {error:.1e}"} if not error < 0.1 else {}}
    return sides, known


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--rows", type=lambda text: [int(m) for m in text.split(",")], default=list(ROWS))
    parser.add_argument("--plan", action="append", default=[], help="to time as well")
    parser.add_argument("--out", type=Path, default=Path("prologues.json"))
    options = results.options(parser, "out")
    on, began = TorchDevice(), time.perf_counter()
    torch.manual_seed(0)
    report = results.Report.start("prologues")
    report.machine["gpu"] = on.describe()
    report.extra["prologues"] = found = []
    rules = GpuRules(max_rounds=7 if options.quick else 15, budget_s=1.5 if options.quick else 3.0)
    made = [(name, partial(products, on, name, m, options.plan)) for name in KINDS for m in options.rows]
    for name, case in (*made, ("silu", partial(activation, on))):
        if name not in options.cases:
            continue
        sides, known = case()
        for launches in sides.values():
            for launch in launches:
                launch()
        on.wait()
        samples = interleave({side: [(x, ()) for x in launches] for side, launches in sides.items()}, rules,
                             track=lambda calls: GraphTrack(on, [partial(function, *args) for function, args in calls]))
        known["seconds"] = {side: list(sample.seconds) for side, sample in samples.items()}
        found.append(known)
        ours = known["seconds"].get("tilewright", [float("nan")])
        each = ", ".join(f"{side} {spread(ratios(seconds, ours)).median:.3f}"
                         for side, seconds in known["seconds"].items())
        rate = f" {known['bytes'] / statistics.median(ours) / 1e12:.2f} TB/s" if "bytes" in known else ""
        expected = f", predicted {known['predicted']*1e6:.1f}" if "predicted" in known else ""
        print(f"{name:8} {'x'.join(map(str, known['size'])):16} {statistics.median(ours)*1e6:7.1f} us{expected}{rate}; "
              f"times of it: {each} {known['failed']} ({time.perf_counter() - began:.0f} s)", flush=True)
        results.save(report, options.out)
        del sides, samples
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
