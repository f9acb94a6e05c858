"""The measured rows of the article on NVIDIA's GPUs: its kernels against size, with watts and clocks.

Where a GPU is here they are timed now, by the article's protocol, at a few sizes; else they come from the committed
sweep, or from older results that have fewer sizes.
"""
from __future__ import annotations

import os
from functools import cache
from statistics import geometric_mean
from typing import Any

from tilewright import targets
from tilewright.lab.bench import gpu_device, plot, session, tables
from tilewright.lab.bench.cases import GPU, NATIVE, Job
from tilewright.lab.bench.chart import sheet
from tilewright.lab.bench.peer import OURS
from tilewright.lab.bench.results import CUBLAS, Report, Result
from tilewright.lab.bench.suites import ladders, shapes
from tilewright.lab.ladder.gpu13_dispatch import choose
from tilewright.lab.ladder.steps import GPU_LADDER, GPU_VARIANTS
from tilewright.lab.measure.gpu_rules import GpuRules
from tilewright.lab.reproduce.row import Absent, Cell, Setting
from tilewright.lab.reproduce.run import RESULTS, committed, where

SWEEP, SQUARES, LADDER = "article_h200.json", "h200.json", "ladder_gpu_h200.json"
STEPS = ("stored", "texture", "async128", "async")
TITLES = {name: (GPU_LADDER | GPU_VARIANTS)[name].title for name in (*STEPS, "dispatch")}
Series = dict[str, list[tuple[float, float]]]
PANELS = {"TFLOP/s": "", "W": "watts", "MHz": "sm_mhz"}
TITLE = {"TFLOP/s": "rate", "W": "power", "MHz": "clock of multiprocessors", "%": "multiply-adds that the clock allows"}


@cache
def sweep(quick: bool) -> tuple[Report, str]:
    """The article's kernels beside cuBLAS, and how they were measured. A GPU is only looked for where nothing hides
    it."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") != "" and not gpu_device.why_not():
        sizes = (2048, 4096) if quick else (1024, 2048, 4096, 8192, 12800)
        cases = shapes.squares("sweep", sizes, "f32")
        job = Job(1, NATIVE, cases, GpuRules.choose(1, quick), GPU, peers=[CUBLAS], steps=[*STEPS])
        return session.run("gpu", [job], lambda job, event: None, sizes=sizes), "measured"
    return (committed(SWEEP) if (RESULTS / SWEEP).exists() else _ladder()), "committed"


def _ladder() -> Report:
    """The ladder's older results, which name the device elsewhere."""
    report = committed(LADDER)
    report.machine.setdefault("gpu", report.extra.get("device", {}))
    return report


def timed(r: Result, name: str) -> str:
    """The row of a kernel: of the choice among kernels, where it was not timed by itself, that of the chosen one."""
    if name != TITLES["dispatch"] or r.sample(name):
        return name
    p, target = r.case.problem, targets.target(r.isa)
    return TITLES[choose(target, p.m, p.n, p.k, 0, p.k, 0, p.n)]


def points(report: Report, name: str, what: str) -> list[tuple[float, float]]:
    """(n, value) for TFLOP/s (""), a figure of the GPU's state, or "share": of the multiply-adds that could be started
    at the clock that was held."""
    series = []
    for r in report.results:
        row = timed(r, name)
        rate, clock = r.gflops(row), tables.state(r, row, "sm_mhz")
        value = rate and rate / 1e3 if not what else tables.state(r, row, what)
        if what == "share":
            target: Any = targets.target(r.isa)
            sms = report.machine["gpu"].get("sms", target.sms)
            value = 1e5 * rate / (2 * target.fma_f32 * sms * clock) if rate and clock else None
        if value is not None:
            series.append((float(r.case.problem.n), float(value)))
    return series


def _pictures(panels: dict[str, Series]) -> str:
    """Below each other, a line for each kernel."""
    return str(sheet(", ".join(panels), [[plot.lines(TITLE[unit], series, unit)] for unit, series in panels.items()]))


