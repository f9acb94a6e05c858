"""Products with weights of few bits: an operand with scales becomes its elements and a prologue that makes numbers of
them.

    b * s           symmetric, and block-scaled
    (b - z) * s     with zero points
    b * s + m       with minima

So matmul(x, w) is the product of x and dequantize(w), decoded on the way, by any engine that takes prologues. Only
dtypes and shapes are read.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewright.expressions import HALVES
from tilewright.expressions.function import Aux, Prologue, checked_prologue, kind_of
from tilewright.expressions.program import ELEMENT, OWN, Expression
from tilewright.expressions.remembered import traced
from tilewright.formats import Quantized, find, get, integral
from tilewright.formats.scaled import Decodable, Scaled, format_of
from tilewright.plans.cpu_shape import order
from tilewright.plans.lowering import strides_of
from tilewright.plans.prologues import MOST, STEPS
from tilewright.rules import arguments, prologues, scaling
from tilewright.rules.call import Call

NAMES = {"scales": OWN + "scale_{}", "zeros": OWN + "zero_{}", "minima": OWN + "minimum_{}"}  # of operands, by role
FLOATS = tuple(get(name).dtype for name in ("f32", "bf16", "f16"))


class Weights(NamedTuple):
    """A Scaled, or a Quantized, as it is multiplied: A [m, k] or B [k, n]."""

    source: str  # of elements: a format, with HALVES if two share a byte
    shape: tuple[int, ...]
    elements: Any  # bytes, or elements of this format; with HALVES the stride along k or across is that of bytes
    beside: dict[str, Any]  # "scales", and "zeros" or "minima"
    group: int
    factor: float = 1.0  # of all numbers
    halves: int | None = None  # the axis along which two elements share a byte

    @property
    def legible(self) -> bool:
        """Whether kernels, which take the contiguous axis of `stand_in` to be the one whose elements share bytes, are
        right: with a single byte along it the other one is contiguous, too."""
        if self.halves is None:
            return True
        strides = strides_of(*self.shape[-2:], *self.elements.strides[-2:])
        return order(*strides) == ("rows" if self.halves == -1 else "columns")

    @property
    def stand_in(self) -> Any:
        """An array of this shape, whose address and strides are those of the elements; of HALVES kernels read it, and
        NumPy must not."""
        x = self.elements.view(get(self.source.removesuffix(HALVES)).dtype)
        return np.lib.stride_tricks.as_strided(x, self.shape, x.strides) if self.source.endswith(HALVES) else x


def weights_of(q: Any, trans: str, role: str) -> Weights | None:
    """The weights of a Scaled or a Quantized, nothing copied; None for elements of 6 bits. ValueError for groups that
    are not along k."""
    axis = prologues.AXIS[role]
    if isinstance(q, Quantized):
        if q.format.element.bits == 6:
            return None
        along = scaling.along_k(q, trans, role).axis
        elements, scales = (np.moveaxis(x, -1, along) for x in (q.elements, q.scales.view(q.format.scale.dtype)))
        source = q.format.element.name + HALVES * (q.format.element.bits == 4)
        if q.format.element.bits == 8:
            elements = elements[(..., slice(q.length), *(slice(None),) * (-1 - along))]
        halves = along if source.endswith(HALVES) else None
        record = Weights(source, q.shape, elements, {"scales": scales}, q.format.block, q.tensor_scale, halves)
    else:
        if q.axis not in (None, axis if trans == "n" else -3 - axis):
            raise ValueError(f"the groups of {role} must be along k, axis {axis if trans == 'n' else -3 - axis} of it, "
                             f"but they are along axis {q.axis}: quantize(x, ..., axis=...), or trans_{role}")
        arrays = {name: x for name in NAMES if (x := getattr(q, name)) is not None}
        how = q.nibbles
        record = Weights(q.format.name + HALVES * (how is not None), q.shape, q.elements, arrays, q.group,
                        halves=how.axis if how else None)
    if trans == "n":
        return record
    shape = (*record.shape[:-2], *record.shape[:-3:-1])
    return record._replace(shape=shape, elements=record.elements.swapaxes(-1, -2),
                          halves=None if record.halves is None else -3 - record.halves,
                          beside={name: x.swapaxes(-1, -2) for name, x in record.beside.items()})


def present(call: Call) -> bool:
    """Has either operand what a prologue makes numbers of: groups, zero points or two elements to a byte; or is it read
    once for few rows?"""
    return any((isinstance(x, Scaled) and not x.plain) or few(call, role) for role, x in (("a", call.a), ("b", call.b)))


def few(call: Call, role: str) -> bool:
    """Whether the engine of this processor reads this operand, B, once, as it does for few rows of floats: then
    elements may be two to a byte and scales of any format."""
    q, other = (call.a, call.b) if role == "a" else (call.b, call.a)
    if not isinstance(q, (Scaled, Quantized)) or not (type(other) is type(q.elements) is np.ndarray):
        return False
    if role == "a" or not _rows_of_floats(call) or q.ndim != 2 or min(q.shape) < 2:
        return False
    k = q.shape[scaling.k_axis(2, getattr(call, f"trans_{role}"), role)]
    if isinstance(q, Scaled) and q.by_floats:   # kernels look numbers up by whole zero points
        return False
    if k == 0 or other.size > MOST * k:
        return False
    w = weights_of(q, arguments.layout(call.trans_b, "b"), "b")
    return w is not None and w.legible and all(_shared_along_k(*_place(w, kind)) for kind in w.beside)


def _shared_along_k(place: str, group: int) -> bool:
    """Whether B's numbers at this place are one for all of k, or for groups that kernels read."""
    return group % STEPS == 0 if group > 1 else place in ("scalar", "row")


