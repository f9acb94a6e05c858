"""Fits constants of the cost models of NVIDIA's kernels, or of a CPU's, to measured times of plans on random shapes.

    python bench/fit_costs.py TIMES... [--chip h200] [--formats bf16,...] [--minutes 3] [--sets wgmma,mma ...]

TIMES are files that bench/plan_times.py measure or bench/cpu_plan_times.py wrote (.jsonl, or .jsonl.xz); for the latter
--chip cpu, on a machine of that kind. Constants of plans/wgmma_model.py, plans/nvidia_model.py and plans/gemv_model.py,
or of plans/model.py, are changed one after the other, by factors that shrink as they stop
helping, as long as the loss on four fifths of the shapes falls: the time lost by the plans that the model prefers (a
soft minimum, so that it has slopes), a part of the error of predicted times, and a small penalty for each constant's
distance from its first value, which keeps constants that the times do not determine. A fifth is held back.

Prints for each format, before and after, on both: how fast the model's pick is of the best measured plan, in the mean
and at least, and the median error of the predicted time of the pick. Then the constants that changed, to be written
into the models by hand: `python -m tests.snapshot` shows what else they move. --minutes 0 holds the models as they are
against the times. What plans/wgmma_residuals.py knows does not count; bench/fit_residuals.py fits it afterwards.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import lzma
import math
import os
import random
import sys
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["TILEWRIGHT_TUNE_DB"] = "off"

from bench.plan_times import problem_of
from tilewright.plans import (
    asked,
    gemv_model,
    gpu,
    gpu_lowering,
    model,
    nvidia_model,
    nvidia_rates,
    tile_model,
    wgmma_model,
    wgmma_residuals,
)
from tilewright.plans.lowering import lower_problem
from tilewright.targets import CpuTarget, detect, target

TEMPERATURE, NEAR, WEIGHT = 0.03, 2.5, 0.15     # of the soft minimum; plans that count; weight of the error of times
PULL = 0.002                                    # of the square of a constant's change, as a logarithm
HELD_BACK = 5                                   # one shape of so many
CONSTANTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "wgmma": ((wgmma_model, "STAYING RATE SAVED TMA_ARRIVAL CLUSTER_ARRIVAL RECEIVED RECEIVED_MULTICAST"),
              (wgmma_model, "TMA_CLOCK HELD STEP_CLOCKS MEETING_CLUSTER BETWEEN_TILES DIVIDING PARTING_CLOCK"),
              (wgmma_model, "ADDING_CLOCK EXCHANGING STORING RATE_PROMOTED PROMOTING_TOGETHER WAITED PROMOTING"),
              (wgmma_model, "BESIDE_MEMORY BESIDE_L2 L2_SHARED UNEVEN"),
              (nvidia_rates, "TMA_L2")),
    "mma": ((nvidia_model, "CHAIN MEETING COPY_CLOCK SPLIT_MMA START:mma FIRST:mma STORING:mma"),),
    "dmma": ((nvidia_model, "MATRIX MATRIX_OTHER DMMA_MEETING DMMA_ARRIVAL FEW_DMMA DRAINING START:dmma STORING:dmma"),
             (nvidia_model, "FIRST:dmma")),
    "simt": ((nvidia_model, "ISSUE ISSUE_ASYNC FEW_WARPS MOST_WARPS AS_STORED SLICE MEETING_ALONE COPY TRANSPOSED"),
             (nvidia_model, "SINGLE TRANSPOSED_ASYNC ARRIVING STARTED ALONE START:simt FIRST:simt STORING:simt SPLIT"),
             (nvidia_model, "PART ADDING_WARP ADDING")),
    "gemv": ((gemv_model, "START START_NARROW START_MATRIX RAMP LONGEST_RAMP LATENCY ADDING ADDED"),),
    "shared": ((nvidia_rates, "L2 WIDE_L2 ARRIVAL"),),          # by all kinds
    "core": ((model, "CALL CHAINS HIDDEN TEMPORARY RUN OVERLAP EVICTED PAGES FAR_PAGES TRANSPOSING COPYING"),),
    "cores": ((model, "START START_EACH WAKING MEETING WAIT SHARED_LINE TEAMS UNEVEN TEAM CROWDED"),),
    "tiles": ((tile_model, "TILE_WORDS_RATE ALONG_A ACROSS_A ALONG_B ACROSS_B OTHERS_A OTHERS_B STORING_TILES"),
              (tile_model, "ADDING_TILES TILE_LINE TILE_START TILE_THREAD LEFT")),
}


class Constant(NamedTuple):
    """One number of a model: of a module, or in a table of it."""
    name: str
    table: Any
    key: Any

    def get(self) -> float:
        return float(self.table[self.key])

    def put(self, value: float) -> None:
        """Writes it wherever the models read it: names that they imported, too."""
        old = self.table[self.key]
        self.table[self.key] = value
        if isinstance(self.key, str):
            model.of_threads.cache_clear()
            for module in (wgmma_model, nvidia_model, gemv_model, model):
                if vars(module).get(self.key) is old and self.table is not vars(module):
                    vars(module)[self.key] = value


class Case(NamedTuple):
    """A shape with measured plans: each plan, and the logarithm of its microseconds."""
    format: str
    shape: Any
    plans: list[tuple[Any, float]]

    @property
    def best(self) -> float:
        return min(us for _, us in self.plans)


def constants(names: list[str]) -> list[Constant]:
    found = []
    for module, words in [x for name in names for x in CONSTANTS[name]]:
        for word in words.split():
            name, _, key = word.partition(":")
            value, where = vars(module)[name], module.__name__.rpartition(".")[2]
            if isinstance(value, dict):
                found += [Constant(f"{where}.{name}[{k!r}]", value, k) for k in value if value[k] and key in ("", k)]
            else:
                found.append(Constant(f"{where}.{name}", vars(module), name))
    return found


def read(files: list[Path], chip: Any, formats: list[str]) -> list[Case]:
    cases = []
    for file in files:
        with (lzma.open(file, "rt") if file.suffix == ".xz" else file.open()) as lines:
            for row in map(json.loads, lines):
                if row["plans"] and (not formats or row["format"] in formats):
                    threads = row.get("threads")
                    shape = (lower_problem(problem_of(row), chip, threads).shape if threads else
                             gpu_lowering.multiplied_shape(problem_of(row), chip).least)
                    name = f"{row['format']} x {threads}" if threads else row["format"]
                    cases.append(Case(name, shape, [(asked.plan(text, chip), math.log(us))
                                                    for text, us in row["plans"].items()]))
    return cases


class Fit:
    """The models on measured cases; only plans near the best count in the loss."""

    def __init__(self, cases: list[Case], chip: Any) -> None:
        self.cases, self.chip = cases, chip
        self.price = model.cost if isinstance(chip, CpuTarget) else gpu.planner(chip).cost
        self.near = [[(plan, us) for plan, us in x.plans if us <= x.best + math.log(NEAR)] for x in cases]

    def predicted(self, case: Case, plan: Any) -> float:
        return math.log(1e6 * self.price(case.shape, plan, self.chip).seconds)

    def loss(self) -> float:
        lost, every = [], self.every()
        scale = self.scale(every)
        for case, near, logs in zip(self.cases, self.near, every):
            priced = [(x - scale[case.format.split()[0]], us - case.best) for x, (_, us) in zip(logs, near)]
            least = min(x for x, _ in priced)
            weights = [math.exp((least - x) / TEMPERATURE) for x, _ in priced]
            soft = sum(w * us for w, (_, us) in zip(weights, priced)) / sum(weights)
            lost.append(soft + WEIGHT * fmean(abs(x - us - case.best) for x, us in priced if us < 0.5))
        return fmean(lost)

    def every(self) -> list[list[float]]:
        """The predicted times, as logarithms, of all plans near the best, by case."""
        return [[self.predicted(case, plan) for plan, _ in near] for case, near in zip(self.cases, self.near)]

    def scale(self, every: list[list[float]]) -> dict[str, float]:
        """By format, the median error of predicted times, as a logarithm: a CPU model has its own scale. 0 on GPUs."""
        off: dict[str, list[float]] = {case.format.split()[0]: [0.0] for case in self.cases}
        if isinstance(self.chip, CpuTarget):
            for case, near, logs in zip(self.cases, self.near, every):
                off[case.format.split()[0]] += [x - us for x, (_, us) in zip(logs, near)]
        return {format: median(each) for format, each in off.items()}

    def summary(self, format: str) -> str:
        lost, errors = [], []
        scale = self.scale(self.every())
        for case in self.cases:
            if case.format == format:
                time_, us = min((self.predicted(case, plan), us) for plan, us in case.plans)
                lost.append(case.best - us)
                errors.append(abs(time_ - scale[format.split()[0]] - us))
        return f"{math.exp(fmean(lost)):.3f} {math.exp(min(lost)):.2f} {100 * median(errors):4.0f} %" if lost else "-"


def descend(fit: Fit, held: Fit, known: list[Constant], minutes: float) -> None:
    """Coordinate descent until no step of 2 % helps, or the time is over."""
    first = {x.name: x.get() for x in known}

    def lost() -> float:
        return fit.loss() + PULL * sum(math.log(x.get() / first[x.name])**2 for x in known)
    began, step, loss = time.monotonic(), {x.name: 0.15 for x in known}, lost()
    while max(step.values()) > 0.02:
        for x in known:
            if time.monotonic() - began > 60 * minutes:
                return
            if step[x.name] <= 0.02:
                continue
            value = x.get()
            for factor in (1 + step[x.name], 1 / (1 + step[x.name])):
                x.put(value * factor)
                if (now := lost()) < loss - 1e-5:
                    loss, step[x.name] = now, min(1.3 * step[x.name], 0.6)
                    break
                x.put(value)
            else:
                step[x.name] *= 0.6
        print(f"{time.monotonic() - began:.0f} s: loss {loss:.4f}, held back {held.loss():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", nargs="+", type=Path)
    parser.add_argument("--chip", default="h200")
    parser.add_argument("--formats", default="")
    parser.add_argument("--sets", default=",".join(CONSTANTS))
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--bandwidth", type=float, default=4.814304e12, help="bytes per second, as the driver says")
    x = parser.parse_args()
    chip = detect() if x.chip == "cpu" else dataclasses.replace(target(x.chip), bandwidth=x.bandwidth)
    wgmma_residuals.trees().clear()
    cases = read(x.times, chip, [name for name in x.formats.split(",") if name])
    random.Random(3).shuffle(cases)
    held, fit = Fit(cases[::HELD_BACK], chip), Fit([c for i, c in enumerate(cases) if i % HELD_BACK], chip)
    formats, known = sorted({c.format for c in cases}), constants(x.sets.split(","))
    before = {c.name: c.get() for c in known}
    summaries = [{name: (fit.summary(name), held.summary(name)) for name in formats}]
    descend(fit, held, known, x.minutes)
    summaries.append({name: (fit.summary(name), held.summary(name)) for name in formats})
    print("pick of best, mean and least, error of its time: fitted before, after | held back before, after")
    for name in formats:
        (a, b), (c, d) = (summary[name] for summary in summaries)
        print(f"{name:8} {a}, {c} | {b}, {d}")
    for c in known:
        if c.get() != before[c.name]:
            print(f"{c.name}: {before[c.name]:.4g} -> {c.get():.4g}")


if __name__ == "__main__":
    main()
