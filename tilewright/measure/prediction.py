"""The rate that a CPU plan should reach, for whoever shows one: `tilewright plan` and `explain` say the same.

The cost model counts; what one core does in a second is this machine's ceilings, if they were measured undisturbed, and
the model's defaults if not.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilewright.measure import probes
from tilewright.measure.ceilings import Measured
from tilewright.plans.cpu import CpuPlan, Shape
from tilewright.plans.model import Cost, cost
from tilewright.targets import CpuTarget

DEFAULTS = "the model's defaults (3.5 GHz, one vector multiply-add a cycle)"


@dataclass(frozen=True)
class Basis:
    """What predictions for a target rest on: its ceilings, or None where the model's defaults have to do."""
    ceilings: Measured | None
    source: str

    def cost(self, shape: Shape, plan: CpuPlan, target: CpuTarget) -> Cost:
        return cost(shape, plan, target, self.ceilings.model_ceilings(target, shape.dtype) if self.ceilings else None)


def basis(target: CpuTarget, measure: bool = False) -> Basis:
    """The ceilings remembered for this machine; `measure` them if there are none."""
    if not target.runnable:
        return Basis(None, f"{DEFAULTS}, as this machine cannot run {target.name}")
    known = probes.ceilings(target) if measure else probes.remembered()
    if known is None or target.name not in known.flops:
        return Basis(None, f"{DEFAULTS}; `tilewright doctor` measures this machine's ceilings")
    if known.disturbed:
        return Basis(None, f"{DEFAULTS}, as other processes disturbed the measurement of this machine's ceilings; "
                           "`tilewright doctor` repeats it")
    return Basis(known, f"the ceilings of this machine, measured on {known.date[:10]} (`tilewright doctor`)")
