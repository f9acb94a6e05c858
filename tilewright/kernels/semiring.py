"""What stands for multiply-add in a kernel (expressions/semiring.py): recorded on numbers or on vectors."""
from __future__ import annotations

from dataclasses import dataclass

from tilewright.expressions.semiring import Semiring, read
from tilewright.ir import Kernel, Type, Value
from tilewright.kernels.expression import recorded


def suffix(SEMIRING: str) -> str:
    """Of the name of a kernel with this one."""
    return f"_{read(SEMIRING).digest}" if SEMIRING else ""


@dataclass(frozen=True)
class Arithmetic:
    """Of sums of the type T, a number's; `semiring` None is multiplication and addition."""
    k: Kernel
    T: Type
    semiring: Semiring | None = None

    @classmethod
    def of(cls, k: Kernel, T: Type, SEMIRING: str) -> Arithmetic:
        return cls(k, T, read(SEMIRING) if SEMIRING else None)

    @property
    def first(self) -> float | int:
        """With what sums begin."""
        return self.semiring.first(self.T.bits) if self.semiring else 0

    def step(self, left: Value, right: Value, acc: Value) -> Value:
        """acc, and the term of these two."""
        if self.semiring is None:
            return self.k.fma(left, right, acc)
        x, = recorded(self.k, self.semiring.step, {"acc": acc, "left": left, "right": right}, self.T, self.T)
        return x

    def combined(self, x: Value, y: Value) -> Value:
        """What x and y, of different k, are together."""
        if self.semiring is None:
            return x + y
        z, = recorded(self.k, self.semiring.combined, {"x": x, "y": y}, self.T, self.T)
        return z
