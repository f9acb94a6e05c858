"""How long plans of NVIDIA's kernels take on shapes drawn at random: the data that cost models are fitted to.

    python bench/plan_times.py choose FORMAT... --into JOBS.json [--chip h200] [--count 96] [--seed 1] [--kernels 240]
    python bench/plan_times.py measure JOBS.json --into TIMES.jsonl [--seconds S] [--turn MS] [--allow-dirty]

choose    which plans of which shapes, without a GPU. Shapes: by the rule of `tilewright bench random`. Plans: all those
          of the planner that it expects within 3 times its choice's time and whose kernel is one of so many for each
          format and layout: a kernel serves every shape, and is compiled once.
measure   one line for each shape: {"format", "layout", "m", "n", "k", "vendor": [us, us], "plans": {plan: us}}, where
          "vendor" is cuBLAS (by torch) before and after. A time is the least of three turns of a CUDA graph, whose
          launches take turns on operands that are larger together than the L2 cache, in turns of so many ms: short
          ones (0.2) end before power lowers the clock, long ones (20) do not; results are compared with
          float64, and a plan that is wrong or fails has its reason under "failed".
"""
from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tilewright as tw
from tilewright.lab.bench import gpu_device, results
from tilewright.lab.bench.cases import Product
from tilewright.lab.bench.peer import Setting
from tilewright.lab.bench.peers.torch import load_cublas
from tilewright.lab.bench.suites import random_shapes
from tilewright.lab.measure.gpu_rules import GpuRules, GraphTrack, sets
from tilewright.plans import gpu, gpu_lowering
from tilewright.targets import target

FACTOR = 3.0                            # of the time of the planner's choice: plans beyond it tell the model little
OUT = {"e4m3fn": "bf16", "i8": "i32"}   # of formats whose results are in another, of which cuBLAS has layout nt alone
TURNS, MOST_SETS = 3, 16


def problem_of(job: dict[str, Any]) -> tw.Gemm:
    format = job["format"]
    return tw.Gemm(job["m"], job["n"], job["k"], format, out=OUT.get(format, format), layout=job["layout"])


# ---- which plans

def choose(formats: list[str], chip: Any, count: int, seed: int, kernels: int, most: float) -> list[dict[str, Any]]:
    jobs = []
    for format in formats:
        pick = random.Random(f"{seed} {format}")
        budget: dict[str, set[tuple[str, ...]]] = {layout: set() for layout in random_shapes.GPU_LAYOUTS}
        for _ in range(count):
            m, n, k = random_shapes.sizes(pick, True, 16 if format in OUT else 8, most)     # as cuBLAS takes bytes
            layout = "nt" if format in OUT else random_shapes.layout(pick, True)
            job = {"format": format, "layout": layout, "m": m, "n": n, "k": k}
            problem = problem_of(job)
            shape = gpu_lowering.multiplied_shape(problem, chip, None)
            plans, price = gpu.ranked(shape, chip), gpu.planner(chip).cost
            least = price(shape, plans[0], chip).seconds
            near = [plan for plan in plans if price(shape, plan, chip).seconds <= FACTOR * least]
            job["plans"], known = [], budget[layout]
            for place, plan in enumerate(near):
                key = tuple(each.address for each in tw.compile(problem, chip, plan).asked)
                # the planner's first ones are taken in any case, so that its own choices are measured
                if key in known or place < 6 or (len(known) < kernels and (place < 40 or pick.random() < 0.3)):
                    known.add(key)
                    job["plans"].append(str(plan))
            jobs.append(job)
        print(format, {layout: len(keys) for layout, keys in budget.items()}, "kernels,",
              sum(len(x["plans"]) for x in jobs if x["format"] == format), "times", flush=True)
    return jobs


# ---- times

def microseconds(on: gpu_device.TorchDevice, rules: GpuRules, launches: list[Any]) -> float:
    """Microseconds of one of these launches, which take turns: the least of some turns."""
    track = GraphTrack(on, launches)
    track.calibrate(rules)
    return round(1e6 * min(track.turn() for _ in range(TURNS)), 3)


