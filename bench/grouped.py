"""Groups of unequal size: tilewright.grouped_matmul beside a loop of products, and on a GPU beside torch._grouped_mm.

    python bench/grouped.py [--cpu] [--threads N] [--quick] [--out FILE]

Ragged: sizes of groups are a multinomial of a Dirichlet distribution (0.5). The loop is one product for each group: on
a GPU cuBLAS's of bf16, on a CPU np.matmul of f32 and torch.mm of bf16. `expected`: the model's time for a batch of
equal groups by the chosen plan. Random groups are checked by `python -m tests.fuzz.device --only groups`.
"""
from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tilewright as tw
from tilewright.lab.bench import study
from tilewright.lab.measure.gpu_rules import sets

GPU = [(64, 16384, 4096, 4096), (64, 8192, 7168, 2048), (64, 8192, 2048, 7168), (8, 16384, 4096, 14336),
       (64, 2048, 2048, 2048), (64, 512, 4096, 4096)]              # groups, rows, n, k
CPU = [(64, 64, 256, 256), (64, 512, 512, 512), (8, 2048, 1024, 1024), (64, 2048, 512, 512), (256, 1024, 128, 128)]


def ends_of(groups: int, rows: int) -> Any:
    rng = np.random.default_rng(groups)
    return np.cumsum(rng.multinomial(rows, rng.dirichlet(np.full(groups, 0.5))))


def looped(multiply: Any, ends: Any) -> Any:
    spans = [(i, int(lo), int(hi)) for i, (lo, hi) in enumerate(zip((0, *ends[:-1]), ends)) if hi > lo]

    def loop(a: Any, b: Any, out: Any) -> Any:
        for i, lo, hi in spans:
            multiply(a[lo:hi], b[i], out=out[lo:hi])
        return out
    return loop


def on_cpu(case: tuple[int, int, int, int], dtype: str) -> study.Case:
    groups, rows, n, k = case
    rng, ends = np.random.default_rng(groups), ends_of(groups, rows)
    a, b = rng.standard_normal((rows, k), np.float32), rng.standard_normal((groups, k, n), np.float32)
    out, other = np.empty((rows, n), np.float32), np.empty((rows, n), np.float32)
    theirs: tuple[Any, ...] = (a, b, other)
    name, multiply = "np.matmul", np.matmul
    if dtype == "bf16":
        import ml_dtypes
        import torch
        x, y, z = theirs = tuple(torch.from_numpy(t).bfloat16() for t in theirs)
        a, b, out = (t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for t in (x, y, z.clone()))
        name, multiply = "torch.mm", torch.mm
    wanted = looped(np.matmul, ends)(a.astype("f8"), b.astype("f8"), np.empty((rows, n)))
    return study.Case(
        {"case": case, "dtype": dtype},
        {"tilewright": study.partials(tw.grouped_matmul, [(a, b, ends, out)]),
         name: study.partials(looped(multiply, ends), [theirs])},
        lambda side, found: study.near(found.float().numpy() if side == "torch.mm" else found, wanted, 2.0**-7),
        {"every": [(a, b)], "ends": ends})


def on_gpu(on: Any, case: tuple[int, int, int, int]) -> study.Case:
    import torch

    from tilewright.compiled.grouped import plan_for, ragged
    from tilewright.plans import gpu
    groups, rows, n, k = case
    ends, target = ends_of(groups, rows), on.on.target
    offsets = torch.tensor(ends, dtype=torch.int32, device=on.name)

    def random(*shape: int) -> Any:
        return torch.randn(*shape, device=on.name).bfloat16()
    every = [(random(rows, k), random(groups, n, k).transpose(1, 2), random(rows, n))
             for _ in range(sets(2 * (rows*k + groups*k*n), target.l2))]
    loop = looped(torch.mm, ends)
    sides = {"tilewright": study.partials(lambda a, b, out: tw.grouped_matmul(a, b, offsets, out), every),
             "loop": study.partials(loop, every)}
    if hasattr(torch, "_grouped_mm"):
        sides["_grouped_mm"] = study.partials(lambda a, b, out: torch._grouped_mm(a, b, offs=offsets), every)
    wanted = loop(*every[0]).clone()
    shape = gpu.planner(target).shape_of(tw.Gemm(-(-rows // groups), n, k, "bf16", "bf16", "bf16", "nt", groups))
    plan = plan_for(shape, target, "m")
    expected = gpu.planner(target).cost(shape, plan, target).seconds * ragged(plan, shape.m)
    return study.Case({"case": case, "dtype": "bf16", "plan": str(plan), "expected": expected}, sides,
                      lambda side, found: study.near(found, wanted, 2.0**-7), {"every": every, "ends": offsets})


def cases(on: Any) -> Iterator[study.Case]:
    for case in CPU if on is None else GPU:
        for dtype in ("f32", "bf16") if on is None else ("bf16",):
            yield on_cpu(case, dtype) if on is None else on_gpu(on, case)


if __name__ == "__main__":
    options = study.parsed(
        __doc__ or "", "grouped.json", lambda p: p.add_argument("--cpu", action="store_true"),
        lambda p: p.add_argument("--threads", type=int, default=1))
    device = study.device(options)
    sys.exit(study.main("grouped", cases(device), options, device))
