"""The exception for what a kernel does wrong in the simulator: it names the line, the function and the thread."""
from __future__ import annotations

from tilewright.ir.program import Line


class Fault(Exception):
    """`kind` in a word or two, then line, function, array and thread; the source line follows.

    Kinds: out of bounds, misaligned, uninitialised, read-only, no memory, arithmetic, no meaning, no result, signature;
    race, divergent and deadlock where there are several threads.
    """

    def __init__(self, kind: str, line: Line, function: str, message: str) -> None:
        super().__init__(f"{kind} at {line} in {function}: {message}\n    {line.text}")
        self.kind, self.line, self.function = kind, line, function
