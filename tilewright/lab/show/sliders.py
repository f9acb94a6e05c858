"""What the planner says of other plans: for a grid of values, whether each is legal, and the model's time for it."""
from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.lab.ladder import tunable
from tilewright.lab.measure import launch_counts as counts
from tilewright.lab.show import launches
from tilewright.lab.tuner import bound
from tilewright.lab.tuner.space import Space
from tilewright.simulator import Fault
from tilewright.targets import CpuTarget, GpuTarget, Target

MOST_TILES, MOST_ANSWERS = 7, 1500
SIZE = 4096             # of square matrices: those of the page are too small for plans to matter
TILE = ("cta_m", "cta_n", "warp_m", "warp_n", "thread_m", "thread_n", "warpgroups", "mfma", "mr", "nr", "swap",
        "pingpong")
OTHERS = {"cta_k": (16, 32, 64, 128), "stages": (2, 3, 4, 5, 6), "split_k": (1, 2, 4),
          "mc": (), "kc": (), "nc": ()}
NAMES = {"cta_k": "depth of a tile, k", "stages": "stages", "split_k": "parts of k", "mc": "rows of a block, mc",
         "kc": "depth of a block, kc", "nc": "columns, nc"}


def answers(target: Target, form: str, out: str) -> dict[str, Any]:
    """Axes and answers for a chip. Each answer: the plan's text, a sentence where it is not legal, seconds, and what
    these consist of."""
    cpu = isinstance(target, CpuTarget)
    problem = tw.Gemm(SIZE, SIZE, SIZE, form, form, out)
    space = Space(problem, target, 1 if cpu else None)
    ranked = space.ranked()
    base = next((x for x in (space.model, *ranked)), space.in_use)
    basis = space.basis()
    same = [x for x in ranked if x.algorithm == base.algorithm]
    tiles = _tiles(base, same)
    axes: list[tuple[str, list[Any]]] = [("tile", tiles)]
    for name, values in OTHERS.items():
        own = getattr(base, name, None)
        if own:
            chosen = values or [max(1, own * x // 4) for x in (1, 2, 4, 8)]
            axes.append((name, sorted({*chosen, own})))
    while prod(len(values) for _, values in axes) > MOST_ANSWERS:
        axes[0][1].pop()
    rows = []
    for tile, *rest in product(*(values for _, values in axes)):
        plan = replace(base, **tile, **dict(zip([name for name, _ in axes[1:]], rest)))
        rows.append(_answer(space, basis, plan))
    best = min(same or [base], key=lambda x: basis.cost(space.shape, x, target).seconds)
    return {"target": target.name, "model": target.model, "problem": f"{SIZE} × {SIZE} × {SIZE} in {form}",
            "flops": problem.flops, "axes": [
                {"name": NAMES.get(name, name), "values": [_tile_text(x) if name == "tile" else str(x) for x in values]}
                for name, values in axes],
            "start": [0, *(values.index(getattr(base, name)) for name, values in axes[1:])],
            "answers": rows, "best": [str(best), basis.cost(space.shape, best, target).seconds],
            "note": f"{len(rows)} plans were asked about when this page was made; nothing is computed here. Times are "
                    f"the model's, by {basis.source}, not measurements. Padding and swizzles are no choice of a plan: "
                    "the emitters fix them; the entries padding and swizzle of the list show what they are for."}


def _tiles(base: Any, ranked: list[Any]) -> list[dict[str, Any]]:
    """The base's tile first, then others of its kind by size."""
    names = [x.name for x in fields(base) if x.name in TILE]

    def tile(plan: Any) -> tuple[Any, ...]:
        return tuple(getattr(plan, name) for name in names)
    others = list(dict.fromkeys(tile(x) for x in ranked))
    own = tile(base)
    sized: dict[Any, Any] = {}                              # one for each extent of C
    for x in others:
        sized.setdefault(x[:2], x)
    chosen = [own, *(x for x in sized.values() if x[:2] != own[:2])][:MOST_TILES]
    chosen = [own, *sorted(chosen[1:], key=lambda x: (x[0] * x[1], x[0]))]
    return [dict(zip(names, x)) for x in chosen]


def _tile_text(tile: dict[str, Any]) -> str:
    return f"{tile['cta_m']}x{tile['cta_n']}" if "cta_m" in tile else f"{tile['mr']}x{tile['nr']}"


def _answer(space: Space, basis: Any, plan: Any) -> list[Any]:
    reasons = list(plan.violations(space.shape, space.target))
    if reasons:
        return [str(plan), reasons[0], 0, {}]
    cost = basis.cost(space.shape, plan, space.target)
    parts = dict(getattr(cost, "parts", None) or {})
    return [str(plan), "", cost.seconds, {name: x for name, x in parts.items() if x > 0}]


# ---- parameters of a step of the ladder: what the simulator counts for each

_TILES = {"L": (32, 64, 128), "S": (8, 16), "V": (4, 8)}
PARAMETERS: dict[str, dict[str, tuple[int, ...]]] = {
    "shared": _TILES, "coalesced": _TILES, "padded": {"PAD": (0, 1, 2, 3, 4, 8, 16)},
    "ring": {"SWIZZLE": (1, 2, 3, 4, 8, 16)}}
ALWAYS = ("padded", "ring")     # pages of NVIDIA's GPUs have these, whatever else they show
DEFAULT = {"padded": (4,), "ring": (8,)}
ASKED = {"PAD": "padding, words a row", "SWIZZLE": "swizzle, rows"}
COUNTED = (128, 128, 16)        # m, n, k


def of_step(step: str, target: GpuTarget) -> dict[str, Any]:
    """Axes and answers: for each, what loads and stores of shared memory cost, what crosses global memory's interface,
    and the least time that these counts allow."""
    axes, rows = PARAMETERS[step], []
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values))
        text = " ".join(f"{name}={x}" for name, x in chosen.items())
        why = tunable.too_much(**chosen) if "L" in chosen else ""
        try:
            rows.append([text, why or "", {} if why else _counted(step, target, **chosen)])
        except (Fault, ValueError) as fault:                # padding by less than a vector, a swizzle out of the row
            rows.append([text, str(fault).partition("\n")[0], {}])
    start = DEFAULT.get(step, (32, 8, 4))
    return {"target": f"{step} on {target.name}", "model": {"padded": "padding", "ring": "swizzle"}.get(
                step, "parameters of the step"), "counted": True,
            "problem": f"{' × '.join(map(str, _size(step)))} by the kernel of the step {step}", "answers": rows,
            "axes": [{"name": ASKED.get(x, x), "values": [str(each) for each in values]} for x, values in axes.items()],
            "start": [values.index(x) for values, x in zip(axes.values(), start)],
            "note": f"{len(rows)} kernels were simulated when this page was made; nothing is computed here. The time "
                    "is the least that the counts allow, by the model that tunes kernels, not a measurement."}


def _size(step: str) -> tuple[int, int, int]:
    return (128, 128, 64) if step == "ring" else COUNTED


@cache
def _counted(step: str, target: GpuTarget, **chosen: int) -> dict[str, Any]:
    launch = launches.of_step(step, target, _size(step), **chosen)
    (m, n, k), function = launch.size, launch.functions[-1]
    a, b, c = (np.ones(shape, kind) for shape, kind in zip(((m, k), (k, n), (m, n)), launch.formats))
    report = launch.run(a, b, c)
    totals: dict[str, Any] = {}
    for verb in ("load", "store"):
        shared = report.of(space="shared", verb=verb)
        totals |= {f"passes of {verb}s": shared.moved, f"conflicts of {verb}s": shared.conflicts}
    memory = report.of(space="global")
    counted = bound.Launch(counts.from_report(report), prod(launch.grid), -(-prod(function.threads) // function.warp),
                           bytes=memory.distinct)
    return totals | {"sectors of global memory": memory.moved, "seconds": bound.bound(counted, target).seconds,
                    "bytes of shared memory": sum(x.shared_bytes for x in launch.functions)}
