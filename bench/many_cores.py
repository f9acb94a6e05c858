"""Many cores: how one product scales over them, for several splits of the work, beside torch (which brings MKL).

    python bench/many_cores.py [--threads 16] [--sizes 2048,4096,8192] [-o result.json]

Needs torch. Turns are interleaved and idle threads get time to sleep; figures are medians.
"""
from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from datetime import date
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from tilewright.lab.bench import results
from tilewright.plans import CpuPlan, Shape
from tilewright.plans.choose import choose
from tilewright.runtime.cpu import engine
from tilewright.targets import detect

SPLITS = ("1x16x1", "2x8x1", "4x4x1", "1x8x2")


def plans(n: int, threads: int, all_splits: bool) -> list[CpuPlan]:
    chosen = choose(Shape("f32", n, n, n, "rows", "rows", threads), detect())
    tile = f"{chosen.mr}x{chosen.nr}"
    found = [chosen]
    for ways in SPLITS if all_splits else ():
        if eval(ways.replace("x", "*")) == threads:
            for panels, kc in ((4, 768), (6, 768), (8, 512), (12, 768)):
                mc = panels * chosen.mr
                found.append(CpuPlan.parse(f"packed {tile} mc={mc} kc={kc} nc={n} ways={ways}"))
    return list(dict.fromkeys(found))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments.add_argument("--sizes", default="2048,4096,8192")
    arguments.add_argument("--chosen", action="store_true", help="only the plan that the model chooses")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("-o", "--output", type=Path)
    options = results.options(arguments, "output")
    import torch
    rows = []
    print(f"{detect().model}: {options.threads} threads, L2 {detect().l2 >> 10} KiB, L3 {detect().l3 >> 20} MiB")
    for n in map(int, options.sizes.split(",")):
        rng = np.random.default_rng(n)
        a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in "ab")
        c = np.empty((n, n), np.float32)
        ta, tb, tc = map(torch.from_numpy, (a, b, np.empty_like(c)))

        def ours(plan: CpuPlan, threads: int) -> None:
            engine.gemm(a, b, c, plan=plan, threads=threads)      # noqa: B023

        def theirs(threads: int) -> None:
            torch.set_num_threads(threads)
            torch.matmul(ta, tb, out=tc)                       # noqa: B023
        peers = {"torch": (theirs, options.threads), "torch, 1 thread": (theirs, 1)}
        one = choose(Shape("f32", n, n, n, "rows", "rows", 1), detect())
        peers[f"1 thread: {one}"] = (lambda threads, one=one: ours(one, threads), 1)
        for i, plan in enumerate(plans(n, options.threads, not options.chosen)):
            name = f"{'chosen: ' * (i == 0)}{plan}"
            peers[name] = (lambda threads, plan=plan: ours(plan, threads), options.threads)
        times: dict[str, list[float]] = {name: [] for name in peers}
        reference = a[:3].astype(np.float64) @ b
        for turn in range(options.rounds):
            for name, (call, threads) in peers.items():
                if threads == 1 and turn >= 2:
                    continue
                time.sleep(0.2)
                call(threads)
                result = tc.numpy() if name.startswith("torch") else c
                if turn == 0 and not np.allclose(result[:3], reference, atol=1e-3 * n**0.5):
                    raise SystemExit(f"{name}: wrong result at n = {n}")
                start = time.perf_counter()
                call(threads)
                times[name].append(time.perf_counter() - start)
        best = median(times["torch"])
        for name, samples in times.items():
            rate = 2*n**3 / median(samples) / 1e9
            rows.append({"n": n, "name": name, "gflops": rate, "seconds": samples, "x_torch": best / median(samples)})
            print(f"{n:6} {rate:8.0f} GFLOP/s  {best / median(samples):6.3f}  {name}", flush=True)
    if options.output:
        results.write({"machine": detect().model, "threads": options.threads, "date": str(date.today()),
                       "torch": torch.__version__, "python": platform.python_version(), "rows": rows}, options.output)


if __name__ == "__main__":
    main()
