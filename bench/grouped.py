"""Groups of unequal size: tilewright.grouped_matmul beside a loop of products, and on a GPU beside torch._grouped_mm.

    python bench/grouped.py check time [--cpu] [--threads N] [--seconds S] [--out FILE]

check   random offsets, sizes and layouts against float64, exact on integers
time    one interleaved run of all sides. On a GPU in CUDA graphs over operands that rotate through more than the L2
        cache, of bf16; ragged: sizes of groups are a multinomial of a Dirichlet distribution (0.5). The loop is one
        product (cuBLAS) for each group. `expected`: the model's time for a batch of equal groups by the chosen plan
--cpu   the same of NumPy's arrays or torch's tensors on the CPU: f32 beside a loop of np.matmul, bf16 beside torch.mm
"""
from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tilewright as tw
from tilewright.lab.bench import results

GPU = [(64, 16384, 4096, 4096), (64, 8192, 7168, 2048), (64, 8192, 2048, 7168), (8, 16384, 4096, 14336),
       (64, 2048, 2048, 2048), (64, 512, 4096, 4096)]              # groups, rows, n, k
CPU = [(64, 64, 256, 256), (64, 512, 512, 512), (8, 2048, 1024, 1024), (64, 2048, 512, 512), (256, 1024, 128, 128)]


def ragged(groups: int, rows: int, rng: np.random.Generator) -> Any:
    """Where each group ends."""
    return np.cumsum(rng.multinomial(rows, rng.dirichlet(np.full(groups, 0.5))))


