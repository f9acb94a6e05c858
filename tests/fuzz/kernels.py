"""Products by the kernels of GPUs, in the simulator: formats, layouts, strides, scalars, empty k, parts of k, against
integers. The simulator faults on accesses outside, races, and reads of what was not written."""

from __future__ import annotations

from math import ceil
from random import Random
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz.driver import Case, Fuzzer
from tests.fuzz.values import numbers
from tilewright import formats, targets
from tilewright.formats import BLOCK_FORMATS, FORMATS
from tilewright.plans import gpu, gpu_lowering
from tilewright.runtime.gpu import operands

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
        multiply(compiled, case["data"], case["alpha"], case["beta"], case["gaps"])


def _work(plan: Any, problem: Any) -> int:
    k = max(plan.cta_k, 1) * plan.split_k
    tiles = ceil(problem.m / plan.cta_m) * ceil(problem.n / plan.cta_n)
    return int(tiles * plan.cta_m * plan.cta_n * ceil(problem.k / k) * k)


def affordable(compiled: Any) -> bool:
    return not (p := compiled.problem).m * p.n * p.k or _work(compiled.plan, p) <= 2 * MOST


def _runs(compiled: Any, a: Any, b: Any, out: Any) -> bool:
    """Whether a call would take these operands, whose rows a plan may store by vectors."""
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        return True
    try:
        operands.check(getattr(compiled, "inner", compiled), (a, b, out))
    except ValueError:
        return False
    return True


def multiply(compiled: Any, data: int, alpha: float = 1, beta: float = 0, gaps: int = 0) -> None:
    """The product of whole numbers by a compiled kernel; AssertionError, or a Fault, unless it is right."""
    p = compiled.problem
    a, x = _operand(p.a, (p.m, p.k), -1, data, p.layout[0] == "t")
    b, y = _operand(p.b, (p.k, p.n), -2, data + 1, p.layout[1] == "t")
    dtype = FORMATS[p.out].dtype
    wide = np.full((p.m, p.n + gaps), 7, dtype)
    out = wide[:, : p.n]
    if gaps and not _runs(compiled, a, b, out):
        wide = out = np.full((p.m, p.n), 7, dtype)
    out[...] = numbers(p.out, (p.m, p.n), "whole", data + 2)
    want = alpha * (x @ y) + (beta * out.astype(np.float64) if beta else 0)
    if formats.FORMATS[p.out].bits <= 16 and dtype.kind in "iu":
        want = want.astype(np.int64)
    tw.simulate(compiled, a, b, out, alpha=alpha, beta=beta)
    with np.errstate(all="ignore"):
        want = np.broadcast_to(want, out.shape).astype(dtype if dtype.kind in "iu" else np.float32 if p.out != "f64"
                                                       else np.float64).astype(dtype)
    assert np.array_equal(out, want), f"{np.count_nonzero(out != want)} of {out.size} elements are wrong"
    assert (wide[:, p.n :] == dtype.type(7)).all(), "written between the rows of C"


def _operand(name: str, shape: tuple[int, int], axis: int, data: int, turned: bool) -> tuple[Any, np.ndarray]:
    """As the kernel takes it, and as float64."""
    if name in BLOCK_FORMATS:
        q = tw.quantize(numbers("f32", shape, "whole", data), name, axis)
        return q, tw.dequantize(q).astype(np.float64)
    x = numbers(name, shape, "whole", data)
    return (np.asfortranarray(x) if turned else x), x.astype(np.float64)


PLAIN: Case = {"rank": 0.0, "alpha": 1, "beta": 0, "gaps": 0, "layout": "nt"}
FUZZER = Fuzzer("kernels", draw, check, PLAIN, limit_s=400)
