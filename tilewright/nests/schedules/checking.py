"""`check`: a schedule runs in the simulator, which finds races and accesses out of bounds, and leaves the numbers that
the loops as written leave, to the bit.

Large arrays are replaced by small ones. The same operations are done with tiles that have two rounds, unless vectors,
threads or unrolled loops need more, and each loop that is split has two tiles, and a part of one if it had.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.nests.nest import LoopNest
from tilewright.nests.running import verified
from tilewright.nests.schedules.compiled import compiled, laid_out
from tilewright.nests.schedules.dependences import span
from tilewright.nests.schedules.lanes import UNROLLED
from tilewright.nests.schedules.scheduled import Illegal, Layout, Scheduled, scheduled, widest
from tilewright.nests.tree import For

FEW = 2                 # rounds of a loop

Operation = tuple[str, tuple[Any, ...], dict[str, Any]]


class Wants:
    """How many rounds loops need, so that everything that operations have done happens."""

    def __init__(self, steps: Sequence[Operation], first: Scheduled, last: Scheduled) -> None:
        self.steps, self.last = steps, last
        self.rounds = {x.index: x.extent for x in (*first.loops, *last.loops)}
        self.kept = last.unrolled() | {x.index for x in last.loops if x.mark.startswith("thread")}
        self.kept |= {x for method, a, _ in steps if method == "tensorize" for x in a}
        self.factors: dict[int, int] = {}
        self.least = {a[0]: a[1] + 1 for method, a, _ in steps if method == "pipeline"}
        self.lanes = next((a[0] for method, a, _ in steps if method == "lanes"), 1)
        self.bound = {x.index for x in last.loops if x.mark}

    def needed(self, name: str, rounds: int, at: int = 0) -> int:
        """The rounds that a loop needs which has so many of them before operation `at`."""
        for n in range(at, len(self.steps)):
            method, arguments, _ = self.steps[n]
            if method == "split" and arguments[0] == name:
                _, factor, outer, inner = arguments
                tiles, rest = divmod(rounds, factor)
                part = self.needed(inner, factor, n + 1)
                part = max(part, FEW) if rest and factor > 1 else part
                self.factors[n] = part
                return part * self.needed(outer, max(tiles, 1), n + 1) + min(rest, part - 1)
            if method == "fuse" and name in arguments[:2]:
                return rounds
        if self.lanes > 1 and name not in self.bound:
            turns = FEW * UNROLLED if rounds % (UNROLLED * self.lanes) == 0 else FEW
            return min(rounds, turns * self.lanes + rounds % self.lanes)
        return rounds if name in self.kept else min(rounds, self.least.get(name, FEW))


def smaller(nest: LoopNest, sizes: dict[str, int], arrays: dict[str, Layout], wants: Wants
            ) -> tuple[dict[str, int], dict[str, Layout]]:
    """Sizes and arrays with which the loops have the rounds that are wanted."""
    new: dict[str, int] = {}
    for s in nest.statements:
        for loop in s.loops:
            rounds = (loop.stop - loop.start).value(sizes) if (loop.stop - loop.start).names <= sizes.keys() else None
            constant, factors = (loop.stop - loop.start).linear()
            if rounds is not None and len(factors) == 1 and [*factors.values()] == [1] and loop.step == 1:
                name = next(iter(factors))
                new[name] = max(new.get(name, 0), wants.needed(loop.index, rounds) - constant)
    for name, n in sizes.items():
        if name not in new:
            alike = [new[x] for x in new if sizes[x] == n]
            new[name] = max(alike, default=n)
    tree = scheduled(nest, arrays, new)
    box = widest(tree.nodes, {})
    shapes = {name: [new.get(f"{name}.shape[{axis}]", 0) for axis in range(len(a.shape))] for name, a in arrays.items()}
    for node, _ in tree.statements:
        for a, _ in node.accesses():
            for axis, p in enumerate(a.subscripts if a.array in arrays else ()):
                most = span(p, box)[1] + 1
                if f"{a.array}.shape[{axis}]" in new and most > shapes[a.array][axis]:
                    raise Illegal(f"{a} would be outside of a smaller {a.array}")
                shapes[a.array][axis] = max(shapes[a.array][axis], most)
    return new, {name: _alike(a, tuple(shapes[name])) for name, a in arrays.items()}


def _alike(a: Layout, shape: tuple[int, ...]) -> Layout:
    """An array of another shape, its axes in the same order of strides."""
    x = _array(a, shape, None)
    return Layout(shape, tuple([n // x.itemsize for n in x.strides]), a.element)


def _array(a: Layout, shape: tuple[int, ...], random: np.random.Generator | None) -> np.ndarray[Any, Any]:
    order = sorted(range(len(shape)), key=lambda axis: (-abs(a.strides[axis]), axis))
    extents = [shape[axis] for axis in order]
    x = np.zeros(extents, np.int8) if random is None else random.integers(-3, 4, extents)
    return x.astype(a.element.numpy).transpose([order.index(axis) for axis in range(len(shape))])


def check(nest: LoopNest, sizes: dict[str, int], first: Scheduled, last: Scheduled, steps: Sequence[Operation],
          again: Callable[[Scheduled, Sequence[Operation]], Scheduled], most: int
          ) -> tuple[Any, dict[str, int], Scheduled]:
    """The simulator's report, the sizes it is for, and the schedule. AssertionError where numbers differ, a Fault of
    the simulator for races and accesses out of bounds. `again`: does operations on the loops as written.
    `most`: statements that are simulated as they are."""
    arrays = first.arrays
    rounds = sum(int(np.prod([x.extent or 1 for x in around if isinstance(x, For)])) for _, around in first.statements)
    if rounds > most:
        wants = Wants(steps, first, last)
        sizes, arrays = smaller(nest, sizes, arrays, wants)
        steps = [(m, (a[0], wants.factors[n], *a[2:]), o) if n in wants.factors else (m, a, o)
                 for n, (m, a, o) in enumerate(steps)]
    start = scheduled(nest, arrays, sizes)
    done = again(start, steps)
    random = np.random.default_rng(0)
    given: dict[str, Any] = {name: _array(a, a.shape, random) for name, a in arrays.items()}
    given |= {p.name: float(n + 2) for n, p in enumerate(nest.parameters) if p.kind == "number"}
    want, have = ({name: laid_out(arrays[name], x) if name in arrays else x for name, x in given.items()}
                  for _ in range(2))
    plain = compiled(nest, sizes, start)
    plain(*[want[p.name] if p.name in want else sizes[p.name] for p in nest.parameters])
    report = compiled(nest, sizes, done).simulate(have)
    if not verified.equal(nest, {x: have[x] for x in arrays}, {x: want[x] for x in arrays}):
        raise AssertionError(f"{nest.name}: the schedule leaves other numbers than the loops as written, for {sizes}")
    return report, sizes, done
