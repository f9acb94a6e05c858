"""A recorded function with one line left out: what the simulator then says is what the line is for."""
from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

from tilewright.ir.lines import Line
from tilewright.ir.program import Call, Function, Op, Store

BODIES = "head", "body", "then", "otherwise"


def without(function: Function, line: Line | int) -> Function:
    """The function without what a line, or the lines of this number, does and returns nothing of: a barrier, a fence, a
    wait, a store. ValueError if there is nothing of the kind."""
    left = []

    def stays(node: Any) -> bool:
        gone = line in (node.line, node.line.number) and isinstance(node, (Op, Store)) and not node.defines
        left.extend([node] * gone)
        return not gone

    def cut(nodes: list) -> list:
        return [_copied(node, cut) for node in nodes if stays(node)]
    changed = {called: replace(called, body=cut(called.body)) for called in (*function.callees(), function)}
    for called in changed.values():
        for node in called.walk():
            if isinstance(node, Call) and node.callee in changed:
                node.callee = changed[node.callee]
    if not left:
        raise ValueError(f"{function.name}: line {line} has nothing that could be left out: no barrier, fence, wait or "
                         "store")
    return changed[function]


def _copied(node: Any, cut: Any) -> Any:
    """A copy of a node that holds others, with what `cut` leaves of these; a copy of a call; other nodes themselves."""
    if isinstance(node, Call):
        return copy(node)
    bodies = {name: cut(getattr(node, name)) for name in BODIES if hasattr(node, name)}
    return replace(node, **bodies) if bodies else node
