"""The one script for an NVIDIA GPU: builds, checks, sanitizes and times, and writes JSON.

    python bench/h200.py JOB[:SIZES]... [--out DIR] [--limit SECONDS]

check      products of every kind against float64 through tilewright's own door, each family in a process of its own
sanitize   compute-sanitizer's memcheck and racecheck over every kernel family (bench/sanitized.py)
squares odd skinny f64 overhead emission    suites of `tilewright bench gpu`, together in DIR/gpu.json
article    the article's sweep, every 256 (article:128 for all of it): DIR/article.json and .png
ladder     the teaching steps: DIR/ladder.json
tune       the plans of --plans FILE, a line each, or those the model ranks first, beside cuBLAS: DIR/tune.json
dmma sgemm sweep                            variants of emitters that no plan has chosen (JOBS below): --json FILE

DIR is $OUT, or the working directory. Jobs run in processes of their own: a kernel that reads where it must not takes
only its own job with it. A short table of everything comes last.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch

from bench.variants import DMMA, SIMT, Built, Case, Variant, build
from bench.variants import variants as _variants
from tilewright.bench import gpu_measure
from tilewright.bench.gpu_measure import GpuRules
from tilewright.runtime import cuda

ROTATE = 160 << 20              # bytes that the buffers of a case have together, at least
# Asking the driver for a parameter that does not exist is how parameters are counted: no error of ours.
SILENT = {"memcheck": ("--report-api-errors", "no"), "racecheck": ()}
DTYPES = {"f32": torch.float32, "f64": torch.float64}


def operands(case: Case, integers: bool) -> tuple[Any, Any, Any]:
    """A and B as they are stored, and a poisoned C."""
    def matrix(rows: int, cols: int, letter: str) -> Any:
        shape = (rows, cols) if letter == "n" else (cols, rows)
        x = torch.randint(-3, 4, shape, device="cuda") if integers else torch.randn(shape, device="cuda")
        return x.to(DTYPES[case.dtype])
    a, b = matrix(case.m, case.k, case.layout[0]), matrix(case.k, case.n, case.layout[1])
    return a, b, torch.full((case.m, case.n), float("nan"), device="cuda", dtype=DTYPES[case.dtype])


def seen(x: Any, letter: str) -> Any:
    return x if letter == "n" else x.t()


def launcher(case: Case, variant: Variant, built: Built, sets: list[tuple[Any, Any, Any]]) -> Callable[[int], None]:
    grid = variant.grid(case.m, case.n, case.k)
    elements, counters = variant.workspace(case.m, case.n, case.k)
    extra: tuple[int, ...] = ()
    if elements:
        space = torch.empty(elements, device="cuda", dtype=DTYPES[case.dtype])
        count = torch.zeros(counters, device="cuda", dtype=torch.int32)
        extra = space.data_ptr(), count.data_ptr()
        keep = space, count
    else:
        keep = ()

    def run(index: int, alpha: float = 1.0, beta: float = 0.0, _keep: Any = keep) -> None:
        a, b, c = sets[index % len(sets)]
        cuda.launch(built.function, grid, built.threads, built.shared, torch.cuda.current_stream().cuda_stream,
                    (case.m, case.n, case.k, alpha, a.data_ptr(), a.stride(0), b.data_ptr(), b.stride(0), beta,
                     c.data_ptr(), c.stride(0), *extra))
    return run


def check(case: Case, variant: Variant, built: Built) -> str:
    """"" if right: exact on integers, within 1e-6 (1e-14) of float64 on random data, beta and alpha heeded."""
    for integers in (True, False):
        a, b, c = operands(case, integers)
        wide = seen(a.double(), case.layout[0]) @ seen(b.double(), case.layout[1])
        run = launcher(case, variant, built, [(a, b, c)])
        for alpha, beta in ((1.0, 0.0), (2.0, 3.0)):
            old = c.double().clone()
            run(0, alpha, beta)
            torch.cuda.synchronize()
            wanted = alpha*wide + (beta*old if beta else 0)
            if integers and not torch.equal(c.double(), wanted):
                bad = (c.double() != wanted).sum().item()
                return f"{bad} elements are wrong (alpha {alpha}, beta {beta})"
            error = ((c.double() - wanted).norm() / wanted.norm()).item()
            if not error < (1e-5 if case.dtype == "f32" else 1e-14):
                return f"error {error:.1e} (alpha {alpha}, beta {beta})"
    return ""


def measure(contenders: dict[str, Callable[[int], None]], sets: int, rounds: int,
            seconds: float) -> dict[str, list[float]]:
    """Seconds per call of each contender, one per round; in turns, by the package's rules."""
    from tilewright.bench.gpu_device import TorchDevice
    device = TorchDevice()
    rules = GpuRules(rounds=rounds, min_rounds=rounds, turn_s=seconds, warm_s=seconds/4)
    tracks = {name: gpu_measure.track(device, [lambda i=i, run=run: run(i) for i in range(sets)], rules)
              for name, run in contenders.items()}
    return {name: list(sample.seconds) for name, sample in gpu_measure.interleave(device, tracks, rules).items()}


