"""A schedule as a recorded function, and calls of it: on a CPU's threads, on a GPU, in the simulator; and `check`: a
schedule runs in the simulator, which finds races and accesses out of bounds, and leaves the numbers that the loops as
written leave, to the bit.

`check` replaces large arrays by small ones. The same operations are done with tiles that have two rounds, unless
vectors, threads or unrolled loops need more, and each loop that is split has two tiles, and a part of one if it had.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from tilewright.nests.given import overlap
from tilewright.nests.nest import LoopNest, leaves
from tilewright.nests.running import verified
from tilewright.nests.running.again import Calls
from tilewright.nests.running.execution import look
from tilewright.nests.running.lower import Lowered, lower
from tilewright.nests.schedules.conditions import hoisted, narrowed, versioned
from tilewright.nests.schedules.dependences import span
from tilewright.nests.schedules.lanes import UNROLLED
from tilewright.nests.schedules.scheduled import Illegal, Layout, Scheduled, scheduled, widest
from tilewright.nests.tree import For, Node, rewritten
from tilewright.runtime.gpu import arrays

LINE = 64               # bytes of a cache line, at which buffers begin
VECTOR = 16             # bytes that divide the addresses of arrays on a GPU, whose vector loads need it


@dataclass(frozen=True)
class Compiled:
    """The function of a schedule for one target. `function` is recorded, `llvm` and `asm` are its code."""
    nest: LoopNest
    sizes: dict[str, int]
    arrays: dict[str, Layout]
    lowered: Lowered
    target: Any
    _spaces: list[dict[str, Any]] = field(default_factory=list)
    _calls: Calls = field(default_factory=Calls)

    @property
    def function(self) -> Any:
        return self.lowered.function

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.lowered.grid(self.sizes)

    @property
    def llvm(self) -> str:
        from tilewright.compiler.llvm import text
        return text([self.function], self.target)

    @property
    def asm(self) -> str:
        from tilewright.compiler.llvm import assembly
        return assembly(self.function, self.target)

    def __call__(self, *args: Any) -> None:
        """Run on arrays of the schedule's shapes, strides and formats, in place. ValueError for others."""
        if not self._calls.again(args):
            self._first(args)

    def _first(self, args: Sequence[Any]) -> None:
        from tilewright.runtime.run import run

        names = [p.name for p in self.nest.parameters]
        if len(args) != len(names):
            raise TypeError(f"{self.nest.name} takes ({', '.join(names)}), and is given {len(args)} arguments")
        given = dict(zip(names, args, strict=True))
        self._checked(given)
        try:
            space = self._spaces.pop()          # of an earlier call that is over
        except IndexError:
            space = self._space(args)
        gridded = self.function.threads is not None or self.function.programs
        values = self._values(given, space)
        if self.function.threads is None:
            run(self.function, *values, grid=self.grid if gridded else None)
        else:
            def launch() -> int:
                run(self.function, *values, grid=self.grid)
                return 1
            written = self.written()
            self._calls.run(args, look(names, args).seen, [n for n, x in enumerate(names) if x in written], launch)
        self._spaces.append(space)

    def simulate(self, arrays: Mapping[str, Any]) -> Any:
        """The simulator's report of a run on these arrays, in place."""
        from tilewright import simulator

        gridded = self.function.threads is not None or self.function.programs
        space = {x: np.zeros(n, self._element(x)) for x, n in self._sizes().items()}
        return simulator.run(self.function, *self._values(arrays, space), grid=self.grid if gridded else None)

    def _sizes(self) -> dict[str, int]:
        return {x: n * (prod(self.grid) if private else 1) for x, (n, private) in self.lowered.scratch.items()}

    def _element(self, buffer: str) -> Any:
        place = self.lowered.arguments.index(buffer)
        return self.function.params[place][1].type.element.numpy

    def _space(self, args: Sequence[Any]) -> dict[str, Any]:
        """Memory for the buffers, where the arrays are."""
        values: dict[str, Any] = {}
        library = arrays.library_of(*args) if self.function.threads is not None else None
        for name, n in self._sizes().items():
            if library is not None:
                x = next(x for x in args if arrays.library_of(x) is library)
                device = library.platform.driver.device(library.device(x)).index
                values[name] = library.empty((n,), self._element(name), device, library.stream(x, device))
                continue
            space = np.empty(n * np.dtype(self._element(name)).itemsize + LINE, np.int8)
            first = -space.ctypes.data % LINE
            values[name] = space[first:len(space) - LINE + first].view(self._element(name))
        return values

    def _values(self, given: Mapping[str, Any], space: Mapping[str, Any]) -> list[Any]:
        return [given[x] if x in given else space[x] if x in space else self.sizes[x] for x in self.lowered.arguments]

    def _checked(self, given: Mapping[str, Any]) -> None:
        used = {a.array for s in self.nest.statements for a in (s.target, *leaves(s.value))}
        for name, layout in self.arrays.items():
            if name not in used:
                continue
            have = layout_of(given[name], layout.element)
            if have != layout:
                raise ValueError(f"{name} is an array of shape {have.shape} and strides {have.strides}, and the "
                                 f"schedule is for {layout.shape} and {layout.strides}")
        for name in self.written():
            for other in self.arrays:
                if other != name and overlap(given[name], given[other]):
                    raise ValueError(f"{name} is written and shares memory with {other}")

    def written(self) -> set[str]:
        return {s.target.array for s in self.nest.statements} & self.arrays.keys()


