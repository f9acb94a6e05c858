"""How the addresses of an access lie to each other: what it costs, which units of memory which threads touch.

Accesses of one kernel repeat the same few patterns at other places, and nothing here depends on the place: addresses
that all move by whole sectors need as many as before, and by a multiple of PERIOD as many passes over the banks.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.exact import some
from tilewright.simulator.memory import Region
from tilewright.targets.banks import WIDEST, WORD, Banks

if TYPE_CHECKING:
    from tilewright.simulator.access import Access, Part

PERIOD = 256            # bytes: once around the banks of any chip
MOST_ELEMENTS = 1 << 21     # of all patterns that are kept, some 60 bytes each
_ONES = {item: int.from_bytes(bytes([1]) * item, "little") for item in (1, 2, 4, 8)}


def distinct_of(x: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sorted distinct numbers of x. np.unique hashes, which takes four times as long."""
    x = np.sort(x)
    first = np.ones(x.size, bool)
    np.not_equal(x[1:], x[:-1], out=first[1:])
    return x[first]


class Pairs(NamedTuple):
    """Lane lanes[i], of warp warps[i] of the gang, touches unit units[i], counted from the lowest; of a load also other
    lanes of the warp, up to last[i]."""
    warps: NDArray[np.int64]
    lanes: NDArray[np.int64]
    units: NDArray[np.int64]
    last: NDArray[np.int64]
    clash: tuple[int, int] | None           # of a store: two pairs of different lanes with the same unit


