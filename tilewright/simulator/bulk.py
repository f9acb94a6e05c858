"""Bulk copies in flight (`cp.async.bulk`): tiles of tensors, and consecutive bytes, that one thread has copied.

What a load brings is in memory at once, but ordered only before the threads that wait for the mbarrier that counts its
bytes. A store reads shared memory until a wait of its thread says that it is over (`History.lend`), and what it
writes to global memory is in flight until another one does.
"""
from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.atoms.fragment import tf32
from tilewright.atoms.wgmma import swizzled
from tilewright.ir.types import TensorMap
from tilewright.simulator import proxy
from tilewright.simulator.proxy import PIECE, Offsets
from tilewright.simulator.report import Fault
from tilewright.targets.tensor_maps import ImageMap, Mapped, TiledMap

if TYPE_CHECKING:
    from tilewright.ir.program import Line, Op
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine
    from tilewright.simulator.memory import Region

BULK_ALIGN = 16         # bytes, of consecutive ones in shared memory


@dataclass
class Store:
    """One in flight, by this thread. Offsets in bytes: pieces of shared memory, elements of global memory."""
    line: Line
    thread: int
    smem: Region
    pieces: Offsets
    gmem: Region
    elements: Offsets
    item: int                           # bytes of an element; 0: they were added, which no order concerns
    read: bool = False                  # shared memory has been read


