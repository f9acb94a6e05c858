"""Checkers by name, and the verdict on an answer.

A checker takes the answer, and returns a sentence on a right one. It raises Wrong with a sentence that helps for any
other. An answer that is still `...`, or a function that returns `...` or None, is unanswered, so that a notebook runs
from top to bottom before anybody has begun.
"""
from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from numbers import Real
from textwrap import fill
from typing import Any

from tilewright.lab.drawing.catalogue import FIGURES
from tilewright.simulator import Fault

BOOKS = {"cpu": "matmul-cpu.ipynb", "nvidia": "sgemm-nvidia-gpu.ipynb", "amd": "matrix-cores-amd.ipynb",
         "compilers": "gpu-matmul-and-compilers.ipynb"}


class Wrong(Exception):
    """An answer that is not right: what came of it, and where to look."""


class Unanswered(Exception):
    """Nobody has written an answer yet."""


@dataclass(frozen=True)
class Verdict:
    name: str
    solved: bool | None         # None: unanswered
    sentence: str

    def __bool__(self) -> bool:
        return bool(self.solved)

    def __repr__(self) -> str:
        word = {True: "✓ right", False: "✗ not yet", None: "○ not answered yet"}[self.solved]
        return "\n".join(fill(line, 96) for line in f"{word}: {self.sentence}".splitlines())


@dataclass(frozen=True)
class Exercise:
    name: str
    title: str
    checker: Callable[..., str]


EXERCISES: dict[str, Exercise] = {}
VERDICTS: dict[str, Verdict] = {}       # the last one on each exercise, in this process


def exercise(name: str, title: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register a checker."""
    def register(checker: Callable[..., str]) -> Callable[..., str]:
        EXERCISES[name] = Exercise(name, title, checker)
        return checker
    return register


def of_book(book: str) -> list[Exercise]:
    """The exercises of a notebook, in its order. ValueError for an unknown one."""
    if book not in BOOKS:
        raise ValueError(f"there is no notebook {book!r}; the notebooks are {', '.join(BOOKS)}")
    import_module(f"tilewright.lab.exercises.{book}")
    return [x for x in EXERCISES.values() if x.name.startswith(f"{book}.")]


def check(name: str, *answer: Any) -> Verdict:
    """The verdict on an answer to the exercise of this name. ValueError for an unknown name."""
    names = [x.name for x in of_book(name.partition(".")[0])]
    if name not in names:
        near = get_close_matches(name, names, 1) or names
        raise ValueError(f"there is no exercise {name!r}; did you mean {' or '.join(near)}?")
    VERDICTS[name] = verdict = _judge(EXERCISES[name], answer)
    return verdict


def _judge(found: Exercise, answer: tuple[Any, ...]) -> Verdict:
    try:
        for x in answer:
            given(x)
        return Verdict(found.name, True, found.checker(*answer))
    except Unanswered:
        return Verdict(found.name, None, "your answer goes where the dots are, or a function returns nothing yet.")
    except Wrong as wrong:
        return Verdict(found.name, False, str(wrong))
    except Fault as fault:
        return Verdict(found.name, False, f"the simulator stopped your kernel: {fault}")
    except Exception as error:          # an answer of a kind that the checker did not think of
        return Verdict(found.name, False, f"this answer cannot be used: {type(error).__name__}: {error}")


def progress(book: str) -> None:
    """Print which exercises of a notebook are solved."""
    tasks = of_book(book)
    marks = [{True: "✓", False: "✗", None: "○"}[VERDICTS[x.name].solved] if x.name in VERDICTS else "○" for x in tasks]
    for mark, x in zip(marks, tasks):
        print(f"{mark} {x.name:22} {x.title}")
    print(f"{marks.count('✓')} of {len(tasks)} solved")


class Picture:
    """A drawing of `tilewright.lab.drawing` by its name, "cpu/matmul_kernel", which notebooks show."""

    def __init__(self, name: str) -> None:
        draw = FIGURES[name].draw
        assert draw is not None, f"{name} is left out"
        self.svg = draw()

    def _repr_svg_(self) -> str:
        return self.svg


# ---- for checkers


def given(x: Any) -> Any:
    """`x`, if it is an answer."""
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, tuple | list) else ()
    if x is None or x is ... or any(y is ... for y in parts):
        raise Unanswered
    return x


def ask(function: Callable[..., Any], *args: Any) -> Any:
    """What the function that is the answer returns for these arguments. What it raises is said, with its line."""
    if not callable(function):
        raise Wrong(f"the answer is a function, and this is {function!r}.")
    try:
        return given(function(*args))
    except (Unanswered, Wrong, Fault):
        raise
    except Exception as error:
        frames = [x for x in traceback.extract_tb(error.__traceback__) if x.filename != __file__]
        line = f" in the line `{frames[0].line}`" if frames and frames[0].line else ""
        called = ", ".join(map(shown, args))
        raise Wrong(f"{getattr(function, '__name__', 'your function')}({called}) raised "
                    f"{type(error).__name__}{line}: {error}") from error


def ask_pair(function: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """What a function returns that must return two things."""
    got = ask(function, *args)
    if not isinstance(got, tuple | list) or len(got) != 2:
        raise Wrong(f"{getattr(function, '__name__', 'your function')}({', '.join(map(shown, args))}) is {shown(got)}, "
                    f"and the answer is a pair.")
    return got[0], got[1]


def agree(function: Callable[..., Any], cases: Iterable[tuple[tuple[Any, ...], Any]], source: str,
          hint: Callable[[tuple[Any, ...], Any, Any], str] = lambda args, got, wanted: "") -> int:
    """The number of cases (arguments, what is true of them) on which the function agrees with `source`, which are all;
    else Wrong, with the first case and what `hint` says of it."""
    number = 0
    for args, wanted in cases:
        got, name = ask(function, *args), getattr(function, "__name__", "your function")
        if not isinstance(got, Real):
            raise Wrong(f"{name}({', '.join(map(shown, args))}) is {shown(got)}, and the answer is a number.")
        if not abs(got - wanted) <= 1e-9 * abs(wanted):
            raise Wrong(f"{name}({', '.join(map(shown, args))}) is {shown(got)}, and {source} {shown(wanted)}. "
                        f"{hint(args, got, wanted)}".rstrip())
        number += 1
    return number


def shown(x: Any) -> str:
    """A value as a message shows it: short."""
    text = f"{x:,}" if isinstance(x, int) and not isinstance(x, bool) else str(x)
    return text if len(text) <= 60 else f"{text[:57]}..."
