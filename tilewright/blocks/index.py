"""Whole numbers of a block as a formula: one number that all elements share, and a term for each dimension.

Offsets, masks and pointers are made of these. So a block of pointers takes a register for each row and one for each
column instead of one for each element, and the compiler sees what is contiguous and what is aligned: `multiple` is a
number that divides the shared part (0 if that is 0).
"""
from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Any

from tilewright.ir import Type, Value, i1

if TYPE_CHECKING:
    from tilewright.blocks.layout import Layout
    from tilewright.blocks.program import Program

Number = int | Value
FAR = 1 << 30               # a power of two beyond all alignments
COMPARED = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne}


@dataclass(frozen=True, eq=False)
class Term:
    """What a coordinate adds: `stride` times as much, or any `curve` of it."""
    stride: Number = 0
    multiple: int = 0                                   # that divides the stride
    curve: Callable[[Any], Any] | None = None

    def apply(self, x: Any) -> Any:
        return self.curve(x) if self.curve else times(x, self.stride)

    def scaled(self, by: Number, multiple: int) -> Term:
        if self.curve:
            return Term(curve=lambda x: times(self.apply(x), by))
        return Term(times(self.stride, by), self.multiple * multiple)

    def plus(self, other: Term) -> Term:
        if self.curve or other.curve:
            return Term(curve=lambda x: plus(self.apply(x), other.apply(x)))
        return Term(plus(self.stride, other.stride), gcd(self.multiple, other.multiple))


def plus(x: Number, y: Number) -> Number:
    return y + x if isinstance(x, int) else x + y


def times(x: Number, y: Number) -> Number:
    if 0 in (z for z in (x, y) if isinstance(z, int)):
        return 0
    return y * x if isinstance(x, int) else x * y


def _after(f: Callable[[Any], Any], scalar: Number, term: Term, x: Any) -> Any: return f(plus(scalar, term.apply(x)))


@dataclass(frozen=True, eq=False)
class Formula:
    """scalar + the terms."""
    scalar: Number
    multiple: int
    terms: dict[int, Term]

    @staticmethod
    def constant(x: int) -> Formula: return Formula(x, abs(x), {})

    def plus(self, other: Formula) -> Formula:
        terms = dict(self.terms)
        for dim, term in other.terms.items():
            terms[dim] = terms[dim].plus(term) if dim in terms else term
        return Formula(plus(self.scalar, other.scalar), gcd(self.multiple, other.multiple), terms)

    def scaled(self, by: Formula) -> Formula:
        """Times a number without terms."""
        return Formula(times(self.scalar, by.scalar), self.multiple * by.multiple,
                       {dim: term.scaled(by.scalar, by.multiple) for dim, term in self.terms.items()})

    def mapped(self, f: Callable[[Any], Any], multiple: int = 1) -> Formula:
        """f of all of it, which has at most one term."""
        for dim, term in self.terms.items():
            return Formula(0, 0, {dim: Term(curve=partial(_after, f, self.scalar, term))})
        return Formula(f(self.scalar), multiple, {})

    def moved(self, to: Callable[[int], int]) -> Formula:
        """With other numbers for the dimensions."""
        return Formula(self.scalar, self.multiple, {to(dim): term for dim, term in self.terms.items()})

    # ---- of one register

    def evaluate(self, p: Program, layout: Layout, register: int, lane: int = 0) -> Number:
        """The number in a register; of a CPU's vector in this lane of it. What the shared part and rows or columns add
        is computed once."""
        number = self.scalar
        for dim, term in self.terms.items():
            thread, offset = p.coordinate(layout, dim), layout.register_offset(register, dim) + layout.lane(lane, dim)
            if term.curve:
                number = plus(number, p.memoized(
                    (term, dim, layout.threads, offset), term.apply, plus(offset, thread)))
                continue
            if isinstance(thread, Value):
                number = plus(number, p.memoized((term, dim, layout.threads), times, thread, term.stride))
            if offset:
                number = plus(number, p.memoized((term, offset), times, offset, term.stride))
        return number

    def value(self, p: Program, layout: Layout, register: int, type: Type) -> Value:
        """The number in a register as a value, on a CPU as a vector of all lanes."""
        k, dims = p.ir, self.terms

        def number(x: Number) -> Value:
            return k.constant(type, x) if isinstance(x, int) else k.cast(x, type)
        if not layout.vector or not any(layout.across(dim) for dim in dims):
            return number(self.evaluate(p, layout, register))
        return k.pack(*(number(self.evaluate(p, layout, register, lane)) for lane in range(layout.length)))


@dataclass(frozen=True, eq=False)
class Lanes:
    """A mask of the lanes of a CPU's vector before `end`."""
    end: Value


@dataclass(frozen=True, eq=False)
class Comparison:
    """x < y, and so on: a condition for each element."""
    operator: str                   # "<", "<=", "==", "!="
    x: Formula
    y: Formula

    @property
    def dims(self) -> set[int]: return {*self.x.terms, *self.y.terms}

    def evaluate(self, p: Program, layout: Layout, register: int) -> Value | Lanes:
        """The condition in a register; on a CPU for all its lanes, if they differ."""
        offsets = tuple((dim, layout.register_offset(register, dim)) for dim in sorted(self.dims))
        return p.memoized((self, layout.threads, offsets), self._evaluate, p, layout, register)

    def _evaluate(self, p: Program, layout: Layout, register: int) -> Value | Lanes:
        k, across = p.ir, [dim for dim in self.dims if layout.across(dim)]
        if not layout.vector or not across:
            return self._compared(p, self.x.evaluate(p, layout, register), self.y.evaluate(p, layout, register))
        along, = across
        if self.operator == "<" and along not in self.y.terms and self._steps(along):
            left = plus(self.y.evaluate(p, layout, register), times(-1, self.x.evaluate(p, layout, register)))
            return Lanes(p.number(left))
        return k.pack(*(self._compared(p, *(x.evaluate(p, layout, register, lane) for x in (self.x, self.y)))
                        for lane in range(layout.length)))

    def _steps(self, dim: int) -> bool:
        term = self.x.terms[dim]
        return not term.curve and isinstance(term.stride, int) and term.stride == 1

    def _compared(self, p: Program, x: Number, y: Number) -> Value:
        compared = COMPARED[self.operator]
        if isinstance(x, int) and isinstance(y, int):
            return p.ir.constant(i1, compared(x, y))
        return compared(p.number(x), p.number(y))

    def uniform(self, dim: int) -> int:
        """How many neighbours along this dimension, from a multiple of that on, have the same answer."""
        if dim not in self.dims:
            return FAR
        if self.operator == "<" and dim not in self.y.terms and self._steps(dim):
            multiple = gcd(self.x.multiple, self.y.multiple, FAR)
            return multiple & -multiple
        return 1


def all_of(p: Program, layout: Layout, conditions: list[Value | Lanes]) -> Value:
    """Whether all hold: a condition, or a vector of them, which then is one comparison of lanes as far as can be."""
    k, one = p.ir, None
    ends = [x.end for x in conditions if isinstance(x, Lanes)]
    others = [x for x in conditions if isinstance(x, Value)]
    for x in others:
        if x.type.length == 1:
            one = x if one is None else one & x
    vectors = [x for x in others if x.type.length > 1]
    for n, end in enumerate(ends):
        vectors.append(k.lanes_below(end if one is None or n else k.select(one, end, 0), layout.length))
    if not ends and one is not None:
        vectors.append(one if not vectors else k.broadcast(one, layout.length))
    every = vectors[0]
    for x in vectors[1:]:
        every = every & x
    return every
