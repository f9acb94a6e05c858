"""Panels of packed plans: the blocks that they form, and the functions that pack them."""
from __future__ import annotations

from typing import NamedTuple

from tilewright.kernels.cpu import jobs
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import Shape, Strides, order
from tilewright.plans.words import TILE_WORDS
from tilewright.runtime.cpu.host import Host
from tilewright.targets.cpu import CpuTarget

_ALONG = {"rows": "along", "columns": "across", "any": "any"}


class Blocks(NamedTuple):
    """Blocks of a packed plan: panels of A and of B in one, its rows of k, and the elements that a panel takes."""
    mc_panels: int
    nc_panels: int
    kc: int
    space: dict[str, int]


def blocks(shape: Shape, plan: CpuPlan) -> Blocks:
    """The plan's, as far as there is something in them."""
    rows = TILE_WORDS[shape.dtype].rows if shape.tiles else 4
    kc = min(-(-plan.kc // rows), -(-shape.k // rows)) * rows
    panels_m, panels_n = -(-shape.m // plan.mr), -(-shape.n // plan.nr)
    first = plan.nr if shape.words else 0                                   # the row before a panel of words
    space = {"a": jobs.panel_space(kc, plan.mr), "b": jobs.panel_space(kc, plan.nr) + first}
    return Blocks(min(-(-plan.mc // plan.mr), panels_m), min(-(-plan.nc // plan.nr), panels_n), kc, space)


def packing(role: str, host: Host, target: CpuTarget, shape: Shape, strides: Strides, plan: CpuPlan, conj: str,
            prepare: jobs.Prepare | None = None) -> int:
    """Address of the function that packs A, "a", with its rows as lines, or B, "b", with its columns."""
    pair = 2 if shape.complex else 1                                        # reals from one number to the next
    across, along = (strides.rsa, strides.csa) if role == "a" else (strides.csb, strides.rsb)
    kind = _ALONG[order(across // pair, along // pair)]
    return host.packing(target, shape, plan.mr if role == "a" else plan.nr, kind, role, conj, prepare)
