"""Prologues of operands in a GPU's memory: kernels evaluate them (`inside`, `placed`), or a pass leaves what is
multiplied in a temporary (kernels/gpu/prepare.py), whichever the planner expects to be faster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.expressions import HALVES
from tilewright.expressions.numerics import Numerics
from tilewright.plans import asked, gpu, gpu_lowering, gpu_shape
from tilewright.plans import prologues as of_plans
from tilewright.plans.gpu_formats import READ
from tilewright.rules import arguments
from tilewright.rules.prologues import AXIS, Prepared
from tilewright.runtime.gpu import auxiliary
from tilewright.runtime.gpu.operands import address, format_of, letter
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.rules.call import Product
    from tilewright.runtime.gpu.product import Run

Array = NDArray[Any]
WIDEST = 16
PREPARE = "tilewright.kernels.gpu.prepare:emit_prepare"


def inside(run: Run, p: Product, before: Mapping[str, Prepared]) -> str:
    """Which prologues of the product's operands kernels evaluate: those of matrices, of all rows of A if it is a stack
    of them. "", "a", "b" or "ab"."""
    target, letters = run.on.target, letter(p.a) + letter(p.b)
    if not before or not isinstance(target, GpuTarget) or len(letters) < 2 or p.b.ndim > 2 or p.semiring or (
            run.invariant):                                     # which plans of one order of sums have after a pass
        return ""
    if p.a.ndim > 2 and any(any(x.strides[:-1]) for x in (before["a"].arrays if "a" in before else ())):
        return ""
    if any(x.ndim > 2 and any(x.strides[:-2]) for each in before.values() for x in each.arrays):
        return ""
    results = [before[role].prologue.result if role in before else format_of(x.dtype)
               for role, x in zip("ab", (p.a, p.b))]
    pair = gpu_lowering.pair_for(*results, format_of(p.sums), target)
    if pair is None:
        return ""
    of_a, of_b = (of_plans.into(before[role].prologue.text, into) if role in before else ""
                  for role, into in zip("ab", pair))
    rows = (x if by == "n" else x.swapaxes(-1, -2) for x, by in zip((p.a, p.b), letters))
    at = [(address(x), x.strides[-2] if x.shape[-2] > 1 else 0) for x in rows]
    m, n = math.prod(p.a.shape[:-1]), p.b.shape[-1]
    out = gpu_shape.results(format_of(p.sums), "")[0]
    shape = gpu_shape.shape(*pair, out, m, n, p.a.shape[-1], letters, [*at, (0, n * p.sums.itemsize)],
                            numerics=Numerics(prologue_a=of_a, prologue_b=of_b))
    if run.plan is None:
        return str(gpu.planner(target).inside(shape, target))
    plan = asked.plan(run.plan, target)
    for roles in dict.fromkeys((shape.prologues, *shape.prologues)):
        left = shape.with_numerics(prologue_a=of_a*("a" in roles), prologue_b=of_b*("b" in roles))
        if not plan.violations(left.least, target):
            return roles
    return ""


def placed(run: Run, before: Mapping[str, Prepared], taken: Mapping[str, np.dtype[Any]], a: Array, b: Array,
           host: frozenset[str]) -> tuple[dict[str, str], list[Array]]:
    """The prologues that a kernel evaluates, which multiplies in the formats `taken`: their texts by prologue_a and
    prologue_b, and what they read as kernels take it. `host`: the names of arrays that are NumPy's."""
    texts, beside = dict[str, str](), list[Array]()
    for role, each in sorted(before.items()):
        texts[f"prologue_{role}"] = of_plans.into(each.prologue.text, format_of(taken[role]))
        along_k = letter({"a": a, "b": b}[role]) == ("n" if role == "a" else "t")
        for read, x in zip(each.prologue.arrays(role), each.arrays, strict=True):
            own = auxiliary.on_device(run, x[(0,) * (x.ndim - 2)], read.name, host)
            ready = auxiliary.readable(own, role, read.across_k and not along_k)
            beside.append(own if ready else run.copied(own, own.dtype))
    return texts, beside