def _table(panels: dict[str, Series]) -> tuple[tuple[str, ...], ...]:
    """Sizes below each other, at most a dozen of them."""
    columns = [(f"{name}, {label}", dict(line)) for label, series in panels.items() for name, line in series.items()]
    sizes = sorted({n for _, line in columns for n in line})
    kept = sizes if len(sizes) <= 12 else [*sizes[:-1:-(-len(sizes) // 11)], sizes[-1]]
    return (("n", *(head for head, _ in columns)),
            *((f"{n:g}", *(f"{line[n]:.4g}" if n in line else "-" for _, line in columns)) for n in kept))


def _mean(report: Report, name: str, what: str = "") -> float | None:
    """Geometric mean of this kernel's figure over cuBLAS's."""
    ours, theirs = dict(points(report, name, what)), dict(points(report, CUBLAS, what))
    both = [ours[n] / theirs[n] for n in ours if n in theirs]
    return geometric_mean(both) if both else None


def free(names: tuple[str, ...], setting: Setting) -> Cell:
    """Rates, watts and clocks with free clocks."""
    report, how = sweep(setting.quick)
    panels = {label: {name: line for name in (*names, CUBLAS) if (line := points(report, name, what))}
              for label, what in PANELS.items()}
    panels = {label: series for label, series in panels.items() if series}
    ratios = [(name, ratio) for name in names if (ratio := _mean(report, name))]
    times = "; ".join(f"{name} {ratio:.3f} times the rate of cuBLAS" for name, ratio in ratios)
    return Cell(how, f"{where(report)}. Clocks: {report.extra.get('clocks', 'not recorded')}.\n\nGeometric means of "
                f"{len(report.results)} sizes: {times}.", f"{ratios[0][1]:.3f} x cuBLAS" if ratios else "",
                _pictures(panels), _table(panels),
                differs="" if len(panels) > 1 else "Watts and clocks are missing in these results, which are older "
                "than the command that records them for the steps.")


def locked(names: tuple[str, ...], setting: Setting) -> Cell:
    """What is left of rates once the clock is taken out of them."""
    report, how = sweep(setting.quick)
    series = {name: points_of_name for name in (*names, CUBLAS) if (points_of_name := points(report, name, "share"))}
    if not series:
        return _bounds(names)
    panels = {"%": series}
    ratio = _mean(report, names[0], "share") or 0.0
    return Cell(how, f"{where(report)}. In a clock {names[0]} does {ratio:.3f} times as much as cuBLAS (geometric "
                "mean).", f"{ratio:.3f} x cuBLAS", _pictures(panels), _table(panels))


def _bounds(names: tuple[str, ...]) -> Cell:
    """Without clocks: what the instructions allow, as the simulator counts them."""
    report = committed("ladder_gpu_simulated.json")
    by_title = {c.title: c for c in ladders.counted(report)}
    kept = [by_title[name] for name in dict.fromkeys((*names, *TITLES.values())) if name in by_title]
    rows = tuple((c.title, c.bound[0], f"{c.bound[1]:.1%}") for c in kept)
    return Cell("committed", "The committed measurements have no clocks. What a locked clock shows, the kernel's "
                f"instructions alone, is counted by the simulator ({where(report)}): the share of the peak that they "
                "allow.", rows[0][2] + " at most" if rows else "", table=(("step", "bound by", "of the peak"), *rows))


# ---- single numbers

def tutorials(setting: Setting) -> Cell:
    report = _ladder()
    last = report.results[-1]
    names = [step.title for name, step in GPU_LADDER.items() if name not in TITLES and last.row(step.title)]
    best = last.gflops(CUBLAS) or 0.0
    shares = [(name, (last.gflops(name) or 0.0) / best) for name in names]
    vectors = dict(shares)[GPU_LADDER["vectors"].title]
    return Cell("committed", f"{where(report)}, n = {last.case.size}: {GPU_LADDER['vectors'].title}, with tiles and "
                f"vectors but without double buffering, reaches {vectors:.0%} of cuBLAS.", f"{vectors:.0%} of cuBLAS",
                table=(("step", "of cuBLAS"), *((name, f"{share:.1%}") for name, share in shares)))


def _ours(setting: Setting) -> tuple[Report, str]:
    """Results of `matmul` beside cuBLAS, with watts and clocks: the sweep, or older squares."""
    report, how = sweep(setting.quick)
    return (report, how) if points(report, OURS, "watts") else (committed(SQUARES), "committed")


def of_the_peak(setting: Setting) -> Cell:
    report, how = _ours(setting)
    results = [r for r in report.results if r.case.suite in ("sweep", "square")]
    target: Any = targets.target(results[0].isa)
    gpu = report.machine["gpu"]
    peak = 2e6 * target.fma_f32 * gpu.get("sms", target.sms) * (gpu.get("max_sm_mhz") or target.clock / 1e6)
    shares = {r.case.problem.n: 1e9 * (r.gflops() or 0.0) / peak for r in results}
    n = max(shares, key=shares.__getitem__)
    ratio = geometric_mean([ratio.median for r in results if (ratio := r.ratio(CUBLAS))])
    return Cell(how, f"{where(report)}: at most {shares[n]:.1%} of {peak / 1e12:.1f} TFLOP/s, at n = "
                f"{n}, and {ratio:.3f} times cuBLAS's rate (geometric mean of {len(results)} sizes).",
                f"{shares[n]:.0%}, {ratio:.2f}x", table=(("n", "of the peak"), *((str(n), f"{x:.1%}")
                                                                            for n, x in shares.items())))


def watched(setting: Setting) -> Cell:
    """A line such as nvidia-smi's, of a product of 4096."""
    report, how = _ours(setting)
    r = next(r for r in report.results if r.case.problem.n == 4096 and tables.state(r, OURS, "watts"))
    watts, clock, memory, held = (tables.state(r, OURS, what)
                                  for what in ("watts", "sm_mhz", "memory_mhz", "held_back"))
    reasons = ", ".join(f"{reason} ({share:.0%})" for reason, share in (held or {}).items()) or "nothing"
    return Cell(how, f"{where(report)}, `matmul` of 4096: {watts:.1f} W, {clock:.0f} MHz, {memory:.0f} MHz, held back "
                f"by {reasons}.", f"{watts:.0f} W {clock:.0f} MHz")


def clocks(setting: Setting) -> Cell:
    report, how = _ours(setting)
    gpu = report.machine["gpu"]
    return Cell(how, f"{where(report)}: at most {gpu['max_sm_mhz']:.0f} MHz, memory at "
                f"{gpu['max_memory_mhz']:.0f} MHz, power limit {gpu['power_limit_watts']:.0f} W; clocks "
                f"{report.extra['clocks']}.", f"{gpu['max_sm_mhz']:.0f} MHz at most")


def faster_with_more_power(setting: Setting) -> Cell:
    report, how = sweep(setting.quick)
    name = TITLES["stored"]
    speed, power = _mean(report, name), _mean(report, name, "watts")
    if speed is None:
        raise Absent("these results have no rate of cuBLAS")
    watts = f", with {power:.3f} times the power" if power else "; watts are not in these results"
    return Cell(how, f"{where(report)}: {speed:.3f} times the rate of cuBLAS{watts} (geometric means).",
                f"{speed - 1:+.1%}" + (f", {power - 1:+.1%} W" if power else ""))


def copies(setting: Setting) -> Cell:
    """Copies in flight alone, and with the larger tile, beside the kernel without them."""
    report, how = sweep(setting.quick)
    names = [TITLES[name] for name in ("stored", "async128", "async") if points(report, TITLES[name], "")]
    units = [unit for unit in ("TFLOP/s", "W") if points(report, names[0], PANELS[unit])]
    table = _table({unit: {name: points(report, name, PANELS[unit]) for name in names} for unit in units})
    before = dict(points(report, names[0], ""))
    ratios = {name: geometric_mean([rate / before[n] for n, rate in points(report, name, "")]) for name in names[1:]}
    said = ", ".join(f"{name} has {ratio:.3f} times" for name, ratio in ratios.items())
    missing = "" if len(ratios) == 2 else " The results have no kernel of 128 x 128 with copies."
    return Cell(how, f"{where(report)}: {said} the rate of {names[0]} (geometric mean of {len(before)} sizes). Small "
                f"matrices have too few tiles of 128 x 256 for all multiprocessors.{missing}",
                ", ".join(f"{ratio:.2f}x" for ratio in ratios.values()), table=table)


def dispatched(setting: Setting) -> Cell:
    """Which step is chosen, for sizes around the change."""
    sizes, target = (1024, 2048, 2496, 2500, 2560, 4096, 12800), targets.target("h200")
    chosen = [(str(n), GPU_LADDER[choose(target, n, n, n, 0, n, 0, n)].title) for n in sizes]
    return Cell("computed", "From 2500 x 2500 elements of C on step 12, below step 11, or step 10 for matrices that "
                "are not aligned.", "2500 x 2500", table=(("m = n = k", "step"), *chosen))
