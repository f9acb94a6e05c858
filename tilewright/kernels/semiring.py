"""What stands for multiply-add in a kernel (expressions/semiring.py): recorded on numbers or on vectors."""
from __future__ import annotations

from dataclasses import dataclass

from tilewright.expressions.program import Expression, Number
from tilewright.expressions.reductions import Fold, named
from tilewright.expressions.semiring import Semiring, read
from tilewright.ir import Kernel, Type, Value, f32, f64, i32, i64
from tilewright.kernels.expression import recorded

State = tuple[Value, ...]       # a value for each field


def suffix(SEMIRING: str) -> str:
    """Of the name of a kernel with this one."""
    return f"_{read(SEMIRING).digest}" if SEMIRING else ""


def kept(SEMIRING: str) -> int:
    """Fields of a state that is kept until an epilogue makes results of it (program.STATE); 0: what is added up is one
    number, the result."""
    return read(SEMIRING).state if SEMIRING else 0


def numbers(T: Type) -> dict[str, Type]:
    """The types of floats and ints beside sums of the type T: of as many bits."""
    return {"float": f64 if T.bits == 64 else f32, "int": i64 if T.bits == 64 else i32}


@dataclass(frozen=True)
class Arithmetic:
    """Of sums of the type T, a number's; `semiring` None is multiplication and addition. The state of an element is a
    tuple of values, one for each field: of multiplication and addition it is the sum."""
    k: Kernel
    T: Type
    semiring: Semiring | None = None

    @classmethod
    def of(cls, k: Kernel, T: Type, SEMIRING: str) -> Arithmetic:
        return cls(k, T, read(SEMIRING) if SEMIRING else None)

    @property
    def types(self) -> tuple[Type, ...]:
        """Of the fields, a number's."""
        return tuple(numbers(self.T)[kind] for kind in self.semiring.fold.fields) if self.semiring else (self.T,)

    @property
    def first(self) -> tuple[Number, ...]:
        """With what states begin."""
        return self.semiring.first(self.T.bits) if self.semiring else (0,)

    @property
    def indexed(self) -> bool:
        """Whether `step` takes the index of its term, a value of the type numbers(T)["int"]."""
        return self.semiring is not None and self.semiring.fold.indexed

    def step(self, left: Value, right: Value, state: State, index: Value | None = None) -> State:
        """The state, and the term of these two, which has this index along k."""
        if self.semiring is None:
            return (self.k.fma(left, right, state[0]),)
        inputs = {"left": left, "right": right} | {f"s{i}": x for i, x in enumerate(state)}
        if index is not None:
            inputs["p"] = index
        return _recorded(self.k, self.T, self.semiring.step, inputs)

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
    types = numbers(T)
    return tuple(recorded(k, expression, inputs, types["float"], types["int"]))
