"""Which plans the tuner tries: those that the model ranks high, but no repetitions of one idea."""
from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tilewright.plans import gpu
from tilewright.plans.choose import choose, ranked
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import Shape
from tilewright.plans.model import cost
from tilewright.targets import CpuTarget

TILES = 3                       # register tiles to choose from
HOPELESS = 2.0                  # times the least predicted time, beyond which a plan is not worth a try
# Plans that are tried. Of what the best of 28 plans gains over the model's choice in 59 shapes of an H200
# (bench/results/regret_h200.jsonl), the first 12, 16, 24 and 32 of `promising` have 71, 78, 90 and 95 %.
CPU_CANDIDATES, GPU_CANDIDATES = 12, 32
# Words of a GPU's plan that make it another kind
KIND = "slices", "copy", "copied", "warpgroups", "pingpong", "swap"


def promising(shape: Any, target: Any, count: int) -> list[Any]:
    """Up to `count` plans to try: some that the model ranks high and that differ, on a CPU some a step away from its
    choice, and then by rank; on a GPU in turn the first of another kind and the next in rank."""
    if not isinstance(target, CpuTarget):
        price, by_rank = gpu.planner(target).cost, gpu.ranked(shape, target)
        limit = HOPELESS * price(shape, by_rank[0], target).seconds
        by_rank = [plan for plan in by_rank if price(shape, plan, target).seconds <= limit]
        kinds: dict[Any, Any] = {}
        for plan in by_rank:
            kinds.setdefault(_kind(plan), plan)
        return _in_turn([*kinds.values()], by_rank)[:count]
    plans, model, price = ranked(shape, target, tiles=TILES), choose(shape, target), cost
    near = [*neighbours(model, shape, target)]
    limit = HOPELESS * price(shape, plans[0], target).seconds
    plans = [plan for plan in plans if price(shape, plan, target).seconds <= limit]
    differing = various(plans)
    few = -(-count // 4)
    chosen = dict.fromkeys([*differing[:max(count - few, 1)], *near[:few], *differing, *near, *plans])
    chosen.pop(model, None)
    return [model, *chosen][:count]


def _kind(plan: Any) -> tuple[str, ...]:
    """What plans of a GPU have in common that differ in how they divide and stage the same tiles."""
    algorithm, sizes, *words = str(plan).split()
    return algorithm, sizes, *(word for word in words if word.partition("=")[0] in KIND)


def _in_turn(first: list[Any], then: list[Any]) -> list[Any]:
    """Both, without what was there: one of `then` after each of `first`."""
    ordered: dict[Any, None] = dict.fromkeys(first[:1])
    rest, more = iter(first), iter(then)
    while len(ordered) < len({*first, *then}):
        for source in (rest, more):
            if (plan := next((plan for plan in source if plan not in ordered), None)) is not None:
                ordered[plan] = None
    return [*ordered]


def various(plans: list[Any]) -> list[Any]:
    """The plans that bring an algorithm, tile, block size or split that none before them has: plans that are much alike
    are about as fast."""
    chosen: list[Any] = []
    seen: set[tuple[object, ...]] = set()
    for plan in plans:
        traits = _traits(plan)
        if traits - seen:
            chosen.append(plan)
            seen |= traits
    return chosen


def _traits(plan: Any) -> set[tuple[object, ...]]:
    if not isinstance(plan, CpuPlan):
        return {(plan.algorithm, word) for word in str(plan).split()[1:]}
    kind = plan.algorithm, plan.swap
    return {(*kind, "tile", plan.mr, plan.nr), (*kind, "mc", plan.mc // plan.mr), (*kind, "kc", plan.kc),
            (*kind, "ways", plan.jc_ways, plan.ic_ways, plan.jr_ways)}


def neighbours(plan: CpuPlan, shape: Shape, target: CpuTarget) -> Iterator[CpuPlan]:
    """Legal plans with one size half or twice as large, a row more or less in the tile: what the model's rules of thumb
    leave out, the nearest to its taste first."""
    k = shape.k
    steps: list[dict[str, int]] = []
    if plan.algorithm in ("packed", "in_place"):
        kcs = {plan.kc // 8 * 4, min(2*plan.kc, -(-k // 4) * 4)} if plan.kc else {-(-k // 8) * 4}
        steps += [{"kc": kc} for kc in kcs if kc]
        steps += [{"mr": plan.mr + more, "mc": plan.mc // plan.mr * (plan.mr + more)} for more in (-2, -1, 1)]
    if plan.algorithm == "packed":
        rows = -(-(shape.n if plan.swap else shape.m) // plan.mr) * plan.mr     # of all of C
        steps += [{"mc": mc} for mc in (max(plan.mc // plan.mr // 2, 1) * plan.mr, max(min(2*plan.mc, rows), plan.mc))]
        steps += [{"nc": max(plan.nc // plan.nr // 2, 1) * plan.nr}]
    if plan.algorithm == "in_place":
        steps += [{"jc_ways": plan.ic_ways, "ic_ways": plan.jc_ways}]
    changed = (dataclasses.replace(plan, **step) for step in steps)  # type: ignore[arg-type]
    legal = [p for p in dict.fromkeys(changed) if p != plan and not p.violations(shape, target)]
    yield from sorted(legal, key=lambda p: cost(shape, p, target).seconds)
