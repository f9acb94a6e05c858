"""How good the planner's choices are: held against plans that were measured, and the measurement of them.

    python bench/regret.py [-v] [FILE...]               today's choices on the measured plans of these files
    python bench/regret.py measure CHIP:FORMATS... --into FILE [--seconds S] [--tune N]
                                                        every promising plan of 60 mixed shapes, appended to FILE

Held against: for each case the planner's first choice among the measured plans, beside the best of them; 1.0 is no
regret. What to look at when a constant of plans/model.py or plans/nvidia_model.py changes: no such machine is needed.
-v lists every plan. By default bench/results/h200_plans.json and regret_*.jsonl. Measured plans of a kind that is given
up (the text of one is no plan any more) are left out, and counted in the end.

Measured: CHIP is cpu or gpu, FORMATS as in f32 or bf16-bf16-f32; on CPUs half of the cases have one thread. The search
space of a case is every legal plan that the model expects within FACTOR of its choice's time, of every tile, block,
split and algorithm that the planner knows; where those are more than --most, first the ones that bring a tile, block or
split that none before them has, then by rank. They take turns in successive halving, as those of `tilewright tune` do,
until it is certain which wins. Cases that FILE has are passed over, so that a run of S seconds goes on where the last
one ended. With --tune every Nth case is also tuned as a user would tune it, and what that finds takes turns with the
model's choice and with the best.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import tilewright as tw
from tilewright.lab.bench import results
from tilewright.plans import asked, gpu, gpu_lowering
from tilewright.plans.choose import choose, ranked
from tilewright.plans.model import Ceilings, cost
from tilewright.targets import CpuTarget, target

RESULTS = ROOT / "bench" / "results"
COUNT, SEED = 60, 16
FACTOR = 1.6
EXHAUSTIVE_S = 30.0                 # for a case, at most
LARGEST = {"gpu": 4096, "one": 1000, "all": 2000}       # the side of a cube that has the most multiply-adds


@dataclass(frozen=True, eq=False)
class Case:
    """Measured plans of a product: how many times as fast as a reference each is."""
    name: str
    problem: tw.Gemm
    on: Any                         # the target's record, as it was there
    threads: int | None = None
    algorithm: str = ""
    ratios: dict[str, float] = field(default_factory=dict)
    seconds: float | None = None    # of the plan that was chosen then, `pick`
    pick: str = ""
    ceilings: Ceilings | None = None
    tuned: dict[str, Any] | None = None

    @property
    def shape(self) -> Any:
        if isinstance(self.on, CpuTarget):
            from tilewright.plans import lowering  # which asks no operating system for AMX
            return lowering.lower_problem(self.problem, self.on, self.threads or 1).shape
        return gpu_lowering.multiplied_shape(self.problem, self.on, self.algorithm or None)


# ---- today's choices on measured plans

def read(files: Iterable[Path]) -> Iterator[Case]:
    for file in files:
        if file.suffix == ".jsonl":
            yield from (_case(json.loads(line)) for line in file.read_text().splitlines())
            continue
        measured = json.loads(file.read_text())
        for name, ratios in measured["cases"].items():
            algorithm = [*name.split(":"), "", ""][3]           # and dtype where they are not f32 and native
            yield Case(name, problem_of(name), target(measured["target"]), None, algorithm, ratios)


def problem_of(name: str) -> tw.Gemm:
    """MxNxK:LAYOUT[:FORMATS[:ALGORITHM]]"""
    sizes, layout, dtype = (*name.split(":"), "")[:3]
    m, n, k = map(int, sizes.split("x"))
    return tw.Gemm(m, n, k, *filter(None, dtype.split("-")), layout=layout)


def _case(row: dict[str, Any]) -> Case:
    chip: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in row["target"].items()}
    on: Any = target(chip.pop("name"))
    on = dataclasses.replace(on, **chip)
    return Case(row["case"], problem_of(row["case"]), on, row["threads"], "", row["ratios"], row["seconds"],
                row["pick"], Ceilings(**row["ceilings"]) if row.get("ceilings") else None, row.get("tuned"))


def readable(texts: Iterable[str], on: Any, shape: Any) -> dict[str, Any]:
    """The texts that are plans of this shape still, parsed."""
    found = {}
    for text in texts:
        try:
            plan = asked.plan(text, on)
        except ValueError:
            continue
        if not (isinstance(on, CpuTarget) and plan.violations(shape, on)):
            found[text] = plan
    return found


def predicted(case: Case, plan: Any) -> float:
    """Seconds, by the model with the ceilings of that machine."""
    if isinstance(case.on, CpuTarget):
        return cost(case.shape, plan, case.on, case.ceilings).seconds
    return float(gpu.planner(case.on).cost(case.shape, plan, case.on).seconds)


def held_against(files: list[Path], verbose: bool = False) -> None:
    kept: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}
    skipped = 0
    for case in read(files):
        plans = readable(case.ratios, case.on, case.shape)
        skipped += len(case.ratios) - len(plans)
        if not plans:
            continue
        offered = {text: case.ratios[text] for text in plans}
        expected = {text: predicted(case, plan) for text, plan in plans.items()}
        choice = (choose if isinstance(case.on, CpuTarget) else gpu.choose)(case.shape, case.on)
        chosen = next((text for text, plan in plans.items() if plan == choice), "")
        first = chosen or min(expected, key=lambda text: expected[text])
        best = max(offered, key=lambda text: offered[text])
        kind = f"{case.on.model or case.on.name}, {case.problem.a}" + f", {case.threads} threads"*bool(case.threads)
        kept.setdefault(kind, []).append(offered[first] / offered[best])
        unmeasured = "" if chosen else " (its own choice was not measured)"
        print(f"{case.name:22} {kept[kind][-1]:.3f}  chosen {offered[first]:.3f}{unmeasured}  best {offered[best]:.3f} "
              f"by {best}")
        if case.seconds and case.pick in plans:
            errors.setdefault(kind, []).append(abs(expected[case.pick] / case.seconds - 1))
        if verbose:
            for text in sorted(offered, key=lambda text: expected[text]):
                print(f"    {offered[text]:.3f}  predicted {expected[text] * 1e6:7.1f} us  {text}")
    for kind, found in kept.items():
        late = f"; predicted time off by {median(errors[kind]):.0%} in the median" if kind in errors else ""
        print(f"{kind}: geometric mean over {len(found)} cases: {geometric_mean(found):.3f}, "
              f"median {median(found):.3f}, least {min(found):.3f}{late}")
    if skipped:
        print(f"left out: {skipped} measurements of plans that cannot be read any more")


# ---- measuring all plans of a case

def shapes(on_cpu: bool, everyone: int = 1) -> list[tuple[str, int | None]]:
    """60 mixed sizes and layouts, the same at every call, and threads: squares, few rows or columns, long and short k,
    and others, multiples of 64 and not."""
    pick, found = random.Random(SEED), []

    def size(least: int, most: int, whole: bool) -> int:
        drawn = int(least * (most / least) ** pick.random())
        return max(drawn // 64, 1) * 64 if whole else drawn
    for i in range(COUNT):
        threads = (1, everyone)[(i // 2 + i // 12) % 2] if on_cpu else None
        largest = LARGEST["gpu" if not on_cpu else "one" if threads == 1 else "all"]
        whole, low, high = i % 2 == 0, largest // 16, 2 * largest
        n = size(low, largest, whole)
        m, n, k = ((n, n, n), (size(1, 64, False), size(256, high, whole), size(256, high, whole)),
                   (size(low, largest, whole), size(low, largest, whole), size(16, 96, False)),
                   (size(64, 512, whole), size(64, 512, whole), size(largest // 4, 4 * largest, whole)),
                   (size(256, high, whole), size(1, 96, False), size(256, high, whole)),
                   (size(low, high, whole), size(low, high, whole), size(low, high, whole)))[i // 2 % 6]
        while m * n * k > largest**3:
            m, n, k = ((x if x < max(m, n, k) else x // 2) for x in (m, n, k))
        found.append((f"{m}x{n}x{k}:{('nn', 'nn', 'nn', 'nt', 'tn')[i % 5]}", threads))
    return found


def space(shape: Any, on: Any, most: int) -> tuple[list[Any], int]:
    """The plans of an exhaustive search, the model's choice first, and how many legal ones the planner knows."""
    from tilewright.lab.tuner.candidates import neighbours, various
    if isinstance(on, CpuTarget):
        model, plans, price = choose(shape, on), ranked(shape, on, tiles=99), cost
        plans = [*plans, *(each for first in plans[:3] for each in neighbours(first, shape, on))]
    else:
        plans, price = gpu.ranked(shape, on), gpu.planner(on).cost
        model = plans[0]
    least = min(price(shape, plan, on).seconds for plan in (model, *plans[:1]))
    near = [plan for plan in plans if price(shape, plan, on).seconds <= FACTOR * least]
    return [*dict.fromkeys((model, *various(near), *near))][:most], len(plans)


