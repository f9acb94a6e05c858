"""The steps of all three ladders by name: which there are for a target.

Whatever takes a step's name (`tilewright ladder`, `simulate --step`, `emit --step`, `asm --step`) looks it up here.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.ladder import STEPS
from tilewright.ladder.amd_steps import AMD_STEPS
from tilewright.ladder.gpu_steps import GPU_STEPS
from tilewright.targets import AmdTarget, CpuTarget, Target


@dataclass(frozen=True)
class Choice:
    """A step that is no kernel of its own: gpu13_dispatch.choose says which of these multiplies given matrices."""
    title: str
    idea: str
    among: tuple[str, ...]


DISPATCH = "dispatch"
GPU_LADDER: dict[str, Any] = GPU_STEPS | {
    DISPATCH: Choice("13 dispatch", "async for large C, texture for aligned matrices, stored for all others",
                     ("async", "texture", "stored"))}


def ladder(target: Target) -> tuple[str, Mapping[str, Any]]:
    """The ladder that runs on a target, as `tilewright ladder` calls it, and its steps by name."""
    if isinstance(target, CpuTarget):
        return "cpu", STEPS
    if isinstance(target, AmdTarget):
        return "amd", AMD_STEPS
    return "gpu", GPU_LADDER


def step(name: str, target: Target) -> Any:
    """The step of this name on a target's ladder. ValueError, with the names that there are, for any other, and for a
    step whose instruction the target lacks."""
    kind, steps = ladder(target)
    called = {"cpu": "CPU", "gpu": "GPU", "amd": "AMD"}[kind]
    if name not in steps:
        raise ValueError(f"there is no step {name!r} of the {called} ladder, which is {target.name}'s; the steps are "
                         f"{', '.join(steps)}")
    found = steps[name]
    if target.name not in getattr(found, "targets", (target.name,)):
        raise ValueError(f"{target.name} lacks the instruction of step {found.title}, which is for "
                         f"{', '.join(found.targets)}")
    return found
