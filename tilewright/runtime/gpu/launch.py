"""A kernel on a GPU and its arguments: one block of bytes in which every parameter has a name, an offset and a size.

The compiled code says where its parameters are (compiler/manifest.py), so that a launch fills them in by name: numbers,
addresses, and structures by value of any size, such as a tensor map of 128 bytes.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from statistics import median
from typing import Any, Generic, TypeVar

import numpy as np

from tilewright import forks
from tilewright.compiler import manifest

INTEGERS = {"ptr": "Q", "i64": "q", "i32": "i", "i16": "h", "i8": "b", "i1": "?"}
FLOATS = {"f64": ctypes.c_double, "f32": ctypes.c_float}
WORDS = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
Launch = Callable[[Any], None]  # on the stream that it is given
Args = Sequence[Any] | Mapping[str, Any]


class Parameter(manifest.Parameter):
    """One of a kernel's. `type` is "ptr", "i32", "f64" ...; name and type are "" where the code does not say them."""

    __slots__ = ()

    def pack(self, x: Any) -> bytes:
        """A value as the block has it: a number, an address (an int, or memory of ours), or `size` bytes. TypeError for
        what does not fit the type; without one, an integer's lowest bytes are taken, and a float's by the size."""
        if isinstance(x, (bytes, bytearray, memoryview, ctypes.Structure, ctypes.Array)):
            if len(found := bytes(x)) != self.size:
                raise TypeError(f"{self.name or 'a parameter'} takes {self.size} bytes, and the value has {len(found)}")
            return found
        if hasattr(type(x), "__dlpack__"):  # one with a single element would pass for a number
            raise TypeError(f"{self}: it cannot be an array")
        x = getattr(x, "pointer", getattr(x, "value", x))  # memory of ours; ctypes' numbers
        if self.type in INTEGERS:
            return self._by(struct.Struct("<" + INTEGERS[self.type]).pack, x)
        if self.type in FLOATS or (not self.type and isinstance(x, (float, np.floating))):
            kind = FLOATS.get(self.type) or (ctypes.c_float if self.size == 4 else ctypes.c_double)
            return self._by(lambda x: bytes(kind(x)), x)  # by way of ctypes, to which a number beyond its range is inf
        if self.type == "f16":
            return self._by(struct.Struct("<e").pack, x)
        if self.size > 8 or not hasattr(type(x), "__index__"):
            raise TypeError(f"{self.name or 'a parameter'} takes a value of {self.size} bytes, not {x!r}")
        return (int(x) & (1 << 8 * self.size) - 1).to_bytes(self.size, "little")

    def _by(self, pack: Callable[[Any], bytes], x: Any) -> bytes:
        try:
            return pack(x)
        except (struct.error, TypeError) as error:
            raise TypeError(f"{self}, and {x!r}: {error}") from None

    def __str__(self) -> str:
        return f"{self.name or 'a parameter'} is {self.type}" if self.type else self.name or "a parameter"

    def scalar(self) -> Callable[[float], int]:
        """What gives the bits of a factor of the product for this parameter, as an unsigned number of its size."""
        if self.type in FLOATS:
            kind = FLOATS[self.type]
            return lambda x: int.from_bytes(bytes(kind(x)), "little")
        mask = (1 << 8 * self.size) - 1

        def of_integers(x: float) -> int:
            if not float(x).is_integer():
                raise TypeError(f"{self.name} must be a whole number where integers are multiplied, not {x!r}")
            return int(x) & mask

        return of_integers


class Function:
    """A kernel to launch. `threads` of a CTA and `dynamic` bytes of shared memory are what a launch takes by default;
    threads are () if the code does not say them."""

    name: str
    device: Any
    handle: Any
    parameters: tuple[Parameter, ...]
    threads: tuple[int, ...]
    dynamic: int

    def __init__(self, module: Any, described: Mapping[str, Any]) -> None:
        """`described`: its manifest, see compiler/manifest.py."""
        self.module, self.device, entry = module, module.device, manifest.entry(described)
        self.name, self.threads, self.dynamic = entry.name, entry.threads, entry.dynamic
        self.manifest = dict(described)
        self.parameters = tuple(Parameter(*p) for p in entry.parameters)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The parameters', in bytes."""
        return tuple(p.size for p in self.parameters)

    def pack(self, args: Args) -> bytes:
        """The block of arguments: a value for each parameter, in their order or by their names."""
        names = ", ".join(p.name for p in self.parameters if p.name)
        takes = f"{self.name} takes {len(self.parameters)} arguments" + (f" ({names})" if names else "")
        if isinstance(args, Mapping):
            missing = [p.name for p in self.parameters if p.name not in args]
            if missing or len(args) > len(self.parameters):
                more = sorted(set(args) - {p.name for p in self.parameters})
                raise TypeError(f"{takes}; without a value: {missing}; unknown: {more}")
            args = [args[p.name] for p in self.parameters]
        if len(args) != len(self.parameters):
            raise TypeError(f"{takes}, not {len(args)}")
        block = bytearray(max((p.offset + p.size for p in self.parameters), default=0))
        for parameter, x in zip(self.parameters, args):
            try:
                block[parameter.offset : parameter.offset + parameter.size] = parameter.pack(x)
            except TypeError as error:
                raise TypeError(f"{self.name}: {error}") from None
        return bytes(block)


