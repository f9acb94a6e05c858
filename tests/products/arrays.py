"""The arrays of product cases from a few words, by seeded random numbers: "bf16 3x20x30 columns", "u4 34x70 group=32".

A text names the number format and the shape ("f32 -" is a single number); what else it may say:

    columns apart sparse reversed backwards strided heads turned far one same unaligned swapped
                                how the array lies in memory (rows contiguous if nothing)
    group=32 zeros nibbles      weights of few bits: steps of k that share a scale, zero points, two elements to a byte
    minima                      and numbers that are added
    powers                      powers of two, as scales that round nothing
    number                      one of Python's own
    groups                      an operand with an array for each group of a grouped product

Numbers are small whole ones, so that every sum is exact, unless the case says `values="normal"`; with "whole and nan"
some are nan or inf. With "patterns" integers are of every size.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import tilewright as tw
from tests.fuzz.values import numbers
from tests.helpers.arrays import Storage
from tilewright.formats import BLOCK_FORMATS, FORMATS, pack
from tilewright.formats.scaled import Nibbles, Scaled

LAYOUTS = {"columns", "apart", "sparse", "reversed", "backwards", "strided", "heads", "turned", "far", "one",
           "same", "unaligned", "swapped"}


class Spec(NamedTuple):
    """A text, read."""

    format: str
    shape: tuple[int, ...]
    layout: str = "rows"
    group: int = 0
    words: frozenset[str] = frozenset()

    @property
    def scaled(self) -> bool:
        """Is it an array of few bits with scales?"""
        return self.format in BLOCK_FORMATS or "weights" in self.words or self.group > 0

    @property
    def ndim(self) -> int:
        return len(self.shape)


@cache
def read(text: str) -> Spec:
    format, sizes, *words = text.split()
    shape = () if sizes == "-" else tuple(map(int, sizes.split("x")))
    group = next((int(x.removeprefix("group=")) for x in words if x.startswith("group=")), 0)
    layout = next((x for x in words if x in LAYOUTS), "rows")
    unknown = {x for x in words if not x.startswith("group=")} - LAYOUTS - {"zeros", "minima", "nibbles", "powers",
                                                                           "groups", "weights", "number"}
    assert not unknown, f"{text!r}: {unknown}"
    return Spec(format, shape, layout, group, frozenset(words) - LAYOUTS)


class Made(NamedTuple):
    """An array as it is given to a call, and its numbers as the oracle takes them."""

    array: Any
    numbers: np.ndarray


def make(text: str, values: str, seed: int, axis: int = -1) -> Made:
    """`axis`: of scaled arrays, that of k."""
    spec = read(text)
    if spec.scaled:
        return _scaled(spec, values, seed, axis)
    if "powers" in spec.words:
        x = (2.0 ** np.random.default_rng(seed).integers(-2, 3, spec.shape)).astype(FORMATS[spec.format].dtype)
    else:
        kind = {"patterns": "wide"}.get(values, values.removesuffix(" and nan"))
        x = np.asarray(numbers(spec.format, spec.shape, kind, seed))
    if values.endswith("and nan") and x.dtype.kind == "f":
        rng = np.random.default_rng(seed)
        x = np.where(rng.random(x.shape) < 0.03, rng.choice(np.array([np.nan, np.inf], x.dtype), x.shape), x)
    if "number" in spec.words:
        return Made(x.item(), x.astype(_exact(x.dtype)))
    array = stored(x, spec.layout)
    return Made(array, np.array(array, array.dtype.newbyteorder("=")).astype(_exact(array.dtype)))


def _exact(dtype: np.dtype) -> np.dtype:
    """A dtype of NumPy's own that holds all numbers of this one."""
    native = dtype.newbyteorder("=")
    return native if native.kind in "iubcg" or native == np.float64 else np.dtype(
        np.int64 if "int" in native.name else np.float64)


