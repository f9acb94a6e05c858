"""`Polynomial`: whole-number polynomials of sizes and loop indices, which subscripts, bounds and conditions are."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tilewright.forks import cached_property


class Polynomial:
    """Frozen. `terms`: ((names of a product in alphabetical order, coefficient), ...), sorted, without zeros."""

    def __init__(self, terms: Iterable[tuple[tuple[str, ...], int]]) -> None:
        sums: dict[tuple[str, ...], int] = {}
        for names, c in terms:
            sums[names] = sums.get(names, 0) + c
        self.terms = tuple(sorted((names, c) for names, c in sums.items() if c))

    def __add__(self, other: Any) -> Polynomial:
        return Polynomial((*self.terms, *polynomial(other).terms))

    def __sub__(self, other: Any) -> Polynomial:
        return self + -polynomial(other)

    def __neg__(self) -> Polynomial:
        return self * -1

    def __mul__(self, other: Any) -> Polynomial:
        others = polynomial(other).terms
        return Polynomial((tuple(sorted(x + y)), c * d) for x, c in self.terms for y, d in others)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Polynomial:
        return polynomial(other) - self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.terms)

    def __repr__(self) -> str:
        parts = [("-" if c < 0 else "+") + "*".join([str(abs(c))] * (abs(c) != 1 or not names) + [*names])
                 for names, c in sorted(self.terms, key=lambda term: (not term[0], term))]
        return " ".join(f"{x[0]} {x[1:]}" if n else x.removeprefix("+") for n, x in enumerate(parts)) or "0"

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(name for names, _ in self.terms for name in names)

    @property
    def constant(self) -> int | None:
        """Its number, if it has no names."""
        return None if self.names else self.terms[0][1] if self.terms else 0

    def coefficient(self, name: str) -> int:
        """The factor of a name; 0 if it has another name beside it, too."""
        matching = [(names, c) for names, c in self.terms if name in names]
        return matching[0][1] if len(matching) == 1 and matching[0][0] == (name,) else 0

    def replaced(self, by: Mapping[str, Any]) -> Polynomial:
        """With polynomials, names or numbers for some of the names."""
        if self.names.isdisjoint(by):
            return self
        total = Polynomial(())
        for names, c in self.terms:
            term = polynomial(c)
            for name in names:
                term = term * by.get(name, name)
            total = total + term
        return total

    def value(self, numbers: Mapping[str, int]) -> int:
        """Its number for these of all names."""
        total = 0
        for names, c in self.terms:
            for name in names:
                c *= numbers[name]
            total += c
        return total

    def linear(self, refuse: Callable[[str], Exception] = ValueError) -> Linear:
        """Its constant and a factor for each index; `refuse`, of a sentence, where indices are multiplied."""
        constant, factors = 0, dict[str, int]()
        for names, c in self.terms:
            if len(names) > 1:
                raise refuse(f"{'*'.join(names)} is not affine in loop indices")
            if names:
                factors[names[0]] = c
            else:
                constant = c
        return Linear(constant, factors)


class Linear(NamedTuple):
    """constant + sum of factors[i] * i over loop indices."""
    constant: int
    factors: dict[str, int]

    def least(self, extents: Mapping[str, int]) -> int:
        """Its least value where each index is from 0 to its extent - 1."""
        return self.constant + sum(min(0, c * (extents[i] - 1)) for i, c in self.factors.items())

    def most(self, extents: Mapping[str, int]) -> int:
        return self.constant + sum(max(0, c * (extents[i] - 1)) for i, c in self.factors.items())

    def plus(self, other: Linear, times: int = 1) -> Linear:
        sums = {i: self.factors.get(i, 0) + times * other.factors.get(i, 0) for i in {**self.factors, **other.factors}}
        return Linear(self.constant + times * other.constant, {i: c for i, c in sums.items() if c})

    def renamed(self, names: Mapping[str, str]) -> Linear:
        return Linear(self.constant, {names.get(i, i): c for i, c in self.factors.items()})

    @property
    def key(self) -> tuple[int, tuple[tuple[str, int], ...]]:
        """Equal for equal ones; it can be hashed."""
        return self.constant, tuple(sorted(self.factors.items()))


def polynomial(x: Any) -> Polynomial:
    """A polynomial, a whole number, or a name, as a polynomial."""
    return x if isinstance(x, Polynomial) else Polynomial([((x,), 1)] if isinstance(x, str) else [((), int(x))])
