"""The way from an emitter to an address: cached object code if there is some, else record, lower and compile."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tilewright import forks
from tilewright.compiler import cache
from tilewright.targets.base import CpuTarget

_loaded: dict[tuple, Any] = {}


def load(emit: str | Callable[..., Any], target: CpuTarget, *args: Any) -> Any:
    """A `Loaded` with what `emit(target, *args)` records: one function or several. Each is compiled once.

    `emit` is a module-level function of tilewright, or its name "package.module:function", whose module is then
    imported only if the code is not in the cache. The arguments must have a faithful repr: they name the code there.
    """
    name = emit if isinstance(emit, str) else f"{emit.__module__}:{emit.__qualname__}"
    key = (name, target.code_key, args)
    found = _loaded.get(key)
    if found is None:
        with forks.building:
            found = _loaded.get(key)
            if found is None:
                found = _loaded[key] = _load(emit, name, target, args)
                # Never freed, not even when the interpreter ends: a daemon thread or a worker may be in this code.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))
    return found


def _load(emit: str | Callable[..., Any], name: str, target: CpuTarget, args: tuple) -> Any:
    from tilewright.compiler import llvm
    target.require_runnable()

    def build() -> bytes:
        module, _, function = name.partition(":")
        emitter = getattr(import_module(module), function) if isinstance(emit, str) else emit
        return llvm.object_code(emitter(target, *args), target)
    return llvm.Loaded(cache.fetch(cache.key(name, target.code_key, args), build), target)
