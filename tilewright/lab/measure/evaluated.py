"""A product with a semiring, prologues or an epilogue is compared with NumPy's evaluation of the same functions.

Some rows and columns of the first matrix, C, are evaluated in float64. A float may be off by what sums of the format in
which terms are added up are off, and by the roundings of operands and result, all relative to C's largest number.
Functions that are not continuous, and indices, may give another answer for a number next to a step: of such results one
element in a hundred.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import formats
from tilewright.formats import Complex, Float
from tilewright.lab.measure.operands import Array, Operands
from tilewright.plans import epilogues, prologues, semirings

TERMS = 1 << 21         # that are evaluated, at most, all at once
ULPS = 1000             # of the sums' format, of the largest number: what sums may be off by
ROUNDINGS = 2           # ulps of an operand's and of the result's format
STEPS = 0.01            # of the elements next to steps of a function, which may have another answer
STEPPED = {"lt", "le", "eq", "ne", "int"}


class Reference:
    """What C is, on a few rows and columns; of a batch those of its first product."""

    def __init__(self, given: Operands, seed: int = 1) -> None:
        p, self.given = given.problem, given
        a, b = (x if p.batch == 1 else x[0] for x in (given.a, given.b))
        columns = max(min(TERMS // max(p.k, 1), p.n) // 2 * 2, 1)
        first = np.arange(p.n)
        self.columns = first if p.n <= columns + 1 else np.append(first[:columns // 2], first[p.n - columns//2:])
        count = min(max(TERMS // max(p.k * len(self.columns), 1), 1), p.m)
        self.rows = np.sort(np.random.default_rng(seed).permutation(p.m)[:count])
        left, right = self._prepared("a", a[self.rows]), self._prepared("b", b[:, self.columns])
        with np.errstate(all="ignore"):
            self.exact = self._finished(self._sums(left, right))

    def _prepared(self, role: str, x: Array) -> Array:
        """Rows of A or columns of B after their prologue, rounded as they are multiplied."""
        p = self.given.problem
        if not (text := getattr(p, f"prologue_{role}")):
            return x
        prologue = prologues.read(text)
        chosen: Any = (self.rows, slice(None)) if role == "a" else (slice(None), self.columns)
        operands = {aux.name: _part(self.given.named[aux.name], *chosen) for aux in prologue.reads}
        with np.errstate(all="ignore"):
            return np.asarray(prologue.evaluate(x, operands, -1 if role == "a" else -2)).astype(
                formats.FORMATS[prologue.result].dtype)

    def _sums(self, a: Array, b: Array) -> Any:
        p = self.given.problem
        if p.semiring:
            return semirings.read(p.semiring).evaluate(a, b)
        sums = formats.FORMATS[p.sums]
        if isinstance(sums, Float):
            return a.astype(np.float64) @ b.astype(np.float64)
        if isinstance(sums, Complex):
            return a.astype(np.complex128) @ b.astype(np.complex128)
        return (a.astype(np.int64) @ b.astype(np.int64)).astype(sums.dtype)

    def _finished(self, sums: Any) -> Any:
        """The first of a state's several results; None for an epilogue that takes a state, or leaves no matrix."""
        p = self.given.problem
        if not p.epilogue:
            return sums[0] if isinstance(sums, tuple) else sums
        epilogue = epilogues.read(p.epilogue)
        if epilogue.state or epilogue.main is None:
            return None
        if epilogue.paired:                     # every other pair of the columns that were chosen
            columns = self.columns[::2] // 2
        else:
            columns = self.columns
        operands = {aux.name: _part(self.given.named[aux.name], self.rows, columns) for aux in epilogue.reads}
        self.columns = columns
        return epilogue.evaluate(sums, operands)[epilogue.main]

    def wrong(self, c: Array) -> str | None:
        """None if these elements of C are right, else a sentence that names one that is not."""
        if self.exact is None:
            return None
        got = (c if c.ndim == 2 else c[0])[np.ix_(self.rows, self.columns)]
        kind = formats.find(got.dtype)
        exact = np.asarray(self.exact)
        if isinstance(kind, Float) and exact.dtype.kind == "f":
            ours, theirs = got.astype(np.float64), exact.astype(got.dtype).astype(np.float64)
            limit = self._tolerance(kind) * float(np.max(np.abs(theirs), initial=0, where=np.isfinite(theirs)))
            with np.errstate(invalid="ignore"):
                right = (np.abs(ours - theirs) <= limit) | (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        else:
            ours, theirs = got, exact.astype(got.dtype)
            right = ours == theirs
        if right.all() or (self._steps and np.mean(right) >= 1 - STEPS):
            return None
        i, j = (int(x) for x in np.argwhere(~right)[0])
        return (f"C[{self.rows[i]}, {self.columns[j]}] is {ours[i, j].item():.9g}, the reference is "
                f"{theirs[i, j].item():.9g}")

    def _tolerance(self, out: Float) -> float:
        """The tolerance, as a share of C's largest number."""
        p = self.given.problem
        sums = formats.FORMATS[p.sums]
        own = ULPS * sums.eps if isinstance(sums, Float) else 0.0
        rounded = [formats.FORMATS[f] for f in p.multiplied] if p.prologues else []
        return float(own + ROUNDINGS * (out.eps + sum(f.eps for f in rounded if isinstance(f, Float))))

    @property
    def _steps(self) -> bool:
        """Whether a function is not continuous, or the result is an index."""
        p = self.given.problem
        names = [line.operation for text in (p.prologue_a, p.prologue_b) if text
                 for line in prologues.read(text).expression.lines]
        if p.epilogue:
            names += [line.operation for line in epilogues.read(p.epilogue).expression.lines]
        if p.semiring:
            names += [line.operation for line in semirings.read(p.semiring).step.lines]
        return not STEPPED.isdisjoint(names)


def _part(x: Array, rows: Any, columns: Any) -> Array:
    """These rows and columns of an operand that may have but one."""
    x = x[rows] if x.shape[0] > 1 else x
    return x[:, columns] if x.shape[1] > 1 else x