def loaded(problem: tw.Gemm, chip: Any, text: str) -> str:
    """Compile the kernels of a plan into the kernel cache and the driver's; what went wrong, if anything."""
    from tilewright.runtime.gpu import engine as engines
    try:
        kernel = tw.compile(problem, chip, text)
        engine, on = engines.first_device(chip)
        codes = [kernel.loadable] if len(kernel.launches) == 1 else [x.kernel.loadable for x in kernel.launches]
        for code in codes:
            engine.driver.load(code.image, on, code.machine)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def ahead(pool: ProcessPoolExecutor, jobs: list[dict[str, Any]], chip: Any) -> list[dict[str, Future[str]]]:
    """`loaded` of each job's plans, in other processes, once for plans of the same kernels."""
    seen: dict[tuple[str, ...], Future[str]] = {}

    def begun(problem: tw.Gemm, text: str) -> Future[str]:
        key = tuple(each.address for each in tw.compile(problem, chip, text).asked)
        if key not in seen:
            seen[key] = pool.submit(loaded, problem, chip, text)
        return seen[key]
    return [{text: begun(problem_of(job), text) for text in job["plans"]} for job in jobs]


def measure(jobs: list[dict[str, Any]], into: Path, seconds: float, rules: GpuRules) -> None:
    began, taken, on = time.monotonic(), 0, gpu_device.TorchDevice()
    timed = partial(microseconds, on, rules)
    chip, vendor = on.on.target, load_cublas(Setting(on=on))
    pool = ProcessPoolExecutor(max(len(os.sched_getaffinity(0)) - 1, 1))
    for job, needed in zip(jobs, ahead(pool, jobs, chip)):
        p = problem_of(job)
        while time.monotonic() - began < seconds and not all(each.done() for each in needed.values()):
            time.sleep(0.05)
        if time.monotonic() - began > seconds:
            break
        operands = [gpu_device.make(on, p) for _ in range(min(sets(p.min_bytes, chip.l2), MOST_SETS))]
        *_, way = vendor.ways(Product(p.a, p.b, p.out))         # of fp8 with the sums of the tensor cores
        calls = [partial(call, *args) for call, args in map(way.bind, operands)]
        row: dict[str, Any] = {name: job[name] for name in ("format", "layout", "m", "n", "k")}
        row["vendor"], row["plans"], row["failed"] = [timed(calls)], {}, {}
        right = gpu_device.reference(operands[0], gpu_device.FAST_SUMS * (job["format"] in OUT))
        for text, done in needed.items():
            try:
                if said := done.result():
                    raise RuntimeError(said)
                bound = [tw.compile(p, chip, text).bind(o.a, o.b, o.c) for o in operands]
                gpu_device.poison(operands[0].c)
                bound[0]()
                if said := gpu_device.wrong(operands[0].c, *right):
                    raise RuntimeError(said)
                row["plans"][text] = timed(bound)
                taken += 1
            except Exception as error:
                row["failed"][text] = f"{type(error).__name__}: {error}"[:200]
                if "CUDA error" in str(error):
                    raise
        row["vendor"].append(timed(calls))
        with into.open("a") as file:
            file.write(json.dumps(row) + "\n")
        best = min(row["plans"].values(), default=0.0)
        print(f"{p}: {len(row['plans'])} plans, {len(row['failed'])} failed, cuBLAS {row['vendor']}, best {best}, "
              f"first {next(iter(row['plans'].values()), 0)}, at {time.monotonic() - began:.0f} s", flush=True)
    print(taken, "times,", f"{time.monotonic() - began:.0f} s", chip, flush=True)
    pool.shutdown(wait=False, cancel_futures=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("choose", "measure"))
    parser.add_argument("words", nargs="+")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--chip", default="h200")
    parser.add_argument("--count", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernels", type=int, default=240)
    parser.add_argument("--most", type=float, default=random_shapes.GPU_WORK[1], help="operations of a product")
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--turn", type=float, default=0.2, help="milliseconds of launches that are timed together")
    x = results.options(parser, "into")
    os.environ["TILEWRIGHT_TUNE_DB"] = "off"
    if x.what == "choose":
        jobs = choose(x.words, target(x.chip), x.count, x.seed, x.kernels, x.most)
        x.into.write_text(json.dumps(jobs))
    else:
        measure([job for file in x.words for job in json.loads(Path(file).read_text())], x.into, x.seconds,
                GpuRules(turn_s=x.turn / 1e3))


if __name__ == "__main__":
    import multiprocessing
    multiprocessing.set_start_method("spawn")
    main()