def prepared(run: Run, x: Array, role: str, prologue: Prepared, host: frozenset[str]) -> Array:
    """What the prologue makes of operand x [..., rows, columns]. `host`: the names of arrays that are NumPy's."""
    found, arrays = prologue.prologue, []
    if found.element not in READ:
        raise TypeError(f"{role} is {x.dtype}: on GPUs operands with a prologue are of {', '.join(sorted(READ))}")
    if found.kind == "int":
        raise TypeError(f"prologue_{role} gives integers, which GPUs do not multiply in {found.result}: float products "
                        "of them are exact up to 2^24")
    for each, y in zip(found.reads, prologue.arrays, strict=True):
        own = auxiliary.on_device(run, y, each.name, host)
        if format_of(own.dtype) not in READ:
            raise TypeError(f"operands[{each.name!r}] is {y.dtype}: on GPUs it must be of "
                            f"{', '.join(sorted(READ))}")
        arrays.append(np.broadcast_to(own, y.shape))
    lead = x.shape[:-2]
    for y in arrays:
        lead = np.broadcast_shapes(lead, y.shape[:-2])
    target = run.temporary((*lead, *x.shape[-2:]), formats.FORMATS[found.result].dtype)
    if letter(x) == "t":
        target = run.temporary((*lead, *x.shape[:-3:-1]), target.dtype).swapaxes(-1, -2)
    x, *arrays = (np.broadcast_to(y, (*lead, *y.shape[-2:])) for y in (x, *arrays))
    for index in np.ndindex(lead):
        _matrix(run, x[index], AXIS[role], found, [y[index] for y in arrays], target[index])
    return target


def _matrix(run: Run, x: Array, axis: int, prologue: Any, arrays: list[Array], target: Array) -> None:
    if 0 in x.shape:
        return
    if prologue.source.endswith(HALVES):                        # lanes go along two numbers of a byte,
        by_columns = letter(x) == "t"
    else:                                                       # or the smaller stride
        by_columns = abs(target.strides[0]) < abs(target.strides[1])
    if by_columns:
        x, target, arrays, axis = x.T, target.T, [y.T for y in arrays], -3 - axis
    rows, columns = x.shape
    vector = _vector(x, target, columns)
    read, values = [], dict[str, Any]()
    for at, (each, y) in enumerate(zip(prologue.reads, arrays, strict=True)):
        row, column = (0 if extent == 1 else stride // y.itemsize for extent, stride in zip(y.shape, y.strides))
        most = min(vector, WIDEST // y.itemsize) * y.itemsize
        side = column == 1 and vector > 1 and not (address(y) % most or row * y.itemsize % most)
        read.append(f"{format_of(y.dtype)}:{'0' if not row else 'n'}{'0' if not column else 'v' if side else 'n'}:"
                    f"{each.group}")
        values |= {f"x{at}": y, f"rows_x{at}": row, f"columns_x{at}": column}
    steps = "columns" if axis == -1 else "rows"
    function = run.kernel(PREPARE, SOURCE=prologue.source, EXPRESSION=prologue.expression.text, READ=tuple(read),
                          RESULT=prologue.result, STEPS=steps, VECTOR=vector,
                          PAIRS="bf16" in run.on.target.instructions)
    (rss, css), (rst, cst) = ([s // m.itemsize for s in m.strides] for m in (x, target))
    values |= {"rows": rows, "columns": columns, "source": x, "rss": rss, "css": css, "target": target,
               "rst": rst, "cst": cst}
    wide, tall = function.threads
    run.launch(function, (-(-columns // (wide * vector)), min(-(-rows // tall), 65535)), values)


def _vector(x: Array, target: Array, columns: int) -> int:
    """Columns that are read and written at once."""
    if not arguments.ready(x, x.dtype) and address(x) % x.itemsize:
        raise ValueError(f"an operand with a prologue is not aligned to its elements: its address is {address(x):#x}")
    if x.strides[1] != x.itemsize and columns > 1:
        return 1
    vector = WIDEST // max(x.itemsize, target.itemsize)
    while vector > 1 and (columns % vector or any(
            at % (vector * y.itemsize) for y in (x, target) for at in (address(y), y.strides[0]))):
        vector //= 2
    return vector