class Pattern:
    """`relative` [threads]: where each lane's first element begins, from the begin of a period on; `here` [length,
    threads]: which elements there are, None for all; `first` is the address of lane `lane`. An access of shared memory
    goes over these banks, `piece` bytes of each lane at a time."""

    def __init__(self, item: int, length: int, relative: NDArray[np.int64], here: NDArray[np.bool_] | None, lane: int,
                 region: Region, first: int, warp: int, granule: int, banks: Banks, piece: int, load: bool) -> None:
        where = relative + np.arange(length)[:, None] * item
        on = np.ones(where.shape, bool) if here is None else here
        taken = where if here is None else where[here]
        lowest = int(taken.min())
        self.item, self.warp, self.here, self.on = item, warp, here, on
        self.offsets = taken - lowest                       # from the lowest one, in bytes: [length, threads] or [n]
        self.index = self.offsets // item if not (self.offsets % item).any() else None      # the same in elements
        self.start = lowest - int(relative[lane])           # of the lowest element, from the first lane's address on
        self.lowest = int(np.argwhere(on & (where == lowest))[0, 1])
        self.step = int(np.gcd.reduce(self.offsets, axis=None, initial=item))
        # inside one copy of the array, from the first lane's address on
        inside = taken - int(relative[lane]) + (first - region.base)
        if region.pitch is not None:
            inside %= region.pitch
        home = first - region.base if region.pitch is None else (first - region.base) % region.pitch
        self.low, self.high = int(inside.min()) - home, int(inside.max()) - home + item
        self.requests = int(np.count_nonzero(on.any(0).reshape(-1, warp).any(1)))
        self.elements = taken.size
        cost = passes(where, on, item, warp, banks, piece, load) if region.space == "shared" else \
            granules(where, on, item, warp, granule)
        self.moved, self.ideal = int(cost.moved.sum()), int(cost.ideal.sum())
        self._pairs: dict[tuple[int, int], Pairs] = {}

    def bytes(self, offset: int) -> NDArray[np.int64]:
        """[elements, bytes of one]: where each byte is, if the lowest element begins at `offset`."""
        return offset + self.offsets.ravel()[:, None] + np.arange(self.item)

    def read(self, region: Region, dtype: np.dtype[Any], offset: int) -> Any:
        """The elements, if the lowest of them begins at `offset` of the region."""
        if self.index is None:
            return region.data[self.bytes(offset)].view(dtype)[:, 0].reshape(self.offsets.shape)
        i, phase = divmod(offset, self.item)
        return region.view(dtype, phase)[i:].take(self.index)

    def write(self, region: Region, dtype: np.dtype[Any], offset: int, value: Any) -> None:
        if self.index is None:
            value = np.ascontiguousarray(np.broadcast_to(value, self.offsets.shape)).ravel()
            region.data[self.bytes(offset)] = value[:, None].view(np.uint8)
        else:
            i, phase = divmod(offset, self.item)
            region.view(dtype, phase)[i:][self.index] = value

    def mark(self, flags: NDArray[np.bool_], offset: int) -> None:
        """Set the flags of all bytes, if the lowest element begins at `offset`."""
        if self.index is None:
            flags[self.bytes(offset)] = True
        else:
            self._by_element(flags, offset)[self.index] = _ONES[self.item]

    def marked(self, flags: NDArray[np.bool_], offset: int) -> bool:
        """Are the flags of all bytes set?"""
        if self.index is None:
            return bool(flags[self.bytes(offset)].all())
        return not some(self._by_element(flags, offset).take(self.index) != _ONES[self.item])

    def _by_element(self, flags: NDArray[np.bool_], offset: int) -> Any:
        """The flags from `offset` on, one number for each element."""
        end = flags.size - (flags.size - offset) % self.item
        return flags[offset:end].view(f"u{self.item}")

    def lanes(self) -> NDArray[np.int64]:
        """Whose each element is, of the ones that there are."""
        return np.broadcast_to(np.arange(self.on.shape[1]), self.on.shape)[self.on]

    def pairs(self, unit: int, phase: int, load: bool) -> Pairs:
        """Who touches which units of so many bytes, if the lowest element begins `phase` bytes after such a unit."""
        touched = self._pairs.get((unit, phase))
        if touched is None:
            touched = self._pairs[unit, phase] = self._touched(unit, phase, load)
        return touched

    def _touched(self, unit: int, phase: int, load: bool) -> Pairs:
        lanes = self.lanes()
        units = (((self.offsets.ravel() + phase) // unit)[:, None] + np.arange(max(self.item // unit, 1)))
        lanes, units = np.repeat(lanes, units.shape[1]), units.ravel()
        warps = lanes // self.warp
        if load:                            # a unit counts once for each warp
            apart, many = int(units.max()) + 1, int(lanes.max()) + 1
            every = np.sort((warps * apart + units) * many + lanes)
            ends = np.flatnonzero(np.diff(every // many, append=-1))
            starts = np.append(0, ends[:-1] + 1)
            touched, lowest, highest = every[ends] // many % apart, every[starts] % many, every[ends] % many
            order = np.argsort(lowest * apart + touched)
            lowest = lowest[order]
            return Pairs(lowest // self.warp, lowest, touched[order], highest[order], None)
        order = np.argsort(units, kind="stable")
        twice = np.flatnonzero((np.diff(units[order]) == 0) & (np.diff(lanes[order]) != 0))
        clash = (int(order[twice[0]]), int(order[twice[0] + 1])) if twice.size else None
        return Pairs(warps, lanes, units, lanes, clash)


class Cost(NamedTuple):
    """What each warp pays: sectors, or passes over the banks, and the fewest that there could be; of shared memory also
    the turn of each lane's element in its warp: only those of the same turn share passes."""
    moved: NDArray[np.int64]
    ideal: NDArray[np.int64]
    phase: NDArray[np.int64] | None = None


def granules(where: NDArray[np.int64], on: NDArray[np.bool_], item: int, warp: int, granule: int) -> Cost:
    """Granules that the request of each warp moves, and the fewest that could hold its distinct elements; element
    [i, lane] is at where[i, lane], if it is `on`."""
    warps = np.broadcast_to(np.arange(where.shape[1]) // warp, where.shape)[on]
    start, count = where[on], -(-where.shape[1] // warp)
    low = int(start.min()) // granule * granule                 # from here on small, so that the warp fits beside it
    start = start - low
    apart = int(start.max()) + granule + item
    ends = np.concatenate([start, start + item - 1]) // granule
    moved = np.bincount(distinct_of(ends + np.concatenate([warps, warps]) * apart) // apart, minlength=count)
    distinct = np.bincount(distinct_of(start + warps * apart) // apart, minlength=count)
    return Cost(moved, -(-distinct * item // granule))


def passes(where: NDArray[np.int64], on: NDArray[np.bool_], item: int, warp: int, banks: Banks, piece: int, load: bool
           ) -> Cost:
    """Passes of each warp over the banks of shared memory, and the fewest that could deliver the distinct words."""
    split = banks.split(piece, load)
    threads = np.arange(where.shape[1])
    phase = np.broadcast_to(np.asarray(split.phase)[threads % warp], where.shape)
    if load and banks.pairs and split.phases > 1:
        phase = np.where(_paired(where, on, warp, split.phases), phase & ~1, phase)
    turn = threads // warp * split.phases + phase
    parts = np.arange(where.shape[0]) * item // piece               # instructions that the access takes
    several = int(parts[-1]) + 1
    groups = (turn * several + parts[:, None])[on]
    start = where[on]
    words = start[:, None] // WORD + np.arange(max(item // WORD, 1))
    words -= int(words.min()) // split.banks * split.banks
    apart = -(-(int(words.max()) + 1) // split.banks) * split.banks
    distinct = distinct_of(np.repeat(groups, words.shape[1]) * apart + words.ravel())
    group, bank = distinct // apart, distinct % split.banks
    size = -(-where.shape[1] // warp) * split.phases * several
    load_of = np.bincount(group * split.banks + bank, minlength=size * split.banks).reshape(-1, split.banks)
    by_warp = load_of.reshape(-1, split.phases * several, split.banks)
    return Cost(by_warp.max(2).sum(1), (-(-by_warp.sum(2) // split.banks)).sum(1), phase * several + parts[:, None])


def _paired(where: NDArray[np.int64], on: NDArray[np.bool_], warp: int, phases: int) -> NDArray[np.bool_]:
    """For each lane, whether its phase of the warp and the next one go together. They do if all their lanes read
    the same addresses as their neighbours, or as the next but one; lanes that read nothing are in no one's way."""
    threads = np.arange(where.shape[1])
    together = np.zeros(where.shape, bool)
    span = 2 * warp // phases
    for other in (threads ^ 1, threads ^ 2):
        same = (where == where[:, other]) | ~on | ~on[:, other]
        alike = same.reshape(len(where), -1, span).all(2)
        together |= np.repeat(alike, span, axis=1)
    return together


class Patterns:
    """The patterns that have been seen on machines of one kind, the latest of them: kernels of one family have many in
    common, and so have runs of one kernel."""

    def __init__(self) -> None:
        self._found: dict[Any, Pattern] = {}
        self._elements = 0

    def get(self, key: Any) -> Pattern | None:
        return self._found.get(key)

    def add(self, key: Any, pattern: Pattern) -> Pattern:
        self._found[key] = pattern
        self._elements += pattern.elements
        while self._elements > MOST_ELEMENTS and len(self._found) > 1:
            oldest = next(iter(self._found))
            self._elements -= self._found.pop(oldest).elements
        return pattern


@cache
def patterns(warp: int, granule: int, banks: Banks) -> Patterns:
    """The cache of access patterns that machines with such warps, sectors and banks share."""
    return Patterns()


# ---- what the compiler makes of neighbouring accesses of shared memory: one wide access of 8 or 16 bytes
#
# A kernel that reads `a_smem[i, p]` for p = 0 ... 3 has four loads on record. LLVM joins them, for every GPU, where
# they are in one basic block and the address is aligned, and a wide load passes over the banks less often than four.
# The counts that a time is predicted from (launch_counts.py) are those of joined accesses; reports are as recorded.

def fused(accesses: Sequence[Access]) -> Counter[str]:
    """How many fewer accesses compiled code makes than these ones of one basic block, which have just run: by
    kind, for each warp that runs it, and how many less "passes" over the banks."""
    alike: dict[Any, dict[int, tuple[Access, Part]]] = defaultdict(dict)
    fewer: Counter[str] = Counter()
    for access in accesses:
        part = access.last
        if part is None or access.length > 1 or access.remote or part.region.space != "shared" \
                or part.pattern.here is not None:
            continue
        neighbours = alike[access.reads, access.item, part.region.base, part.pattern.offsets.tobytes()]
        if part.address in neighbours:                   # the same once more: the compiler keeps what it has read
            _less(fewer, access, part, 1, part.pattern.moved)
        neighbours[part.address] = access, part
    for there in alike.values():
        for width in (16, 8):
            _join(there, width, fewer)
    return fewer


def _join(there: dict[int, tuple[Access, Part]], width: int, fewer: Counter[str]) -> None:
    for address in sorted(there):
        if address not in there:
            continue
        access, part = there[address]
        own = [address + n for n in range(0, width, access.item)]
        aligned = address % width == 0 and not (part.pattern.offsets % width).any()
        if width > WIDEST or width <= access.item or not aligned or not all(other in there for other in own):
            continue
        machine, pattern = access.machine, part.pattern
        relative = pattern.offsets[0] + address % PERIOD
        wide = Pattern(access.item, len(own), relative, None, pattern.lowest, part.region, address, machine.warp,
                       machine.report.granule, machine.banks, width, access.reads)
        parts = [there.pop(other)[1] for other in own]
        _less(fewer, access, part, len(own) - 1, sum(piece.pattern.moved for piece in parts) - wide.moved)


def _less(fewer: Counter[str], access: Access, part: Part, instructions: int, passes: int) -> None:
    fewer["load shared" if access.reads else "store shared"] += instructions
    fewer["passes"] += passes / part.pattern.requests           # type: ignore[assignment]
