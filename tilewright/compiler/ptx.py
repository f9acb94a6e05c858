"""The way from an emitter to PTX: cached text if there is some, else record, lower and compile.

The driver assembles PTX and keeps the machine code in a cache of its own, so text is all that is kept here. It opens
with a line for each kernel that says what a launch must know, so that nobody has to record a kernel to launch it.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright import forks
from tilewright.compiler import cache

if TYPE_CHECKING:
    from tilewright.ir import Function
    from tilewright.targets import GpuTarget

_texts: dict[tuple, str] = {}


@dataclass(frozen=True)
class Entry:
    """A kernel of a PTX text, as a launch sees it."""
    name: str
    threads: tuple[int, int]    # of a CTA
    shared: int                 # bytes of its shared memory, all told
    dynamic: int                # of them, those that the launch has to ask for; the others are declared in the text


def emitted_ptx(emit: str | Callable[..., Any], target: GpuTarget, *args: Any, **options: Any) -> str:
    """PTX with what `emit(*args, **options)` records: one function or several.

    `emit` is a module-level function of tilewright, or its name "package.module:function", whose module is then
    imported only if the text is not in the cache. The arguments must have a faithful repr: they name the text there.
    NotImplementedError for what the target cannot do.
    """
    name = emit if isinstance(emit, str) else f"{emit.__module__}:{emit.__qualname__}"
    key = ("ptx", name, target.code_key, args, tuple(sorted(options.items())))
    text = _texts.get(key)
    if text is None:
        def build() -> bytes:
            module, _, function = name.partition(":")
            emitter = getattr(import_module(module), function) if isinstance(emit, str) else emit
            return compile(emitter(*args, **options), target).encode()
        with forks.building:
            text = _texts[key] = cache.fetch(cache.key(*key), build).decode()
    return text


def compile(functions: Function | list[Function], target: GpuTarget) -> str:
    """PTX of recorded functions, not cached."""
    from tilewright.compiler import llvm
    from tilewright.ir import Function
    functions = [functions] if isinstance(functions, Function) else list(functions)
    text = llvm.assembly(functions, target)
    return "".join(_line(function) for function in functions) + text


def entries(ptx: str) -> dict[str, Entry]:
    """The kernels of a text that was made here, by name."""
    return {name: Entry(name, (int(x), int(y)), int(shared), int(dynamic))
            for name, x, y, shared, dynamic in _LINE.findall(ptx)}


_LINE = re.compile(r"^// kernel (\S+): CTAs of (\d+) x (\d+) threads, (\d+) bytes of shared memory, (\d+) at launch$",
                   re.M)


def _line(function: Function) -> str:
    assert function.threads is not None         # the gate has seen to that
    x, y = function.threads
    return (f"// kernel {function.name}: CTAs of {x} x {y} threads, {function.shared_bytes} bytes of shared memory, "
            f"{function.dynamic_bytes} at launch\n")