def stored(x: np.ndarray, layout: str) -> np.ndarray:
    """x in memory of this layout."""
    axes, ones = tuple(range(x.ndim)), (1,) * x.ndim
    if layout == "far":
        wide = np.full((*x.shape[:-1], x.shape[-1] + 13), 77).astype(x.dtype)
        wide[..., :x.shape[-1]] = x
        return wide[..., :x.shape[-1]]
    return {
        "rows": Storage(axes, ones), "unaligned": Storage(axes, ones, shift=1), "swapped": Storage(axes, ones, 0, True),
        "columns": Storage((*axes[:-2], *axes[:-3:-1]), ones), "apart": Storage(axes, (*ones[:-1], 2)[-x.ndim:]),
        "sparse": Storage(axes, (*ones[:-2], 2, 3)[-x.ndim:]), "reversed": Storage(axes, (-1,) * x.ndim),
        "one": Storage(axes, (0, *ones[1:])), "same": Storage(axes, (*ones[1:], 0)),
        "backwards": Storage(axes, (-1, *ones[1:])), "strided": Storage(axes, (2, *ones[1:])),
        "heads": Storage((*axes[:-3], *axes[-2:-1], *axes[-3:-2], *axes[-1:]), ones),
        "turned": Storage((*axes[:-3], *axes[-1:], *axes[-3:-2], *axes[-2:-1]), ones),
    }[layout].hold(x)


def _scaled(spec: Spec, values: str, seed: int, axis: int) -> Made:
    """Block-scaled numbers that are whole, which quantize must find exactly; or whole elements with powers of two."""
    rng = np.random.default_rng(seed)
    normal = values == "normal"
    if spec.format in BLOCK_FORMATS:
        x = (rng.standard_normal(spec.shape) if normal else rng.integers(-2, 3, spec.shape)).astype(np.float32)
        q = tw.quantize(x, spec.format, axis=axis)
        q = replace(q, elements=stored(q.elements, spec.layout))
        return Made(q, x.astype(float) if q.format.mx and not normal else tw.dequantize(q, "f64"))
    elements = numbers(spec.format, spec.shape, "wide" if normal and spec.format[0] in "iu" else "whole", seed)
    few, k = list(spec.shape), spec.shape[axis]
    few[axis] = -(-k // spec.group) if spec.group else 1
    scales = (rng.random(few) + 0.5 if normal else 2.0 ** rng.integers(-1, 2, few)).astype(np.float32)
    wide, at = elements.astype(float), np.arange(k) // (spec.group or k)
    zeros = None
    if "zeros" in spec.words:
        zeros = rng.integers(0, 2, few).astype(np.uint8 if spec.format[0] == "u" else np.int8)
        wide = wide - np.take(zeros.astype(float), at, axis)
    exact = wide * np.take(scales.astype(float), at, axis)
    minima = None
    if "minima" in spec.words:
        minima = (rng.standard_normal(few) if normal else rng.integers(-2, 3, few)).astype(np.float32)
        exact = exact + np.take(minima.astype(float), at, axis)
    if "nibbles" in spec.words:
        q = Scaled(stored(pack(np.ascontiguousarray(elements)), spec.layout), scales, zeros, spec.group,
                   Nibbles(spec.format, -1, spec.shape[-1]), minima)
    else:
        q = Scaled(stored(elements, spec.layout), scales, zeros, spec.group, None, minima)
    return Made(q, exact)


def parts(array: Any) -> dict[str, np.ndarray]:
    """The arrays that a scaled one consists of; an array by itself."""
    names = ("elements", "scales", "zeros", "minima")
    return {"": array} if isinstance(array, np.ndarray) else {
        name: x for name in names if (x := getattr(array, name, None)) is not None}


def placed(array: Any, place: Any, part: Any) -> Any:
    """The array, or the parts of a scaled one, in another memory."""
    if isinstance(array, np.ndarray):
        return place(array)
    if isinstance(array, (bool, int, float, complex)):
        return array
    return replace(array, **{name: part(x) for name, x in parts(array).items()})
