"""Texts of plans, mutated: refused with a ValueError that has a sentence, or a plan that computes the right product.

`violations` never raises, whatever the numbers. A plan without violations is run: on this CPU with arrays of a few
rows, on GPUs' targets in the simulator where the product is small enough.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz import kernels, products
from tests.fuzz.children import in_child
from tests.fuzz.driver import Case, Fuzzer
from tests.fuzz.values import numbers
from tests.helpers.gemms import right
from tilewright import targets
from tilewright.plans.amd import AmdPlan
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.nvidia import NvidiaPlan

SEEDS = {
    "cpu": ["packed 6x16 mc=12 kc=16 nc=32", "packed 4x8 mc=8 kc=5 nc=8 ways=2x1x1", "in_place 6x16", "dots 2x3",
            "in_place 4x8 kc=3 ways=1x2x1 swap", "stream 3x4 ways=2x1x1", "packed 6x16 mc=12 kc=4 nc=16 swap copy",
            "dots 3x4 kc=16 ways=2x1x1"],
    "gpu": ["simt 64x64x8 warp=32x32 thread=8x4 stages=2 copy=registers", "simt 128x128x8 warp=32x64 thread=8x8 "
            "stages=3 split_k=2", "gemv 4x32x8 stages=2 copy=registers", "dmma 64x64x16 warp=32x32 stages=3 vector=2",
            "simt 64x32x8 warp=32x32 thread=8x4 stages=2 copy=registers slices=2 order=columns tail"],
    "amd": ["mfma 64x64x32 wave=32x32 mfma=32 copy=registers stages=2", "mfma 32x64x64 wave=32x32 mfma=16 copy=lds "
            "stages=3 split_k=2", "scaled 64x64x128 wave=32x32 mfma=32 copy=registers stages=2 vector_c=1",
            "xf32 64x64x32 wave=32x32 mfma=32 copy=registers stages=2",
            "mfma 64x64x64 wave=32x32 mfma=32 copy=registers stages=2 decoded=bf16"],
}
CHIPS = {"cpu": targets.names("cpu"), "gpu": targets.names("gpu"), "amd": targets.names("amd")}
PARSE = {"cpu": CpuPlan.parse, "gpu": NvidiaPlan.parse, "amd": AmdPlan.parse}
NUMBERS = ("0", "1", "2", "3", "4", "5", "8", "12", "16", "31", "32", "33", "64", "128", "-1", "-8", "100000",
           "1000000", "99999999999", "9" * 23, "1e3", "1.5", "", "x", "0x10", "\u0663", "1_6", "nan", "None", "True",
           "9" * 5000)
WORDS = ("swap", "copy", "tail", "early", "ways=1x1x1", "ways=2x2", "ways=1000000x1000000x1", "kc=0", "mc=7",
         "stages=0",
         "vector=3", "vector=0", "order=rows", "copy=async", "copy=lds", "copy=", "split_k=0", "split_k=100000",
         "slices=3", "group_m=0", "group_m=-1", "registers=1", "thread=0x0", "warp=32x32", "=", "kc=8=8", "\0",
         "algorithm=dots", "mr=6", "swap=1", "vector_c=3", "mfma=4", "threads=5")
ABSURD = 4096  # in a plan that nobody runs here, since it would only be slow, or take all memory


def draw(rng: Random) -> Case:
    kind = rng.choice(["cpu", "cpu", "gpu", "amd"])
    text = mutated(rng, rng.choice(SEEDS[kind]))
    if kind == "cpu" and rng.random() < 0.3:
        text = products.plan(rng, {"a": "f32", "m": 3, "n": 3})
    chip = rng.choice(CHIPS[kind])
    a = rng.choice(["f32", "f64"] if kind != "amd" else kernels.AMD[chip])
    sizes = [rng.choice([0, 1, 2, 3, 7, 17, 33, 40, 64, 70]) for _ in range(3)]
    layout = rng.choice(["nn", "nt", "tn", "tt"]) if not a.startswith("mx") else "nt"
    return {"kind": kind, "text": text, "chip": chip, "a": a, "sizes": sizes, "layout": layout,
            "data": rng.randrange(2**31)}


def mutated(rng: Random, text: str) -> str:
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        parts = text.split(" ")
        at = rng.randrange(len(parts))
        way = rng.random()
        if way < 0.55:  # another number
            digits = [i for i, c in enumerate(parts[at]) if c.isdigit()]
            if digits:
                first = rng.choice(digits)
                last = first
                while last < len(parts[at]) and parts[at][last].isdigit():
                    last += 1
                while first and parts[at][first - 1].isdigit():
                    first -= 1
                parts[at] = parts[at][:first] + rng.choice(NUMBERS) + parts[at][last:]
        elif way < 0.75:
            parts.insert(at + 1, rng.choice(WORDS))
        elif way < 0.8:
            parts[0] = rng.choice(["future", *(text.split()[0] for texts in SEEDS.values() for text in texts)])
        elif way < 0.87:
            del parts[at]
        elif way < 0.95:
            parts[at] = "".join(rng.sample(parts[at], len(parts[at])))
        else:
            parts[at] += rng.choice(["\n", "\t", "=", "x", "\u2028", "\ud800"])
        text = " ".join(parts)
    return text


def check(case: Case) -> None:
    try:
        plan = PARSE[case["kind"]](case["text"])
    except ValueError as error:
        _is_a_sentence(error)
        return
    assert PARSE[case["kind"]](str(plan)) == plan, f"{plan!r} is printed as {plan}, which is another"
    target = targets.target(case["chip"])
    m, n, k = case["sizes"]
    problem = tw.Gemm(m, n, k, case["a"], layout=case["layout"], out=kernels.SUMS.get(case["a"], None))
    try:
        refused = plan.violations(problem, target)
    except ValueError as error:  # the problem itself has no shape on this target
        if "scales of" not in str(error):
            raise
        return
    assert all(isinstance(reason, str) and reason.endswith(".") for reason in refused), refused
    try:
        compiled = tw.compile(problem, target, case["text"])
    except (ValueError, TypeError) as error:
        _is_a_sentence(error)
        return
    if refused:
        assert not m * n * k, f"compiled in spite of {refused}"
        return
    if _absurd(plan):
        return
    if case["kind"] == "cpu":
        if target.runnable:
            in_child(lambda: _run(compiled, case), 300)
    elif kernels.affordable(compiled):
        right(compiled, case["data"])


def _is_a_sentence(error: Exception) -> None:
    assert len(str(error).split()) > 3, f"no sentence: {error!r}"


def _run(compiled: Any, case: Case) -> None:
    m, n, k = case["sizes"]
    a, b = (numbers(case["a"], shape, "whole", case["data"] + i) for i, shape in enumerate(((m, k), (k, n))))
    x, y = (np.asfortranarray(z) if letter == "t" else z for z, letter in zip((a, b), case["layout"]))
    assert np.array_equal(compiled(x, y), a @ b), "the product is wrong"
    if not compiled.plan.violations(compiled.problem, targets.detect()):    # matmul has plans for this processor alone
        assert np.array_equal(tw.matmul(x, y, plan=compiled.plan), a @ b), "matmul's is wrong"


def _absurd(plan: Any) -> bool:
    return any(isinstance(value, int) and value > ABSURD for value in vars(plan).values())


FUZZER = Fuzzer("plans", draw, check, {"layout": "nn", "chip": "x86-avx2"}, limit_s=400)
