"""`Execution`: a loop nest, unscheduled, run where its arrays are: on a CPU, on a GPU, or in the simulator."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright import forks, simulator, targets
from tilewright.api import tensors
from tilewright.ir import Function, Type, bf16, f16, f32, f64, i8, i16, i32, i64
from tilewright.ir.vectors import reasons, width
from tilewright.nests import domain
from tilewright.nests.given import folded
from tilewright.nests.nest import LoopNest, refuse
from tilewright.nests.running.again import span
from tilewright.nests.running.lower import Lowered, lower
from tilewright.nests.running.parallel import Part, Rounds, steps, vectors
from tilewright.nests.tree import For, tree
from tilewright.runtime import run
from tilewright.runtime.cpu import calls, layout
from tilewright.runtime.gpu import arrays
from tilewright.simulator.machine import SECTOR, Machine

TYPES: dict[Any, Type] = {t.numpy: t for t in (f16, bf16, f32, f64, i8, i16, i32, i64)}
MOST_KNOWN = 1024               # calls that are remembered of a nest
ALONE = 1                       # CTAs of launches that are not worth it
WHOLE = range(-1 << 63, 1 << 63)

Array = NDArray[Any]
Numbers = (np.integer, np.floating)


@dataclass(frozen=True)
class Given:
    """The arguments of a call. `seen`: what they are to NumPy: of arrays in a GPU's memory, shadows. `gpu`: the GPU's
    target; None for this machine's CPU."""
    args: tuple[Any, ...]
    seen: tuple[Any, ...]
    gpu: Any

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arguments for a kernel: tensors in the host's memory as NumPy's arrays."""
        return self.seen if self.gpu is None else self.args


def look(names: Sequence[str], args: Sequence[Any], gpu: str | bool | None = None) -> Given:
    """The arguments, and where they are; TypeError for what is no array or number, and for arrays in several places.
    `gpu`: NumPy's arrays, as if they were in this GPU's memory."""
    seen, places = list[Any](), dict[Any, str]()
    for name, x in zip(names, args, strict=True):
        y = x.item() if isinstance(x, Numbers) else tensors.array(x, name, True) if tensors.present(x) else x
        if isinstance(y, np.ma.MaskedArray):
            raise TypeError(f"{name} is a masked array, whose mask loops cannot honour; pass {name}.filled(0)")
        if isinstance(y, np.ndarray):
            places.setdefault("the host", name)
        elif isinstance(y, int):
            if y not in WHOLE:
                raise OverflowError(f"{name} is {y}, which is no whole number of 64 bits")
        elif not isinstance(y, float):
            library = arrays.library_of(y)
            if library is None:
                raise TypeError(f"{name} must be an array, a whole number or a float, not {calls.kind(y)}")
            device = library.platform.driver.device(library.device(y))
            places.setdefault(device, name)
            y = library.look(y, name, library.stream(y, device.index)).shadow
        seen.append(y)
    if len(places) > 1:
        (here, x), (there, y) = list(places.items())[:2]
        raise TypeError(f"{x} is on {here} and {y} on {there}: loops run where all their arrays are")
    on: Any = next(iter(places), "the host")
    target = None if on == "the host" else on.target
    if gpu and target is None:
        target = targets.coerce("sm_90a" if gpu is True else gpu)
    return Given(tuple(args), tuple(seen), target)


@dataclass(frozen=True)
class Launch:
    """A function, and where its arguments come from: ("A", "", 0) as given, ("A", "shape", 1), ("A", "stride", 0)."""
    part: Part
    lowered: Lowered
    sources: tuple[tuple[str, str, int], ...]

    def __str__(self) -> str:
        shared = [f"{x.index} along {x.mark[-1]}" for x in self.part.shared]
        across, down = self.part.threads
        how = (f"rounds shared by CTAs of {across} x {down} threads, {', '.join(shared)}" if shared else
               "one thread has all rounds")
        return "\n    in order, ".join([f"launch: {how}", *self.part.said])


@dataclass(frozen=True)
class Repeated:
    """Launches in each round of a loop; `alone`: one thread does all of it, which is faster where no launch has more
    than one CTA."""
    loop: For
    steps: tuple[Launch | Repeated, ...]
    alone: Launch

    def round(self, x: int, numbers: dict[str, int]) -> dict[str, int]:
        return {**numbers, self.loop.index: x}

    def rounds(self, numbers: dict[str, int]) -> range:
        return range(self.loop.start.value(numbers), self.loop.stop.value(numbers), self.loop.step)

    def wide(self, numbers: dict[str, int]) -> bool:
        """Whether a launch of the first round or of the last one has several CTAs."""
        rounds = self.rounds(numbers)
        return any(x.wide(inner) if isinstance(x, Repeated) else prod(x.lowered.grid(inner)) > ALONE
                   for inner in [self.round(n, numbers) for n in (*rounds[:1], *rounds[-1:])] for x in self.steps)

    def __str__(self) -> str:
        lines = "\n".join(map(str, self.steps)).splitlines()
        return "\n    ".join([f"the host, in each round of {self.loop.index}:", *lines])


def launches(found: Sequence[Launch | Repeated], numbers: dict[str, int]) -> Iterator[tuple[Launch, dict[str, int]]]:
    """The launches in the order in which they are made, with the sizes and indices of each."""
    for step in found:
        if isinstance(step, Launch):
            yield step, numbers
        elif not step.wide(numbers):
            yield step.alone, numbers
        else:
            for x in step.rounds(numbers):
                yield from launches(step.steps, step.round(x, numbers))


plain = cache(calls.Plain)              # a function's code, which no other threads share


class Repeat(NamedTuple):
    """A call on a CPU, of arrays that lie alike. `values`: the number of an argument, or what is the same in all such
    calls; `pairs`: arrays with the differences of addresses for which they do not overlap."""
    call: Callable[..., Any]
    values: tuple[tuple[int | None, Any], ...]
    pairs: tuple[tuple[int, int, int, int], ...]

    def apart(self, seen: Sequence[Any]) -> bool:
        """Whether no array that is written overlaps another one."""
        for n, other, before, after in self.pairs:
            if before < layout.address(seen[other]) - layout.address(seen[n]) < after:
                return False
        return True


class Execution:
    """Calls of one nest. Recorded once for arrays that do not overlap, once for others; on GPUs also for each order of
    axes in memory."""

    def __init__(self, nest: LoopNest) -> None:
        self.nest = nest
        self.names = tuple(p.name for p in nest.parameters)
        self._steps: dict[Any, tuple[Launch | Repeated, ...]] = {}
        self._repeats: dict[Any, Repeat] = {}
        self._inside: set[Any] = set()          # sizes and shapes for which all subscripts are inside of the arrays
        lines = {s.target.array: s.line for s in reversed(nest.statements) if s.target.array not in nest.scalars}
        self.written = {self.names.index(x): line for x, line in lines.items()}
        self._sizes = [(name, *_source(name)) for name in nest.sizes]

    def __call__(self, args: Sequence[Any]) -> None:
        self.run(look(self.names, args))

    def run(self, given: Given) -> int:
        """Compute the results; on a GPU they may not be there yet. How many launches on a GPU that is."""
        if given.gpu is None:
            key = tuple([(x.dtype, x.shape, x.strides, x.flags.num) if isinstance(x, np.ndarray) else
                         x if isinstance(x, int) else None for x in given.seen])
            repeat = self._repeats.get(key)
            if repeat is None or not repeat.apart(given.seen):
                repeat = self._first(given)
                if len(self._repeats) >= MOST_KNOWN:
                    self._repeats.clear()
                if repeat.apart(given.seen):
                    self._repeats[key] = repeat
            repeat.call(*[x if n is None else layout.address(given.seen[n]) if isinstance(given.seen[n], np.ndarray)
                          else given.seen[n] for n, x in repeat.values])
            return 0
        found, own = dict(zip(self.names, given.seen)), dict(zip(self.names, given.args))
        for launch, numbers in (ran := [*launches(self.steps(given), self.check(given, found))]):
            values = [own.get(x, value) if not what else value
                      for value, (x, what, _) in zip(_values(launch, found, numbers), launch.sources)]
            run.run(launch.lowered.function, *values, grid=launch.lowered.grid(numbers))
        return len(ran)

    def _first(self, given: Given) -> Repeat:
        """A call on a CPU, for itself and for others like it."""
        found = dict(zip(self.names, given.seen))
        sizes = self.check(given, found)
        launch: Any = self.steps(given)[0]
        values = tuple([(None, x) if what or name not in self.names else (self.names.index(name), None)
                        for x, (name, what, _) in zip(_values(launch, found, sizes), launch.sources)])
        spans = {n: span(x) for n, x in enumerate(given.seen) if isinstance(x, np.ndarray)}
        pairs = [(n, other) for n in self.written for other in spans if other != n]
        return Repeat(plain(launch.lowered.function).call, values, tuple(
            [(n, other, spans[n][0] - spans[other][1], spans[n][1] - spans[other][0]) for n, other in pairs]))

    def simulate(self, given: Given) -> tuple[Any, tuple[Any, ...]]:
        """The report of a simulated call, and the copies of NumPy's arrays that it was given."""
        if any(x is not y for x, y in zip(given.args, given.seen) if isinstance(y, np.ndarray)):
            raise TypeError("NumPy's arrays are simulated: pass copies of other arrays")
        copies = _copied(given.seen)
        values = dict(zip(self.names, copies))
        sizes = self.check(given, values)
        report = simulator.Report(SECTOR) if given.gpu else None
        for launch, numbers in launches(self.steps(given), sizes):
            machine = Machine(launch.lowered.function, simulator.AddressSpace(), {}, report)
            grid = launch.lowered.grid(numbers) if given.gpu else None
            report = machine.run_grid(_values(launch, values, numbers), grid)
        return report, copies

    def functions(self, given: Given) -> tuple[Function, ...]:
        """The recorded functions that a call with these arguments runs."""
        def inside(found: Sequence[Launch | Repeated]) -> Iterator[Function]:
            for x in found:
                yield from [x.lowered.function] if isinstance(x, Launch) else inside([*x.steps, x.alone])
        return tuple(inside(self.steps(given)))

    def explain(self, given: Given) -> str:
        """The loops, and how they run."""
        recorded = self.steps(given)
        if given.gpu is not None or not isinstance(recorded[0], Launch):
            return "\n".join(map(str, (self.nest, *recorded)))
        vectors = "".join(f", {x.index} by vectors" for x in recorded[0].part.shared)
        why = reasons(recorded[0].lowered.function, width(targets.detect()))
        return "\n    but ".join([f"{self.nest}\none thread of the CPU, in this order{vectors}", *why])

    # ---- arguments

    def check(self, given: Given, found: dict[str, Any]) -> dict[str, int]:
        """The sizes of a call; TypeError or ValueError unless the loops can access the arrays."""
        for n, line in self.written.items():
            if given.gpu is None and not given.seen[n].flags.writeable:
                raise ValueError(f"{self.names[n]} is read-only, and is written at {line}\n    {line.text}")
        shapes = dict[str, tuple[int, ...]]()
        for p, x in zip(self.nest.parameters, given.seen):
            if p.kind in ("array", "pointer"):
                self._array(p, x)
                shapes[p.name] = (x.size,) if p.kind == "pointer" else x.shape
        sizes = {name: found[x].shape[axis] if what else found[x] for name, x, what, axis in self._sizes}
        key = tuple(sizes.values()), tuple(shapes.values())
        if key not in self._inside:
            domain.check(self.nest, sizes, shapes)
            if len(self._inside) >= MOST_KNOWN:
                self._inside.clear()
            self._inside.add(key)
        return sizes

    @staticmethod
    def _array(p: Any, x: Any) -> None:
        if not isinstance(x, np.ndarray) or TYPES.get(x.dtype) != p.element:
            raise TypeError(f"{p.name} must be an array of {p.element.numpy}, not {calls.kind(x)}")
        if p.kind == "pointer" and not x.flags.c_contiguous:
            raise ValueError(f"{p.name} must be contiguous, since it is accessed by numbers of elements")
        if not x.flags.aligned or any(s % x.itemsize for s in x.strides):
            raise ValueError(f"elements of {p.name} begin at no multiples of their size: pass {p.name}.copy()")

    # ---- recorded functions

    def steps(self, given: Given) -> tuple[Launch | Repeated, ...]:
        """What a call with these arguments does: on a CPU one launch."""
        alike = _overlaps(given.seen, self.written)
        if alike != ():
            self._apart(given.seen)
        how: Any = alike == ()
        if given.gpu is None:
            how = how, tuple([_units(x) for x in given.seen if isinstance(x, np.ndarray)]) if how else ()
        else:
            how = given.gpu.warp, alike, tuple([_fastest(x) for x in given.seen if isinstance(x, np.ndarray)])
        recorded = self._steps.get(how)
        if recorded is None:
            with forks.building:
                recorded = self._steps[how] = self._recorded(given, alike)
        return recorded

    def _apart(self, seen: Sequence[Any]) -> None:
        """Refused if what statements read later than the source does may have been written until then."""
        for s in self.nest.reads:
            read = self.names.index(s.target.array)
            for n, line in self.written.items():
                if n != read and np.may_share_memory(seen[n], seen[read]):
                    refuse(s.line, f"{self.names[read]} shares memory with {self.names[n]}, which is written at {line}")

    def _recorded(self, given: Given, alike: Any) -> tuple[Launch | Repeated, ...]:
        nodes, options = tree(self.nest), dict[str, Any](noalias=alike == ())
        if given.gpu is None:
            if alike == ():
                arrays = [p.kind == "array" for p in self.nest.parameters]
                units = {x: _units(y) for x, y, array in zip(self.names, given.seen, arrays) if array}
                options["strides"] = {x: [1 if unit else None for unit in axes] for x, axes in units.items()}
                nodes = vectors(self.nest, nodes, units)
            return (_launch(Part(self.nest, nodes, (1, 1), ()), options),)
        options |= {"gpu": True, "warp": given.gpu.warp}
        if alike is None:
            why = "all loops: an array that is written overlaps another one, or itself"
            return (_launch(Part(self.nest, nodes, (1, 1), (why,)), options),)
        named = {x: y for x, y in zip(self.names, given.seen) if isinstance(y, np.ndarray)}
        places = dict[Any, str]()
        same = {x: places.setdefault(_place(y), x) for x, y in named.items()}
        numbers = count(1)

        def launch(part: Part) -> Launch:
            return _launch(part, {**options, "name": f"{self.nest.name}_{next(numbers)}"})

        def recorded(step: Part | Rounds) -> Launch | Repeated:
            if isinstance(step, Part):
                return launch(step)
            return Repeated(step.loop, tuple(map(recorded, step.steps)), launch(step.alone))
        return tuple(map(recorded, steps(self.nest, nodes, same, {x: _fastest(y) for x, y in named.items()})))


