"""The way from an emitter to code: out of the cache if it is there, else recorded, lowered, compiled and kept.

    load(emit, target, *args)               a CPU's: object code, placed in this process
    code(emit, target, *args, **options)    a GPU's: what its driver loads, with a manifest of each kernel

`emit` is a module-level function, or its name "package.module:function", whose module is then imported only if the code
is not in the cache. Its arguments must have a faithful repr: they name the code there. NotImplementedError for what the
target cannot do.

NVIDIA's code is PTX text, which the driver assembles and whose machine code it keeps in a cache of its own; AMD's is a
linked code object. The file has the manifests before the code, so that no kernel is recorded to launch it. A bundle in
use (bundle.py) has the same bytes under the same key, and comes before the cache. The code of functions that users
recorded is in the cache under what they record (`compiled`, `kept`).
"""
from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright import forks
from tilewright.compiler import bundle, cache, loader, sources
from tilewright.compiler.manifest import Entry, entry, manifest
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget

if TYPE_CHECKING:
    from tilewright.compiler.loader import Loaded
    from tilewright.ir import Function

Emitter = str | Callable[..., Any]
_found: dict[tuple[Any, ...], Any] = {}
MOST = 1 << 62      # of them: code in this process is never freed


@dataclass(frozen=True)
class Code:
    """A GPU's code as its driver loads it: PTX text in UTF-8, or a linked code object."""
    image: bytes
    manifests: tuple[dict[str, Any], ...]           # of the kernels, in their order
    machine: bytes = b""                            # what an assembler made of PTX, which not every driver takes

    @property
    def text(self) -> str:
        """The PTX."""
        return self.image.decode()

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the only kernel."""
        (only,) = self.manifests
        return only

    @property
    def entries(self) -> dict[str, Entry]:
        """The kernels by name."""
        return {manifest["symbol"]: entry(manifest) for manifest in self.manifests}

    @property
    def entry(self) -> Entry:
        """The only kernel."""
        return entry(self.manifest)


def load(emit: Emitter, target: CpuTarget, *args: Any) -> Loaded:
    """The functions that `emit(target, *args)` records, placed in this process. Each is compiled and loaded once.

    RuntimeError if this machine cannot run the target's code.
    """
    return _cached(emit, target, args, {})


def code(emit: Emitter, target: GpuTarget | AmdTarget, *args: Any, **options: Any) -> Code:
    """The kernels that `emit(*args, **options)` records. lld.Missing where AMD's is not in the cache and there is
    no linker."""
    return _cached(emit, target, args, options)


def recorded(emit: Emitter, target: Any, *args: Any, **options: Any) -> Any:
    """What an emitter records, one of a CPU's for this target."""
    from tilewright.compiler import llvm
    if isinstance(emit, str):
        module, _, name = emit.partition(":")
        emit = getattr(import_module(module), name)
    assert not isinstance(emit, str)
    with llvm.uncollected():
        return emit(*((target,) if isinstance(target, CpuTarget) else ()), *args, **options)


class Asked(NamedTuple):
    """What `load` or `code` is asked for."""
    emit: str
    target: Any
    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def key(self) -> tuple[Any, ...]:
        return _key(self.emit, self.target, self.args, self.options)

    @property
    def address(self) -> str:
        """In the cache."""
        return _address(self.emit, self.key)

    def content(self) -> bytes:
        """A CPU's object, or a GPU's code behind its manifests, compiled and kept on disk if it is not there. Nothing
        is placed in this process, whose machine may be another."""
        return _content(self.emit, self.emit, self.key, self.target, self.args, self.options)


def compiled(functions: Function | list[Function], target: GpuTarget | AmdTarget) -> Code:
    """The code of recorded kernels."""
    listed = functions if isinstance(functions, list) else [functions]
    return _unpacked(cached_code(listed, target, lambda: _packed(listed, target)))


def cached_code(functions: list[Function], target: Any, build: Callable[[], bytes], by: str = sources.COMPILER,
         *asked: Any) -> bytes:
    """What `build` makes of recorded functions, out of the cache on disk if it is there: named by what they record, by
    the sources of the module that makes it, and by what else it depends on. It must not depend on Python lines."""
    from tilewright.ir.digest import digest
    return cache.fetch(cache.key(sources.digest(by), target.code_key, *map(digest, functions), *asked), build)


def _key(name: str, target: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    return name, target.code_key, args, tuple(sorted(options.items()))


def _cached(emit: Emitter, target: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A Loaded or a Code, made once in a process."""
    name = emit if isinstance(emit, str) else f"{emit.__module__}:{emit.__qualname__}"
    key = _key(name, target, args, options)
    return forks.looked_up(_found, key, lambda: _ready(emit, name, key, target, args, options), MOST)


def _ready(emit: Emitter, name: str, key: tuple[Any, ...], target: Any, args: tuple[Any, ...],
           options: dict[str, Any]) -> Any:
    on_cpu = isinstance(target, CpuTarget)
    if on_cpu:
        target.require_runnable()
    code, machine = bundle.code(key) or (_content(emit, name, key, target, args, options), b"")
    return _loaded(code, target) if on_cpu else _unpacked(code, machine)


def _content(emit: Emitter, name: str, key: tuple[Any, ...], target: Any, args: tuple[Any, ...],
             options: dict[str, Any]) -> bytes:
    """From the cache on disk, built and kept there if need be."""
    return cache.fetch(_address(name, key), lambda: _packed(recorded(emit, target, *args, **options), target))


def _address(name: str, key: tuple[Any, ...]) -> str:
    return cache.key(sources.digest(name.partition(":")[0]), *key)


def _loaded(code: bytes, target: CpuTarget) -> Loaded:
    loaded = loader.load(code, target)
    # Never freed, not even when the interpreter ends: a daemon thread or a worker may be in this code.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
    return loaded


def _packed(functions: Any, target: Any) -> bytes:
    """The compiled code of functions, packed as the cache on disk has it."""
    from tilewright.compiler import llvm
    if isinstance(target, CpuTarget):
        return llvm.object_code(functions, target)
    from tilewright.ir import Function
    functions = [functions] if isinstance(functions, Function) else list(functions)
    if isinstance(target, AmdTarget):
        from tilewright.compiler import amd
        image, manifests = amd.code_object(functions, target), [amd.manifest(f, target) for f in functions]
    else:
        image, manifests = llvm.assembly(functions, target).encode(), [manifest(f, target) for f in functions]
    return json.dumps(manifests).encode() + b"\n" + image


def _unpacked(code: bytes, machine: bytes = b"") -> Code:
    manifests, _, image = code.partition(b"\n")
    return Code(image, tuple(json.loads(manifests)), machine)
