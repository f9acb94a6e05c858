"""Attention's gradients on a GPU: tilewright's kernel, with --ordered also with an order, and its five products, beside
those of cuDNN and FlashAttention through torch, in CUDA graphs.

    python bench/attention_backward.py [--ordered] [--plans] [--sizes 128,64] [--lengths 1024,4096,16384]
                                       [--rounds 5] [--alone] [--compile] [--out FILE]

Queries, keys and values [16384 / L, 2048 / D, L, D] in bf16. The gradients of the last head of the last sequence are
compared with float64 by their norms before anything is timed. Rates count five products of the pairs that a query sees,
2.5 times those of the forward pass, however many a side computes; the forward pass, which `tilewright bench attention`
has, is not timed. --compile compiles the kernels, and ends.
"""
from __future__ import annotations

import argparse
import math
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tilewright.attention_problem import Attention
from tilewright.lab.bench import results

MAIN = "tilewright.kernels.nvidia.attention_backward:emit_attention_backward"
ENDS = "tilewright.kernels.nvidia.attention_backward_ends:emit_"
PLANS = {128: ("64x128 stages=2", "64x128 stages=2 ahead"),
         64: ("128x128 stages=2", "64x128 stages=2", "64x128 stages=3 ahead")}
NEAR = 1e-2                     # of a gradient's norm


def every(asked: Any) -> list[tuple[Any, str | None]]:
    """Problems, with plans: None is the one that is chosen."""
    found: list[tuple[Any, str | None]] = []
    for d in map(int, asked.sizes.split(",")):
        for length in map(int, asked.lengths.split(",")):
            for causal in (False, True):
                p = Attention(16384 // length, 2048 // d, 2048 // d, length, length, d, q="bf16",
                              after=0 if causal else None)
                found += [(p, text) for text in (PLANS[d] if asked.plans else (None,))]
    return found


def plan_of(p: Any, text: str | None) -> Any:
    from tilewright.plans import nvidia_attention_backward as plans
    return plans.BackwardPlan.parse(f"attention_backward {text}") if text else plans.choose(p)


def compile_one(case: tuple[Any, str | None]) -> None:
    from tilewright.compiler import artefact
    from tilewright.plans import nvidia_attention_backward as plans
    from tilewright.targets import target
    p, text = case
    for ordered in (False, True):
        how = {"SHAPE": plans.emitted(p, ordered), "PLAN": plan_of(p, text), "WARP": 32}
        artefact.code(MAIN, target("sm_90a"), **how)
        artefact.code(ENDS + "rows", target("sm_90a"), BY_LSE=False, **how)
        artefact.code(ENDS + "rounded", target("sm_90a"), **how)


def ours(given: dict[str, Any], into: list[Any], p: Any, text: str | None, ordered: bool) -> Any:
    """A call of the kernel by this plan, of gradients that it gives. given: q, k, v, out, lse, by_out."""
    from tilewright.rules.attending import Asked, attending
    from tilewright.runtime.gpu import attention_backward
    from tilewright.runtime.gpu.engine import NVIDIA

    def call() -> Any:
        run, looks = NVIDIA.begin(given, dict(zip(("by_q", "by_k", "by_v"), into)))
        with run:
            seen = {name: look.shadow for name, look in looks.items()}
            found = attending({x: seen[x] for x in "qkv"}, Asked(causal=p.after is not None), False)
            results = attention_backward.Gradients(seen["out"], seen["lse"], seen["by_out"])
            attention_backward.differentiate(run, found, results, [seen[f"by_{x}"] for x in "qkv"], ordered,
                                             plan_of(p, text))
        return into
    return call


def products(given: dict[str, Any], p: Any) -> Any:
    from tilewright.torch import attention_gradients

    return lambda: attention_gradients._by_products(*given.values(), None, causal=p.after is not None)


