"""Products by the kernels of GPUs, in the simulator: formats, layouts, strides, scalars, empty k, parts of k, against
integers. The simulator faults on accesses outside, races, and reads of what was not written."""

from __future__ import annotations

from math import ceil
from random import Random
from typing import Any

import tilewright as tw
from tests.fuzz.driver import Case, Fuzzer
from tests.helpers.gemms import right
from tilewright import targets
from tilewright.plans import gpu, gpu_lowering

SCALED = ["mxfp4", "mxfp6", "mxfp8", "mxfp6_e3m2", "mxfp8_e5m2"]
AMD = {"gfx942": ["f64", "f32", "f16", "bf16", "i8", "e4m3fnuz", "e5m2fnuz", *SCALED],
       "gfx950": ["f64", "f32", "f16", "bf16", "i8", "e4m3fn", "e5m2", *SCALED]}
SUMS = {"i8": "i32"}
MOST = 1 << 19  # multiply-adds of whole tiles: the simulator takes about a second for ten million


def draw(rng: Random) -> Case:
    chip = rng.choice([*targets.names("gpu"), *targets.names("amd"), *targets.names("amd")])
    a = rng.choice(AMD[chip] if chip in AMD else ["f32", "f64"])
    b = rng.choice(SCALED) if a in SCALED and rng.random() < 0.5 else a
    sizes = [rng.choice([1, 2, 3, 8, 15, 17, 31, 33, 40, 64, 65]) for _ in range(3)]
    if rng.random() < 0.1:
        sizes[rng.randrange(3)] = 0
    if rng.random() < 0.15:
        sizes[2] = rng.choice([96, 128, 160, 257])
    layout = "nt" if a in SCALED else rng.choice(["nn", "nt", "tn", "tt"])
    out = SUMS.get(a) if a not in SCALED else None
    if chip in AMD and a not in ("f64", "f32") and rng.random() < 0.2:
        out = rng.choice(["i16", "u8", "i8"] if a == "i8" else ["f16", "bf16", "f32"])
    return {"chip": chip, "a": a, "b": b, "out": out, "sizes": sizes, "layout": layout,
            "rank": rng.random() if rng.random() < 0.7 else 0.0, "alpha": rng.choice([1, 1, 2, -1, 0]),
            "beta": rng.choice([0, 0, 1, -2]), "gaps": rng.choice([0, 0, 1, 4]),
            "data": rng.randrange(2**31)}


def check(case: Case) -> None:
    m, n, k = case["sizes"]
    target = targets.target(case["chip"])
    problem = tw.Gemm(m, n, k, case["a"], case["b"], case["out"], case["layout"])
    plan = None
    if m * n * k and case["rank"]:
        shape = gpu_lowering.multiplied_shape(problem, target)
        ranked = [p for p in gpu.ranked(shape, target) if _work(p, problem) <= MOST]
        plan = ranked[int(case["rank"] * len(ranked))] if ranked else None
    compiled = tw.compile(problem, target, plan)
    if affordable(compiled):
        right(compiled, *(case[x] for x in ("data", "alpha", "beta", "gaps")))


def _work(plan: Any, problem: Any) -> int:
    k = max(plan.cta_k, 1) * plan.split_k
    tiles = ceil(problem.m / plan.cta_m) * ceil(problem.n / plan.cta_n)
    return int(tiles * plan.cta_m * plan.cta_n * ceil(problem.k / k) * k)


def affordable(compiled: Any) -> bool:
    return not (p := compiled.problem).m * p.n * p.k or _work(compiled.plan, p) <= 2 * MOST


PLAIN: Case = {"rank": 0.0, "alpha": 1, "beta": 0, "gaps": 0, "layout": "nt"}
FUZZER = Fuzzer("kernels", draw, check, PLAIN, limit_s=400)
