"""Bytes by level of a small product by the same plan, a few tiles, counted in the simulator beside the model's.

The model and the simulator count independently of each other: what the one predicts from the plan, the other sees at
each access. The share by which they differ there scales what is predicted of the whole problem.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewright.lab.explanation.record import Explanation, Level, asked_for
from tilewright.plans import gpu, gpu_lowering, gpu_shape, small_rules
from tilewright.plans.common import total
from tilewright.simulator.report import Fault, Report, Traffic
from tilewright.targets import AmdTarget

if TYPE_CHECKING:
    from tilewright.problem import Gemm
    from tilewright.runtime.cpu.engine import Planned

STEPS = 4               # along k that are simulated for each part, where k is divided
TAIL = 32               # and of plans that divide the last tiles, by as many as there are
MOST = 80_000_000       # multiplications that are simulated: a GPU's kernel takes seconds for them, a CPU's
MOST_CPU = 400_000      # about one
BESIDE = ("counters",)  # arrays whose few bytes no model counts
VECTOR_STEPS = 512      # of gemv, whose warps share k
BANK = 4                # bytes
ONLY_L1 = "caches are not simulated: only what kernels load and store is"


@dataclass(frozen=True)
class Counted:
    """Counts of a memory level: bytes asked for, and bytes in whole sectors or wavefronts."""
    asked: int
    moved: int | None = None


def on_gpu(found: Explanation) -> Explanation:
    """With what a small product on this GPU moves."""
    from tilewright.compiled.compile import compile
    from tilewright.lab.measure import operands
    p, plan, target = found.problem, found.plan, found.target
    if p.prologues and not found.shape.prologues:
        return _without(found, "products behind a pass that evaluates a prologue are not simulated here")
    small = _few_tiles(p, found.shape, plan)
    if small.m * small.n * small.k > MOST:
        return _without(found, f"a tile of this plan takes {small.m}x{small.n}x{small.k} multiplications, too many")
    shape = gpu_lowering.multiplied_shape(small, target)._replace(terms=found.shape.terms)
    if reasons := plan.violations(shape, target):
        return _without(found, f"the plan cannot run {small}: {reasons[0]}")
    predicted = {level.name: level for level in asked_for(gpu.cost(shape, plan, target), {})}
    o = operands.make(small)
    kernel: Any = compile(small, target, plan)
    try:
        report = kernel.simulate(o.a, o.b, scale_a=o.scale_a, scale_b=o.scale_b, operands=o.named or None, outs=o.outs)
    except Fault as fault:
        return _without(found, f"the simulator refuses {small}: {fault}")
    return _beside(found, small, {name: level.predicted for name, level in predicted.items()}, _of_gpu(report, target))


def _few_tiles(p: Gemm, shape: gpu_shape.GpuShape, plan: Any) -> Gemm:
    """A problem of whole tiles of the plan, as small as it is the same in kind."""
    if getattr(plan, "algorithm", "") == "small":
        return replace(p, batch=min(p.batch, 2*small_rules.warps(plan)*plan.matrices))
    rows, columns = plan.cta_m, plan.cta_n
    if getattr(plan, "algorithm", "") == "wgmma":
        rows, columns = rows * plan.cluster_m, columns * plan.cluster_n
    parts = plan.split_k * getattr(plan, "cluster_k", 1) * getattr(plan, "slices", 1)
    steps = max(plan.stages + 1, STEPS * parts, TAIL * getattr(plan, "tail", False))
    depth = VECTOR_STEPS * parts if plan.algorithm == "gemv" else plan.cta_k * steps
    return replace(p, m=min(rows, p.m), n=min(columns, p.n), k=min(depth, p.k), batch=1)


def _of_gpu(report: Report, target: Any) -> dict[str, Counted]:
    """Workspace counts as memory where it is written, and where it is read for the first time."""
    banks = target.lds_banks if isinstance(target, AmdTarget) else 32
    shared = report.of(space="shared")
    shared += report.of(space="cluster")
    through, memory = Traffic(report.granule), 0
    for array in dict.fromkeys(site.array for site in report.traffic if site.space == "global"):
        if array in BESIDE:
            continue
        through += report.of(array, space="global")
        if array == "workspace":
            memory += report.of(array, "store").bytes + report.of(array, "load").distinct
        else:
            memory += report.of(array, space="global").distinct
    near = Counted(shared.bytes, shared.moved * banks * BANK)
    return {"shared": near, "LDS": near, "L2": Counted(through.bytes, through.moved * report.granule),
            "memory": Counted(memory)}


# ---- CPUs

def on_cpu(found: Explanation, planned: Planned) -> Explanation:
    """With what micro-kernels of a small product on this CPU load and store."""
    from tilewright.compiled.cpu import CpuKernel
    from tilewright.lab.measure import operands
    p, plan, shape = found.problem, found.plan, found.shape
    if plan.algorithm not in ("packed", "in_place") or shape.tiles:
        return _without(found, f"no small product of this kind is simulated; {ONLY_L1}")
    from tilewright.runtime.cpu import engine
    rows, columns = (2*plan.nr, 2*plan.mr) if plan.swap else (2*plan.mr, 2*plan.nr)
    depth = max(MOST_CPU // (rows*columns), 8)
    small = replace(p, m=min(rows, p.m), n=min(columns, p.n), k=min(depth, plan.kc or p.k, p.k), batch=1)
    again = engine.plan_problem(small, found.target, 1)
    if again.shape.dtype != shape.dtype or plan.violations(again.shape, again.target):
        return _without(found, f"the plan cannot run {small}; {ONLY_L1}")
    alone = replace(plan, jc_ways=1, ic_ways=1, jr_ways=1)
    basis = found.basis
    assert basis is not None
    predicted = total(basis.cost(again.shape, alone, found.target).traffic["L1"])
    o = operands.make(small)
    try:
        report = CpuKernel(small, found.target, again._replace(plan=alone)).simulate(
            o.a, o.b, operands=o.named or None, outs=o.outs)
    except Fault as fault:
        return _without(found, f"the simulator refuses {small}: {fault}")
    return _beside(found, small, {"L1": predicted}, {"L1": Counted(_micro_kernels(report, plan))}, ONLY_L1)


def _micro_kernels(report: Report, plan: Any) -> int:
    """Loads of panels and what is done with C; packing reads A and B, and writes panels."""
    packed = plan.algorithm == "packed"
    read = ("packed A", "packed B") if packed else ("a", "b")
    return sum(report.of(array, "load").bytes for array in read) + report.of("out").bytes


# ---- scaled

def _beside(found: Explanation, small: Gemm, predicted: Mapping[str, int | None], counted: Mapping[str, Counted],
            otherwise: str = "the model has nothing to compare with") -> Explanation:
    scaled = []
    for level in found.levels:
        if (there := predicted.get(level.name)) and level.predicted is not None and level.name in counted:
            own = counted[level.name]
            share = level.predicted / there
            exact = own.asked == there
            note = f"scaled from {small.m}x{small.n}x{small.k}: {own.asked:,}, predicted {there:,}"
            moved = level.moved if own.moved is None else round(own.moved * share)
            notes = {**level.notes, "simulated": note} | ({} if own.moved is None else {"moved": _whole(level)})
            level = replace(level, simulated=level.predicted if exact else round(own.asked * share), moved=moved,
                            notes=notes)
        else:
            level = replace(level, notes={**level.notes, "simulated": otherwise})
        scaled.append(level)
    return replace(found, levels=tuple(scaled))


def _whole(level: Level) -> str:
    return "in passes over all banks" if level.name in ("shared", "LDS") else "in whole sectors"


def _without(found: Explanation, why: str) -> Explanation:
    return replace(found, levels=tuple(replace(level, notes={**level.notes, "simulated": f"not simulated: {why}"})
                                       for level in found.levels))
