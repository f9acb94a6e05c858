"""What a caller asked for, checked: a problem that a target has kernels for, and a plan or the text of one."""
from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from tilewright.formats import MULTIPLIED
from tilewright.problem import Gemm
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget


class _Family(NamedTuple):
    """The plans of one kind of target."""
    target: type
    name: str
    module: str
    plan: str                       # the class
    algorithms: tuple[str, ...]     # the first word of a plan's text
    example: str


_FAMILIES = (
    _Family(CpuTarget, "a CPU", "cpu", "CpuPlan", ("packed", "in_place", "stream", "dots"),
            "packed 14x32 mc=168 kc=1024 nc=4096 ways=1x2x1"),
    _Family(GpuTarget, "an NVIDIA GPU", "nvidia", "GpuPlan", ("simt", "dmma", "gemv"),
            "simt 128x128x8 warp=32x64 thread=8x8 stages=2 copy=registers vector=4"),
    _Family(AmdTarget, "an AMD GPU", "amd", "AmdPlan", ("mfma", "xf32", "scaled", "bf16_emulated"),
            "mfma 256x256x32 wave=128x64 mfma=32 copy=registers stages=2"),
)


def problem(what: Any) -> Gemm:
    """A Gemm, or a TypeError."""
    if not isinstance(what, Gemm):
        raise TypeError("problem must be a tilewright.Gemm, such as Gemm(m, n, k, 'f32'), not "
                        f"{type(what).__name__} {what!r}")
    return what


def supported(what: Any, on: str, single: bool = False) -> Gemm:
    """A Gemm whose formats kernels are compiled for by themselves on CPUs and NVIDIA's GPUs. TypeError for anything
    else than a Gemm; ValueError for other formats, or with `single` for more than one.

    on      the target's name, or the family's, for the sentence
    """
    p = problem(what)
    kinds = p.a, p.b, p.out
    if any(kind not in MULTIPLIED for kind in kinds) or (single and len(set(kinds)) > 1):
        raise ValueError(f"problems for {on} are in {' or '.join(MULTIPLIED)}{', the same for a, b and out' * single}, "
                         f"and {p} has a = {p.a}, b = {p.b}, out = {p.out}; tilewright.matmul multiplies every format "
                         "on CPUs")
    return p


def plan(what: Any, target: Any = None) -> Any:
    """A plan, from a plan or from the text that `str(plan)` wrote; None is None, no choice of the caller's.

    target      whose plan it has to be, if that is known

    TypeError for what is neither, ValueError for a text that is no plan, or a plan of another family than the target's.
    """
    if what is None:
        return None
    found = _parsed(what) if isinstance(what, str) else what
    family = next((f for f in _FAMILIES if _is(found, f)), None)
    if family is None:
        raise TypeError(f"plan must be a plan or the text of one, not {type(what).__name__} {what!r}")
    if target is not None and not isinstance(target, family.target):
        wanted = next(f for f in _FAMILIES if isinstance(target, f.target))
        raise ValueError(f"plan {found} is for {family.name}, and {target.name} is {wanted.name}, whose plans look "
                         f"like {wanted.example!r}")
    return found


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    word = (text.split() or [""])[0]
    for family in _FAMILIES:
        if word in family.algorithms:
            return getattr(import_module(f"tilewright.plans.{family.module}"), family.plan).parse(text)
    raise ValueError(f"not a plan: {text!r}; one looks like "
                     + ", ".join(f"{f.example!r} ({f.name})" for f in _FAMILIES))


def _is(found: Any, family: _Family) -> bool:
    """Whoever has such a plan has imported its module."""
    module = sys.modules.get(f"tilewright.plans.{family.module}")
    return module is not None and isinstance(found, getattr(module, family.plan))