class Bulk:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.maps: list[tuple[TiledMap | ImageMap, int]] = []      # arguments, and where their tensors begin

    def begin(self) -> None:
        """Others run now."""
        self.open: dict[int, list[Store]] = defaultdict(list)               # by thread
        self.closed: dict[int, list[list[Store]]] = defaultdict(list)       # groups, the oldest first

    def argument(self, param: str, t: TensorMap, x: Any) -> int:
        """What a parameter holds: the number of the map of an array."""
        mapped = Mapped(TiledMap.from_array(t.tile, x), x) if isinstance(x, np.ndarray) else x
        if not isinstance(mapped, Mapped) or mapped.map.tile != t.tile:
            raise TypeError(f"{param} is a {t}: it must be an array, or a Mapped one with such tiles, not {x!r}")
        tensor = mapped.tensor
        address = tensor if isinstance(tensor, int) else self.machine.memory.address(tensor, param)
        mapped.map.check(address)
        self.maps.append((mapped.map, address))
        return len(self.maps) - 1

    # ---- operations

    def load(self, gang: Gang, node: Op, smem: Any, map: Any, pointer: Any, *more: Any) -> None:
        *coordinates, multicast, policy = more
        del coordinates[len(coordinates) - policy:]
        mask = coordinates.pop() if multicast else None
        for lane, barrier in self._lanes(gang, node, pointer):
            tiled, base, elements, inside = self._box(gang, node, map, coordinates, lane)
            tile = tiled.tile
            _, at, data = self._global(gang, node, "load", base, elements, inside, tile.item, lane)
            rows = np.zeros(inside.shape, data.dtype)
            rows[inside] = data[at // tile.item]
            if tile.element == "tf32":
                rows = tf32(rows.view(np.float32)).view(rows.dtype)
            if tiled.nan:
                rows[~inside] = np.array(np.nan, node.operands[1].type.element.numpy).view(rows.dtype)
            self._arrive(gang, node, lane, int(_of(smem, lane)), rows.view(np.uint8), tile.align, tile.swizzle, barrier,
                         None if mask is None else int(_of(mask, lane)))

    def load_bytes(self, gang: Gang, node: Op, smem: Any, gmem: Any, bytes: Any, pointer: Any) -> None:
        for lane, barrier in self._lanes(gang, node, pointer):
            address, count = int(_of(gmem, lane)), self._count(gang, node, bytes, lane)
            inside = np.ones((1, count), bool)
            _, at, data = self._global(gang, node, "load", address, np.arange(count)[None], inside, 1, lane)
            self._arrive(gang, node, lane, int(_of(smem, lane)), data[at], BULK_ALIGN, 0, barrier)

    def store(self, gang: Gang, node: Op, smem: Any, map: Any, *more: Any) -> None:
        *coordinates, add = more
        for lane in np.flatnonzero(gang.active()).tolist():
            tiled, base, elements, inside = self._box(gang, node, map, coordinates, lane)
            tile = tiled.tile
            source, pieces, data = self._shared(gang, node, int(_of(smem, lane)), tile.bytes, tile.align, tile.swizzle,
                                                lane)
            values = data.ravel().view(node.operands[1].type.element.numpy).reshape(inside.shape)[inside]
            self._write(gang, node, lane, source, pieces, base, elements, inside, values, add)

    def store_bytes(self, gang: Gang, node: Op, gmem: Any, smem: Any, bytes: Any) -> None:
        for lane in np.flatnonzero(gang.active()).tolist():
            count = self._count(gang, node, bytes, lane)
            source, pieces, data = self._shared(gang, node, int(_of(smem, lane)), count, BULK_ALIGN, 0, lane)
            self._write(gang, node, lane, source, pieces, int(_of(gmem, lane)), np.arange(count)[None],
                        np.ones((1, count), bool), data.ravel(), False)

    def commit(self, gang: Gang, node: Op) -> None:
        for thread in gang.threads[gang.active()].tolist():
            self.closed[thread].append(self.open.pop(thread, []))

    def wait(self, gang: Gang, node: Op, pending: int, read: bool) -> None:
        for thread in gang.threads[gang.active()].tolist():
            groups = self.closed[thread]
            over = groups[:max(len(groups) - pending, 0)]
            for store in (store for group in over for store in group):
                self._end_of_read(store)
                if not read:
                    self._end_of_write(store)
            if not read:
                del groups[:len(over)]

    def end(self) -> None:
        """All have ended: shared memory is gone, and may not be read any more."""
        for thread in {*self.open, *self.closed}:
            for store in (store for group in (*self.closed[thread], self.open[thread]) for store in group):
                if not store.read:
                    raise Fault("in flight", store.line, self.machine.function.name, "the kernel ends while this copy "
                                f"reads {store.smem.name}: no k.bulk_wait() says that it is over"
                                f"{self.machine.by(thread)}")

    # ---- what they consist of

    def _lanes(self, gang: Gang, node: Op, pointer: Any) -> list[tuple[int, int]]:
        """The active lanes, and the mbarrier of each."""
        barriers = self.machine.mbarriers.each(gang, node, pointer, "copy")
        return sorted((int(lane), address) for address, lanes in barriers for lane in lanes)

    def _box(self, gang: Gang, node: Op, map: Any, coordinates: Any,
             lane: int) -> tuple[TiledMap | ImageMap, int, Offsets, NDArray[np.bool_]]:
        """A lane's map, where its tensor begins, and the elements of the box at these coordinates that there are. Where
        the first coordinate is no multiple of 16 bytes, an H100 stops with "illegal instruction"."""
        tiled, base = self.maps[int(_of(map, lane))]
        first, *more = (int(_of(x, lane)) for x in coordinates)
        if first * tiled.tile.item % PIECE:
            raise gang.fault("misaligned", node, f"the first coordinate of a tile must be a multiple of {PIECE} bytes, "
                             f"not {first} elements of {tiled.tile.item}{gang.by(lane)}")
        return tiled, base, *tiled.elements((first, *more))

    def _count(self, gang: Gang, node: Op, bytes: Any, lane: int) -> int:
        count = int(_of(bytes, lane))
        if count % PIECE or count < 0:
            raise gang.fault("misaligned", node, f"a bulk copy moves multiples of {PIECE} bytes, not {count}"
                             f"{gang.by(lane)}")
        return count

    def _global(self, gang: Gang, node: Op, verb: str, base: int, elements: Offsets, inside: NDArray[np.bool_],
                item: int, lane: int) -> tuple[Region, Offsets, NDArray[Any]]:
        """Global memory at the elements that there are: the array, where they are in it, in bytes, and the array's
        elements. In bounds, aligned, counted, and in an order with what others do there."""
        machine, how = self.machine, proxy.access(gang, node, verb)
        region = machine.memory.find(base)
        if region is None:
            how.nowhere(gang, base, lane)
        if base % PIECE:
            raise gang.fault("misaligned", node, f"a bulk copy begins at a multiple of {PIECE} bytes of {region.name}"
                             f"{gang.by(lane)}")
        at = elements[inside] + (base - region.base)
        outside = (at < 0) | (at + item > region.size)
        if outside.any():
            first = int(at[int(outside.argmax())])
            how.fault("out of bounds", gang, region, first, lane, f"it has {region.size} bytes")
        if not region.writable and verb != "load":
            how.fault("read-only", gang, region, 0, lane, "it is read-only")
        if region.written is not None and verb != "store" and not region.written[at[:, None] + np.arange(item)].all():
            how.fault("uninitialised", gang, region, int(at[0]), lane, "some of it has not been written")
        traffic = how.traffic(region)
        how.asynchronous(gang, region, at, item, gang.threads[[lane]])
        granule, shift = traffic.granule, region.base % traffic.granule
        runs = np.flatnonzero(np.diff(at, prepend=at[:1] - 2*item) != item)     # that follow no other element
        starts, ends = at[runs] + shift, at[np.append(runs[1:], len(at)) - 1] + shift + item if len(at) else at
        traffic.requests += 1
        traffic.elements += at.size * item // how.item
        traffic.bytes += at.size * item
        traffic.moved += int(((ends - 1) // granule - starts // granule + 1).sum())
        traffic.ideal += -(-at.size * item // granule)
        traffic.touch(region.name, region.data.size + granule)[at[:, None] + shift + np.arange(item)] = True
        if verb != "add":
            self._order(gang, node, region, at, int(np.gcd.reduce([*starts - shift, *ends - shift, PIECE])), item, lane,
                        verb)
        return region, at, region.view(np.dtype(f"u{item}"), 0)

    def _order(self, gang: Gang, node: Op, region: Region, at: Offsets, step: int, item: int, lane: int,
               verb: str) -> None:
        """Elements of global memory, runs of multiples of `step` bytes: a fault if another thread may touch them at the
        same time."""
        history, how = self.machine.history(region), proxy.access(gang, node, verb)
        if history is None or not at.size:
            return
        history.refine(step)
        units = np.unique(at[:, None] // history.unit + np.arange(max(item // history.unit, 1)))
        thread = int(gang.threads[lane])
        threads, agents = np.full(units.size, thread), np.full(units.size, thread // self.machine.warp)
        race = history.load(agents, threads, units, node.line) if verb == "load" else history.store(
            agents, threads, units, node.line)
        if race is not None:
            how.race(gang, region, history, race, int(units[race.pair]), lane)
        if verb == "store":
            history.depart(threads, units, node.line)

    def _arrive(self, gang: Gang, node: Op, lane: int, smem: int, data: NDArray[np.uint8], align: int, swizzle: int,
                barrier: int, mask: int | None = None) -> None:
        """The bytes arrive in shared memory and are counted by the mbarrier, in each CTA of the mask."""
        machine, thread = self.machine, int(gang.threads[lane])
        region = self._placed(gang, node, smem, align, swizzle, lane)
        pieces = data.reshape(-1, PIECE)
        at = swizzled(smem + np.arange(len(pieces)) * PIECE, swizzle) - region.base
        own, size = thread // machine.cta, machine.clusters.size
        ranks = [own % size] if mask is None else [r for r in range(16) if mask >> r & 1]
        clock = None
        for rank in ranks:
            if rank >= size:
                raise gang.fault("cluster", node, f"there is no CTA {rank} in a cluster of {size}{gang.by(lane)}")
            away = rank - own % size
            if away:
                machine.clusters.reach(gang, node, lane, own + away)
            proxy.write(gang, node, region, at + away * (region.pitch or 0), pieces, lane, own + away, swizzle)
        clock = machine.clocks.land(np.array([thread // machine.warp]))
        home = machine.memory.find(barrier)
        assert home is not None
        for rank in ranks:
            address = barrier + (rank - own % size) * (home.pitch or 0)
            machine.mbarriers.fenced(gang, node, address, lane).come(data.size, clock)

    def _placed(self, gang: Gang, node: Op, smem: int, align: int, swizzle: int, lane: int) -> Region:
        """The array in shared memory where a copy begins, aligned as it has to be."""
        region = proxy.located(gang, node, smem, lane, align, swizzle)
        if smem % align:
            raise gang.fault("misaligned", node, f"a copy that begins {smem % align} bytes after a multiple of {align} "
                             f"in {region.name}{gang.by(lane)}")
        return region

    def _shared(self, gang: Gang, node: Op, smem: int, bytes: int, align: int, swizzle: int,
                lane: int) -> tuple[Region, Offsets, NDArray[np.uint8]]:
        """Bytes of shared memory, which are read from now on: the array, the places of pieces, and what they hold."""
        region = self._placed(gang, node, smem, align, swizzle, lane)
        at = swizzled(smem + np.arange(0, bytes, PIECE), swizzle) - region.base
        history, units = proxy.read(gang, node, region, at, [lane], swizzle)
        history.lend(gang.threads[[lane]], units, node.line)
        return region, at, proxy.pieces(region.data)[at // PIECE]

    def _write(self, gang: Gang, node: Op, lane: int, smem: Region, pieces: Offsets, base: int, elements: Offsets,
               inside: NDArray[np.bool_], values: NDArray[Any], add: bool) -> None:
        item = values.dtype.itemsize
        region, offsets, numbers = self._global(gang, node, "add" if add else "store", base, elements, inside, item,
                                                lane)
        at = offsets // item
        numbers[at] = (numbers[at].view(values.dtype) + values if add else values).view(numbers.dtype)
        if region.written is not None:
            region.written[offsets[:, None] + np.arange(item)] = True
        self.machine.progress += 1
        thread = int(gang.threads[lane])
        self.open[thread].append(Store(node.line, thread, smem, pieces, region, offsets, 0 if add else item))

    def _end_of_read(self, store: Store) -> None:
        if not store.read:
            store.read = True
            history, warp = self.machine.history(store.smem), store.thread // self.machine.warp
            assert history is not None
            history.give_back(store.thread, history.parts(store.pieces, PIECE).ravel(),
                              int(self.machine.clocks.now[warp]))

    def _end_of_write(self, store: Store) -> None:
        history = self.machine.history(store.gmem)
        if history is not None and store.item:
            units = np.unique(store.elements[:, None] // history.unit + np.arange(max(store.item // history.unit, 1)))
            history.land(np.full(units.size, store.thread), units)


def _of(x: Any, lane: int) -> Any:
    """A lane's own of a value of the gang."""
    return x if np.ndim(x) == 0 else x[lane]
