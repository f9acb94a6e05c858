"""Attention on one thread of a CPU beside torch's, and the ladder of docs/attention.md.

    python bench/attention_cpu.py [--ladder] [--seeds N,N] [--formats f32,bf16] [--rounds N] [--out FILE]

Times are the thread's CPU time, medians of interleaved rounds, so that other processes count less than in wall time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.lab.bench import results
from tilewright.targets import detect

FIXED = [(1, 1, 1, 4096, 4096, 64, False), (1, 1, 1, 4096, 4096, 64, True), (1, 1, 1, 1, 32768, 64, False),
         (1, 32, 8, 1, 8192, 128, False)]


def times(functions: list[Callable[[], object]], rounds: int) -> list[float]:
    found: list[list[float]] = [[] for _ in functions]
    for f in functions:
        f()
    for _ in range(rounds):
        for f, own in zip(functions, found):
            begin = time.thread_time()
            f()
            own.append(time.thread_time() - begin)
    return [statistics.median(x) for x in found]


def shapes(seed: int, count: int = 8) -> list[tuple[int, int, int, int, int, int, bool]]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        queries, kv_heads, group = int(np.exp(rng.uniform(0, 8))), int(rng.choice([1, 2, 4])), int(rng.choice([1, 4]))
        keys = max(queries, int(np.exp(rng.uniform(4, 8.3))))
        found.append((1, kv_heads * group, kv_heads, queries, keys, int(rng.choice([64, 80, 128])),
                      bool(rng.random() < 0.5) and queries == keys))
    return found


FORMATS = ("f32", "bf16", "f16", "i8", "e4m3fn")        # the last two: bf16 queries and a cache in that format
CACHES = [(1, 32, 8, 1, 8192, 128, False), (1, 8, 2, 4, 4096, 128, False), (1, 8, 8, 1, 2000, 64, False)]
TOLERANCES = {"f32": 1e-4, "f16": 5e-3}


def beside_torch(seeds: list[int], rounds: int, formats: Sequence[str]) -> list[dict[str, object]]:
    """Rows of a result file, which are printed. torch has no narrow caches: its own is in bf16 then."""
    import torch

    torch.set_num_threads(1)
    tw.set_num_threads(1)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    dtypes = {"f32": torch.float32, "f16": torch.float16, "i8": torch.int8, "e4m3fn": torch.float8_e4m3fn}
    rows = []
    for name in formats:
        ratios, narrow = [], name in FORMATS[3:]
        dtype = torch.bfloat16 if narrow else dtypes.get(name, torch.bfloat16)
        for drawn, shape in [(0, x) for x in (CACHES if narrow else FIXED)] + [
                (seed, x) for seed in seeds if not narrow for x in shapes(seed)]:
            s, heads, kv_heads, queries, keys, size, causal = shape
            q, k, v = (torch.randn(s, h, x, size) for h, x in ((heads, queries), (kv_heads, keys), (kv_heads, keys)))
            factors = {"k_scale": np.float32(1/32), "v_scale": np.float32(1/32)} if name == "i8" else {}
            own = [(x*32).round().clamp(-127, 127) if name == "i8" else x for x in (k, v)] if narrow else [k, v]
            q, own = q.to(dtype), [x.to(dtypes.get(name, dtype)) for x in own]
            k, v = (x.to(dtype)/32 if name == "i8" else x.to(dtype) for x in own)

            def ours(q=q, own=own, causal=causal, factors=factors) -> object:
                return tw.attention(q, *own, causal="upper left" if causal else False, **factors)

            def theirs(q=q, k=k, v=v, causal=causal, gqa=heads != kv_heads) -> object:
                return sdpa(q, k, v, is_causal=causal, enable_gqa=gqa)

            error = (ours().double() - theirs().double()).abs().max()
            assert error < TOLERANCES.get(name, 0.05), error
            a, b = times([ours, theirs], rounds)
            ratios += [b / a] if drawn else []
            rows.append({"format": name, "seed": drawn, "heads": heads, "kv_heads": kv_heads, "queries": queries,
                         "keys": keys, "size": size, "causal": causal, "median_s": {"tilewright": a, "torch": b}})
            print(f"{name:8} heads {heads:3}/{kv_heads} {queries:5} x {keys:5} D {size:3} "
                  f"{'causal' if causal else '      '} {a * 1e3:9.3f} ms  torch {b * 1e3:9.3f} {b / a:5.2f}",
                  flush=True)
        if ratios:
            print(f"{name} random shapes, seeds {seeds}: geometric mean {statistics.geometric_mean(ratios):.2f}, least "
                  f"{min(ratios):.2f}", flush=True)
    return rows


def naive(Q, K, V, S, O):
    for i in range(Q.shape[0]):
        for j in range(K.shape[0]):
            S[i, j] = 0.0
            for d in range(Q.shape[1]):
                S[i, j] += Q[i, d] * K[j, d]
    for i in range(Q.shape[0]):
        top = -np.inf
        for j in range(K.shape[0]):
            top = max(top, S[i, j] * 0.125)
        total = 0.0
        for j in range(K.shape[0]):
            S[i, j] = np.exp(S[i, j] * 0.125 - top)
            total += S[i, j]
        for j in range(K.shape[0]):
            S[i, j] = S[i, j] / total
    for i in range(Q.shape[0]):
        for c in range(V.shape[1]):
            O[i, c] = 0.0
            for j in range(K.shape[0]):
                O[i, c] += S[i, j] * V[j, c]


def online(Q, K, V, O):
    for i in range(Q.shape[0]):
        top = -np.inf
        total = 0.0
        for c in range(V.shape[1]):
            O[i, c] = 0.0
        for j in range(K.shape[0]):
            s = 0.0
            for d in range(Q.shape[1]):
                s += Q[i, d] * K[j, d]
            level = max(top, s * 0.125)
            factor = np.exp(top - level)
            power = np.exp(s * 0.125 - level)
            top = level
            total = total * factor + power
            for c in range(V.shape[1]):
                O[i, c] = O[i, c] * factor + power * V[j, c]
        for c in range(V.shape[1]):
            O[i, c] = O[i, c] / total


def ladder(rounds: int, n: int = 1024, d: int = 64) -> None:
    tw.set_num_threads(1)
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(n, d)).astype(np.float32) for _ in range(3))
    s, o = np.zeros((n, n), np.float32), np.zeros((n, d), np.float32)
    exact = tw.attention(*(x.astype(np.float64) for x in (q, k, v)))
    tiled = tw.optimize(naive, q, k, v, s, o, search=False)
    derived = tw.optimize(naive, q, k, v, s, o, search=False, temporary=["S"])
    steps = {"naive loops": lambda: tw.loops(naive)(q, k, v, s, o),
             "online loops": lambda: tw.loops(online)(q, k, v, o),
             "two tiled products": lambda: tiled(q, k, v, s, o),
             "derived: in registers": lambda: derived(q, k, v, s, o)}
    for name, f in steps.items():
        f()
        print(f"{name:22} {times([f], rounds)[0] * 1e3:9.2f} ms, {4 * n * n * d / times([f], rounds)[0] / 1e9:6.1f} "
              f"GFLOP/s, error {np.abs(o - exact).max():.1e}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ladder", action="store_true")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = results.options(parser, "out")
    if given.ladder:
        ladder(given.rounds)
    else:
        found = beside_torch([*map(int, given.seeds.split(","))], given.rounds, given.formats.split(","))
        if given.out:
            results.write({"kind": "attention_cpu", "cpu": detect().model, "threads": 1, "rows": found}, given.out)