def peers(given: dict[str, Any], p: Any) -> dict[str, Any]:
    """torch's: the forward pass is made here, on the present stream, on which the backward pass then runs."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def peer(backend: Any) -> Any:
        leaves = [given[x].detach().requires_grad_() for x in "qkv"]
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(*leaves, is_causal=p.after is not None)
        return lambda: torch.autograd.grad(out, leaves, given["by_out"], retain_graph=True)
    found = {}
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        try:
            found[name] = peer(backend)
        except RuntimeError as error:
            print(name, str(error)[:100], flush=True)
    return found


def wrong(given: dict[str, Any], found: Any, p: Any) -> float:
    """How far the gradients of the last head are from float64's: the largest of the differences' norms over the norms.
    """
    import torch
    q, k, v, g = (given[x][-1, -1].double() for x in ("q", "k", "v", "by_out"))
    s = q @ k.T / math.sqrt(p.size)
    if p.after is not None:
        s.masked_fill_(torch.ones_like(s, dtype=torch.bool).triu_(1), -math.inf)
    powers = torch.softmax(s, -1)
    slopes = g @ v.T
    slopes = powers * (slopes - (powers * slopes).sum(-1, keepdim=True)) / math.sqrt(p.size)
    wanted = slopes @ k, slopes.T @ q, powers.T @ g
    return max(float((x[-1, -1].double() - y).norm() / y.norm()) for x, y in zip(found, wanted))


def sides_of(p: Any, texts: list[str | None], alone: bool, ordered: bool) -> dict[str, Any]:
    """Calls by name, those with wrong results left out."""
    import torch

    import tilewright as tw
    shape = p.sequences, p.heads, p.queries, p.size
    q, k, v, g = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    out, lse = tw.attention(q, k, v, causal=p.after is not None, return_lse=True)
    given = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "by_out": g}
    into = [torch.empty_like(x) for x in (q, k, v)]
    calls: dict[str, Any] = {}
    for text in texts:
        calls[text or "tilewright"] = ours(given, into, p, text, False)
        if ordered:
            calls[f"{text or 'tilewright'} ordered"] = ours(given, into, p, text, True)
    calls |= {} if alone else {"products": products(given, p), **peers(given, p)}
    sides = {}
    for name, call in calls.items():
        for x in into:
            x.fill_(float("nan"))
        print(f"  {name}: ", end="", flush=True)       # one that never ends says which it is
        try:
            found = call()
        except RuntimeError as error:
            print(str(error)[:200], flush=True)
            continue
        error = wrong(given, found, p)
        print(f"{error:.1e} from float64", flush=True)
        if error <= NEAR:
            sides[name] = call
        else:
            print(f"WRONG {name}", flush=True)
    return sides


def timed(sides: dict[str, Any], rounds: int, count: int) -> dict[str, float]:
    """Median seconds of a call of each, of rounds in turns."""
    import torch
    graphs, found = {}, {name: list[float]() for name in sides}
    for name, call in sides.items():
        call()
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name], stream=torch.cuda.current_stream()):
            for _ in range(count):
                call()
    for _ in range(rounds):
        for name, graph in graphs.items():
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            a.record()
            graph.replay()
            b.record()
            torch.cuda.synchronize()
            found[name].append(a.elapsed_time(b) / count / 1e3)
    return {name: statistics.median(x) for name, x in found.items()}


def measured(asked: Any) -> dict[str, Any] | None:
    """What was measured, for a result file; None if kernels are compiled alone."""
    cases = every(asked)
    with ProcessPoolExecutor(12) as pool:
        list(pool.map(compile_one, cases))
    if asked.compile:
        return None
    import torch

    from tilewright.plans import nvidia_attention_backward as plans
    from tilewright.targets import target
    rows: list[dict[str, Any]] = []
    for p in dict.fromkeys(p for p, _ in cases):
        with torch.cuda.stream(torch.cuda.Stream()):        # torch differentiates on that of the forward pass
            sides = sides_of(p, [text for other, text in cases if other == p], asked.alone, asked.ordered)
            seconds = timed(sides, asked.rounds, 2 if p.flops > 1e11 else 10)
        rate = {name: 2.5 * p.flops / 1e12 / x for name, x in seconds.items()}
        others = [rate[x] for x in ("cudnn", "flash") if x in rate]
        mine = [x for name, x in rate.items() if name not in ("cudnn", "flash", "products")]
        predicted = plans.cost(p, plans.choose(p), target("sm_90a")).seconds
        rows.append({"size": p.size, "sequences": p.sequences, "heads": p.heads, "kv_heads": p.kv_heads,
                     "queries": p.queries, "keys": p.keys, "causal": p.after is not None, "format": p.q,
                     "flops": 2.5 * p.flops, "predicted_s": predicted, "median_s": seconds})
        print(f"{p.q} D={p.size} {p.sequences}x{p.heads}x{p.queries} {'causal' if p.after is not None else 'full'}: "
              + "  ".join(f"{n} {r:.0f}" for n, r in rate.items())
              + f"  of the faster peer {max(mine, default=0) / max(others) if others else 0:.3f}"
              + f"  predicted {2.5 * p.flops / 1e12 / predicted:.0f}", flush=True)
    return {"kind": "attention_backward", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(), "rows": rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="128,64")
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--rounds", type=int, default=5)
    for name in ("plans", "ordered", "compile", "alone"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--out", type=Path)
    options: Any = results.options(parser, "out")
    found = measured(options)
    if options.out and found:
        results.write(found, options.out)
