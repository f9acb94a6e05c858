"""How long plans of NVIDIA's kernels take on shapes drawn at random: the data that cost models are fitted to.

    python bench/plan_times.py choose FORMAT... --into JOBS.json [--chip h200] [--count 96] [--seed 1] [--kernels 240]
    python bench/plan_times.py measure JOBS.json --into TIMES.jsonl [--seconds S] [--allow-dirty]

choose    which plans of which shapes, without a GPU. Shapes: m log-uniform in 64 ... 16384, n and k in 256 ... 16384,
          rounded down to a multiple of 8 (half), 64 or 128 (a quarter each); layouts nn, nt (half), tn; 1e9 to 4e12
          operations. Plans: all those of the planner that it expects within 3 times its choice's time and whose kernel
          is one of so many for each format and layout: a kernel serves every shape, and is compiled once.
measure   one line for each shape: {"format", "layout", "m", "n", "k", "vendor": [us, us], "plans": {plan: us}}, where
          "vendor" is cuBLAS (by torch) before and after. A time is the least of three replays of a CUDA graph, whose
          launches take turns on operands that are larger together than the L2 cache; results are compared with
          cuBLAS's, and a plan that differs or fails has its reason under "failed".
"""
from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import tilewright as tw
from tilewright.lab.bench import results
from tilewright.plans import asked, gpu, gpu_lowering
from tilewright.targets import target

FACTOR = 3.0                            # of the time of the planner's choice: plans beyond it tell the model little
LAYOUTS = ("nn", "nt", "nt", "tn")
OUT = {"e4m3fn": "bf16", "i8": "i32"}   # of formats whose results are in another, of which cuBLAS has layout nt alone
LEAST, MOST = 1e9, 4e12                 # operations of a product
TORCH = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "i8": "int8", "i32": "int32",
         "e4m3fn": "float8_e4m3fn"}
REPLAYS, LAUNCHES, BURST = 3, 32, 200e-6


def problem_of(job: dict[str, Any]) -> tw.Gemm:
    format = job["format"]
    return tw.Gemm(job["m"], job["n"], job["k"], format, out=OUT.get(format, format), layout=job["layout"])


# ---- which plans

