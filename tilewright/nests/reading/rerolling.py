"""Statements that Python's loops have unrolled, as loops again: `rerolled(statements, scalars, fresh)`.

    r0 = 0; r1 = 0; for p: {r0 += A[i, p] * B[p, j]; r1 += A[i, p] * B[p, j + 1]}; C[i, j] = r0; C[i, j + 1] = r1
    →  for u in 0, 1: {r = 0; for p: r += A[i, p] * B[p, j + u]; C[i, j + u] = r}

Statements that share no register are independent, so each register's go together (a part), if arrays that are written
are accessed in the same order as before. Statements side by side that differ by multiples of counters are a loop, and
so are such parts. Statements without such a pattern stay as they are, which is as right, and slower.

`unmasked`: where(c, A[...], 0) * ... in a sum, whose value is used only where c holds, is a condition of the sum.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tilewright.ir import Type
from tilewright.nests.nest import LEAVES, Access, Loop, Statement, Term, leaves, mapped
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.reading.known import all_of, places, with_places

Fresh = Callable[[str], str]
Key = tuple[Polynomial, ...]


# ---- masks

def unmasked(statements: Sequence[Statement], scalars: Mapping[str, Type]) -> list[Statement]:
    """Statements that set scalars, under the conditions that all uses of these are under; sums of products whose
    factors all are 0 unless a condition holds, under it; and values without conditions that their statement has."""
    users: dict[str, list[int]] = {}
    for n, s in enumerate(statements):
        for name in _scalars(s, scalars):
            users.setdefault(name, []).append(n)
    result = list(statements)
    for name, of in users.items():
        common = _of_uses(name, [result[n] for n in of])
        for n in of if common else ():
            result[n] = result[n]._replace(conditions=(*common, *[c for c in result[n].conditions if c not in common]))
    for n, s in enumerate(result):
        if s.reduce == "add":
            more = [c for c in dict.fromkeys(_masks(s.value)) if c not in s.conditions and _zero(s.value, c)]
            s = s._replace(conditions=(*s.conditions, *more))
        result[n] = s._replace(value=_under(s.value, frozenset(s.conditions))) if s.conditions else s
    return result


def _of_uses(name: str, users: Sequence[Statement]) -> list[Polynomial]:
    """Conditions that all uses of a scalar are under, if it is set first in each round of the loops of these."""
    reads = [s for s in users if any(a.array == name for a in leaves(s.value))]
    first = users[0]
    if first.target.array != name or first.reduce or not reads or first is reads[0]:
        return []
    indices, inside = {x.index for s in users for x in s.loops}, {x.index for x in first.loops}
    if any(s.loops[:len(first.loops)] != first.loops or not {*first.conditions} <= {*s.conditions} for s in users):
        return []
    return [c for c in reads[0].conditions if c.names & indices <= inside and all(c in s.conditions for s in reads)]


def _ordered(term: Term) -> tuple[Polynomial, ...] | None:
    """The polynomials that are >= 0 where a condition holds; None for one on numbers."""
    if term[0] == "and":
        x, y = _ordered(term[1]), _ordered(term[2])
        return None if x is None or y is None else x + y
    if term[0] == "le" and term[1] == ("index", polynomial(0)) and term[2][0] == "index":
        return (term[2][1],)
    return None


def _masks(term: Term) -> list[Polynomial]:
    """Conditions outside of which factors are 0."""
    if term[0] == "where" and term[3] == ("number", 0):
        return [*(_ordered(term[1]) or ()), *_masks(term[2])]
    return [c for x in term[1:] for c in _masks(x)] if term[0] in ("mul", "neg", "div") else []


def _zero(term: Term, c: Polynomial) -> bool:
    """Whether all factors are 0 where c is not >= 0."""
    if term[0] == "where" and term[3] == ("number", 0):
        return c in (_ordered(term[1]) or ()) or _zero(term[2], c)
    if term[0] == "mul":
        return _zero(term[1], c) and _zero(term[2], c)
    return term[0] in ("neg", "div") and _zero(term[1], c)


def _under(term: Term, held: frozenset[Polynomial]) -> Term:
    """The term where these are >= 0."""
    if term[0] in LEAVES:
        return term
    conditions = _ordered(term[1]) if term[0] == "where" else None
    if conditions is None:
        return (term[0], *[_under(x, held) for x in term[1:]])
    left = [c for c in conditions if c not in held]
    if len(left) == len(conditions):
        return ("where", term[1], _under(term[2], held), _under(term[3], held))
    return ("where", all_of(left), _under(term[2], held), _under(term[3], held)) if left else _under(term[2], held)


# ---- loops again

def rerolled(statements: Sequence[Statement], scalars: dict[str, Type], fresh: Fresh, depth: int = 0
             ) -> list[Statement]:
    """The statements, which share their first `depth` loops, with loops for what Python has unrolled."""
    flat = list(statements)
    if not _one_loop(flat, depth):
        flat = _adjacent(statements, fresh)
        parts = _parts(statements, scalars, depth)
        if parts is not None:
            rolled = _together([_adjacent(part, fresh) for part in parts], scalars, fresh, depth)
            flat = rolled if len(rolled) < len(flat) else flat
    result, n = list[Statement](), 0
    while n < len(flat):                        # deeper, where statements share one more loop
        end = n + 1
        while end < len(flat) and _one_loop([flat[n], flat[end]], depth):
            end += 1
        result += rerolled(flat[n:end], scalars, fresh, depth + 1) if end > n + 1 else flat[n:end]
        n = end
    return result


def _one_loop(statements: Sequence[Statement], depth: int) -> bool:
    """Whether statements share one more loop."""
    indices = {s.loops[depth].index if len(s.loops) > depth else "" for s in statements}
    return len(indices) == 1 and indices != {""}


def _scalars(s: Statement, scalars: Mapping[str, Type]) -> set[str]:
    return {x for x in (s.target.array, *(a.array for a in leaves(s.value))) if x in scalars}


def _parts(statements: Sequence[Statement], scalars: dict[str, Type], depth: int) -> list[list[Statement]] | None:
    """The statements by the registers that they share, in the order in which these begin; None if there is one part,
    or if an array that is written would be accessed in another order."""
    first: dict[str, int] = {}                  # scalar → a statement, by which its part is known
    root = list(range(len(statements)))

    def find(n: int) -> int:
        while root[n] != n:
            n = root[n]
        return n
    for n, s in enumerate(statements):
        for name in _scalars(s, scalars):
            a, b = sorted((find(n), find(first.setdefault(name, n))))
            root[b] = a
    of = [find(n) for n in range(len(statements))]
    if len({*of}) == 1:
        return None
    written = {s.target.array for s in statements if s.target.array not in scalars}
    last: dict[str, int] = {}
    inner: dict[tuple[str, str], int] = {}      # (array, loop in which it is accessed) → part
    for part, s in zip(of, statements):
        for array in written & {s.target.array, *(a.array for a in leaves(s.value))}:
            if last.setdefault(array, part) > part:
                return None
            last[array] = part
            if len(s.loops) > depth and inner.setdefault((array, s.loops[depth].index), part) != part:
                return None
    return [[s for part, s in zip(of, statements) if part == n] for n in dict.fromkeys(sorted(of))]


def _adjacent(statements: Sequence[Statement], fresh: Fresh) -> list[Statement]:
    """Statements side by side that differ by multiples of counters, as loops: in the same order."""
    result, n = list[Statement](), 0
    while n < len(statements):
        s, first, end = statements[n], _shape(statements[n]), n + 1
        while end < len(statements) and statements[end].loops == s.loops and _shape(statements[end]) == first:
            end += 1
        keys = [_key(x) for x in statements[n:end]]
        key, loops, count = _rolled(keys, s, fresh)
        result.append(_with_key(s, key)._replace(loops=(*s.loops, *loops)) if loops else s)
        n += count
    return result


def _together(parts: list[list[Statement]], scalars: dict[str, Type], fresh: Fresh, depth: int) -> list[Statement]:
    """Parts one after the other, as loops around one of them where they differ by multiples of counters."""
    normal = [_normal(part, scalars, depth) for part in parts]
    result, n, seen = list[Statement](), 0, set[str]()
    while n < len(parts):
        part, end = parts[n], n + 1
        while end < len(parts) and normal[end][0] == normal[n][0]:
            end += 1
        count = 1
        if end > n + 1 and _private(part, scalars):
            key, loops, count = _rolled([key for _, key in normal[n:end]], part[0], fresh)
            part = _denormalised(part, key, loops, depth) if loops else part
        indices = {x.index for s in part for x in s.loops[depth:]}
        part = _renamed(part, fresh, depth) if indices & seen else part
        seen |= indices
        result += part
        n += count
    return result


def _private(part: Sequence[Statement], scalars: dict[str, Type]) -> bool:
    """Whether each scalar is set before it is used, in each round of the loops around its uses."""
    for name in {x for s in part for x in _scalars(s, scalars)}:
        users = [s for s in part if name in _scalars(s, scalars)]
        first = users[0]
        if first.target.array != name or first.reduce or any(a.array == name for a in leaves(first.value)):
            return False
        if any(s.loops[:len(first.loops)] != first.loops or s.conditions[:len(first.conditions)] != first.conditions
               for s in users):
            return False
    return True


def _normal(part: Sequence[Statement], scalars: dict[str, Type], depth: int) -> tuple[Any, Key]:
    """(what parts that may be rounds of one loop have in common, the polynomials in which they differ)."""
    names: dict[str, str] = {}
    for s in part:
        for a in (s.target, *leaves(s.value)):
            if a.array in scalars:
                names.setdefault(a.array, f"%{len(names)}")
    indices: dict[str, str] = {}
    for s in part:
        for x in s.loops[depth:]:
            indices.setdefault(x.index, f"%i{len(indices)}")
    shape, key = [], list[Polynomial]()
    for s in part:
        loops = s.loops[depth:]
        shape.append((s.loops[:depth], tuple([(indices[x.index], x.step, x.kind) for x in loops]),
                      _shape(s, names)))
        key += [p.replaced(indices) for x in loops for p in (x.start, x.stop)]
        key += [p.replaced(indices) for p in _key(s)]
    types = tuple(scalars[name] for name in names)
    return (tuple(shape), types), tuple(key)


def _denormalised(part: Sequence[Statement], key: Key, new: tuple[Loop, ...], depth: int) -> list[Statement]:
    """The part in loops around it, with these polynomials."""
    indices: dict[str, str] = {}
    for s in part:
        for x in s.loops[depth:]:
            if x.index not in indices.values():
                indices[f"%i{len(indices)}"] = x.index
    left, result = iter([p.replaced(indices) for p in key]), []
    for s in part:
        loops = [Loop(x.index, next(left), next(left), x.step, x.line, x.kind) for x in s.loops[depth:]]
        count = len(_key(s))
        changed = _with_key(s, tuple([next(left) for _ in range(count)]))
        result.append(changed._replace(loops=(*s.loops[:depth], *new, *loops)))
    return result


def _renamed(part: Sequence[Statement], fresh: Fresh, depth: int) -> list[Statement]:
    """The part with loops of its own, since others with the same indices now stand elsewhere."""
    names: dict[str, Any] = {}
    result = []
    for s in part:
        loops = list(s.loops)
        for n, x in enumerate(loops[depth:], depth):
            if x.index not in names:
                names[x.index] = fresh("i")
            loops[n] = Loop(names[x.index], x.start.replaced(names), x.stop.replaced(names), x.step, x.line, x.kind)
        key = tuple([p.replaced(names) for p in _key(s)])
        result.append(_with_key(s, key)._replace(loops=tuple(loops)))
    return result


def _shape(s: Statement, names: dict[str, str] | None = None) -> Any:
    """What a statement is but for its polynomials and loops."""
    def access(a: Access) -> tuple[str, int]:
        return (names or {}).get(a.array, a.array), len(a.subscripts)

    def leaf(x: Term) -> Term:
        return ("load", *access(x[1])) if x[0] == "load" else ("index",) if x[0] == "index" else (
            x[0], type(x[1]), x[1])
    return access(s.target), s.reduce, mapped(s.value, leaf), len(s.conditions)


def _key(s: Statement) -> Key:
    """A statement's polynomials."""
    return (*s.target.subscripts, *s.conditions, *places(s.value))


