"""The same five inputs through several systems: lines of user code, time to compile, rate.

    python examples/comparison/measure.py                       every system that this Python can import
    python ... --python /path/to/python                         the one that has the other systems
    python ... --systems tilewright numba --cases matmul        some of them
    python ... --threads 1 --json result.json
    python ... --page examples/comparison/zen4.json docs/loops-compared.md

Each system is a script beside this one, `with_NAME.py`, whose CASES are functions of the inputs and of the array that
receives the result; a function that returns an array gives its result that way. Every system runs in a process of its
own, and all are timed in turns: one run of each, then one run of each again, and so on. The run before each timed one
is not counted, so that caches are warm and threads are awake. Results are compared with NumPy's in float64.

compile     the time of the first call of a case less the median of later ones, without any cache on disk; of TVM this
            includes its search, by wall time
lines       of the case's section in the script, without blank lines and comments
rate        by the median of the rounds. Of operations as the loops have them: 2 for each term of a sum, of the stencil
            5 for each point

With one thread both are CPU time, that of compilers included, which other programs on the machine disturb less.
"""
from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
SYSTEMS = {"tilewright": "tilewright", "numba": "numba", "exo": "exo-lang", "tvm": "apache-tvm", "torch": "torch"}


@dataclass
class Case:
    function: str
    shapes: tuple[tuple[int, ...], ...]      # of the inputs
    result: tuple[int, ...]
    operations: int


def cases() -> dict[str, Case]:
    found = {}
    for n in (512, 1024):
        found[f"matmul {n}"] = Case("matmul", ((n, n), (n, n)), (n, n), 2*n**3)
    batch, size, c = 16, 56, 64
    operations = 2 * batch * size**2 * c * c * 9
    found["convolution NHWC"] = Case("convolution_nhwc", ((batch, size + 2, size + 2, c), (3, 3, c, c)),
                                     (batch, size, size, c), operations)
    found["convolution NCHW"] = Case("convolution_nchw", ((batch, c, size + 2, size + 2), (c, c, 3, 3)),
                                     (batch, c, size, size), operations)
    m, k = 4096, 128
    found["distances"] = Case("distances", ((m, k), (m, k)), (m, m), 2*m*m*k)
    rank = 64
    for n in (128, 256):
        found[f"MTTKRP {n}"] = Case("mttkrp", ((n, n, n), (n, rank), (n, rank)), (n, rank), 2*n**3*rank)
    n = 2048
    for name in "stencil", "stencil in blocks":
        found[name] = Case(name.replace(" ", "_"), ((n, n),), (n, n), 10 * 5 * (n - 2)**2)
    return found


def inputs(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape, np.float32) for shape in cases()[name].shapes]


def reference(function: str, arrays: list[np.ndarray]) -> np.ndarray:
    """The result in float64."""
    x = [a.astype(np.float64) for a in arrays]
    if function == "matmul":
        return x[0] @ x[1]
    if function == "convolution_nhwc":
        h, w = x[0].shape[1] - 2, x[0].shape[2] - 2
        return sum(x[0][:, r:r+h, t:t+w] @ x[1][r, t] for r in range(3) for t in range(3))
    if function == "convolution_nchw":
        swapped = [np.ascontiguousarray(x[0].transpose(0, 2, 3, 1)), x[1].transpose(2, 3, 1, 0)]
        return reference("convolution_nhwc", swapped).transpose(0, 3, 1, 2)
    if function == "distances":
        squares = [(y**2).sum(axis=1) for y in x]
        return np.sqrt(np.maximum(squares[0][:, None] + squares[1] - 2 * x[0] @ x[1].T, 0))
    if function == "mttkrp":
        return np.einsum("ijr,jr->ir", x[0] @ x[2], x[1])
    a = x[0].copy()
    for _ in range(10):
        a[1:-1, 1:-1] = 0.2 * (a[1:-1, 1:-1] + a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])
    return a


# ---- a process for each system ---------------------------------------------------------------------------------------

