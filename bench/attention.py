"""Attention on a GPU: tilewright's kernel beside cuDNN's and FlashAttention's through torch.

    python bench/attention.py [--plans] [--sizes 128,64] [--lengths 1024,4096,16384] [--rounds 5]
"""
from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

PLANS = {128: {"": ("g2 k128 s2", "g2 k176 s2", "g2 k160 s2"), "causal": ("g2 k128 s2", "g2 k128 s2 @16", "g2 k128 s2 @32", "g2 k160 s2")},
         64: {"": ("g3 k128 s2", "g3 k96 s2", "g3 k112 s2"), "causal": ("g3 k128 s2", "g3 k128 s2 @16", "g3 k96 s2")}}
EMIT = "tilewright.kernels.nvidia.attention:emit_attention"


def options(size: int, band: str, text: str) -> dict[str, Any]:
    from tilewright.plans.nvidia_attention import AttentionPlan
    p = AttentionPlan.read("attention " + text.partition(" @")[0])
    return {"FORMAT": "bf16", "D": size, "DV": size, "WARPGROUPS": p.warpgroups, "KEYS": p.keys, "STAGES": p.stages,
            "BAND": band, "LSE": False, "WARP": 32}


def compile_one(asked: tuple[int, str, str]) -> float:
    from tilewright.compiler import artefact
    from tilewright.targets import target
    begin = time.time()
    artefact.code(EMIT, target("sm_90a"), **options(*asked))
    return time.time() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="128,64")
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    sizes = [*map(int, asked.sizes.split(","))]
    every = [(d, band, text) for d in sizes for band in ("", "causal") for text in PLANS[d][band]]
    begin = time.time()
    with ProcessPoolExecutor(12) as pool:
        list(pool.map(compile_one, every))
    print(f"compiled {len(every)} in {time.time() - begin:.1f} s", flush=True)

    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from tilewright.plans import nvidia_attention
    from tilewright.plans.nvidia_attention import AttentionPlan
    from tilewright.runtime.gpu import attention
    from tilewright.runtime.gpu.engine import NVIDIA

    def ours(q: Any, k: Any, v: Any, out: Any, band: str, text: str) -> Any:
        text, _, held = text.partition(" @")
        plan = AttentionPlan.read("attention " + text)
        def call() -> None:
            nvidia_attention.HELD = int(held) << 20 if held else 1 << 60
            run, looks = NVIDIA.begin({"q": q, "k": k, "v": v}, {"out": out})
            with run:
                attention.forward(run, *(looks[x].shadow for x in "qkv"), looks["out"].shadow, None,
                                  1 / math.sqrt(q.shape[-1]), None, 0 if band else None, plan)
        return call

    def peer(backend: Any, q: Any, k: Any, v: Any, band: str) -> Any:
        def call() -> Any:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=bool(band))
        return call

    for d in sizes:
        for length in map(int, asked.lengths.split(",")):
            heads, batch = 2048 // d, 16384 // length
            q, k, v = (torch.randn(batch, heads, length, d, device="cuda").bfloat16() for _ in range(3))
            for band in ("", "causal"):
                sides = {}
                out = torch.full_like(q, float("nan"))
                pick = torch.randint(0, length, (8,))
                h = heads - 1
                s = (q[-1, h, pick].double() @ k[-1, h].double().T) / math.sqrt(d)
                if band:
                    s = s.masked_fill(torch.arange(length, device="cuda")[None] > pick.cuda()[:, None], -math.inf)
                wanted = torch.softmax(s, -1) @ v[-1, h].double()
                for text in PLANS[d][band]:
                    call = ours(q, k, v, out, band, text)
                    out.fill_(float("nan"))
                    try:
                        call()
                        torch.cuda.synchronize()
                    except Exception as error:
                        print(d, length, band, text, repr(error)[:300], flush=True)
                        raise
                    wrong = (out[-1, h, pick].double() - wanted).abs().max().item()
                    nans = int(out.isnan().sum())
                    if wrong > 0.02 or nans:
                        print(f"WRONG {d} {length} {band} {text}: {wrong} {nans} nan", flush=True)
                    sides[text] = call
                sides["cudnn"] = peer(SDPBackend.CUDNN_ATTENTION, q, k, v, band)
                sides["flash"] = peer(SDPBackend.FLASH_ATTENTION, q, k, v, band)
                found = {x: [] for x in sides}
                for x in sides.values():
                    x()
                for _ in range(asked.rounds):
                    for name, call in sides.items():
                        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                        call()
                        a.record()
                        for _ in range(6):
                            call()
                        b.record()
                        torch.cuda.synchronize()
                        found[name].append(a.elapsed_time(b) / 6)
                flops = 4 * batch * heads * length * length * d / (2 if band else 1)
                rate = {name: flops / statistics.median(x) / 1e9 for name, x in found.items()}
                best = max(rate[x] for x in PLANS[d][band])
                print(f"D={d} L={length} {band or 'full'}: " + "  ".join(f"{n} {r:.0f}" for n, r in rate.items())
                      + f"  best/cudnn {best / rate['cudnn']:.3f}", flush=True)


if __name__ == "__main__":
    main()
