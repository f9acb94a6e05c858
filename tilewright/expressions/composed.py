"""Expressions composed with others: of sums that are scaled first, of C as it was, and of a reduction's state."""
from __future__ import annotations

from functools import lru_cache
from typing import Any

from tilewright.expressions.program import OWN, STATE, Expression, Line, Operand, Result
from tilewright.expressions.reductions import Fold
from tilewright.expressions.tracing import reduced, retraced, trace

# alpha, beta and C as operands, for targets whose loops know no others than the expression's
ALPHA, BETA, ADDED = OWN + "alpha", OWN + "beta", OWN + "c"


def with_scales(x: Expression, kind: str, each: tuple[tuple[str, ...], ...]) -> Expression:
    """The expression of sums of this kind that are brought to floats first and multiplied by operands, one after the
    other: `each` has their names for every one of x.sums. x takes floats."""
    lines, now = list[Line](), dict[str, Operand]()
    for sums, names in zip(x.sums, each, strict=True):
        scaled: Operand = sums
        if kind != "float":
            lines.append(Line("float", (scaled,)))
            scaled = len(lines) - 1
        for name in names:
            lines.append(Line("mul", (scaled, name)))
            scaled = len(lines) - 1
        now[sums] = scaled
    parameters = [(name, kind if name in x.sums else of) for name, of in x.parameters]
    more = dict.fromkeys(name for names in each for name in names)
    return _after(lines, now, x, (*parameters, *((name, "float") for name in more)))


def _after(lines: list[Line], now: dict[str, Operand], x: Expression, parameters: tuple[tuple[str, str], ...]
           ) -> Expression:
    """x behind these lines, whose results `now` stand for its sums."""
    first = len(lines)

    def moved(operand: Operand) -> Operand:
        return operand + first if isinstance(operand, int) else now.get(operand, operand) if isinstance(
            operand, str) else operand
    lines += [Line(line.operation, tuple(map(moved, line.operands))) for line in x.lines]
    return Expression(parameters, tuple(lines),
                      tuple(Result(moved(result.operand), result.reduced) for result in x.results))


def with_scalars(x: Expression, alpha: bool, beta: bool) -> Expression:
    """The expression of sums that are multiplied by an operand ALPHA first, and to which BETA times ADDED is added
    then; the numbers of pairs are in ADDED0 and ADDED1."""
    if not (alpha or beta):
        return x
    kind, lines, now = x.parameters[0][1], list[Line](), dict[str, Operand]()
    added = [f"{ADDED}{half}" for half in range(2)] if x.paired else [ADDED]
    for name, c in zip(x.sums, added, strict=True):
        combined: Operand = name
        if alpha:
            lines.append(Line("mul", (combined, ALPHA)))
            combined = len(lines) - 1
        if beta:
            lines.append(Line("fma", (BETA, c, combined)))
            combined = len(lines) - 1
        now[name] = combined
    more = [ALPHA] * alpha + ([BETA, *added] if beta else [])
    return _after(lines, now, x, (*x.parameters, *((name, kind) for name in more)))


@lru_cache(maxsize=256)
def finished(fold: Fold, epilogue: Expression) -> Expression:
    """An epilogue of the results of a reduction as one of the fields of its state."""
    if epilogue.paired:
        raise TypeError("epilogue takes pairs of columns, which a reduction with a state of its own does not have")
    names = [name for name, _ in epilogue.parameters]
    count = len(fold.result.results)

    def whole(*state: Any, **operands: Any) -> Any:
        results = retraced(fold.result, {f"{STATE}{i}": x for i, x in enumerate(state)})
        values = retraced(epilogue, operands | dict(zip(names, results)))
        return tuple(reduced(x, result.reduced) if result.reduced else x
                     for x, result in zip(values, epilogue.results))
    return trace(whole, dict((*fold.result.parameters, *epilogue.parameters[count:])),
                 positional=len(fold.result.parameters))
