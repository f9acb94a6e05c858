"""Statements of registers that are set and used in the same round, put together: `inlined(statements, scalars, ...)`.

    r = alpha * s; r += beta * C[i]; C[i] = r       →  C[i] = alpha * s + beta * C[i]

`used`: without scalars that nothing reads.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir import Type
from tilewright.nests.nest import LEAVES, Access, Statement, Term, arithmetic, leaves, mapped, statement


def used(statements: Sequence[Statement], scalars: Mapping[str, Type]) -> list[Statement]:
    """Without statements that set scalars which nothing else reads."""
    left, count = list(statements), -1
    while len(left) != count:
        count = len(left)
        read = {a.array for s in left for a in leaves(s.value) if a.array != s.target.array}
        left = [s for s in left if s.target.array not in scalars or s.target.array in read]
    return left


def inlined(statements: Sequence[Statement], scalars: Mapping[str, Type], elements: Mapping[str, Type]
            ) -> list[Statement]:
    """With the values of scalars where they are used, if that is in the same loops and nothing that they are made of
    is written in between."""
    found: list[Statement | None] = list(statements)
    users: dict[str, list[int]] = {}
    for n, s in enumerate(statements):
        for name in {s.target.array, *(a.array for a in leaves(s.value))} & scalars.keys():
            users.setdefault(name, []).append(n)
    for n in range(len(found)):
        first = found[n]
        name = first.target.array if first is not None else ""
        later = [x for x in users.get(name, ()) if x > n]
        if first is None or first.reduce or not later or any(a.array == name for a in leaves(first.value)):
            continue
        second, reads = found[later[0]], {a.array for a in leaves(first.value)}
        between = {s.target.array for s in found[n + 1:later[0]] if s is not None}
        if second is None or first.loops != second.loops or reads & between:
            continue
        alone = len(users[name]) == 2
        together = _together(first, second, alone)
        if together is not None and _same_format(first, second, together, scalars[name], elements):
            found[n], found[later[0]] = None, together
            users[name].remove(n)
            for other in reads & users.keys():
                users[other] = sorted({later[0], *users[other]} - {n})
    return [s for s in found if s is not None]


def _together(first: Statement, second: Statement, alone: bool) -> Statement | None:
    """The second statement with the first one's value in it; None if that is not what they do."""
    target = first.target
    if second.target == target and second.reduce:
        if second.conditions != first.conditions:
            return None
        return second._replace(reduce="", value=(second.reduce, first.value, second.value))
    times = sum(a == target for a in leaves(second.value))
    within = second.conditions[:len(first.conditions)] == first.conditions
    if second.target == target or not alone or not within or (times > 1 and first.value[0] not in LEAVES):
        return None

    def leaf(x: Term) -> Term:
        return first.value if x == ("load", target) else x
    value = mapped(second.value, leaf)
    if second.reduce:
        own = any(a == second.target for a in leaves(value))
        return None if own else second._replace(value=value)
    return statement(second.loops, second.conditions, second.target, value, second.line)


def _same_format(first: Statement, second: Statement, together: Statement, t: Type, elements: Mapping[str, Type]
                 ) -> bool:
    """Whether they compute in the scalar's format, as the one that they become does."""
    def computed(s: Statement) -> Type | None:
        reads: list[Access] = [*leaves(s.value), *[s.target] * bool(s.reduce)]
        plain = s.value[0] in ("load", "number") and not s.reduce
        return None if plain else arithmetic(s.value, [elements[a.array] for a in reads])
    kinds = {elements[a.array] for a in leaves(first.value)}
    if first.value[0] == "load" and kinds != {t}:
        return False
    return {computed(first), computed(second), computed(together)} <= {t, None}
