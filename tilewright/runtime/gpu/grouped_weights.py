"""Weights of few bits, [groups, k, n], in a GPU's memory as the right operand of groups: a pass decodes them all before
the launch (kernels/gpu/prepare.py), as one matrix where their groups of k allow it.

Which groups have rows only the device knows, so that nothing can be left out.
"""
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Decodable
from tilewright.rules import shapes
from tilewright.rules.prologues import Prepared
from tilewright.runtime.gpu import prologues

if TYPE_CHECKING:
    from tilewright.runtime.gpu.product import Run

Array = NDArray[Any]
PARTS = "elements", "scales", "zeros"


def arrays(b: Any) -> dict[str, Any]:
    """Of the operand, by the names of messages."""
    if not isinstance(b, Decodable):
        return {"b": b}
    if isinstance(b, Quantized) and b.format.element.bits == 6:
        raise TypeError(f"b is {b.format}: on GPUs elements of 6 bits are not multiplied in groups; dequantize it")
    return {"b" if part == "elements" else f"b.{part}": x for part in PARTS
            if (x := getattr(b, part, None)) is not None}


def of_shadows(b: Any, looks: Any) -> Any:
    """The same record with shadows for arrays: rules read dtypes, shapes and strides."""
    found: Any = {part: looks[name].shadow for part in PARTS
                  if (name := "b" if part == "elements" else f"b.{part}") in looks}
    return replace(b, **found)


def decoded(run: Run, x: Array, prologue: Prepared) -> Array:
    """What the prologue makes of x [groups, k, n], contiguous along the axis along which x is."""
    by_k = x.strides[-2] == x.itemsize and x.shape[-2] > 1
    found = _along_k(run, x, prologue) if by_k else _across(run, x, prologue)
    return prologues.prepared(run, x, "b", prologue, frozenset()) if found is None else found


def _along_k(run: Run, x: Array, prologue: Prepared) -> Array | None:
    """As the columns of one matrix [k, groups * n]."""
    groups, k, n = x.shape
    folded = [shapes.merged(y.swapaxes(1, 2), 0, 2) for y in (x, *prologue.arrays)]
    whole = [y.T for y in folded if y is not None]
    if len(whole) < len(folded):
        return None
    found = prologues.prepared(run, whole[0], "b", prologue._replace(arrays=tuple(whole[1:])), frozenset())
    return found.T.reshape(groups, n, k).swapaxes(1, 2)


def _across(run: Run, x: Array, prologue: Prepared) -> Array | None:
    """As the rows of one matrix [groups * k, n], of whole groups of steps of k; what all of k shares is a group."""
    groups, k, n = x.shape
    whole, beside = [shapes.merged(x, 0, 2)], []
    for each, y in zip(prologue.prologue.beside, prologue.arrays, strict=True):
        shared = y.strides[1] == 0 or y.shape[1] == 1
        group = k if shared else each.group
        if k % group:
            return None
        whole.append(shapes.merged(y[:, :1] if shared else y, 0, 2))
        beside.append(replace(each, group=group))
    folded = [y for y in whole if y is not None]
    if len(folded) < len(whole):
        return None
    made = replace(prologue.prologue, beside=tuple(beside))
    found = prologues.prepared(run, folded[0], "b", Prepared(made, tuple(folded[1:])), frozenset())
    return found.reshape(groups, k, n)
