"""One load or store instruction: locates every address, checks it, counts it, and moves the bytes.

A CPU thread takes a short path. Gangs repeat a few patterns of addresses, each of which is analysed once (`pattern`);
what is left to do each time is to look it up, see whether it lies inside its array, and move the data. Lanes that point
into different arrays are taken apart first.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.exact import some
from tilewright.ir.program import Line
from tilewright.ir.types import Pointer
from tilewright.simulator.history import History, Race
from tilewright.simulator.memory import SPAN_BITS, Region, numpy_type
from tilewright.simulator.pattern import PERIOD, Pattern
from tilewright.simulator.report import Fault, Place, Site, Traffic

if TYPE_CHECKING:
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine

Lanes = NDArray[np.bool_] | None            # [threads] or [length, threads]; None: all


class Part(NamedTuple):
    """The elements of an access that lie in one array, and where the lowest of them begins."""
    region: Region
    pattern: Pattern
    address: int


class Access:
    """`verb` is "load" or "store"; `align` is what the address must be a multiple of, in bytes. `remote`: of the shared
    memory of CTAs of the cluster."""

    def __init__(self, machine: Machine, function: str, line: Line, verb: str, t: Any, align: int,
                 atomic: bool = False, remote: bool = False) -> None:
        self.machine, self.memory, self.function, self.line, self.verb = machine, machine.memory, function, line, verb
        self.dtype = numpy_type(t)
        self.length = 1 if isinstance(t, Pointer) else t.length
        self.item = self.dtype.itemsize
        self.bytes = self.item * self.length
        self.align = align
        self.reads = verb == "load"
        self.atomic = atomic                # then it is ordered by other means than the accesses around it
        self.remote = remote
        self.counters: dict[str, Traffic] = {}          # by array
        self.met: set[tuple[Pattern, int]] = set()      # patterns, and where they began
        self.last: Part | None = None                   # where it went, if to one array
        self.shape = (self.item, self.length, align, self.reads)
        self.storing: Any = None                        # the value, for who watches

    def asynchronous(self, gang: Gang, region: Region, offsets: NDArray[np.int64], item: int, threads: Any) -> None:
        """For who watches (`observer`): copies or products access these elements for the threads."""

    # ---- one CPU thread

    def load(self, gang: Gang, address: Any, mask: Any = None) -> Any:
        if gang.size > 1:
            return self.gather(gang, address, mask)
        elements = self.length
        if mask is not None:
            elements = self.leading(mask)
            if elements == 0:
                return np.zeros((self.length, 1), self.dtype) if self.length > 1 else self.dtype.type(0)
            if elements < 0:
                return self.gather(gang, address, mask)
        bytes = elements * self.item
        region, offset = self.locate(gang, int(address), elements)
        if region.written is not None and np.count_nonzero(region.written[offset:offset + bytes]) < bytes:
            bad = offset + int(np.argmin(region.written[offset:offset + bytes])) // self.item * self.item
            self.fault("uninitialised", gang, region, bad, 0, "it has not been written")
        if not self.machine.alone:
            self.order_one(gang, region, offset, bytes)
        i, phase = divmod(offset, self.item)
        view = region.view(self.dtype, phase)
        if self.length == 1:
            return view[i]
        if elements == self.length:
            return view[i:i + elements, None].copy()
        result = np.zeros((self.length, 1), self.dtype)
        result[:elements, 0] = view[i:i + elements]
        return result

    def store(self, gang: Gang, address: Any, value: Any, mask: Any = None) -> None:
        if gang.size > 1:
            self.scatter(gang, address, value, mask)
            return
        elements = self.length
        if mask is not None:
            elements = self.leading(mask)
            if elements == 0:
                return
            if elements < 0:
                self.scatter(gang, address, value, mask)
                return
        bytes = elements * self.item
        region, offset = self.locate(gang, int(address), elements)
        if not region.writable:
            self.fault("read-only", gang, region, offset, 0, "it is read-only")
        if not self.machine.alone:
            self.order_one(gang, region, offset, bytes)
        self.machine.progress += 1
        if region.written is not None:
            region.written[offset:offset + bytes] = True
        i, phase = divmod(offset, self.item)
        region.view(self.dtype, phase)[i:i + elements, None] = value if elements == self.length else \
            np.broadcast_to(value, (self.length, 1))[:elements]

    def leading(self, mask: Any) -> int:
        """How many elements this mask of one thread lets through, if these are the first ones, as most often; else
        -1."""
        if mask.ndim == 0:
            return self.length if mask else 0
        elements, contiguous = int(np.count_nonzero(mask)), len(mask) == self.length
        if elements in (0, len(mask)):
            return self.length if elements else 0
        return elements if contiguous and np.count_nonzero(mask[:elements]) == elements else -1

    def locate(self, gang: Gang, address: int, elements: int) -> tuple[Region, int]:
        """Where an access to so many elements goes that is in bounds, aligned, and now counted."""
        region = self.memory.find(address)
        if region is None:
            self.nowhere(gang, address, 0)
        offset, bytes = address - region.base, elements * self.item
        if offset < 0 or offset + bytes > region.size or address % self.align:
            self.outside(gang, region, np.array([address]), np.arange(self.length)[:, None] < elements)
        traffic = self.traffic(region)
        granule = traffic.granule
        traffic.requests += 1
        traffic.elements += elements
        traffic.bytes += bytes
        traffic.moved += (address + bytes - 1) // granule - address // granule + 1
        traffic.ideal += -(-bytes // granule)
        start = offset + region.base % granule
        traffic.touch(region.name, region.data.size + granule)[start:start + bytes] = True
        return region, offset

    def order_one(self, gang: Gang, region: Region, offset: int, bytes: int) -> None:
        history = None if self.atomic else self.machine.history(region)
        if history is None:
            return
        history.refine(math.gcd(offset, self.item))
        units = np.arange(offset // history.unit, (offset + bytes) // history.unit)
        thread = gang.threads                   # one, which is its own agent
        race = (history.load if self.reads else history.store)(thread, thread, units, self.line)
        if race is not None:
            self.race(gang, region, history, race, int(units[race.pair]), 0)

    # ---- a gang

    def gather(self, gang: Gang, address: Any, mask: Any) -> Any:
        same = address.ndim == 0 and mask is None
        result: Any = None
        for region, pattern, start in self.parts(gang, address, mask):
            traffic = self.enter(region, pattern)
            if (pattern, start) not in self.met:
                self.unwritten(gang, region, pattern, start)
                self.touch(traffic, region, pattern, start)
            self.order(gang, region, pattern, start)
            values = pattern.read(region, self.dtype, start - region.base)
            if pattern.here is None:
                result = values
            else:
                if result is None:
                    result = np.zeros((self.length, gang.size), self.dtype)
                result[pattern.here] = values
        if result is None:
            result = np.zeros((self.length, gang.size), self.dtype)
        if same:
            on = 0 if gang.mask is None else int(np.argmax(gang.mask))
            return result[0, on] if self.length == 1 else result[:, on:on + 1]
        return result if self.length > 1 else result[0] if gang.size > 1 else result[0, 0]

    def scatter(self, gang: Gang, address: Any, value: Any, mask: Any) -> None:
        for part in self.claim(gang, address, mask):
            self.write(part, self.taken(part.pattern, value, gang.size))

    def claim(self, gang: Gang, address: Any, mask: Any = None, counted: bool = True) -> Iterator[Part]:
        """Parts of a store, each of them checked, counted and ready to be written."""
        for part in self.parts(gang, address, mask):
            region, pattern, start = part
            if not region.writable:
                self.fault("read-only", gang, region, start - region.base, pattern.lowest, "it is read-only")
            self.order(gang, region, pattern, start)
            self.machine.progress += 1
            new = (pattern, start) not in self.met
            if region.swizzles is not None:
                region.swizzles[pattern.bytes(start - region.base) // 16] = -1
            if counted:
                traffic = self.enter(region, pattern)
                if new:
                    self.touch(traffic, region, pattern, start)
            if new:
                self.met.add((pattern, start))
                if region.written is not None:
                    pattern.mark(region.written, start - region.base)
                    if region.space == "shared" and region.written.all():
                        region.written = None           # from now on there is nothing to check
            yield part

    def taken(self, pattern: Pattern, value: Any, threads: int) -> Any:
        """What the elements of this part are to become."""
        if pattern.here is None:
            return value
        return np.broadcast_to(value, (self.length, threads))[pattern.here]

    def parts(self, gang: Gang, address: Any, mask: Any) -> Iterator[Part]:
        """The access by the arrays that its lanes point into, most often one: in bounds and aligned."""
        if address.ndim == 0:
            address = np.full(gang.size, address)
        on: Any = gang.mask
        if mask is not None:
            on = mask if on is None else mask & on
        if on is not None:
            if on.ndim == 0:
                on = np.full(gang.size, on)
            lanes = on if on.ndim == 1 else np.broadcast_to(on.any(0), gang.size)
            if not some(lanes):
                return
            lane = int(lanes.argmax())
            address = np.where(lanes, address, address[lane])
        else:
            lane = 0
        part = self.last = self.look_up(gang, address, on, lane)
        if part is not None:
            yield part
            return
        everywhere = np.broadcast_to(True if on is None else on, (self.length, gang.size))
        lanes = everywhere.any(0)
        for index in np.unique(address[lanes] >> SPAN_BITS):
            here = everywhere & (address >> SPAN_BITS == index)
            lane = int(here.any(0).argmax())
            part = self.look_up(gang, np.where(here.any(0), address, address[lane]), here, lane)
            if part is None:
                region = self.memory.find(int(index) << SPAN_BITS)
                if region is None:
                    self.nowhere(gang, int(address[lane]), lane)
                self.outside(gang, region, address, here)
            yield part

    def look_up(self, gang: Gang, address: NDArray[np.int64], on: Lanes, lane: int) -> Part | None:
        """The pattern of these addresses, the first of them that of `lane`; None if not all lie inside one array."""
        first = int(address[lane])
        region = self.memory.find(first)
        if region is None:
            return None
        machine = self.machine
        period = PERIOD if region.space == "shared" else math.lcm(machine.report.granule, self.align)
        relative = address - first + first % period
        key = (relative.tobytes(), None if on is None else (on.shape, on.tobytes()), region.space, region.pitch,
               self.shape)
        pattern = machine.patterns.get(key)
        if pattern is None:
            here = None if on is None else np.broadcast_to(on, (self.length, gang.size))
            if (relative % self.align != 0)[slice(None) if here is None else here.any(0)].any():
                return None
            pattern = machine.patterns.add(key, Pattern(
                self.item, self.length, relative, here, lane, region, first, machine.warp, machine.report.granule,
                machine.banks, max(machine.banks.pieces(self.bytes, self.align), self.item), self.reads))
        if region.pitch is not None and region.copies is not None and not self.remote:
            strange = (address - region.base) // region.pitch != region.copies[gang.threads]
            if some(strange if on is None else strange & (on if on.ndim == 1 else on.any(0))):
                return None
        offset = first - region.base
        inside = offset if region.pitch is None else offset % region.pitch
        if offset < 0 or inside + pattern.low < 0 or inside + pattern.high > region.size:
            return None
        start = first + pattern.start
        return Part(region, pattern, start) if region.base <= start else None

    # ---- what is done with a part

    def enter(self, region: Region, pattern: Pattern) -> Traffic:
        """Count it."""
        traffic = self.traffic(region)
        traffic.requests += pattern.requests
        traffic.elements += pattern.elements
        traffic.bytes += pattern.elements * self.item
        traffic.moved += pattern.moved
        traffic.ideal += pattern.ideal
        return traffic

    def touch(self, traffic: Traffic, region: Region, pattern: Pattern, start: int) -> None:
        self.met.add((pattern, start))
        shift = region.base % traffic.granule
        flags = traffic.touch(region.name, region.data.size + traffic.granule)
        pattern.mark(flags, start - region.base + shift)

    def unwritten(self, gang: Gang, region: Region, pattern: Pattern, start: int) -> None:
        if region.written is None:
            return
        offset = start - region.base
        if pattern.marked(region.written, offset):
            return
        bytes = pattern.bytes(offset)
        index = int(np.argmin(region.written[bytes].all(1)))
        lane = int(pattern.lanes()[index])
        self.fault("uninitialised", gang, region, int(bytes[index, 0]), lane, "it has not been written")

    def order(self, gang: Gang, region: Region, pattern: Pattern, start: int) -> None:
        """Check that no other agent touches these bytes without an order between the accesses."""
        history = None if self.atomic else self.machine.history(region)
        if history is None:
            return
        offset = start - region.base
        history.refine(math.gcd(offset, pattern.step))
        pairs = pattern.pairs(history.unit, offset % history.unit, self.reads)
        agents, units = gang.warps[pairs.warps], pairs.units + offset // history.unit
        threads = gang.threads[pairs.lanes]
        if self.reads:
            race = history.load(agents, threads, units, self.line, gang.threads[pairs.last],
                                (id(pattern), start, int(gang.threads[0]), gang.size), self.remote)
        else:
            race = history.store(agents, threads, units, self.line, self.remote)
            if pairs.clash is not None and race is None:        # several threads in one instruction
                race = Race(pairs.clash[0], int(threads[pairs.clash[1]]), "also written", None)
            if self.machine.gpu and region.space == "global":
                self.machine.copies.source_changes(gang, self, region, pattern, offset)
        if race is not None:
            lanes = pairs.lanes if threads[race.pair] != race.other else pairs.last
            self.race(gang, region, history, race, int(units[race.pair]), int(lanes[race.pair]))
        if self.remote:
            self.machine.clusters.use(gang, self, region, pattern, offset)

    def write(self, part: Part, value: Any) -> None:
        part.pattern.write(part.region, self.dtype, part.address - part.region.base, value)

    def traffic(self, region: Region) -> Traffic:
        counter = self.counters.get(region.name)
        if counter is None:
            site = Site(self.line, region.name, "cluster" if self.remote else region.space, self.verb)
            counter = self.counters[region.name] = self.machine.report.traffic_at(site)
        return counter

    # ---- faults: blame the first thread and element that is wrong

    def nowhere(self, gang: Gang, address: int, thread: int) -> NoReturn:
        if self.memory.is_function(address):
            why = "this is the address of a function"
        elif 0 <= address < 4096:
            why = "a null pointer" + (f", {address} bytes on" if address else "")
        else:
            why = "no array has this address, or its function has returned"
        raise Fault("no memory", self.line, self.function, f"{self.verb} at {address:#x}{gang.by(thread)}: {why}")

    def outside(self, gang: Gang, region: Region, address: NDArray[np.int64], here: NDArray[np.bool_]) -> NoReturn:
        """These elements are not all inside, or not all aligned."""
        offsets = address + np.arange(self.length)[:, None]*self.item - region.base
        own = None
        if region.pitch is not None and region.copies is not None and not self.remote:
            own = region.copies[gang.threads] * region.pitch    # where each thread's copy begins
            offsets = offsets - own
            bad = here & ((offsets < 0) | (offsets + self.item > region.size))
        else:
            bad = here & ~region.holds(offsets, self.item)
        if bad.any():
            kind, why = "out of bounds", f"it has {region.size // self.item} elements of {self.dtype}"
        else:
            kind, bad, why = "misaligned", here & (address % self.align != 0), f"it must be {self.align}-byte aligned"
        element, thread = np.argwhere(bad)[0]
        fault = self.fault if own is None else self._fault
        fault(kind, gang, region, int(offsets[element, thread]), int(thread), why)

    def race(self, gang: Gang, region: Region, history: History, race: Race, unit: int, thread: int) -> NoReturn:
        machine, number = self.machine, race.thread(history.clocks)
        other = Place(race.verb, *(((), ()) if number is None else machine.place_of(number)), race.line)
        self.fault("race", gang, region, unit * history.unit // self.item * self.item, thread,
                   race.why(history.clocks, "" if number is None else machine.by(number)), other)

    def fault(self, kind: str, gang: Gang, region: Region, offset: int, thread: int, why: str,
              other: Place | None = None) -> NoReturn:
        if region.pitch:
            offset = (offset + region.pitch // 4) % region.pitch - region.pitch // 4    # in its copy
        self._fault(kind, gang, region, offset, thread, why, other)

    def _fault(self, kind: str, gang: Gang, region: Region, offset: int, thread: int, why: str,
               other: Place | None = None) -> NoReturn:
        """`offset`: in the copy of the array."""
        index, rest = divmod(offset, self.item)
        at = f"[{index}]" + (f" + {rest} bytes" if rest else "")
        here = Place(self.verb, *self.machine.place_of(int(gang.threads[thread])), self.line)
        raise Fault(kind, self.line, self.function, f"{self.verb} of {region.name}{at}{gang.by(thread)}: {why}",
                    region.name, index, here, other)
