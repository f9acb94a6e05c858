"""What an expression of elements allows where their products are added up: factors that whole sums have in common, and
integers that floats hold exactly.

    $x:int s:float; float $x; mul %0 s; -> %1         with one s for all elements of a sum: s times the sum of b
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from tilewright.expressions.program import Expression, Line, Operand, Result

EXACT = 1 << 24             # up to which f32 has all integers
LINEAR: dict[str, Callable[..., int]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x + y, "mul": lambda x, y: x * y, "neg": lambda x: x,
    "abs": lambda x: x, "min": max, "max": max, "fmin": max, "fmax": max}     # the largest size of each result
COMPARISONS = "lt", "le", "eq", "ne"


def only(expression: Expression, *results: Operand) -> Expression:
    """The expression of these operands of its lines alone, without lines that they do not need."""
    used: set[int] = set()

    def visit(x: Operand) -> None:
        if isinstance(x, int) and x not in used:
            used.add(x)
            for y in expression.lines[x].operands:
                visit(y)
    for x in results:
        visit(x)
    number = {old: new for new, old in enumerate(sorted(used))}

    def moved(x: Operand) -> Operand:
        return number[x] if isinstance(x, int) else x
    lines = tuple(Line(line.operation, tuple(map(moved, line.operands)))
                  for at, line in enumerate(expression.lines) if at in used)
    return replace(expression, lines=lines, results=tuple(Result(moved(x)) for x in results))


def parameters(expression: Expression) -> set[str]:
    """The parameters that the expression's results need."""
    return {x for line in expression.lines for x in line.operands if isinstance(x, str)} | {
        x.operand for x in expression.results if isinstance(x.operand, str)}


def subtracted(expression: Expression) -> tuple[Expression, str] | None:
    """The expression of the difference, and the parameter, where an expression uses its element in
    `element - parameter` alone, both integers; else None."""
    first = expression.parameters[0][0]
    uses = [at for at, line in enumerate(expression.lines) if first in line.operands]
    kinds, results = dict(expression.parameters), [x.operand for x in expression.results]
    if len(uses) != 1 or kinds[first] != "int" or first in results:
        return None
    at, = uses
    line = expression.lines[at]
    if line.operation != "sub" or line.operands[0] != first or not isinstance(line.operands[1], str):
        return None

    def moved(x: Operand) -> Operand:
        return x if not isinstance(x, int) else first if x == at else x - (x > at)
    lines = tuple(Line(x.operation, tuple(map(moved, x.operands))) for x in expression.lines if x is not line)
    return replace(expression, lines=lines, results=tuple(Result(moved(x)) for x in results)), line.operands[1]


@lru_cache(maxsize=256)
def factored(expression: Expression, common: frozenset[str] | None) -> tuple[Expression, Expression | None]:
    """(what is left of the result of every element, the factors that they have in common), if parameters `common`, and
    constants, are the same for all of them. None: there are no factors, nor are any taken out where nothing is added up
    to be multiplied by them (`common` is None)."""
    result, factors = expression.results[0].operand, list[Operand]()
    while common is not None and isinstance(result, int) and (line := expression.lines[result]).operation == "mul":
        shared = [x for x in line.operands if parameters(only(expression, x)) <= common]
        if len(shared) != 1:
            break
        result, = (x for x in line.operands if x is not shared[0])
        factors.append(shared[0])
    if not factors or expression.kinds[0] != "float":
        return only(expression, expression.results[0].operand), None
    return only(expression, result), only(expression, *factors)


def whole_in_floats(expression: Expression, sizes: Mapping[str, int]) -> bool:
    """Whether f32 hold all integers that it computes, of integer parameters of at most these `sizes`: then it may be
    computed in f32 alone."""
    kinds: list[str] = []
    most: list[int] = []
    given = dict(expression.parameters)

    def kind(x: Operand) -> str:
        return kinds[x] if isinstance(x, int) else given[x] if isinstance(x, str) else type(x[0]).__name__

    def size(x: Operand) -> int:
        return most[x] if isinstance(x, int) else sizes[x] if isinstance(x, str) else abs(int(x[0]))
    for line in expression.lines:
        of = [kind(x) for x in line.operands]
        kinds.append(expression.given(line.operation, *of))
        most.append(0)
        if line.operation == "int" or (line.operation == "where" and "int" in of):
            return False
        if kinds[-1] == "int":
            if line.operation not in LINEAR:
                return False
            most[-1] = LINEAR[line.operation](*map(size, line.operands))
        elif "int" in of and line.operation not in (*COMPARISONS, "float"):
            return False
        if most[-1] > EXACT or any(size(x) > EXACT for x, operand in zip(line.operands, of) if operand == "int"):
            return False
    return True
