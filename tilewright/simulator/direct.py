"""Loads of a wave straight from global memory into LDS, reads of LDS that transpose, and values that are said to be the
same in all lanes of a wave.

A direct load is on its way until the wave has waited for it: it is a copy in flight (`copies`). The hardware counts
those of a wave one by one, whichever lanes took part, so each is a group of its own.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.ir import turned
from tilewright.ir.direct import WHOLE
from tilewright.simulator.access import Access
from tilewright.simulator.fault import Fault

if TYPE_CHECKING:
    from tilewright.ir.program import Op
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine


WORD = 4            # bytes, of which each is in bounds by itself; memory need not be aligned to more: CDNA4 ISA, 9.1.7


class Direct:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._reads: dict[Op, Access] = {}

    def start(self, gang: Gang, node: Op, bytes: int, smem: Any, gmem: Any, base: Any, size: Any) -> None:
        """Lane l's bytes land at smem + l * bytes."""
        lane = gang.threads % self.machine.warp
        to = self.uniform(gang, node, smem) + lane * bytes
        self.machine.copies.start(gang, node, to, gmem, bytes, self.valid(gang, node, gmem, base, size, bytes), WORD)
        self.machine.copies.closed[self._waves(gang)] += 1

    def valid(self, gang: Gang, node: Op, gmem: Any, base: Any, size: Any, bytes: int) -> Any:
        """How many of each lane's bytes are read: those within `size` from `base` on, in whole words."""
        size = self.uniform(gang, node, size)
        offset = np.broadcast_to(gmem - self.uniform(gang, node, base), gang.size)
        far = gang.active() & ((offset < 0) | (offset > WHOLE) | (size < 0) | (size > WHOLE))
        if far.any():
            lane = int(far.argmax())
            there = int(np.broadcast_to(size, gang.size)[lane])
            raise Fault("out of bounds", node.line, gang.frame.code.name, f"{node.operation.name} at "
                        f"{offset[lane]:,} bytes{gang.by(lane)} from a base of {there:,}: a buffer's offsets and sizes "
                        "are from 0 to 2^32 - 1")
        return np.clip((size - offset) // WORD * WORD, 0, bytes).astype(np.int32)

    def wait(self, gang: Gang, node: Op, pending: int) -> None:
        self.machine.copies.arrive(self._waves(gang), pending)

    def turned(self, gang: Gang, node: Op, smem: Any) -> Any:
        """Read 8 bytes of each lane and exchange them among sixteen lanes: [elements, threads]."""
        on = gang.active().reshape(-1, self.machine.warp)
        if (some := on.any(1) != on.all(1)).any():
            wave = int(some.argmax())
            raise Fault("divergent", node.line, gang.frame.code.name, f"{node.operation.name} needs all lanes of a wave"
                        + gang.by(wave*self.machine.warp + int(on[wave].argmin())))
        access = self._reads.get(node)
        if access is None:
            t = node.results[0].type
            access = self._reads[node] = Access(self.machine, gang.frame.code.name, node.line, "load", t, turned.BYTES)
        return turned.exchanged(access.gather(gang, np.broadcast_to(smem, gang.size), None))

    def _waves(self, gang: Gang) -> NDArray[np.int64]:
        """The threads of all waves of which any lane is active."""
        waves = gang.active().reshape(-1, self.machine.warp).any(1)
        return gang.threads[np.repeat(waves, self.machine.warp)]

    def uniform(self, gang: Gang, node: Op, x: Any) -> Any:
        """What the first active lane of each wave holds; a fault if another active one holds something else."""
        if np.ndim(x) == 0:
            return x
        warp, on = self.machine.warp, gang.active().reshape(-1, self.machine.warp)
        lanes = np.broadcast_to(x, gang.size).reshape(-1, warp)
        first = np.take_along_axis(lanes, on.argmax(1)[:, None], 1)
        wrong = on & (lanes != first)
        if wrong.any():
            lane = int(wrong.ravel().argmax())
            raise Fault("divergent", node.line, gang.frame.code.name, f"{node.operation.name} of a value that is not "
                        f"the same in all lanes of a wave: {lanes.ravel()[lane]}{gang.by(lane)}, where the first lane "
                        f"has {first[lane // warp, 0]}")
        return np.repeat(first[:, 0], warp)
