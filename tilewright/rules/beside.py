"""What stands beside einsum's operands, alpha, beta, c and an epilogue: by the axes of the result, and of the matrices
that the last product writes. Only dtypes, shapes and strides are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.expressions.program import Expression
from tilewright.rules import arguments, contraction, fusing
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call
from tilewright.rules.contraction import Groups, Operands, Term
from tilewright.rules.prologues import decided
from tilewright.rules.subscripts import Terms


class Beside:
    """A call's alpha, beta, c and epilogue, checked: TypeError and ValueError for what an argument may not be.

    call            without a and b; with arrays for operands and c, which is None where beta is 0
    sums, result    the dtypes of the sums, and of a result without an epilogue
    reduced         of each result how it is reduced
    """

    def __init__(self, call: Call, arrays: Sequence[Array], terms: Terms) -> None:
        self.output, self.shape = terms.output, tuple(terms.sizes[label] for label in terms.output)
        c, given = arguments.addend(call.c), fusing.given_of(call.operands)
        among = *contraction.meeting(arrays), c
        integral = call.epilogue is not None and formats.integral(*(f for x in arrays if (f := formats.find(x.dtype))))
        wanted = call.out_dtype if call.epilogue is None else None if integral else fusing.wide_of(call)
        self.sums, self.result = arguments.dtypes(*among, wanted)
        self.expression = self._expression(call, given)
        self.reduced = [x.reduced for x in self.expression.results] if self.expression else [""]
        self._check_shapes(given, c)
        beta = arguments.number(call.beta, "beta")
        if c is None and beta:
            raise ValueError(f"c must be given if beta is not 0, and beta is {call.beta}")
        self.call = call._replace(c=c if beta else None, operands=given or None, among=among)

    def _expression(self, call: Call, given: dict[str, Array]) -> Expression | None:
        if call.epilogue is None:
            return None
        if self.sums.kind == "c":
            raise TypeError(f"epilogue must be None for complex products, whose sums here are {self.sums}")
        for one in call.out_dtype if isinstance(call.out_dtype, tuple) else (call.out_dtype,):
            if isinstance(one, str) and one in formats.BLOCK_FORMATS:
                raise ValueError(f"out_dtype must be a format of single numbers in einsum, not {one!r}")
        return fusing.expression_of(call.epilogue, ["float" if self.sums.kind == "f" else "int"], given)

    def _check_shapes(self, given: dict[str, Array], c: Any) -> None:
        if self.paired and (not self.shape or self.shape[-1] % 2):
            raise ValueError(f"epilogue takes pairs of columns, and the result's shape is {self.shape}")
        if any(self.reduced) and len(self.shape) < 2:
            raise ValueError(f"epilogue returns {next(filter(None, self.reduced))}, and the result's shape is "
                             f"{self.shape}, without rows and columns")
        arrays = {f"operands[{name!r}]": (x, self.shape_of("")) for name, x in given.items()}
        arrays |= {"c": (c, self.shape)} if isinstance(c, np.ndarray) else {}
        for name, (x, shape) in arrays.items():
            try:
                np.broadcast_to(x, shape)
            except ValueError:
                raise ValueError(f"{name} must broadcast to the result's shape {shape}, but its shape is {x.shape}"
                                 ) from None

    @property
    def dtypes(self) -> Sequence[Any]:
        """The dtypes of results; None of reductions."""
        if self.expression is None:
            return [self.result]
        *lead, m, n = (*(1,) * (2 - len(self.shape)), *self.shape)
        a, b = np.empty((*lead, m, 0), self.sums), np.empty((*lead, 0, n), self.sums)
        p = decided(self.call._replace(out=None, operands=None), a, b, self.call.c, fusing.wide_of(self.call), {})
        return fusing.fused(self.call, p).dtypes

    @property
    def paired(self) -> bool:
        return self.expression is not None and self.expression.paired

    def shape_of(self, reduced: str) -> tuple[int, ...]:
        """The shape of a result of the epilogue."""
        shape = (*self.shape[:-1], self.shape[-1] // 2) if self.paired else self.shape
        return shape[:-1] if reduced.startswith("row") else (*shape[:-2], *shape[-1:]) if reduced else shape

    def outs(self, given: Any) -> list[Any]:
        """Where the caller wants the results."""
        count = len(self.reduced)
        if isinstance(given, tuple) and len(given) != count:
            raise ValueError(f"out must have an array or None for each of the epilogue's {count} results, not "
                             f"{len(given)} of them")
        results = [*given] if isinstance(given, tuple) else [given, *[None] * (count - 1)]
        for out, reduced in zip(results, self.reduced):
            if isinstance(out, np.ndarray) and out.shape != (shape := self.shape_of(reduced)):
                raise ValueError(f"out must have the result's shape {shape}, but its shape is {out.shape}")
            if isinstance(out, np.ndarray) and self.expression is None:
                arguments.check_cast(self.result, out.dtype, "out")
        return results


class Matrices:
    """How arrays with the axes of einsum's result are stacks of matrices that a product writes, and back."""

    def __init__(self, terms: Terms, groups: Groups, x: Operands, paired: bool) -> None:
        """x: with the groups' axes, merged. paired: results have half as many columns as there are sums."""
        self.output, self.groups, self.paired = terms.output, groups[:3], paired
        self.sizes = [[terms.sizes[label] for label in group] for group in self.groups]
        nb, nm, *_ = x.counts
        self.extents = x.c.shape[:nb], x.c.shape[nb : nb + nm], x.c.shape[nb + nm :]
        self.moved(x.counts)

    def moved(self, counts: tuple[int, int, int, int]) -> None:
        """Outer axes of m, and then of n, are the batch's now, and so many are left."""
        b, m, n = map(len, self.extents)
        nb, nm, nn, _ = counts
        self.axes = (*range(b + m - nm), *range(b + m, b + m + n - nn), *range(b + m - nm, b + m),
                     *range(b + m + n - nn, b + m + n))
        self.ends = nb, nb + nm

    def stacked(self, x: Array, half: bool = True, reshaped: Callable[[Array, Sequence[int]], Array] = np.reshape,
                merged: bool = True) -> Array:
        """x, which is broadcast to a result's shape, as [..., m, n], with axes of 1 in place of groups that it has not.
        half: x is a result's, not the sums'. reshaped: makes views, or copies. merged: m and n are one axis each."""
        x = x[(*[None] * (len(self.output) - x.ndim), ...)]
        order = [self.output.index(label) for group in self.groups for label in group]
        rest = [at for at in range(x.ndim) if at not in order]
        index: tuple[Any, ...] = (..., *[0] * len(rest))
        x = x.transpose(*order, *rest)[index]
        full, shape, at = list[int](), list[int](), 0
        for group, extents in zip(self.sizes, self.extents):
            one = all(extent == 1 for extent in x.shape[at : at + len(group)])
            full += [1] * len(group) if one else group
            shape += [1] * len(extents) if one else extents
            at += len(group)
        if half and self.paired and self.sizes[2] and x.shape[-1] > 1:
            full[-1], shape[-1] = full[-1] // 2, shape[-1] // 2
        x = np.broadcast_to(x, full) if [*x.shape] != full else x
        if self.axes != tuple(range(len(shape))):
            x, shape = reshaped(x, shape).transpose(self.axes), [shape[at] for at in self.axes]
        m, n = self.ends if merged else (len(shape) - 2, len(shape) - 1)
        return reshaped(x, (*shape[:m], prod(shape[m:n]), prod(shape[n:])))

    def back(self, x: Array, reduced: str) -> Array:
        """A result with the axes of einsum's. reduced: how, of one of rows or columns alone."""
        kept = [at for at in range(3) if not reduced or at != (2 if reduced.startswith("row") else 1)]
        extents, labels = [extent for part in self.extents for extent in part], self.output
        sizes = [size for at in kept for size in self.sizes[at]]
        if self.paired and 2 in kept and self.sizes[2]:
            extents[-1], sizes[-1] = extents[-1] // 2, sizes[-1] // 2
        if not reduced:
            x = x.reshape([extents[at] for at in self.axes]).transpose(np.argsort(self.axes))
        wanted = labels[:-1] if reduced.startswith("row") else (*labels[:-2], *labels[-1:]) if reduced else labels
        return contraction.arranged(Term(x.reshape(sizes), sum((self.groups[at] for at in kept), ())), wanted)
