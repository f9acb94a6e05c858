"""Code on a GPU and its launches, for both drivers: a module, its functions, and one block of bytes with the arguments.

The compiled code says where its parameters are (compiler/manifest.py), so that a launch fills them in by name: numbers,
addresses, and structures by value of any size, such as a tensor map of 128 bytes.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from tilewright.compiler import manifest
from tilewright.runtime.gpu.driver import Kept, Library, LibraryError, Owned
from tilewright.runtime.gpu.memory import handle_of

INTEGERS = {"ptr": "Q", "i64": "q", "i32": "i", "i16": "h", "i8": "b", "i1": "?"}
FLOATS = {"f64": ctypes.c_double, "f32": ctypes.c_float}
WORDS = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
MOST_MODULES = 512  # kept loaded at a time
Args = Sequence[Any] | Mapping[str, Any]


class Parameter(manifest.Parameter):
    """One of a kernel's. `type` is "ptr", "i32", "f64" ..."""

    __slots__ = ()

    def pack(self, x: Any) -> bytes:
        """A value as the block has it: a number, an address (an int, or memory of ours), or `size` bytes. TypeError for
        what does not fit the type."""
        if isinstance(x, (bytes, bytearray, memoryview, ctypes.Structure, ctypes.Array)):
            if len(packed := bytes(x)) != self.size:
                raise TypeError(f"{self.name} takes {self.size} bytes, and the value has {len(packed)}")
            return packed
        if hasattr(type(x), "__dlpack__"):  # one with a single element would pass for a number
            raise TypeError(f"{self}: it cannot be an array")
        x = getattr(x, "pointer", getattr(x, "value", x))  # memory of ours; ctypes' numbers
        if self.type in INTEGERS:
            return self._by(struct.Struct("<" + INTEGERS[self.type]).pack, x)
        if self.type in FLOATS:  # by way of ctypes, to which a number beyond its range is inf
            return self._by(lambda x: bytes(FLOATS[self.type](x)), x)
        if self.type == "f16":
            return self._by(struct.Struct("<e").pack, x)
        if self.size > 8 or not hasattr(type(x), "__index__"):
            raise TypeError(f"{self.name} takes a value of {self.size} bytes, not {x!r}")
        return (int(x) & (1 << 8 * self.size) - 1).to_bytes(self.size, "little")

    def _by(self, pack: Callable[[Any], bytes], x: Any) -> bytes:
        try:
            return pack(x)
        except (struct.error, TypeError) as error:
            raise TypeError(f"{self}, and {x!r}: {error}") from None

    def __str__(self) -> str:
        return f"{self.name} is {self.type}"

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


class Module(Owned):
    """Code in a device's memory. It stays as long as the object lives."""

    functions: ClassVar[type[Function]]
    kept: ClassVar[Kept[Any]]  # by `load`
    frees = "ModuleUnload"

    def __init__(self, code: bytes, on: Any = None) -> None:
        self.create(on, lambda: self.loaded(code))
        self._functions: WeakValueDictionary[str, Any] = WeakValueDictionary()  # which hold the module

    def loaded(self, code: bytes) -> Any:
        """The handle of this code. The device is current."""
        raise NotImplementedError

    def function(self, described: Mapping[str, Any]) -> Any:
        """The kernel that this manifest describes."""
        name = described["symbol"]
        loaded = self._functions.get(name)
        if loaded is None or loaded.manifest != described:
            loaded = self._functions[name] = self.functions(self, described)
        return loaded

    @classmethod
    def load(cls, code: bytes, on: Any = None, machine: bytes = b"") -> Any:
        """The module of this code on a device, loaded once and kept: of machine code for it, if there is some that the
        driver takes, which is no older than the assembler that made it."""
        on = on or cls.library.device()
        if machine:
            with suppress(LibraryError):
                return cls.kept.get((on.index, machine), lambda: cls(machine, on))
        return cls.kept.get((on.index, code), lambda: cls(code, on))


