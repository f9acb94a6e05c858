"""Weights of few bits, [groups, k, n], in a GPU's memory as the right operand of groups: the kernel decodes them on its
copies (`inside`), or a pass all of them before the launch (kernels/gpu/prepare.py), as one matrix where their groups of
k allow it.

Which groups have rows only the device knows, so that nothing can be left out.
"""
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tilewright import forks
from tilewright.expressions.numerics import Numerics
from tilewright.formats.scaled import Scaled
from tilewright.plans import gpu_lowering, gpu_shape
from tilewright.plans import prologues as of_plans
from tilewright.rules import shapes
from tilewright.rules.grouping import Axes
from tilewright.rules.prologues import Prepared
from tilewright.runtime.gpu import auxiliary, prologues, weights
from tilewright.runtime.gpu.operands import address, format_of, letter
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.runtime.gpu.product import Run

Array = NDArray[Any]
WIDEST = 16             # bytes of an access
PARTS = "elements", "scales", "zeros"


def of_shadows(run: Run, b: Any, looks: Any) -> Any:
    """The record with shadows for arrays: rules read dtypes, shapes and strides."""
    found: Any = {part: looks[name].shadow for part in PARTS
                  if (name := "b" if part == "elements" else f"b.{part}") in looks}
    if isinstance(b, Scaled) and b.nibbles and found["elements"].shape[b.nibbles.axis] == 1:
        found["elements"] = weights.spread(run, found["elements"], b.nibbles.axis)
    return replace(b, **found)


def decoded(run: Run, x: Array, prologue: Prepared) -> Array:
    """What the prologue makes of x [groups, k, n], contiguous along the axis along which x is."""
    found = _along_k(run, x, prologue) if letter(x) == "t" else _across(run, x, prologue)
    return prologues.prepared(run, x, "b", prologue, frozenset()) if found is None else found


def inside(run: Run, of: Axes, a: Array, x: Array, prologue: Prepared, sums: str) -> tuple[str, list[Array]] | None:
    """The prologue's text for a kernel that decodes x [groups, k, n] on its copies, and what it reads, with an axis of
    groups; None if a pass before the launch is expected to be faster, or kernels cannot read what there is."""
    target, letters = run.on.target, letter(a) + letter(x)
    if not isinstance(target, GpuTarget) or len(letters) < 2 or run.invariant or run.plan or letters[0] == "t":
        return None
    pair = gpu_lowering.pair_for(format_of(a.dtype), prologue.prologue.result, sums, target)
    if pair is None or pair[0] != format_of(a.dtype):
        return None
    text = of_plans.into(prologue.prologue.text, pair[1])
    by_k = letters[1] == "t"
    beside = [y[(slice(None), *(slice(None) if stride else slice(0, 1) for stride in y.strides[1:]))]
              for y in prologue.arrays]
    if not all(auxiliary.readable(y[0], "b", not by_k and read.by_column) and (by_k or not y.strides[0] % WIDEST)
               for read, y in zip(prologue.prologue.reads, beside)):
        return None
    m, n = max(-(-of.m // of.groups), 1), of.n
    rows = x if letters[1] == "n" else x.swapaxes(1, 2)
    at = [(address(a), a.strides[0] if of.m > 1 else 0, 0), (address(x), rows.strides[1], x.strides[0]), (0, 4*n, 0)]
    shape = gpu_shape.shape(*pair, gpu_shape.results(sums, "")[0], m, n, of.k, letters, at, of.groups,
                            numerics=Numerics(prologue_b=text))
    compiler = forks.imported("tilewright.compiled.grouped")
    return (text, beside) if compiler.decodes_inside(shape, target) else None


def _along_k(run: Run, x: Array, prologue: Prepared) -> Array | None:
    """The matrices as the columns of one [k, groups * n]."""
    groups, k, n = x.shape
    folded = [shapes.merged(y.swapaxes(1, 2), 0, 2) for y in (x, *prologue.arrays)]
    whole = [y.T for y in folded if y is not None]
    if len(whole) < len(folded):
        return None
    found = prologues.prepared(run, whole[0], "b", prologue._replace(arrays=tuple(whole[1:])), frozenset())
    return found.T.reshape(groups, n, k).swapaxes(1, 2)


def _across(run: Run, x: Array, prologue: Prepared) -> Array | None:
    """The matrices as the rows of one [groups * k, n], of whole groups of steps of k; what all of k shares is a
    group."""
    groups, k, n = x.shape
    whole, beside = [shapes.merged(x, 0, 2)], []
    for each, y in zip(prologue.prologue.reads, prologue.arrays, strict=True):
        shared = y.strides[1] == 0 or y.shape[1] == 1
        group = k if shared else each.group
        if k % group:
            return None
        whole.append(shapes.merged(y[:, :1] if shared else y, 0, 2))
        beside.append(replace(each, group=group))
    folded = [y for y in whole if y is not None]
    if len(folded) < len(whole):
        return None
    made = replace(prologue.prologue, reads=tuple(beside))
    found = prologues.prepared(run, folded[0], "b", Prepared(made, tuple(folded[1:])), frozenset())
    return found.reshape(groups, k, n)
