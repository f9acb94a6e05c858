"""Shared memory as the async proxy reads and writes it, in pieces of 16 bytes: what tensor cores (`wgmma`) and bulk
copies (`bulk`) have in common.

Where pieces come by a tensor map with a swizzle, that is noted, so that a reader which takes them for another one is
found.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.types import Pointer, vec

if TYPE_CHECKING:
    from tilewright.ir.program import Op
    from tilewright.simulator.access import Access
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.history import History
    from tilewright.simulator.memory import Region

PIECE = 16
WIDTH = 128                     # bytes that shared memory gives in one pass
Offsets = NDArray[np.int64]


def access(gang: Gang, node: Op, verb: str, remote: bool = False) -> Access:
    """For messages and counters, by elements of the operation's first pointer."""
    element = next(x.type.element for x in node.operands if isinstance(x.type, Pointer))
    return gang.access(node, verb, vec(element, PIECE // element.bytes), PIECE, remote=remote)


def located(gang: Gang, node: Op, address: int, lane: int, align: int, swizzle: int) -> Region:
    """The array that an address of shared memory points into, which must be aligned to so many bytes, as the kernel
    declares it too."""
    region = gang.machine.memory.find(address)
    if region is None:
        access(gang, node, "access").nowhere(gang, address, lane)
    why = f", and a swizzle of {swizzle} bytes repeats every {align}" if swizzle else f", and it takes {align}"
    if region.align % align:
        raise gang.fault("misaligned", node, f"{region.name} is aligned to {region.align} bytes{why}: pass "
                         f"align={align}")
    return region


def check(gang: Gang, node: Op, how: Access, region: Region, offsets: Offsets, lane: int, cta: int) -> None:
    """A fault unless these pieces are inside the array of a CTA."""
    home = 0 if region.pitch is None else cta * region.pitch
    outside = (offsets < home) | (offsets + PIECE > home + region.size)
    if outside.any():
        first = int(offsets[int(outside.argmax())])
        how.fault("out of bounds", gang, region, first, lane, f"it has {region.size} bytes")


def pieces(x: NDArray[Any]) -> NDArray[Any]:
    """The whole pieces of an array of bytes, or of their flags, as rows: by their numbers they are reached faster than
    byte by byte."""
    return x[:x.size // PIECE * PIECE].reshape(-1, PIECE)


def read(gang: Gang, node: Op, region: Region, offsets: Offsets, lanes: Any, swizzle: int, shares: int = 1
         ) -> tuple[History, Offsets]:
    """The pieces are read from now on for each of these lanes' threads. All of them make up `shares` readers that the
    hardware serves at once. Returned are the units, of which the caller says when the read is over."""
    how, machine, first = access(gang, node, "load"), gang.machine, int(lanes[0])
    check(gang, node, how, region, offsets, first, int(gang.threads[first]) // machine.cta)
    if region.written is not None:
        missing = ~pieces(region.written)[offsets // PIECE].all(1)
        if missing.any():
            how.fault("uninitialised", gang, region, int(offsets[int(missing.argmax())]), first,
                      "it has not been written")
    if region.swizzles is not None:
        written_swizzles = region.swizzles[offsets // PIECE]
        other = (written_swizzles >= 0) & (written_swizzles != swizzle)
        if other.any():
            at = int(other.argmax())
            how.fault("swizzle", gang, region, int(offsets[at]), first, "it came by a map with a swizzle of "
                      f"{written_swizzles[at]} bytes, and is read with one of {swizzle}")
    history = machine.history(region)
    assert history is not None
    units = history.parts(offsets, PIECE).ravel()
    threads = gang.threads[lanes]
    if history.fetch(threads[:, None] // machine.warp, threads[:, None], units) is not None:
        for lane, thread in zip(lanes, threads):                # which of them it is
            race = history.fetch(np.array([thread // machine.warp]), np.array([thread]), units)
            if race is not None:
                how.race(gang, region, history, race, int(units[race.pair]), int(lane))
    count(how, region, offsets, offsets.size * PIECE * len(lanes) // shares, len(lanes))
    how.asynchronous(gang, region, offsets, PIECE, threads)
    return history, units


def write(gang: Gang, node: Op, region: Region, offsets: Offsets, data: NDArray[np.uint8], lane: int, cta: int,
          swizzle: int) -> None:
    """Pieces [n, 16] arrive in the array of a CTA, for those to see who learn of it by the mbarrier."""
    machine, thread = gang.machine, int(gang.threads[lane])
    remote = cta != thread // machine.cta
    how = access(gang, node, "store", remote)
    check(gang, node, how, region, offsets, lane, cta)
    how.storing = data
    how.asynchronous(gang, region, offsets, PIECE, np.array([cta * machine.cta]) if remote else gang.threads[[lane]])
    history = machine.history(region)
    assert history is not None
    units = history.parts(offsets, PIECE).ravel()
    threads, agents = np.full(units.size, thread), np.full(units.size, thread // machine.warp)
    race = history.unproxied(agents, units) or history.store(agents, threads, units, node.line, remote)
    if race is not None:
        how.race(gang, region, history, race, int(units[race.pair]), lane)
    pieces(region.data)[offsets // PIECE] = data
    if region.written is not None:
        pieces(region.written)[offsets // PIECE] = True
        if np.count_nonzero(region.written) == region.written.size:
            region.written = None           # from now on there is nothing to check
    if region.swizzles is None:
        region.swizzles = np.full(-(-region.data.size // PIECE), -1, np.int16)
    region.swizzles[offsets // PIECE] = swizzle
    history.depart(threads, units, node.line)
    history.land_unseen(threads, units)
    machine.progress += 1
    count(how, region, offsets, offsets.size * PIECE, 1)


def count(how: Access, region: Region, offsets: Offsets, bytes: int, requests: int) -> None:
    """Count an access to shared memory by the asynchronous proxy."""
    traffic = how.traffic(region)
    traffic.requests += requests
    traffic.elements += bytes // how.item
    traffic.bytes += bytes
    traffic.moved += -(-bytes // WIDTH)
    traffic.ideal += -(-bytes // WIDTH)
    touched = traffic.touch(region.name, region.data.size + traffic.granule)
    pieces(touched)[(offsets + region.base % traffic.granule) // PIECE] = True