def work(system: str, threads: int) -> None:
    """Answers lines of JSON: {"case", "reference"} by a first call, {"case"} by one timed run."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)                                       # what a system prints is no answer
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]
    begin = time.process_time()
    try:
        module = importlib.import_module(f"with_{system}")
        module.use(threads)
    except ImportError as error:
        print(json.dumps({"error": str(error)}), file=answers, flush=True)
        return
    print(json.dumps({"import": time.process_time() - begin, "cases": list(module.CASES)}), file=answers, flush=True)
    ready = {}
    clock = time.process_time if threads == 1 else time.perf_counter
    compiling = (lambda: sum(os.times()[:4])) if threads == 1 else time.perf_counter   # compilers are children

    def run(name: str, clock: Callable[[], float] = clock) -> tuple[float, np.ndarray]:
        arrays, out, call = ready[name]
        begin = clock()
        result = call(*arrays, out)
        seconds = clock() - begin
        if result is None:
            result = arrays[0] if name == "stencil" else out    # the stencil's tenth step writes its input again
        return seconds, result

    for line in sys.stdin:
        asked = json.loads(line)
        name = asked["case"]
        try:
            if "reference" in asked:
                arrays, case = inputs(name), cases()[name]
                prepare = getattr(module, "array", lambda x: x)
                out = arrays[0].copy() if "stencil" in name else np.zeros(case.result, np.float32)
                ready[name] = [prepare(x) for x in arrays], prepare(out), module.CASES[case.function]
                first, result = run(name, compiling)
                expected = np.load(asked["reference"])
                found = result if isinstance(result, np.ndarray) else result.numpy()
                error = np.abs(found - expected).max() / np.abs(expected).max()
                answer = {"first": first + getattr(module, "searched", 0), "error": float(error)}
            elif "forget" in asked:
                answer = {"forgotten": ready.pop(name, None) is not None}
            else:
                run(name)
                answer = {"seconds": run(name)[0]}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


class Worker:
    def __init__(self, system: str, python: str, threads: int, scratch: Path):
        variables = {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "MKL", "NUMBA", "TVM")}
        variables |= {"TILEWRIGHT_CACHE_DIR": f"{scratch}/tilewright", "TILEWRIGHT_TUNE_DB": f"{scratch}/tune",
                      "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/torch",
                      "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        # memory that was freed is used again: no system pays for fresh pages in every call
        variables |= {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
                      "MALLOC_TOP_PAD_": str(1 << 28)}
        self.system = system
        command = [python, __file__, "--worker", system, "--threads", str(threads)]
        self.process = subprocess.Popen(command, env=os.environ | variables, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.hello = self.answer()

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "the process ended"}

    def ask(self, **question: object) -> dict:
        try:
            print(json.dumps(question), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return {"error": "the process ended"}
        return self.answer()

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


# ---- timing

def lines_of(system: str) -> dict[str, int]:
    """Lines of code of each section `# ---- name` of the system's script."""
    found: dict[str, int] = {}
    section = ""
    for line in (HERE / f"with_{system}.py").read_text().splitlines():
        if match := re.match(r"# ---- (\w+)", line):
            section = match[1]
        elif section and line.strip() and not line.strip().startswith("#"):
            found[section] = found.get(section, 0) + 1
    return found


def measure(name: str, workers: list[Worker], rounds: int, most: float) -> dict[str, dict]:
    case, results = cases()[name], {}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/reference.npy"
        np.save(path, reference(case.function, inputs(name)))
        for worker in workers:
            if case.function in worker.hello["cases"]:
                results[worker.system] = worker.ask(case=name, reference=path)
    live = [w for w in workers if "first" in results.get(w.system, {})]
    times: dict[str, list[float]] = {w.system: [] for w in live}
    begin = time.perf_counter()
    for _ in range(rounds):
        for worker in live:
            times[worker.system].append(worker.ask(case=name)["seconds"])
        if time.perf_counter() - begin > most and len(times[live[0].system]) >= 3:
            break
    for worker in live:
        worker.ask(case=name, forget=True)
        seconds = statistics.median(times[worker.system])
        result = results[worker.system]
        result |= {"seconds": seconds, "rate": case.operations / seconds / 1e9, "rounds": len(times[worker.system]),
                   "compile": max(result["first"] - seconds, 0)}
    return results


def cell(results: dict, system: str, key: str, shown: str) -> str:
    x = results.get(system)
    if x is None or key not in x:
        return "-" if x is None else "fails"
    return shown.format(x[key])


