"""How nodes enter a record: into which block, and whether the values that they use may be used there.

A value belongs to the block in which it is recorded: the body of a loop, a branch. When the block has ended it is not
defined any more, in neither reading: LLVM calls that an instruction that does not dominate its uses, and threads that
did not enter the block have no such value. So the line that uses it is refused when it is recorded.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.ir.values import Value, caller

if TYPE_CHECKING:
    from tilewright.ir.program import Function, Line, Node


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
            self._check(x, node.line)
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

    def _check(self, x: Any, line: Line) -> None:
        """May this be an operand here?"""
        if not isinstance(x, Value):
            raise TypeError(f"{line}: an operand must be a value of the kernel, not {x!r}; k.constant(type, number) "
                            f"makes one\n    {line.text}")
        if x.k is not self:
            raise ValueError(f"{line}: a value of {x.k.function.name} is used in {self.function.name}\n    {line.text}")
        scope, made = self._made.get(x.id, (None, line))
        if scope is not None and not scope.open:
            raise ValueError(
                f"{line}: the value recorded at {made} is used after the end of the {scope.what} at {scope.line}, to "
                "which it belongs. A variable carries a number out of it: `acc = k.variable(f32, 0)` before the block, "
                f"`acc.set(acc.get() + x)` in it, `acc.get()` after it\n    {made}: {made.text}"
                f"\n    {line}: {line.text}")
