"""What NVIDIA's driver and AMD's HIP have in common for those who call them: statuses, exceptions, handles.

`driver` and `hip_library` are the two libraries; each has its own exception and its own words for what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any


class LibraryError(RuntimeError):
    """A function of the library failed. `name` ("CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress") and `code`
    (700) are the library's, as is `text`; `kernel` is the kernel that was being loaded or launched, if one was."""

    def __init__(self, name: str, code: int, text: str, function: str, kernel: str = "", more: str = "") -> None:
        self.name, self.code, self.text, self.function, self.kernel = name, code, text, function, kernel
        where = f"{function}, kernel {kernel}" if kernel else function
        super().__init__(f"{name} ({code}): {text} [{where}]" + (f"\n{more}" if more else ""))


class Unavailable(RuntimeError):
    """There is no such library, or no such device, here; the message says what is missing."""


def answer(results: Sequence[Any]) -> Any:
    """What a function gives beside its status: nothing, a value, or a list of them."""
    return results[0] if len(results) == 1 else results or None


def why_not(count: Callable[[], Any], nothing: str) -> str:
    """Why there is no device to run on, which `count` counts; "" if there is one."""
    try:
        return "" if count() else nothing
    except (Unavailable, LibraryError) as error:
        return str(error)


def handle_of(stream: Any, names: Sequence[str], what: str) -> int:
    """The handle of somebody's stream, who has it under one of these names or is a number; `what` for a TypeError."""
    for name in names:
        found = getattr(stream, name, None)
        if found is not None:
            return int(found)
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise TypeError(f"stream must be a {what} stream or its handle, not {type(stream).__name__}") from None


def destroy(owner: Any, free: Callable[[Any], object], what: str = "handle") -> None:
    """Give back what `owner` has under this name, once. Nothing is raised: the interpreter, or the library, may be
    going down. Whoever is collected together with the owner may ask for it, and must not find it."""
    handle = owner.__dict__.pop(what, None)
    if handle is not None:
        with suppress(Exception):
            free(handle)
