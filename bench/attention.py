"""Attention on a GPU: tilewright's kernel beside cuDNN's and FlashAttention's through torch, in CUDA graphs.

    python bench/attention.py [--plans] [--sizes 128,64] [--lengths 1024,4096,16384] [--rounds 5] [--decode] [--scores]
                              [--fp8] [--backward [--ordered]] [--alone] [--out FILE]

Queries, keys and values [16384 / L, 2048 / D, L, D] in bf16. A result is compared with float64 on some rows before it
is timed. Rates count the products of pairs that a query sees. `--plans`: others than the one that is chosen, too.
`--backward`: gradients instead, as attention_backward.py says.
"""
from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tilewright.lab.bench import results

PLANS = {128: (*(f"attention_wgmma 128x{keys} stages=2" for keys in (128, 176, 160)), *(
    f"attention_mma {tile}" for tile in ("256x32 stages=3 height=32", "128x64 stages=2", "64x64 stages=2"))),
         64: (*(f"attention_wgmma {tile}" for tile in ("192x128 stages=2", "128x128 stages=3", "128x192 stages=2")),
              *(f"attention_mma {tile}" for tile in ("256x64 stages=3 height=32", "128x128 stages=2")))}
DECODE = ((1, 32768), (16, 8192))
DECODES = ("attention_wgmma 64x128 stages=3", "attention_wgmma 64x64 stages=6",
           "attention_mma 16x64 stages=3 splits=16")


def softcap(score: Any, i: Any, j: Any, head: Any) -> Any:
    import tilewright as tw
    return 20.0 * tw.tanh(score / 20.0)


def alibi(score: Any, i: Any, j: Any, head: Any) -> Any:
    return score + 0.02 * (head + 1) * (j - i)


def problem(batch: int, heads: int, kv_heads: int, queries: int, keys: int, size: int, causal: bool, score: Any = None,
            fp8: bool = False) -> Any:
    """The call's record."""
    import ml_dtypes
    import numpy as np

    from tilewright.rules.attending import Asked, attending
    dtype = ml_dtypes.float8_e4m3fn if fp8 else ml_dtypes.bfloat16
    q, k = (np.broadcast_to(np.zeros((), dtype), (batch, h, n, size))
            for h, n in ((heads, queries), (kv_heads, keys)))
    return attending({"q": q, "k": k, "v": k}, Asked(causal=causal, bias=score)).problem


