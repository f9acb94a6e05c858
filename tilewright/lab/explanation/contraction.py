"""einsum's products in words: which label became m, n, k or the batch, how each operand is read, plan, bytes, time.

The same functions decide here as in a call (api/contraction.py, api/host.py, runtime/cpu/contraction.py); nothing is
multiplied or read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.api import host, pairs as api
from tilewright.lab.explanation.terminal import duration
from tilewright.lab.measure import probes
from tilewright.plans.common import total
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import Shape
from tilewright.rules import arguments, contraction, paths, subscripts
from tilewright.rules.contraction import Operands, Term
from tilewright.runtime.cpu import amx, contraction as by_tables, engine, pool
from tilewright.targets import CpuTarget, detect
from tilewright.text import size

GROUPS = "batch", "m", "n", "k"


@dataclass(frozen=True)
class Step:
    """A product of two operands, or what stands in its place."""

    subscripts: str
    how: str                                # matrices, a batch of them, tables, copies; sums, element by element
    groups: dict[str, tuple[str, int, int]] | None = None   # labels, size, and axes that are left after merging
    reads: tuple[tuple[str, str], ...] = ()         # A, B and C: how each is packed or stored
    plan: str = ""
    operations: int = 0
    least_bytes: int = 0                    # each element once
    bytes: int = 0                          # predicted, to and from memory
    seconds: float = 0.0                    # predicted

    def lines(self) -> Iterator[str]:
        yield f"{self.subscripts}   {self.how}"
        for name, (labels, extent, axes) in (self.groups or {}).items():
            if labels or name != "batch":
                merged = f", merged into {axes}" if axes < len(labels) else ""
                yield f"    {name:<6}{labels or '1':<10}{extent:>10,}{merged}"
        for name, how in self.reads:
            yield f"    {name:<6}{how}"
        if self.plan:
            yield f"    plan  {self.plan}"
            yield (f"    predicted {duration(self.seconds)}, {self.operations / self.seconds / 1e9:.3g} GFLOP/s; "
                   f"{size(self.bytes)} to and from memory, of {size(self.least_bytes)} at least")


@dataclass(frozen=True)
class Explanation:
    """The products of one call of einsum, in their order; print it to read it."""

    subscripts: str
    sizes: dict[str, int]
    formats: tuple[str, ...]                # of the operands, and of the result
    threads: int
    path: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        sizes = " ".join(f"{label}={extent}" for label, extent in self.sizes.items())
        *inputs, result = self.formats
        head = [f"{self.subscripts}   {sizes}",
                f"formats {', '.join(inputs)} -> {result}, threads {self.threads}, path {list(self.path)}"]
        return "\n".join([*head, *(f"{f'{number}.' if first else '':<3}{line}" for number, step in enumerate(
            self.steps, 1) for first, line in ((at == 0, line) for at, line in enumerate(step.lines())))])

    def record(self) -> dict[str, Any]:
        """The explanation as plain data, for JSON: the numbers, and the text."""
        return {**asdict(self), "text": str(self).splitlines()}


def einsum_path(*operands: Any, out: Any = None, out_dtype: Any = None, optimize: Any = True,
                threads: int | None = None) -> tuple[list[Any], Explanation]:
    """The order of products that tilewright.einsum takes with these arguments on this CPU, as numpy.einsum_path returns
    it; and how each product is made: which labels became m, n, k and the batch, which of these merge into one axis, how
    operands are packed and the result stored, the plan, predicted bytes and time.

    operands, out, out_dtype, optimize, threads  as in einsum. Operands' elements are not read: np.empty(shape) will do.

    Print the second value to read it; its fields are the same as data. Raises TypeError and ValueError where einsum
    does.
    """
    given, labels, output = subscripts.read(operands)
    target = arguments.output(arguments.single(out, "out"))
    arrays = [arguments.operand(x, f"operand {at}", least=0) for at, x in enumerate(given)]
    terms, path = paths.resolved(labels, output, [x.shape for x in arrays], optimize)
    limit = arguments.thread_count(threads) or pool.get_num_threads()
    sums, result = contraction.dtypes(arrays, out_dtype)
    notes = _Notes(result if all(x.dtype.kind == "b" for x in arrays) else sums, limit)
    place = api.place_of(target, terms.output) if target is not None and target.dtype == result else None
    api.pairwise(notes, arrays, terms, path, result, place)
    text = f"{','.join(map(_shown, terms.inputs))}->{_shown(terms.output)}"
    explanation = Explanation(text, {str(label): extent for label, extent in terms.sizes.items()},
                        tuple(str(x.dtype) for x in arrays) + (str(result),), limit, tuple(map(tuple, path)),
                        tuple(notes.steps))
    return ["einsum_path", *explanation.path], explanation


class _Notes(api.Work):
    """Lists the steps of a contraction instead of computing it; its arrays are never written."""

    def __init__(self, between: np.dtype[Any], threads: int) -> None:
        super().__init__(between, threads)
        self.steps: list[Step] = []

    def summed(self, term: Term, needed: set[Any]) -> Term:
        kept = tuple(label for label in term.labels if label in needed)
        if len(kept) == len(term.labels):
            return term
        self.steps.append(Step(f"{_shown(term.labels)}->{_shown(kept)}", "summed by NumPy, before any product of it"))
        extents = dict(zip(term.labels, term.array.shape))
        return Term(np.empty([extents[label] for label in kept], self.between), kept)

    def elementwise(self, a: Term, b: Term, kept: Any, dtype: np.dtype[Any]) -> Term:
        self.steps.append(Step(f"{_shown(a.labels)},{_shown(b.labels)}->{_shown(kept)}",
                               "no label is summed: multiplied element by element, by NumPy"))
        extents = dict(zip((*a.labels, *b.labels), (*a.array.shape, *b.array.shape)))
        return Term(np.empty([extents[label] for label in kept], dtype), kept)

    def multiply(self, a: Term, b: Term, c: Term, found: contraction.Layout) -> None:
        x = found.views(a.array, b.array, c.array)
        extents = dict(zip((*a.labels, *b.labels), (*a.array.shape, *b.array.shape)))
        groups = {name: (_shown(labels), prod(extents[label] for label in labels), count if labels else 0)
                  for name, labels, count in zip(GROUPS, found.groups, found.counts)}
        text = f"{_shown(a.labels)},{_shown(b.labels)}->{_shown(c.labels)}"
        if not x.c.size or not x.sizes[2]:
            self.steps.append(Step(text, "empty: nothing is multiplied", groups))
            return
        x, tables = host.as_multiplied(x)
        batch = prod(x.c.shape[: x.counts[0]])
        recipe = _by_tables(x, self.threads or 1) if tables else None
        if recipe is not None:
            how, reads = "packed and stored by tables of offsets", _read(recipe)
            shape, plan, target = recipe.shape, recipe.plan, recipe.target
        else:
            shape, plan, target, how, reads = _as_matrices(x, self.threads or 1)
        if batch > 1:
            how += f", {batch:,} times"
        cost = probes.basis(target, False).cost(shape, plan, target)
        operations = 2 * batch * prod(x.sizes) * (4 if x.c.dtype.kind == "c" else 1)
        least = sum(y.size * y.itemsize for y in (a.array, b.array, c.array))
        self.steps.append(Step(text, how, groups, reads, str(plan), operations, least,
                               max(batch * total(cost.traffic["memory"]), 0), batch * cost.seconds))


def _shown(labels: Sequence[Any]) -> str:
    return "".join(str(label) if isinstance(label, str) else subscripts.LETTERS[label] if 0 <= label < len(
        subscripts.LETTERS) else f"({label})" for label in labels)


def _by_tables(x: Operands, threads: int) -> Any:
    if x.c.dtype.kind == "c":
        return None
    a, b, c = host.for_tables(x)
    first = (0,) * max(x.counts[0] - 1, 0)
    return by_tables.planned(a[first], b[first], c[first], (min(x.counts[0], 1), *x.counts[1:]), threads)


def _read(recipe: Any) -> tuple[tuple[str, str], ...]:
    axes = []
    for name, by in zip("ABC", recipe.tables):
        lines, verb = ("columns", "stored") if name == "C" else ("rows" if name == "A" else "columns", "packed")
        if by is None:
            axes.append((name, f"{verb} with one stride for each index"))
            continue
        how = {"across": f"{lines} that lie side by side {verb} by vectors"
                         + (f", of which each meets up to {by.pieces} runs" if by.pieces > 1 else ""),
               "along": "packed by vectors along k, transposed in registers",
               "squares": f"{verb} in squares of {by.pieces} x {by.pieces}" if name == "B" else
                          f"stored in runs of {by.pieces} columns",
               "any": f"{verb} element by element"}[by.kind]
        axes.append((name, how))
    return tuple(axes)


def _as_matrices(x: Operands, threads: int) -> tuple[Shape, CpuPlan, CpuTarget, str, tuple[tuple[str, str], ...]]:
    """One product of the batch, with copies of what is no matrix."""
    m, n, k = x.sizes
    dtype = x.c.dtype
    sums, _ = arguments.dtypes(x.a, x.b, None, dtype)
    operands: list[Any] = []
    reads: list[tuple[str, str]] = []
    for name, y, shape in (("A", x.a, (m, k)), ("B", x.b, (k, n)), ("C", x.c, (m, n))):
        axes = y.shape[x.counts[0]:]
        if axes == shape:
            one = y[(0,) * x.counts[0]]
            taken = y.dtype if name == "C" or engine.converts(y.dtype, sums, m, n, k) else sums
            one = one if taken == y.dtype else np.empty(shape, taken)
        else:
            one = np.empty(shape, sums if name != "C" else dtype)
            reads.append((name, "copied to a matrix first" if name != "C" else "copied from a matrix at the end"))
        operands.append(one)
    if operands[2].dtype != sums and not engine.finishes(sums, dtype, m, n, k):
        operands[2] = np.empty((m, n), sums)
    a, b, c = operands
    planned = engine.planned(engine.lowered(a, b, c, threads, amx.permitted(detect()), None)[0])
    how = "copied to matrices" if reads else "matrices as they lie"
    return planned.shape, planned.plan, planned.target, how, tuple(reads)
