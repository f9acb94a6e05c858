"""The page of a command: records of the kernels that it names, the planner's answers, drawings."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tilewright as tw
from tilewright.lab.ladder import steps
from tilewright.lab.measure import launch_counts as counts
from tilewright.lab.show import code, drawings, launches, own, sliders
from tilewright.lab.show.pages import page
from tilewright.lab.show.record import Record
from tilewright.lab.show.runs import Launch
from tilewright.targets import CpuTarget, GpuTarget, Target

Tell = Callable[[str], None]
# chips whose planners answer beside the page's own
CHIPS = {"cpu": ("x86-avx2", "x86-avx512"), "gpu": ("sm_80", "sm_90a", "gfx942", "gfx950")}
# what a step does against conflicts, and the step without it
WITHOUT = (("padded", "PAD", 0, "without padding", "rows of 128 words, so that a column lies in one bank"),
           ("ring", "SWIZZLE", 1, "without the swizzle", "pieces in the order of k, so that eight rows lie in the same "
            "banks"))


def of_step(step: str, target: Target, sizes: tuple[int, int, int] | None, breaks: bool, tell: Tell
            ) -> list[dict[str, Any]]:
    """A step of the ladder, and where it pads or swizzles the same without."""
    ladder_step = steps.step(step, target)
    launch = launches.of_step(step, target, sizes)
    rows = [_data(launch, target, ladder_step.title, ladder_step.idea, step, breaks, tell)]
    if isinstance(ladder_step, steps.GpuStep):
        loaded, shared = ladder_step.moves(*launch.size, **launch.chosen)
        rows[0]["formulas"] = {"global": 4 * loaded, "shared": 4 * shared}
    for name, parameter, value, title, idea in WITHOUT:
        if step == name and isinstance(target, GpuTarget):
            launch = launches.of_step(step, target, sizes, **{parameter: value})
            rows.append(_data(launch, target, f"{ladder_step.title}, {title}", idea, f"{name}-without", False, tell))
            rows[1]["short"] = title
    return rows


def of_problem(problem: Any, target: Target, plan: Any, breaks: bool, tell: Tell) -> dict[str, Any]:
    """What matmul runs, or a given plan."""
    launch = launches.of_problem(problem, target, plan)
    algorithm = launch.chosen["plan"].split()[0]
    return _data(launch, target, f"{algorithm} on {target.name}", "the plan that tw.matmul takes" if plan is None else
                 "the plan that was given", target.name, breaks, tell) | {"short": target.name}


def of_file(text: str, arguments: Sequence[str], target: Target, grid: str | None, breaks: bool, tell: Tell
            ) -> dict[str, Any]:
    """A kernel of a user's."""
    launch = own.of_file(text, arguments, target, grid)
    name = launch.functions[-1].name
    return _data(launch, target, name, f"{text.rpartition(':')[0]}", f"{name}-{target.name}", breaks, tell) | {
        "short": target.name}


def _data(launch: Launch, target: Target, title: str, idea: str, name: str, breaks: bool, tell: Tell) -> dict[str, Any]:
    tell(f"record {title}")
    made = Record(launch, title, idea, name)
    tell(f"compile {title}")
    listings = code.listings(launch.functions, target)
    made.data["code"] = {language: [[text, [] if place is None else made.places.get(place, [])]
                                    for text, place in lines] for language, lines in listings.items()}
    if not isinstance(target, CpuTarget):
        peak, what = counts.peak(launch.functions[-1], target, False)
        made.data["chip"] = {"peak": peak, "what": what, "bandwidth": target.bandwidth, "model": target.model}
    made.data["faults"] = made.broken(tell) if breaks else []
    made.finish()
    return made.data


def document(records: list[dict[str, Any]], targets: Sequence[Target], forms: tuple[str, str], command: str,
             tell: Tell, step: str = "") -> str:
    """The page of records, as text. `forms`: of the operands, and of the result, for the planners; `step`: whose
    parameters have sliders, if it has any."""
    if len(targets) > 1:                                # the same step for several chips
        for record in records:
            variant = record.get("short", record["target"])
            record["short"] = record["target"] + (f", {variant}" if variant != record["target"] else "")
            record["id"] += "" if record["id"].endswith(record["target"]) else f"-{record['target']}"
    tell("ask the planners")
    family = CHIPS["cpu" if isinstance(targets[0], CpuTarget) else "gpu"]
    chips = list(dict.fromkeys([x.name for x in targets] + [*family]))
    counted = [sliders.of_step(x, targets[0]) for x in dict.fromkeys((step, *sliders.ALWAYS))
               if x in sliders.PARAMETERS and isinstance(targets[0], GpuTarget)]
    plans = []
    for chip in chips:
        try:
            plans.append(sliders.answers(tw.target(chip), *forms))
        except (ValueError, NotImplementedError):
            continue                            # it has no kernels in this format
    first = int(step in sliders.PARAMETERS)             # its own parameters stand before the planners' answers
    plans = [*counted[:first], *plans, *counted[first:]]
    data = {"schema": 2, "command": command, "records": records, "plans": plans,
            "figures": drawings.drawings(list(targets))}
    return page(data, records[0]["title"])
