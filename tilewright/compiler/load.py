"""The way from an emitter to an address: cached object code if there is some, else record, lower and compile."""
from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from tilewright.compiler import cache
from tilewright.targets.base import CpuTarget

_loaded: dict[tuple, Any] = {}
_lock = Lock()


def load(emit: Callable[..., Any], target: CpuTarget, *args: Any) -> Any:
    """A `Loaded` with what `emit(target, *args)` records: one function or several. Each is compiled once.

    `emit` must be a module-level function of tilewright and its arguments must have a faithful repr: they name the
    code in the cache.
    """
    key = (emit, target.code_key, args)
    found = _loaded.get(key)
    if found is None:
        with _lock:
            found = _loaded.get(key)
            if found is None:
                found = _loaded[key] = _load(emit, target, args)
    return found


def _load(emit: Callable[..., Any], target: CpuTarget, args: tuple) -> Any:
    from tilewright.compiler import llvm
    target.require_runnable()
    address = cache.key(emit.__module__, emit.__qualname__, target.code_key, args)
    code = cache.fetch(address, lambda: llvm.object_code(emit(target, *args), target))
    return llvm.Loaded(code, target)
