"""One load or store instruction: locates every address, checks it, counts it, and moves the bytes.

One address for all threads, which is all that a CPU has, takes a short path. The general one handles masks, lanes that
point into different arrays, and elements that are not aligned to their own size.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.program import Load, Store
from tilewright.ir.types import Pointer
from tilewright.simulator.fault import Fault
from tilewright.simulator.memory import SPAN_BITS, Region, numpy_type
from tilewright.simulator.report import Site, Traffic

if TYPE_CHECKING:
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine

BANKS = 32              # of shared memory, 4 bytes wide
PERIOD = 128            # bytes: addresses that all move by a multiple of this need as many lines or sectors as before


@dataclass
class Pattern:
    """What a request costs whose addresses and mask lie to each other in one way; loops repeat the same few."""
    requests: int
    elements: int
    moved: int
    ideal: int
    bases: set[int] = field(default_factory=set)        # where it has been met


class Access:
    def __init__(self, machine: Machine, function: str, node: Load | Store, atomic: bool = False) -> None:
        t = node.result.type if isinstance(node, Load) else node.value.type
        self.machine, self.memory, self.function, self.node = machine, machine.memory, function, node
        self.verb = type(node).__name__.lower()
        self.dtype = numpy_type(t)
        self.length = 1 if isinstance(t, Pointer) else t.length
        self.item = self.dtype.itemsize
        self.bytes = self.item * self.length
        self.align = node.align
        self.atomic = atomic                # then it is ordered by other means than the accesses around it
        self.along = np.arange(self.length)[:, None] * self.item
        self.seen: dict[str, Traffic] = {}
        self.patterns: dict[tuple[bytes, bytes], Pattern] = {}

    # ---- one address for all threads

    def load(self, gang: Gang, address: Any, mask: Any = None) -> Any:
        if mask is not None or address.ndim:
            return self.gather(gang, address, mask)
        region, offset = self.locate(gang, int(address))
        if region.written is not None and not region.written[offset:offset + self.bytes].all():
            self.unwritten(gang, region, *self.everywhere(gang, address))
        if self.machine.clocks is not None:
            self.order(gang, region, *self.everywhere(gang, address))
        i, phase = divmod(offset, self.item)
        view = region.view(self.dtype, phase)
        return view[i, 0] if self.length == 1 else view[i:i + self.length].copy()

    def store(self, gang: Gang, address: Any, value: Any, mask: Any = None) -> None:
        if mask is not None or address.ndim or gang.size > 1:
            self.scatter(gang, address, value, mask)
            return
        region, offset = self.locate(gang, int(address))
        if not region.writable:
            self.read_only(gang, region, *self.everywhere(gang, address))
        if self.machine.clocks is not None:
            self.order(gang, region, *self.everywhere(gang, address))
        self.machine.progress += 1
        if region.written is not None:
            region.written[offset:offset + self.bytes] = True
        i, phase = divmod(offset, self.item)
        region.view(self.dtype, phase)[i:i + self.length] = value

    def locate(self, gang: Gang, address: int) -> tuple[Region, int]:
        """Where an access goes that is in bounds, aligned, and now counted."""
        region = self.memory.find(address)
        offset = -1 if region is None else address - region.base
        if region is None or region.pitch or offset < 0 or offset + self.bytes > region.size or address % self.align:
            where, on = self.everywhere(gang, np.int64(address))
            for region, here in self.regions(gang, where, on):
                self.check(gang, region, where, here)
        assert region is not None
        traffic, warps = self.traffic(region), gang.active_warps
        granule = traffic.granule
        traffic.requests += warps
        traffic.elements += gang.active_threads * self.length
        traffic.bytes += gang.active_threads * self.bytes
        traffic.moved += warps * ((address + self.bytes - 1) // granule - address // granule + 1)
        traffic.ideal += warps * -(-self.bytes // granule)
        start = offset + region.base % granule
        traffic.touch(region.name, region.data.size + granule)[start:start + self.bytes] = True
        return region, offset

    # ---- an address for each thread; which threads and elements take part is `on`, or `here` for those in one region

    def gather(self, gang: Gang, address: Any, mask: Any) -> Any:
        where, on = self.everywhere(gang, address, mask)
        result = np.zeros(where.shape, self.dtype)
        for region, here in self.regions(gang, where, on):
            self.check(gang, region, where, here)
            if region.written is not None:
                self.unwritten(gang, region, where, here)
            self.order(gang, region, where, here)
            self.count(gang, region, where, here)
            result[here] = self.read(region, where[here] - region.base)
        return result if self.length > 1 else result[0] if gang.size > 1 else result[0, 0]

    def scatter(self, gang: Gang, address: Any, value: Any, mask: Any) -> None:
        where, on = self.everywhere(gang, address, mask)
        value = np.broadcast_to(value, where.shape)
        for region, here in self.regions(gang, where, on):
            self.check(gang, region, where, here)
            if not region.writable:
                self.read_only(gang, region, where, here)
            self.order(gang, region, where, here)
            self.machine.progress += 1
            self.count(gang, region, where, here)
            self.write(region, where[here] - region.base, value[here])

    def everywhere(self, gang: Gang, address: Any, mask: Any = None) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Addresses of all elements, [length, threads], and which of them are accessed."""
        where = np.broadcast_to(address, gang.size) + self.along
        on = gang.active() if mask is None else gang.active() & mask
        return where, np.broadcast_to(on, where.shape)

    def regions(self, gang: Gang, where: NDArray[np.int64], on: NDArray[np.bool_]) \
            -> Iterator[tuple[Region, NDArray[np.bool_]]]:
        """Every allocation that these addresses were made from, and which of them were."""
        indices = where >> SPAN_BITS
        same = bool((indices == indices[0, 0]).all())
        for index in (indices[0, :1] if on.any() else ()) if same else np.unique(indices[on]):
            here = on if same else on & (indices == index)
            region = self.memory.find(int(index) << SPAN_BITS)
            if region is None:
                self.nowhere(gang, where, here)
            yield region, here

    def check(self, gang: Gang, region: Region, where: NDArray[np.int64], here: NDArray[np.bool_]) -> None:
        outside = here & ~region.holds(where - region.base, self.item)
        if outside.any():
            self.fault("out of bounds", gang, region, where, outside,
                       f"it has {region.size // self.item} elements of {self.dtype}")
        crooked = here & (where[0] % self.align != 0)
        if crooked.any():
            self.fault("misaligned", gang, region, where, crooked, f"it must be {self.align}-byte aligned")

    def read(self, region: Region, offset: NDArray[np.int64]) -> NDArray[Any]:
        phase = offset % self.item
        if (phase == phase[0]).all():
            return region.view(self.dtype, int(phase[0]))[offset // self.item, 0]
        return region.data[offset[:, None] + np.arange(self.item)].view(self.dtype)[:, 0]

    def write(self, region: Region, offset: NDArray[np.int64], value: NDArray[Any]) -> None:
        which = offset[:, None] + np.arange(self.item)
        region.data[which] = np.ascontiguousarray(value)[:, None].view(np.uint8)
        if region.written is not None:
            region.written[which] = True
            if region.space == "shared" and region.written.all():
                region.written = None           # from now on there is nothing to check

    def order(self, gang: Gang, region: Region, where: NDArray[np.int64], here: NDArray[np.bool_]) -> None:
        """Check that nobody else touches these bytes without an order between."""
        history = None if self.atomic else self.machine.history(region)
        if history is None:
            return
        threads = np.broadcast_to(gang.threads, where.shape)[here]
        units = history.locate(where[here] - region.base, self.item)
        store = self.verb == "store"
        race = history.store(threads, units, self.node.line) if store else history.load(threads, units)
        if race is not None:
            element, unit = np.argwhere(race.late)[0]
            bad = np.zeros(where.shape, bool)
            bad[tuple(np.argwhere(here)[element])] = True
            other = int(np.broadcast_to(race.other, race.late.shape)[element, unit])
            before = race.verb + (f" at {race.line}" if race.line else "") + self.machine.by(other)
            self.fault("race", gang, region, where, bad, f"{before}, and nothing orders the two")

    # ---- counting

    def traffic(self, region: Region) -> Traffic:
        found = self.seen.get(region.name)
        if found is None:
            site = Site(self.node.line, region.name, region.space, self.verb)
            found = self.seen[region.name] = self.machine.report.at(site)
        return found

    def count(self, gang: Gang, region: Region, where: NDArray[np.int64], here: NDArray[np.bool_]) -> None:
        traffic = self.traffic(region)
        base = int(where[0, 0]) // PERIOD * PERIOD
        relative = where - base
        key = relative.tobytes(), here.tobytes()
        pattern = self.patterns.get(key)
        if pattern is None:
            moved, ideal = self.passes(relative, here) if region.space == "shared" else \
                self.granules(traffic.granule, relative, here)
            requests = int(np.count_nonzero(here.any(0).reshape(-1, self.machine.warp).any(1)))
            pattern = self.patterns[key] = Pattern(requests, int(np.count_nonzero(here)), moved, ideal)
        traffic.requests += pattern.requests
        traffic.elements += pattern.elements
        traffic.bytes += pattern.elements * self.item
        traffic.moved += pattern.moved
        traffic.ideal += pattern.ideal
        if base not in pattern.bases:
            pattern.bases.add(base)
            start = where[here] - (region.base - region.base % traffic.granule)
            traffic.touch(region.name, region.data.size + traffic.granule)[start[:, None] + np.arange(self.item)] = True

    def granules(self, granule: int, where: NDArray[np.int64], here: NDArray[np.bool_]) -> tuple[int, int]:
        """(granules that the requests of all warps move, the fewest that could hold the distinct elements of each)."""
        first = where - where.min()                             # from here on small, so that the warp fits beside it
        warp = np.broadcast_to(np.arange(where.shape[1]) // self.machine.warp, where.shape)[here]
        apart = int(first.max()) + granule + self.item
        start = first[here] + int(where.min()) % granule
        ends = np.concatenate([start, start + self.item - 1]) // granule
        moved = np.unique(ends + np.concatenate([warp, warp]) * apart).size
        distinct = np.bincount(np.unique(start + warp * apart) // apart)
        return moved, int((-(-distinct * self.item // granule)).sum())

    def passes(self, where: NDArray[np.int64], here: NDArray[np.bool_]) -> tuple[int, int]:
        """(passes over the banks of shared memory, the fewest that could deliver the distinct words).

        In one pass a bank delivers one word of 4 bytes, to any number of lanes. Wide accesses go by half or quarter
        warps, so that a request without conflicts has 32 words.
        """
        lanes, groups = self.machine.warp, max(self.bytes // 4, 1)
        passes = fewest = 0
        for warp in range(where.shape[1] // lanes):
            for group in np.array_split(np.arange(warp * lanes, (warp + 1) * lanes), groups):
                start = where[:, group][here[:, group]]
                words = np.unique((start[:, None] + np.arange(0, self.item, 4)) // 4)
                if words.size:
                    passes += int(np.bincount(words % BANKS).max())
                    fewest += -(-words.size // BANKS)
        return passes, fewest

    # ---- faults: blame the first thread and element that is marked bad

    def nowhere(self, gang: Gang, where: NDArray[np.int64], bad: NDArray[np.bool_]) -> NoReturn:
        element, thread = np.argwhere(bad)[0]
        address = int(where[element, thread])
        if self.memory.is_function(address):
            why = "this is the address of a function"
        elif 0 <= address < 4096:
            why = "a null pointer" + (f", {address} bytes on" if address else "")
        else:
            why = "no array is there, or it was local to a function that has returned"
        raise Fault("no memory", self.node.line, self.function, f"{self.verb} at {address:#x}{gang.by(thread)}: {why}")

    def unwritten(self, gang: Gang, region: Region, where: NDArray[np.int64], here: NDArray[np.bool_]) -> None:
        assert region.written is not None
        offsets = np.where(here, where - region.base, 0)
        written = region.written[offsets[..., None] + np.arange(self.item)].all(-1)
        if (here & ~written).any():
            self.fault("uninitialised", gang, region, where, here & ~written, "nobody has written it")

    def read_only(self, gang: Gang, region: Region, where: NDArray[np.int64], here: NDArray[np.bool_]) -> NoReturn:
        self.fault("read-only", gang, region, where, here, "it may not be written")

    def fault(self, kind: str, gang: Gang, region: Region, where: NDArray[np.int64], bad: NDArray[np.bool_],
              why: str) -> NoReturn:
        element, thread = np.argwhere(bad)[0]
        offset = int(where[element, thread]) - region.base
        if region.pitch:
            offset = (offset + region.pitch // 4) % region.pitch - region.pitch // 4    # in its copy
        index, rest = divmod(offset, self.item)
        at = f"[{index}]" + (f" + {rest} bytes" if rest else "")
        raise Fault(kind, self.node.line, self.function, f"{self.verb} of {region.name}{at}{gang.by(thread)}: {why}")
