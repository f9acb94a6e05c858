"""A fork is safe at any moment: what a child finds is whole, and no lock in it is held by a thread that it lacks.

`os.fork` copies the calling thread alone. A lock that another thread holds at that moment stays taken in the child for
ever, and what that thread was making stays half made. So

    building        is held while anything is made that the process keeps: modules are imported, kernels compiled and
                    loaded, plans chosen, tuning results read. A fork waits until no other thread holds it
    hold(lock)      a fork waits for this one too, after `building`: for a library that makes things under its own lock
    Lock()          for anything else. What it protects is whole at every moment: a child has the lock anew, and free
    looked_up       a table's entry, made under `building`
    cached_property without the lock that functools has in it before Python 3.12, one for all instances

Modules of tilewright that another thread is importing are waited for as well: a child could not import them again.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

MOST = 4096         # entries of a table
PATIENCE_S = 30.0  # that a fork waits for another thread: a compilation takes a second, and a fork must come some time


class Lock:
    """A reentrant lock that is free in a forked child, unless it is the forking thread that holds it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.append(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def acquire(self, timeout: float = -1) -> bool:
        return self._lock.acquire(timeout=timeout)

    def _renew(self) -> None:
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


_locks: list[Lock] = []
building = Lock()
_foreign: list[Any] = []        # of libraries
_taken: list[Any] = []          # by the fork under way, in this order


def hold(lock: Any) -> None:
    """A fork takes this reentrant lock, which a library has, before it happens and gives it back after it."""
    _foreign.append(lock)


def looked_up(table: dict[Any, Any], key: Any, make: Callable[[], Any], most: int = MOST) -> Any:
    """What a table has for a key. What it lacks is made, and kept unless it is None; a full table begins anew."""
    entry = table.get(key)
    if entry is None:
        with building:
            entry = table.get(key)
            if entry is None:
                entry = make()
                if len(table) >= most:
                    table.clear()
                if entry is not None:
                    table[key] = entry
    return entry


def imported(name: str) -> Any:
    """The module of this name, imported by the first call that needs it."""
    module = sys.modules.get(name)
    if module is None or getattr(module.__spec__, "_initializing", False):
        with building:
            module = import_module(name)
    return module


def _before() -> None:
    for _ in range(100):        # threads may begin to import as long as `building` is not held
        _wait_for_imports()
        if building.acquire(PATIENCE_S):
            _taken.append(building)
        if not _half_imported():
            break
        _after()
    for lock in _foreign:
        lock.__enter__()
        _taken.append(lock)


def _after() -> None:
    while _taken:
        _taken.pop().__exit__(None, None, None)


def _after_in_child() -> None:
    _after()
    for lock in _locks:
        lock._renew()


def _half_imported() -> list[str]:
    return [name for name, module in list(sys.modules.items()) if name.startswith("tilewright.")
            and getattr(getattr(module, "__spec__", None), "_initializing", False) and name not in _own]


_own: set[str] = set()          # modules that the forking thread itself is importing


def _wait_for_imports() -> None:
    """Importing a module that another thread is importing waits for it."""
    _own.clear()
    for name in _half_imported():
        with suppress(Exception):
            if getattr(import_module(name).__spec__, "_initializing", False):
                _own.add(name)


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:
        """functools.cached_property as it is from Python 3.12 on. Two threads may compute the same value."""

        def __init__(self, function):
            self.function, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.function(instance)
            return value
