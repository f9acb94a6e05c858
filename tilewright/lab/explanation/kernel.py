"""`tilewright.explain` for kernels of a user's own: what the simulator counts, what the assembler gives, the bound.

A recorded function runs whole in the simulator, on copies of what it writes. A kernel with parameters is counted as the
tuner counts it, by small launches, and compared with its other configurations (tuner/trial.py, tuner/bound.py).
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tilewright.ir import arguments, vectors
from tilewright.ir.fma import fusing
from tilewright.ir.program import Function, written
from tilewright.lab.explanation import measured
from tilewright.lab.explanation.gpu import REST, SHOWN
from tilewright.lab.explanation.record import Alternative, Explanation, Level, Part, Section, Tile, Time, cause
from tilewright.lab.measure import launch_counts as counts
from tilewright.lab.tuner import kernels, trial as trials
from tilewright.lab.tuner.bound import SECTOR, Launch, from_beyond
from tilewright.lab.tuner.space import here
from tilewright.plans import amd_model
from tilewright.plans.common import Cost
from tilewright.plans.measured import kernels as store
from tilewright.plans.nvidia_rates import SHARED_CLOCK, WIDE_L2
from tilewright.runtime.emitted import Emitted
from tilewright.runtime.parametric import Parametric, device_of, spelled
from tilewright.simulator import occupancy
from tilewright.simulator.machine import Machine
from tilewright.simulator.memory import AddressSpace
from tilewright.targets import AmdTarget, CpuTarget, coerce
from tilewright.text import plural

BANKS, BANK = 32, 4             # of shared memory, and bytes of each
ALL = 64                        # configurations that are compared; of more the emitter's defaults and the first
WHOLE, SMALL = "the whole launch in the simulator", "small launches in the simulator, of one and two tiles"
COUNTED = "by the simulator's counts and the bound of tuner/bound.py: the least time that they allow"


def is_one(what: Any) -> bool:
    return isinstance(what, (Function, Emitted, Parametric))


def explain(what: Any, args: Sequence[Any], target: Any, grid: Any, measure: bool = False) -> Explanation:
    """Explains a kernel, as tilewright.explain says."""
    if isinstance(what, Parametric):
        chip = device_of(args) if target is None else coerce(target)
    else:
        chip = _chip(what, args, target)
    if measure:
        here(chip)                          # RuntimeError before anything is counted
    if isinstance(what, Parametric):
        return _parametric(what, args, chip, grid, measure)
    function = what.function(chip) if isinstance(what, Emitted) else arguments.recorded(what)
    if (function.threads is None) != isinstance(chip, CpuTarget):
        wanted = "a CPU" if function.threads is None else "a GPU"
        raise ValueError(f"{function.name} is recorded for {wanted}, and target is {chip.name}")
    arguments.count(function, args)
    wrote = written(function)
    given = [_own(name, x, name in wrote) for (name, _), x in zip(function.params, args)]
    extents = arguments.grid(function, grid)
    if grid is None and function.independent:
        extents = (vectors.ctas(function, given) or 1, 1, 1)
    gridded = function.threads is not None or function.programs
    machine = Machine(function, AddressSpace(), {}, None, chip.name, fuses=True)
    report = machine.run_grid(given, extents if gridded else None)
    memory = sum(report.of(site, verb, "global").distinct for site, verb in dict.fromkeys(
        (site.array, site.verb) for site in report.traffic if site.space == "global"))
    sizes = trials.extents(extents) if gridded else (1,)
    result = _explained(function.name, function, chip, sizes, Launch(counts.from_report(report), bytes=memory), WHOLE)
    if not measure:
        return result
    return measured.kernel(result, function, {name: x for (name, _), x in zip(function.params, args)}, sizes)


def _chip(what: Any, args: Sequence[Any], target: Any) -> Any:
    """The target that is named, else that of the arrays; a kernel for CTAs runs on no CPU."""
    if target is not None:
        return coerce(target)
    chip = device_of(args)
    if isinstance(what, Function) and what.threads is not None and isinstance(chip, CpuTarget):
        raise TypeError(f"{what.name} is recorded for the CTAs of a GPU: say which, such as target='sm_90a'")
    return chip


def _own(name: str, x: Any, wrote: bool) -> Any:
    """An argument for the simulator: arrays of a GPU, and those that are written, are copied."""
    if isinstance(x, (int, float, np.generic)):
        return x
    if isinstance(x, np.ndarray):
        return x.copy() if wrote else x
    return kernels._on_host(name, x)


# ---- one with parameters

def _parametric(kernel: Parametric, args: Sequence[Any], chip: Any, grid: Any, measure: bool) -> Explanation:
    if grid is not None:
        raise TypeError(f"{kernel.name} says its grid itself: grid must be left out")
    named = kernel._names(chip, args)
    task = trials.Task(kernel, chip, named)
    chosen = spelled(kernel._configuration(chip, named))
    texts = list(dict.fromkeys([chosen, *map(spelled, kernel.configurations)]))[:ALL]
    made = [trial for trial, _ in kernels.every(task, trials.trial_of, texts, None, lambda event: None)]
    own = made[0]
    if own.refused:
        why = f"{own.refused[0]}: {own.refused[1]}"
        return Explanation(kernel.name, chip, chosen, f"{kernel.name} on {chip.name} ({chip.model})", "in use", (why,),
                           sections=(Section("cannot run", (why,)),))
    costs = {one.configuration: kernels.priced(task, one) for one in made if not one.refused}
    ours = costs.pop(chosen)
    shown = sorted(costs, key=lambda text: costs[text].seconds)[:SHOWN]
    others = tuple(Alternative(text, costs[text].seconds / ours.seconds - 1, *cause(ours, costs[text], True))
                   for text in shown)
    refused = Counter(f"{stage}: {why.splitlines()[0]}" for stage, why in (x.refused for x in made if x.refused))
    configuration = task.configuration(chosen)
    function = kernel.function(chip, **configuration)
    sizes = kernel.sizes(configuration, named, chip)
    known = store.best(kernel.name, kernel.source(chip), chip, kernel.problem_class(named, chip))
    origin = ("measured to be the fastest (tilewright.tune)" if known == chosen else
              "the emitter's defaults" if configuration == kernel.defaults else
              "measured for sizes nearby (tilewright.tune)")
    result = _explained(kernel.name, function, chip, own.grid, own.launch, SMALL if sizes else WHOLE, ours, plan=chosen,
                       origin=origin, tiles=_of_sizes(named, sizes), alternatives=others, considered=len(costs),
                       refused=dict(refused.most_common(SHOWN)))
    return measured.kernel(result, function, named, own.grid) if measure else result


def _of_sizes(named: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[Tile, ...]:
    """Where a kernel says its tiles along m and n: the product and one of them."""
    if not {"m", "n"} <= sizes.keys():
        return ()
    extents = {name: int(named[name]) for name in sizes if name in "mnk"}
    own = {name: sizes[name] for name in extents}
    return (Tile("C", extents, 1, "memory"),
            Tile("tile", own, prod(-(-extents[name] // own[name]) for name in "mn")))


# ---- what both have

def _explained(name: str, function: Function, chip: Any, grid: tuple[int, ...], launch: Launch, counted: str,
               cost: Cost | None = None, *, plan: str = "", origin: str = "", tiles: tuple[Tile, ...] = (), **more: Any
               ) -> Explanation:
    """`launch`: counts of all of it, and bytes of memory; `counted` says how they were found."""
    used, words = _resources(function, chip)
    double = counts.multiplies_doubles(function)
    if cost is None:
        warps = -(-prod(function.threads) // function.warp) if function.threads else 1
        cost = kernels.expected(function, replace(
            launch, ctas=prod(grid), warps=warps, resident=used.get("ctas", 1), double=double,
            chains=used.get("chains", 1), spilled=used.get("spilled", 0.0)), chip)
    rates, peak, peak_of = _ceilings(function, chip, double)
    flops = round(launch.counts.get("flops", 0))
    kinds = {kind: round(n) for kind, n in sorted(launch.counts.items(), key=lambda each: -each[1])
             if kind not in UNKIND and round(n)}
    about = (plan, origin) if plan else (f"{function.name}: {_launch(function, grid)}",)
    sections = (Section("kernel", (*about, *words, *_fused(function), f"counts: {counted}")),)
    title = f"{name} on {chip.name} ({chip.model}), {_launch(function, grid)}"
    shown = {what: value for what, value in used.items() if what not in HOT}
    return Explanation(
        name, chip, plan or function.name, title, origin, (), flops, tiles or _of_grid(function, grid),
        tuple(_levels(launch, chip, rates)), _time(cost, peak if flops else None, peak_of), shown, kinds,
        sections=sections, cost=cost, **more)


def _fused(function: Function) -> Iterator[str]:
    """What multiplying and adding with one rounding saves, and where k.exact() does without."""
    fusions = [fusing(each) for each in (*function.callees(), function)]
    sums, apart = (Counter(line for each in fusions for line in lines(each)) for lines in (
        lambda each: each.sums, lambda each: each.apart))
    operations = sum(each.operations for each in fusions)
    if sums:
        now = operations - sum(each.saved for each in fusions)
        yield (f"a*b + c: {plural(sums.total(), 'product')} fused with a sum (FMA, rounded once): "
               f"{plural(now, 'operation')} on floats instead of {operations}")
    if apart:
        yield f"kept apart by k.exact(): {plural(apart.total(), 'product')}, in {', '.join(map(str, apart))}"


HOT = ("chains", "spilled")          # of a CPU's hot loop, which the bound asks for
UNKIND = {"flops", *counts.BYTES.values(), counts.PASSES, counts.LOADED, counts.STORED, counts.WAITS, counts.FOOTPRINT}


def _launch(function: Function, grid: tuple[int, ...]) -> str:
    if function.threads is None:
        return f"{plural(prod(grid), 'program')}" if function.programs else "one thread"
    x, y = function.threads
    extents = " x ".join(map(str, grid[:2] if grid[2:] in ((), (1,)) else grid))
    return f"{extents} CTAs of {x} x {y} threads" if y > 1 else f"{extents} CTAs of {x} threads"


def _of_grid(function: Function, grid: tuple[int, ...]) -> tuple[Tile, ...]:
    """Threads of the grid, of a CTA, of a warp."""
    if function.threads is None:
        return ()
    (x, y), (across, down, deep) = function.threads, (*grid, 1, 1, 1)[:3]
    lanes = min(function.warp, x * y)
    warp = {"x": min(x, lanes), "y": -(-lanes // x)}
    return (Tile("grid", {"x": x*across, "y": y*down, "z": deep}), Tile("CTA", {"x": x, "y": y}, across*down*deep),
            Tile("warp", warp, -(-x*y // lanes)))


def _levels(launch: Launch, chip: Any, rates: Mapping[str, float]) -> Iterator[Level]:
    n = launch.counts
    if isinstance(chip, CpuTarget):
        asked = n.get("bytes", 0)
        yield Level("L1", simulated=round(asked), rate=rates.get("L1"), notes={"simulated": "what it loads and stores"})
        if launch.nest:
            for name, before, size in (("L2", "L1", chip.l1d), ("L3", "L2", chip.l2), ("memory", "L3", chip.l3)):
                if size:
                    beyond = round(from_beyond(launch.nest, size, asked))
                    yield Level(name, predicted=beyond, rate=rates.get(name), notes={
                        "predicted": f"what rounds of the loops over tiles touch and {before} does not keep; as the "
                                     "call is repeated"})
            return
    else:
        if n.get("bytes shared"):
            banks = chip.lds_banks if isinstance(chip, AmdTarget) else BANKS
            near = "LDS" if isinstance(chip, AmdTarget) else "shared"
            yield Level(near, simulated=round(n["bytes shared"]), moved=round(n["passes"]) * banks*BANK,
                        rate=rates.get(near), notes={"moved": "in passes over all banks"})
        sectors = n.get("sectors loaded", 0) + n.get("sectors stored", 0)
        yield Level("L2", simulated=round(n.get("bytes", 0)), moved=round(sectors) * SECTOR, rate=rates.get("L2"),
                    notes={"moved": "in whole sectors"})
    yield Level("memory", simulated=launch.bytes, rate=rates.get("memory"),
                notes={"simulated": "different bytes, read once and written once"})


def _time(cost: Cost, peak: float | None, peak_of: str) -> Time:
    """On a GPU parts overlap with the longest, on a CPU likewise."""
    longest = max(cost.parts, key=lambda part: part[1])[1]
    parts = [Part(what, seconds, what != cost.bound) for what, seconds in cost.parts if seconds > 0]
    parts.sort(key=lambda part: (part.hidden, -part.seconds))
    rest = max(cost.seconds - longest, 0.0)
    return Time(cost.seconds, (*parts, Part(REST, rest)), COUNTED.removeprefix("by "), cost.bound, peak, peak_of)


def _resources(function: Function, chip: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the assembler says, as numbers and in words."""
    if isinstance(chip, CpuTarget):
        from tilewright.compiled.compile import compiled
        try:
            hot = compiled(function, chip).loop()
        except ValueError:                                  # it has no loop
            return {}, ()
        resources = {"registers": hot.registers, "spills": hot.spills, "chains": max(hot.fma, 1),
                 "spilled": hot.hot_spills / max(hot.fma, 1)}
        return resources, (f"hot loop: {', '.join(f'{n} {what}' for what, n in hot.counts.items() if n)}",)
    used = occupancy.assembled(function, chip)
    if used is None:
        return {}, ("registers and occupancy are not known: ptxas is not installed",)
    ctas = getattr(used, "workgroups", 0) or getattr(used, "ctas", 0)
    return {"registers": used.registers, "spills": used.spills, "shared": used.shared, "ctas": ctas,
            "limit": used.limit}, (str(used),)


def _ceilings(function: Function, chip: Any, double: bool) -> tuple[dict[str, float], float | None, str]:
    """Bytes per second by level, operations per second, and what these are of."""
    dtype = "f64" if double else "f32"
    if isinstance(chip, CpuTarget):
        from tilewright.lab.measure import probes
        known = probes.basis(chip).ceilings
        if known is None:
            return {}, None, ""
        rates = {level: rate for level in ("L1", "L2", "L3", "memory") if (rate := known.peak_bandwidth(level))}
        return rates, known.peak_flops(dtype, 1, chip.name), "what one thread reached with nothing but multiply-adds"
    clocks = (chip.cus if isinstance(chip, AmdTarget) else chip.sms) * chip.clock
    if isinstance(chip, AmdTarget):
        rates = {"LDS": chip.lds_clock * clocks, "L2": amd_model.L2_CLOCK * chip.xcds * chip.clock}
    else:
        rates = {"shared": SHARED_CLOCK * clocks, "L2": WIDE_L2 * clocks}
    rates["memory"] = chip.bandwidth
    return rates, *counts.peak(function, chip, double)
