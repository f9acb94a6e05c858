"""The simulated machine: places the arguments, starts the threads, and runs their gangs to the end."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.program import Array, Function
from tilewright.ir.types import Pointer
from tilewright.simulator.code import Code
from tilewright.simulator.gang import Gang
from tilewright.simulator.memory import Memory, Region, Uninitialised
from tilewright.simulator.report import Report

CACHE_LINE, SECTOR = 64, 32                 # bytes that move together on a CPU, on a GPU


class Machine:
    def __init__(self, function: Function, memory: Memory, externals: Mapping[str, Callable[..., Any]]) -> None:
        self.function, self.memory, self.externals = function, memory, externals
        self.shape = function.threads or (1, 1)
        self.warp = function.warp if function.threads else 1
        self.cta = self.shape[0] * self.shape[1]
        if self.cta % self.warp:
            raise ValueError(f"{function.name}: {self.cta} threads are not whole warps of {self.warp}")
        self.report = Report(SECTOR if function.threads else CACHE_LINE)
        self._codes: dict[Function, Code] = {}
        self._blocks: list[tuple[int, int]] = []        # the CTAs that run now

    def run(self, arguments: tuple[Any, ...], grid: tuple[int, int]) -> Report:
        operands = self.arguments(arguments)
        for y in range(grid[1]):
            for x in range(grid[0]):
                self.launch([(x, y)], operands)
        return self.report

    def launch(self, blocks: list[tuple[int, int]], operands: list[Any]) -> None:
        """Run these CTAs at once."""
        self._blocks = blocks
        gang = Gang(self, np.arange(len(blocks) * self.cta))
        gang.call(self.code(self.function), operands, None, None)
        with np.errstate(all="ignore"):     # infinities and NaNs are results
            while gang.frames:
                frame = gang.frame
                frame.code.steps[frame.pc](gang)

    def code(self, function: Function) -> Code:
        if function not in self._codes:
            self._codes[function] = Code(self, function)
        return self._codes[function]

    # ---- what the code of a call finds in its slots

    def arguments(self, arguments: tuple[Any, ...]) -> list[Any]:
        params = self.function.params
        if len(arguments) != len(params):
            names = ", ".join(param for param, _ in params)
            raise TypeError(f"{self.function.name} takes {len(params)} arguments ({names}), not {len(arguments)}")
        return [self.argument(param, value.type, x) for (param, value), x in zip(params, arguments)]

    def argument(self, param: str, t: Any, x: Any) -> Any:
        if isinstance(x, (np.ndarray, Uninitialised, Function)):
            if not isinstance(t, Pointer):
                raise TypeError(f"{param} must be a number ({t}), not an array")
            return np.int64(self.memory.address(x, param))
        if isinstance(t, Pointer):
            if not isinstance(x, (int, np.integer)):
                raise TypeError(f"{param} must be an array, a recorded function or an address, not {x!r}")
            return np.int64(x)
        if t.length > 1:
            return np.asarray(x, t.numpy).reshape(t.length, 1)
        return t.numpy.type(x)

    def builtin(self, name: str, threads: NDArray[np.int64]) -> Any:
        """thread.x, thread.y, block.x or block.y of these threads."""
        what, axis = name.split(".")
        if what == "thread":
            y, x = np.divmod(threads % self.cta, self.shape[0])
            return (x if axis == "x" else y).astype(np.int32)
        blocks = np.array([block["xy".index(axis)] for block in self._blocks], np.int32)
        return blocks[0] if len(blocks) == 1 else blocks[threads // self.cta]

    def place(self, array: Array, threads: NDArray[np.int64]) -> tuple[Region, Any]:
        """A new array for a call, and its address in each of these threads."""
        region = self.memory.allocate(array, len(threads))
        return region, np.int64(region.base) if region.pitch is None else \
            region.base + np.arange(len(threads)) * region.pitch

    def by(self, thread: int) -> str:
        if self.function.threads is None:
            return ""
        cta, inside = divmod(thread, self.cta)
        return f" by block {self._blocks[cta]} thread {(inside % self.shape[0], inside // self.shape[0])}"
