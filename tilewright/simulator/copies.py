"""Copies from global to shared memory in flight (`cp.async`), which the threads that started them do not make.

A copy is on its way from the instruction that starts it until its thread has waited for its group: meanwhile the
destination must not be touched, nor the source written. After the wait it is as if the thread had written the
destination there and then, so that others still need a barrier after the wait to see it.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.types import Type, i8, vec
from tilewright.simulator.access import Access
from tilewright.simulator.history import History
from tilewright.simulator.memory import Region
from tilewright.simulator.report import Fault

if TYPE_CHECKING:
    from tilewright.ir.program import Line, Op
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine
    from tilewright.simulator.pattern import Pattern


class Flight(NamedTuple):
    """Elements that one instruction sends on their way. Offsets in bytes; everything by element, flat."""
    line: Line
    region: Region
    offsets: NDArray[np.int64]
    values: NDArray[Any]
    threads: NDArray[np.int64]
    groups: NDArray[np.int64]               # the group of its thread that each belongs to
    source: Region | None
    origins: NDArray[np.int64]              # in the source; -1: zeros that come from nowhere

    def cut(self, keep: NDArray[np.bool_]) -> Flight:
        return Flight(self.line, self.region, self.offsets[keep], self.values[keep], self.threads[keep],
                      self.groups[keep], self.source, self.origins[keep])


class Copies:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def begin(self) -> None:
        """Others run now."""
        self.flights: list[Flight] = []
        self.closed = np.zeros(self.machine.threads, np.int64)      # groups that each thread has closed

    # ---- operations

    def start(self, gang: Gang, node: Op, smem: Any, gmem: Any, bytes: int, valid: Any = None,
              align: int | None = None) -> None:
        """`align`: of `gmem`, if it needs not be that of the bytes."""
        element = node.operands[0].type.element
        to = gang.access(node, "store", vec(element, bytes // element.bytes), bytes & -bytes)
        values, origins, source = self._read(gang, node, element, gmem, bytes, valid, align)
        to.storing = values
        for part in to.claim(gang, smem):
            region, pattern, start = part
            offsets = start - region.base + pattern.offsets.ravel()
            threads = gang.threads[pattern.lanes()]
            self.flights.append(Flight(
                node.line, region, offsets, to.taken(pattern, values, gang.size).ravel(), threads, self.closed[threads],
                source, to.taken(pattern, origins, gang.size).ravel()))
            history, unit_threads, units = self._units(region, offsets, threads, to.item)
            history.depart(unit_threads, units, node.line)

    def commit(self, gang: Gang, node: Op) -> None:
        self.closed[gang.threads[gang.active()]] += 1

    def wait(self, gang: Gang, node: Op, pending: int) -> None:
        """The groups of the active threads but the newest `pending` have arrived."""
        self.arrive(gang.threads[gang.active()], pending)

    def arrive(self, threads: NDArray[np.int64], pending: int) -> None:
        over = np.zeros(self.machine.threads, np.int64)
        over[threads] = np.maximum(self.closed[threads] - pending, 0)
        left = []
        for flight in self.flights:
            done = flight.groups < over[flight.threads]
            if not done.any():
                left.append(flight)
                continue
            self._arrive(flight if done.all() else flight.cut(done))
            if not done.all():
                left.append(flight.cut(~done))
        self.flights = left

    def end(self) -> None:
        """All have ended: shared memory belongs to other CTAs then, and nothing may still be on its way there."""
        for flight in self.flights:
            raise Fault("in flight", flight.line, self.machine.function.name, f"the kernel ends while this copy to "
                        f"{flight.region.name} is in flight: no wait says that it is over"
                        f"{self.machine.by(int(flight.threads[0]))}")

    # ---- what they consist of

    def _read(self, gang: Gang, node: Op, element: Type, gmem: Any, bytes: int, valid: Any,
              align: int | None) -> tuple[NDArray[Any], NDArray[np.int64], Region | None]:
        """What arrives, the first `valid` bytes of each thread and then zeros, and where it comes from: by element and
        thread."""
        item = element.bytes
        address = np.broadcast_to(gmem, gang.size)
        lanes = np.arange(bytes)[:, None]
        if valid is None:
            valid = np.int32(bytes)
        on = np.broadcast_to(valid, gang.size)[gang.active()]
        if ((on < 0) | (on > bytes)).any():
            wrong = int(on[(on < 0) | (on > bytes)][0])
            raise gang.fault("arithmetic", node, f"a copy of {bytes} bytes cannot have {wrong} valid ones")
        if (on % item == 0).all():
            access = gang.access(node, "load", vec(element, bytes // item), align or bytes & -bytes)
            values = access.gather(gang, address, None if (on == bytes).all() else lanes[::item] < valid)
        else:
            access = gang.access(node, "load", vec(i8, bytes), align or bytes)
            got = access.gather(gang, address, lanes < valid)
            values = np.ascontiguousarray(got.T).view(element.numpy).T
        values = np.atleast_2d(values)
        some = np.flatnonzero(gang.active() & (np.broadcast_to(valid, gang.size) > 0))
        source = self.machine.memory.find(int(address[some[0]])) if some.size else None
        origins = np.where(lanes[::item] < valid, address + lanes[::item] - (source.base if source else 0), -1)
        return values, origins, source

    def _arrive(self, flight: Flight) -> None:
        item = flight.values.itemsize
        bytes = np.ascontiguousarray(flight.values)[:, None].view(np.uint8)
        flight.region.data[flight.offsets[:, None] + np.arange(item)] = bytes
        history, threads, units = self._units(flight.region, flight.offsets, flight.threads, item)
        history.land(threads, units)

    def _units(self, region: Region, offsets: NDArray[np.int64], threads: NDArray[np.int64],
               item: int) -> tuple[History, Any, Any]:
        """The units of these elements, and the thread of each."""
        history = self.machine.history(region)
        assert history is not None
        history.refine(item)
        units = offsets[:, None] // history.unit + np.arange(item // history.unit)
        return history, np.repeat(threads, units.shape[1]), units.ravel()

    def source_changes(self, gang: Gang, access: Access, region: Region, pattern: Pattern, offset: int) -> None:
        """A store to global memory: a fault if a copy that is in flight reads there."""
        for flight in self.flights:
            if flight.source is region:
                written, item = pattern.offsets.ravel() + offset, flight.values.itemsize
                read = flight.origins[flight.origins >= 0][:, None] + np.arange(item)
                hit = np.isin(written[:, None] + np.arange(access.item), read).any(1)
                if hit.any():
                    index = int(hit.argmax())
                    access.fault("race", gang, region, int(written[index]), int(pattern.lanes()[index]),
                                 f"a copy from there, started at {flight.line}, is in flight")
