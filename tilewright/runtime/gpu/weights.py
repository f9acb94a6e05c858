"""Weights of few bits in a GPU's memory, beside an operand of floats: elements as they are stored and a prologue that
makes numbers of them, which kernels evaluate in registers (kernels/gpu/transform.py).

    Scaled      groups, zero points, two elements to a byte: (b - zero) * scale
    Quantized   MX and NV formats: b * scale, of blocks of 32 or 16 along k
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.expressions import HALVES
from tilewright.expressions.function import Aux, checked_prologue
from tilewright.expressions.numerics import Numerics
from tilewright.formats.scaled import Decodable, Scaled
from tilewright.plans import gpu, gpu_lowering, gpu_shape
from tilewright.plans.gpu_shape import WIDEST
from tilewright.rules import prologues
from tilewright.rules.weights import NAMES, expression
from tilewright.runtime.gpu.arrays import CUDA, Look, shadow
from tilewright.runtime.gpu.operands import address, format_of, letter

if TYPE_CHECKING:
    from tilewright.rules.call import Call
    from tilewright.runtime.gpu.blocks import Blocked
    from tilewright.runtime.gpu.product import Run

Array = NDArray[Any]
FLOATS = "f32", "bf16", "f16"           # formats of the operand beside a Scaled
WIDE = "f32", "bf16"                    # and beside a Quantized, which have the range of its scales
PARTS = "elements", "scales", "zeros"


def present(call: Call) -> bool:
    """Has an operand what a prologue makes numbers of?"""
    return any(isinstance(x, Scaled) for x in (call.a, call.b))


def of_scaled(run: Run, call: Call, looks: dict[str, Look]) -> Call:
    """The call with prologues in place of Scaled operands, whose elements and numbers beside them `looks` then has.
    TypeError and ValueError for what cannot be combined."""
    for role in "ab":
        q: Any = getattr(call, role)
        if not isinstance(q, Scaled):
            continue
        other = getattr(call, "b" if role == "a" else "a")
        kind = "" if isinstance(other, Decodable) else format_of(looks["b" if role == "a" else "a"].shadow.dtype)
        if kind not in FLOATS:
            raise TypeError(f"{role} is {q!r}, which is multiplied on GPUs by operands of {', '.join(FLOATS)}, not of "
                            f"{kind or other}")
        if getattr(call, f"scale_{role}") is not None or getattr(call, f"prologue_{role}") is not None:
            raise ValueError(f"{role} is a Scaled, which has its own scales: scale_{role} and prologue_{role} must be "
                             "None with it")
        x, scales, zeros = (looks.get(role if part == "elements" else f"{role}.{part}") for part in PARTS)
        assert x is not None
        assert scales is not None
        held, length = x.shadow, q.shape
        if q.nibbles:
            if held.strides[q.nibbles.axis] != 1 and held.shape[q.nibbles.axis] > 1:
                raise ValueError(f"{role} has two elements to a byte along axis {q.nibbles.axis}, which must be "
                                 f"contiguous, but its strides are {held.strides} bytes")
            if held.shape[q.nibbles.axis] == 1:
                held = spread(run, held, q.nibbles.axis)
            held = shadow(address(held), length, held.strides, q.format.dtype, held)
        shadows = [held, scales.shadow, *([] if zeros is None else [zeros.shadow])]
        axis = q.axis
        if getattr(call, f"trans_{role}") not in ("n", False):
            shadows = [each.swapaxes(-1, -2) for each in shadows]
            axis = {-1: -2, -2: -1, None: None}[axis]
        if axis not in (None, prologues.AXIS[role]):
            raise ValueError(f"the groups of {role} must be along k, axis {prologues.AXIS[role]} as it is multiplied, "
                             f"but they are along axis {axis}: quantize(x, ..., axis={axis}), or trans_{role}")
        group = q.group or 1
        if axis is None:                # one scale for all along k: a group, whose sums are multiplied by it
            k, group = prologues.AXIS[role], max(shadows[0].shape[prologues.AXIS[role]], 1)
            if any(each.shape[k] != 1 for each in shadows[1:]):
                raise ValueError(f"{role} is {q!r}, with a scale for each step of k: its scales must be those of "
                                 f"{'rows' if role == 'a' else 'columns'} to be multiplied on GPUs")
            across = -3 - k
            shadows[1:] = [np.broadcast_to(each, [1 if i == k + each.ndim else n for i, n in enumerate(
                shadows[0].shape)]) if each.shape[across] == 1 else each for each in shadows[1:]]
        source = q.format.name + HALVES*bool(q.nibbles)
        call = _with(call, looks, role, source, kind, group, [*zip(NAMES, shadows[1:])], shadows[0], x.keep)
    return call


def spread(run: Run, elements: Array, axis: int) -> Array:
    """A copy of bytes with two numbers each, of which there is one along the axis: 16 bytes apart, so that strides say
    along which axis the two are."""
    rows = elements.swapaxes(axis, -1)
    there = run.temporary((*rows.shape[:-1], WIDEST), rows.dtype)[..., :1]
    run.copy(rows, there)
    return there.swapaxes(axis, -1)


def of_blocks(run: Run, call: Call, looks: dict[str, Look], blocked: dict[str, Blocked]) -> Call:
    """The call with the one operand in a block-scaled format read by the kernel, if the planner expects that to be
    faster than decoding it by a pass; else the call as it is."""
    (role, x), = blocked.items()
    other = looks["b" if role == "a" else "a"].shadow
    kind = format_of(other.dtype)
    other_ways = call.prologue_a, call.prologue_b, call.semiring, call.scale_a, call.scale_b
    if kind not in WIDE or any(each is not None for each in other_ways) or other.ndim < 2 or x.elements.ndim != 2 or (
            run.engine.platform is not CUDA or run.invariant):
        return call
    element, scale = x.format.element, x.format.scale
    source = element.name + HALVES*(element.bits == 4)
    if element.bits not in (4, 8) or (element.bits == 4 and x.depth % 2):
        return call
    rows = x.elements.shape[0]
    held = shadow(address(x.elements), (rows, x.depth), x.elements.strides, element.dtype, x.elements)
    made, scales = held, x.scales.view(scale.dtype)
    if role == "b":
        made, scales = held.swapaxes(0, 1), scales.swapaxes(0, 1)
    there = dict(looks)
    found = _with(call, there, role, source, kind, x.format.block, [("scales", scales)], made, looks[role].keep)
    # as of k and n, with the other operand's order
    m = int(np.prod(other.shape[:-1])) if role == "b" else other.shape[-1]
    text = getattr(found, f"prologue_{role}").text
    letters = letter(other) + letter(made) if role == "b" else letter(made) + letter(other)
    pair = gpu_lowering.pair_for(kind, kind, "f32", run.on.target)
    if role == "a" or len(letters) < 2 or pair != (kind, kind):
        return call
    at = [(address(other), other.strides[-2] if letters[0] == "n" else other.strides[-1]),
          (address(x.elements), x.elements.strides[0]), (0, 4*rows)]
    shape = gpu_shape.shape(kind, kind, "f32", m, rows, x.depth, letters, at, numerics=Numerics(prologue_b=text))
    if not gpu.planner(run.on.target).inside(shape, run.on.target):
        return call
    looks.update(there)
    blocked.clear()
    return found


def _with(call: Call, looks: dict[str, Look], role: str, source: str, kind: str, group: int,
          beside: list[tuple[str, Array]], elements: Array, keep: Any) -> Call:
    """The call with a prologue of `elements` of the format `source`, which are multiplied in the format `kind`."""
    names = [NAMES[part].format(role) for part, _ in beside]
    e = expression(source.removesuffix(HALVES), role, "int" if len(beside) > 1 else "")
    read = tuple(Aux(name, format_of(x.dtype), "full", group) for name, (_, x) in zip(names, beside))
    made = checked_prologue(e, read, source, kind, f"prologue_{role}")
    looks[role] = Look(elements, keep)
    for name, (_, x) in zip(names, beside):
        looks[f"operands[{name!r}]"] = Look(x, keep)
    now: Any = {f"prologue_{role}": made, f"trans_{role}": "n", f"scale_{role}": None,
                "operands": {**(call.operands or {}), **dict.fromkeys(names)}}
    return call._replace(**now)
