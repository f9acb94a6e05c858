"""The one script for an NVIDIA GPU: builds, checks, sanitizes and times, and writes JSON.

    python bench/h200.py JOB[:SIZES]... [--out DIR] [--limit SECONDS]

check      products of every kind against float64 through tilewright's own door, each family in a process of its own
random     1000 random products (random:N for N), in four processes
sanitize   compute-sanitizer's memcheck and racecheck over every kernel family (bench/sanitized.py)
squares odd skinny f64 tensor tensor_odd tensor_skinny terms tf32 scaled mx
           suites of `tilewright bench gpu`, together in DIR/gpu.json, with --dtype in DIR/gpu-DTYPE.json
overhead emission         the host's time of a call, and of emitting a kernel (bench/gpu_costs.py): DIR/costs.json
article    the article's sweep, every 256 (article:128 for all of it): DIR/article.json and .png
ladder     the teaching steps: DIR/ladder.json
tune       the plans of --plans FILE, a line each, on its lines "case MxNxK:LAYOUT[:FORMATS]", or those the model ranks
           first on squares of --dtype, beside cuBLAS in one interleaved run: DIR/tune.json, of other formats
           than f32 DIR/tune-DTYPE.json

--dtype names formats of A, B and the result for check, the suites but f64 and terms, and tune: bf16-bf16-bf16,
i8-i8-i32. --peers names the suites' peers: cuBLAS.

DIR is $OUT, or the working directory. Jobs run in processes of their own: a kernel that reads where it must not takes
only its own job with it. A short table of everything comes last.
"""
from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch

from tilewright.lab.bench import gpu_device, results
from tilewright.runtime.cuda import module

# Asking the driver for a parameter that does not exist is how parameters are counted: no error of ours.
SILENT = {"memcheck": ("--report-api-errors", "no"), "racecheck": ()}


WIDTH = "180"       # of tables
GRACE = 15.0        # seconds that an interrupted process has to write its results

# ---- check: in a process per family

AWKWARD = [(1, 1, 1), (1, 300, 500), (300, 1, 500), (17, 33, 65), (5, 7, 0), (127, 129, 63), (128, 128, 128),
           (129, 257, 511), (1000, 1000, 1000), (16, 4096, 4096), (4096, 16, 1000), (64, 64, 20000), (2039, 1031, 517)]
SCALES = [(1.0, 0.0), (2.0, 3.0), (-1.0, 1.0), (0.0, 0.5)]
GAPS = [(0, 0), (3, 1), (4, 4)]         # elements between rows, elements before the first
RANDOM_DTYPES = ("f32", "f64", "bf16-bf16-bf16", "bf16-bf16-f32", "f16-f16-f16", "f16-f16-f32", "i8-i8-i32",
                 "u8-i8-i32", "e4m3fn-e4m3fn-bf16", "e4m3fn-e5m2-f32")


def check_family(dtype: str, layout: str) -> Iterator[str]:
    """A line per product that is wrong, and one that counts them all."""
    from tilewright.lab.bench.suites.shapes import gemm
    count = 0
    for (m, n, k), (gap, before), whole, (alpha, beta) in product(AWKWARD, GAPS, (True, False), SCALES):
        problem = gemm(dtype, m, n, k, layout)
        if gpu_device.is_whole(problem.out) and not (alpha.is_integer() and beta.is_integer()):
            continue
        count += 1
        if wrong := checked(problem, gap, before, alpha, beta, whole):
            yield wrong
    yield f"{dtype} {layout}: {count} products checked"


def check_random(count: int, seed: int) -> Iterator[str]:
    """The same of so many random products: formats, sizes, layouts, distances of rows, offsets and factors."""
    from tilewright.lab.bench.suites.shapes import gemm
    pick = random.Random(seed)

    def size() -> int:
        return pick.choice((pick.randint(0, 9), pick.randint(1, 200), pick.randint(1, 2100), 64 * pick.randint(1, 24)))
    for _ in range(count):
        dtype = pick.choice(RANDOM_DTYPES)
        problem = gemm(dtype, size(), size(), size(), pick.choice(("nn", "nt", "tn", "tt")))
        gap, before = (pick.choice((0, 0, 1, 4, 8, 16, pick.randint(0, 40))) for _ in range(2))
        alpha, beta = pick.choice((1.0, 1.0, 2.0, -1.0, 0.0)), pick.choice((0.0, 0.0, 1.0, -2.0))
        whole = pick.random() < 0.5
        try:
            wrong = checked(problem, gap, before, alpha, beta, whole)
            torch.cuda.synchronize()
        except RuntimeError as error:       # after a fault of a kernel no launch of this process works
            first = str(error).partition("\n")[0]
            yield f"{problem} gap {gap} offset {before} alpha {alpha} beta {beta} whole {whole}: {first}"
            return
        if wrong:
            yield wrong
    yield f"seed {seed}: {count} products checked"