def _launch(part: Part, options: Mapping[str, Any]) -> Launch:
    lowered = lower(part.nest, part.nodes, threads=part.threads, **options)
    return Launch(part, lowered, tuple(map(_source, lowered.arguments)))


def _values(launch: Launch, found: Mapping[str, Any], numbers: Mapping[str, int]) -> list[Any]:
    """The arguments of a launch; the arrays are those in `found`."""
    return [found[x] if not what and x in found else numbers[x] if not what else
            found[x].shape[axis] if what == "shape" else found[x].strides[axis] // found[x].itemsize
            for x, what, axis in launch.sources]


def _source(name: str) -> tuple[str, str, int]:
    """Where an argument of a recorded function comes from: "A.stride[1]" is ("A", "stride", 1)."""
    if not name.endswith("]"):
        return name, "", 0
    array, _, what = name.rpartition(".")
    what, _, axis = what.partition("[")
    return array, what, int(axis[:-1])


def _copied(args: Sequence[Any]) -> tuple[Any, ...]:
    """Copies of arrays that overlap as these do: one of the memory of each of them."""
    copies = dict[int, tuple[int, Array]]()

    def copy(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        root = x
        while isinstance(root.base, np.ndarray):
            root = root.base
        if id(root) not in copies:
            first, last = span(root)
            low = layout.address(root) + first
            copies[id(root)] = low, arrays.shadow(low, (last - first,), (1,), np.dtype(np.int8), root).copy()
        low, memory = copies[id(root)]
        return np.ndarray(x.shape, x.dtype, memory, layout.address(x) - low if x.size else 0, x.strides)
    return tuple(map(copy, args))


def _units(x: Array) -> tuple[bool, ...]:
    """The axes along which elements are consecutive."""
    return tuple([s == x.itemsize for s in x.strides])


def _fastest(x: Array) -> int:
    """The axis along which elements are closest in memory."""
    return min(range(x.ndim), key=lambda axis: (abs(x.strides[axis]) or 1 << 62, -axis), default=0)


def _overlaps(seen: Sequence[Any], written: Any) -> tuple[tuple[int, int], ...] | None:
    """Pairs of arguments that are one array twice, one of which is written; None if other arrays overlap."""
    pairs = set[tuple[int, int]]()
    for n in written:
        x = seen[n]
        if not distinct(x):
            return None
        for other, y in enumerate(seen):
            if other == n or not isinstance(y, np.ndarray) or not np.may_share_memory(x, y):
                continue
            if _place(x) != _place(y):
                return None
            pairs.add((min(n, other), max(n, other)))
    return tuple(sorted(pairs))


def _place(x: Array) -> Any:
    return layout.address(x), x.shape, x.strides, x.dtype


def distinct(x: Array) -> bool:
    """Whether each index has an element of its own."""
    return not folded(x.shape, x.strides, x.itemsize)
