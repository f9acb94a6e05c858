"""What plans for GPUs of all makers share, and the choice of one."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from math import ceil
from typing import TYPE_CHECKING, Any

from tilewright.formats.table import BLOCK_FORMATS
from tilewright.plans import common, epilogues, invariant, prologues
from tilewright.plans.common import Cost, Term
from tilewright.plans.gpu_shape import GpuShape, bits_of, shape as contiguous
from tilewright.problem import SCALE_BLOCK, SCALE_BLOCKS
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.plans.passes import Pass

# Parts of k: each has sums of its own in a workspace, and one workgroup adds them all up. Tiles of C in a group are
# numbers of 32 bits in kernels.
MOST = {"split_k": 256, "group_m": 1 << 16}


class GpuPlan(common.Plan):
    """What plans for GPUs of all makers have."""
    cta_m: int      # rows and columns of C that a workgroup computes
    cta_n: int

    @property
    def order_of_sums(self) -> tuple[object, ...]:
        """Plans that have the same add up the products of an element in the same order, whatever its place is; () where
        tiles are divided along k, some of them perhaps, or k is spread over threads."""
        raise NotImplementedError

    def passes(self, shape: GpuShape) -> tuple[Pass, ...]:
        """What is done with operands before the product."""
        return ()

    def after_passes(self, shape: GpuShape) -> GpuShape:
        """What the kernel multiplies, once that is done."""
        return shape

    def tiles(self, m: int, n: int, batch: int = 1) -> int:
        """Tiles of C, or of all matrices of a batch."""
        return ceil(m / self.cta_m) * ceil(n / self.cta_n) * batch


# ---- what a plan costs

def cost(shape: GpuShape, plan: Any, target: Any) -> Cost:
    """The predicted cost of a legal plan, with its traffic, which the choice needs not."""
    by = planner(target)
    return replace(by.cost(shape, plan, target), traffic=by.traffic(shape, plan, target))


def memory_traffic(shape: GpuShape, parts: int, size: int) -> tuple[Term, ...]:
    """What crosses the memory's interface once, and `parts` sums of `size` bytes, written and read."""
    s, (a, b) = shape, shape.bits
    once: tuple[Term, ...] = (
        Term("A", s.m*s.k*a // 8, s.batch, "once"), Term("B", s.n*s.k*b // 8, s.batch, "once"),
        Term("C", s.m*s.n*bits_of(s.out) // 8 // epilogues.sums_of_result(s.epilogue), s.batch, "written"))
    if extra := epilogues.bytes_moved(s):
        once = *once, Term("epilogue", extra, 1, "operands and further results, once")
    if extra := prologues.bytes_moved(s):
        once = *once, Term("prologues", extra, 1, "what they read beside the operands, once")
    if extra := scale_bytes(s):
        once = *once, Term("scales", extra, s.batch, "once")
    return (*once, Term("parts", size, 2*parts, f"{parts} written, and read by the last")) if parts > 1 else once


def with_passes(plan: GpuPlan, shape: GpuShape, found: dict[str, tuple[Term, ...]]) -> dict[str, tuple[Term, ...]]:
    """The traffic of a product, and of the passes before it."""
    for one in plan.passes(shape):
        name = one.operand.upper()
        found["memory"] += (Term(f"{name} read", one.read, 1, "by a pass"),
                            Term(f"{name} written", one.size, 1, "by a pass"))
        if not one.blocks:
            found["shared"] += (Term(f"{name} in a pass", one.side_bytes, 2, "written and read"),)
    return found


def scale_bytes(s: GpuShape) -> int:
    """Bytes of a product's scales: of blocks of its operands, and of scales by which sums are multiplied."""
    if s.scaled:
        kinds = [BLOCK_FORMATS[name] for name in s.scaled.split()]
        return sum(rows * ceil(s.k / x.block) * x.scale.bits // 8 for rows, x in zip((s.m, s.n), kinds))
    if not s.scales:
        return 0
    blocks = ceil(s.k / SCALE_BLOCK) if s.scales in SCALE_BLOCKS else 1
    columns = ceil(s.n / SCALE_BLOCKS.get(s.scales, 1))
    return (s.m + columns) * blocks * (8 if s.sums == "f64" else 4)


# ---- the choice

def planner(target: Any) -> Any:
    """The module that plans for this target: with multiplied, shape_of, candidates, cost, traffic and peak."""
    return import_module(f"tilewright.plans.{'nvidia' if isinstance(target, GpuTarget) else 'amd'}")


def ranked(shape: GpuShape, target: Any) -> list[Any]:
    """All legal candidates, the one with the least predicted time first. ValueError if there is none, with the
    reasons."""
    by, shape = planner(target), shape.least
    return common.ranked(shape, target, _candidates(shape, target), lambda p: by.cost(shape, p, target).seconds)


@lru_cache(maxsize=4096)
def choose(shape: GpuShape, target: Any) -> Any:
    """The plan that the model expects to be fastest."""
    by, shape = planner(target), shape.least
    return common.best(shape, target, _candidates(shape, target), by.cost)


def _candidates(shape: GpuShape, target: Any) -> Iterator[Any]:
    """The planner's candidates; where rows may not change an element's bits, those with the order of sums of a plan for
    many."""
    plans: Iterator[Any] = planner(target).candidates(shape, target)
    return invariant.gpu_plans(shape, target, plans, for_many_rows) if shape.invariant in invariant.ROWS else plans


@lru_cache(maxsize=4096)
def for_many_rows(shape: GpuShape, target: Any) -> Any:
    """The plan that decides the order of sums for all numbers of rows, wherever operands lie."""
    by, s = planner(target), shape
    m, n = invariant.sizes(s.m, s.n, s.invariant)
    layout = "n" + s.layout[1] if s.invariant == "rows" else s.layout[0] + "t"      # of a's rows, whatever theirs is
    many = contiguous(s.a, s.b, s.out, m, n, s.k, layout, None, 1, s.scaled, s.scales,
                      s.numerics._replace(prologue_a="", prologue_b=""))._replace(terms=s.terms)
    plans = (plan for plan in by.candidates(many, target) if plan.order_of_sums)
    return common.best(many, target, plans, by.cost)
