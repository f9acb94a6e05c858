"""Products with their own arithmetic (tilewright.contract) on one NVIDIA GPU, beside our own f32 product and torch.

    python bench/semirings.py [--quick] [--out FILE]

4096 x 4096 x 128, and of some 4096 x 4096 x 4096. `bound`: what the instructions of a term take, if nothing else does.
Random contractions are checked by
`python -m tests.fuzz.device --only contract`.
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import tilewright as tw
from tilewright.expressions.semiring import semiring
from tilewright.lab.bench import study
from tilewright.lab.bench.gpu_device import TorchDevice
from tilewright.lab.measure.gpu_rules import sets
from tilewright.plans import semirings

CHUNK = 1 << 25         # elements that torch makes at once where it has no function for a reduction
FORMATS = {torch.float32: "f32", torch.float64: "f64", torch.int32: "i32", torch.bool: "i32"}


def by_chunks(term: Callable[[Any, Any], Any], reduce: Callable[[Any], Any], a: Any, b: Any) -> Any:
    """By torch's own functions, of all terms of some rows at once."""
    rows = max(CHUNK // (b.shape[1] * a.shape[1]), 1)
    return torch.cat([reduce(term(part[:, None, :], b.t()[None])) for part in a.split(rows)])


def squares(mode: str, a: Any, b: Any) -> Any:
    return torch.cdist(a, b.t(), compute_mode=mode) ** 2


class Arithmetic(NamedTuple):
    """`peers` compute the same of a [m, k] and b [k, n], whose columns are contiguous."""
    f: Callable[[Any, Any], Any]
    reduce: str
    peers: dict[str, Callable[[Any, Any], Any]]
    dtype: Any = torch.float32
    deep: bool = False      # also timed with k = 4096


CASES = {
    "(a - b)^2, sum": Arithmetic(lambda x, y: (x - y)**2, "sum", {
        "cdist^2": partial(squares, "donot_use_mm_for_euclid_dist"),
        "cdist^2 by a product": partial(squares, "use_mm_for_euclid_dist")}, deep=True),
    "|a - b|, sum": Arithmetic(lambda x, y: abs(x - y), "sum", {
        "cdist p=1": lambda a, b: torch.cdist(a, b.t(), p=1.0)}),
    "|a - b|, max": Arithmetic(lambda x, y: abs(x - y), "max", {
        "cdist p=inf": lambda a, b: torch.cdist(a, b.t(), p=float("inf"))}),
    "a + b, min": Arithmetic(lambda x, y: x + y, "min", {
        "broadcast": partial(by_chunks, torch.add, lambda x: x.amin(-1))}, deep=True),
    "a b, max": Arithmetic(lambda x, y: x * y, "max", {
        "broadcast": partial(by_chunks, torch.mul, lambda x: x.amax(-1))}),
    "exp(-(a - b)^2), sum": Arithmetic(lambda x, y: tw.exp(-(x - y)**2), "sum", {
        "broadcast": partial(by_chunks, lambda x, y: torch.exp(-(x - y)**2), lambda x: x.sum(-1))}),
    "popcount(a ^ b), sum": Arithmetic(lambda x, y: tw.popcount(x ^ y), "sum", {}, torch.int32, deep=True),
    "a & b, any": Arithmetic(lambda x, y: x & y, "any", {
        "bf16 product > 0": lambda a, b: a.bfloat16() @ b.bfloat16() > 0}, torch.bool),
    "(a - b)^2, sum, f64": Arithmetic(lambda x, y: (x - y)**2, "sum", {
        "cdist^2": partial(squares, "donot_use_mm_for_euclid_dist")}, torch.float64),
    "(a - b)^2, argmin": Arithmetic(lambda x, y: (x - y)**2, "argmin", {
        "broadcast": partial(by_chunks, lambda x, y: (x - y)**2, lambda x: x.argmin(-1))}),
    "a + b, logsumexp": Arithmetic(lambda x, y: x + y, "logsumexp", {
        "broadcast": partial(by_chunks, torch.add, lambda x: x.logsumexp(-1))}),
}


def numbers(dtype: Any, *shape: int) -> Any:
    if dtype.is_floating_point:
        return torch.randn(shape, device="cuda", dtype=dtype)
    return torch.randint(*((0, 2) if dtype is torch.bool else (-2**31, 2**31 - 1)), shape, device="cuda").to(dtype)


def case(on: TorchDevice, name: str, x: Arithmetic, m: int, n: int, k: int) -> study.Case:
    target = on.on.target
    count = sets((m*k + k*n) * x.dtype.itemsize, target.l2)
    every, floats = ([(numbers(dtype, m, k), numbers(dtype, n, k).t()) for _ in range(count)]
                     for dtype in (x.dtype, torch.float32))
    ours = partial(tw.contract, x.f, reduce=x.reduce)
    sides = {"tilewright": study.partials(ours, every), "matmul": study.partials(tw.matmul, floats)}
    sides |= {peer: study.partials(f, every) for peer, f in x.peers.items() if k < 4096}
    wanted = ours(*every[0])

    def wrong(side: str, result: Any) -> str:
        """Nothing: torch's functions are no reference. How far their results are from ours is printed."""
        error = "" if side in ("tilewright", "matmul") else study.near(result, wanted, 0.0)
        if error:
            print(f"    {side}: {error.partition(',')[0]} beside ours", flush=True)
        return ""
    format = FORMATS[x.dtype]
    made = semiring(x.f, x.reduce, "float" if x.dtype.is_floating_point else "int")
    bound = m*n*k * semirings.clocks(made.text, format, target) / target.sms / target.clock
    # that of a state depends on its epilogue, which contract makes
    plan = "" if made.state else tw.plan(tw.Gemm(m, n, k, format, layout="nt", semiring=made), target)
    return study.Case({"case": name, "m": m, "n": n, "k": k, "bound": bound, "plan": str(plan)}, sides, wrong,
                      {"arithmetic": x, "every": every})


def cases(on: TorchDevice) -> Iterator[study.Case]:
    for k in (128, 4096):
        for name, x in CASES.items():
            if k == 128 or x.deep:
                yield case(on, name, x, 4096, 4096, k)


if __name__ == "__main__":
    options, on = study.parsed(__doc__ or "", "semirings.json"), TorchDevice()
    sys.exit(study.main("semirings", cases(on), options, on))
