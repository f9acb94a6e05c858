"""A builtin whose calls in Python are counted."""

from __future__ import annotations

import functools
from typing import Any

from tilewright.api.builtin import Entry
from tilewright.api.products import matmul as by_python


class Counted:
    """A builtin that takes nothing but what it repeats; `.calls` counts those that went to Python."""

    def __init__(self) -> None:
        self.calls = 0

        @functools.wraps(by_python)
        def python(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return by_python(*args, **kwargs)
        self.entry = Entry(python)
        self.entry.repeat(python)
        self.matmul = self.entry.matmul

    def python_calls(self, *args: Any, **kwargs: Any) -> int:
        before = self.calls
        self.matmul(*args, **kwargs)
        return self.calls - before
