"""Many small products of one size: tilewright.matmul of stacks beside np.matmul and MKL's batch interface, on a GPU
beside torch.bmm, which is cuBLAS's batch interface.

    python bench/small_batches.py [--formats f4 f8 c8 c16] [--sizes 4 8 12 16 24 32] [--threads 1]
                                  [--gpu [--batches N ...]] [--quick] [--out FILE]

On a CPU batches of about 2 million multiply-adds; MKL is left out where it is not installed. On a GPU batches of N
products, by default as many as have 400 MB.
"""
from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tilewright as tw
from tilewright.lab.bench import study
from tilewright.lab.measure.gpu_rules import sets

FORMATS = "f4", "f8", "c8", "c16"
WORK, MANY = 2_000_000, 400_000_000     # multiply-adds of a batch; bytes of one, on a GPU


def on_cpu(dtype: str, n: int) -> study.Case:
    four, rng = 4 if dtype[0] == "c" else 1, np.random.default_rng(0)
    batch = min(max(WORK // (n**3 * four), 200), 10_000)
    a, b = ((rng.standard_normal((batch, n, n)) + 1j*(four > 1)*rng.standard_normal((batch, n, n))) for _ in range(2))
    a, b = (x.astype(dtype) if four > 1 else x.real.astype(dtype) for x in (a, b))
    wanted = a.astype("c16") @ b.astype("c16")
    return study.Case({"dtype": dtype, "n": n, "batch": batch},
                      {side: study.partials(call, [(a, b, np.empty_like(a))])
                       for side, call in (("tilewright", tw.matmul), ("numpy", np.matmul))},
                      lambda side, found: "" if np.allclose(found, wanted, rtol=1e-3, atol=1e-3) else "wrong",
                      {"every": [(a, b)]}, flops=2*four*batch*n**3)


def on_gpu(on: Any, dtype: str, n: int, batch: int) -> study.Case:
    import torch
    kind = np.dtype(dtype).name
    size = np.dtype(dtype).itemsize
    batch = batch or MANY // (3*n*n*size)
    total = 3*n*n*size*batch
    every = [tuple(torch.randn(batch, n, n, device=on.name, dtype=getattr(torch, kind)) for _ in "abc")
             for _ in range(sets(total, on.on.target.l2))]
    a, b, _ = every[0]
    wide = torch.complex128 if dtype[0] == "c" else torch.float64
    exact = a[:20_000].to(wide) @ b[:20_000].to(wide)
    most = 2 * n * torch.finfo(a.dtype).eps * float((a[:20_000].abs() @ b[:20_000].abs()).max())
    plan = str(tw.plan(tw.Gemm(n, n, n, tw.formats.get(np.dtype(dtype)).name, batch=batch), on.on.target))
    return study.Case(
        {"dtype": dtype, "n": n, "batch": batch, "bytes": total, "plan": plan},
        {"tilewright": study.partials(tw.matmul, every),
         "torch.bmm": study.partials(lambda a, b, c: torch.bmm(a, b, out=c), every)},
        lambda side, found: "" if float((found[:20_000] - exact).abs().max()) < most else "wrong",
        {"every": every}, bytes=total)


def cases(options: Any, on: Any) -> Iterator[study.Case]:
    for dtype in options.formats:
        for n in options.sizes:
            for batch in options.batches if on else (0,):
                yield on_gpu(on, dtype, n, batch) if on else on_cpu(dtype, n)


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--formats", nargs="*", default=FORMATS)
    parser.add_argument("--sizes", type=int, nargs="*", default=[4, 8, 12, 16, 24, 32])
    parser.add_argument("--gpu", dest="cpu", action="store_false")
    parser.add_argument("--batches", type=int, nargs="*", default=[0])
    parser.add_argument("--threads", type=int, default=1)


if __name__ == "__main__":
    options = study.parsed(__doc__ or "", "small_batches.json", arguments)
    on = study.device(options)
    sys.exit(study.main("small_batches", cases(options, on), options, on))