def checked(problem: Any, gap: int, before: int, alpha: float, beta: float, whole: bool) -> str:
    """What is wrong with a product of matrices inside of larger ones, `gap` elements between rows and `before` elements
    before the first; "" if it is right, writes to nothing beside C and has the same bits when computed again."""
    import tilewright as tw
    from tilewright.lab.bench.cases import Product
    from tilewright.lab.bench.peer import out_dtype
    from tilewright.lab.measure.operands import Operands

    def stored(kind: str, rows: int, cols: int) -> tuple[Any, Any]:
        """A matrix inside of a larger one, and that one."""
        shape = rows + 2, cols + gap + before
        outer = torch.randint(-3, 4, shape, device="cuda") if whole else 3 * torch.randn(shape, device="cuda")
        outer = outer.to(gpu_device.dtype_of(torch, kind))
        return outer[:rows, before:before + cols], outer

    kind, m, n = problem.out, problem.m, problem.n
    options = out_dtype(Product(problem.a, problem.b, kind))
    (a, _), (b, _) = (stored(each, *shape) for each, shape in ((problem.a, problem.shape_a),
                                                              (problem.b, problem.shape_b)))
    a, b = (x if letter == "n" else x.t() for x, letter in zip((a, b), problem.layout))
    c, outer = stored(kind, m, n)
    old = c.clone()
    if beta == 0:
        gpu_device.poison(c)
    around = outer.clone()
    if options:
        tw.matmul(a, b, c, alpha=alpha, beta=beta, **({"c": c} if beta else {}), **options)
    elif (alpha, beta) == (1.0, 0.0):
        tw.matmul(a, b, c)
    else:
        tw.gemm(alpha, a, b, beta, c)
    wanted, allowed = gpu_device.reference(Operands(problem, a, b, c))
    wanted, allowed = alpha * wanted, abs(alpha) * allowed
    if beta:
        wanted += beta * old.double()
        allowed += gpu_device.RANDOM * gpu_device.eps_of(kind) * abs(beta) * old.double().abs()
    exact = whole and (gpu_device.is_whole(kind) or gpu_device.eps_of(kind) <= 2.0**-23)
    wrong, got = gpu_device.wrong(c, wanted, 0.0 * allowed if exact else allowed), c.clone()
    c.copy_(old)
    around[:m, before:before + n] = old
    if wrong is None and not torch.equal(outer, around):
        wrong = "elements beside C were written to"
    if wrong is None and alpha == 1.0 and beta == 0.0:
        tw.matmul(a, b, c, **options)
        wrong = None if torch.equal(c, got) else "the same product again gives other bits"
    return (wrong and f"{problem} gap {gap} offset {before} alpha {alpha} beta {beta} whole {whole}: {wrong}") or ""


def child(arguments: list[str], limit: float) -> tuple[int, str]:
    """Exit status and output of this script, or another, in a process of its own. At the limit it is interrupted, as by
    Ctrl-C, upon which `tilewright bench` writes what it has measured."""
    late = ""
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={"COLUMNS": WIDTH, **os.environ}) as process:
        for number, seconds in ((signal.SIGINT, limit), (signal.SIGKILL, GRACE), (signal.SIGKILL, GRACE)):
            try:
                said = "".join(process.communicate(timeout=seconds))
                return 124 if late else process.returncode, said.strip() + late
            except subprocess.TimeoutExpired:
                late = f"\nstopped after {limit:.0f} s"
                process.send_signal(number)
    return 124, late.strip()


def checks(dtypes: list[str], limit: float) -> dict[str, Any]:
    """Every family's exit status and last lines."""
    families = [(dtype, layout) for dtype in dtypes for layout in ("nn", "nt", "tn", "tt")]
    with ThreadPoolExecutor(4) as pool:
        runs = {f"{dtype} {layout}": pool.submit(child, [sys.executable, __file__, "--family", dtype, layout], limit)
                for dtype, layout in families}
    return {name: _outcome(*future.result()) for name, future in runs.items()}