class Arguments:
    """A launch's block of arguments, one call's at a time: `words` are its 8 bytes each, `scalars` its elements of the
    size of alpha and beta. A binding adds what its driver takes them by, and what it is asked on the way."""

    __slots__ = ("block", "scalars", "words")

    def __init__(self, block: bytes) -> None:
        self.block = ctypes.create_string_buffer(block, -(-max(len(block), 1) // 8) * 8)
        self.words = self.of(8)
        self.scalars = self.words

    def of(self, size: int) -> Any:
        """The block as unsigned numbers of so many bytes."""
        return (WORDS[size] * (len(self.block) // size)).from_buffer(self.block)


class Prepared:
    """A launch with its grid and its arguments laid out, so that calling it does nothing but launch.

    `grid` is (x[, y[, z]]); arguments are given in their order or by name. Several threads may call it.
    """

    function: Any

    def __init__(self, function: Any, grid: Sequence[int], args: Args, threads: int | Sequence[int] | None = None,
                 shared: int | None = None) -> None:
        self.function, self.grid = function, three(grid)
        threads = function.threads if threads is None else threads
        self.threads = three((threads,) if isinstance(threads, int) else threads)
        self.shared = function.dynamic if shared is None else shared
        self.block: bytes = function.pack(args)
        self._arguments = self.arguments()

    def arguments(self) -> Any:
        """A new block of arguments with these values, to be changed and launched with."""
        raise NotImplementedError

    def __call__(self, stream: Any = None) -> None:
        """Launch on a stream (None: the default one). The driver's error if it refuses; what goes wrong in the kernel
        is found by whoever waits for the stream."""
        raise NotImplementedError

    def launch(self, stream: int, arguments: Any) -> None:
        """The same with other arguments, on the stream with this handle. The device must be current."""
        raise NotImplementedError

    def inside(self, launch: Callable[[int, Any], None], stream: int, arguments: Any) -> None:
        """`launch(stream, arguments)` while the device is current."""
        raise NotImplementedError

    def holding(self, arguments: Any) -> Any:
        """The same launch with these arguments."""
        other = copy(self)
        other._arguments = arguments
        return other

    def described(self) -> str:
        return f"grid {self.grid}, CTAs of {self.threads} threads, {self.shared} bytes of dynamic shared memory"


def three(extents: Iterable[int]) -> tuple[int, int, int]:
    x, y, z = (*map(int, extents), 1, 1)[:3]
    return x, y, z


T = TypeVar("T")


class Kept(Generic[T]):
    """What is made once for a key and kept, at most so many at a time: modules, recipes."""

    def __init__(self, most: int) -> None:
        self.most, self._lock = most, forks.Lock()
        self.found: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        found = self.found.get(key)
        if found is None:
            with self._lock:
                found = self.found.get(key)
                if found is None:
                    if len(self.found) >= self.most:
                        self.found.clear()
                    found = self.found[key] = make()
        return found

    def forget(self) -> None:
        self.found.clear()


# ---- time


def seconds(launch: Launch, stream: Any, turns: int = 7, least: float = 0.01) -> float:
    """Of one launch: the median over turns of as many launches as fill `least` seconds, after some that warm up."""
    return median(in_turn({"": launch}, stream, turns, least)[""])


def in_turn(launches: Mapping[str, Launch], stream: Any, turns: int, least: float = 0.01) -> dict[str, list[float]]:
    """Seconds of one launch of each, in every turn. A turn is as many launches as fill `least` seconds, which follow
    one another on the stream without a wait, between two events; all take their turns one after the other."""
    start, end = stream.event(stream.device), stream.event(stream.device)

    def turn(launch: Launch, count: int) -> float:
        start.record(stream)
        for _ in range(count):
            launch(stream)
        end.record(stream).synchronize()
        return float(end.since(start)) / count

    counts = {}
    for name, launch in launches.items():
        turn(launch, 1)
        counts[name] = max(1, round(least / max(turn(launch, 3), 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in launches}
    for _ in range(turns):
        for name, launch in launches.items():
            found[name].append(turn(launch, counts[name]))
    return found
