"""What a kernel computes with: values with operators, register tiles, variables; and how nodes that use them enter a
record: into which block, and whether these values may be used there.

A value belongs to the block in which it is recorded: the body of a loop, a branch. When the block has ended it is not
defined any more, in neither reading: LLVM calls that an instruction that does not dominate its uses, and threads that
did not enter the block have no such value. So the line that uses it is refused when it is recorded.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilewright.ir.ops import core as ops
from tilewright.ir.program import Array, Function, Line, Node, Read, Register, Write, caller
from tilewright.ir.types import Pointer, Type, i1, i64

if TYPE_CHECKING:
    from tilewright.ir.builder import Kernel

_ids = itertools.count()


class Value:
    """A value inside the kernel. `p + i` moves a pointer by i elements, `p[i]` is its element; the rest is arithmetic.

    `/` is of floats, rounded as IEEE 754 says; `//` and `%` are for indices: operands must not be negative.
    """
    __slots__ = ("array", "constant", "id", "k", "strides", "type")

    def __init__(self, k: Kernel, type: Any, constant: Any = None, array: Array | None = None,
                 strides: Any = (1,), id: int | None = None) -> None:
        self.k, self.type, self.constant, self.array, self.strides = k, type, constant, array, strides
        self.id = next(_ids) if id is None else id

    def __add__(self, other: Any) -> Value:
        if isinstance(other, int) and other == 0:
            return self
        if isinstance(self.type, Pointer):
            return self.k._op(ops.OFFSET, self.type, self, self.k._value(other, i64), array=self.array)
        return self.k._binary(ops.ADD, self, other)

    def __mul__(self, other: Any) -> Value:
        return self if isinstance(other, int) and other == 1 else self.k._binary(ops.MUL, self, other)

    def __sub__(self, other: Any) -> Value: return self.k._binary(ops.SUB, self, other)
    def __rsub__(self, other: Any) -> Value: return self.k._binary(ops.SUB, other, self)
    def __floordiv__(self, other: Any) -> Value: return self.k._binary(ops.DIV, self, other)
    def __mod__(self, other: Any) -> Value: return self.k._binary(ops.REM, self, other)
    def __truediv__(self, other: Any) -> Value: return self.k._divide(self, other)
    def __rtruediv__(self, other: Any) -> Value: return self.k._divide(other, self)
    def __neg__(self) -> Value: return self.k._negate(self)
    def __abs__(self) -> Value: return self.k.abs(self)
    def __and__(self, other: Any) -> Value: return self.k._binary(ops.AND, self, other)
    def __or__(self, other: Any) -> Value: return self.k._binary(ops.OR, self, other)
    def __xor__(self, other: Any) -> Value: return self.k._binary(ops.XOR, self, other)
    def __lshift__(self, other: Any) -> Value: return self.k._binary(ops.SHL, self, other)
    def __rshift__(self, other: Any) -> Value: return self.k._binary(ops.SHR, self, other)
    def __lt__(self, other: Any) -> Value: return self.k._binary(ops.LT, self, other, i1)
    def __le__(self, other: Any) -> Value: return self.k._binary(ops.LE, self, other, i1)
    def __gt__(self, other: Any) -> Value: return self.k._binary(ops.LT, other, self, i1)
    def __ge__(self, other: Any) -> Value: return self.k._binary(ops.LE, other, self, i1)
    def __eq__(self, other: Any) -> Value: return self.k._binary(ops.EQ, self, other, i1)   # type: ignore[override]
    def __ne__(self, other: Any) -> Value: return self.k._binary(ops.NE, self, other, i1)   # type: ignore[override]
    def __invert__(self) -> Value: return self ^ -1
    __radd__, __rmul__, __rand__, __ror__, __rxor__ = __add__, __mul__, __and__, __or__, __xor__
    __hash__ = object.__hash__      # by identity, as dicts of values need it: == records
    __iter__ = None                 # or Python would index a pointer without end

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **_: Any) -> Any:
        return ufunc(self, function, method, inputs)

    def __bool__(self) -> bool: refuse(TRUTH)
    def __pow__(self, other: Any) -> Value: refuse(f"** cannot take it. {POWER}")
    def __float__(self) -> float: refuse(NUMBER)
    def __int__(self) -> int: refuse(INTEGER)
    def __index__(self) -> int: refuse(INDEX)
    def __round__(self, digits: Any = None) -> int: refuse(ROUND)
    __rpow__, __floor__, __ceil__ = __pow__, __round__, __round__

    def __repr__(self) -> str:
        """A sentence for Python's print, which has no number to show."""
        return f"<a {self.type} that the kernel computes: k.print('x', x) prints it when the kernel is simulated>"

    def view(self, *strides: Any, layout: Any = None) -> Value:
        """View this address as an array with these strides in elements: `a.view(lda, 1)[i, p]`; or with a layout,
        a function from an index to the element it is kept in: `a.view(layout=lambda i, p: i*64 + (p ^ i % 8 * 8))`."""
        if strides and layout is not None:
            raise TypeError("a view has strides or a layout, not both")
        return Value(self.k, self.type, self.constant, self.array, layout or strides, self.id)

    def as_(self, element: Type) -> Value:
        """View this address as elements of another type."""
        return Value(self.k, Pointer(element, self.type.space), self.constant, self.array, (1,), self.id)

    def at(self, *index: Any) -> Value:
        """The address of element [i, j, ...]; its vectors run along the last index."""
        if callable(self.strides):
            return self + self.strides(*index)
        if len(index) != len(self.strides):
            name = self.array.name if self.array else "this pointer"
            raise IndexError(f"{name} has {len(self.strides)} dimensions, got {len(index)} indices")
        address = self
        for i, stride in zip(index, self.strides, strict=True):
            if not isinstance(i, (Value, int, Integral)):
                raise TypeError(f"an index is a whole number or a value of the kernel, not {i!r}")
            address = address + i * stride
        return address

    def __getitem__(self, index: Any) -> Value:
        if isinstance(self.type, Pointer):
            return self.k.load(self.at(*(index if isinstance(index, tuple) else (index,))))
        if self.type.length == 1:
            raise TypeError(f"a value of type {self.type} has no elements: only pointers and vectors have")
        check_elements((index,), self.type.length, f"{self.type}")
        return self.k._op(ops.extract(index), self.type.scalar, self)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.k.store(self.at(*(index if isinstance(index, tuple) else (index,))), value)