def tables(report: dict) -> str:
    """The tables in Markdown: rates by threads, seconds to compile, lines."""
    systems = report["systems"]
    head = " | ".join(systems)
    about = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    texts = [f"{report['processor']}, {report['date']}; Python {report['python']}, {about}."]
    for threads, measured in report["measured"].items():
        rows = [f"| GFLOP/s, {threads} thread{'s' * (threads != '1')} | {head} | tilewright / best of the others |",
                "| --- |" + " ---: |" * (len(systems) + 1)]
        for name, results in measured.items():
            rates = {s: x["rate"] for s, x in results.items() if "rate" in x}
            ours, others = rates.pop("tilewright", 0.0), rates.values()
            ratio = f"{ours / max(others):.2f}" if ours and others else "-"
            cells = [cell(results, s, "rate", "{:.1f}") for s in systems]
            rows.append(f"| {name} | {' | '.join(cells)} | {ratio} |")
        texts.append("\n".join(rows))
    first = next(iter(report["measured"].values()))
    rows = [f"| seconds to compile | {head} |", "| --- |" + " ---: |" * len(systems)]
    for name, x in first.items():
        rows.append(f"| {name} | {' | '.join(cell(x, s, 'compile', '{:.1f}') for s in systems)} |")
    rows.append(f"| import | {' | '.join(cell(report['import'], s, 'seconds', '{:.1f}') for s in systems)} |")
    texts.append("\n".join(rows))
    rows = [f"| lines of code | {head} |", "| --- |" + " ---: |" * len(systems)]
    names = dict.fromkeys([*(case.function for case in cases().values()), "shared"])
    for name in names:
        counts = [report["lines"][s].get(name) for s in systems]
        rows.append(f"| {name} | {' | '.join('-' if n is None else str(n) for n in counts)} |")
    texts.append("\n".join(rows))
    return "\n\n".join(texts)


def written(page: Path, text: str) -> None:
    """The page with these tables between its two marks."""
    begin, end = "<!-- comparison -->\n", "<!-- /comparison -->"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + text + "\n" + end + rest.split(end)[1])


def processor() -> str:
    import tilewright
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.processor())
    return f"{name} ({tilewright.detect().cpu}), {len(os.sched_getaffinity(0))} CPUs"


def versions(python: str, systems: list[str]) -> dict[str, str]:
    code = ("import importlib.metadata as m, sys\n"
            "for x in sys.argv[1:]:\n    try: print(x, m.version(x))\n    except Exception: print(x, '')")
    asked = [SYSTEMS[s] for s in systems] + ["numpy", "llvmlite"]
    lines = subprocess.run([python, "-c", code, *asked], capture_output=True, text=True, check=True).stdout.split("\n")
    found = dict(x.split(" ", 1) for x in lines if x)
    import tilewright
    return {"tilewright": tilewright.__version__, **{x: v for x, v in found.items() if v and x != "tilewright"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--cases", nargs="+", default=[], help="beginnings of names")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, len(os.sched_getaffinity(0))])
    parser.add_argument("--python", default=sys.executable, help="of the systems")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--most", type=float, default=20, help="seconds for the rounds of a case")
    parser.add_argument("--json", help="where to write the results, beside those of other cases")
    parser.add_argument("--page", nargs=2, metavar=("JSON", "PAGE"), help="write tables of results into a page")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.threads[0])
        return
    if options.page:
        written(Path(options.page[1]), tables(json.loads(Path(options.page[0]).read_text())))
        return
    sys.path.insert(0, str(HERE.parents[1]))
    names = [n for n in cases() if not options.cases or n.startswith(tuple(options.cases))]
    report = {"date": str(date.today()), "processor": processor(), "python": platform.python_version(),
              "versions": versions(options.python, options.systems), "systems": options.systems,
              "lines": {s: lines_of(s) for s in options.systems}, "missing": {}, "import": {}, "measured": {}}
    if options.json and Path(options.json).exists():
        known = json.loads(Path(options.json).read_text())
        report |= {name: known[name] for name in ("import", "measured")}
    for threads in dict.fromkeys(options.threads):
        with tempfile.TemporaryDirectory() as scratch:
            workers = [Worker(s, options.python, threads, Path(scratch)) for s in options.systems]
            for worker in workers:
                if "error" in worker.hello:
                    report["missing"][worker.system] = worker.hello["error"]
                else:
                    report["import"].setdefault(worker.system, {"seconds": worker.hello["import"]})
            workers = [w for w in workers if "error" not in w.hello]
            measured = report["measured"].setdefault(str(threads), {})
            for name in names:
                measured[name] = measure(name, workers, options.rounds, options.most)
                print(threads, name, {s: {k: round(v, 6) if isinstance(v, float) else v for k, v in x.items()}
                                      for s, x in measured[name].items()}, flush=True)
            for worker in workers:
                worker.end()
            if options.json:
                Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    print(tables(report))


if __name__ == "__main__":
    main()
