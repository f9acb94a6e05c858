"""How good the planner's choices are, held against plans that were measured.

    python bench/regret.py [FILE...]

For each case the planner's first choice among the measured plans, beside the best of them; 1.0 is no regret. What to
look at when a constant of plans/model.py or plans/nvidia_model.py changes: no such machine is needed. By default
bench/results/h200_plans.json and regret_*.jsonl. Measured plans of a kind that is given up (the text of one is no plan
any more) are left out, and counted in the end. bench/plan_times.py and bench/cpu_plan_times.py measure plans.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import tilewright as tw
from tilewright.plans import asked, gpu, gpu_lowering
from tilewright.plans.choose import choose
from tilewright.plans.model import Ceilings, cost
from tilewright.targets import CpuTarget, target

RESULTS = ROOT / "bench" / "results"


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
                row["pick"], Ceilings(**row["ceilings"]) if row.get("ceilings") else None)


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


def held_against(files: list[Path]) -> None:
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
        first = chosen or min(expected, key=expected.__getitem__)
        best = max(offered, key=offered.__getitem__)
        kind = f"{case.on.model or case.on.name}, {case.problem.a}" + f", {case.threads} threads"*bool(case.threads)
        kept.setdefault(kind, []).append(offered[first] / offered[best])
        unmeasured = "" if chosen else " (its own choice was not measured)"
        print(f"{case.name:22} {kept[kind][-1]:.3f}  chosen {offered[first]:.3f}{unmeasured}  best {offered[best]:.3f} "
              f"by {best}")
        if case.seconds and case.pick in plans:
            errors.setdefault(kind, []).append(abs(expected[case.pick] / case.seconds - 1))
    for kind, found in kept.items():
        late = f"; predicted time off by {median(errors[kind]):.0%} in the median" if kind in errors else ""
        print(f"{kind}: geometric mean over {len(found)} cases: {geometric_mean(found):.3f}, "
              f"median {median(found):.3f}, least {min(found):.3f}{late}")
    if skipped:
        print(f"left out: {skipped} measurements of plans that cannot be read any more")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    files = parser.parse_args().files
    held_against(files or [RESULTS / "h200_plans.json", *sorted(RESULTS.glob("regret_*.jsonl"))])


if __name__ == "__main__":
    main()
