"""What the fake CUDA driver and the fake HIP have in common: memory in NumPy, a log of calls, kernels by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any

import numpy as np

from tilewright import simulator
from tilewright.compiler import artefact
from tilewright.ir import Kernel
from tilewright.ir.types import Pointer, TensorMap


class Newest(dict[Any, Any]):
    """The newest KEPT items: to keep the record of every kernel of all tests would take gigabytes, which each garbage
    collection would go through."""

    KEPT = 64

    def __setitem__(self, key: Any, value: Any) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self.KEPT:
            del self[next(iter(self))]


RECORDED = Newest()  # kernels that can be launched, by name: the last one of each
EMITTERS: dict[bytes, Callable[[], Any]] = {}  # by the code, which may have come from the cache: what records it anew
BY_IMAGE = Newest()  # those that were recorded for their code
HANDLES = itertools.count(1000)  # never the same twice: what an earlier test has left may yet be destroyed


def _recording(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def __init__(self: Kernel, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        if self.function.threads:  # others are called, not launched
            RECORDED[self.function.name] = self.function

    return __init__


Kernel.__init__ = _recording(Kernel.__init__)  # type: ignore[method-assign]


def _remembering(ready: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(ready)
    def remembered(emit: Any, name: str, key: Any, target: Any, args: Any, options: Any) -> Any:
        code = ready(emit, name, key, target, args, options)
        if isinstance(code, artefact.Code):

            def record() -> Any:
                module, _, function = name.partition(":")
                return getattr(import_module(module), function)(*args, **options)

            EMITTERS[code.image] = record
        return code

    return remembered


artefact._ready = _remembering(artefact._ready)


def _of_users(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Kernels that users recorded come from the cache too, where another process may have put them."""

    @wraps(compiled)
    def remembered(functions: Any, target: Any) -> Any:
        code = compiled(functions, target)
        kernels = functions if isinstance(functions, list) else [functions]
        if len(kernels) == 1:
            EMITTERS[code.image] = lambda: kernels[0]
        return code

    return remembered


artefact.compiled = _of_users(artefact.compiled)


def recorded(name: str, image: bytes) -> Any:
    """The kernel of this name in this code, which another process may have compiled."""
    if image not in EMITTERS:
        return RECORDED[name]
    if image not in BY_IMAGE:  # kernels of different options may have one name
        BY_IMAGE[image] = EMITTERS[image]()
    return BY_IMAGE[image]


@dataclass(frozen=True)
class Played:
    """A kernel in machine code alone: `work` is called with its arguments when it would run."""

    name: str
    threads: tuple[int, int]
    params: tuple[tuple[str, Any], ...]  # name, and a value whose `type` has `bytes` and `numpy`, or is a Pointer
    work: Callable[..., None]
    shared_bytes: int = 0


class FakeDevice:
    """`log` holds (function, arguments) of all calls, `launches` (kernel, grid, stream) of what has run;
    `fail[function] = status` makes a function fail. `clock` is in milliseconds, of which a kernel's launch takes
    `takes(kernel)`."""

    def start(self, devices: int, alignment: int) -> None:
        self.devices = devices
        self.log: list[tuple[str, tuple[Any, ...]]] = []
        self.launches: list[tuple[str, tuple[int, ...], int]] = []
        self.fail: dict[str, int] = {}
        self.clock, self.takes = 0.0, lambda function: 1.0
        self.memory = simulator.AddressSpace(alignment=alignment)
        self.blocks: dict[int, np.ndarray] = {}  # what the program has allocated and not freed, by address
        self.freed: set[int] = set()  # what has been freed since

    def array(self, values: np.ndarray) -> int:
        """The address on the device of somebody else's memory, which is that of a NumPy array; views share theirs."""
        whole = values
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        return self.memory.address(whole) + values.ctypes.data - whole.ctypes.data

    def allocated(self, size: int) -> int:
        """The address of new memory, which nobody has written to yet."""
        block = np.full(size, 0xFF, np.uint8)
        at = self.memory.address(simulator.uninitialised(block))
        self.blocks[at] = block
        return at

    def launched(self, function: Any, args: list[Any], grid: tuple[int, ...], stream: int) -> None:
        """What the kernel does, once its turn has come."""
        for x, (_, value) in zip(args, function.params):
            if isinstance(value.type, (Pointer, TensorMap)):
                self.alive(int(getattr(x, "tensor", x)))
        self.launches.append((function.name, grid, stream))
        self.clock += self.takes(function)
        self.simulate(function, args, grid[:2] if grid[2] == 1 else grid)

    def simulate(self, function: Any, args: list[Any], grid: tuple[int, ...]) -> None:
        """What the kernel computes."""
        if isinstance(function, Played):
            function.work(*args)
        else:
            simulator.run(function, *args, grid=grid, memory=self.memory)

    def names(self) -> list[str]:
        return [name for name, _ in self.log]

    def bytes_at(self, address: int, size: int) -> np.ndarray:
        region = self.memory.find(address)
        assert region is not None, f"{address:#x} is no device memory"
        offset = address - region.base
        assert 0 <= offset <= region.size - size, "outside of the allocation"
        self.alive(address)
        if region.written is not None:
            region.written[offset : offset + size] = True
        return region.data[offset : offset + size]

    def alive(self, address: int) -> None:
        region = self.memory.find(address)
        assert region is None or region.base not in self.freed, f"{address:#x} has been freed"
