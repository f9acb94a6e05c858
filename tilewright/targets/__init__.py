"""Which chip: frozen capability records, `detect()` for this machine and `target(name)` for a forced one.

The environment variable TILEWRIGHT_TARGET names what `detect()` returns: a narrower instruction set for benchmarks and
tests, or one that this machine lacks, for looking at its plans and its code.
"""
from __future__ import annotations

import os
from functools import cache
from typing import Any, Literal, overload

from tilewright.targets import amd, cpu, machine, nvidia
from tilewright.targets.amd import AmdTarget
from tilewright.targets.cpu import CpuTarget
from tilewright.targets.nvidia import GpuTarget

__all__ = ["AmdTarget", "CpuTarget", "GpuTarget", "Target", "coerce", "detect", "names", "target"]
Target = CpuTarget | GpuTarget | AmdTarget


def names(kind: str | None = None) -> list[str]:
    """Every name that `target` takes, aliases and chips left out: of CPUs ("cpu"), of NVIDIA's GPUs ("gpu"), of AMD's
    ("amd"), or all of them."""
    every = {"cpu": [row.name for row in cpu.ISAS], "gpu": [*nvidia.TARGETS], "amd": [*amd.TARGETS]}
    return every[kind] if kind else [name for some in every.values() for name in some]


@overload
def target(name: Literal["x86-avx512", "x86-avx2", "neon"]) -> CpuTarget: ...
@overload
def target(name: Literal["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a"]) -> GpuTarget: ...
@overload
def target(name: Literal["gfx942", "gfx950"]) -> AmdTarget: ...
@overload
def target(name: Target | str) -> Any: ...
def target(name: Target | str) -> Any:
    """The record of an instruction set: "x86-avx512", "x86-avx2" or "neon" (aliases such as "avx2", "aarch64"), or of a
    GPU's architecture: "sm_75", "sm_80", "sm_86", "sm_89", "sm_90a" (aliases such as "h200"), "gfx942", "gfx950"; or of
    a chip, such as "mi325x", "h100", "rtx5090", "b200" or "zen4". NVIDIA's chips after Hopper ("sm_100", "sm_120") have
    the record of sm_89, whose code they run, with numbers of their own.

    The record of an instruction set has this machine's caches and cores if this machine has that instruction set's
    family. Otherwise it has those of a well-known chip with one core, and so has the record of a CPU named by its chip.
    The record of a GPU's architecture has the numbers of a well-known chip. `.runnable` says whether this machine can
    run the target. A record is returned unchanged. ValueError for any other name, TypeError for other types.
    """
    if isinstance(name, Target):
        return name
    if not isinstance(name, str):
        raise TypeError(f"target must be a name, such as 'x86-avx2', 'sm_90a' or 'gfx950', or a record, as "
                        f"tilewright.target and tilewright.detect give it, not {type(name).__name__} {name!r}")
    for maker in (cpu, nvidia, amd):
        if chip := maker.find(name):
            return chip
    raise ValueError(f"there is no target {name!r}; there are: {known()}")


def known() -> str:
    """All names of targets, for a message."""
    others = {name: [alias for alias, to in nvidia.ALIASES.items() if to == name] for name in (
        *nvidia.TARGETS, *nvidia.CHIPS)}
    listed = [*((row.name, row.aliases) for row in cpu.ISAS), *((name, ()) for name in cpu.CHIPS), *others.items(),
              *((name, ()) for name in (*amd.TARGETS, *amd.CHIPS))]
    return "; ".join(f"{name} (or {', '.join(aliases)})" if aliases else name for name, aliases in listed)


@cache
def detect() -> CpuTarget:
    """The widest instruction set that this machine can run, or the one that TILEWRIGHT_TARGET names."""
    forced = os.environ.get("TILEWRIGHT_TARGET")
    if forced:
        try:
            chosen = target(forced)
        except ValueError as error:
            raise ValueError(f"TILEWRIGHT_TARGET: {error}") from None
        if not isinstance(chosen, CpuTarget):
            raise ValueError(f"TILEWRIGHT_TARGET must be a CPU target, and {forced} is a GPU's; "
                             f"CPU targets are: {', '.join(names('cpu'))}")
        return chosen
    here = machine.processor()
    known = [target(row.name) for row in cpu.ISAS if row.family == here.family]
    for candidate in known:
        if candidate.runnable:
            return candidate
    if known:
        raise RuntimeError(f"tilewright needs at least {known[-1].name}, and this processor ({here.model}) lacks "
                           f"{', '.join(known[-1].missing)}.")
    raise RuntimeError(f"tilewright has no instruction set for {here.family} processors; it has: "
                       f"{', '.join(names('cpu'))}.")


def coerce(what: Target | str | None, kind: Any = Target) -> Any:
    """The record that an argument stands for: a record, the name of one, or None for this machine's processor.

    kind        what the caller works with: CpuTarget, GpuTarget, AmdTarget or a union of them

    TypeError and ValueError as from `target`; ValueError for a record of another kind.
    """
    chip = detect() if what is None else target(what)
    if not isinstance(chip, kind):
        families: dict[type, tuple[str, list[Any]]] = {
            CpuTarget: ("a CPU", names("cpu")), GpuTarget: ("an NVIDIA GPU", names("gpu")),
            AmdTarget: ("an AMD GPU", names("amd"))}
        wanted = [family for record, family in families.items() if issubclass(record, kind)]
        raise ValueError(f"target must be {' or '.join(name for name, _ in wanted)}, and {chip.name} is "
                         f"{families[type(chip)][0]}; there are: {', '.join(x for _, some in wanted for x in some)}")
    return chip