def measure(case: Case, most: int) -> dict[str, Any]:
    """What is kept of a case."""
    from tilewright.lab.measure import probes
    began = time.monotonic()
    chip, shape, ceilings = case.on, case.shape, None
    if isinstance(chip, CpuTarget) and (known := probes.basis(chip).ceilings):
        ceilings = dataclasses.asdict(known.model_ceilings(chip, shape.dtype, case.threads or 1))
    plans, legal = space(shape, chip, most)
    run = measured(case, [*map(str, plans)], EXHAUSTIVE_S)
    ratios, seconds = found(run, str(plans[0]))
    return {"case": case.name, "threads": case.threads, "pick": str(plans[0]), "seconds": seconds[str(plans[0])],
            "ratios": ratios, "legal": legal, "offered": len(plans), "tried": len(ratios), "factor": FACTOR,
            "failed": {plan: why for plan, why in run.failed.items() if "time limit" not in why},
            "certain": run.certain, "disturbed": run.disturbed, "took": round(time.monotonic() - began, 1),
            "ceilings": ceilings, "target": recorded(chip)}


def recorded(chip: Any) -> dict[str, Any]:
    """The fields of a target, of which a processor's record has those of the machine that asks."""
    return {f.name: getattr(chip, f.name) for f in dataclasses.fields(chip) if f.name not in ("sources", "missing")}


