"""What a caller asked for, checked: a problem, a plan or the text of one, an algorithm."""
from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.plans import lowering
from tilewright.plans.common import Plan
from tilewright.problem import Gemm
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from tilewright.attention_problem import Attention


class _Family(NamedTuple):
    """The plans of one kind of target, whose module is imported when it is needed."""
    target: type
    module: str
    name: str                       # of the class
    algorithms: tuple[str, ...]     # the first word of a plan's text
    attention: bool = False         # plans of attention, and not of products

    @property
    def plan(self) -> type[Plan]:
        return getattr(import_module(self.module), self.name)

    def has(self, plan: Any) -> bool:
        """Whether it is one of these plans, which no module that is not imported can have made."""
        return self.module in sys.modules and isinstance(plan, self.plan)


_FAMILIES = (_Family(CpuTarget, "tilewright.plans.cpu", "CpuPlan", ("packed", "in_place", "stream", "dots")),
             _Family(GpuTarget, "tilewright.plans.nvidia_plan", "NvidiaPlan",
                     ("simt", "dmma", "mma", "tf32", "wgmma", "gemv", "small")),
             _Family(AmdTarget, "tilewright.plans.amd", "AmdPlan", ("mfma", "xf32", "scaled")),
             _Family(AmdTarget, "tilewright.plans.amd_attention", "AmdAttention", ("attention_mfma",), True),
             _Family(CpuTarget, "tilewright.plans.cpu_attention", "CpuAttention",
                     ("attention_strips", "attention_rows", "attention_few"), True),
             _Family(GpuTarget, "tilewright.plans.nvidia_attention", "AttentionPlan",
                     ("attention_wgmma", "attention_mma"), True))


def problem(what: Any) -> Gemm:
    """A Gemm, or a TypeError."""
    if not isinstance(what, Gemm):
        raise TypeError("problem must be a tilewright.Gemm, such as Gemm(m, n, k, 'f32'), or an Attention, not "
                        f"{type(what).__name__} {what!r}")
    return what


def is_attention(what: Any) -> TypeIs[Attention]:
    """Whether it is an Attention, which no module that is not imported can have made."""
    module = sys.modules.get("tilewright.attention_problem")
    return module is not None and isinstance(what, module.Attention)


def only_products(**options: Any) -> None:
    """TypeError for an option of products that was given for an attention."""
    for name, value in options.items():
        if value not in (None, False):
            raise TypeError(f"{name} is for products, and must be left out for attention")


def plan(what: Any, target: Any = None, attention: bool | None = False) -> Any:
    """A plan, from a plan or from the text that `str(plan)` wrote; None is None, no choice of the caller's.

    target      whose plan it has to be, if that is known
    attention   whether it has to be a plan of attention, or else of products; None: of either

    TypeError for what is neither, ValueError for a text that is no plan, or a plan of another family than the target's.
    """
    if what is None:
        return None
    parsed = _parsed(what) if isinstance(what, str) else what
    family = next((f for f in _FAMILIES if f.has(parsed)), None)
    if family is None:
        raise TypeError(f"plan must be a plan or the text of one, not {type(what).__name__} {what!r}")
    kind = family.attention if attention is None else attention
    if family.attention != kind:
        like = ", ".join(repr(f.plan.EXAMPLE) for f in _FAMILIES if f.attention == kind)
        raise ValueError(f"plan {parsed} is for {'attention' if family.attention else 'products'}, and plans for "
                         f"{'attention' if kind else 'products'} look like {like}")
    if target is not None and not isinstance(target, family.target):
        theirs, wanted = ([f.plan for f in _FAMILIES if isinstance(target, f.target) and f.attention == x]
                          for x in (False, kind))
        raise ValueError(f"plan {parsed} is for {family.plan.FAMILY}, and {target.name} is {theirs[0].FAMILY}, " + (
            f"whose plans look like {wanted[0].EXAMPLE!r}" if wanted else "which has no kernels of attention"))
    return parsed


def runs(found: Any, shape: Any, target: Any) -> Any:
    """The plan, or a ValueError with every reason if it cannot run this shape."""
    if reasons := found.violations(shape, target):
        raise ValueError(f"plan {found} cannot run {shape} on {target.name}: {' '.join(reasons)}")
    return found


def algorithm(name: Any, plan: Any = None, target: Any = None) -> None:
    """ValueError for an `algorithm=` that the target (None: a CPU) has not, or beside a plan."""
    if name is None:
        return
    if isinstance(target, AmdTarget):
        raise ValueError(f"algorithm= is not supported on {target.name}: it must be None, not {name!r}")
    known = *algorithms(target), lowering.FASTEST
    if name not in known:
        where = "" if target is None else f" on {target.name}"
        raise ValueError(f"algorithm must be None or one of {', '.join(known)}{where}, not {name!r}")
    if plan is not None:
        raise ValueError(f"algorithm={name!r} has plans of its own: plan must be None with it, not {plan}")


def algorithms(target: Any = None) -> dict[str, str]:
    """What `algorithm=` may be on a target (None: a CPU) → the format of the operands that it splits."""
    if isinstance(target, GpuTarget):
        from tilewright.plans.gpu_lowering import ALGORITHMS, operands
        return {name: operands(name) for name in ALGORITHMS}
    return {name: split for name, (split, _) in lowering.ALGORITHMS.items()}


def is_for(found: Any, kind: type) -> bool:
    """Whether it is a plan for targets of this kind; no module is imported for the answer."""
    return any(f.target is kind and f.has(found) for f in _FAMILIES)


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    word = (text.split() or [""])[0]
    for family in _FAMILIES:
        if word in family.algorithms:
            return family.plan.parse(text)
    raise ValueError(f"not a plan: {text!r}; one looks like "
                     + ", ".join(f"{f.plan.EXAMPLE!r} ({f.plan.FAMILY})" for f in _FAMILIES if not f.attention))
