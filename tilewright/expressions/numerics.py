"""What a product computes beside multiplying and adding up, as one record that problems, shapes and plans carry."""
from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.expressions import texts

if TYPE_CHECKING:
    from typing import Self

SWAPPED = {"": "", "threads": "threads", "rows": "columns", "columns": "rows"}      # reproducibility of C^T


class Numerics(NamedTuple):
    """The functions of a product, by their texts, and what must not change its bits; "" for none.

    epilogue    what becomes of finished sums: the text of an expressions.function.Epilogue
    prologue_a  what elements of A become before they are multiplied: the text of a Prologue. prologue_b: of B
    semiring    what stands for multiplication and addition: the text of a Semiring
    invariant   what must not change an element's bits: see plans/invariant.py
    """
    epilogue: str = ""
    prologue_a: str = ""
    prologue_b: str = ""
    semiring: str = ""
    invariant: str = ""

    @property
    def swapped(self) -> Numerics:
        """The numerics of C^T = B^T @ A^T."""
        semiring = self.semiring and texts.semiring(self.semiring).swapped.text
        return Numerics(self.epilogue, self.prologue_b, self.prologue_a, semiring, SWAPPED[self.invariant])

    @property
    def prologues(self) -> str:
        """Which operands have a prologue: "", "a", "b" or "ab"."""
        return "a"*bool(self.prologue_a) + "b"*bool(self.prologue_b)


PLAIN = Numerics()


def _text(name: str) -> Any:
    """A property that reads this field of `numerics` without a Python call."""
    return property(attrgetter(f"numerics.{name}"))


class HasNumerics:
    """A record with a field `numerics`, whose texts are read as if they were fields of the record itself."""
    __slots__ = ()

    epilogue: str = _text("epilogue")
    prologue_a: str = _text("prologue_a")
    prologue_b: str = _text("prologue_b")
    semiring: str = _text("semiring")
    invariant: str = _text("invariant")
    prologues: str = _text("prologues")

    if TYPE_CHECKING:
        numerics: Numerics

        def _replace(self, **fields: Any) -> Self: ...

    def prologue_of(self, role: str) -> str:
        """The prologue of operand "a" or "b"."""
        return self.prologue_a if role == "a" else self.prologue_b

    def with_numerics(self, **fields: str) -> Self:
        """The record with some texts of its numerics replaced."""
        return self._replace(numerics=self.numerics._replace(**fields))