def check_elements(elements: Iterable[Any], length: int, what: str) -> None:
    for e in elements:
        if not isinstance(e, int) or not 0 <= e < length:
            raise IndexError(f"there is no element {e} of {what}: it must be a Python number from 0 to {length - 1}")


class Tile:
    """A [rows, cols] array of registers, the same in every thread."""

    def __init__(self, k: Kernel, rows: int, cols: int, type: Any) -> None:
        self.k, self.rows, self.cols, self.type = k, rows, cols, type
        self.registers = {(i, j): Register(type) for i in range(rows) for j in range(cols)}

    def _register(self, ij: tuple[int, int]) -> Register:
        if ij not in self.registers:
            raise IndexError(f"there is no register {ij} of a {self.rows} x {self.cols} tile")
        return self.registers[ij]

    def __getitem__(self, ij: tuple[int, int]) -> Value:
        register = self._register(ij)
        return self.k._record(Read(Value(self.k, register.type), register, caller())).result

    def __setitem__(self, ij: tuple[int, int], value: Any) -> None:
        register = self._register(ij)
        self.k._record(Write(register, self.k._value(value, register.type), caller()))


class Variable:
    """One register with a name: `x = k.variable(i64, 0)`; `x.get()`, `x.set(...)`."""

    def __init__(self, k: Kernel, type: Any, value: Any) -> None:
        self.tile = Tile(k, 1, 1, type)
        if value is not None:
            self.set(value)

    def get(self) -> Value: return self.tile[0, 0]
    def set(self, value: Any) -> None: self.tile[0, 0] = value


# ---- recording

@dataclass(eq=False, slots=True)
class Scope:
    """A body that is being recorded, or has been."""
    what: str
    line: Line
    open: bool = True


