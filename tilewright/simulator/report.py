"""What a run did: the traffic of every line with every array, and instructions by kind."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.program import Line

if TYPE_CHECKING:
    from tilewright.compiler.amd import Usage
    from tilewright.simulator.occupancy import Occupancy
    from tilewright.simulator.prints import Printed


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
        found = self.touched.get(name)
        if found is None or found.size < size:
            grown = np.zeros(size, bool)
            if found is not None:
                grown[:found.size] = found
            found = self.touched[name] = grown
        return found

    def __iadd__(self, other: Traffic) -> Traffic:
        for counter in ("requests", "elements", "bytes", "moved", "ideal"):
            setattr(self, counter, getattr(self, counter) + getattr(other, counter))
        for name, theirs in other.touched.items():
            ours = self.touch(name, theirs.size)
            ours[:theirs.size] |= theirs
        return self


@dataclass
class Block:
    """Instructions without control flow between them: `kinds` of them, run so many times by so many threads."""
    kinds: Counter[str]
    flops: int
    runs: int = 0               # by a CPU thread or a warp
    threads: int = 0


class Report:
    """`traffic[line, array, space, verb]`, `instructions[kind]`, `flops`, `occupancy` and the `result` of one run.

    Instructions are counted as recorded, before LLVM optimises: fma, loads and stores are exact, integer ones an upper
    bound. A vector instruction counts once; a warp's too.
    """

    def __init__(self, granule: int) -> None:
        self.granule = granule
        self.result: Any = None                 # what the function returned
        self.traffic: dict[Site, Traffic] = {}
        self.blocks: list[Block] = []
        self.printed: list[Printed] = []        # by k.print, in the order of the simulation
        self.occupancy: Occupancy | Usage | None = None     # of the kernel, where its target and resources are known

    def at(self, site: Site) -> Traffic:
        if site not in self.traffic:
            self.traffic[site] = Traffic(self.granule)
        return self.traffic[site]

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
        from tilewright.simulator.table import text
        return text(self)
