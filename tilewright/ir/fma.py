"""a*b + c in a user's kernel becomes one operation with one rounding, a fused multiply-add (FMA). That happens in the
record, so that all targets and the simulator have the same bits.

A product of floats is fused with the sum or the difference that takes it, if that is its only use and both are recorded
in the same body: of a loop, of a branch, of the function. If both operands of a sum are such products the first one is
fused. Signs are part of the operation, as in -(a*b) + c. `k.exact()` keeps operations apart; the library's own code is
read as it is recorded (`Op.fuses`).
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.ir.ops import core as ops
from tilewright.ir.program import Function, Line, Loop, Node, Op, While

SUMS = ops.ADD, ops.SUB
# (is the product negated, is what is added to it) → the operation
OPERATIONS = {(False, False): ops.FMA, (False, True): ops.FMS, (True, False): ops.FNMA, (True, True): ops.FNMS}
BODIES = "head", "body", "then", "otherwise"


@dataclass
class Fused:
    """A function whose products are fused, and what that has changed."""
    function: Function
    operations: int = 0             # multiplications, additions, subtractions, negations of floats by the user's code
    saved: int = 0                  # of these
    sums: list[Line] = field(default_factory=list)      # those that have taken a product
    apart: list[Line] = field(default_factory=list)     # those that have not because of k.exact()


def fused(function: Function) -> Function:
    """The function with its products fused; the function itself if no code of users adds up or multiplies floats."""
    return fusing(function).function if function.fuses else function


def fusing(function: Function) -> Fused:
    """`fused`, and what it changes."""
    replacement = Fused(function)
    if function.fuses:
        body = _Walk(function, replacement).body(function.body)
        replacement.function = replace(function, body=body, fuses=False)
    return replacement


@dataclass
class _Product:
    """A product, perhaps negated, that has one use."""
    negated: bool
    nodes: tuple[Op, ...]           # the multiplication, and negations of it


class _Walk:
    def __init__(self, function: Function, found: Fused) -> None:
        self.found = found
        self.uses: Counter[int] = Counter()
        self.shown: set[int] = set()                    # by k.print, which changes no bits: this is no use
        self.count(function.body)

    def count(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if isinstance(node, Op) and node.operation.name == "print":
                self.shown.update(x.id for x in node.operands)
                continue
            self.uses.update(x.id for x in node.uses)
            if isinstance(node, While):
                self.uses[node.condition.id] += 1
            for fold in _folds(node):
                self.count(fold.nodes)
                self.uses.update(x.id for x in fold.results)
            for name in BODIES:
                self.count(getattr(node, name, ()))

    def body(self, nodes: list) -> list:
        """The nodes of one body, fused."""
        products: dict[int, _Product] = {}
        gone: set[int] = set()                          # nodes, by id
        made = [self.operation(node, products, gone) if isinstance(node, Op) else self.nested(node) for node in nodes]
        for node in reversed(made):                     # what nothing takes, as a block program's fused products
            if isinstance(node, Op) and node.fuses is not None and id(node) not in gone and not (
                    self.uses[node.results[0].id] or node.results[0].id in self.shown):
                gone.add(id(node))
                self.uses.subtract(x.id for x in node.operands)
        return [node for node in made if id(node) not in gone]

    def operation(self, node: Op, products: dict[int, _Product], gone: set[int]) -> Op:
        if node.fuses is None:
            return node
        fused = node.operation.kind == "fma"            # by a block program
        self.found.operations += 1 + fused
        if fused:
            self.found.sums.append(node.line)
            self.found.saved += 1
        x, takes = node.results[0].id, [products.get(x.id) for x in node.operands]
        if node.operation in SUMS:
            for which, product in enumerate(takes):
                if product and node.fuses and all(factor.fuses for factor in product.nodes):
                    return self.sum(node, product, which, gone)
            if any(takes):
                self.found.apart.append(node.line)
        elif self.uses[x] == 1 and node.operation is ops.MUL:
            products[x] = _Product(False, (node,))
        elif self.uses[x] == 1 and node.operation is ops.NEGATE and takes[0]:
            products[x] = _Product(not takes[0].negated, (*takes[0].nodes, node))
        return node

    def sum(self, node: Op, product: _Product, which: int, gone: set[int]) -> Op:
        """One operation for a sum and its operand `which`, a product."""
        subtracts = node.operation is ops.SUB
        operation = OPERATIONS[product.negated ^ (subtracts and which == 1), subtracts and which == 0]
        self.found.sums.append(node.line)
        self.found.saved += len(product.nodes)
        gone.update(id(product_node) for product_node in product.nodes if product_node.results[0].id not in self.shown)
        return Op(operation, (*product.nodes[0].operands, node.operands[1 - which]), node.results, node.line)

    def nested(self, node: Any) -> Any:
        changed: dict[str, Any] = {name: self.body(getattr(node, name)) for name in BODIES if hasattr(node, name)}
        if folds := _folds(node):
            changed["rounds"] = replace(node.rounds, folds=[replace(x, nodes=self.body(x.nodes)) for x in folds])
        return replace(node, **changed) if changed else node


def _folds(node: Node) -> list:
    return node.rounds.folds if isinstance(node, Loop) and node.rounds else []