def run_case(case: Case, built: dict[Any, Any], rounds: int, seconds: float) -> list[dict[str, Any]]:
    bytes_each = (case.m*case.k + case.k*case.n + case.m*case.n) * (4 if case.dtype == "f32" else 8)
    count = max(2, min(64, -(-ROTATE // bytes_each)))
    sets = [operands(case, integers=False) for _ in range(count)]

    def cublas(index: int) -> None:
        a, b, c = sets[index % count]
        torch.matmul(seen(a, case.layout[0]), seen(b, case.layout[1]), out=c)
    contenders: dict[str, Callable[[int], None]] = {"cuBLAS": cublas}
    rows: list[dict[str, Any]] = []
    for variant in case.variants:
        here = built[variant.emitter, variant.options]
        row = {"case": str(case), "label": variant.label}
        rows.append(row)
        if isinstance(here, str):
            row["error"] = here
            continue
        usage = here.function.usage
        row |= {"kernel": here.name, "registers": usage.registers, "local": usage.stack, "shared": here.shared,
                "emitted_s": here.seconds}
        try:
            wrong = check(case, variant, here)
        except cuda.CudaError as error:
            wrong = str(error).splitlines()[0]
        if wrong:
            row["error"] = wrong
        else:
            contenders[variant.label] = launcher(case, variant, here, sets)
    times = measure(contenders, count, rounds, seconds)
    base = times["cuBLAS"]
    flops = 2*case.m*case.n*case.k
    rows.insert(0, {"case": str(case), "label": "cuBLAS"})
    for row in rows:
        if found := times.get(row["label"]):
            row["seconds"] = found
            row["tflops"] = flops / statistics.median(found) / 1e12
            row["ratio"] = statistics.median(x / y for x, y in zip(base, found))
    return rows


# ---- variants that can be asked for

def f64(sizes: list[int]) -> list[Case]:
    tall = {"CTA_M": 64, "CTA_N": 128, "WARP_M": 32, "WARP_N": 64, "MIN_CTAS": 2}
    options = [{}, {"STAGES": 3}, {"STAGES": 5}, {"CTA_K": 32, "STAGES": 3}, {"WARP_M": 32, "WARP_N": 64}, {"CTA_K": 8},
               tall, {**tall, "STAGES": 3}, {**tall, "CTA_K": 8}, {"CTA_M": 256, "CTA_N": 64},
               {"CTA_M": 64, "CTA_N": 64, "MIN_CTAS": 4, "STAGES": 3}]
    return [Case("f64", layout, n, n, n, _variants(DMMA, layout, *options))
            for n in sizes or [2048, 4096, 8192] for layout in (("nn", "nt", "tn", "tt") if n == 4096 else ("nn",))]


SQUARE = {"CTA_M": 128, "CTA_N": 128, "CTA_K": 16}
WIDE = {"CTA_M": 128, "CTA_N": 256, "CTA_K": 16, "WARP_M": 64, "WARP_N": 64, "THREAD_M": 8, "THREAD_N": 16}
LONG = {"CTA_M": 128, "CTA_N": 256, "CTA_K": 16, "WARP_M": 32, "WARP_N": 128, "THREAD_M": 8, "THREAD_N": 16}
TALL = {"CTA_M": 256, "CTA_N": 128, "CTA_K": 16, "WARP_M": 64, "WARP_N": 64, "THREAD_M": 16, "THREAD_N": 8}
SMALL = {"CTA_M": 64, "CTA_N": 128, "CTA_K": 16, "WARP_M": 32, "WARP_N": 64}
REGISTERS = {"ASYNC": False, "STAGES": 2}


def sgemm(sizes: list[int]) -> list[Case]:
    """Squares, a first look at the space."""
    big = [WIDE, {**WIDE, "CTA_K": 8}, {**WIDE, "STAGES": 4}, {**WIDE, **REGISTERS}, {**WIDE, **REGISTERS, "CTA_K": 8},
           {**WIDE, "TRANSPOSE": False}, LONG, {**LONG, "CTA_K": 8}, {**LONG, **REGISTERS}, TALL, {**TALL, "CTA_K": 8},
           {**TALL, **REGISTERS}, {**WIDE, "GROUP_M": 4}, {**WIDE, "GROUP_M": 16}]
    square = [SQUARE, {**SQUARE, **REGISTERS}, {**SQUARE, "WARP_M": 64, "WARP_N": 32},
              {**SQUARE, "CTA_K": 8, "STAGES": 4}, {**SQUARE, "TRANSPOSE": False},
              {**SQUARE, **REGISTERS, "CTA_K": 8}]
    small = [SMALL, {**SMALL, "STAGES": 4}, {**SMALL, **REGISTERS}, {**SMALL, "SLICES": 2, "CTA_K": 32},
             {**SQUARE, "SPLIT_K": 2}, {**SQUARE, "SPLIT_K": 4}, {**SQUARE, "SLICES": 2, "CTA_K": 32},
             {**SMALL, "SPLIT_K": 2}, {**WIDE, "SPLIT_K": 4}]
    return [Case("f32", "nn", n, n, n, _variants(SIMT, "nn", *square, *(small if n <= 2048 else []),
                                                 *(big if n > 1024 else [])))
            for n in sizes or [1024, 2048, 4096, 8192]]


def sweep(sizes: list[int]) -> list[Case]:
    def tile(cta: tuple[int, int], warp: tuple[int, int], thread: tuple[int, int], ctas: int) -> dict[str, Any]:
        return {"CTA_M": cta[0], "CTA_N": cta[1], "WARP_M": warp[0], "WARP_N": warp[1], "THREAD_M": thread[0],
                "THREAD_N": thread[1], "MIN_CTAS": ctas}
    tiles = [tile((128, 256), (64, 64), (8, 16), 1), tile((128, 256), (32, 128), (8, 16), 1),
             tile((256, 128), (64, 64), (16, 8), 1), tile((256, 128), (64, 64), (8, 16), 1),
             tile((128, 256), (64, 64), (16, 8), 1),
             tile((128, 128), (64, 64), (8, 16), 2), tile((128, 128), (64, 64), (16, 8), 2),
             tile((192, 192), (64, 48), (8, 12), 1), tile((192, 192), (48, 64), (12, 8), 1),
             tile((256, 144), (64, 48), (8, 12), 1), tile((128, 96), (64, 48), (8, 12), 3),
             tile((96, 128), (48, 64), (12, 8), 3), tile((64, 192), (64, 48), (8, 12), 3),
             tile((128, 128), (32, 64), (8, 8), 2), tile((128, 128), (64, 32), (8, 8), 2),
             tile((256, 128), (64, 32), (8, 8), 1), tile((128, 64), (64, 32), (8, 8), 4),
             tile((128, 64), (32, 64), (8, 8), 4)]
    ways = [{"CTA_K": 8, "ASYNC": False, "STAGES": 2}, {"CTA_K": 8, "STAGES": 3}]
    options = [{**t, **w, "ORDER": o} for t in tiles for w in ways for o in ("cols", "rows", "b22")]
    options += [{**t, "CTA_K": 16, "ASYNC": False, "STAGES": 2, "ORDER": "cols"} for t in tiles]
    options += [{**tiles[0], **ways[0], "ORDER": x} for x in ("c24", "c42", "c82", "c84", "plaincols", "c28")]
    return [Case("f32", "nn", n, n, n, _variants("bench.orders_exp:emit", "nn", *options)) for n in sizes or [4096]]


JOBS: dict[str, Callable[[list[int]], list[Case]]] = {"dmma": f64, "sgemm": sgemm, "sweep": sweep}


def try_variants(names: list[str], path: Path | None, rounds: int, seconds: float) -> None:
    """Build with all cores, check, time, print and write."""
    torch.backends.cuda.matmul.allow_tf32 = False
    cases = [case for name in names for case in JOBS[name.partition(":")[0]](sizes_of(name))]
    wanted = list(dict.fromkeys((v.emitter, v.options) for case in cases for v in case.variants))
    built: dict[Any, Any] = {}
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        futures = {key: pool.submit(build, *key) for key in wanted}
        for key, future in futures.items():
            try:
                built[key] = Built(*future.result())
            except Exception as error:
                built[key] = f"{type(error).__name__}: {error}"[:300]
    print(f"{len(built)} kernels built", flush=True)
    rows = []
    for case in cases:
        found = run_case(case, built, rounds, seconds)
        rows += found
        print(f"\n{case}")
        for row in sorted(found, key=lambda row: -row.get("ratio", 0)):
            if "ratio" in row:
                print(f"  {row['ratio']:.3f}  {row['tflops']:6.1f} TFLOP/s  {row.get('registers', 0):3d} registers "
                      f"{row.get('local', 0)} local  {row['label']}")
            else:
                print(f"  ERROR {row['label']}: {row['error']}")
        sys.stdout.flush()
        if path:
            said = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
            path.write_text(json.dumps(said))


# ---- check: in a process per family

AWKWARD = [(1, 1, 1), (1, 300, 500), (300, 1, 500), (17, 33, 65), (5, 7, 0), (127, 129, 63), (128, 128, 128),
           (129, 257, 511), (1000, 1000, 1000), (16, 4096, 4096), (4096, 16, 1000), (64, 64, 20000), (2039, 1031, 517)]
SCALES = [(1.0, 0.0), (2.0, 3.0), (-1.0, 1.0), (0.0, 0.5)]
GAPS = [(0, 0), (3, 1), (4, 4)]         # elements between rows, elements before the first


def check_family(dtype: str, layout: str) -> Iterator[str]:
    """A line per product that is wrong, and one that counts them all."""
    import tilewright as tw
    from tilewright.bench.gpu_check import Reference
    from tilewright.bench.gpu_device import Operands, TorchDevice
    from tilewright.problem import Gemm
    on, kind, count = TorchDevice(), DTYPES[dtype], 0

    def stored(rows: int, cols: int, gap: int, before: int, whole: bool) -> tuple[Any, Any]:
        """A matrix inside of a larger one, and that one."""
        shape = rows + 2, cols + gap + before
        outer = (torch.randint(-3, 4, shape, device="cuda") if whole else torch.randn(shape, device="cuda")).to(kind)
        return outer[:rows, before:before + cols], outer

    for m, n, k in AWKWARD:
        for gap, before in GAPS:
            problem = Gemm(m, n, k, dtype, layout=layout)
            for whole in (True, False):
                (a, _), (b, _) = (stored(*shape, gap, before, whole) for shape in (problem.shape_a, problem.shape_b))
                a, b = (x if letter == "n" else x.t() for x, letter in zip((a, b), layout))
                for alpha, beta in SCALES:
                    c, outer = stored(m, n, gap, before, whole)
                    old = c.clone()
                    if beta == 0:
                        c.fill_(float("nan"))
                    around = outer.clone()
                    if (alpha, beta) == (1.0, 0.0):
                        tw.matmul(a, b, c)
                    else:
                        tw.gemm(alpha, a, b, beta, c)
                    reference = Reference(on, Operands(problem, a, b, c), exact=whole, alpha=alpha, beta=beta, old=old)
                    wrong, got = reference.wrong(c), c.clone()
                    c.copy_(old)
                    around[:m, before:before + n] = old
                    if wrong is None and not torch.equal(outer, around):
                        wrong = "elements beside C were written to"
                    if wrong is None and alpha == 1.0 and beta == 0.0:
                        tw.matmul(a, b, c)
                        wrong = None if torch.equal(c, got) else "the same product again gives other bits"
                    count += 1
                    if wrong:
                        yield f"{problem} gap {gap} offset {before} alpha {alpha} beta {beta} whole {whole}: {wrong}"
    yield f"{dtype} {layout}: {count} products checked"


def child(arguments: list[str], limit: float) -> tuple[int, str]:
    """Exit status and output of this script, or another, in a process of its own."""
    try:
        done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return 124, said + f"\nstopped after {limit:.0f} s"
    return done.returncode, (done.stdout + done.stderr).strip()


def checks(limit: float) -> dict[str, Any]:
    """Every family's exit status and last lines."""
    families = [(dtype, layout) for dtype in DTYPES for layout in ("nn", "nt", "tn", "tt")]
    with ThreadPoolExecutor(4) as pool:
        runs = {f"{dtype} {layout}": pool.submit(child, [sys.executable, __file__, "--family", dtype, layout], limit)
                for dtype, layout in families}
    return {name: _outcome(*future.result()) for name, future in runs.items()}


def sanitize(limit: float) -> dict[str, Any]:
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

SUITES = {"squares": "square", "odd": "odd", "skinny": "skinny", "f64": "f64", "overhead": "overhead",
          "emission": "emission"}


def prebuild(names: list[str]) -> str:
    """Compile what the suites need into the kernel cache, with all cores."""
    from tilewright.bench import gpu_shapes
    products = [SUITES[name] for name in names if SUITES[name] in gpu_shapes.SUITES]
    problems = list(dict.fromkeys(case.problem for case in gpu_shapes.cases(products)))
    began = time.perf_counter()
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        errors = [said for said in pool.map(_compiled, problems) if said]
    return "\n".join([f"{len(problems)} problems compiled in {time.perf_counter() - began:.1f} s", *errors])


def _compiled(problem: Any) -> str:
    import tilewright as tw
    from tilewright.targets import target
    try:
        kernel: Any = tw.compile(problem, target("sm_90a"))
        assert kernel.ptx
    except Exception as error:
        return f"{problem}: {type(error).__name__}: {error}"
    return ""


def bench(arguments: list[str], limit: float) -> tuple[int, str]:
    return child([sys.executable, "-m", "tilewright", "bench", *arguments], limit)


def tuned(job: str, file: Path | None, out: Path, limit: float) -> tuple[int, str]:
    """Plans beside cuBLAS on squares: those of a file, or those that the model ranks first."""
    sizes = sizes_of(job) or [4096]
    if file:
        plans = [line.strip() for line in file.read_text().splitlines() if line.strip() and line[0] != "#"]
    else:
        from tilewright.plans import gpu as plans_gpu
        from tilewright.problem import Gemm
        ranked = [plan for n in sizes for plan in plans_gpu.ranked(Gemm(n, n, n), cuda.target())[:12]]
        plans = list(dict.fromkeys(map(str, ranked)))
    chosen = [word for plan in plans for word in ("--plan", plan)]
    return bench(["gpu", "-s", "square", "--sizes", ",".join(map(str, sizes)), "--peers", "cuBLAS", *chosen,
                  "--json", str(out / "tune.json")], limit)


def sizes_of(job: str) -> list[int]:
    return [int(x) for x in job.partition(":")[2].split(",") if x]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--limit", type=float, default=570, help="seconds for all jobs together")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and fewer squares")
    parser.add_argument("--plans", type=Path, help="for tune: a file with a plan on each line")
    parser.add_argument("--json", type=Path, help="of variants")
    parser.add_argument("--rounds", type=int, default=9, help="of variants")
    parser.add_argument("--seconds", type=float, default=0.012, help="of one turn of variants")
    parser.add_argument("--family", nargs=2, metavar=("DTYPE", "LAYOUT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.family:
        lines = list(check_family(*asked.family))
        print("\n".join(lines))
        return 1 if len(lines) > 1 else 0
    names = [job.partition(":")[0] for job in asked.jobs]
    for name in names:
        if name not in (*JOBS, *SUITES, "check", "sanitize", "article", "ladder", "tune"):
            parser.error(f"there is no job {name!r}")
    began, table = time.monotonic(), []

    def left() -> float:
        return max(10.0, asked.limit - (time.monotonic() - began))

    def ran(what: str, status: int, said: str) -> None:
        print(f"\n== {what}\n{said}", flush=True)
        table.append(f"{what}: {'ok' if status == 0 else f'exit status {status}'}, {time.monotonic() - began:.0f} s")

    quick = ["--quick"] if asked.quick else []
    found: dict[str, Any] = {}
    for name, work in (("check", checks), ("sanitize", sanitize)):
        if name in names:
            found[name] = work(left())
            (asked.out / "checks.json").write_text(json.dumps(found, indent=1))
            for family, outcome in found[name].items():
                ran(f"{name} {family}", 0 if outcome["ok"] in (True, None) else outcome["status"], outcome["said"])
    suites = [name for name in names if name in SUITES]
    if suites:
        print(prebuild(suites), flush=True)
        ran(" ".join(suites), *bench(["gpu", "-s", ",".join(SUITES[name] for name in suites), *quick,
                                      "--json", str(asked.out / "gpu.json")], left()))
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
            ran("tune", *tuned(job, asked.plans, asked.out, left()))
    tries = [job for job, name in zip(asked.jobs, names) if name in JOBS]
    if tries:
        try_variants(tries, asked.json, asked.rounds, asked.seconds)
    if table:
        print("\n" + "\n".join(table))
    return 1 if any("exit status" in line for line in table) else 0


if __name__ == "__main__":
    import multiprocessing
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
