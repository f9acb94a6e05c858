"""The simulated machine: places the arguments, starts the threads, and lets their gangs take turns to the end."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.ir import Pointer, TensorMap, Texture, arguments as given
from tilewright.ir.program import Array, Function, Op
from tilewright.simulator.access import Access
from tilewright.simulator.atomics import Atomics
from tilewright.simulator.barriers import Clusters, Mbarriers, PhaseBarrier
from tilewright.simulator.bulk import Bulk
from tilewright.simulator.clocks import Clocks
from tilewright.simulator.code import Code
from tilewright.simulator.copies import Copies
from tilewright.simulator.gang import Gang
from tilewright.simulator.history import History
from tilewright.simulator.memory import AddressSpace, Region, Uninitialised
from tilewright.simulator.observer import Event, Observer, WatchedAccess, current
from tilewright.simulator.pattern import patterns
from tilewright.simulator.report import Fault, Prints, Report
from tilewright.simulator.wgmma import Warpgroups
from tilewright.targets import banks

CACHE_LINE, SECTOR = 64, 32                 # bytes that move together on a CPU, on a GPU
TOGETHER = 2048                             # threads of a GPU that are simulated at once, if the CTAs are smaller

Coordinates = tuple[int, int, int]
Grid = int | Sequence[int] | None


class Machine:
    def __init__(self, function: Function, memory: AddressSpace, externals: Mapping[str, Callable[..., Any]],
                 report: Report | None = None, target: str | None = None, fuses: bool = False,
                 observer: Callable[[Event], None] | None = None) -> None:
        """fuses: count what the compiler makes of neighbouring accesses (pattern.fused)."""
        watching, self.instead = current()
        observer = observer or watching
        self.observer = None if observer is None else Observer(self, observer)
        self.access: type[Access] = Access if observer is None else WatchedAccess
        self.function, self.memory = given.recorded(self.instead.get(function, function)), memory
        self.externals = {"sched_yield": lambda: 0} | dict(externals)
        self.gpu = function.threads is not None
        self.shape = function.threads or (1, 1)
        self.warp = function.warp if self.gpu else 1
        self.banks, self.fuses = banks.for_target(target, self.warp), fuses
        self.there = self.shape[0] * self.shape[1]              # threads of a CTA
        self.cta = -(-self.there // self.warp) * self.warp      # lanes of its warps; the last one may lack some
        self.report = report or Report(SECTOR if self.gpu else CACHE_LINE)
        self.atomics, self.copies, self.prints = Atomics(self), Copies(self), Prints(self)
        self.mbarriers, self.clusters = Mbarriers(self), Clusters(self)
        self.bulk, self.wgmma = Bulk(self), Warpgroups(self)
        self.flies = any(isinstance(node, Op) and node.operation.kind == "wgmma"    # may registers be in flight?
                         for f in (function, *self.function.callees()) for node in f.walk())
        self.accesses: dict[Any, Access] = {}               # of operations that touch memory (`Gang.access`)
        self.patterns = patterns(self.warp, self.report.granule, self.banks)        # of the addresses of all accesses
        self.grid: Coordinates = (1, 1, 1)
        self.clocks: Clocks
        self._of_device: dict[Region, History] = {}        # of the global memory of a GPU
        self.ready: list[Gang] = []
        self.parted: list[Gang] = []        # gangs that still wait when others of their gang go on
        self.progress = 0                   # how often anything has been stored
        self.first = 0                      # of the CTAs that run now, in the order of their start
        self.starts: Sequence[int] = ()     # numbers of clusters in that order, if it is not that of numbers
        self._codes: dict[Function, Code] = {}

    def exist(self, threads: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these lanes are threads: the last warp of a CTA has fewer where its threads are not whole warps."""
        return threads % self.cta < self.there

    # ---- runs

    def run_thread(self, arguments: Sequence[Any]) -> Report:
        """One CPU thread."""
        self._begin(0, 1)
        return self._launch([Gang(self, np.arange(1))], [self.arguments(arguments)])

    def run_team(self, arguments: Sequence[Any], threads: int) -> Report:
        """CPU threads at once; the last argument of each is its number."""
        self._begin(0, threads)
        gangs = [Gang(self, np.array([t])) for t in range(threads)]
        return self._launch(gangs, [self.arguments([*arguments, t]) for t in range(threads)])

    def run_grid(self, arguments: Sequence[Any], grid: Grid, starts: Sequence[int] = ()) -> Report:
        """All CTAs of a grid, as many of them at once as make large gangs; of a CPU function its one thread."""
        self.grid, size, self.starts = given.grid(self.function, grid), self.clusters.size, starts
        if self.function.programs:
            given.count(self.function, arguments)
            x, y, z = self.grid
            for program in range(x * y * z):
                self.run_thread([*arguments, *_unfold(program, x, y, z), *self.grid])
            return self.report
        if not self.gpu:
            return self.run_thread(arguments)
        operands = self.arguments(arguments)
        x, y, z = self.grid
        if any(extent % ctas for extent, ctas in zip(self.grid, self.function.cluster)):
            raise ValueError(f"{self.function.name}: a grid of {self.grid} CTAs is not whole clusters of "
                             f"{self.function.cluster}")
        some = max(TOGETHER // (self.cta * size), 1) * size
        for first in range(0, x * y * z, some):
            threads = min(some, x * y * z - first) * self.cta
            self._begin(first, threads)
            self._launch([Gang(self, np.arange(threads))], [operands])
        self._of_device.clear()                # the next launch comes after this one
        self.atomics.released.clear()
        return self.report

    def _begin(self, first: int, threads: int) -> None:
        """`threads` threads that run at once, from CTA `first` on."""
        before, self.first, self.threads, self.ctas = self.first, first, threads, -(-threads // self.cta)
        agents, per_cta = threads // self.warp, self.cta // self.warp if self.gpu else threads
        self.clocks = Clocks(agents, self.warp, per_cta, self.flies)
        self.alone = agents == 1 and not self.gpu
        told = self.atomics.begin(self.clocks)
        for history in self._of_device.values():
            history.next(self.clocks, before * self.cta, told)
        self.barriers = [PhaseBarrier(f"the barrier of block {self.block(cta)}", self.there)
                         for cta in range(self.ctas)]
        self.role_barriers: dict[tuple[int, int], PhaseBarrier] = {}        # by CTA and the role's first warp
        self.copies.begin()
        self.mbarriers.begin()
        self.clusters.begin()
        self.bulk.begin()
        self.wgmma.begin()
        self.tiles: dict[int, list[NDArray[np.int32]]] = {}     # thread → its AMX tiles, while they are configured
        self._histories: dict[Region, History] = {}
        self._shared: dict[Array, Region] = {}

    def _launch(self, gangs: list[Gang], operands: list[list[Any]]) -> Report:
        for gang, xs in zip(gangs, operands):
            gang.call(self.code(self.function), xs, gang.exist, None)
        self.ready = gangs[::-1]
        waiting: list[Gang] = []
        with np.errstate(all="ignore"):     # infinities and NaNs are results
            while self.ready:
                gang = self.ready.pop()
                while gang.frames and gang.waiting is None:
                    frame = gang.frame
                    frame.code.steps[frame.pc](gang)
                if gang.frames:
                    waiting.append(gang)
                else:
                    self.progress += 1      # a thread may wait for another's end
                    self.clusters.leave(gang.threads)
                if waiting and not self.ready:
                    waiting = self._wake(waiting)
        self.clusters.end()
        self.copies.end()
        self.bulk.end()
        self.wgmma.end()
        return self.report

    def _wake(self, waiting: list[Gang]) -> list[Gang]:
        """Make the gangs ready that wait no longer, joined where they stand together; returns the others."""
        together, self.parted = defaultdict(list), []
        if self.observer is not None:
            self.observer.round += 1
        for gang in waiting:
            assert gang.waiting is not None
            if gang.waiting.over(gang):
                if self.observer is not None:
                    self.observer.woken(gang, gang.waiting.line)
                gang.waiting = None
                together[gang.point if self.gpu else gang].append(gang)
        if not together:
            waiting.sort(key=lambda gang: int(gang.agents[0]))
            first = waiting[0]
            assert first.waiting is not None
            raise Fault("deadlock", first.waiting.line, first.frame.code.name, "; ".join(
                f"{self._names(gang)} at {gang.waiting.line} for {gang.waiting}" for gang in waiting if gang.waiting))
        self.ready = [Gang.join(gangs) for gangs in reversed(together.values())]
        return [gang for gang in (*waiting, *self.parted) if gang.waiting is not None]

    def _names(self, gang: Gang) -> str:
        """Who waits, for messages."""
        if not self.gpu:
            return f"thread {gang.agents[0]} waits"
        per_cta = self.cta // self.warp
        ctas: dict[int, list[int]] = defaultdict(list)
        for agent in gang.agents:
            ctas[agent // per_cta].append(int(agent % per_cta))
        return "; ".join(f"block {self.block(cta)} warps {warps}" for cta, warps in ctas.items()) + " wait"

    def code(self, function: Function) -> Code:
        if function not in self._codes:
            self._codes[function] = Code(self, self.instead.get(function, function))
        return self._codes[function]

    def history(self, region: Region) -> History | None:
        """What has been done to this array, where accesses are checked for races: not on a thread's own stack."""
        clocks = self.clocks
        if self.alone or region.space == "local" or (region.space == "shared") > self.gpu:
            return None
        histories = self._of_device if self.gpu and region.space == "global" else self._histories
        known = histories.get(region)
        if known is None:
            of_device = histories is self._of_device
            rows = clocks.agents if of_device else clocks.per_cta * self.clusters.size
            known = histories[region] = History(clocks, region.data.size, rows, of_device)
        return known

    # ---- what the code of a call finds in its slots

    def arguments(self, arguments: Sequence[Any]) -> list[Any]:
        given.count(self.function, arguments, whole=True)
        return [self.argument(param, value.type, x) for (param, value), x in zip(self.function.params, arguments)]

    def argument(self, param: str, t: Any, x: Any) -> Any:
        if isinstance(t, TensorMap):
            return np.int64(self.bulk.argument(param, t, x))
        if isinstance(x, (np.ndarray, Uninitialised, Function)):
            array: Any = x.array if isinstance(x, Uninitialised) else x
            if isinstance(t, Texture):
                given.texture(param, t, array)
            elif not isinstance(t, Pointer):
                what = "a function" if isinstance(x, Function) else "an array"
                raise TypeError(f"{param} must be a number ({t}), not {what}")
            elif not isinstance(x, Function):
                given.array(param, t, array)
            return np.int64(self.memory.address(x, param))
        if isinstance(t, Texture):
            raise TypeError(f"{param} is a {t}: it must be an array, not {x!r}")
        if isinstance(t, Pointer):
            if not isinstance(x, (int, np.integer)):
                raise TypeError(f"{param} must be an array, a recorded function or an address, not {x!r}")
            return np.int64(x)
        return given.number(param, t, x)

    def builtin(self, name: str, threads: NDArray[np.int64]) -> Any:
        """thread.x, block.z, grid.y, cluster.ctarank ... of these threads."""
        what, axis = name.split(".")
        if not self.gpu:
            raise TypeError(f"{self.function.name} is a CPU function, and it asks for {name}: Kernel(..., threads=256) "
                            "makes a kernel for the CTAs of a GPU")
        if what == "cluster":
            return (threads // self.cta % self.clusters.size).astype(np.int32)
        if what == "thread":
            y, x = np.divmod(threads % self.cta, self.shape[0])
            return (x if axis == "x" else y).astype(np.int32)
        if what == "grid":
            return np.int32(self.grid["xyz".index(axis)])
        blocks = np.array([self._coordinates(cta)["xyz".index(axis)] for cta in range(self.ctas)], np.int32)
        return blocks[0] if len(blocks) == 1 else blocks[threads // self.cta]

    def _coordinates(self, cta: int) -> Coordinates:
        """The grid coordinates of a CTA that runs now, or did: cluster after cluster, and in each along x first."""
        cluster, rank = divmod(int(self.first + cta), self.clusters.size)
        cluster = self.starts[cluster] if self.starts else cluster
        x, y, z = (i * ctas for i, ctas in zip(_unfold(cluster, *(
            extent // ctas for extent, ctas in zip(self.grid, self.function.cluster))), self.function.cluster))
        dx, dy, dz = _unfold(rank, *self.function.cluster)
        return x + dx, y + dy, z + dz

    def block(self, cta: int) -> tuple[int, ...]:
        """A CTA's coordinates for messages: two if the grid has two dimensions."""
        return self._coordinates(cta)[:3 if self.grid[2] > 1 else 2]

    def place(self, array: Array, threads: NDArray[np.int64]) -> tuple[Region, Any]:
        """A local array of a call, or the CTAs' shared one, and its address in each of these threads."""
        if array.space == "shared":
            if array not in self._shared:
                self._shared[array] = self.memory.allocate(array, self.ctas)
            region, copy = self._shared[array], threads // self.cta
        else:
            region, copy = self.memory.allocate(array, len(threads)), np.arange(len(threads))
        if region.pitch is not None:
            if region.copies is None:
                region.copies = np.full(self.threads, -1)
            region.copies[threads] = copy
        return region, np.int64(region.base) if region.pitch is None else region.base + copy * region.pitch

    def by(self, thread: int) -> str:
        """Whose doing it is, for messages; a single CPU thread needs no name. -1 - n is thread n of the whole grid."""
        if not self.gpu:
            return f" by thread {thread}" if self.threads > 1 else ""
        cta, inside = divmod(thread if thread >= 0 else -1 - thread - self.first * self.cta, self.cta)
        if inside >= self.there:
            return f": block {self.block(cta)} has {self.there} threads, which are not whole warps of {self.warp}"
        return f" by block {self.block(cta)} thread {self._in_cta(inside)}"

    def place_of(self, thread: int) -> tuple[tuple[int, ...], tuple[int, ...] | int]:
        """The block and the thread in it; of a CPU's thread () and its number. -1 - n is thread n of the whole
        grid."""
        if not self.gpu:
            return (), thread
        cta, inside = divmod(thread if thread >= 0 else -1 - thread - self.first * self.cta, self.cta)
        return self.block(cta), self._in_cta(inside)

    def _in_cta(self, inside: int) -> tuple[int, int]:
        return inside % self.shape[0], inside // self.shape[0]


def _unfold(index: int, x: int, y: int, z: int) -> Coordinates:
    """The coordinates of a place in x * y * z of them."""
    rest, first = divmod(index, x)
    third, second = divmod(rest, y)
    return first, second, third