def compiled(nest: LoopNest, sizes: dict[str, int], s: Scheduled, target: Any = None) -> Compiled:
    from tilewright import targets

    gpu = on_gpu(s)
    target = targets.detect() if target is None and not gpu else targets.coerce(target or "sm_90a")
    plain = replace(nest, scalars={x: t for x, t in nest.scalars.items() if not s.buffers[x].shape})
    buffers = {x: b for x, b in s.buffers.items() if b.shape or x not in plain.scalars}
    options: dict[str, Any] = {"gpu": True, "warp": target.warp, "align": VECTOR,
                               "copies": "cp.async" in target.instructions} if gpu else {}
    lowered = lower(plain, for_kernels(s), buffers=buffers, strides={x: a.strides for x, a in s.arrays.items()},
                    **options)
    return Compiled(nest, sizes, s.arrays, lowered, target)


def on_gpu(s: Scheduled) -> bool:
    return any(x.mark.startswith(("block", "thread")) for x in s.loops)


def for_kernels(s: Scheduled) -> tuple[Node, ...]:
    """The nodes; loops that are axes of a buffer in registers are unrolled, and conditions stand around loops."""
    s, names = narrowed(s), s.unrolled()
    nodes = hoisted(rewritten(s.nodes, lambda n: (
        (replace(n, mark="unroll"),) if isinstance(n, For) and n.index in names and not n.mark else (n,))))
    return versioned(nodes) if on_gpu(s) else nodes


def layout_of(x: Any, element: Any) -> Layout:
    if isinstance(x, np.ndarray):
        return Layout(x.shape, tuple([n // x.itemsize for n in x.strides]), element)
    return Layout(tuple(x.shape), tuple(x.stride() if hasattr(x, "stride") else [n // x.itemsize for n in x.strides]),
                  element)


def laid_out(layout: Layout, numbers: Any) -> np.ndarray[Any, Any]:
    """A new array of this layout with these numbers."""
    spans = [(n - 1) * step for n, step in zip(layout.shape, layout.strides) if n]
    low, high = (sum(part(0, x) for x in spans) for part in (min, max))
    memory = np.zeros(high - low + 1, layout.element.numpy)
    view = np.lib.stride_tricks.as_strided(memory[-low:], layout.shape, [x * memory.itemsize for x in layout.strides])
    view[...] = numbers
    return view


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
        self.held = any(method == "lanes" and o for method, _, o in steps)
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
            if self.held:
                return min(rounds, FEW * self.lanes * VECTOR + rounds % (self.lanes * VECTOR))
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
