"""Parts of tilewright's own files and of its kernels' machine code, for listings."""
from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any

from tilewright import targets
from tilewright.compiler.llvm import assembly
from tilewright.ir import Function


def function(f: Callable[..., Any], first: str = "", last: str = "") -> str:
    """A function's source, or the lines from the first that has `first` in it to the next that has `last`. ValueError
    where there is none."""
    lines = inspect.getsource(f).rstrip().splitlines()
    start = next((i for i, line in enumerate(lines) if first in line), None)
    if start is None:
        raise ValueError(f"{f.__name__} has no line with {first!r}")
    end = next((i for i, line in enumerate(lines[start:], start) if last in line), None) if last else len(lines) - 1
    if end is None:
        raise ValueError(f"{f.__name__} has no line with {last!r} after {first!r}")
    return textwrap.dedent("\n".join(lines[start:end + 1]))


def functions(*those: Callable[..., Any]) -> str:
    return "\n\n".join(map(function, those))


@cache
def _code(name: str, kernel: Function, target: str) -> str:
    return assembly(kernel, targets.target(target))


def excerpt(kernel: Function, pattern: str, target: str = "sm_90a", most: int = 12) -> str:
    """The lines of a kernel's assembly that match, without directives and loads of arguments; at most so many."""
    lines = [line.strip().replace("\t", " ") for line in _code(kernel.name, kernel, target).splitlines()]
    shown = [line for line in lines if re.search(pattern, line) and not line.startswith(("ld.param", "//", "."))]
    left = len(shown) - most
    return "\n".join(shown[:most] + ([f"... and {left} more"] if left > 0 else []))


def loop(text: str) -> str:
    """Assembly without directives and comments."""
    kept = [line.split("#", 1)[0].rstrip() for line in text.expandtabs(8).splitlines()]
    return "\n".join(line for line in kept if line.strip() and not (line.startswith(" ") and line.strip()[0] == "."))


def place(f: Callable[..., Any]) -> str:
    """The module's path in the repository."""
    return f.__module__.replace(".", "/") + ".py"
