"""The last product of an einsum with alpha, beta and c, or an epilogue: what follows sums is done inside its kernel.

Arrays beside the operands become those of the matrices that the product writes: views where strides allow, else copies
of as many elements as they have. Of what is no product (sums and transpositions of one operand, products by elements),
and where an epilogue reduces rows or columns that are none of the product's, the sums are c of a product without terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright import forks, formats
from tilewright.api import fused, host, pairs, tensor_repeats
from tilewright.rules import arguments, contraction, numpy_products
from tilewright.rules.arguments import Array
from tilewright.rules.beside import Beside, Matrices
from tilewright.rules.call import Call
from tilewright.rules.contraction import Groups, Layout, Operands, Term
from tilewright.rules.subscripts import Labels, Terms
from tilewright.runtime.cpu import pool, program
from tilewright.runtime.program import root


class Last(pairs.Work):
    """Products of pairs, of which the last one takes what the call has beside its operands."""

    def __init__(self, call: Call, arrays: Sequence[Array], terms: Terms, order: Any) -> None:
        if numpy_products.takes(*arrays, *([call.c] if isinstance(call.c, np.ndarray) else [])):
            raise TypeError("alpha, beta, c and epilogue must be left out of products that NumPy computes, as of "
                            f"{arrays[0].dtype}")
        self.terms, self.order, self.beside = terms, order, Beside(call, arrays, terms)
        self.call, self.outs = self.beside.call, [arguments.output(x) for x in self.beside.outs(call.out)]
        super().__init__(self.beside.sums, call.threads, call.invariant)
        self.results: list[Array] | None = None         # in the order of the result's axes, once they are there

    def last(self, a: Term, b: Term, needed: dict[Any, None], dtype: np.dtype[Any], place: Term | None,
             output: Labels) -> Term:
        """Make the results. The sums, if they are still to be made of these."""
        a, b = self.summed(a, {*needed, *b.labels}), self.summed(b, {*needed, *a.labels})
        kept = tuple(dict.fromkeys(x for x in (*a.labels, *b.labels) if x in needed))
        layout = contraction.layout(a, b, kept, self._place(output), output, self.invariant == "rows")
        groups = None if layout.elementwise else self._oriented(layout, kept)
        if groups is None:
            return self.product(a, b, needed, self.between, None, output)
        left, right = (b, a) if layout.exchanged else (a, b)
        c = np.empty(layout.shapes[2], self.beside.result)      # which nobody writes
        x, y = (z.array.transpose(order).reshape(shape) for z, order, shape in zip(
            (left, right), layout.orders, layout.shapes))
        operands = Operands(x, y, c, layout.counts)
        self._multiply(operands if groups is layout.groups else operands.exchanged, groups)
        return Term(c, ())

    def _place(self, output: Labels) -> Term | None:
        """Where layouts are to expect the result."""
        shape = self.beside.shape
        out = next((x for x in self.outs if x is not None and x.shape == shape), None)
        if out is None and self.order in ("C", "F"):
            out = np.empty(shape, self.beside.result, self.order)
        return None if out is None else pairs.place_of(out, output)

    def _oriented(self, found: Layout, kept: Labels) -> Groups | None:
        """The groups, m and n exchanged if the epilogue's columns are m then; None if what it reduces, or takes in
        pairs, are no rows or columns of the product."""
        groups, reduced = found.groups, self.beside.reduced
        if not (self.beside.paired or any(reduced)):
            return groups
        row, column = (tuple(x for x in part if x in kept) for part in (self.terms.output[-2:-1],
                                                                       self.terms.output[-1:]))
        if groups.n != column and self.invariant != "rows":
            groups = groups._replace(m=groups.n, n=groups.m)
        down = any(x.startswith("column") for x in reduced)
        return groups if groups.n == column and (groups.m == row or not down) else None

    def _multiply(self, x: Operands, groups: Groups) -> None:
        if tensor_repeats.recording:
            forks.imported("tilewright.api.record").contracted(x, self.threads)
        seen = Matrices(self.terms, groups, x, self.beside.paired)
        x, by_tables = host.as_multiplied(x) if self.invariant != "rows" else (x, False)
        seen.moved(x.counts)
        by_tables = by_tables and self._packs(x)
        batch, (m, n, k) = x.c.shape[: x.counts[0]], x.sizes
        for_b, for_a = (*batch, k, n), (*batch, m, k)
        if by_tables:
            a, b = (np.broadcast_to(np.empty((), y.dtype), shape) for y, shape in ((x.a, for_a), (x.b, for_b)))
        else:
            a, b = (program.copied(y.reshape(shape), y) for y, shape in ((x.a, for_a), (x.b, for_b)))
        c = self.call.c
        c = seen.stacked(c, False, _reshaped) if isinstance(c, np.ndarray) else c
        out, into = next((y for y in self.outs if y is not None and y.shape == self.beside.shape), None), None
        if by_tables and out is not None and root(seen.stacked(out)) is not root(out):
            into = seen.stacked(out, merged=False)
        scattered = x._replace(c=into) if by_tables else None           # type: ignore[arg-type]
        self._results(self.call._replace(a=a, b=b, c=c, scattered=scattered),
                      fused.product if by_tables or self.beside.expression else host.product,
                      partial(seen.stacked, reshaped=_reshaped), seen.stacked, seen.back)

    def _packs(self, x: Operands) -> bool:
        """Whether operands are packed by tables for this product."""
        sums, result = self.beside.sums, self.beside.result
        plain = isinstance(formats.find(result), formats.Float) or result.kind in "iu"
        if sums.kind == "c" or not (self.beside.expression or plain):
            return False
        first = (0,) * max(x.counts[0] - 1, 0)
        a, b = (y[first] for y in host.packed_by_tables(x, sums))
        batch, (m, n, _) = min(x.counts[0], 1), x.sizes
        c = np.empty((*x.c.shape[len(first) : x.counts[0]], m, n), sums)
        packs: bool = forks.imported("tilewright.runtime.cpu.contraction").packs(
            a, b, c, (batch, *x.counts[1:]), self.threads or pool.get_num_threads())
        return packs

    # ---- results

    def _results(self, now: Call, multiply: Callable[[Call], Any], operand: Callable[[Array], Array],
                 view: Callable[[Array], Array], back: Callable[[Array, str], Array]) -> None:
        """Multiply, with arrays of the result's shape as `operand` makes matrices of them, and results where `view`
        sees that an out is one; `back` gives others the result's axes."""
        by, outs = self.beside, list[Array | None]()
        for out, reduced in zip(self.outs, by.reduced):
            direct = out is not None and not reduced and (by.expression is not None or out.dtype == by.result)
            seen = view(out) if out is not None and direct else None
            outs.append(seen if root(seen) is root(out) else None)
        operands = self.call.operands and {name: operand(y) for name, y in self.call.operands.items()}
        products = multiply(now._replace(operands=operands, out=tuple(outs) if outs[1:] else outs[0]))
        several = products if isinstance(products, tuple) else (products,)
        into = None if now.scattered is None else now.scattered.c
        self.results = [out if out is not None and (seen is not None or y is into) else back(np.asarray(y), reduced)
                        for y, seen, out, reduced in zip(several, outs, self.outs, by.reduced, strict=True)]

    def delivered(self, last: Term) -> Any:
        """What the caller gets. last: the sums, if no product has made results."""
        if self.results is None:
            self._of_sums(contraction.arranged(last, self.terms.output))
        arrays: list[Any] = []
        for x, out in zip(self.results or (), self.outs):
            if out is None:
                arrays.append(program.scalar(program.copied(np.asarray(x, order=self.order), x))[()])
                continue
            if x is not out:
                arguments.check_cast(x.dtype, out.dtype, "out")
                program.do(host.store, out, x)
            arrays.append(out)
        return tuple(arrays) if arrays[1:] else arrays[0]

    def _of_sums(self, x: Array) -> None:
        by, c = self.beside, self.call.c
        alpha, beta = (arguments.factor(getattr(self.call, name), name, by.sums) for name in ("alpha", "beta"))
        added = [] if not beta else [c if isinstance(c, np.ndarray) else program.constant(arguments.added(c, by.sums))]
        if alpha != 1 or beta:
            x = program.computed(partial(_combined, by.shape, by.sums, alpha, beta), x, *added)
        if by.expression is None:
            self.results = [program.rounded(x, by.result)]
            return

        def matrices(y: Array) -> Array:
            return y.reshape((*(1,) * (2 - y.ndim), *y.shape))
        x = matrices(np.broadcast_to(x, by.shape))
        a, b = (program.constant(np.empty(shape, by.sums)) for shape in (
            (*x.shape[:-1], 0), (*x.shape[:-2], 0, x.shape[-1])))
        self._results(self.call._replace(a=a, b=b, c=x, alpha=1, beta=1), fused.product, matrices, matrices,
                      lambda y, reduced: y.reshape(by.shape_of(reduced)))


def _reshaped(x: Array, shape: Sequence[int]) -> Array:
    return program.copied(x.reshape(shape), x)


def _combined(shape: tuple[int, ...], sums: np.dtype[Any], alpha: Any, beta: Any, x: Array, *c: Array) -> Array:
    """alpha * x + beta * c; x is not read if alpha is 0."""
    with np.errstate(all="ignore"):
        total = x.astype(sums, copy=False) * sums.type(alpha) if alpha else np.zeros(shape, sums)
        for one in c:
            total = total + one.astype(sums, copy=False) * sums.type(beta)
        return np.asarray(total).astype(sums, copy=False).reshape(shape)
