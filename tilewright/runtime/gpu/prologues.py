"""Prologues of operands in a GPU's memory: kernels evaluate them (`inside`, `placed`), or a pass leaves what is
multiplied in a temporary (kernels/gpu/copy.py), whichever the planner expects to be faster.

Weights of few bits beside an operand of floats have prologues, too, which make numbers of elements as they are stored:

    Scaled      groups, zero points, two elements to a byte: (b - zero) * scale, or b * scale + minimum
    Quantized   MX and NV formats: b * scale, of blocks of 32 or 16 along k
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.expressions import HALVES
from tilewright.expressions.function import Aux, checked_prologue
from tilewright.expressions.numerics import Numerics
from tilewright.formats.scaled import Decodable, Scaled
from tilewright.plans import asked, gpu, gpu_lowering, gpu_shape, prologues as of_plans
from tilewright.plans.gpu_formats import READ
from tilewright.plans.gpu_shape import WIDEST, bits_of
from tilewright.rules import arguments
from tilewright.rules.prologues import AXIS, Prepared
from tilewright.rules.weights import NAMES, expression
from tilewright.runtime.gpu import auxiliary
from tilewright.runtime.gpu.arrays import CUDA, Look, shadow
from tilewright.runtime.gpu.operands import address, format_of, letter
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.rules.call import Call, Product
    from tilewright.runtime.gpu.blocks import Blocked
    from tilewright.runtime.gpu.product import Run

Array = NDArray[Any]
PREPARE = "tilewright.kernels.gpu.copy:emit_prepare"
FLOATS = "f32", "bf16", "f16"           # formats of the operand beside a Scaled
WIDE = "f32", "bf16"                    # and beside a Quantized, which have the range of its scales
PARTS = "elements", *NAMES


def inside(run: Run, p: Product, before: Mapping[str, Prepared], result: np.dtype[Any]) -> str:
    """Which prologues of the product's operands kernels evaluate: those of matrices, of all rows of A if it is a stack
    of them. `result`: the dtype of the first result. "", "a", "b" or "ab"."""
    target, letters = run.on.target, letter(p.a) + letter(p.b)
    if not before or not isinstance(target, GpuTarget) or len(letters) < 2 or p.b.ndim > 2 or p.semiring or (
            run.invariant):                                     # which plans of one order of sums have after a pass
        return ""
    if p.a.ndim > 2 and any(any(x.strides[:-1]) for x in (before["a"].arrays if "a" in before else ())):
        return ""
    if any(x.ndim > 2 and any(x.strides[:-2]) for prologue in before.values() for x in prologue.arrays):
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
    out, others = format_of(result), gpu_shape.results(format_of(p.sums), "")
    out = out if out in others else others[0]
    shape = gpu_shape.shape(*pair, out, m, n, p.a.shape[-1], letters, [*at, (0, n * bits_of(out) // 8)],
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
    texts, arrays = dict[str, str](), list[Array]()
    for role, prologue in sorted(before.items()):
        texts[f"prologue_{role}"] = of_plans.into(prologue.prologue.text, format_of(taken[role]))
        along_k = letter({"a": a, "b": b}[role]) == ("n" if role == "a" else "t")
        for read, x in zip(prologue.prologue.arrays(role), prologue.arrays, strict=True):
            own = auxiliary.on_device(run, x[(0,) * (x.ndim - 2)], read.name, host)
            ready = auxiliary.readable(own, role, read.across_k and not along_k)
            arrays.append(own if ready else run.copied(own, own.dtype))
    return texts, arrays


def prepared(run: Run, x: Array, role: str, prologue: Prepared, host: frozenset[str]) -> Array:
    """What the prologue makes of operand x [..., rows, columns]. `host`: the names of arrays that are NumPy's."""
    made, arrays = prologue.prologue, []
    if made.element not in READ:
        raise TypeError(f"{role} is {x.dtype}: on GPUs operands with a prologue are of {', '.join(sorted(READ))}")
    if made.kind == "int":
        raise TypeError(f"prologue_{role} gives integers, which GPUs do not multiply in {made.result}: float products "
                        "of them are exact up to 2^24")
    for aux, y in zip(made.reads, prologue.arrays, strict=True):
        own = auxiliary.on_device(run, y, aux.name, host)
        if format_of(own.dtype) not in READ:
            raise TypeError(f"operands[{aux.name!r}] is {y.dtype}: on GPUs it must be of "
                            f"{', '.join(sorted(READ))}")
        arrays.append(np.broadcast_to(own, y.shape))
    lead = x.shape[:-2]
    for y in arrays:
        lead = np.broadcast_shapes(lead, y.shape[:-2])
    target = run.temporary((*lead, *x.shape[-2:]), formats.FORMATS[made.result].dtype)
    if letter(x) == "t":
        target = run.temporary((*lead, *x.shape[:-3:-1]), target.dtype).swapaxes(-1, -2)
    x, *arrays = (np.broadcast_to(y, (*lead, *y.shape[-2:])) for y in (x, *arrays))
    for index in np.ndindex(lead):
        _matrix(run, x[index], AXIS[role], made, [y[index] for y in arrays], target[index])
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
    for at, (aux, y) in enumerate(zip(prologue.reads, arrays, strict=True)):
        row, column = (0 if extent == 1 else stride // y.itemsize for extent, stride in zip(y.shape, y.strides))
        most = min(vector, WIDEST // y.itemsize) * y.itemsize
        side = column == 1 and vector > 1 and not (address(y) % most or row * y.itemsize % most)
        read.append(f"{format_of(y.dtype)}:{'0' if not row else 'n'}{'0' if not column else 'v' if side else 'n'}:"
                    f"{aux.group}")
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


# ---- weights of few bits


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
        x, parts = looks[role], [part for part in NAMES if f"{role}.{part}" in looks]
        held, length = x.shadow, q.shape
        if q.nibbles:
            held = halves(run, held, q.nibbles.axis)
            held = shadow(address(held), length, held.strides, q.format.dtype, held)
        shadows = [held, *(looks[f"{role}.{part}"].shadow for part in parts)]
        axis = q.axis
        if getattr(call, f"trans_{role}") not in ("n", False):
            shadows = [array.swapaxes(-1, -2) for array in shadows]
            axis = {-1: -2, -2: -1, None: None}[axis]
        if axis not in (None, AXIS[role]):
            raise ValueError(f"the groups of {role} must be along k, axis {AXIS[role]} as it is multiplied, "
                             f"but they are along axis {axis}: quantize(x, ..., axis={axis}), or trans_{role}")
        group = q.group or 1
        if axis is None:                # one scale for all along k
            k, group = AXIS[role], 0
            if any(array.shape[k] != 1 for array in shadows[1:]):
                raise ValueError(f"{role} is {q!r}, with a scale for each step of k: its scales must be those of "
                                 f"{'rows' if role == 'a' else 'columns'} to be multiplied on GPUs")
            across = -3 - k
            shadows[1:] = [np.broadcast_to(array, [1 if i == k + array.ndim else n for i, n in enumerate(
                shadows[0].shape)]) if array.shape[across] == 1 else array for array in shadows[1:]]
        source = q.format.name + HALVES*bool(q.nibbles)
        call = _with(call, looks, role, source, kind, group, [*zip(parts, shadows[1:])], shadows[0], x.keep)
    return call


def halves(run: Run, elements: Array, axis: int) -> Array:
    """Bytes with two numbers each along this axis, which alone is contiguous, or a copy: kernels take the numbers of a
    byte to lie along that. If there is one byte along the axis, the copy's are 16 bytes apart."""
    rows, count = elements.swapaxes(axis, -1), elements.shape[axis]
    if rows.strides[-1] == 1 < count and 1 not in rows.strides[:-1]:
        return elements
    there = run.temporary((*rows.shape[:-1], WIDEST if count == 1 else count), rows.dtype)[..., :count]
    run.copy(rows, there)
    return there.swapaxes(axis, -1)


def of_blocks(run: Run, call: Call, looks: dict[str, Look], blocked: dict[str, Blocked]) -> Call:
    """The call with the one operand in a block-scaled format read by the kernel, if the planner expects that to be
    faster than decoding it by a pass; else the call as it is."""
    (role, x), = blocked.items()
    other = looks["b" if role == "a" else "a"].shadow
    kind = format_of(other.dtype)
    other_ways = call.prologue_a, call.prologue_b, call.semiring, call.scale_a, call.scale_b
    if kind not in WIDE or any(way is not None for way in other_ways) or other.ndim < 2 or x.elements.ndim != 2 or (
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
    decoded = _with(call, there, role, source, kind, x.format.block, [("scales", scales)], made, looks[role].keep)
    # as of k and n, with the other operand's order
    m = int(np.prod(other.shape[:-1])) if role == "b" else other.shape[-1]
    text = getattr(decoded, f"prologue_{role}").text
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
    return decoded


def _with(call: Call, looks: dict[str, Look], role: str, source: str, kind: str, group: int,
          beside: list[tuple[str, Array]], elements: Array, keep: Any) -> Call:
    """The call with a prologue of `elements` of the format `source`, which are multiplied in the format `kind`.
    `group`: steps of k that share numbers of `beside`; 0: all."""
    place = "full" if group else "row" if role == "b" else "column"
    names = [NAMES[part].format(role) for part, _ in beside]
    parts = {part for part, _ in beside}
    e = expression(source.removesuffix(HALVES), role, "int" if "zeros" in parts else "", "minima" in parts)
    read = tuple(Aux(name, format_of(x.dtype), place, group or 1) for name, (_, x) in zip(names, beside))
    made = checked_prologue(e, read, source, kind, f"prologue_{role}")
    looks[role] = Look(elements, keep)
    for name, (_, x) in zip(names, beside):
        looks[f"operands[{name!r}]"] = Look(x, keep)
    now: Any = {f"prologue_{role}": made, f"trans_{role}": "n", f"scale_{role}": None,
                "operands": {**(call.operands or {}), **dict.fromkeys(names)}}
    return call._replace(**now)
