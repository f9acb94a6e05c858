"""Calls of tilewright.attention beside torch's scaled_dot_product_attention and, on a GPU with score functions,
flex_attention, whose compilation for every other shape would take minutes.

Without a seed: shapes of the project's goals, on a GPU D = 64 and 128 with 1,024, 4,096 and 16,384 tokens, full and
causal, decoding, and scores with functions that flex_attention has, too (a soft cap; "alibi", slopes); with one, shapes
drawn at random: queries log-uniform in 1 ... 3000 (GPU: 1 ... 8192), keys at least as many, up to 4000 (32768), D of
64, 80 and 128 (64, 128), heads shared by 1 or 4, half of the squares causal ("upper left", as torch has it). Of CACHES
queries are bf16 on CPUs, and keys and values in that format; torch, which has none of these, is given the same numbers
in bf16. Some rows of every result are compared with float64 before anything is timed, by norms, since results are
means.
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
from tilewright.lab.bench.cases import CPU, GPU

CAPTION = "of one call; rates as multiples, of the same rounds: median (quartiles)"
PEERS = "torch", "cuDNN", "FlashAttention-2", "flex_attention", "bf16"      # bf16: ours, beside formats of 8 bits
CHECKED = 8                     # rows
ERRORS = {"f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 2e-2, "e4m3fn": 0.1}      # of a row's norm
FORMATS_OF = {CPU: ("f32", "bf16"), GPU: ("bf16",)}
CACHES = "i8", "e4m3fn"         # formats of keys and values of bf16 queries
ALIBI = " alibi"                # behind a text: SLOPE (head + 1) (j - i) is added to scores
SCORED = "4x16x4096x128 bf16 softcap=20.0", "4x16x4096x128 bf16 causal upper" + ALIBI
SLOPE = 0.02
FACTOR = 1 / 32                 # of keys and values in i8


def rate(x: study.Record) -> str:
    """TFLOP/s; GB/s of keys and values where there is one query."""
    problem = Attention.parse(x["case"].removesuffix(ALIBI))
    if study.OURS not in x["seconds"]:
        return ""
    seconds = study.median(x)
    if problem.queries == 1:
        return f"{(problem.bytes['K'] + problem.bytes['V']) / seconds / 1e9:.4g} GB/s"
    return f"{problem.flops / seconds / 1e9:.4g} GFLOP/s"


COLUMNS = (("attention", lambda x: str(x["case"])), ("threads", lambda x: str(x["threads"])),
           study.microseconds("us"), ("rate", rate),
           *(study.compared(f"x {name}", name) for name in PEERS))


def cases(options: Any, device: str, seed: int | None, count: int) -> list[tuple[str, int]]:
    """Texts of the attentions that are measured, and their queries."""
    kinds = options.only or FORMATS_OF[device]
    every = [(str(x), x.queries) for x in problems(seed, count, kinds, device)]
    every += [(text, 4096) for text in SCORED] if device == GPU and "bf16" in kinds and seed is None else []
    return every[:4] if options.quick and seed is None else every


def problems(seed: int | None, count: int, formats: Iterable[str], device: str) -> list[Attention]:
    """What is measured: equal for an equal seed."""
    drawn = []
    for name in formats:
        cached = name in CACHES and device == CPU
        kinds: dict[str, Any] = {"q": "bf16", "kv": name, "factors": name == "i8"} if cached else {"q": name}
        if seed is not None:
            pick = random.Random(f"{seed} {name} {device}")
            drawn += [_drawn(pick, kinds, device == GPU) for _ in range(count)]
        elif device == GPU:
            drawn += [Attention(16384 // n, 2048 // d, 2048 // d, n, n, d, after=after, upper=after == 0, **kinds)
                      for d in (128, 64) for n in (1024, 4096, 16384) for after in (None, 0)]
            drawn += [Attention(s, 32, 8, 1, n, 128, **kinds) for s, n in ((1, 32768), (16, 8192))]
        elif cached:
            drawn += [Attention(1, 32, 8, 1, 8192, 128, **kinds), Attention(1, 8, 2, 4, 4096, 128, **kinds),
                      Attention(1, 8, 8, 1, 2000, 64, **kinds)]
        else:
            drawn += [Attention(1, 1, 1, 4096, 4096, 64, **kinds), Attention(1, 1, 1, 1, 32768, 64, **kinds),
                      Attention(1, 1, 1, 4096, 4096, 64, after=0, upper=True, **kinds),
                      Attention(1, 32, 8, 1, 8192, 128, **kinds)]
    return drawn


def _drawn(pick: random.Random, kinds: dict[str, Any], gpu: bool) -> Attention:
    most, sizes = ((8192, 32768), (64, 128)) if gpu else ((3000, 4000), (64, 80, 128))
    queries = int(most[0] ** pick.random())
    keys = max(queries, int(most[1] ** pick.uniform(0.5, 1)))
    keys = queries if pick.random() < 0.5 else keys
    kv_heads, group, sequences = pick.choice((1, 2, 4, 8)), pick.choice((1, 4)), pick.choice((1, 1, 2, 4)) if gpu else 1
    causal = queries == keys and pick.random() < 0.5
    return Attention(sequences, kv_heads * group, kv_heads, queries, keys, pick.choice(sizes),
                     after=0 if causal else None, upper=causal, **kinds)


def _sloped(score: Any, i: Any, j: Any, head: Any) -> Any:
    return score + SLOPE * (head + 1) * (j - i)


def make(text: str, n: int, threads: int, on: Any = None, plans: Iterable[str] = ()) -> study.Case:
    """The calls of the attention of this text, also by these plans, on torch's tensors: on the CPU, or on a GPU."""
    import torch

    torch.set_num_threads(threads)
    problem, sloped = Attention.parse(text.removesuffix(ALIBI)), text.endswith(ALIBI)
    arrays = attention.random(replace(problem, q="f32", kv="i8" if problem.kv == "i8" else "f32", out="f32"))
    dtypes = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
              "i8": torch.int8, "e4m3fn": torch.float8_e4m3fn}
    tensors = [torch.from_numpy(x).to(dtypes[kind]) for x, kind in zip(arrays, (problem.q, problem.kv, problem.kv))]
    tensors = [x.to(on.name) for x in tensors] if on else tensors
    options: dict[str, Any] = {name: np.float32(FACTOR) for name in ("k_scale", "v_scale") if problem.factors}
    options |= {"bias": _sloped} if sloped else {"softcap": problem.softcap} if problem.softcap else {}
    ours = partial(tw.attention, causal="upper left" if problem.band else False, **options)
    wide = [x.to(torch.bfloat16) * (factor if problem.factors else 1) for x, factor in zip(tensors, (1, FACTOR, FACTOR))
            ] if problem.kv in CACHES else tensors
    own = {plan: [(partial(ours, plan=plan), tuple(tensors))] for plan in plans}
    own |= {"bf16": [(ours, tuple(wide))]} if on and wide is not tensors else {}
    return study.Case({}, {study.OURS: [(ours, tuple(tensors))], **own, **_peers(problem, sloped, wide, on)},
                      partial(_wrong, problem, sloped, wide), flops=problem.flops)


