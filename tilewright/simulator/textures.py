"""Reads through textures: a texel is loaded where the index is inside the array, and is zeros elsewhere."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.types import Texture
from tilewright.simulator.access import Access
from tilewright.simulator.memory import Uninitialised

if TYPE_CHECKING:
    from tilewright.ir.program import Op
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine


class Textures:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._accesses: dict[Op, Access] = {}

    def check(self, param: str, t: Texture, x: Any) -> None:
        """An array that a texture can be bound to."""
        array = x.array if isinstance(x, Uninitialised) else x
        if not isinstance(array, np.ndarray) or array.ndim != 1 or not array.flags.c_contiguous or \
                array.dtype != t.element.numpy or array.size % t.length:
            raise TypeError(f"{param} is a {t}: it must be a contiguous one-dimensional array of {t.element.numpy}, "
                            f"its size a multiple of {t.length}")

    def fetch(self, gang: Gang, node: Op, texture: Any, index: Any) -> Any:
        """Texel `index` [threads] as [length, threads]."""
        t = node.operands[0].type.texel
        access = self._accesses.get(node)
        if access is None:
            access = self._accesses[node] = Access(self.machine, gang.frame.code.name, node.line, "load", t, t.bytes)
        region = self.machine.memory.find(int(texture))
        assert region is not None
        index = np.broadcast_to(index, gang.size).astype(np.int64)
        inside = (index >= 0) & (index < region.size // t.bytes)
        return access.gather(gang, texture + np.where(inside, index, 0) * t.bytes, None if inside.all() else inside)
