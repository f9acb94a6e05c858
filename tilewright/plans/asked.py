"""What a caller asked for, checked: a problem that a target has kernels for, and a plan or the text of one."""
from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from tilewright.formats import MULTIPLIED
from tilewright.plans.common import Plan
from tilewright.problem import Gemm
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget


class _Family(NamedTuple):
    """The plans of one kind of target, whose module is imported when it is needed."""
    target: type
    module: str
    name: str                       # of the class
    algorithms: tuple[str, ...]     # the first word of a plan's text

    @property
    def plan(self) -> type[Plan]:
        found: type[Plan] = getattr(import_module(f"tilewright.plans.{self.module}"), self.name)
        return found


_FAMILIES = (_Family(CpuTarget, "cpu", "CpuPlan", ("packed", "in_place", "stream", "dots")),
             _Family(GpuTarget, "nvidia", "NvidiaPlan", ("simt", "dmma", "gemv")),
             _Family(AmdTarget, "amd", "AmdPlan", ("mfma", "xf32", "scaled", "bf16_emulated")))


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
        wanted = family_of(target)
        raise ValueError(f"plan {found} is for {family.plan.FAMILY}, and {target.name} is {wanted.FAMILY}, whose plans "
                         f"look like {wanted.EXAMPLE!r}")
    return found


def family_of(target: Any) -> type[Plan]:
    """The class of plans for a target."""
    return next(f for f in _FAMILIES if isinstance(target, f.target)).plan


def is_for(found: Any, kind: type) -> bool:
    """Whether it is a plan for targets of this kind; no module is imported for the answer."""
    return found is not None and any(f.target is kind and _is(found, f) for f in _FAMILIES)


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    word = (text.split() or [""])[0]
    for family in _FAMILIES:
        if word in family.algorithms:
            return family.plan.parse(text)
    raise ValueError(f"not a plan: {text!r}; one looks like "
                     + ", ".join(f"{f.plan.EXAMPLE!r} ({f.plan.FAMILY})" for f in _FAMILIES))


def _is(found: Any, family: _Family) -> bool:
    """Whoever has such a plan has imported its module."""
    module = sys.modules.get(f"tilewright.plans.{family.module}")
    return module is not None and isinstance(found, getattr(module, family.name))