def _with_key(s: Statement, key: Key) -> Statement:
    """A statement with other polynomials."""
    left = iter(key)
    target = Access(s.target.array, tuple([next(left) for _ in s.target.subscripts]))
    return s._replace(target=target, conditions=tuple([next(left) for _ in s.conditions]),
                      value=with_places(s.value, left))


def _counters(keys: list[Key], indices: set[str]) -> list[tuple[int, Key]]:
    """(rounds, what each of them adds) of loops, outermost first, whose rounds the first of these are."""
    steps = [tuple([b - a for a, b in zip(x, y)]) for x, y in pairwise(keys)]
    if not steps or any(p.names & indices for p in steps[0]):
        return []
    rounds = 1 + next((n for n, step in enumerate(steps) if step != steps[0]), len(steps))
    repeats = 1             # so many times these rounds follow each other
    while (repeats + 1) * rounds <= len(keys) and all(
            step == steps[0] for step in steps[repeats * rounds:(repeats + 1) * rounds - 1]):
        repeats += 1
    return [*_counters(keys[:repeats * rounds:rounds], indices), (rounds, steps[0])]


def _rolled(keys: list[Key], s: Statement, fresh: Fresh) -> tuple[Key, tuple[Loop, ...], int]:
    """The polynomials in terms of counters, the loops of these, and how many of the keys are their rounds."""
    key, loops, count = keys[0], [], 1
    for rounds, step in _counters(keys, {x.index for x in s.loops}):
        name = fresh("u")
        key = tuple([p + d * name for p, d in zip(key, step)])
        loops.append(Loop(name, polynomial(0), polynomial(rounds), 1, s.line))
        count *= rounds
    return key, tuple(loops), count
