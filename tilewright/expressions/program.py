"""`Expression`: a traced function as data, its text, and its evaluation by NumPy.

    $acc:float bias:float; add $acc bias; tanh %0; mul %1 #0.5; -> %2

Parameters with their kinds, a line for each operation (%i is the result of line i, # a constant), and the results, some
of which may be reduced: `row_max %2` is the largest number of each row. Equal functions have equal texts.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.expressions.operations import CONVERSIONS, KINDS, OPERATIONS
from tilewright.forks import cached_property

Number = bool | int | float
OWN = "$"               # begins the name of a parameter that the compiler adds, as no name in Python does
ACC, ELEMENT = OWN + "acc", OWN + "x"         # the first parameters of an epilogue and of a prologue
STATE = "state."        # of the leading parameters of an epilogue that takes the fields of a reduction's state: state.0
# A line's operand: the number of an earlier line, a parameter's name, or a constant in a tuple of its own.
Operand = int | str | tuple[Number]

# What becomes of a result along an axis of C: none, its rows or its columns; amax is the largest size.
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "max": np.max, "min": np.min, "amax": lambda x, **axis: np.max(np.abs(x), **axis),
    "argmax": np.argmax, "argmin": np.argmin}
INDICES = {"argmax", "argmin"}      # of these: numbers are found with the columns or rows in which they are
ELEMENTARY = "exp", "log", "tanh", "erf", "gelu", "gelu_tanh", "sigmoid"
AXES = {"row": -1, "column": -2}
REDUCED = {f"{axis}_{how}": (AXES[axis], REDUCTIONS[how]) for axis in AXES for how in REDUCTIONS}


@dataclass(frozen=True)
class Line:
    operation: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Result:
    operand: Operand
    reduced: str = ""           # of REDUCED

    @property
    def how(self) -> str:
        """The name in REDUCTIONS, along whichever axis; "": the result is not reduced."""
        return self.reduced.partition("_")[2]


@dataclass(frozen=True)
class Expression:
    """A function of numbers. `parameters` are kinds by name, in order; results are one or more."""
    parameters: tuple[tuple[str, str], ...]
    lines: tuple[Line, ...]
    results: tuple[Result, ...]

    @cached_property
    def text(self) -> str:
        parameters = " ".join([f"{name}:{kind}" for name, kind in self.parameters])
        lines = [" ".join((line.operation, *map(_written, line.operands))) for line in self.lines]
        results = ", ".join([f"{result.reduced} {_written(result.operand)}".strip() for result in self.results])
        return "; ".join((parameters, *lines, f"-> {results}"))

    def __str__(self) -> str:
        return self.text

    @classmethod
    @lru_cache(maxsize=1024)
    def read(cls, text: str) -> Expression:
        """The expression with this text. ValueError for any other text."""
        try:
            first, *lines, last = text.split("; ")
            parameters = tuple((name, kind) for name, _, kind in (word.partition(":") for word in first.split()))
            recorded = tuple(Line(name, tuple(map(_operand, operands))) for name, *operands in map(str.split, lines))
            results = tuple(Result(_operand(words[-1]), " ".join(words[:-1]))
                            for words in (part.split() for part in last.removeprefix("-> ").split(", ")))
            program = cls(parameters, recorded, results)
            if program.text == text and program._valid:
                return program
        except (ValueError, IndexError, SyntaxError):
            pass
        raise ValueError(f"{text!r} is not the text of an expression")

    @cached_property
    def paired(self) -> bool:
        """Whether the first two parameters are numbers in columns 2j and 2j + 1 of what the function took."""
        return self.parameters[0][0].endswith(".even")

    @cached_property
    def sums(self) -> tuple[str, ...]:
        """The parameters that are not operands: the first, both halves of its pairs, or the fields of a state."""
        fields = tuple(name for name, _ in self.parameters if name.startswith(STATE))
        return fields or tuple(name for name, _ in self.parameters[:1 + self.paired])

    @property
    def unnamed(self) -> Expression:
        """The expression with "$" as the name of its first parameter, which is never given by name."""
        own = self.parameters[0][0]

        def renamed(x: Operand) -> Operand:
            return "$" if x == own else x
        lines = tuple(Line(line.operation, tuple(map(renamed, line.operands))) for line in self.lines)
        return Expression((("$", self.parameters[0][1]), *self.parameters[1:]), lines,
                          tuple(Result(renamed(x.operand), x.reduced) for x in self.results))

    @property
    def _valid(self) -> bool:
        names = dict(self.parameters)
        uses = [(x, count) for count, line in enumerate(self.lines) for x in line.operands]
        uses += [(result.operand, len(self.lines)) for result in self.results]
        unknown = [x for x, _ in uses if isinstance(x, str) and x not in names]
        later = [x for x, count in uses if isinstance(x, int) and not 0 <= x < count]
        return (not unknown and not later and bool(self.results) and set(names.values()) <= set(KINDS)
                and {line.operation for line in self.lines} <= {*OPERATIONS, *CONVERSIONS}
                and {result.reduced for result in self.results} <= {"", *REDUCED})

    @cached_property
    def kinds(self) -> list[str]:
        """The kind of each result."""
        return ["int" if x.how in INDICES else kind for x, kind in zip(self.results, self.computed)]

    @cached_property
    def computed(self) -> list[str]:
        """The kind of each result before it is reduced."""
        return self.run(self.given, dict(self.parameters), lambda x: type(x).__name__)

    @staticmethod
    def given(operation: str, *kinds: str) -> str:
        """The kind of the result of an operation on operands of these."""
        return operation if operation in CONVERSIONS else OPERATIONS[operation].gives or kinds[-1]

    @cached_property
    def flops(self) -> int:
        """Operations for each element; an elementary function counts as twenty."""
        return sum(20 if line.operation in ELEMENTARY else 1 for line in self.lines)

    def evaluate(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The results of NumPy's arrays, or numbers, by name, which broadcast: floats are computed in float64. It is
        the reference for what kernels compute."""
        with np.errstate(all="ignore"):
            def operation(name: str, *xs: Any) -> Any:
                if name in CONVERSIONS:
                    return np.asarray(xs[0], np.float64 if name == "float" else np.int64)
                return OPERATIONS[name].numpy(*xs)

            kinds = {"float": np.float64, "int": None, "bool": bool}
            if self.paired:
                sums = np.asarray(inputs[self.sums[0].removesuffix(".even")])
                inputs = {**inputs, self.sums[0]: sums[..., 0::2], self.sums[1]: sums[..., 1::2]}
            given = {name: np.asarray(inputs[name], kinds[kind]) for name, kind in self.parameters}
            values = self.run(operation, given, lambda x: x)
            return tuple(_reduced(x, result.reduced) for x, result in zip(values, self.results, strict=True))

    def run(self, operation: Any, inputs: Mapping[str, Any], constant: Any) -> list[Any]:
        """The results before reductions, each line by operation(name, *operands), constants by constant(number)."""
        values: list[Any] = []

        def value(x: Operand) -> Any:
            return constant(x[0]) if isinstance(x, tuple) else inputs[x] if isinstance(x, str) else values[x]

        for line in self.lines:
            values.append(operation(line.operation, *map(value, line.operands)))
        return [value(result.operand) for result in self.results]


def parameter(name: str) -> str:
    """The name of a GPU kernel's parameter for an operand: names of users and names of the compiler never meet."""
    return f"own_{name[len(OWN):]}" if name.startswith(OWN) else f"x_{name}"


class Written:
    """What has a text that says all of it: an epilogue, a prologue, a semiring."""
    text: Any

    def __str__(self) -> str:
        return self.text

    @property
    def digest(self) -> str:
        """A digest of the text, for names."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:8]


def _reduced(x: Any, how: str) -> Any:
    if not how:
        return x
    axis, function = REDUCED[how]
    return function(x, axis=axis)


def _written(x: Operand) -> str:
    return f"#{x[0]!r}" if isinstance(x, tuple) else x if isinstance(x, str) else f"%{x}"


def _operand(word: str) -> Operand:
    if word.startswith("%"):
        return int(word[1:])
    if not word.startswith("#"):
        return word
    number = word[1:]
    if number in ("True", "False"):
        return (number == "True",)
    return (int(number),) if number.lstrip("-").isdigit() else (float(number),)