class Recording:
    """Where a kernel records to. `Kernel` inherits it."""

    def _begin(self, function: Function) -> None:
        self.function, self._body = function, function.body
        self._scope: Scope | None = None                    # None: the function itself
        self._made: dict[int, tuple[Scope, Line]] = {}      # value of a block → the block, and the line that made it

    def _record(self, node: Node) -> Any:
        for x in node.uses:
            if not isinstance(x, Value) or x.k is not self or ((made := self._made.get(x.id)) and not made[0].open):
                self._refuse(x, node.line)
        if self._scope is not None:
            for x in node.defines:
                self._made[x.id] = self._scope, node.line
        self._body.append(node)
        return node

    @contextmanager
    def _into(self, body: list, what: str, *values: Value) -> Iterator[Scope]:
        """Record into this body; `values` belong to it from its start."""
        outer = self._body, self._scope
        self._body, self._scope = body, Scope(what, caller())
        for x in values:
            self._made[x.id] = self._scope, self._scope.line
        try:
            yield self._scope
        finally:
            self._scope.open = False
            self._body, self._scope = outer

    def _refuse(self, x: Any, line: Line) -> NoReturn:
        """x may not be an operand here."""
        if not isinstance(x, Value):
            raise TypeError(f"{line}: an operand must be a value of the kernel, not {x!r}; k.constant(type, number) "
                            f"makes one\n    {line.text}")
        if x.k is not self:
            raise ValueError(f"{line}: a value of {x.k.function.name} is used in {self.function.name}\n    {line.text}")
        scope, made = self._made[x.id]
        raise ValueError(
            f"{line}: the value recorded at {made} is used after the end of the {scope.what} at {scope.line}, to "
            "which it belongs. A variable carries a number out of it: `acc = k.variable(f32, 0)` before the block, "
            f"`acc.set(acc.get() + x)` in it, `acc.get()` after it\n    {made}: {made.text}"
            f"\n    {line}: {line.text}")


# ---- Python's and NumPy's functions of numbers, called with a value: an error in a sentence, with the line of the
# kernel and what to write instead. A value is known when the kernel runs, and these run when it is recorded.

TRUTH = ("it cannot decide if, while, and, or, not, in or a < b < c. For a branch write `with k.when(t == 0):`, for a "
         "choice k.select(condition, x, y), for and, or, not `&`, `|`, `~`")
POWER = "Write x * x for x ** 2, k.sqrt(x) for x ** 0.5, and k.exp(y * k.log(x)) for x ** y, of x > 0"
NUMBER = ("float(), math.exp() and other functions of Python's numbers cannot take it. Write k.exp(x), k.log(x), "
          "k.sqrt(x), k.tanh(x), and k.cast(x, f32) for another type")
INTEGER = "int() cannot take it. Write k.cast(x, i32), which rounds floats towards 0"
ROUND = ("round(), math.floor() and math.ceil() cannot take it. k.cast(x, i32) rounds floats towards 0; for x >= 0 "
         "k.cast(x + 0.5, i32) rounds to the nearest")
INDEX = ("range(), a list's index and a slice cannot take it. For a loop write `with k.loop(n) as i:`; what an index "
         "chooses from at run time is an array: k.smem, k.local or a parameter")
# NumPy's function → what does the same in a kernel
FUNCTIONS = {"exp": "k.exp(x)", "log": "k.log(x)", "sqrt": "k.sqrt(x)", "tanh": "k.tanh(x)", "absolute": "abs(x)",
             "fabs": "abs(x)", "maximum": "k.max(x, y)", "minimum": "k.min(x, y)", "fmax": "k.fmax(x, y)",
             "fmin": "k.fmin(x, y)", "add": "x + y", "subtract": "x - y", "multiply": "x * y", "divide": "x / y",
             "square": "x * x", "reciprocal": "1.0 / x", "bitwise_count": "k.popcount(x)"}
# NumPy's function for an operator with a number of NumPy's on the left → the value's method
REFLECTED = {"add": "__radd__", "subtract": "__rsub__", "multiply": "__rmul__", "divide": "__rtruediv__",
             "bitwise_and": "__rand__", "bitwise_or": "__ror__", "bitwise_xor": "__rxor__", "less": "__gt__",
             "less_equal": "__ge__", "greater": "__lt__", "greater_equal": "__le__", "equal": "__eq__",
             "not_equal": "__ne__", "power": "__rpow__"}


def refuse(why: str) -> NoReturn:
    line = caller()
    raise TypeError(f"{line}: a value of the kernel is not known while the kernel is recorded, so {why}\n    "
                    f"{line.text}")


def ufunc(value: Value, function: np.ufunc, method: str, inputs: tuple[Any, ...]) -> Any:
    """np.float32(2) * value is value * np.float32(2); else NumPy's functions are refused."""
    name = function.__name__
    if method == "__call__" and len(inputs) == 2 and inputs[1] is value and name in REFLECTED:
        left = inputs[0][()] if np.ndim(inputs[0]) == 0 else inputs[0]          # NumPy compares in an array of it
        return getattr(value, REFLECTED[name])(left)
    instead = FUNCTIONS.get(name, "the kernel's own: k.exp, k.log, k.sqrt, k.tanh, k.min, k.max")
    refuse(f"np.{name}() cannot take it. {POWER if name.endswith('power') else f'Write {instead}'}")