def _rows_of_floats(call: Call) -> bool:
    """Whether A is contiguous rows of floats, whose products are added up in f32, and nothing is asked for that the
    kernels for few rows do not do."""
    x = call.a
    others = [call.out_dtype, *(getattr(y, "dtype", None) for y in (call.c, call.out if call.updates else None))]
    return (x.dtype in FLOATS and x.size > 0 and not call.invariant
            and call.trans_a == "n" and x.strides[-1] == x.itemsize
            and call.plan is call.scale_a is call.scale_b is call.algorithm is None
            and call.prologue_a is call.prologue_b is None and all(y is None or _narrow(y) for y in others))


def _narrow(dtype: Any) -> bool:
    """Is it a floating-point format whose results are added up in f32?"""
    f = None if isinstance(dtype, tuple) else find(dtype)
    return f is not None and f.bits <= 32 and not integral(f)


def without(call: Call) -> Call:
    """The call with prologues of elements in place of operands with scales. TypeError and ValueError for what cannot be
    combined."""
    given: dict[str, Any] = dict(call.operands or {})
    functions: dict[str, Weights] = {}
    formats_of = {role: _format(getattr(call, role), role) for role in "ab"}
    for role in "ab":
        q, once = getattr(call, role), few(call, role)
        if not isinstance(q, Scaled) and not once:
            if isinstance(q, Decodable):
                raise TypeError(f"{role} is {q.format}, and the other operand has groups, zero points or two elements "
                                f"to a byte: tilewright.dequantize({role}) gives numbers to be multiplied with it")
            continue
        if getattr(call, f"scale_{role}") is not None or getattr(call, f"prologue_{role}") is not None:
            raise ValueError(f"{role} is a {type(q).__name__}, which has its own scales: scale_{role} and "
                             f"prologue_{role} must be None with it")
        if q.ndim < 2:
            raise ValueError(f"{role} must have two axes or more to be multiplied by way of its scales, and its shape "
                             f"is {q.shape}")
        trans = getattr(call, f"trans_{role}")
        w = weights_of(q, trans, role)
        assert w is not None
        if not once:
            x = q.unpacked()
            w = w._replace(source=w.source.removesuffix(HALVES), elements=x if trans == "n" else x.swapaxes(-1, -2))
        functions[role] = w
        if w.factor != 1:
            call = call._replace(alpha=scaling.times(arguments.number(call.alpha, "alpha"), w.factor))
        given |= {NAMES[kind].format(role): x for kind, x in w.beside.items()}
    results = prologues.multiplied(formats_of, dict.fromkeys(functions, "float"))
    for role, w in functions.items():
        now: Any = {role: w.stand_in, f"prologue_{role}": decoding_of(w, role, results[role]), f"trans_{role}": "n"}
        call = call._replace(**now)
    return call._replace(operands=given)


def decoding_of(w: Weights, role: str, result: str) -> Prologue:
    """The prologue that decodes weights."""
    names = {kind: NAMES[kind].format(role) for kind in w.beside}
    source = w.source.removesuffix(HALVES)
    zero = kind_of(format_of(w.beside["zeros"]).name) if "zeros" in names else ""
    e = expression(source, role, zero, "minima" in names)
    reads = tuple(Aux(name, format_of(w.beside[kind]).name, *_place(w, kind)) for kind, name in names.items())
    return checked_prologue(e, reads, w.source, result, f"prologue_{role}")


def expression(source: str, role: str, zero: str, minimum: bool = False) -> Expression:
    """The expression of an element, its scale and its zero point, which is of this kind ("": there is none), or its
    minimum."""
    names = {kind: name.format(role) for kind, name in NAMES.items()}
    kinds = [(ELEMENT, kind_of(source)), (names["scales"], "float"), *[(names["zeros"], zero)]*bool(zero),
             *[(names["minima"], "float")]*minimum]
    decoded: Any = (lambda x, s, z: (x - z) * s) if zero else (lambda x, s, m: x * s + m) if minimum else (
        lambda x, s: x * s)
    return traced(decoded, tuple(kinds), f"prologue_{role}", len(kinds))


def _place(w: Weights, kind: str) -> tuple[str, int]:
    """The place of an array beside a matrix, and its group."""
    (rows, cols), (m, n) = w.beside[kind].shape[-2:], w.shape[-2:]
    grouped = rows not in (1, m) or cols not in (1, n)
    place = "full" if rows > 1 and cols > 1 else "column" if rows > 1 else "row" if cols > 1 else "scalar"
    return place, w.group if grouped else 1


def by_matrices(call: Call) -> tuple[Call, int | None]:
    """The call with a vector beside weights as a matrix of one row or column; and the axis that the result has then and
    the call's has not. With an epilogue a vector is refused, as ever."""
    for role, other, axis in (("a", call.b, -2), ("b", call.a, -1)):
        x = getattr(call, role)
        if call.epilogue is None and isinstance(other, Decodable) and not isinstance(x, Decodable) and np.ndim(x) == 1:
            now: Any = {role: np.expand_dims(np.asarray(x), axis), f"trans_{role}": "n"}
            for name in ("out", "c"):
                y = getattr(call, name)
                if isinstance(y, np.ndarray) and y.ndim:
                    now[name] = np.expand_dims(y, axis)
            return call._replace(**now), axis
    return call, None


def _format(x: Any, role: str) -> str:
    if isinstance(x, Quantized):
        return str(x.format.element.name)
    if isinstance(x, Decodable):
        return str(x.format.name)
    dtype = getattr(x, "dtype", None)
    return prologues.format_of(dtype, role) if dtype is not None else "f32"