def _peers(problem: Attention, sloped: bool, tensors: list[Any], on: Any) -> dict[str, list[Any]]:
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
    if problem.score or sloped:
        return {"flex_attention": [(_flex(problem, sloped), tuple(tensors))]}
    return {"cuDNN": [(by(SDPBackend.CUDNN_ATTENTION), tuple(tensors))],
            "FlashAttention-2": [(by(SDPBackend.FLASH_ATTENTION), tuple(tensors))]}


def _flex(problem: Attention, sloped: bool) -> Any:
    """torch's flex_attention, compiled at its first call; causal by a mask of blocks."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled, blocks = torch.compile(flex_attention), None
    if problem.band:
        blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, problem.queries, problem.keys, device="cuda")

    def capped(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return problem.softcap * torch.tanh(score / problem.softcap)

    change = (lambda score, b, h, i, j: _sloped(score, i, j, h)) if sloped else capped if problem.softcap else None
    return partial(compiled, score_mod=change, block_mask=blocks, enable_gqa=problem.group > 1)


def _wrong(p: Attention, sloped: bool, tensors: list[Any], side: str, result: Any) -> str:
    """Rows of the last head of the last sequence beside float64."""
    q, k, v = (x[-1, -1].double().cpu().numpy() for x in tensors)
    pick = np.unique(np.linspace(0, p.queries - 1, CHECKED).astype(int))
    scores = q[pick] @ k.T / math.sqrt(p.size)
    scores = p.softcap * np.tanh(scores / p.softcap) if p.softcap else scores
    scores += SLOPE * p.heads * (np.arange(p.keys) - pick[:, None]) * sloped
    if p.band:
        scores[np.arange(p.keys) > pick[:, None]] = -np.inf
    powers = np.exp(scores - scores.max(1, keepdims=True))
    wanted = powers @ v / powers.sum(1, keepdims=True)
    values = result[-1, -1].double().cpu().numpy()[pick]
    apart = np.linalg.norm(values - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    error = float(np.nan_to_num(apart, nan=np.inf).max())
    return "" if error <= ERRORS[p.q] else f"a row is {error:.1e} of its norm from float64's"


def means(rows: Iterable[study.Record]) -> list[str]:
    """For each pair of formats, number of threads and peer the geometric mean of the ratios, and the least; and which
    sides failed, and why."""
    rows, groups = list(rows), dict[tuple[str, int, str], list[float]]()
    for x in rows:
        kind, ours = x["case"].split()[1], x["seconds"].get(study.OURS)
        for name, theirs in x["seconds"].items() if ours else ():
            if name != study.OURS:
                groups.setdefault((kind, x["threads"], name), []).append(
                    float(np.median(np.divide(theirs[:len(ours)], ours[:len(theirs)]))))
    return [*(f"{kind}, {threads} threads, beside {name}: geometric mean {math.exp(np.log(ratios).mean()):.2f}, "
              f"least {min(ratios):.2f} of {len(ratios)}" for (kind, threads, name), ratios in groups.items()),
            *(f"{x['case']}: {side}: {why}" for x in rows for side, why in x.get("failed", {}).items())]
