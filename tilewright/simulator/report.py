"""What a run did: the traffic of every line with every array, instructions by kind, what kernels print; and as text.

A run that does wrong ends with a Fault.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.forks import cached_property
from tilewright.ir.program import Line, Op
from tilewright.ir.types import Pointer
from tilewright.text import GAP, table

if TYPE_CHECKING:
    from tilewright.compiler.amd import Usage
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine
    from tilewright.simulator.occupancy import Occupancy

SOURCE = 60                                 # characters of a source line


class Fault(Exception):
    """`kind` in a word or two, then line, function, array and thread; the source line follows.

    Kinds: out of bounds, misaligned, uninitialised, read-only, no memory, arithmetic, no meaning, no result, signature;
    race, divergent and deadlock where there are several threads; in flight and unfenced where registers are those of
    matrix products that are not over.
    """

    def __init__(self, kind: str, line: Line, function: str, message: str, array: str = "", element: int | None = None,
                 here: Place | None = None, other: Place | None = None) -> None:
        """An access has also the array, the element of it, who accesses it here, and of a race who else does."""
        super().__init__(f"{kind} at {line} in {function}: {message}\n    {line.text}")
        self.kind, self.line, self.function = kind, line, function
        self.array, self.element, self.here, self.other = array, element, here, other


class Place(NamedTuple):
    """Who did what: `verb` is a word such as "load" or "written"; `line` is None where it is not known. `thread` is
    (x, y) in its `block`; of a CPU function its number, and ()."""
    verb: str
    block: tuple[int, ...]
    thread: tuple[int, ...] | int
    line: Line | None


class Site(NamedTuple):
    """Who moved data: a line of a kernel, the array it touched, and `verb`: "load" or "store"."""
    line: Line
    array: str
    space: str
    verb: str


@dataclass
class Traffic:
    """Requests are made by a CPU thread or a whole warp at once, elements are asked for by threads."""
    granule: int                # bytes that move together: a cache line on a CPU, a sector on a GPU
    requests: int = 0
    elements: int = 0
    bytes: int = 0              # of the elements
    moved: int = 0              # granules, or in shared memory passes over the banks, added up over all requests
    ideal: int = 0              # the fewest that could hold each request's distinct elements
    touched: dict[str, NDArray[np.bool_]] = field(default_factory=dict)     # array → bytes, from a granule's start on

    @property
    def distinct(self) -> int:
        """Different bytes touched in the whole run."""
        return sum(int(np.count_nonzero(t)) for t in self.touched.values())

    @property
    def lines(self) -> int:
        """Different granules touched in the whole run."""
        return sum(int(np.count_nonzero(np.add.reduceat(t, range(0, t.size, self.granule)))) for t in
                   self.touched.values() if t.size)

    @property
    def efficiency(self) -> float:
        """How well requests coalesce: 1 if none could have done with fewer granules."""
        return self.ideal / self.moved if self.moved else 1.0

    @property
    def conflicts(self) -> int:
        """Passes over the banks of shared memory that were needed only because words lay in the same bank."""
        return self.moved - self.ideal

    def touch(self, name: str, size: int) -> NDArray[np.bool_]:
        """The map of an array's touched bytes, to be marked."""
        touched = self.touched.get(name)
        if touched is None or touched.size < size:
            grown = np.zeros(size, bool)
            if touched is not None:
                grown[:touched.size] = touched
            touched = self.touched[name] = grown
        return touched

    def __iadd__(self, other: Traffic) -> Traffic:
        for counter in ("requests", "elements", "bytes", "moved", "ideal"):
            setattr(self, counter, getattr(self, counter) + getattr(other, counter))
        for name, theirs in other.touched.items():
            ours = self.touch(name, theirs.size)
            ours[:theirs.size] |= theirs
        return self


@dataclass
class BasicBlock:
    """Instructions without control flow between them: `kinds` of them, run so many times by so many threads."""
    kinds: Counter[str]
    flops: int
    runs: int = 0               # by a CPU thread or a warp
    threads: int = 0
    fused: Counter[str] = field(default_factory=Counter)    # what each run has less of in compiled code: see pattern.py


