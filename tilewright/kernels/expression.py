"""Traced functions in kernels: the operations of an expression, the arithmetic that stands for multiply-add, and
reductions, recorded on numbers or on vectors."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright.expressions import texts
from tilewright.expressions.operations import CONVERSIONS, OPERATIONS
from tilewright.expressions.program import INDICES, Expression, Number
from tilewright.expressions.reductions import Fold, named
from tilewright.expressions.semiring import Semiring
from tilewright.ir import Kernel, Type, Value, elementary, f32, f64, i1, i8, i32, i64, vec
from tilewright.ir.program import Op


def recorded(k: Kernel, expression: Expression, inputs: Mapping[str, Value], FLOAT: Type, INT: Type = i32,
             instead: Mapping[str, Callable[..., Value]] = MappingProxyType({})) -> list[Value]:
    """The results, before reductions, of inputs by name: numbers or vectors of one length, of the types FLOAT, INT and
    i1. Which operations are recorded, and in which order, does not depend on the target. Those that may be short
    (expressions/rounding.py) are so of f32. `instead`: what records operations of these names.
    """
    types = {"float": FLOAT, "int": INT, "bool": i1}
    length = max((x.type.length for x in inputs.values()), default=1)

    def spread(x: Value) -> Value:
        return x if x.type.length == length else k.broadcast(x, length)

    def constant(x: Any) -> Value:
        return k.constant(vec(types[type(x).__name__], length), x)

    def operation(name: str, *xs: Value) -> Value:
        name, _, bits = name.partition("~")
        if name in instead:
            return instead[name](k, *xs)
        if bits and xs[0].type.scalar == f32:
            return elementary.rounded_gelu(k, name, int(bits), xs[0])
        return k.cast(xs[0], vec(types[name], length)) if name in CONVERSIONS else OPERATIONS[name].record(k, *xs)

    return expression.run(operation, {name: spread(x) for name, x in inputs.items()}, constant)


# ---- in place of multiply-add (expressions/semiring.py)

State = tuple[Value, ...]       # a value for each field


def semiring_suffix(SEMIRING: str) -> str:
    """The suffix of the name of a kernel with this semiring."""
    return f"_{texts.semiring(SEMIRING).digest}" if SEMIRING else ""


def state_fields(SEMIRING: str) -> int:
    """Fields of a state that is kept until an epilogue makes results of it (program.STATE); 0: what is added up is one
    number, the result."""
    return texts.semiring(SEMIRING).state if SEMIRING else 0


def numbers(T: Type) -> dict[str, Type]:
    """The types of floats and ints beside sums of the type T: of as many bits."""
    return {"float": f64 if T.bits == 64 else f32, "int": i64 if T.bits == 64 else i8 if T.bits == 8 else i32}


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of sums of the type T, a number's; `semiring` None is multiplication and addition. The state of an
    element is a tuple of values, one for each field: of multiplication and addition it is the sum."""
    k: Kernel
    T: Type
    semiring: Semiring | None = None

    @classmethod
    def from_text(cls, k: Kernel, T: Type, SEMIRING: str) -> Arithmetic:
        return cls(k, T, texts.semiring(SEMIRING) if SEMIRING else None)

    @property
    def types(self) -> tuple[Type, ...]:
        """The types of a state's fields, those of a number."""
        return tuple(numbers(self.T)[kind] for kind in self.semiring.fold.fields) if self.semiring else (self.T,)

    @property
    def first(self) -> tuple[Number, ...]:
        """With what states begin."""
        return self.semiring.first(self.T.bits) if self.semiring else (0,)

    @property
    def INT(self) -> Type:
        """The type of indices."""
        return numbers(self.T)["int"]

    @property
    def indexed(self) -> bool:
        """Whether `step` takes the index of its term, a value of the type INT."""
        return self.semiring is not None and self.semiring.fold.indexed

    @property
    def left_last(self) -> bool:
        """Whether `step` takes the left factor where an instruction may read it from memory (Semiring.left_last)."""
        return self.semiring is not None and self.semiring.left_last is not None

    def step(self, left: Value, right: Value, state: State, index: Value | None = None, left_last: bool = False
             ) -> State:
        """The state, and the term of these two, which has this index along k."""
        if self.semiring is None:
            return (self.k.fma(left, right, state[0]),)
        inputs = {"left": left, "right": right} | {f"s{i}": x for i, x in enumerate(state)}
        if index is not None:
            inputs["p"] = index
        step = self.semiring.left_last if left_last else None
        return _recorded(self.k, self.T, step or self.semiring.step, inputs)

    def combined(self, x: State, y: State) -> State:
        """What x and y, of different k, are together."""
        if self.semiring is None:
            return (x[0] + y[0],)
        return combined(self.k, self.T, self.semiring.fold, x, y)


