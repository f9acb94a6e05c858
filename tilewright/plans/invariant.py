"""Reproducible products: what the bits of an element of C depend on, and plans that keep them.

Floating-point sums depend on the order in which their terms are added. In every plan that order is fixed, no matter
which thread is first; but another number of threads, or of rows, may be given another plan. A shape can ask for less:

    invariant = "threads"   the order of the plan for one thread, by any number of threads (deterministic=True)
    invariant = "rows"      the order of a plan for `MANY` rows, by any number of rows and threads
                            (batch_invariant=True); also where an operand lies, by rows or by columns, does not count
    invariant = "columns"   the same of C^T

`order_of_sums` names that order; `plans` are the candidates that have the one wanted, which a plan of the model decides
and never a measurement.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.plans import epilogues
from tilewright.plans.common import Cost, best

if TYPE_CHECKING:
    from tilewright.plans.cpu import CpuPlan
    from tilewright.plans.cpu_shape import Shape
    from tilewright.plans.gpu_shape import GpuShape
    from tilewright.targets.cpu import CpuTarget

OPTIONS = {"deterministic": "threads", "batch_invariant": "rows"}       # of matmul
MANY = 4096             # rows of the product whose plan has the order of sums of all numbers of rows
ROWS = "rows", "columns"


def asked(deterministic: bool, batch_invariant: bool) -> str:
    """The reproducibility that matmul's arguments ask for: what holds for any number of rows holds for any of
    threads."""
    return "rows" if batch_invariant else "threads" if deterministic else ""


def sizes(m: int, n: int, invariant: str) -> tuple[int, int]:
    """The rows and columns by which to decide in which formats operands are multiplied."""
    return MANY if invariant == "rows" and m else m, MANY if invariant == "columns" and n else n


def order_of_sums(plan: CpuPlan, shape: Shape) -> tuple[object, ...]:
    """Plans for products of one k and one format of operands that have the same give an element the same bits.

    The five loops and `in_place` add up the products of a block of k one by one and then these sums; `stream` and
    `dots` have orders of their own, and `in_place` of complex operands. Reductions of an epilogue add up what the
    columns, or rows, of a tile have.
    """
    if plan.algorithm == "dots":
        if plan.dot_tiles:
            return ("dot tiles", plan.kc)
        shape = shape.swapped if plan.swap else shape
        return (plan.algorithm, plan.sums(shape), plan.by_rows(shape))
    if plan.complex_in_place(shape):
        return (plan.algorithm, plan.mr, plan.nr)
    if plan.algorithm == "stream":
        return (plan.algorithm,)
    results = epilogues.read(shape.epilogue).expression.results if shape.epilogue else ()
    tile = (plan.mr, plan.nr, plan.swap) if any(result.reduced for result in results) else ()
    return ("blocks", plan.depth(shape), *tile)


def plans(shape: Shape, target: CpuTarget,
          candidates: Callable[[Shape, CpuTarget], Iterator[CpuPlan]],
          cost: Callable[[Shape, CpuPlan, CpuTarget], Cost]) -> Iterator[CpuPlan]:
    """The candidates that have the order of sums that the shape asks for."""
    wanted = _first(shape, target, candidates, cost)
    order, depth = order_of_sums(wanted, shape), wanted.depth(shape)
    yield replace(wanted, jc_ways=1, ic_ways=1, jr_ways=1)
    for plan in candidates(shape, target):
        if plan.algorithm == "in_place" and order[0] == "blocks":
            plan = replace(plan, kc=depth if depth < shape.k else 0)
        if order_of_sums(plan, shape) == order:
            yield plan


def _first(shape: Shape, target: CpuTarget, candidates: Callable[[Shape, CpuTarget], Iterator[CpuPlan]],
           cost: Callable[[Shape, CpuPlan, CpuTarget], Cost]) -> CpuPlan:
    """The plan whose order of sums counts: of one thread; for many rows a packed one, which any operands can have."""
    any_rows = shape.invariant != "threads"
    m, n = sizes(shape.m, shape.n, shape.invariant)
    alone = shape._replace(m=m, n=n, threads=1)
    if any_rows and not shape.scattered:
        alone = alone._replace(a="rows", b="rows")
    usable = (plan for plan in candidates(alone, target) if plan.algorithm == "packed" or not any_rows)
    return best(alone, target, usable, cost)


def gpu_plans(shape: GpuShape, target: Any, candidates: Iterable[Any], for_many_rows: Callable[[GpuShape, Any], Any]
              ) -> Iterator[Any]:
    """The candidates that have the order of sums of the plan for many rows."""
    one = shape._replace(m=1) if shape.invariant == "rows" else shape._replace(n=1)
    order = for_many_rows(one, target).order_of_sums
    return (plan for plan in candidates if plan.order_of_sums == order)
