"""`tilewright.schedule(f, *args)`: how the loops of f run, changed by operations that keep what they compute.

    s = tw.schedule(three_loops, A, B, C)                   # C[i, j] += A[i, p] * B[p, j]
    s = s.split("i", 8, "io", "ii").split("j", 32, "jo", "jj").reorder("io", "jo", "p", "ii", "jj")
    s = s.stage("C", around="p", axes=("ii", "jj"), space="registers")
    print(s, s.explain(), s.check())
    s(A, B, C)

Each operation returns a new schedule, or raises `Illegal`, with the line of f, the array and the distances that are in
the way. The tree stands in scheduled.py, what operations do in operations.py and staging.py.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tilewright.ir import Type
from tilewright.nests import operations, staging
from tilewright.nests.counts import Count, counts, table
from tilewright.nests.nest import LoopNest, text
from tilewright.nests.polynomial import Polynomial
from tilewright.nests.scheduled import Illegal, Layout, Scheduled, scheduled
from tilewright.nests.source import nest as read
from tilewright.nests.tree import For, Node, Sync, When


class Step(NamedTuple):
    """An operation that was done: a method, its arguments, a sentence, and the schedule before it."""
    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    sentence: str
    before: Scheduled


@dataclass(frozen=True)
class Schedule:
    """The loops of a function for arrays of these shapes and strides, and how they run. `now`: the tree."""
    nest: LoopNest
    sizes: dict[str, int]
    now: Scheduled
    steps: tuple[Step, ...] = ()

    # ---- operations

    def split(self, loop: str, factor: int, outer: str | None = None, inner: str | None = None, *,
              tail: str = "divide") -> Schedule:
        """`loop` as rounds of `outer`, each of `factor` rounds of `inner`. What is left if the factor does not divide:
        tail="divide" refuses it, "predicate" makes it a condition, "cut" a loop of its own, named loop + ".tail"."""
        names = outer or f"{loop}_o", inner or f"{loop}_i"
        return self._then("split", (loop, factor, *names), {"tail": tail},
                          operations.split(self.now, loop, factor, *names, tail))

    def reorder(self, *loops: str) -> Schedule:
        """Loops that stand directly one in the other, in this order, the outermost first."""
        return self._then("reorder", loops, {}, operations.reorder(self.now, loops))

    def fuse(self, outer: str, inner: str, name: str | None = None) -> Schedule:
        """One loop in place of two that count on, as `split` makes them."""
        name = name or f"{outer}_{inner}"
        return self._then("fuse", (outer, inner, name), {}, operations.fuse(self.now, outer, inner, name))

    def fission(self, loop: str, after: str | int) -> Schedule:
        """Two loops with a part of the body each: `after` is the last loop in the first part, or how many parts it
        has. The second loop has the name of the first one with ".2"."""
        return self._then("fission", (loop, after), {}, operations.fission(self.now, loop, after))

    def unroll(self, *loops: str) -> Schedule:
        return self._then("unroll", loops, {}, operations.unroll(self.now, loops))

    def vectorize(self, *loops: str, lanes: int | None = None) -> Schedule:
        """All rounds of an innermost loop at once; with `lanes`, so many, and the others in an unrolled loop around
        them, whose name ends with ".v"."""
        return self._then("vectorize", loops, {"lanes": lanes}, operations.vectorize(self.now, loops, lanes))

    def stage(self, array: str, around: str | None = None, axes: tuple[str, ...] = (), space: str = "memory", *,
              inside: str | None = None, pad: int = 0, name: str | None = None) -> Schedule:
        """A buffer for what loop `around` uses of an array, copied in before the loop, and back after it if it is
        written; `inside` a loop, in each of its rounds.

        axes    the loops in it that are axes of the buffer, in the order of its layout
        space   "registers", "shared" (of a CTA, whose thread loops are axes, too) or "memory"
        pad     elements that no one uses at the end of each row, against conflicts of shared memory's banks
        """
        if (around is None) == (inside is None):
            raise Illegal("stage takes one loop, around= or inside=")
        options = {"inside": inside, "pad": pad, "name": name}
        return self._then("stage", (array, around, axes, space), options, staging.stage(
            self.now, array, around or inside or "", axes, space, inside is not None, pad, name))

    def bind(self, places: dict[str, str] | None = None, /, **named: str) -> Schedule:
        """Rounds of these loops as CTAs ("block.x", "block.y", "block.z"), as threads of a CTA ("thread.x",
        "thread.y"), or shared by the threads of a CPU ("worker")."""
        places = {**(places or {}), **named}
        return self._then("bind", (places,), {}, operations.bind(self.now, places))

    def _then(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any], done: operations.Done
              ) -> Schedule:
        step = Step(method, arguments, options, done[1], self.now)
        return replace(self, now=done[0], steps=(*self.steps, step))

    # ---- what it is

    @property
    def history(self) -> tuple[str, ...]:
        """A sentence for each operation: what was done, why it is legal, whether sums are added in another order."""
        return tuple([x.sentence for x in self.steps])

    def __str__(self) -> str:
        return shown(self.now.nodes)

    def counts(self) -> dict[str, Count]:
        """For each array and buffer its level, the elements that are loaded and stored, and their bytes: from the
        bounds of loops alone."""
        return counts(self.now)

    def explain(self) -> str:
        """The history, with the bytes that each operation changes, and the counts."""
        lines = []
        for at, step in enumerate(self.steps):
            after = self.steps[at + 1].before if at + 1 < len(self.steps) else self.now
            lines.append(f"{at + 1:2d}. {step.sentence}")
            lines += [f"    {line}" for line in _changes(counts(step.before), counts(after))]
        return "\n".join([*lines, "", table(self.counts())])


def schedule(f: Callable[..., Any] | LoopNest, *args: Any) -> Schedule:
    """The schedule of f as written, for arguments like these: arrays of these shapes, strides and formats."""
    if isinstance(f, LoopNest):
        nest = f
    else:
        nest = read(f, [_kind(x) for x in args])
    arrays, numbers = {}, {}
    for p, x in zip(nest.parameters, args, strict=True):
        if p.kind == "array":
            x = np.asarray(x)
            assert p.element is not None
            arrays[p.name] = Layout(x.shape, tuple([n // x.itemsize for n in x.strides]), p.element)
        elif p.kind == "size":
            numbers[p.name] = int(x)
    sizes = {name: numbers[name] if name in numbers else _size(name, arrays) for name in nest.sizes}
    return Schedule(nest, sizes, scheduled(nest, arrays, sizes))


def _size(name: str, arrays: dict[str, Layout]) -> int:
    array, _, axis = name.partition(".shape[")
    return arrays[array].shape[int(axis[:-1])]


def _kind(x: Any) -> tuple[str, Type | None, int]:
    if isinstance(x, (int, np.integer)):
        return "size", None, 0
    if isinstance(x, (float, np.floating)):
        return "number", None, 0
    x = np.asarray(x)
    return "array", Type("f" if x.dtype.kind == "f" else "i", 8 * x.itemsize), x.ndim


def _changes(before: dict[str, Count], after: dict[str, Count]) -> list[str]:
    """A line for each array whose traffic an operation has changed."""
    lines = []
    for name in {**before, **after}:
        old, new = before.get(name, Count("", 0, 0, 0)), after.get(name, Count("", 0, 0, 0))
        if old != new:
            lines.append(f"{name} in {new.level or old.level}: {old.bytes} -> {new.bytes} bytes")
    return lines


def shown(nodes: tuple[Node, ...], indent: str = "") -> str:
    """A tree as text."""
    lines = []
    for n in nodes:
        if isinstance(n, For):
            start = "" if n.start == Polynomial(()) else f" = {n.start} ..."
            step = f" by {n.step}" if n.step != 1 else ""
            lines += [f"{indent}{n.mark + ' ' if n.mark else ''}for {n.index}{start} < {n.stop}{step}",
                      shown(n.body, indent + "  ")]
        elif isinstance(n, When):
            where = " and ".join(f"{c} >= 0" for c in n.conditions)
            lines += [f"{indent}where {where}", shown(n.body, indent + "  ")]
        elif isinstance(n, Sync):
            lines.append(f"{indent}barrier")
        else:
            sign = {"": "=", "add": "+=", "mul": "*="}.get(n.reduce, f"= {n.reduce} with")
            lines.append(f"{indent}{n.target} {sign} {text(n.value)}")
    return "\n".join(lines)