def every(asked: Any) -> list[tuple[Any, str | None]]:
    """Problems, with plans: None is the one that is chosen."""
    found: list[tuple[Any, str | None]] = []
    for d in map(int, asked.sizes.split(",")):
        for length in map(int, asked.lengths.split(",")):
            for causal in (False, True):
                p = problem(16384 // length, 2048 // d, 2048 // d, length, length, d, causal)
                found += [(p, text) for text in (PLANS[d] if asked.plans else (None,))]
    if asked.decode:
        for batch, keys in DECODE:
            p = problem(batch, 32, 8, 1, keys, 128, False)
            found += [(p, text) for text in (DECODES if asked.plans else (None,))]
    if asked.fp8:
        for length in map(int, asked.lengths.split(",")):
            for causal in (False, True):
                p = problem(16384 // length, 16, 16, length, length, 128, causal, fp8=True)
                found += [(p, None)]
    if asked.scores:
        found += [(problem(4, 16, 16, 4096, 4096, 128, causal, score), None)
                  for causal, score in ((True, alibi), (False, softcap))]
    return found


def compile_one(case: tuple[Any, str | None]) -> None:
    from tilewright.compiler import artefact
    from tilewright.plans import nvidia_attention
    from tilewright.plans.attention_choice import AttentionCase
    from tilewright.targets import target
    there, chip = AttentionCase(case[0]), target("sm_90a")
    plan = plan_of(case[1]) or nvidia_attention.choose(there, chip)
    shape, own = nvidia_attention.emitted(there, plan)
    artefact.code(nvidia_attention.EMITTERS[plan.algorithm], chip, SHAPE=shape, PLAN=own, WARP=32)


def plan_of(text: str | None) -> Any:
    from tilewright.plans.nvidia_attention import AttentionPlan
    return text and AttentionPlan.parse(text)


def ours(q: Any, k: Any, v: Any, out: Any, p: Any, text: str | None) -> Any:
    """A call of the kernel by this plan."""
    from tilewright.rules.attending import Asked, attending
    from tilewright.runtime.gpu import attention
    from tilewright.runtime.gpu.engine import NVIDIA

    def call() -> None:
        run, looks = NVIDIA.begin({"q": q, "k": k, "v": v}, {"out": out})
        with run:
            found = attending({x: looks[x].shadow for x in "qkv"}, Asked(causal=p.after is not None), False)
            attention.attend(run, found._replace(problem=p), looks["out"].shadow, None, plan_of(text))
    return call


def graphed(call: Any, count: int) -> Any:
    """So many calls in one graph."""
    import torch
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return graph


def wrong(out: Any, q: Any, k: Any, v: Any, p: Any) -> float:
    """How far the result is from float64's: the largest of the differences' norms over the norms of the rows, for some
    rows of the last head of the last sequence. (Results are means of many values: beside those any error is small.)"""
    import torch
    q, k, v = (x[-1:, -1:].double() for x in (q, k, v))
    pick = torch.randint(0, p.queries, (8,), device="cuda")
    s = (q[-1, -1, pick].double() @ k[-1, -1].double().T) / math.sqrt(p.size)
    i, j = pick[:, None] + p.keys - p.queries, torch.arange(p.keys, device="cuda")[None]
    if p.score and "tanh" in p.score:
        s = 20 * torch.tanh(s / 20)
    elif p.score:
        s = s + 0.02 * p.heads * (j - i)
    s = s.masked_fill(j > i, -math.inf) if p.after is not None else s
    wanted = torch.softmax(s, -1) @ v[-1, -1].double()
    apart = (out[-1, -1, pick].double() - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    return float(apart.max()) + (1e9 if bool(out.isnan().any()) else 0)


def peers(q: Any, k: Any, v: Any, p: Any) -> dict[str, Any]:
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def peer(backend: Any) -> Any:
        def call() -> Any:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=p.after is not None,
                                                      enable_gqa=p.heads > p.kv_heads)
        return call
    if p.q == "e4m3fn":
        import torch
        wide = [x.bfloat16() for x in (q, k, v)]
        bf16 = problem(p.sequences, p.heads, p.kv_heads, p.queries, p.keys, p.size, p.after is not None)
        return {"our bf16": ours(*wide, torch.empty_like(wide[0]), bf16, None)}
    if p.score:
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        flex = torch.compile(flex_attention)

        def capped(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return 20 * torch.tanh(score / 20)

        def sloped(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score + 0.02 * (h + 1) * (j - i)
        block = create_block_mask(lambda b, h, i, j: i >= j, None, None, p.queries, p.keys, device="cuda") \
            if p.after is not None else None
        return {"flex": lambda: flex(q, k, v, score_mod=capped if "tanh" in p.score else sloped, block_mask=block)}
    return {"cudnn": peer(SDPBackend.CUDNN_ATTENTION), "flash": peer(SDPBackend.FLASH_ATTENTION)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="128,64")
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--rounds", type=int, default=5)
    for name in ("plans", "decode", "scores", "fp8", "backward", "ordered", "compile", "alone"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = results.options(parser, "out")
    if asked.backward:
        import attention_backward
        measured = attention_backward.main(asked)
        if asked.out and measured:
            results.write(measured, asked.out)
        return
    cases, begin = every(asked), time.time()
    with ProcessPoolExecutor(12) as pool:
        list(pool.map(compile_one, cases))
    print(f"compiled {len(cases)} in {time.time() - begin:.1f} s", flush=True)
    if asked.compile:
        return

    import torch
    rows: list[dict[str, Any]] = []
    for p in dict.fromkeys(p for p, _ in cases):
        dtype = torch.float8_e4m3fn if p.q == "e4m3fn" else torch.bfloat16
        q, k, v = (torch.randn(p.sequences, h, n, p.size, device="cuda").to(dtype) for h, n in (
            (p.heads, p.queries), (p.kv_heads, p.keys), (p.kv_heads, p.keys)))
        out, sides = torch.empty_like(q, dtype=torch.bfloat16), {}
        for text in (text for other, text in cases if other is p or other == p):
            out.fill_(float("nan"))
            call = ours(q, k, v, out, p, text)
            call()
            if (error := wrong(out, q, k, v, p)) > (0.1 if p.q == "e4m3fn" else 0.02):
                print(f"WRONG {text}: {error}", flush=True)
            sides[text or "tilewright"] = call
        own = [*sides]
        for name, call in peers(q, k, v, p).items() if not asked.alone else ():
            try:
                call()
                sides[name] = call
            except RuntimeError as error:
                print(name, str(error)[:100], flush=True)
        count = 4 if p.flops > 1e11 else 20
        graphs, found = {name: graphed(call, count) for name, call in sides.items()}, {name: [] for name in sides}
        for _ in range(asked.rounds):
            for name, graph in graphs.items():
                a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                graph.replay()
                a.record()
                graph.replay()
                b.record()
                torch.cuda.synchronize()
                found[name].append(a.elapsed_time(b) / count)
        seconds = {name: statistics.median(x) / 1e3 for name, x in found.items()}
        bytes = 2 * p.sequences * p.kv_heads * p.keys * p.size * 2
        rate = {name: (bytes / 1e9 if p.queries == 1 else p.flops / 1e12) / x for name, x in seconds.items()}
        others = [rate[x] for x in ("cudnn", "flex", "our bf16", "flash") if x in rate]
        rows.append({"size": p.size, "sequences": p.sequences, "heads": p.heads, "kv_heads": p.kv_heads,
                     "queries": p.queries, "keys": p.keys, "causal": p.after is not None, "score": p.score,
                     "format": p.q, "flops": p.flops, "kv_bytes": bytes, "median_s": seconds})
        band = "causal" if p.after is not None else "full"
        print(f"{p.q} D={p.size} {p.sequences}x{p.heads}x{p.queries}x{p.keys} {band}: "
              + "  ".join(f"{n} {r:.0f}" for n, r in rate.items())
              + f"  of the first peer {max(rate[x] for x in own) / others[0] if others else 0:.3f}", flush=True)
    if asked.out:
        results.write({"kind": "attention", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                       "cudnn": torch.backends.cudnn.version(), "rows": rows}, asked.out)


if __name__ == "__main__":
    main()