def drawn(pick: random.Random, most: float, least: int = 8) -> tuple[int, int, int]:
    """Sizes of a product that has at most so many operations."""
    while True:
        unit = pick.choice((least, least, 64, 128))
        m, n, k = (max(int(low * (16384 / low) ** pick.random()) // unit * unit, unit) for low in (64, 256, 256))
        if LEAST <= 2 * m * n * k <= most:
            return m, n, k


def choose(formats: list[str], chip: Any, count: int, seed: int, kernels: int, most: float) -> list[dict[str, Any]]:
    jobs = []
    for format in formats:
        pick = random.Random(f"{seed} {format}")
        budget: dict[str, set[tuple[str, ...]]] = {layout: set() for layout in LAYOUTS}
        for _ in range(count):
            m, n, k = drawn(pick, most, 16 if format in OUT else 8)     # cuBLAS's fp8 and int8 have multiples of 16
            layout = "nt" if format in OUT else pick.choice(LAYOUTS)
            job = {"format": format, "layout": layout, "m": m, "n": n, "k": k}
            problem = problem_of(job)
            shape = gpu_lowering.multiplied_shape(problem, chip, None)
            plans, price = gpu.ranked(shape, chip), gpu.planner(chip).cost
            least = price(shape, plans[0], chip).seconds
            near = [plan for plan in plans if price(shape, plan, chip).seconds <= FACTOR * least]
            job["plans"], known = [], budget[layout]
            for place, plan in enumerate(near):
                key = tuple(each.address for each in compiled(problem, chip, plan).asked)
                # the planner's first ones are taken in any case, so that its own choices are measured
                if key in known or place < 6 or (len(known) < kernels and (place < 40 or pick.random() < 0.3)):
                    known.add(key)
                    job["plans"].append(str(plan))
            jobs.append(job)
        print(format, {layout: len(keys) for layout, keys in budget.items()}, "kernels,",
              sum(len(x["plans"]) for x in jobs if x["format"] == format), "times", flush=True)
    return jobs


def compiled(problem: tw.Gemm, chip: Any, plan: Any) -> Any:
    return tw.compile(problem, chip, plan)


# ---- kernels ahead, on all cores

def _loaded(job: dict[str, Any], text: str) -> str:
    """The reason why a kernel cannot be loaded; "" once it is in the kernel cache and in the driver's."""
    from tilewright.runtime.gpu import engine as engines
    try:
        engine, on = engines.first_device(tw.detect("nvidia"))
        kernel = compiled(problem_of(job), on.target, asked.plan(text, on.target))
        for each in kernel.asked:
            each.content()
        codes = [kernel.loadable] if len(kernel.launches) == 1 else [x.kernel.loadable for x in kernel.launches]
        for code in codes:
            engine.driver.load(code.image, on, code.machine)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def ahead(jobs: list[dict[str, Any]], chip: Any) -> list[list[Future[str]]]:
    """For each job what has to be done before it, a kernel by one process."""
    pool = ProcessPoolExecutor(max(len(os.sched_getaffinity(0)) - 1, 1))
    seen: dict[tuple[str, ...], Future[str]] = {}
    waiting = []
    for job in jobs:
        problem, own = problem_of(job), []
        for text in job["plans"]:
            key = tuple(each.address for each in compiled(problem, chip, asked.plan(text, chip)).asked)
            if key not in seen:
                seen[key] = pool.submit(_loaded, job, text)
            own.append(seen[key])
        waiting.append(own)
    print(len(seen), "kernels", flush=True)
    return waiting


# ---- times

class Pool:
    """Random operands of one format on the device, of which those of every shape are views."""

    def __init__(self, torch: Any, format: str, elements: int) -> None:
        self.torch, self.format = torch, format
        dtype = getattr(torch, TORCH[format])
        if format in ("i8", "i32"):
            self.memory = torch.randint(-8, 8, (elements,), dtype=dtype, device="cuda")
        elif format == "e4m3fn":
            self.memory = torch.empty(elements, dtype=dtype, device="cuda")
            for start in range(0, elements, 1 << 26):
                part = self.memory[start:start + (1 << 26)]
                part.copy_(torch.randn(part.shape, device="cuda").to(dtype))
        else:
            self.memory = torch.empty(elements, dtype=dtype, device="cuda").normal_()

    def view(self, number: int, rows: int, columns: int, letter: str) -> Any:
        """The matrix of this number among those that follow each other, stored as a letter of a layout says."""
        size = -(-rows * columns // 256) * 256
        half = self.memory.numel() // 2                     # A's are in the first half, B's in the second
        start = number // 2 * size % max(half - size + 1, 1) // 256 * 256 + number % 2 * half
        flat = self.memory[start:start + rows * columns]
        return flat.view(rows, columns) if letter == "n" else flat.view(columns, rows).T


def launches_of(torch: Any, calls: list[Any]) -> float:
    """Microseconds of one of these calls, which take turns."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    calls[0]()
    end.record()
    torch.cuda.synchronize()
    once = max(start.elapsed_time(end) / 1e3, 1e-6)
    many = min(max(int(BURST / once) + 1, 2), LAUNCHES)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(many):
            calls[i % len(calls)]()
    graph.replay()
    best = float("inf")
    for _ in range(REPLAYS):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) * 1e3 / many)
    return round(best, 3)


def vendor_call(torch: Any, format: str, a: Any, b: Any, c: Any) -> Any:
    if format == "e4m3fn":
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    if format == "i8":
        return lambda: torch._int_mm(a, b)
    return lambda: torch.mm(a, b, out=c)


def measure(jobs: list[dict[str, Any]], into: Path, seconds: float) -> None:
    import torch
    torch.backends.cuda.matmul.allow_tf32 = False
    began = time.monotonic()
    chip = tw.detect("nvidia")
    waiting = ahead(jobs, chip)
    pools: dict[str, Pool] = {}
    taken = 0
    for job, needed in zip(jobs, waiting):
        while time.monotonic() - began < seconds and not all(each.done() for each in needed):
            time.sleep(0.05)
        if time.monotonic() - began > seconds:
            break
        format, (m, n, k) = job["format"], (job["m"], job["n"], job["k"])
        out = OUT.get(format, format)
        if format not in pools:
            pools = {format: Pool(torch, format, 3 << 28), f"out {out}": Pool(torch, out, 3 << 28)}
        ins, outs = pools[format], pools[f"out {out}"]
        sets = min(max(2, -(-2 * chip.l2 // (problem_of(job).min_bytes or 1))), 16)
        operands = [(ins.view(2*i, m, k, job["layout"][0]), ins.view(2*i + 1, k, n, job["layout"][1]),
                     outs.view(2*i, m, n, "n")) for i in range(sets)]
        calls = [vendor_call(torch, format, *x) for x in operands]
        row: dict[str, Any] = {name: job[name] for name in ("format", "layout", "m", "n", "k")}
        row["vendor"], row["plans"], row["failed"] = [launches_of(torch, calls)], {}, {}
        c = operands[0][2]
        right = calls[0]().float().clone() if format not in ("f64", "i8") else calls[0]().clone()
        size = float(right.abs().max())
        for text, future in zip(job["plans"], needed):
            try:
                if said := future.result():
                    raise RuntimeError(said)
                kernel = compiled(problem_of(job), chip, asked.plan(text, chip))
                bound = [kernel.bind(*x) for x in operands]
                c.zero_()
                bound[0]()
                off = float((c.to(right.dtype) - right).abs().max())
                if not off <= size * (0.03 if format not in ("f32", "f64", "i8") else 1e-4):
                    raise RuntimeError(f"off by {off} of {size}")
                row["plans"][text] = launches_of(torch, bound)
                taken += 1
            except Exception as error:
                row["failed"][text] = f"{type(error).__name__}: {error}"[:200]
                if "CUDA error" in str(error):
                    raise
        row["vendor"].append(launches_of(torch, calls))
        with into.open("a") as file:
            file.write(json.dumps(row) + "\n")
        best = min(row["plans"].values(), default=0.0)
        print(f"{format} {job['layout']} {m}x{n}x{k}: {len(row['plans'])} plans, {len(row['failed'])} failed, cuBLAS "
              f"{row['vendor']}, best {best}, first {next(iter(row['plans'].values()), 0)}, at "
              f"{time.monotonic() - began:.0f} s", flush=True)
    print(taken, "times,", f"{time.monotonic() - began:.0f} s", chip, flush=True)
    os._exit(0)         # the pool would else compile kernels of shapes that are not measured any more


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("choose", "measure"))
    parser.add_argument("words", nargs="+")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--chip", default="h200")
    parser.add_argument("--count", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernels", type=int, default=240)
    parser.add_argument("--most", type=float, default=MOST, help="operations of a product")
    parser.add_argument("--seconds", type=float, default=500.0)
    x = results.options(parser, "into")
    os.environ["TILEWRIGHT_TUNE_DB"] = "off"
    if x.what == "choose":
        jobs = choose(x.words, target(x.chip), x.count, x.seed, x.kernels, x.most)
        x.into.write_text(json.dumps(jobs))
    else:
        measure([job for file in x.words for job in json.loads(Path(file).read_text())], x.into, x.seconds)


if __name__ == "__main__":
    import multiprocessing
    multiprocessing.set_start_method("spawn")
    main()