def in_turns(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Seconds of each, one after the other; a pause before each, since idle threads of some libraries spin."""
    for call in calls.values():
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[next(iter(calls))]) < 5:
        for name, call in calls.items():
            time.sleep(0.01)
            start = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - start)
    return found


def on_cpu(groups: int, rows: int, n: int, k: int, dtype: str, seconds: float) -> dict[str, list[float]]:
    rng = np.random.default_rng(groups)
    ends = ragged(groups, rows, rng)
    bounds = [(int(lo), int(hi)) for lo, hi in zip((0, *ends[:-1]), ends)]
    a, b = rng.standard_normal((rows, k), np.float32), rng.standard_normal((groups, k, n), np.float32)
    if dtype == "f32":
        out, other = np.empty((rows, n), np.float32), np.empty((rows, n), np.float32)

        def numpy() -> None:
            for (lo, hi), matrix in zip(bounds, b):
                np.matmul(a[lo:hi], matrix, out=other[lo:hi])
        return in_turns({"tilewright": partial(tw.grouped_matmul, a, b, ends, out), "np.matmul": numpy}, seconds)
    import ml_dtypes
    import torch
    x, y = (torch.from_numpy(t).bfloat16() for t in (a, b))
    z = torch.empty((rows, n), dtype=torch.bfloat16)
    a, b = (t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for t in (x, y))
    narrow = np.empty((rows, n), ml_dtypes.bfloat16)

    def torches() -> None:
        for (lo, hi), matrix in zip(bounds, y):
            if hi > lo:
                torch.mm(x[lo:hi], matrix, out=z[lo:hi])
    return in_turns({"tilewright": partial(tw.grouped_matmul, a, b, ends, narrow), "torch.mm": torches}, seconds)


def on_gpu(groups: int, rows: int, n: int, k: int, seconds: float) -> dict[str, list[float]]:
    import torch

    from tilewright.lab.bench.gpu_device import TorchDevice
    from tilewright.lab.measure.gpu_rules import GpuRules, GraphTrack, sets
    from tilewright.lab.measure.measure import interleave
    on = TorchDevice()
    ends = ragged(groups, rows, np.random.default_rng(groups))
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    bounds = [(int(lo), int(hi)) for lo, hi in zip((0, *ends[:-1]), ends)]
    count = sets(2 * (rows*k + groups*k*n), on.on.target.l2)
    operands = [(torch.randn(rows, k, device="cuda", dtype=torch.bfloat16),
                 torch.randn(groups, n, k, device="cuda", dtype=torch.bfloat16).transpose(1, 2)) for _ in range(count)]
    out = torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)

    def loop(a: Any, b: Any) -> None:
        for (lo, hi), matrix in zip(bounds, b):
            if hi > lo:
                torch.mm(a[lo:hi], matrix, out=out[lo:hi])
    sides: dict[str, Any] = {"tilewright": lambda a, b: tw.grouped_matmul(a, b, offsets, out), "loop": loop}
    if hasattr(torch, "_grouped_mm"):
        sides["_grouped_mm"] = lambda a, b: torch._grouped_mm(a, b, offs=offsets)
    for side in sides.values():                 # before they are recorded into a graph
        side(*operands[0])
    rules = GpuRules(max_rounds=15, budget_s=seconds)
    samples = interleave({name: [(side, x) for x in operands] for name, side in sides.items()}, rules,
                         track=lambda calls: GraphTrack(on, [partial(f, *args) for f, args in calls]))
    return {name: list(sample.seconds) for name, sample in samples.items()}


def expected(groups: int, rows: int, n: int, k: int, target: Any) -> tuple[str, float]:
    """The plan, and the model's seconds."""
    from tilewright.compiled.grouped import plan_for, ragged
    from tilewright.plans import gpu
    problem = tw.Gemm(-(-rows // groups), n, k, "bf16", "bf16", "bf16", "nt", groups)
    shape = gpu.planner(target).shape_of(problem)
    plan = plan_for(shape, target, "m")
    return str(plan), gpu.planner(target).cost(shape, plan, target).seconds * ragged(plan, shape.m)


def check(cpu: bool, count: int = 40) -> Iterator[str]:
    rng = np.random.default_rng(7)
    if not cpu:
        import torch
    for _ in range(count):
        groups, n, k, dtype = int(rng.integers(1, 70)), *rng.integers(1, 300, 2).tolist(), rng.choice(["f4", "f2"])
        sizes = rng.integers(0, rng.choice([2, 40, 300]), groups)
        ends = np.cumsum(sizes).astype(rng.choice(["i4", "i8"]))
        rows = int(ends[-1]) + int(rng.integers(0, 3))
        along = rng.choice(["m", "k"])
        shapes = ((rows, k), (groups, k, n)) if along == "m" else ((k, rows), (rows, n))
        a, b = (rng.integers(-2, 3, shape).astype(dtype) for shape in shapes)
        spans = list(zip((0, *ends[:-1]), ends))
        if along == "m":
            wanted = np.concatenate([a[lo:hi].astype("f8") @ x.astype("f8") for (lo, hi), x in zip(spans, b)]
                                    + [np.zeros((rows - int(ends[-1]), n))])
        else:
            wanted = np.stack([a[:, lo:hi].astype("f8") @ b[lo:hi].astype("f8") for lo, hi in spans])
        if cpu:
            found = tw.grouped_matmul(a, b, ends)
        else:
            found = tw.grouped_matmul(*(torch.from_numpy(x).cuda() for x in (a, b, ends))).cpu().numpy()
        if not np.array_equal(found.astype("f8"), wanted):
            yield f"wrong: along {along}, {dtype}, {groups} groups of {sizes.tolist()}, n = {n}, k = {k}"
    yield f"{count} products checked"


def more_checks() -> Iterator[str]:
    """On a GPU: bits of rows in other groups, weights of few bits, reductions, gradients by tilewright.torch."""
    import torch

    import tilewright.torch as twt
    from tilewright.formats.scaled import Scaled
    rng = np.random.default_rng(3)

    def there(x: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(x)).cuda()
    sizes, n, k = (130, 0, 1, 70), 264, 192
    ends = np.cumsum(sizes)
    offsets, spans = there(ends.astype(np.int32)), list(zip((0, *ends[:-1].tolist()), ends.tolist()))
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (there(rng.standard_normal(shape, np.float32)).to(dtype) for shape in ((203, k), (4, n, k)))
        how: dict[str, Any] = {"trans_b": True, "batch_invariant": True, "out_dtype": "f32"}
        whole = tw.grouped_matmul(a, b, offsets, **how)
        wide = torch.zeros(9, k + 8, device="cuda", dtype=dtype)
        for lo, hi, g in ((131, 132, 3), (140, 149, 3), (0, 5, 0)):
            wide[:hi - lo, :k] = a[lo:hi]
            ends_now = there(np.int32([0, hi - lo]))
            found = tw.grouped_matmul(wide[:hi - lo, :k], b[[g, g]], ends_now, **how)
            if not torch.equal(found, whole[lo:hi]):
                yield f"batch_invariant, {dtype}: rows {lo} to {hi} have other bits"
    x, w = rng.integers(-3, 4, (203, k)).astype(np.float32), rng.integers(-3, 4, (4, n, k)).astype(np.float32)
    y = there(x).to(torch.bfloat16)
    for kind in ("i8", "i4", "u4", "mxfp4", "nvfp4"):
        q = tw.quantize(w, kind, **({} if "fp" in kind else {"group": 32, "zero_points": kind == "u4"}))
        wanted = np.concatenate([x[lo:hi] @ z.T for (lo, hi), z in zip(spans, tw.dequantize(q))])
        zeros: dict[str, Any] = {"zeros": there(q.zeros)} if isinstance(q, Scaled) and q.zeros is not None else {}
        q = replace(q, elements=there(q.elements), scales=there(q.scales), **zeros)
        found = tw.grouped_matmul(y, q, offsets, trans_b=True, out_dtype="f32")[:201].cpu().numpy()
        if not (error := abs(found - wanted).max() / abs(wanted).max()) < 1e-2:
            yield f"weights of {kind}: the error is {error:.1e}"
    z, rows, columns = tw.grouped_matmul(y, there(w).to(torch.bfloat16), offsets, trans_b=True, out_dtype="f32",
                                         epilogue=lambda acc: (acc, tw.row_sum(acc), tw.column_max(acc)))
    wanted = np.concatenate([x[lo:hi] @ m.T for (lo, hi), m in zip(spans, w)] + [np.zeros((2, n))])
    most = np.stack([wanted[lo:hi].max(0, initial=-1e9) if hi > lo else np.zeros(n) for lo, hi in spans])
    for name, one, exact in (("results", z, wanted), ("sums of rows", rows, wanted.sum(1)), ("columns", columns, most)):
        if not np.array_equal(one.cpu().numpy(), exact):
            yield f"wrong {name} beside reductions"
    for left, right in (((203, k), (4, k, n)), ((n, 203), (203, k))):
        a, b = (there(rng.integers(-2, 3, shape).astype(np.float32)).requires_grad_() for shape in (left, right))
        found = twt.grouped_mm(a, b, offsets)
        parts = [a[lo:hi] @ m for (lo, hi), m in zip(spans, b)] if b.dim() == 3 else []
        wanted = torch.cat([*parts, torch.zeros(2, n, device="cuda")]) if parts else torch.stack(
            [a[:, lo:hi] @ b[lo:hi] for lo, hi in spans])
        g = torch.ones_like(wanted)
        pairs = zip((found, *torch.autograd.grad(found, (a, b), g)), (wanted, *torch.autograd.grad(wanted, (a, b), g)))
        for name, (one, exact) in zip(("result", "gradient of a", "gradient of b"), pairs):
            if not torch.equal(one, exact):
                yield f"wrong {name} of torch's operator for {left} by {right}"
    yield "bits, weights, reductions and gradients checked"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=["check", "time"])
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each product")
    parser.add_argument("--out", type=Path)
    options = results.options(parser, "out")
    if options.cpu:
        tw.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    if "check" in options.jobs:
        print(*check(options.cpu), *(() if options.cpu else more_checks()), sep="\n", flush=True)
    for case in (CPU if options.cpu else GPU) if "time" in options.jobs else ():
        for dtype in ("f32", "bf16") if options.cpu else ("bf16",):
            row: dict[str, Any] = {"case": case, "dtype": dtype}
            if options.cpu:
                row["seconds"] = on_cpu(*case, dtype, options.seconds)
            else:
                row["plan"], row["expected"] = expected(*case, tw.detect("cuda"))
                row["seconds"] = on_gpu(*case, options.seconds)
            rows.append(row)
            groups, m, n, k = case
            medians = {name: statistics.median(x) for name, x in row["seconds"].items()}
            ours = row["seconds"]["tilewright"]
            print(f"{dtype} {groups} groups of {m} rows, n = {n}, k = {k}: {medians['tilewright'] * 1e6:.0f} us, "
                  + ", ".join(f"{statistics.median(x / y for x, y in zip(times, ours)):.2f} of {name}"
                              for name, times in row["seconds"].items() if name != "tilewright")
                  + (f"; expected {row['expected'] * 1e6:.0f} us, {row['plan']}" if "plan" in row else ""), flush=True)
            if options.out:
                results.write({"machine": tw.detect().model, "rows": rows}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