class Function:
    """A kernel to launch by CTAs of `threads`, along x and y, with `dynamic` bytes of shared memory.

    `registers` of a thread, and bytes of `shared` memory of a CTA and of a thread's `stack`, are what the driver
    counts. ValueError for the manifest of other code.
    """

    library: ClassVar[Library]

    def __init__(self, module: Module, described: Mapping[str, Any]) -> None:
        """`described`: its manifest, see compiler/manifest.py."""
        self.module, self.device, entry = module, module.device, manifest.entry(described)
        self.name, self.threads, self.dynamic, self.overlaps = entry.name, entry.threads, entry.dynamic, entry.overlaps
        self.early, self.writes = entry.early, entry.writes
        self.manifest = dict(described)
        self.parameters = tuple(Parameter(*p) for p in entry.parameters)
        with self.device.current(), self.library.unrecorded():
            self.handle = self.library.do("ModuleGetFunction", module.handle, self.name.encode(), kernel=self.name)
            self.registers, self.shared, self.stack, most = map(
                self._attribute, ("NUM_REGS", "SHARED_SIZE_BYTES", "LOCAL_SIZE_BYTES", "MAX_THREADS_PER_BLOCK"))
            self.check()
        if (threads := described["workgroup"]) > most > 0:
            raise ValueError(f"{self.name}: the manifest says workgroups of {threads} threads, the code at most "
                             f"{most}; they do not belong together")

    def __repr__(self) -> str:
        return (f"<{type(self).__name__} {self.name} on {self.device.name}: {self.registers} registers, {self.shared} "
                f"bytes of shared memory, {self.stack} of stack>")

    def _attribute(self, name: str) -> int:
        return int(self.library.do("FuncGetAttribute", self.library.attribute(name), self.handle, kernel=self.name))

    def check(self) -> None:
        """What a driver asks for beside. ValueError if it knows of other parameters than the manifest."""

    def pack(self, args: Args) -> bytes:
        """The block of arguments: a value for each parameter, in their order or by their names."""
        names = ", ".join(p.name for p in self.parameters)
        takes = f"{self.name} takes {len(self.parameters)} arguments ({names})"
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
    """A launch's block of arguments, one call's at a time: `view` is its memory, `words` are its 8 bytes each,
    `scalars` its elements of the size of alpha and beta. A binding adds what its driver takes them by, and what it is
    asked on the way."""

    __slots__ = ("block", "scalars", "view", "words")

    def __init__(self, block: bytes) -> None:
        self.block = ctypes.create_string_buffer(block, -(-max(len(block), 1) // 8) * 8)
        self.view = memoryview(self.block).cast("B")
        self.words = self.numbers(8)
        self.scalars = self.words

    def numbers(self, size: int) -> Any:
        """The block as unsigned numbers of so many bytes."""
        return (WORDS[size] * (len(self.block) // size)).from_buffer(self.block)


class Prepared:
    """A launch with its grid and its arguments laid out, so that calling it does nothing but launch.

    `grid` is (x[, y[, z]]); arguments are given in their order or by name. Several threads may call it.
    """

    function: Any
    context: int = 0            # of its device, where the driver has such

    def __init__(self, function: Any, grid: Sequence[int], args: Args) -> None:
        self.function, self.grid = function, (*map(int, grid), 1, 1)[:3]
        self.block: bytes = function.pack(args)
        self._arguments = self.arguments()

    def arguments(self) -> Any:
        """A new block of arguments with these values, to be changed and launched with."""
        raise NotImplementedError

    def __call__(self, stream: Any = None) -> None:
        """Launch on a stream (None: the default one). The driver's error if it refuses; what goes wrong in the kernel
        is found by whatever waits for the stream."""
        self.attempt(handle_of(stream), self._arguments)

    def attempt(self, stream: int, arguments: Any) -> None:
        """Launch in the function's context, whichever is current."""
        self.inside(self.launch, stream, arguments)

    def launch(self, stream: int, arguments: Any) -> None:
        """Launches with other arguments, on the stream with this handle. The device must be current."""
        raise NotImplementedError

    def inside(self, launch: Callable[[int, Any], None], stream: int, arguments: Any) -> None:
        """`launch(stream, arguments)` while the device is current."""
        with self.function.device.current():
            launch(stream, arguments)

    @staticmethod
    def together(stream: int, launches: Sequence[Sequence[Any]], blocks: Sequence[Any], at: int, size: int) -> None:
        """Clear `size` bytes, a multiple of 4, from an address on; then launch one after the other. `launches`: each
        has a Prepared first; `blocks`: their arguments."""
        device = launches[0][0].function.device
        with device.current():
            launches[0][0].function.library.fill(at, 0, size, stream)
            for (kernel, *_), arguments in zip(launches, blocks):
                kernel.launch(stream, arguments)

    def holding(self, arguments: Any) -> Any:
        """The launch with these arguments."""
        other = copy(self)
        other._arguments, other.block = arguments, bytes(arguments.view[:len(self.block)])
        return other

    def described(self) -> str:
        f = self.function
        return f"grid {self.grid}, CTAs of {f.threads} threads, {f.dynamic} bytes of dynamic shared memory"