class Report:
    """`traffic[line, array, space, verb]`, `instructions[kind]`, `flops`, `occupancy` and the `result` of one run.

    Instructions are counted as recorded, before LLVM optimises: fma, loads and stores are exact, integer ones an upper
    bound. A vector instruction counts once; a warp's too.
    """

    def __init__(self, granule: int) -> None:
        self.granule = granule
        self.result: Any = None                 # what the function returned
        self.traffic: dict[Site, Traffic] = {}
        self.blocks: list[BasicBlock] = []
        self.printed: list[Printed] = []        # by k.print, in the order of the simulation
        # What finds out the occupancy: it compiles the kernel, which takes longer than a small simulation.
        self.compiled: Callable[[], Occupancy | Usage | None] = lambda: None

    def traffic_at(self, site: Site) -> Traffic:
        if site not in self.traffic:
            self.traffic[site] = Traffic(self.granule)
        return self.traffic[site]

    @cached_property
    def occupancy(self) -> Occupancy | Usage | None:
        """The kernel's occupancy; None where its target or its resources are not known."""
        return self.compiled()

    @property
    def instructions(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for block in self.blocks:
            for kind, n in block.kinds.items():
                total[kind] += n * block.runs
        return +total

    @property
    def flops(self) -> int:
        """Additions and multiplications of floating-point numbers; an fma is two."""
        return sum(block.flops * block.threads for block in self.blocks)

    def of(self, array: str | None = None, verb: str | None = None, space: str | None = None) -> Traffic:
        """All traffic with this array, in this direction, in this memory space; None stands for any."""
        total = Traffic(self.granule)
        for site, traffic in self.traffic.items():
            if array in (None, site.array) and verb in (None, site.verb) and space in (None, site.space):
                total += traffic
        return total

    def __str__(self) -> str:
        return text(self)


# ---- what kernels print (k.print): a line for each thread, at once, so that it comes before the fault that follows

class Printed(NamedTuple):
    """One line. `thread` is (x, y), `block` (x, y) or (x, y, z); of a CPU function its number, and ()."""
    line: Line
    label: str
    block: tuple[int, ...]
    thread: tuple[int, ...] | int
    values: tuple[Any, ...]


class Prints:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._shown: Counter[Op] = Counter()

    def show(self, gang: Gang, node: Op, label: str, most: int, conditional: bool, xs: tuple[Any, ...]) -> None:
        on = gang.active() & xs[0] if conditional else gang.active()
        operands, values = node.operands[conditional:], xs[conditional:]
        for lane in np.flatnonzero(on):
            self._shown[node] += 1
            if self._shown[node] > most:
                if self._shown[node] == most + 1:
                    print(f"{node.line}: {label}: more than {most} lines; most= shows more of them, when= chooses")
                return
            thread = int(gang.threads[lane])
            shown = tuple(self._value(operand.type, x, int(lane)) for operand, x in zip(operands, values))
            self.machine.report.printed.append(Printed(node.line, label, *self.machine.place_of(thread), shown))
            print(f"{node.line}: {label}{self.machine.by(thread)}:", *shown)

    def _value(self, t: Any, x: Any, lane: int) -> Any:
        """An operand of one thread: a number, a list of a vector's elements, or the element that a pointer points
        to."""
        x = np.asarray(x)
        mine = x[..., lane if x.shape[-1] > 1 else 0] if x.ndim else x
        if not isinstance(t, Pointer):
            return mine.tolist() if t.numpy.isbuiltin == 1 else np.asarray(mine, np.float64).tolist()
        region = self.machine.memory.find(int(mine))
        if region is None:
            return hex(int(mine))
        offset = int(mine) - region.base
        return f"{region.name}[{(offset if region.pitch is None else offset % region.pitch) / t.element.bytes:g}]"


# ---- a report as text

def text(report: Report, fit: int | None = None) -> str:
    """Tables of traffic by memory space, then instructions, flops and occupancy; all no wider than `fit` where that
    is possible."""
    parts = [section for space in ("global", "shared", "cluster", "local") if (section := _space(report, space, fit))]
    kinds = ", ".join(f"{n:,} {kind}" for kind, n in report.instructions.most_common())
    summary = [f"instructions: {kinds or 'none'}", f"flops: {report.flops:,}"]
    if report.occupancy is not None:
        summary.append(f"occupancy: {report.occupancy}")
    return "\n\n".join([*parts, "\n".join(fill(line, fit) if fit else line for line in summary)])


def _space(report: Report, space: str, fit: int | None) -> str:
    """One row for each line, array and direction; a total for each direction if there are several."""
    sites = [(site, t) for site, t in sorted(report.traffic.items()) if site.space == space and t.requests]
    if not sites:
        return ""
    banks = space in ("shared", "cluster")
    granules = "passes" if banks else "sectors" if report.granule == 32 else f"{report.granule}-byte lines"
    rows = [[f"{space} memory", "array", "", "requests", "elements", "bytes", "distinct", granules,
             "conflicts" if banks else "efficiency", ""]]
    room = SOURCE if fit is None else max(20, fit - max(len(str(site.line)) for site, _ in sites) - GAP)
    for site, traffic in sites:
        rows.append([str(site.line), site.array or "(unnamed)", site.verb, *_counts(traffic, banks),
                     site.line.text[:min(SOURCE, room)]])
    for verb in dict.fromkeys(site.verb for site, _ in sites):
        if sum(site.verb == verb for site, _ in sites) > 1:
            rows.append(["total", "", verb, *_counts(report.of(verb=verb, space=space), banks), ""])
    rendered = table(rows, range(3, 9), fit)
    return _stacked(rows, fit) or rendered if fit is not None and "\n\n" in rendered else rendered


def _stacked(rows: list[list[str]], fit: int) -> str:
    """The table with each site on a line of its own above its numbers, where that fits; else ""."""
    (title, _, _, *headings, _), *sites = rows
    head, *numbers = table([[title, *headings], *(["", *row[3:9]] for row in sites)], range(1, 7)).splitlines()
    said = [" ".join(filter(None, (row[0], row[2], row[1]))) + f": {row[9]}" * bool(row[9]) for row in sites]
    lines = [head, *(line for pair in zip(said, numbers) for line in (pair[0][:fit].rstrip(), pair[1]))]
    return "\n".join(lines) if max(map(len, lines)) <= fit else ""


def _counts(t: Traffic, banks: bool) -> list[str]:
    cost = f"{t.conflicts:,}" if banks else f"{t.efficiency:.0%}"
    return [*(f"{n:,}" for n in (t.requests, t.elements, t.bytes, t.distinct, t.moved)), cost]