def randoms(count: int, limit: float) -> dict[str, Any]:
    """Exit status and last lines of four processes that share so many random products."""
    with ThreadPoolExecutor(4) as pool:
        words = [sys.executable, __file__, "--random", str(-(-count // 4))]
        runs = {f"random {seed}": pool.submit(child, [*words, str(seed)], limit) for seed in range(4)}
    return {name: _outcome(*future.result()) for name, future in runs.items()}


def sanitize(dtypes: list[str], limit: float) -> dict[str, Any]:
    """compute-sanitizer over every family of kernels."""
    tool = shutil.which("compute-sanitizer") or next(iter(sorted(map(str, Path("/usr/local").glob(
        "cuda*/bin/compute-sanitizer")))), None)
    if tool is None:
        return {"compute-sanitizer": {"ok": None, "said": "left out: it is not installed"}}
    from bench.sanitized import families
    with ThreadPoolExecutor(4) as pool:
        runs = {f"{check} {family}": pool.submit(child, [
            tool, "--tool", check, *SILENT[check], "--error-exitcode", "9", "--print-limit", "10", sys.executable,
            str(ROOT / "bench/sanitized.py"), family], limit)
            for family in families() for check in ("memcheck", "racecheck")}
    return {name: _outcome(*future.result()) for name, future in runs.items()}


def _outcome(code: int, said: str) -> dict[str, Any]:
    lines = said.splitlines()
    shown = lines if code else [line for line in lines if "SUMMARY" in line or "checked" in line or "launches" in line]
    return {"ok": code == 0, "status": code, "said": "\n".join(shown[-25:])}


# ---- suites of the package

SUITES = {"squares": "square", **{name: name for name in (
    "odd", "skinny", "f64", "tensor", "tensor_odd", "tensor_skinny", "terms", "tf32", "scaled", "mx")}}
COSTS = ("overhead", "emission")


def prebuild(names: list[str], dtypes: list[str]) -> str:
    """Compile what the suites need into the kernel cache, with all cores."""
    from tilewright.lab.bench.suites import shapes
    cases = shapes.gpu_cases([SUITES[name] for name in names], dtypes)
    # Views (gap) have plans of their own, by how they are aligned: they are compiled when they are first multiplied.
    problems = list(dict.fromkeys((case.problem, case.algorithm) for case in cases if not case.gap))
    device = module.target()            # whose multiprocessors and caches plans are chosen by, as in matmul
    began = time.perf_counter()
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        errors = [said for said in pool.map(partial(_compiled, device), problems) if said]
    return "\n".join([f"{len(problems)} problems compiled in {time.perf_counter() - began:.1f} s", *errors])


def _compiled(device: Any, case: tuple[Any, str | None]) -> str:
    """Why it cannot be compiled; "" if it can."""
    import tilewright as tw
    problem, algorithm = case
    try:
        kernel: Any = tw.compile(problem, device, algorithm=algorithm)
        assert all(launch.kernel.loadable.text for launch in kernel.launches)
    except Exception as error:
        return f"{problem} {algorithm or ''}: {type(error).__name__}: {error}"
    return ""


def bench(arguments: list[str], limit: float) -> tuple[int, str]:
    return child([sys.executable, "-m", "tilewright", "bench", *allowed(), *arguments], limit)


def allowed() -> list[str]:
    """The option of this script that its children take, too."""
    return [word for word in sys.argv if word == results.ALLOW_DIRTY]


def tuned(job: str, dtype: str, file: Path | None, out: Path, limit: float) -> tuple[int, str]:
    """Plans beside cuBLAS: those of a file, on the cases in it, or those that the model ranks first, on squares."""
    sizes = sizes_of(job) or [4096]
    if file:
        lines = [line.strip() for line in file.read_text().splitlines() if line.strip() and line[0] != "#"]
        cases = [line.removeprefix("case ") for line in lines if line.startswith("case ")]
        plans = [line for line in lines if not line.startswith("case ")]
    else:
        from tilewright.lab.bench.suites.shapes import gemm
        from tilewright.plans import gpu, gpu_shape
        layout = "nt" if dtype.startswith("e") else "nn"               # torch's products of fp8 have no other
        cases = [f"{n}x{n}x{n}:{layout}:{dtype}" for n in sizes]
        best = {n: gpu.ranked(gpu_shape.shape_of(gemm(dtype, n, n, n, layout)), module.target()) for n in sizes}
        plans = list(dict.fromkeys(str(plan) for n in sizes for plan in varied(best[n])))
    chosen = [word for plan in plans for word in ("--plan", plan)] + [word for c in cases for word in ("--case", c)]
    name = f"tune-{dtype}.json" if dtype != "f32" else "tune.json"
    return bench(["gpu", "--peers", "cuBLAS", "--quick", "--dtype", dtype, *chosen, "--json", str(out / name)], limit)


def varied(ranked: list[Any], tiles: int = 12) -> list[Any]:
    """The best plan of each tile and depth, and of the best tile all that differ in stages alone."""
    kinds: dict[tuple[int, ...], Any] = {}
    for plan in ranked:
        kinds.setdefault((plan.cta_m, plan.cta_n, plan.cta_k, plan.warp_m, plan.warp_n), plan)
    first = ranked[0]
    return [*list(kinds.values())[:tiles], *(replace(first, stages=s) for s in (2, 3, 4, 5) if first.copy == "async")]


def sizes_of(job: str) -> list[int]:
    return [int(x) for x in job.partition(":")[2].split(",") if x]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--limit", type=float, default=570, help="seconds for all jobs together")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and fewer squares")
    parser.add_argument("--plans", type=Path, help="for tune: a file with a plan or a case on each line")
    parser.add_argument("--dtype", default="", help="formats, with commas between them")
    parser.add_argument("--peers", default="", help="of the suites, with commas between them: all that are installed")
    parser.add_argument("--family", nargs=2, metavar=("DTYPE", "LAYOUT"), help=argparse.SUPPRESS)
    parser.add_argument("--random", nargs=2, type=int, metavar=("COUNT", "SEED"), help=argparse.SUPPRESS)
    asked = results.options(parser, "out")
    if asked.family or asked.random:
        gpu_device.TorchDevice()            # tf32 off
        lines = list(check_family(*asked.family) if asked.family else check_random(*asked.random))
        print("\n".join(lines))
        return 1 if len(lines) > 1 else 0
    names = [job.partition(":")[0] for job in asked.jobs]
    for name in names:
        if name not in (*SUITES, *COSTS, "check", "random", "sanitize", "article", "ladder", "tune"):
            parser.error(f"there is no job {name!r}")
    began, table = time.monotonic(), []

    def left() -> float:
        return max(10.0, asked.limit - (time.monotonic() - began))

    def ran(what: str, status: int, said: str) -> None:
        print(f"\n== {what}\n{said}", flush=True)
        table.append(f"{what}: {'ok' if status == 0 else f'exit status {status}'}, {time.monotonic() - began:.0f} s")

    quick = ["--quick"] if asked.quick else []
    dtypes = asked.dtype.split(",") if asked.dtype else []
    found: dict[str, Any] = {}
    works: dict[str, Callable[[], dict[str, Any]]] = {
        "check": lambda: checks(dtypes or ["f32", "f64"], left()), "sanitize": lambda: sanitize(dtypes, left()),
        "random": lambda: randoms((sizes_of(asked.jobs[names.index("random")]) or [1000])[0], left())}
    for name, work in works.items():
        if name in names:
            found[name] = work()
            results.write(found, asked.out / "checks.json")
            for family, outcome in found[name].items():
                ran(f"{name} {family}", 0 if outcome["ok"] in (True, None) else outcome["status"], outcome["said"])
    suites = [name for name in names if name in SUITES]
    if suites:
        print(prebuild(suites, dtypes), flush=True)
        ran(" ".join(suites), *bench(["gpu", "-s", ",".join(SUITES[name] for name in suites), *quick,
                                      *(["--dtype", asked.dtype] if dtypes else []),
                                      *(["--peers", asked.peers] if asked.peers else []), "--json",
                                      str(asked.out / f"gpu{'-'.join(['', *dtypes])}.json")], left()))
    if costs := [name for name in names if name in COSTS]:
        ran(" ".join(costs), *child([sys.executable, str(ROOT / "bench/gpu_costs.py"), *costs, *allowed(), "--json",
                                     str(asked.out / "costs.json")], left()))
    for job, name in zip(asked.jobs, names):
        if name == "article":
            step = (sizes_of(job) or [256])[0]
            sizes = [] if asked.quick else ["--sizes", ",".join(map(str, range(1024, 12801, step)))]
            ran("article", *bench(["gpu", *quick, *sizes, "--json", str(asked.out / "article.json"),
                                   "--plot", str(asked.out / "article.png")], left()))
        elif name == "ladder":
            sizes = ["--sizes", ",".join(map(str, sizes_of(job)))] if sizes_of(job) else []
            ran("ladder", *bench(["ladder", "--device", "cuda", *sizes, "--json", str(asked.out / "ladder.json")],
                                 left()))
        elif name == "tune":
            for dtype in dtypes or ["f32"]:
                ran(f"tune {dtype}", *tuned(job, dtype, asked.plans, asked.out, left()))
    if table:
        print("\n" + "\n".join(table))
    return 1 if any("exit status" in line for line in table) else 0


if __name__ == "__main__":
    import multiprocessing
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
