"""Calls of tilewright.attention beside torch's scaled_dot_product_attention and, on a GPU, flex_attention.

Without a seed: shapes of the project's goals, on a GPU D = 64 and 128 with 1,024, 4,096 and 16,384 tokens, full and
causal, and decoding; with one, shapes drawn at random: queries log-uniform in 1 ... 3000 (GPU: 1 ... 8192), keys at
least as many, up to 4000 (32768), D of 64, 80 and 128 (64, 128), heads shared by 1 or 4, half of the squares causal
("upper left", as torch has it). Some rows of every result are compared with float64 before anything is timed, by norms,
since results are means.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.attention_problem import Attention
from tilewright.compiled import attention
from tilewright.lab.bench import study

CAPTION = "of one call; rates as multiples, of the same rounds: median (quartiles)"
PEERS = "torch", "cuDNN", "FlashAttention-2", "flex_attention"
CHECKED = 8                     # rows
ERRORS = {"f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 2e-2, "e4m3fn": 0.1}      # of a row's norm
FORMATS_OF = {"cpu": ("f32", "bf16"), "cuda": ("bf16",)}


def described(x: study.Record) -> str:
    return str(x["case"])


def rate(x: study.Record) -> str:
    """TFLOP/s; GB/s of keys and values where there is one query."""
    problem = Attention.parse(x["case"])
    seconds = study.median(x)
    if problem.queries == 1:
        return f"{(problem.bytes['K'] + problem.bytes['V']) / seconds / 1e9:.4g} GB/s"
    return f"{problem.flops / seconds / 1e9:.4g} GFLOP/s"


COLUMNS = (("attention", described), ("threads", lambda x: str(x["threads"])), study.microseconds("us"), ("rate", rate),
           *(study.compared(f"x {name}", name) for name in PEERS))


def problems(seed: int | None, count: int, formats: Iterable[str], device: str) -> list[Attention]:
    """What is measured: equal for an equal seed."""
    found = []
    for kind in formats:
        if seed is not None:
            pick = random.Random(f"{seed} {kind} {device}")
            found += [_drawn(pick, kind, device == "cuda") for _ in range(count)]
        elif device == "cuda":
            found += [Attention(16384 // n, 2048 // d, 2048 // d, n, n, d, q=kind, after=after, upper=after == 0)
                      for d in (128, 64) for n in (1024, 4096, 16384) for after in (None, 0)]
            found += [Attention(s, 32, 8, 1, n, 128, q=kind) for s, n in ((1, 32768), (16, 8192))]
        else:
            found += [Attention(1, 1, 1, 4096, 4096, 64, q=kind), Attention(1, 1, 1, 1, 32768, 64, q=kind),
                      Attention(1, 1, 1, 4096, 4096, 64, q=kind, after=0, upper=True),
                      Attention(1, 32, 8, 1, 8192, 128, q=kind)]
    return found


def _drawn(pick: random.Random, kind: str, gpu: bool) -> Attention:
    most, sizes = ((8192, 32768), (64, 128)) if gpu else ((3000, 4000), (64, 80, 128))
    queries = int(most[0] ** pick.random())
    keys = max(queries, int(most[1] ** pick.uniform(0.5, 1)))
    keys = queries if pick.random() < 0.5 else keys
    kv_heads, group, sequences = pick.choice((1, 2, 4, 8)), pick.choice((1, 4)), pick.choice((1, 1, 2, 4)) if gpu else 1
    causal = queries == keys and pick.random() < 0.5
    return Attention(sequences, kv_heads * group, kv_heads, queries, keys, pick.choice(sizes), q=kind,
                     after=0 if causal else None, upper=causal)


def make(problem: Attention, threads: int, on: Any = None) -> study.Case:
    """The calls of a problem on torch's tensors: on the CPU, or on a GPU."""
    import torch

    torch.set_num_threads(threads)
    arrays = attention.random(replace(problem, q="f32", kv="f32", out="f32"))
    kind = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}[problem.q]
    tensors = [torch.from_numpy(x).to(kind) for x in arrays]
    tensors = [x.to(on.name) for x in tensors] if on else tensors
    causal = "upper left" if problem.band else False
    sides = {study.OURS: [(partial(tw.attention, causal=causal), tuple(tensors))], **_peers(problem, tensors, on)}
    return study.Case({}, sides, partial(_wrong, problem, tensors), flops=problem.flops)


def _peers(problem: Attention, tensors: list[Any], on: Any) -> dict[str, list[Any]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    sdpa = partial(scaled_dot_product_attention, is_causal=bool(problem.band), enable_gqa=problem.group > 1)
    if on is None:
        return {"torch": [(sdpa, tuple(tensors))]}

    def by(backend: Any) -> Any:
        def call(*given: Any) -> Any:
            with sdpa_kernel(backend):
                return sdpa(*given)
        return call
    return {"cuDNN": [(by(SDPBackend.CUDNN_ATTENTION), tuple(tensors))],
            "FlashAttention-2": [(by(SDPBackend.FLASH_ATTENTION), tuple(tensors))],
            "flex_attention": [(_flex(problem), tuple(tensors))]}


def _flex(problem: Attention) -> Any:
    """torch's flex_attention, compiled at its first call; causal by a mask of blocks."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled, blocks = torch.compile(flex_attention), None
    if problem.band:
        blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, problem.queries, problem.keys, device="cuda")

    def call(*given: Any) -> Any:
        return compiled(*given, block_mask=blocks, enable_gqa=problem.group > 1)
    return call


def _wrong(p: Attention, tensors: list[Any], side: str, result: Any) -> str:
    """Rows of the last head of the last sequence beside float64."""
    q, k, v = (x[-1, -1].double().cpu().numpy() for x in tensors)
    pick = np.unique(np.linspace(0, p.queries - 1, CHECKED).astype(int))
    scores = q[pick] @ k.T / math.sqrt(p.size)
    if p.band:
        scores[np.arange(p.keys) > pick[:, None]] = -np.inf
    powers = np.exp(scores - scores.max(1, keepdims=True))
    wanted = powers @ v / powers.sum(1, keepdims=True)
    found = result[-1, -1].double().cpu().numpy()[pick]
    apart = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    error = float(np.nan_to_num(apart, nan=np.inf).max())
    return "" if error <= ERRORS[p.q] else f"a row is {error:.1e} of its norm from float64's"


def means(rows: Iterable[study.Record]) -> list[str]:
    """For each format, number of threads and peer the geometric mean of the ratios, and the least."""
    groups: dict[tuple[str, int, str], list[float]] = {}
    for x in rows:
        kind, ours = Attention.parse(x["case"]).q, x["seconds"].get(study.OURS)
        for name in PEERS if ours else ():
            if name in x["seconds"]:
                groups.setdefault((kind, x["threads"], name), []).append(
                    float(np.median(np.divide(x["seconds"][name][:len(ours)], ours[:len(x["seconds"][name])]))))
    return [f"{kind}, {threads} threads, beside {name}: geometric mean {math.exp(np.log(ratios).mean()):.2f}, "
            f"least {min(ratios):.2f} of {len(ratios)}" for (kind, threads, name), ratios in groups.items()]
