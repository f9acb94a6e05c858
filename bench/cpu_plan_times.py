"""How long plans take on this CPU for shapes drawn at random: the data that the cost model is fitted to.

    python bench/cpu_plan_times.py FORMAT... --into TIMES.jsonl [--threads 1,4,16] [--count 24] [--seed 1] [--seconds S]

Shapes: by the rule of `tilewright bench random`. Plans: the planner's choice, its next ones, and the first one of every
kind (algorithm, tile, ways) that it expects within FACTOR of its choice's time. One line for each shape and number of
threads: {"format", "layout", "m", "n", "k", "threads", "vendor": [us, us], "plans": {plan: us}}, where "vendor" is
torch before and after. A time is the median of some turns, in each of which all plans take part; turns begin when other
threads sleep. Results are compared with float64; a plan that is wrong or fails has its reason under "failed".
"""
from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from ml_dtypes import finfo

import tilewright as tw
from bench.plan_times import OUT
from tilewright.formats import FORMATS
from tilewright.lab.bench import results
from tilewright.lab.bench.suites import random_shapes
from tilewright.lab.measure import quiet
from tilewright.plans.choose import choose, ranked
from tilewright.plans.model import cost
from tilewright.runtime.cpu import engine

FACTOR, MOST, FIRST = 6.0, 32, 4        # of the choice's time; plans of a shape; the next ones that are taken anyway
TURNS, TURN, MOST_CALLS = 5, 2e-3, 2000
PROVED = 4e9                            # operations, up to which results are compared with float64


def plans_of(shape: Any, chip: Any) -> list[Any]:
    """The planner's choice first."""
    plans = ranked(shape, chip)
    price = {plan: cost(shape, plan, chip).seconds for plan in plans}
    kinds: dict[Any, Any] = {}
    for plan in plans:
        kinds.setdefault((plan.algorithm, plan.mr, plan.nr, plan.jc_ways, plan.ic_ways, plan.jr_ways, plan.own_b,
                          plan.swap, plan.word), plan)
    near = [plan for plan in kinds.values() if price[plan] <= FACTOR * price[plans[0]]]
    return list(dict.fromkeys((choose(shape, chip), *plans[:FIRST], *near)))[:MOST]


def operands(format: str, layout: str, m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    pick, dtype = np.random.default_rng(m + n + k), FORMATS[format].dtype
    a, b = (pick.integers(-128, 128, size).astype(dtype) if format.startswith("i")
            else pick.standard_normal(size).astype(dtype) for size in ((m, k), (k, n)))
    a, b = (np.asfortranarray(x) if letter == "t" else x for x, letter in zip((a, b), layout))
    return a, b, np.empty((m, n), FORMATS[OUT.get(format, format)].dtype)


def vendor(a: Any, b: Any, c: Any) -> Callable[[], Any]:
    """torch's product of these operands, into a tensor of its own."""
    import torch

    def tensor(x: Any) -> Any:
        if x.T.flags.c_contiguous and not x.flags.c_contiguous:
            return tensor(x.T).T
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype.name == "bfloat16" else (
            torch.from_numpy(x))
    return partial(torch._int_mm if a.dtype == np.int8 else torch.mm, tensor(a), tensor(b), out=tensor(c.copy()))


def microseconds(call: Callable[[], Any]) -> float:
    """The mean time of a call in a turn of TURN seconds, in microseconds."""
    began = time.perf_counter()
    call()
    calls = max(1, min(MOST_CALLS, int(TURN / (time.perf_counter() - began))))
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e6 * (time.perf_counter() - began) / calls


def measured(format: str, layout: str, m: int, n: int, k: int, threads: int, chip: Any) -> dict[str, Any]:
    import torch
    torch.set_num_threads(threads)
    problem = tw.Gemm(m, n, k, format, out=OUT.get(format, format), layout=layout)
    planned = engine.plan_problem(problem, chip, threads)
    a, b, c = operands(format, layout, m, n, k)
    right = a.astype(np.float64) @ b.astype(np.float64) if 2*m*n*k <= PROVED else None
    row: dict[str, Any] = {"format": format, "layout": layout, "m": m, "n": n, "k": k, "threads": threads, "failed": {}}
    calls: dict[str, Callable[[], Any]] = {}
    for plan in plans_of(planned.shape, chip):
        try:
            recipe = engine.ready(planned._replace(plan=plan))
            call = partial(engine.run, recipe, plan.swap, a, b, c, 1.0, 0.0)
            c[...] = 0
            call()
            if right is not None:
                error = float(abs(c.astype(np.float64) - right).max())
                if error > (0 if format.startswith("i") else 16 * float(finfo(c.dtype).eps) * k):
                    raise ArithmeticError(f"an element is off by {error}")
            calls[str(plan)] = call
        except Exception as problem_of_plan:
            row["failed"][str(plan)] = f"{type(problem_of_plan).__name__}: {problem_of_plan}"[:200]
    theirs = vendor(a, b, c)
    row["vendor"] = [round(median(microseconds(theirs) for _ in range(TURNS)), 2)]
    times: dict[str, list[float]] = {text: [] for text in calls}
    quiet.settle()
    for _ in range(TURNS):
        for text, call in calls.items():
            times[text].append(microseconds(call))
    quiet.settle()
    row["vendor"].append(round(median(microseconds(theirs) for _ in range(TURNS)), 2))
    quiet.settle()
    row["plans"] = {text: round(median(each), 2) for text, each in times.items()}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="+")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=500.0)
    x = results.options(parser, "into")
    os.environ["TILEWRIGHT_TUNE_DB"] = "off"
    chip, began = tw.detect("cpu"), time.monotonic()
    for number in range(x.count):
        for format in x.formats:
            pick = random.Random(f"{x.seed} {format} {number}")
            sizes, layout = random_shapes.sizes(pick, False), random_shapes.layout(pick, False)
            for threads in map(int, x.threads.split(",")):
                if time.monotonic() - began > x.seconds:
                    return
                row = measured(format, layout, *sizes, threads, chip)
                with x.into.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                best, theirs = min(row["plans"].values(), default=math.nan), min(row["vendor"])
                first = next(iter(row["plans"].values()), math.nan)
                print(f"{format} {layout} {sizes} {threads}: torch {theirs}, first {theirs / first:.2f}, best "
                      f"{theirs / best:.2f}, {len(row['failed'])} failed, at {time.monotonic() - began:.0f} s",
                      flush=True)


if __name__ == "__main__":
    main()
