"""Products with their own arithmetic (tilewright.contract) on one NVIDIA GPU, beside our own f32 product and torch.

    python bench/semirings.py check[:COUNT] time host [--quick] [--out FILE]

check   random contractions against float64, exact on integers: formats, layouts, views, batches, sizes
time    4096 x 4096 x 128 and 4096 x 4096 x 4096 in CUDA graphs over operands that rotate through more than the L2
        cache, one interleaved run of all sides. `bound`: what the instructions of a term take, if nothing else does
host    the time until a call of a small product comes back
"""
from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tilewright as tw
from bench.gpu_costs import host_cost
from tilewright.expressions.semiring import semiring
from tilewright.lab.bench import results
from tilewright.lab.bench.gpu_device import TorchDevice
from tilewright.lab.measure.gpu_rules import GpuRules, GraphTrack, sets
from tilewright.lab.measure.measure import interleave, ratios, spread
from tilewright.plans import semirings

CHUNK = 1 << 25         # elements that torch makes at once where it has no function for a reduction


def by_chunks(term: Callable[[Any, Any], Any], reduce: Callable[[Any], Any], a: Any, b: Any) -> Any:
    """By torch's own functions, of all terms of some rows at once."""
    rows = max(CHUNK // (b.shape[1] * a.shape[1]), 1)
    return torch.cat([reduce(term(part[:, None, :], b.t()[None])) for part in a.split(rows)])


@dataclass(frozen=True)
class Case:
    """One arithmetic; `peers` compute the same of a [m, k] and b [k, n], whose columns are contiguous."""
    name: str
    f: Callable[[Any, Any], Any]
    reduce: str
    dtype: Any
    peers: dict[str, Callable[[Any, Any], Any]]


def squares(mode: str, a: Any, b: Any) -> Any:
    return torch.cdist(a, b.t(), compute_mode=mode) ** 2


CASES = (
    Case("(a - b)^2, sum", lambda x, y: (x - y)**2, "sum", torch.float32, {
        "cdist^2": partial(squares, "donot_use_mm_for_euclid_dist"),
        "cdist^2 by a product": partial(squares, "use_mm_for_euclid_dist")}),
    Case("|a - b|, sum", lambda x, y: abs(x - y), "sum", torch.float32,
         {"cdist p=1": lambda a, b: torch.cdist(a, b.t(), p=1.0)}),
    Case("|a - b|, max", lambda x, y: abs(x - y), "max", torch.float32,
         {"cdist p=inf": lambda a, b: torch.cdist(a, b.t(), p=float("inf"))}),
    Case("a + b, min", lambda x, y: x + y, "min", torch.float32,
         {"broadcast": partial(by_chunks, torch.add, lambda x: x.amin(-1))}),
    Case("a b, max", lambda x, y: x * y, "max", torch.float32,
         {"broadcast": partial(by_chunks, torch.mul, lambda x: x.amax(-1))}),
    Case("exp(-(a - b)^2), sum", lambda x, y: tw.exp(-(x - y)**2), "sum", torch.float32,
         {"broadcast": partial(by_chunks, lambda x, y: torch.exp(-(x - y)**2), lambda x: x.sum(-1))}),
    Case("popcount(a ^ b), sum", lambda x, y: tw.popcount(x ^ y), "sum", torch.int32, {}),
    Case("a & b, any", lambda x, y: x & y, "any", torch.bool,
         {"bf16 product > 0": lambda a, b: a.bfloat16() @ b.bfloat16() > 0}),
    Case("(a - b)^2, sum, f64", lambda x, y: (x - y)**2, "sum", torch.float64,
         {"cdist^2": partial(squares, "donot_use_mm_for_euclid_dist")}),
    Case("(a - b)^2, argmin", lambda x, y: (x - y)**2, "argmin", torch.float32,
         {"broadcast": partial(by_chunks, lambda x, y: (x - y)**2, lambda x: x.argmin(-1))}),
    Case("a + b, logsumexp", lambda x, y: x + y, "logsumexp", torch.float32,
         {"broadcast": partial(by_chunks, torch.add, lambda x: x.logsumexp(-1))}),
)


def numbers(dtype: Any, *shape: int) -> Any:
    if dtype.is_floating_point:
        return torch.randn(shape, device="cuda", dtype=dtype)
    return torch.randint(*((0, 2) if dtype is torch.bool else (-2**31, 2**31 - 1)), shape, device="cuda").to(dtype)


DEEP = "(a - b)^2, sum", "a + b, min", "popcount(a ^ b), sum"      # which are also timed with k = 4096

# ---- check

ARITHMETIC = {
    "squares": (lambda x, y: (x - y)**2, "sum"), "sizes": (lambda x, y: abs(x - 20*y), "min"),
    "paths": (lambda x, y: x + y + 40, "min"), "times": (lambda x, y: x * y, "max"),
    "uneven": (lambda x, y: x - 9*y, "max"), "some": (lambda x, y: (x > 6) & (y > 6), "any"),
    "never 0": (lambda x, y: (x - y)**2 + 1, "sum"), "product": (lambda x, y: x * y, "sum"),
    "nearest": (lambda x, y: (x - y)**2, "argmin"), "largest": (lambda x, y: x * y, "argmax"),
    "long": (lambda x, y: tw.where(x < y, (x - y) * (x + 3) * (y - 2) * (x * y - 5) + x * x, y), "sum"),
}
DTYPES = (torch.float32, torch.float32, torch.float64, torch.int32, torch.int64, torch.int8, torch.float16,
          torch.bfloat16)
SIZES, DEPTHS = (1, 2, 7, 31, 64, 97, 128, 129, 257, 300, 1000), (1, 2, 5, 8, 9, 16, 17, 33, 64, 100, 129, 515)


def view(pick: random.Random, dtype: Any, *shape: int) -> Any:
    """A matrix or a stack of small integers inside of a larger one, by rows or by columns. They are positive: the terms
    of 0 and 0 would be seen."""
    *lead, rows, cols = shape
    gap, before, transposed = pick.choice((0, 0, 1, 4)), pick.choice((0, 0, 1, 4)), pick.random() < 0.5
    rows, cols = (cols, rows) if transposed else (rows, cols)
    x = torch.randint(2, 8, (*lead, rows, cols + gap + before), device="cuda").to(dtype)[..., before:before + cols]
    return x.transpose(-1, -2) if transposed else x


def check(count: int, seed: int = 7) -> Iterator[str]:
    """What is wrong, and how many contractions were tried. Numbers are small integers, so that results are exact."""
    pick = random.Random(seed)
    for _ in range(count):
        name, dtype = pick.choice(list(ARITHMETIC)), pick.choice(DTYPES)
        f, reduce = ARITHMETIC[name]
        m, n, k, lead = pick.choice(SIZES), pick.choice(SIZES), pick.choice(DEPTHS), pick.choice(((), (), (3,)))
        a, b = view(pick, dtype, *lead, m, k), view(pick, dtype, *lead, k, n)
        floats = dtype.is_floating_point
        x, y = ((t.double() if floats else t).cpu().numpy() for t in (a, b))
        wanted = semiring(f, reduce, "float" if floats else "int").evaluate(x, y)
        first, second = (tw.contract(f, a, b, reduce=reduce) for _ in range(2))
        found = first.cpu().numpy()
        wanted = wanted > 0 if reduce == "any" else wanted
        what = f"{name} {dtype} {m}x{n}x{k} {lead} {a.stride()} {b.stride()} {a.data_ptr() % 16} {b.data_ptr() % 16}"
        if not np.array_equal(found.astype(wanted.dtype), wanted):
            yield f"wrong: {what}: {np.argwhere(found != wanted)[:3].tolist()}"
        if not torch.equal(first, second):
            yield f"another result of the second call: {what}"
    yield f"seed {seed}: {count} contractions checked"


# ---- time

def squared(a: Any, b: Any) -> Any:
    """As a user writes it: a new function object in every call."""
    return tw.contract(lambda x, y: (x - y)**2, a, b)


def timed(on: TorchDevice, case: Case, m: int, n: int, k: int, rules: GpuRules, torches: bool) -> dict[str, Any]:
    target = on.on.target
    count = sets((m*k + k*n) * case.dtype.itemsize, target.l2)
    operands = [(numbers(case.dtype, m, k), numbers(case.dtype, n, k).t()) for _ in range(count)]
    floats = [(torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda").t()) for _ in range(count)]
    ours = partial(tw.contract, case.f, reduce=case.reduce)
    sides: dict[str, Any] = {"tilewright": [(ours, x) for x in operands], "matmul": [(tw.matmul, x) for x in floats]}
    if torches:
        sides |= {name: [(peer, x) for x in operands] for name, peer in case.peers.items()}
    found = {name: calls[0][0](*calls[0][1]) for name, calls in sides.items()}
    for name, x in found.items():
        if name not in ("matmul", "tilewright"):
            error = ((x.double() - found["tilewright"].double()).abs().max() / x.double().abs().max()).item()
            print(f"    {name} differs by {error:.1e}")
    del found
    for calls in sides.values():                    # before they are recorded into a graph
        for function, args in calls:
            function(*args)
    samples = interleave(sides, rules, track=lambda calls: GraphTrack(on, [partial(f, *args) for f, args in calls]))
    formats = {torch.float32: "f32", torch.float64: "f64", torch.int32: "i32", torch.bool: "i32"}[case.dtype]
    kind = "float" if case.dtype.is_floating_point else "int"
    made = semiring(case.f, case.reduce, kind)
    bound = m*n*k * semirings.clocks(made.text, formats, target) / target.sms / target.clock
    # that of a state depends on its epilogue, which contract makes
    plan = "" if made.state else tw.plan(tw.Gemm(m, n, k, formats, layout="nt", semiring=made), target)
    return {"case": case.name, "m": m, "n": n, "k": k, "bound": bound, "plan": str(plan),
            "seconds": {name: list(sample.seconds) for name, sample in samples.items()}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=["check", "time", "host"])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--out", type=Path, default=Path("semirings.json"))
    options = results.options(parser, "out")
    on = TorchDevice()
    report = results.Report.start("semirings")
    report.machine["gpu"] = on.describe()
    for job in options.jobs:
        name, _, count = job.partition(":")
        if name == "check":
            report.extra["checked"] = list(check(int(count or 60)))
            print(*report.extra["checked"], sep="\n", flush=True)
        elif name == "host":
            operands = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
            calls = {"contract": partial(squared, *operands), "matmul": partial(tw.matmul, *operands),
                     "torch.mm": partial(torch.mm, *operands), "torch.cdist": partial(torch.cdist, *operands)}
            report.extra["overhead"] = found = host_cost(calls, torch.cuda.synchronize)
            for each, seconds in found.items():
                print(f"{each}: {spread(seconds).median * 1e6:.2f} us", flush=True)
        else:
            rules = GpuRules(max_rounds=7 if options.quick else 15, budget_s=1.0 if options.quick else 3.0)
            report.extra["semirings"] = rows = []
            sizes: dict[tuple[int, int, int], tuple[Case, ...]] = {(4096, 4096, 128): CASES}
            sizes[4096, 4096, 4096] = tuple(x for x in CASES if x.name in DEEP)
            for size, cases in sizes.items():
                for case in cases:
                    row = timed(on, case, *size, rules, size[2] == 128)
                    rows.append(row)
                    ours = row["seconds"]["tilewright"]
                    print(f"{case.name:22} {'x'.join(map(str, size))} {spread(ours).median * 1e6:8.1f} us, bound "
                          f"{row['bound'] * 1e6:.1f} us, " + ", ".join(
                              f"{spread(ratios(x, ours)).median:.3f} of {each}" for each, x in row["seconds"].items()
                              if each != "tilewright") + f"; {row['plan']}", flush=True)
                    results.save(report, options.out)
                    torch.cuda.empty_cache()
        results.save(report, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
