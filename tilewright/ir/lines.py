"""Python lines that record nodes: where to look for a register, a bank conflict or a fault."""
from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

_HERE = os.path.dirname(__file__)
_PACKAGE = os.path.dirname(_HERE)
_INSIDE = _HERE, os.path.join(_PACKAGE, "blocks")                   # what records on behalf of others


class _Place(NamedTuple):
    file: str
    number: int


class Line(_Place):
    """`via`: the lines that called the function of this one, the innermost first, if it was recorded under `callers`;
    lines are equal without it."""
    via: tuple[Line, ...] = ()

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.number).strip()

    @property
    def of_users(self) -> bool:
        """Is this the code of a user, not of the library?"""
        return not _own(self.file)

    def __str__(self) -> str:
        return f"{'cell' if 'ipykernel_' in self.file else os.path.basename(self.file)}:{self.number}"   # of a notebook


def caller() -> Line:
    """The line of the kernel that is being written: the innermost frame outside this package."""
    frame = sys._getframe(2)
    while _passed(frame.f_code.co_filename):
        assert frame.f_back is not None
        frame = frame.f_back
    line = Line(frame.f_code.co_filename, frame.f_lineno)
    if _outer:
        line.via = tuple(_callers(frame))
    return line


_outer: list[Any] = []                      # frames that asked for callers, which are the lines inside of them


@contextmanager
def callers() -> Iterator[None]:
    """`with callers():` what is recorded meanwhile knows which lines called the one that recorded it: `Line.via`."""
    _outer.append(sys._getframe(2))
    try:
        yield
    finally:
        _outer.pop()


def _callers(frame: Any) -> Iterator[Line]:
    while (frame := frame.f_back) is not None and frame is not _outer[-1]:
        if not _passed(frame.f_code.co_filename):
            yield Line(frame.f_code.co_filename, frame.f_lineno)


@cache
def _passed(file: str) -> bool:
    return file.startswith(_INSIDE) or file.endswith("contextlib.py")


@cache
def _own(file: str) -> bool:
    return file.startswith(_PACKAGE + os.sep)
