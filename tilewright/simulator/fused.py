"""What the compiler makes of neighbouring accesses of shared memory: one wide access of 8 or 16 bytes a thread.

A kernel that reads `a_smem[i, p]` for p = 0 ... 3 has four loads on record. LLVM joins them, for every GPU, where they
are in one basic block and the address is aligned, and a wide load passes over the banks less often than four. So the
counts that a time is predicted from (simulator.counts) are those of joined accesses; reports are as recorded.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilewright.simulator.pattern import PERIOD, Pattern
from tilewright.targets.banks import WIDEST

if TYPE_CHECKING:
    from tilewright.simulator.access import Access, Part


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