def combined(k: Kernel, T: Type, fold: Fold | str, x: State, y: State) -> State:
    """What two states of a reduction of numbers of the type T, or of the one with this name, are together."""
    if isinstance(fold, str):
        fold = named(fold, "float" if T.is_float else "int")
    inputs = {f"{name}{i}": value for name, state in (("x", x), ("y", y)) for i, value in enumerate(state)}
    return _recorded(k, T, fold.combined, inputs)


def _recorded(k: Kernel, T: Type, expression: Expression, inputs: dict[str, Value]) -> State:
    """Integers that are data are elements of vectors: an i32 by itself is an index, and has to fit."""
    types = numbers(T)
    data = all(x.type.length == 1 for x in inputs.values()) and any(not x.type.is_float for x in inputs.values())
    if data:
        inputs = {name: k.pack(x, x) for name, x in inputs.items()}
    results = recorded(k, expression, inputs, types["float"], types["int"])
    return tuple(x[0] for x in results) if data else tuple(results)


# ---- what is multiplied beyond k

FLOATS = 0.0, np.inf, -np.inf, np.nan, 1.0, -1.0


@lru_cache(maxsize=256)
def neutral(SEMIRING: str, T: Type) -> tuple[float, float] | None:
    """Two factors whose term changes no result, preferably 0 and 0; None if none are found, or if the reduction
    cannot be evaluated. Steps are computed as kernels compute them: a term that does not change the value that results
    begin with changes none."""
    k = Kernel("step", left=T, right=T)
    arithmetic = Arithmetic.from_text(k, T, SEMIRING)
    if texts.semiring(SEMIRING).reduce not in ("sum", "min", "max", "any"):
        return None
    left, right = k.args
    first, = arithmetic.first
    result, = arithmetic.step(left, right, (k.constant(T, first),))
    few = FLOATS if T.is_float else (0, -1, 1, -1 << T.bits - 1, (1 << T.bits - 1) - 1)
    for pair in product(few, few):
        try:
            if _computed(k, result, dict(zip((x.id for x in k.args), map(T.numpy.type, pair)))) == T.numpy.type(first):
                return pair
        except ArithmeticError:             # it is undefined for these
            pass
    return None


def _computed(k: Kernel, wanted: Value, known: dict[int, np.ndarray]) -> np.ndarray:
    """A value of a kernel without loads and branches, of those that are known, by their ids."""
    def evaluated(x: Value) -> np.ndarray:
        return known[x.id] if x.constant is None else np.full((x.type.length, 1), x.constant, x.type.numpy) if (
            x.type.length > 1) else x.type.numpy.type(x.constant)
    with np.errstate(all="ignore"):
        for node in k.function.body:
            assert isinstance(node, Op)
            assert node.operation.numpy is not None
            result, = node.results
            known[result.id] = node.operation.numpy(result.type, *map(evaluated, node.operands))
    return evaluated(wanted)


# ---- reductions of rows and columns of C (expressions/program.REDUCTIONS), in parts of which two are combined: tuples
# ---- of a number, and its index where that is wanted; of numbers or vectors, an element for each reduction

Part = tuple[Value, ...]
# With what a reduction begins, and how two of its numbers are combined; amax: of sizes.
COMBINED = {"sum": (0.0, "add"), "max": (float("-inf"), "max"), "min": (float("inf"), "min"), "amax": (0.0, "max"),
            "argmax": (float("-inf"), ""), "argmin": (float("inf"), "")}


def nothing(k: Kernel, how: str, type: Type) -> Part:
    """The neutral element of a reduction of numbers of this type."""
    start, most = COMBINED[how][0], (1 << type.scalar.bits - 1) - 1
    if not type.is_float and start:
        start = -most - 1 if start < 0 else most
    number = k.constant(type, start if type.is_float else int(start))
    return (number, k.constant(indices(type), most)) if how in INDICES else (number,)


def indices(type: Type) -> Type:
    """The type of indices of numbers of this type."""
    return vec(numbers(type.scalar)["int"], type.length)


def part(k: Kernel, how: str, x: Value, index: Value) -> Part:
    """The reduction of x alone, which is at this index: `indices` of it, or an integer that is the same for all."""
    if how not in INDICES:
        return (k.abs(x) if how == "amax" else x,)
    if index.type.length < x.type.length:
        index = k.broadcast(k.cast(index, indices(x.type).scalar), x.type.length)
    return x, k.cast(index, indices(x.type))


def both(k: Kernel, how: str, x: Part, y: Part) -> Part:
    if how in INDICES:
        return combined(k, x[0].type.scalar, how, x, y)
    operation = OPERATIONS[COMBINED[how][1]]
    if x[0].type.is_float or x[0].type.length > 1:
        return (operation.record(k, x[0], y[0]),)
    return (operation.record(k, *(k.pack(z[0], z[0]) for z in (x, y)))[0],)     # as data, which may overflow: no index
