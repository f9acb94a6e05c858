"""Two references of loop nests: plain Python with exact numbers, and a record's meaning, statement by statement."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.nests.nest import LoopNest, Refused, arithmetic, leaves
from tilewright.nests.polynomial import Polynomial
from tilewright.nests.tree import Do, For, When, tree


class Inexact(Exception):
    """Some format would round or wrap this number: the results need not be equal."""


class Outside(Exception):
    """An access beyond an array, or counted from its end by an index that is negative."""


class Unassigned(Exception):
    """A variable is read that has no number yet."""


class Number:
    """A number of plain Python's run, which any format of 16 significant bits or more holds."""

    __slots__ = ("v",)

    def __init__(self, v: Any) -> None:
        if not -2**15 <= v <= 2**15 or v * 256 != int(v * 256):
            if v not in (math.inf, -math.inf):
                raise Inexact
        self.v = v

    def __repr__(self) -> str: return repr(self.v)
    def __bool__(self) -> bool: return bool(self.v)
    def __hash__(self) -> int: return hash(self.v)
    def __float__(self) -> float: return float(self.v)
    def __int__(self) -> int: return int(self.v)

    def __index__(self) -> int:
        if isinstance(self.v, float):
            raise TypeError("a float is no index")
        return int(self.v)


def _of(x: Any) -> Any:
    return x.v if isinstance(x, Number) else x


def _operation(name: str, reverse: bool) -> Callable[[Number, Any], Any]:
    method = getattr(float, name)
    whole = getattr(int, name, method)

    def applied(self: Number, other: Any) -> Any:
        x, y = (_of(other), self.v) if reverse else (self.v, _of(other))
        found = whole(x, y) if isinstance(x, int) and isinstance(y, int) else method(float(x), float(y))
        if isinstance(found, complex):
            raise Inexact
        return found if isinstance(found, bool) else Number(found)
    return applied


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Number, f"__{_name}__", _operation(f"__{_name}__", False))
    if _name not in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Number, f"__r{_name}__", _operation(f"__{_name}__", True))
for _name in ("neg", "abs", "pos"):
    setattr(Number, f"__{_name}__", lambda self, _name=_name: Number(getattr(self.v, f"__{_name}__")()))