def measured(case: Case, plans: list[str], limit: float) -> Any:
    """The run of these plans, the first of which is the model's."""
    from tilewright.lab.tuner import child, running
    job = child.Job(case.problem, case.on, case.threads or 1, tuple(plans), limit)
    if isinstance(case.on, CpuTarget):
        return running.measured(job, lambda event: None)
    run = running.Run()                      # here: a GPU's driver takes seconds to start
    child.run(job, lambda event, **more: run.heard({"event": event, **more}))
    return run


def found(run: Any, pick: str) -> tuple[dict[str, float], dict[str, float]]:
    """By plan: how many times as fast as the model's choice in the last phase it took part in, and seconds."""
    from tilewright.lab.measure.measure import spread
    from tilewright.lab.tuner.child import REFERENCE, against
    ratios: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for phase in run.phases:
        turns = phase.complete()
        ratios |= {plan: round(each.median, 4) for plan, each in against(pick, turns).items() if plan != REFERENCE}
        seconds |= {plan: spread(each).median for plan, each in turns.items()}
    return dict(sorted(ratios.items(), key=lambda each: -each[1])), seconds


def tuned(case: Case, row: dict[str, Any]) -> dict[str, Any]:
    """What `tilewright tune` finds, and after how many seconds; and it beside the best and the model's choice."""
    kept = os.environ["TILEWRIGHT_TUNE_DB"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TILEWRIGHT_TUNE_DB"] = f"{folder}/tuning.jsonl"
        began = time.monotonic()
        try:
            result = tw.tune(case.problem, case.on, threads=case.threads, vendor=False)
        finally:
            os.environ["TILEWRIGHT_TUNE_DB"] = kept
    took = time.monotonic() - began
    best = next(iter(row["ratios"]))
    run = measured(case, [*dict.fromkeys((row["pick"], result.best.plan, best))], 5.0)
    ratios, _ = found(run, row["pick"])
    return {"plan": result.best.plan, "took": round(took, 1), "ratio": ratios[result.best.plan],
            "best": max(ratios.values()), "disturbed": result.disturbed or run.disturbed, "certain": result.certain}


# ---- kernels ahead, on all cores

class Ahead:
    """Processes that compile kernels of plans ahead, case by case, into the kernel cache, and on NVIDIA's GPUs into the
    driver's cache, too. `waiting`: of each case by plan what went wrong, or ""."""

    def __init__(self, cases: Iterable[tuple[Case, Iterable[Any]]]) -> None:
        self.pool = ProcessPoolExecutor(max(len(os.sched_getaffinity(0)) - 1, 1))
        self.waiting: dict[Case, dict[str, Future[str]]] = {}
        seen: dict[tuple[str, ...], Future[str]] = {}
        for case, plans in cases:
            own = self.waiting[case] = {}
            for plan in plans:
                key = tuple(each.address for each in compiled(case, plan).asked)
                if key not in seen:
                    seen[key] = self.pool.submit(_loaded, case, str(plan))
                own[str(plan)] = seen[key]

    def wait(self, case: Case) -> list[str]:
        """Until everything of a case is there: what went wrong."""
        return [said for each in self.waiting[case].values() if (said := each.result())]

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


def compiled(case: Case, plan: Any) -> Any:
    if not isinstance(case.on, CpuTarget):
        return tw.compile(case.problem, case.on, plan)
    from tilewright.compiled.cpu import CpuKernel
    from tilewright.runtime.cpu import engine
    planned = engine.plan_problem(case.problem, case.on, case.threads)
    return CpuKernel(case.problem, case.on, planned._replace(plan=plan))


def _loaded(case: Case, text: str) -> str:
    """What went wrong, if anything."""
    from tilewright.runtime.gpu import engine as engines
    try:
        kernel = compiled(case, asked.plan(text, case.on))
        for each in kernel.asked:
            each.content()
        if not isinstance(case.on, CpuTarget):
            engine, on = engines.first_device(case.on)
            codes = [kernel.loadable] if len(kernel.launches) == 1 else [x.kernel.loadable for x in kernel.launches]
            for code in codes:
                engine.driver.load(code.image, on, code.machine)
    except Exception as error:
        return f"{case.name} {text}: {type(error).__name__}: {error}"[:300]
    return ""


def run_all(wanted: list[str], into: Path, seconds: float, tune: int, most: int) -> None:
    from tilewright.lab.measure import probes
    from tilewright.lab.tuner.running import provenance
    os.environ["TILEWRIGHT_TUNE_DB"] = "off"
    began, origin = time.monotonic(), provenance()
    for number, what in enumerate(wanted):
        until = began + seconds * (number + 1) / len(wanted)
        name, formats = what.split(":")
        on_cpu = name == "cpu"
        chip: Any = tw.detect("cpu" if on_cpu else "nvidia")
        if on_cpu:
            probes.ceilings(chip)
        rows = map(json.loads, into.read_text().splitlines()) if into.exists() else ()
        done = {(row["case"], row["threads"]) for row in rows}
        every = [(f"{x}:{formats}", threads) for x, threads in shapes(on_cpu, len(os.sched_getaffinity(0)))]
        left = [Case(case, problem_of(case), chip, threads) for case, threads in every if (case, threads) not in done]
        print(f"{what}: {len(left)} of {len(every)} left", flush=True)
        ahead = Ahead((case, space(case.shape, case.on, most)[0]) for case in left)
        for each in left if on_cpu else ():             # whose processors would be busy
            print(*ahead.wait(each), sep="\n", end="")
        print(f"after {time.monotonic() - began:.0f} s", flush=True)
        for place, case in enumerate(left):
            if time.monotonic() > until:
                break
            print(*ahead.wait(case), sep="\n", end="")
            row = measure(case, most) | origin
            if tune and place % tune == 0:
                row["tuned"] = tuned(case, row)
            with into.open("a") as file:
                file.write(json.dumps(row) + "\n")
            best = next(iter(row["ratios"]))
            print(f"{row['case']:30} {row['threads'] or '':2} {1 / row['ratios'][best]:.3f}  {row['tried']} of "
                  f"{row['offered']} of {row['legal']}, {row['took']} s, at {time.monotonic() - began:.0f} s; "
                  f"{row['pick']} | {best}; {row.get('tuned', '')}", flush=True)
        ahead.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--into", type=Path, default=Path("regret.jsonl"))
    parser.add_argument("--seconds", type=float, default=270.0)
    parser.add_argument("--most", type=int, default=80, help="plans of a case")
    parser.add_argument("--tune", type=int, default=0)
    parser.add_argument(results.ALLOW_DIRTY, action="store_true", help="measure in a checkout with changes")
    asked_for = parser.parse_args()
    if asked_for.words[:1] == ["measure"]:
        results.check_tree(asked_for.allow_dirty)
        run_all(asked_for.words[1:], asked_for.into, asked_for.seconds, asked_for.tune, asked_for.most)
        return
    files = [Path(word) for word in asked_for.words] or [RESULTS / "h200_plans.json",
                                                         *sorted(RESULTS.glob("regret_*.jsonl"))]
    held_against(files, asked_for.verbose)


if __name__ == "__main__":
    import multiprocessing
    multiprocessing.set_start_method("spawn")
    main()