class Plain:
    """An array as plain Python reads and writes it: exact numbers, and `outside` accesses are noted."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape = array, array.shape
        self.whole = array.dtype.kind == "i"
        self.noted = [False]         # shared with parts: whether a negative subscript has been used

    def __len__(self) -> int: return len(self.array)

    def place(self, subscripts: Any) -> tuple[int, ...]:
        subscripts = subscripts if isinstance(subscripts, tuple) else (subscripts,)
        if any(isinstance(x, bool) or not hasattr(x, "__index__") for x in subscripts):
            raise TypeError("no integer")
        found = tuple(x.__index__() for x in subscripts)
        self.noted[0] |= any(x < 0 for x in found)
        return found

    def __getitem__(self, subscripts: Any) -> Any:
        place = self.place(subscripts)
        found = self.array[place]
        if len(place) < self.array.ndim:
            inner = Plain(found)
            inner.noted = self.noted
            return inner
        return Number(int(found) if self.whole else float(found))

    def __setitem__(self, subscripts: Any, value: Any) -> None:
        place = self.place(subscripts)
        if len(place) != self.array.ndim:
            raise TypeError("no element")
        value = _of(value)
        if not isinstance(value, (int, float)):
            raise TypeError("no number")
        stored(self.array, place, value)


def stored(array: np.ndarray, place: tuple[int, ...], value: Any) -> None:
    """Exactly, but for the fraction of a float in an integer."""
    if array.dtype.kind == "i":
        if value in (math.inf, -math.inf) or not np.iinfo(array.dtype).min <= int(value) <= np.iinfo(array.dtype).max:
            raise Inexact
        array[place] = int(value)
    else:
        array[place] = value
        if float(array[place]) != value:
            raise Inexact


def _least(x: Any, y: Any) -> Any: return y if y < x else x
def _most(x: Any, y: Any) -> Any: return y if x < y else x


NUMPY = SimpleNamespace(
    minimum=_least, maximum=_most, fmin=_least, fmax=_most, where=lambda c, x, y: x if c else y, inf=math.inf,
    abs=abs, float32=lambda x: Number(float(x)), int32=lambda x: Number(int(x)))
PLAIN = {"np": NUMPY, "math": SimpleNamespace(inf=math.inf), "float": lambda x: Number(float(x)),
         "int": lambda x: Number(int(x))}


# ---- records


class Interpreter:
    """A record's meaning: its tree's statements one after the other, each in the format of its arithmetic."""

    def __init__(self, nest: LoopNest, arrays: dict[str, np.ndarray], numbers: dict[str, Any]) -> None:
        self.nest, self.arrays, self.numbers = nest, arrays, numbers
        self.sizes = {name: numbers[name] if name in numbers else self._size(name) for name in nest.sizes}
        self.scalars: dict[str, Any] = {}
        self.indices = dict(self.sizes)
        self.run(tree(replace(nest, statements=nest.reads)))
        self.run(tree(nest))

    def _size(self, name: str) -> int:
        array, _, axis = name.removesuffix("]").partition(".shape[")
        return self.arrays[array].shape[int(axis)]

    def run(self, nodes: Any) -> None:
        for node in nodes:
            if isinstance(node, For):
                for i in range(node.start.value(self.indices), node.stop.value(self.indices), node.step):
                    self.indices[node.index] = i
                    self.run(node.body)
                self.indices.pop(node.index, None)
            elif isinstance(node, When):
                if all(c.value(self.indices) >= 0 for c in node.conditions):
                    self.run(node.body)
            else:
                assert isinstance(node, Do)
                self.do(node)

    def do(self, node: Do) -> None:
        term = (node.reduce, ("load", node.target), node.value) if node.reduce else node.value
        read = [self.nest.element(a.array) for a in leaves(term)]
        float_ = arithmetic(term, read).is_float
        if term[0] == "number" and not self.nest.element(node.target.array).is_float and isinstance(term[1], float):
            raise Refused(node.line, "a float in an integer")
        float_ |= term[0] == "number"
        value = self.value(term, float_)
        if node.target.subscripts:
            array = self.arrays[node.target.array]
            stored(array, self.place(node.target), value)
        else:
            kept = float if self.nest.element(node.target.array).is_float else int
            self.scalars[node.target.array] = kept(value)

    def place(self, access: Any) -> tuple[int, ...]:
        found = tuple(x.value(self.indices) for x in access.subscripts)
        if not all(0 <= x < n for x, n in zip(found, self.arrays[access.array].shape)):
            raise Outside
        return found

    def value(self, term: Any, float_: bool) -> Any:
        kind = term[0]
        if kind in ("number", "parameter", "index", "load"):
            x = term[1]
            if kind == "parameter":
                x = self.numbers[x]
            elif isinstance(x, Polynomial):
                x = x.value(self.indices)
            elif kind == "load" and x.subscripts:
                x = self.arrays[x.array][self.place(x)]
            elif kind == "load":
                if x.array not in self.scalars:
                    raise Unassigned
                x = self.scalars[x.array]
            return float(x) if float_ else int(x)
        xs = [self.value(x, float_) for x in term[1:]]
        return _MEANINGS[kind](float_, *xs)


def _divided(float_: bool, x: Any, y: Any) -> Any:
    return x / y if float_ else int(x / y)


_MEANINGS: dict[str, Callable[..., Any]] = {
    "add": lambda f, x, y: x + y, "sub": lambda f, x, y: x - y, "mul": lambda f, x, y: x * y, "div": _divided,
    "neg": lambda f, x: -x, "abs": lambda f, x: abs(x),
    "min": lambda f, x, y: min(x, y), "max": lambda f, x, y: max(x, y),
    "fmin": lambda f, x, y: min(x, y), "fmax": lambda f, x, y: max(x, y), "lt": lambda f, x, y: x < y,
    "le": lambda f, x, y: x <= y, "eq": lambda f, x, y: x == y, "ne": lambda f, x, y: x != y,
    "and": lambda f, x, y: x and y, "or": lambda f, x, y: x or y, "where": lambda f, c, x, y: x if c else y,
    "sqrt": lambda f, x: math.sqrt(x),
}
